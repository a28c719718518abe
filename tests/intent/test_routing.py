"""Which ports a group's circuits end on: every wanted value follows from the design's port choice by hand."""

from __future__ import annotations

import math

import pytest

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CircuitKind
from opus_sdn.intent.model import Domain, JobSpec, Pattern, Place, PortChoice, WorldGroup
from opus_sdn.intent.ranks import Layout
from opus_sdn.intent.routing import domain_of, pair, ring
from tests.intent.worlds import group, make_fabric, make_spec, places

DUPLEX, DIRECTED = CircuitKind.DUPLEX, CircuitKind.DIRECTED


def circuits(
    ranks: tuple[int, ...],
    ends: tuple[int, int] | None = None,
    ports: int = 2,
    kind: CircuitKind = DUPLEX,
    dimensions: dict[str, int] | None = None,
    world: int = 4,
    choice: PortChoice = PortChoice.STANDARD,
) -> list[str]:
    """Circuits of a group's ring, or of a pair of it. Rank r sits alone on host h<r>, slot 0.

    `0R-1L` joins the right port of rank 0 with the left one of rank 1; with four ports 0 and 2 are lefts.
    """
    fabric = make_fabric(world, ports=ports, kind=kind)
    spec = make_spec(places(world), dimensions, port_choice=choice)
    one = group("g", *ranks)
    layout = Layout(spec.dimensions, world)
    found = ring(fabric, spec, layout, one) if ends is None else pair(fabric, spec, one, *ends)
    return [circuit.id.replace(":0:", "p").replace("h", "") for circuit in found.circuits]


# ports per GPU, members -> circuits; <rank>p<port index>
RINGS = [
    (1, (0, 1), ["0p0--1p0"]),
    (2, (0, 1), ["0p1--1p0"]),  # right of the first, left of the second
    (2, (1, 0), ["0p0--1p1"]),
    (4, (0, 1), ["0p1--1p0", "0p3--1p2"]),
    (2, (0, 1, 2), ["0p1--1p0", "1p1--2p0", "0p0--2p1"]),
    (2, (0, 2, 1, 3), ["0p1--2p0", "1p0--2p1", "1p1--3p0", "0p0--3p1"]),
    (4, (0, 1, 2), ["0p1--1p0", "0p3--1p2", "1p1--2p0", "1p3--2p2", "0p0--2p1", "0p2--2p3"]),
    (2, (3,), []),
]


@pytest.mark.parametrize(("ports", "members", "wanted"), RINGS)
def test_a_ring_goes_from_right_to_left_in_rank_list_order(
    ports: int, members: tuple[int, ...], wanted: list[str]
) -> None:
    assert circuits(members, ports=ports) == wanted


# ports per GPU, group, pair -> circuits
PAIRS = [
    (1, (0, 1), (0, 1), ["0p0--1p0"]),
    (2, (0, 1), (0, 1), ["0p1--1p0"]),  # two stages have one pair, 0.right to 1.left
    (2, (0, 1, 2, 3), (0, 1), ["0p1--1p0"]),
    (2, (0, 1, 2, 3), (1, 2), ["1p1--2p0"]),
    (2, (0, 1, 2, 3), (0, 3), ["0p0--3p1"]),  # the last stage's right to the first one's left
    (2, (0, 1, 2, 3), (0, 2), ["0p1--2p0"]),
    (2, (3, 1, 0), (3, 0), ["0p1--3p0"]),  # group order, not rank order: 3 is first and 0 last
    (2, (3, 1, 0), (3, 1), ["1p0--3p1"]),
    (4, (0, 1, 2), (0, 2), ["0p0--2p1", "0p2--2p3"]),
]


@pytest.mark.parametrize(("ports", "ranks", "ends", "wanted"), PAIRS)
def test_a_pair_joins_right_of_the_earlier_stage_to_left_of_the_next_one_cyclically(
    ports: int, ranks: tuple[int, ...], ends: tuple[int, int], wanted: list[str]
) -> None:
    assert circuits(ranks, ends, ports) == wanted


# Two stages of two replicas: ranks 0, 1 are stage 0 and 2, 3 stage 1; the pairs use 0.R-2.L and 1.R-3.L.
SPREAD = [
    ({"pp": 2, "dp": 2}, (0, 1), ["0p0--1p0"]),  # stage 0 needs its right ports for the pairs
    ({"pp": 2, "dp": 2}, (2, 3), ["2p1--3p1"]),  # stage 1 needs its left ports
    ({"pp": 2, "dp": 2}, (0, 2), ["0p0--2p1"]),
    ({"pp": 4}, (0, 1), ["0p1--1p0"]),  # every port is needed by a pair: standard
    ({"dp": 4}, (0, 1), ["0p1--1p0"]),
    ({"pp": 2, "dp": 2}, (0, 1, 2), ["0p1--1p0", "1p1--2p0", "0p0--2p1"]),  # only two-member rings
]


@pytest.mark.parametrize(("dimensions", "members", "wanted"), SPREAD)
def test_spread_takes_the_ports_that_no_pair_needs(
    dimensions: dict[str, int], members: tuple[int, ...], wanted: list[str]
) -> None:
    assert circuits(members, dimensions=dimensions, choice=PortChoice.SPREAD) == wanted


def test_spread_keeps_a_ring_clear_of_the_pairs_of_the_same_ranks() -> None:
    dims, spread = {"pp": 2, "dp": 2}, PortChoice.SPREAD
    rings = {
        end
        for c in circuits((0, 1), dimensions=dims, choice=spread)
        + circuits((2, 3), dimensions=dims, choice=spread)
        for end in c.split("--")
    }
    pairs = {
        end
        for first in (0, 1)
        for c in circuits((first, first + 2), (first, first + 2))
        for end in c.split("--")
    }
    assert not rings & pairs


ONE_PORT = [
    ({"dp": 4}, (0, 1, 2), ["0p0->1p0", "1p0->2p0", "2p0->0p0"]),  # the first stage's left ports
    ({"pp": 2, "dp": 3}, (3, 4, 5), ["3p1->4p1", "4p1->5p1", "5p1->3p1"]),  # the right ports of all others
    ({"pp": 2, "dp": 3}, (3, 4), ["3p1->4p1", "4p1->3p1"]),
    ({"pp": 3, "dp": 2}, (0, 1), ["0p0->1p0", "1p0->0p0"]),
]


@pytest.mark.parametrize(("dimensions", "members", "wanted"), ONE_PORT)
def test_a_directed_ring_may_keep_to_one_port_of_each_member(
    dimensions: dict[str, int], members: tuple[int, ...], wanted: list[str]
) -> None:
    world = math.prod(dimensions.values())
    found = circuits(members, kind=DIRECTED, dimensions=dimensions, world=world, choice=PortChoice.ONE_PORT)
    assert found == wanted


def test_where_circuits_have_no_direction_rings_take_the_standard_ports() -> None:
    for members in ((0, 1), (0, 1, 2)):
        assert circuits(members, choice=PortChoice.ONE_PORT) == circuits(members)


def test_directed_rings_need_one_port_and_go_one_way() -> None:
    assert circuits((0, 1, 2), ports=1, kind=DIRECTED) == ["0p0->1p0", "1p0->2p0", "2p0->0p0"]
    assert circuits((0, 1, 2), ports=2, kind=DIRECTED) == ["0p1->1p0", "1p1->2p0", "2p1->0p0"]


def test_directed_pairs_and_two_member_rings_have_both_directions() -> None:
    assert circuits((0, 1), ports=1, kind=DIRECTED) == ["0p0->1p0", "1p0->0p0"]
    assert circuits((0, 1), (0, 1), 2, DIRECTED) == ["0p1->1p0", "1p0->0p1"]


@pytest.mark.parametrize("kind", [DUPLEX, CircuitKind.BIDIRECTIONAL])
def test_a_ring_of_three_over_one_port_is_unroutable_without_direction(kind: CircuitKind) -> None:
    with pytest.raises(
        CoreError, match=r"a ring of 3 ranks \[0, 1, 2\] on one rail needs two ports"
    ) as refused:
        circuits((0, 1, 2), ports=1, kind=kind)
    assert refused.value.problem is Problem.UNROUTABLE
    assert refused.value.data == {"ranks": [0, 1, 2]}


# Placement by rank as (host, slot), members -> circuits, or None when the rails do not join the hosts.
C19 = [
    ([(0, 0), (1, 1)], (0, 1), None),  # no rail in common
    (
        [(0, 0), (0, 1), (1, 1)],
        (0, 1, 2),
        ["h0:1:1--h1:1:0"],
    ),  # rail 0 has one member, rail 1 joins the hosts
    ([(0, 0), (1, 0), (0, 1), (1, 1)], (0, 1, 2, 3), ["h0:0:1--h1:0:0", "h0:1:1--h1:1:0"]),
    ([(0, 0), (1, 0), (2, 1), (3, 1)], (0, 1, 2, 3), None),  # two islands, one on each rail
    ([(0, 0), (1, 0), (1, 1), (2, 1)], (0, 1, 2, 3), ["h0:0:1--h1:0:0", "h1:1:1--h2:1:0"]),  # glued at h1
]


@pytest.mark.parametrize(("at", "members", "wanted"), C19)
def test_a_ring_is_routable_if_its_rails_join_all_hosts(
    at: list[tuple[int, int]], members: tuple[int, ...], wanted: list[str] | None
) -> None:
    fabric = make_fabric(4, gpus=2)
    spec = make_spec([Place(f"h{host}", slot) for host, slot in at])
    layout = Layout((), len(at))
    if wanted is None:
        with pytest.raises(CoreError, match="do not join their hosts") as refused:
            ring(fabric, spec, layout, group("g", *members))
        assert refused.value.problem is Problem.UNROUTABLE
        assert refused.value.data == {"connection": "g", "ranks": list(members)}
    else:
        found = ring(fabric, spec, layout, group("g", *members))
        assert [circuit.id for circuit in found.circuits] == wanted
        assert found.pattern is Pattern.RING


def test_a_pair_across_slots_is_unroutable() -> None:
    fabric = make_fabric(2, gpus=2)
    spec = make_spec([Place("h0", 0), Place("h1", 1)])
    with pytest.raises(CoreError, match=r"connection g:0-1: .*\(h0, h1 stay apart\)"):
        pair(fabric, spec, group("g", 0, 1), 0, 1)


def test_a_pair_inside_a_host_needs_no_circuits_unless_it_is_forced_out() -> None:
    fabric = make_fabric(2, gpus=2)
    ranks = [Place("h0", 0), Place("h0", 1), Place("h1", 0)]
    inside = pair(fabric, make_spec(ranks), group("g", 0, 1, 2), 0, 1)
    assert (inside.id, inside.circuits) == ("g:0-1", ())
    with pytest.raises(CoreError, match=r"do not join their GPUs \(h0:0, h0:1 stay apart\)"):
        pair(fabric, make_spec(ranks, force_scale_out=True), group("g", 0, 1, 2), 0, 1)
    across = pair(fabric, make_spec(ranks), group("g", 0, 1, 2), 0, 2)
    assert [circuit.id for circuit in across.circuits] == ["h0:0:0--h1:0:1"]  # first and last of three


def test_two_ranks_of_one_host_on_one_rail_can_be_forced_onto_it() -> None:
    fabric = make_fabric(1, gpus=2, one_rail=True)
    spec = make_spec(places(2, gpus=2), {"dp": 2}, force_scale_out=True)
    layout, both = Layout(spec.dimensions, 2), group("g", 0, 1)
    assert [c.id for c in pair(fabric, spec, both, 0, 1).circuits] == ["h0:0:1--h0:1:0"]
    assert [c.id for c in ring(fabric, spec, layout, both).circuits] == ["h0:0:1--h0:1:0"]


def spec_of(count: int, gpus: int, **more: object) -> JobSpec:
    """A job of that many ranks."""
    return make_spec(places(count, gpus), **more)


ONE = {"dp": 4}
TWO = {"pp": 2, "dp": 2}
DOMAINS = [
    (spec_of(4, 2, dimensions=TWO), (0, 1), Domain.SCALE_UP),
    (spec_of(4, 2, dimensions=TWO, force_scale_out=True), (0, 1), Domain.SCALE_OUT),
    (spec_of(4, 2, dimensions=TWO), (0, 2), Domain.SCALE_OUT),
    (spec_of(4, 2, dimensions=TWO), (2,), Domain.SCALE_UP),
    # The whole world: over the front end, unless it is the job's only dimension or a setting says `rail`.
    (spec_of(4, 1, dimensions=TWO), (0, 1, 2, 3), Domain.FRONT_END),
    (spec_of(4, 1, dimensions=ONE), (0, 1, 2, 3), Domain.SCALE_OUT),
    (spec_of(4, 1, dimensions={"dp": 4, "tp": 1}), (0, 1, 2, 3), Domain.SCALE_OUT),
    (spec_of(4, 1), (0, 1, 2, 3), Domain.FRONT_END),
    (spec_of(4, 1, dimensions=TWO, world_group=WorldGroup.RAIL), (0, 1, 2, 3), Domain.SCALE_OUT),
    (spec_of(4, 1, dimensions=ONE, world_group=WorldGroup.FRONT_END), (0, 1, 2, 3), Domain.FRONT_END),
    (spec_of(4, 4, dimensions=TWO), (0, 1, 2, 3), Domain.SCALE_UP),  # the whole world on one host
    (spec_of(4, 4, dimensions=ONE, force_scale_out=True), (0, 1, 2, 3), Domain.SCALE_OUT),
]


@pytest.mark.parametrize(("spec", "ranks", "wanted"), DOMAINS)
def test_where_a_group_travels(spec: JobSpec, ranks: tuple[int, ...], wanted: Domain) -> None:
    assert domain_of(spec, ranks) is wanted


def test_gpus_of_one_host_that_is_made_to_use_the_rails_must_share_one() -> None:
    """Each slot on its own rail: nothing would join them, and nothing would be gated without a word."""
    spec = make_spec([Place("h0", 0), Place("h0", 1)], {"dp": 2}, force_scale_out=True)
    layout = Layout(spec.dimensions, 2)
    with pytest.raises(CoreError, match=r"do not join their GPUs \(h0:0, h0:1 stay apart\)") as refused:
        ring(make_fabric(1, gpus=2), spec, layout, group("g", 0, 1))
    assert refused.value.problem is Problem.UNROUTABLE
    joined = ring(make_fabric(1, gpus=2, one_rail=True), spec, layout, group("g", 0, 1))
    assert [circuit.id for circuit in joined.circuits] == ["h0:0:1--h0:1:0"]
