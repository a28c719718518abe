"""How many ports, switches and links a fabric of each kind takes.

The counting rules of the packet fabrics and of the photonic rail are the published ones. They take switches
of exactly the radix that the size asks for, which exists for few sizes, and count ports: `exact_radix` says
whether this size is one of those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from opus_sdn.whatif.cost.prices import Prices
from opus_sdn.whatif.errors import InputError

MAX_GPUS = 1 << 24


class Kind(StrEnum):
    """A kind of fabric. `cpo` is the rail-optimised packet fabric with co-packaged optics in its switches."""

    RAIL = "rail"
    FAT_TREE = "fat-tree"
    PHOTONIC = "photonic"
    CPO = "cpo"


@dataclass(frozen=True, slots=True)
class Counts:
    """What a fabric is made of. `radix` is the ports of a packet switch, of an optical one those in use.

    `links` are point to point: GPU to switch and switch to switch.
    """

    switches: int
    radix: int
    ports: int
    links: int
    exact_radix: bool
    rule: str


def hosts_of(gpus: int, prices: Prices) -> int:
    """Scale-up domains that so many GPUs fill. Raises InputError where one would be left half empty."""
    per_host = prices.gpus_per_host
    if not per_host <= gpus <= MAX_GPUS or gpus % per_host:
        below = max(1, min(gpus, MAX_GPUS) // per_host) * per_host
        fit = f"{below} or {below + per_host} would fit" if below < MAX_GPUS else f"at most {MAX_GPUS}"
        why = f"a scale-up domain of this system has {per_host} GPUs, and only whole ones are priced: {fit}"
        raise InputError(why, file="--gpus", field="gpus", value=gpus)
    return gpus // per_host


def counts(kind: Kind, gpus: int, prices: Prices) -> Counts:
    """What `gpus` take on a fabric of this kind. Raises InputError."""
    if kind is Kind.PHOTONIC:
        return photonic(gpus, prices)
    return fat_tree(gpus) if kind is Kind.FAT_TREE else packet_rail(gpus, prices)


def packet_rail(gpus: int, prices: Prices) -> Counts:
    """Two layers of switches in every rail, and a spine over all rails."""
    hosts, rails = hosts_of(gpus, prices), prices.gpus_per_host
    radix = round(math.sqrt(4 * hosts))
    in_rails = 2 * (hosts // (radix // 2)) * rails
    spine = rails * hosts // radix
    ports = (in_rails + spine) * radix
    rule = (
        f"k = round(sqrt(4 x {hosts} hosts)) = {radix} ports; "
        f"{rails} rails x 2 x floor({hosts} / {radix // 2}) = {in_rails} switches, "
        f"floor({rails} x {hosts} / {radix}) = {spine} in the spine"
    )
    exact = radix * radix == 4 * hosts and radix % 2 == 0
    return Counts(in_rails + spine, radix, ports, gpus + (ports - gpus) // 2, exact, rule)


def fat_tree(gpus: int) -> Counts:
    """Three layers of switches, as Clos networks of k-port switches are built: k^3 / 4 GPUs at most."""
    radix = round((4 * gpus) ** (1 / 3))
    switches = radix**2 + radix**2 // 4
    rule = f"k = round((4 x {gpus})^(1/3)) = {radix} ports; k^2 + floor(k^2 / 4) = {switches} switches"
    ports = switches * radix
    exact = radix**3 == 4 * gpus and radix % 2 == 0
    return Counts(switches, radix, ports, gpus + max(0, ports - gpus) // 2, exact, rule)


def photonic(gpus: int, prices: Prices) -> Counts:
    """One optical switch or more for every rail; a GPU takes all its ports on that of its own rail."""
    need = rail_need(gpus, prices)
    ports = prices.ocs_ports_per_gpu * gpus
    rule = f"{prices.ocs_ports_per_gpu} ports for each of {gpus} GPUs, {need.ports} in a rail; {need.says}"
    return Counts(need.switches, prices.optical_switch.ports, ports, ports, need.fits, rule)


@dataclass(frozen=True, slots=True)
class RailNeed:
    """What a rail asks of optical switches: `ports` in one rail, whether one switch has so many, and, where
    not, what it would take. `switches` are those of all rails together.
    """

    ports: int
    radix: int
    fits: bool
    switches: int
    says: str


def rail_need(gpus: int, prices: Prices) -> RailNeed:
    """Whether a rail fits one optical switch. Several rails share a switch where they are small enough."""
    hosts, rails, radix = hosts_of(gpus, prices), prices.gpus_per_host, prices.optical_switch.ports
    per_host = prices.ocs_ports_per_gpu
    ports = per_host * hosts
    if ports <= radix:
        shared = radix // ports
        switches = -(-rails // shared)
        beside = f", which {shared} rails share" if shared > 1 else ""
        return RailNeed(ports, radix, True, switches, f"a rail fits one switch of {radix} ports{beside}")
    most = radix // per_host
    if most == 0:
        why = f"a GPU takes {per_host} ports, which no optical switch of {radix} ports has"
        raise InputError(why, file="prices", field="optical_switch.ports", value=radix)
    parts = -(-hosts // most)
    outer = radix // 2
    edge = -(-ports // outer)
    middle = -(-edge * outer // radix)
    says = (
        f"a rail does not fit one switch of {radix} ports: it needs one of {ports}, or {parts} switches of "
        f"{radix} with at most {most} hosts each, between which no circuit can be made, or {edge} + {middle} "
        f"switches of {radix} in three stages, through which light passes three switches"
    )
    return RailNeed(ports, radix, False, parts * rails, says)
