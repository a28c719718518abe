"""Between the ports of the fabric file and the port numbers of a Polatis. The only place that converts.

The device counts from 1 over all its ports: an NxM switch has ingress 1 to N and egress N+1 to N+M, so the
offset is N, whatever M is. An NxCC switch has N ports in all and no sides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opus_sdn.drivers.pairs import PortId, place
from opus_sdn.intent.fabric import CrossConnect, Side

PORTS_MAX = 8192
_SIZE = re.compile(r"(?<![0-9A-Za-z])([0-9]{1,5})x([0-9]{1,5}|CC)(?![0-9A-Za-z])", re.IGNORECASE)


class NumberingError(ValueError):
    """A size, port or number that cannot be on this device; the message says what can."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """How one device counts. `ingress` = all ports where there are no sides, and `egress` is 0 then."""

    ingress: int
    egress: int

    @property
    def sided(self) -> bool:
        """Whether ingress and egress are apart."""
        return self.egress > 0

    @property
    def total(self) -> int:
        """How many ports the device has; numbers go from 1 to this."""
        return self.ingress + self.egress

    @property
    def ports(self) -> tuple[PortId, ...]:
        """Every port, in the order of their numbers."""
        return tuple(self.port(number) for number in range(1, self.total + 1))

    @classmethod
    def parse(cls, text: str) -> Numbering:
        """Read a size out of a model name or a size answer: `48x48`, `N-VST-16x08-HU1-MMHNP-800`, `32xCC`.

        Raises NumberingError unless there is exactly one size in it, and a possible one.
        """
        found = _SIZE.findall(text)
        if len(found) != 1:
            raise NumberingError(f"size {text[:80]!r} is not understood; right would be like 48x48 or 32xCC")
        first, second = found[0]
        ingress, egress = int(first, 10), 0 if second.upper() == "CC" else int(second, 10)
        possible = ingress >= (2 if second.upper() == "CC" else 1) and ingress + egress <= PORTS_MAX
        if not possible or (egress == 0 and second.upper() != "CC"):
            raise NumberingError(f"size {text[:80]!r} is impossible; a switch has 2 to {PORTS_MAX} ports")
        return cls(ingress, egress)

    def number(self, port: PortId) -> int:
        """The device's number of a port. Raises NumberingError for a port that it has not."""
        count = {Side.INGRESS: self.ingress, Side.EGRESS: self.egress, Side.ANY: self.ingress}[port.side]
        if self.sided == (port.side is Side.ANY):
            sides = "ingress and egress" if self.sided else "no sides"
            raise NumberingError(f"{place(port)} is not on this switch, which has {sides}")
        if not 0 <= port.position < count:
            raise NumberingError(f"{place(port)} is out of range; positions are 0 to {count - 1}")
        return port.position + 1 + (self.ingress if port.side is Side.EGRESS else 0)

    def port(self, number: int) -> PortId:
        """The port with this number. Raises NumberingError for a number that the device cannot have."""
        if not 1 <= number <= self.total:
            raise NumberingError(f"port number {number} is out of range; numbers are 1 to {self.total}")
        if not self.sided:
            return PortId(Side.ANY, number - 1)
        if number <= self.ingress:
            return PortId(Side.INGRESS, number - 1)
        return PortId(Side.EGRESS, number - 1 - self.ingress)

    def wire(self, pair: CrossConnect) -> tuple[int, int]:
        """The two numbers of a cross-connect, the lower one first, as the device wants them.

        Raises NumberingError for a port out of range, or one that is joined to itself.
        """
        first = Side.INGRESS if self.sided else Side.ANY
        second = Side.EGRESS if self.sided else Side.ANY
        a, b = self.number(PortId(first, pair.ingress)), self.number(PortId(second, pair.egress))
        if a == b:
            raise NumberingError(f"position {pair.ingress} is joined to itself; two are needed")
        return (a, b) if a < b else (b, a)

    def pair(self, a: int, b: int) -> CrossConnect:
        """The cross-connect that the device lists with these numbers, in whichever order it does.

        Raises NumberingError for numbers that it cannot list.
        """
        first, second = self.port(min(a, b)), self.port(max(a, b))
        if a == b or (self.sided and first.side is second.side):
            raise NumberingError(f"ports {a} and {b} cannot be connected; one of each side is needed")
        return CrossConnect(first.position, second.position)
