"""Which way an all-to-all takes: along one rail, or inside the host to the right rail first."""

from __future__ import annotations

import pytest

from opus_sdn.intent.fabric import Fabric
from opus_sdn.intent.model import Dimension, GroupSpec, JobSpec, Place, WorldGroup
from opus_sdn.intent.ranks import Layout
from opus_sdn.intent.routing import ring
from opus_sdn.shim.errors import OpusRefusedError
from opus_sdn.shim.ring_shift import Shifts, plan_shifts
from tests.shim.small_controller import a_fabric


def circuits(fabric: Fabric, places: list[tuple[str, int]], force: bool = False) -> list[str]:
    """Circuits of the group of all these places, as the controller makes them."""
    spec = JobSpec(
        "job",
        "me",
        "1",
        tuple(Place(host, slot) for host, slot in places),
        (Dimension("ep", len(places)),),
        world_group=WorldGroup.RAIL,
        force_scale_out=force,
    )
    group = GroupSpec("g", tuple(range(len(places))), "ep")
    layout = Layout(spec.dimensions, len(places))
    return [circuit.id for circuit in ring(fabric, spec, layout, group).circuits]


def grid(hosts: int, gpus: int) -> list[tuple[str, int]]:
    return [(f"host{host}", gpu) for host in range(hosts) for gpu in range(gpus)]


@pytest.mark.parametrize(
    ("places", "rings", "hosts"),
    [
        (grid(2, 1), [(0, 1)] * 2, [(0,), (1,)]),
        (grid(4, 1), [(0, 1, 2, 3)] * 4, [(0,), (1,), (2,), (3,)]),
        (grid(2, 2), [(0, 2), (1, 3)] * 2, [(0, 1), (0, 1), (2, 3), (2, 3)]),
        (
            [("host0", 0), ("host1", 0), ("host2", 0), ("host0", 1), ("host1", 1), ("host2", 1)],
            [(0, 1, 2)] * 3 + [(3, 4, 5)] * 3,
            [(0, 3), (1, 4), (2, 5)] * 2,
        ),
    ],
    ids=["two hosts", "four hosts", "a grid", "a grid by rails"],
)
def test_the_way_is_the_hosts_and_the_rails_in_rank_list_order(
    places: list[tuple[str, int]], rings: list[tuple[int, ...]], hosts: list[tuple[int, ...]]
) -> None:
    ranks = range(10, 10 + len(places))
    assert plan_shifts(ranks, places, circuits(a_fabric(gpus=2), places)) == Shifts(
        tuple(rings), tuple(hosts)
    )


def test_what_is_put_on_the_rail_leaves_nearest_first() -> None:
    shifts = plan_shifts(range(4), grid(4, 1), circuits(a_fabric(gpus=1), grid(4, 1)))
    assert shifts.train(2, 1) == [3, 0, 1]
    assert shifts.train(2, 3) == [1]
    assert shifts.neighbours(0) == (3, 1)


@pytest.mark.parametrize(
    ("places", "given", "words"),
    [
        (
            [("host0", 0), ("host0", 1), ("host1", 0), ("host2", 1)],
            None,
            "host host1 has 1 of its ranks on 1 of the group's 2 rails",
        ),
        (grid(3, 1), ["host0:0:1--host1:0:0", "host1:0:1--host2:0:0"], "no circuit joins ranks 2 and 0"),
    ],
)
def test_where_there_is_no_grid_the_missing_piece_is_named(
    places: list[tuple[str, int]], given: list[str] | None, words: str
) -> None:
    found = circuits(a_fabric(gpus=2), places) if given is None else given
    with pytest.raises(OpusRefusedError, match=r"place the ranks so that they form a grid") as refused:
        plan_shifts(range(len(places)), places, found)
    assert words in str(refused.value)


def test_directed_circuits_and_names_with_dashes_are_read_as_well() -> None:
    places = [("gpu--a:7", 0), ("gpu-b", 3)]
    shifts = plan_shifts((0, 1), places, ["gpu--a:7:0:1->gpu-b:3:0"])
    assert shifts.rings == ((0, 1), (0, 1))
