"""What NCCL is told, against the circuits that a group gets: each misfit with the setting to change."""

from __future__ import annotations

import pytest

from opus_sdn.shim.nccl_fit import Finding, check_nccl
from tests.shim.small_controller import a_fabric
from tests.shim.test_ring_shift import circuits, grid

FITS = {
    "NCCL_ALGO": "Ring",
    "NCCL_CROSS_NIC": "1",
    "NCCL_PXN_DISABLE": "1",
    "NCCL_IB_MERGE_NICS": "0",
}
ONE_PORT = FITS | {"NCCL_CROSS_NIC": "0"}
ONE_RAIL = "host{}:0:0--host{}:0:0"


def found(
    environ: dict[str, str], places: list[tuple[str, int]], given: list[str] | None = None
) -> list[tuple[bool, str, str]]:
    """(refuse, variable, remedy) on a fabric with a left and a right port, or over these circuits."""
    held = circuits(a_fabric(gpus=2), places) if given is None else given
    return [(f.refuse, f.variable, f.remedy) for f in check_nccl(environ, range(len(places)), places, held)]


@pytest.mark.parametrize("places", [grid(2, 1), grid(4, 1), grid(2, 2), grid(4, 2)])
def test_what_is_recommended_fits(places: list[tuple[str, int]]) -> None:
    assert found(FITS, places) == []


def test_a_group_without_circuits_is_nobodys_business() -> None:
    assert check_nccl({}, (0, 1), grid(1, 2), ()) == ()


@pytest.mark.parametrize(
    "algorithm",
    [
        "",
        "Tree",
        "ring,tree",
        "^tree",
        "allreduce:ring",
        "allreduce:ring;allgather:ring;reducescatter:pat;broadcast:ring;reduce:ring",
        "NVLSTree",
        "CollnetDirect",
    ],
)
def test_more_than_two_hosts_on_a_rail_need_rings(algorithm: str) -> None:
    environ = FITS | {"NCCL_ALGO": algorithm}
    assert found(environ, grid(4, 1)) == [(True, "NCCL_ALGO", "set NCCL_ALGO=Ring")]
    assert found(environ, grid(2, 1)) == []  # the two share one link, whatever the algorithm


@pytest.mark.parametrize(
    "algorithm",
    [
        "RING",
        "ring,nvls",
        "^tree,collnetdirect,collnetchain,nvlstree,pat",
        "allreduce:ring;allgather:ring;reducescatter:ring;broadcast:ring;reduce:ring",
    ],
)
def test_ways_to_say_ring_are_understood(algorithm: str) -> None:
    assert found(FITS | {"NCCL_ALGO": algorithm}, grid(4, 1)) == []


@pytest.mark.parametrize(
    ("value", "places", "given", "wanted"),
    [
        # Left and right ports: a ring leaves by one and enters by the other.
        ("0", grid(4, 1), None, (True, "NCCL_CROSS_NIC", "set NCCL_CROSS_NIC=1")),
        ("2", grid(4, 1), None, (False, "NCCL_CROSS_NIC", "set NCCL_CROSS_NIC=1")),
        ("", grid(2, 1), None, (False, "NCCL_CROSS_NIC", "set NCCL_CROSS_NIC=1")),
        # One port per GPU: a ring must stay on its rail.
        (
            "1",
            grid(2, 2),
            ["host0:0:0--host1:0:0", "host0:1:0--host1:1:0"],
            (True, "NCCL_CROSS_NIC", "set NCCL_CROSS_NIC=0"),
        ),
        (
            "",
            grid(2, 2),
            ["host0:0:0--host1:0:0", "host0:1:0--host1:1:0"],
            (False, "NCCL_CROSS_NIC", "set NCCL_CROSS_NIC=0"),
        ),
    ],
)
def test_rings_cross_nics_exactly_where_circuits_do(
    value: str, places: list[tuple[str, int]], given: list[str] | None, wanted: tuple[bool, str, str]
) -> None:
    assert found(FITS | {"NCCL_CROSS_NIC": value}, places, given) == [wanted]


def test_one_rail_of_one_port_needs_nothing_but_rings() -> None:
    places = grid(2, 1)
    assert found({}, places, [ONE_RAIL.format(0, 1)]) == []
    assert found(ONE_PORT, places, [ONE_RAIL.format(0, 1)]) == []


@pytest.mark.parametrize(
    ("variable", "value", "places", "wanted"),
    [
        ("NCCL_PXN_DISABLE", "", grid(2, 2), (False, "NCCL_PXN_DISABLE", "set NCCL_PXN_DISABLE=1")),
        ("NCCL_PXN_DISABLE", "0", grid(2, 2), (False, "NCCL_PXN_DISABLE", "set NCCL_PXN_DISABLE=1")),
        ("NCCL_IB_MERGE_NICS", "", grid(4, 1), (False, "NCCL_IB_MERGE_NICS", "set NCCL_IB_MERGE_NICS=0")),
        ("NCCL_RUNTIME_CONNECT", "0", grid(2, 1), (True, "NCCL_RUNTIME_CONNECT", "leave it unset")),
        ("NCCL_COLLNET_ENABLE", "1", grid(2, 1), (True, "NCCL_COLLNET_ENABLE", "set NCCL_COLLNET_ENABLE=0")),
    ],
)
def test_what_else_would_leave_the_circuits_is_named(
    variable: str, value: str, places: list[tuple[str, int]], wanted: tuple[bool, str, str]
) -> None:
    assert found(FITS | {variable: value}, places) == [wanted]


def test_every_slot_must_meet_the_hosts_in_the_same_order() -> None:
    """NCCL goes around by hosts; slot 1's ranks are in another order, and so are its circuits."""
    places = [(f"host{h}", 0) for h in (0, 1, 2, 3)] + [(f"host{h}", 1) for h in (0, 2, 1, 3)]
    (finding,) = check_nccl(FITS, range(8), places, circuits(a_fabric(gpus=2), places))
    assert finding.refuse
    assert finding.variable == "the group's rank list"
    assert "NCCL's ring visits hosts host0, host1, host2, host3" in finding.why
    assert "the circuits of slot 1 join host0, host2, host1, host3" in finding.why
    turned = [(f"host{h}", 0) for h in (0, 1, 2, 3)] + [(f"host{h}", 1) for h in (2, 3, 0, 1)]
    assert found(FITS, turned) == []  # a ring has no beginning


def test_refusals_come_first_and_read_as_a_sentence() -> None:
    findings = check_nccl({}, range(8), grid(4, 2), circuits(a_fabric(gpus=2), grid(4, 2)))
    assert [f.refuse for f in findings] == sorted((f.refuse for f in findings), reverse=True)
    assert str(Finding(True, "NCCL_ALGO", "", "it allows tree", "set NCCL_ALGO=Ring")) == (
        "NCCL_ALGO is not set: it allows tree; set NCCL_ALGO=Ring"
    )
