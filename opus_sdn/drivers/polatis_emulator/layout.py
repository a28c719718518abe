"""Which port numbers a model has (the device's own, from 1), and which two of them may be joined."""

from __future__ import annotations

import re
from dataclasses import dataclass

PORTS_MAX = 4096

_SIZE = re.compile(r"(\d{1,4})x(\d{1,4}|CC)", re.IGNORECASE)


class SizeError(ValueError):
    """A size that no model has; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class PortLayout:
    """Ingress ports are 1 to `ingress`, egress ports follow. `egress` = 0: any port to any other."""

    ingress: int
    egress: int

    @classmethod
    def parse(cls, size: str) -> PortLayout:
        """Read `32x32`, `16x08` (dimensions may be padded) or `32xCC` (32 ports, any to any)."""
        found = _SIZE.fullmatch(size)
        if found is None:
            raise SizeError(
                f"size is {size!r}; right would be ingress x egress, as 32x32 or 16x08, or 32xCC for 32 "
                "ports of which any can be joined to any other"
            )
        first = int(found.group(1), 10)
        second = 0 if found.group(2).upper() == "CC" else int(found.group(2), 10)
        any_to_any = found.group(2).upper() == "CC"
        if first < (2 if any_to_any else 1) or (second < 1 and not any_to_any):
            raise SizeError(f"size is {size!r}; right would be at least one port on each side, or 2xCC")
        if first + second > PORTS_MAX:
            raise SizeError(f"size is {size!r}, {first + second} ports; the most is {PORTS_MAX}")
        return cls(first, second)

    @classmethod
    def of_model(cls, model: str) -> PortLayout:
        """Read the size that stands in a model name, as in `N-OST-48x48-HA1-DMHEV-050`."""
        found = _SIZE.search(model)
        if found is None:
            raise SizeError(
                f"model is {model!r}, which names no size; right would be N-OST-48x48-HA1-DMHEV-050"
            )
        return cls.parse(found.group())

    @property
    def any_to_any(self) -> bool:
        """Whether the ports have no sides."""
        return self.egress == 0

    @property
    def ports(self) -> range:
        """Every port number."""
        return range(1, self.ingress + self.egress + 1)

    @property
    def egress_ports(self) -> range:
        """The ports where light comes out; all of them where there are no sides."""
        return self.ports if self.any_to_any else range(self.ingress + 1, self.ingress + self.egress + 1)

    def joinable(self, first: int, second: int) -> bool:
        """Whether these two valid ports can be joined at all."""
        if self.any_to_any:
            return first != second
        return (first <= self.ingress) != (second <= self.ingress)

    def __str__(self) -> str:
        return f"{self.ingress}x{'CC' if self.any_to_any else self.egress}"
