"""From a group's ranks to the circuits it needs, by the fabric's port choice.

A pipeline pair takes *right* of the earlier stage and *left* of the next one, cyclically. A ring of two
members on a rail is one circuit, of three or more right-to-left around the rank list. With four ports per
GPU there are two lefts and two rights, and every circuit is doubled. Circuits end only on ports of the
participants themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Circuit, CircuitKind, Fabric, Port
from opus_sdn.intent.model import (
    Connection,
    Domain,
    GroupSpec,
    JobSpec,
    Pattern,
    Place,
    PortChoice,
    WorldGroup,
)
from opus_sdn.intent.ranks import Layout

LEFT, RIGHT = 0, 1


def port_indices(fabric: Fabric, side: int) -> tuple[int, ...]:
    """Port indices of the left (0) or right (1) side of a GPU; one port per GPU is both sides."""
    if fabric.ports_per_gpu == 1:
        return (0,)
    return tuple(range(side, fabric.ports_per_gpu, 2))


def link(fabric: Fabric, a: Place, a_side: int, b: Place, b_side: int) -> tuple[Circuit, ...]:
    """Both-way circuits between one side of a GPU and one side of another, one for each port of the side."""
    circuits = []
    for i, j in zip(port_indices(fabric, a_side), port_indices(fabric, b_side), strict=True):
        end_a, end_b = Port(a.host, a.slot, i), Port(b.host, b.slot, j)
        circuits.append(fabric.circuit(end_a, end_b))
        if fabric.circuit_kind is CircuitKind.DIRECTED:
            circuits.append(fabric.circuit(end_b, end_a))
    return tuple(circuits)


def domain_of(spec: JobSpec, ranks: Sequence[int]) -> Domain:
    """Scale-up: one host. Front-end: the whole world, unless the job or its settings put it on the rails."""
    hosts = {spec.placement[rank].host for rank in ranks}
    if len(hosts) == 1 and not spec.force_scale_out:
        return Domain.SCALE_UP
    if len(ranks) == len(spec.placement) and not _world_on_rails(spec):
        return Domain.FRONT_END
    return Domain.SCALE_OUT


def _world_on_rails(spec: JobSpec) -> bool:
    if spec.world_group is WorldGroup.AUTO:
        return sum(d.size > 1 for d in spec.dimensions) == 1
    return spec.world_group is WorldGroup.RAIL


def ring(fabric: Fabric, spec: JobSpec, layout: Layout, group: GroupSpec) -> Connection:
    """The ring connection of a group: on each rail its members, joined in rank-list order.

    Raises CoreError `unroutable` when the circuits of all rails together do not join the hosts.
    """
    circuits: list[Circuit] = []
    for members in _by_rail(fabric, spec, group.ranks).values():
        circuits += _ring_on_rail(fabric, spec, layout, members)
    connection = Connection(
        group.name, group.name, Pattern.RING, group.dimension, group.ranks, tuple(dict.fromkeys(circuits))
    )
    _require_joined(spec, connection)
    return connection


def pair(fabric: Fabric, spec: JobSpec, group: GroupSpec, first: int, second: int) -> Connection:
    """The connection of two ranks that talk, `first` before `second` in group order.

    Inside a host it needs no circuits. Raises CoreError `unroutable` when the two share no rail.
    """
    a, b = spec.placement[first], spec.placement[second]
    circuits: tuple[Circuit, ...] = ()
    if a.host != b.host or spec.force_scale_out:
        size, at_a, at_b = len(group.ranks), group.ranks.index(first), group.ranks.index(second)
        if size > 2 and at_a == 0 and at_b == size - 1:  # last stage's right to the first one's left
            a, b = b, a
        if fabric.rail_of(a.host, a.slot) == fabric.rail_of(b.host, b.slot):
            circuits = link(fabric, a, RIGHT, b, LEFT)
    connection = Connection(
        f"{group.name}:{first}-{second}",
        group.name,
        Pattern.PAIR,
        group.dimension,
        (first, second),
        circuits,
    )
    _require_joined(spec, connection)
    return connection


def _by_rail(fabric: Fabric, spec: JobSpec, ranks: Sequence[int]) -> dict[str, list[int]]:
    rails: dict[str, list[int]] = {}
    for rank in ranks:
        place = spec.placement[rank]
        rails.setdefault(fabric.rail_of(place.host, place.slot), []).append(rank)
    return rails


def _ring_on_rail(fabric: Fabric, spec: JobSpec, layout: Layout, members: Sequence[int]) -> list[Circuit]:
    places = [spec.placement[rank] for rank in members]
    if len(members) < 2:
        return []
    if len(members) == 2:
        sides = (RIGHT, LEFT)
        if spec.port_choice is PortChoice.SPREAD:
            sides = _spread_sides(layout, members[0], members[1])
        elif spec.port_choice is PortChoice.ONE_PORT and fabric.circuit_kind is CircuitKind.DIRECTED:
            sides = _one_side(layout, members[0]), _one_side(layout, members[1])
        return list(link(fabric, places[0], sides[0], places[1], sides[1]))
    directed = fabric.circuit_kind is CircuitKind.DIRECTED
    if directed and spec.port_choice is PortChoice.ONE_PORT:
        sides_of = [_one_side(layout, rank) for rank in members]
        return _around(fabric, places, sides_of, sides_of)
    if fabric.ports_per_gpu == 1 and not directed:
        raise CoreError(
            Problem.UNROUTABLE,
            f"a ring of {len(members)} ranks {list(members)} on one rail needs two ports per GPU or directed "
            f"circuits; this fabric has one port per GPU and {fabric.circuit_kind} circuits",
            ranks=list(members),
        )
    return _around(fabric, places, [RIGHT] * len(places), [LEFT] * len(places))


def _around(
    fabric: Fabric, places: Sequence[Place], leaves: Sequence[int], enters: Sequence[int]
) -> list[Circuit]:
    """Circuits from each place to the next one around, by the sides on which they leave and enter a place."""
    following, entered = [*places[1:], places[0]], [*enters[1:], enters[0]]
    circuits: list[Circuit] = []
    for a, b, a_side, b_side in zip(places, following, leaves, entered, strict=True):
        for i, j in zip(port_indices(fabric, a_side), port_indices(fabric, b_side), strict=True):
            circuits.append(fabric.circuit(Port(a.host, a.slot, i), Port(b.host, b.slot, j)))
    return circuits


def _one_side(layout: Layout, rank: int) -> int:
    """The first stage has no pair on its left; the others need their right ports before the rings only."""
    return LEFT if layout.stage_of[rank] == 0 else RIGHT


def _spread_sides(layout: Layout, first: int, second: int) -> tuple[int, int]:
    """Sides that no pipeline pair of these ranks needs; the standard ones where none is free."""
    free = [_free_side(layout, rank) for rank in (first, second)]
    if free[0] is None or free[1] is None:
        return RIGHT, LEFT
    return free[0], free[1]


def _free_side(layout: Layout, rank: int) -> int | None:
    """With two stages the first needs only right and the last only left; with more, all need both."""
    if layout.stages != 2:
        return None
    return LEFT if layout.stage_of[rank] == 0 else RIGHT


def _require_joined(spec: JobSpec, connection: Connection) -> None:
    """The circuits must join the participants' hosts into one component.

    Inside a host ranks reach each other anyway; where one host is made to use the rails, its GPUs are joined.
    """
    one_host = len({spec.placement[rank].host for rank in connection.ranks}) == 1
    apart = one_host and spec.force_scale_out

    def node(place: Place | Port) -> str:
        return f"{place.host}:{place.slot}" if apart else place.host

    parent = {node(spec.placement[rank]): node(spec.placement[rank]) for rank in connection.ranks}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for circuit in connection.circuits:
        parent[root(node(circuit.a))] = root(node(circuit.b))
    islands = sorted({root(name) for name in parent})
    if len(islands) > 1:
        raise CoreError(
            Problem.UNROUTABLE,
            f"connection {connection.id}: the rails of ranks {list(connection.ranks)} do not join their "
            f"{'GPUs' if apart else 'hosts'} ({', '.join(islands)} stay apart); ranks that talk must share a "
            "GPU slot's rail",
            connection=connection.id,
            ranks=list(connection.ranks),
        )
