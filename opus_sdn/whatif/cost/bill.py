"""The bill of materials of a fabric: lines of whole parts, which add up to its cost and power."""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.whatif.cost.fabrics import Counts, Kind, counts
from opus_sdn.whatif.cost.prices import Prices

CENTS = 2
MILLIWATTS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """So many of one part. `usd` and `w` are those of all of them, in whole cents and milliwatts."""

    item: str
    count: int
    usd_each: float
    w_each: float

    @property
    def usd(self) -> float:
        """What all of them cost."""
        return round(self.count * self.usd_each, CENTS)

    @property
    def w(self) -> float:
        """What all of them draw."""
        return round(self.count * self.w_each, MILLIWATTS)


@dataclass(frozen=True, slots=True)
class Bill:
    """All lines of a fabric for so many GPUs."""

    kind: Kind
    gpus: int
    counts: Counts
    lines: tuple[Line, ...]

    @property
    def usd(self) -> float:
        """The whole cost."""
        return round(sum(line.usd for line in self.lines), CENTS)

    @property
    def w(self) -> float:
        """The whole power."""
        return round(sum(line.w for line in self.lines), MILLIWATTS)


def bill(kind: Kind, gpus: int, prices: Prices) -> Bill:
    """The bill for `gpus` on a fabric of this kind. Raises InputError for a size that does not fit."""
    found = counts(kind, gpus, prices)
    lines = [*_switches(kind, found, prices), *_optics(kind, found, gpus, prices)]
    if prices.nic is not None:
        lines.append(Line("NIC", gpus, prices.nic.usd, prices.nic.w))
    if prices.fibre is not None:
        lines.append(Line("fibre of a link", found.links, prices.fibre.usd, prices.fibre.w))
    return Bill(kind, gpus, found, tuple(line for line in lines if line.count))


def _switches(kind: Kind, found: Counts, prices: Prices) -> list[Line]:
    if kind is Kind.PHOTONIC:
        optical = prices.optical_switch
        if prices.whole_switches:
            whole = optical.usd_per_port * optical.ports
            return [Line(f"optical switch of {optical.ports} ports", found.switches, whole, optical.w)]
        return [
            Line("port of an optical switch", found.ports, optical.usd_per_port, optical.w / optical.ports)
        ]
    box = prices.packet_switch
    if prices.whole_switches:
        boxes = -(-found.ports // box.ports)
        return [Line(f"packet switch of {box.ports} ports", boxes, box.usd, box.w)]
    return [Line("port of a packet switch", found.ports, box.usd / box.ports, box.w / box.ports)]


def _optics(kind: Kind, found: Counts, gpus: int, prices: Prices) -> list[Line]:
    """Transceivers at the GPUs, and what is in the ports of packet switches; optical ones have none."""
    each = prices.transceiver
    lines = [Line("transceiver at a GPU", prices.transceivers_per_gpu * gpus, each.usd, each.w)]
    if kind is Kind.CPO:
        inside = prices.co_packaged
        lines.append(Line("co-packaged optics of a port", found.ports, inside.usd, inside.w))
    elif kind is not Kind.PHOTONIC and prices.switch_optics:
        lines.append(Line("transceiver at a switch", found.ports, each.usd, each.w))
    return lines
