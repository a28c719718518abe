"""Small fabrics and declarations for the tests of the core, built without the fabric file's reader."""

from __future__ import annotations

from collections.abc import Sequence

from opus_sdn.intent.fabric import (
    Attachment,
    CircuitKind,
    CrossConnect,
    Fabric,
    Port,
    Rail,
    Switch,
)
from opus_sdn.intent.model import CoreSettings, Dimension, GroupSpec, JobSpec, Place

PATIENT = CoreSettings(lease_s=1e9, fence_s=1.0, abort_s=1.0)  # nobody is ever too silent
SPARE_POSITIONS = 2  # of each switch, beyond those that ports sit on


def make_fabric(
    hosts: int = 4,
    gpus: int = 1,
    ports: int = 2,
    kind: CircuitKind = CircuitKind.DUPLEX,
    one_switch: bool = False,
    one_rail: bool = False,
) -> Fabric:
    """Hosts h0, h1, ...; slot r on rail `rail<r>`, or all slots on `rail0`; a switch `ocs<r>` for each rail.

    With one switch for all rails it is `ocs`, rail after rail. Positions of a rail follow host, slot, port.
    """
    names = tuple(f"h{number}" for number in range(hosts))
    slots = [tuple(range(gpus))] if one_rail else [(slot,) for slot in range(gpus)]
    rails: list[Rail] = []
    attachments: list[Attachment] = []
    used: dict[str, int] = {}
    for number, members in enumerate(slots):
        rail = Rail(f"rail{number}", number, "ocs" if one_switch else f"ocs{number}", members)
        rails.append(rail)
        for port in (Port(h, slot, index) for h in names for slot in members for index in range(ports)):
            position = used.get(rail.switch, 0)
            attachments.append(Attachment(port, rail.name, rail.switch, position))
            used[rail.switch] = position + 1
    sided = kind is not CircuitKind.BIDIRECTIONAL
    switches = tuple(Switch(name, "virtual", count + SPARE_POSITIONS, sided) for name, count in used.items())
    return Fabric(names, gpus, ports, kind, switches, tuple(rails), tuple(attachments))


def positions(fabric: Fabric) -> dict[Port, tuple[str, int]]:
    """Switch and position of every port."""
    return {at.port: (at.switch, at.position) for at in fabric.attachments}


def pairs_between(fabric: Fabric, a: Port, b: Port) -> tuple[str, frozenset[CrossConnect]]:
    """What a switch must hold so that light goes from `a` to `b` as this fabric's kind of circuit asks.

    From the positions and the definition of the kinds alone, so that it can judge the core's own circuits.
    """
    (switch, i), (_, j) = positions(fabric)[a], positions(fabric)[b]
    match fabric.circuit_kind:
        case CircuitKind.DUPLEX:
            return switch, frozenset({CrossConnect(i, j), CrossConnect(j, i)})
        case CircuitKind.BIDIRECTIONAL:
            return switch, frozenset({CrossConnect(min(i, j), max(i, j))})
        case CircuitKind.DIRECTED:
            return switch, frozenset({CrossConnect(i, j)})


def places(count: int, gpus: int = 1, first_host: int = 0) -> tuple[Place, ...]:
    """Ranks in order, host by host, `gpus` on each."""
    return tuple(Place(f"h{first_host + rank // gpus}", rank % gpus) for rank in range(count))


def make_spec(
    placement: Sequence[Place],
    dimensions: dict[str, int] | None = None,
    name: str = "job",
    nonce: str = "first",
    **more: object,
) -> JobSpec:
    """A job's declaration with the tests' defaults."""
    dims = tuple(Dimension(n, size) for n, size in (dimensions or {}).items())
    return JobSpec(name, "owner", nonce, tuple(placement), dims, **more)


def group(name: str, *ranks: int, dimension: str = "dp", ordinal: int = 0) -> GroupSpec:
    """A process group; the dimension matters for topology ids only."""
    return GroupSpec(name, tuple(ranks), dimension, ordinal)
