"""What parts cost and draw: the published sets for two systems, and files that change them.

The two sets are those behind the published cost figure. What they leave out (NICs, fibre) is None here and
gets no line in a bill until somebody prices it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.checked import Part, read_checked

Money = Annotated[float, Field(ge=0, le=1e9)]
Watts = Annotated[float, Field(ge=0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]


class Item(Part):
    """One part of which a whole number is bought."""

    usd: Money
    w: Watts


class Box(Item):
    """A switch: price and power of the whole box with all its `ports`."""

    ports: Count


class OpticalSwitch(Part):
    """An optical circuit switch: `usd` is the price of one port, `w` the power of a box with all `ports`."""

    usd_per_port: Money
    w: Watts
    ports: Count


class Prices(Part):
    """The parts of one system, and how they are counted.

    `gpus_per_host` share a scale-up domain. `switch_optics`: a transceiver in every port of a packet switch
    counts too. `whole_switches`: boxes are bought, not ports. `co_packaged` is what takes the transceiver's
    place in a port of a switch with co-packaged optics.
    """

    title: str
    link_gbps: Annotated[float, Field(gt=0, le=1e6)]
    gpus_per_host: Count
    transceiver: Item
    packet_switch: Box
    optical_switch: OpticalSwitch
    co_packaged: Item
    nic: Item | None = None
    fibre: Item | None = None
    switch_optics: bool = True
    whole_switches: bool = False
    ocs_ports_per_gpu: Count = 2
    transceivers_per_gpu: Count = 1


class PartialItem(Part):
    """What a file says of a part."""

    usd: Money | None = None
    w: Watts | None = None


class PartialBox(PartialItem):
    """What a file says of a packet switch."""

    ports: Count | None = None


class PartialOpticalSwitch(Part):
    """What a file says of an optical circuit switch."""

    usd_per_port: Money | None = None
    w: Watts | None = None
    ports: Count | None = None


class PriceFile(Part):
    """A price file: what differs from the set of the system that it is used with."""

    title: str | None = None
    link_gbps: Annotated[float, Field(gt=0, le=1e6)] | None = None
    gpus_per_host: Count | None = None
    transceiver: PartialItem | None = None
    packet_switch: PartialBox | None = None
    optical_switch: PartialOpticalSwitch | None = None
    co_packaged: PartialItem | None = None
    nic: Item | None = None
    fibre: Item | None = None
    switch_optics: bool | None = None
    whole_switches: bool | None = None
    ocs_ports_per_gpu: Count | None = None
    transceivers_per_gpu: Count | None = None


# A vendor of switches with co-packaged optics puts their power at 1 / 3.5 of that of pluggable transceivers
# and names no price: the transceiver's is assumed.
CO_PACKAGED_POWER = 3.5

_OPTICAL_SWITCH = OpticalSwitch(usd_per_port=520.0, w=75.0, ports=192)  # Polatis 6000n

SYSTEMS = {
    "h200": Prices(
        title="H200, 8 GPUs per host, 400 Gb/s",
        link_gbps=400.0,
        gpus_per_host=8,
        transceiver=Item(usd=879.0, w=10.0),
        packet_switch=Box(usd=37_299.0, w=2524.0, ports=64),
        optical_switch=_OPTICAL_SWITCH,
        co_packaged=Item(usd=879.0, w=10.0 / CO_PACKAGED_POWER),
    ),
    "gb200": Prices(
        title="GB200, 32 GPUs per scale-up domain, 800 Gb/s",
        link_gbps=800.0,
        gpus_per_host=32,
        transceiver=Item(usd=879.0, w=16.0),
        packet_switch=Box(usd=149_939.0, w=7000.0, ports=144),
        optical_switch=_OPTICAL_SWITCH,
        co_packaged=Item(usd=879.0, w=16.0 / CO_PACKAGED_POWER),
        switch_optics=False,
    ),
}


def system_prices(system: str, file: Path | None = None) -> Prices:
    """The published set of a system, with what `file` says instead. Raises InputError."""
    if system not in SYSTEMS:
        raise InputError(f"systems are {', '.join(SYSTEMS)}", file="--system", value=system)
    found = SYSTEMS[system]
    return found if file is None else merged(found, read_checked(file, PriceFile))


def merged(prices: Prices, changes: PriceFile) -> Prices:
    """The set with these changes."""
    base = prices.model_dump()
    for name, value in changes.model_dump(exclude_none=True).items():
        base[name] = base[name] | value if isinstance(base[name], dict) and isinstance(value, dict) else value
    return Prices.model_validate(base)
