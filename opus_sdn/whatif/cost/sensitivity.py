"""How much the ratios hang on each input: one input at a time is changed, everything else stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opus_sdn.whatif.cost.bill import bill
from opus_sdn.whatif.cost.fabrics import Kind, rail_need
from opus_sdn.whatif.cost.prices import SYSTEMS, PriceFile, Prices, merged

FACTORS = (0.5, 2.0)
RADICES = (64, 128, 192, 320, 512)


@dataclass(frozen=True, slots=True)
class Case:
    """One changed input: costs of both fabrics, and the packet fabric's over the photonic one's.

    `group` collects the cases of one input.
    """

    group: str
    value: str
    packet_usd: float
    photonic_usd: float
    cost_ratio: float | None
    power_ratio: float | None
    note: str = ""


def sensitivity(gpus: int, prices: Prices, packet: Kind = Kind.RAIL) -> list[Case]:
    """All cases for this size, the unchanged one first."""
    found = [_case("as priced", "", gpus, prices, packet)]
    for group, value, changes, note in _changes(gpus, prices):
        found.append(_case(group, value, gpus, merged(prices, changes), packet, note))
    others = [kind for kind in (Kind.RAIL, Kind.FAT_TREE, Kind.CPO) if kind is not packet]
    return [*found, *(_case("packet fabric", kind.value, gpus, prices, kind) for kind in others)]


def _case(group: str, value: str, gpus: int, prices: Prices, packet: Kind, note: str = "") -> Case:
    electrical, optical = bill(packet, gpus, prices), bill(Kind.PHOTONIC, gpus, prices)
    return Case(
        group,
        value,
        electrical.usd,
        optical.usd,
        ratio(electrical.usd, optical.usd),
        ratio(electrical.w, optical.w),
        note,
    )


def ratio(one: float, other: float) -> float | None:
    """One over the other; None where that is nothing, as a price file may have it."""
    return round(one / other, 4) if other else None


def _changes(gpus: int, prices: Prices) -> Iterator[tuple[str, str, PriceFile, str]]:
    """Input, value, what is changed, and what is to be known of it."""
    for name, part, field in (
        ("price of an OCS port", "optical_switch", "usd_per_port"),
        ("power of an OCS", "optical_switch", "w"),
        ("price of a transceiver", "transceiver", "usd"),
        ("power of a transceiver", "transceiver", "w"),
        ("price of a packet switch", "packet_switch", "usd"),
        ("power of a packet switch", "packet_switch", "w"),
    ):
        base = getattr(getattr(prices, part), field)
        unit = "W" if field == "w" else "$"
        for factor in FACTORS:
            value = f"x {factor:g}: {_amount(factor * base, unit)}"
            yield name, value, _file({part: {field: factor * base}}), ""
    for radix in RADICES:
        changed = _file({"optical_switch": {"ports": radix}, "whole_switches": True})
        if radix >= prices.ocs_ports_per_gpu:
            need = rail_need(gpus, merged(prices, changed))
            yield "radix of an OCS, whole switches", f"{radix} ports", changed, need.says
    for other in SYSTEMS.values():
        changed = _file(
            other.model_dump(include={"link_gbps", "transceiver", "packet_switch", "co_packaged"})
        )
        if other.link_gbps != prices.link_gbps:
            yield "link rate", f"{other.link_gbps:g} Gb/s, its optics and switches", changed, ""
    for both, says in ((True, "transceivers at both ends"), (False, "transceivers at GPUs only")):
        if both is not prices.switch_optics:
            yield "optics rule", says, _file({"switch_optics": both}), ""
    whole = not prices.whole_switches
    yield "counting", "whole switches" if whole else "ports", _file({"whole_switches": whole}), ""
    for ports in (1, 4):
        if ports != prices.ocs_ports_per_gpu and ports <= prices.optical_switch.ports:
            yield "OCS ports per GPU", str(ports), _file({"ocs_ports_per_gpu": ports}), ""


def _amount(value: float, unit: str) -> str:
    return f"${value:,.6g}" if unit == "$" else f"{value:,.6g} W"


def _file(changes: dict[str, Any]) -> PriceFile:
    return PriceFile.model_validate(changes)
