"""Topology ids: digits, the published bit forms, and the circuits that make an id."""

from __future__ import annotations

import pytest

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import PortChoice, Stream
from opus_sdn.intent.ranks import Layout
from opus_sdn.intent.topology_id import BitOrder, circuits_of, from_bits, to_bits, topology_id
from opus_sdn.intent.views import job_view
from tests.intent.bench import Bench
from tests.intent.worlds import group, make_fabric, make_spec, places

C, S = BitOrder.CONTROLLER, BitOrder.SIMULATOR

# Published: 1 = pipeline, 0 = data-parallel. The controller has stage 0 in the least significant bit, the
# simulator in the most significant one. Digits: leftmost is stage 0; 0 = pipeline, 1 = data-parallel.
BITS = [
    (0b00, 2, C, "11"),
    (0b11, 2, C, "00"),
    (0b10, 2, C, "10"),  # stage 1 is on the pipeline
    (0b10, 2, S, "01"),  # stage 0 is on the pipeline
    (0b01, 2, C, "01"),
    (0b01, 2, S, "10"),
    (1, 1, C, "0"),  # the two-rank demonstration begins at bit 1 and goes to bit 0
    (0, 1, C, "1"),
    (0b0011, 4, C, "0011"),
    (0b0011, 4, S, "1100"),
]


@pytest.mark.parametrize(("bits", "stages", "order", "digits"), BITS)
def test_bits_and_digits_are_the_same_id(bits: int, stages: int, order: BitOrder, digits: str) -> None:
    assert from_bits(bits, stages, order) == digits
    assert to_bits(digits, order) == bits


def test_the_published_sequence_of_two_stages_reads_dark_bits_as_data_parallel() -> None:
    """PP = 2 goes through bits 0 -> 3 -> 2, or -> 1 seen from the other end: all data, all pipeline, half."""
    assert [from_bits(bits, 2, C) for bits in (0, 3, 2)] == ["11", "00", "10"]
    assert [from_bits(bits, 2, S) for bits in (0, 3, 1)] == ["11", "00", "10"]


def test_the_two_rank_demonstration_goes_from_digit_0_to_digit_1() -> None:
    assert [from_bits(bits, 1, C) for bits in (1, 0)] == ["0", "1"]


@pytest.mark.parametrize("bits", [-1, 4])
def test_bits_have_to_fit_the_stages(bits: int) -> None:
    with pytest.raises(ValueError, match=rf"bit topology id {bits} does not fit 2 stages \(0 to 3\)"):
        from_bits(bits, 2, C)


@pytest.mark.parametrize("digits", ["02", "x1", "-0"])
def test_only_pipeline_and_data_parallel_have_a_bit(digits: str) -> None:
    with pytest.raises(ValueError, match="no bit form"):
        to_bits(digits, C)


IDS = [
    (2, [], "--"),
    (2, [(0, 0), (1, 0)], "00"),
    (2, [(0, 0), (0, 1), (1, 1)], "x1"),  # two dimensions at one stage
    (3, [(2, 4)], "--4"),
    (1, [(0, None)], "x"),  # up, but nobody's
    (1, [(0, 10)], "x"),  # no single digit
    (1, [(0, 9)], "9"),
]


@pytest.mark.parametrize(("stages", "owners", "wanted"), IDS)
def test_each_stage_shows_the_one_dimension_that_owns_its_circuits(
    stages: int, owners: list[tuple[int, int | None]], wanted: str
) -> None:
    assert topology_id(stages, owners) == wanted


def initial(wanted: str, dimensions: dict[str, int], gpus: int = 1, **more: object) -> dict[str, int]:
    """Circuits for an initial topology of one rank on each slot, with their digits."""
    world = 1
    for size in dimensions.values():
        world *= size
    spec = make_spec(places(world, gpus), dimensions, initial_topology=wanted, **more)
    fabric = make_fabric(world // gpus, gpus)
    found = circuits_of(fabric, spec, Layout(spec.dimensions, world), wanted)
    return {circuit.id.replace(":0:", "p").replace("h", ""): digit for circuit, digit in found.items()}


TOPOLOGIES = [
    ("00", {"pp": 2, "dp": 2}, {"0p1--2p0": 0, "1p1--3p0": 0}),  # 0.right to 1.left of each replica
    ("11", {"pp": 2, "dp": 2}, {"0p1--1p0": 1, "2p1--3p0": 1}),
    ("01", {"pp": 2, "dp": 2}, {"2p1--3p0": 1}),  # links exist only where both stages say 0
    ("000", {"pp": 3}, {"0p1--1p0": 0, "1p1--2p0": 0, "0p0--2p1": 0}),  # cyclic
    ("001", {"pp": 3, "dp": 1}, {"0p1--1p0": 0}),
    ("2", {"dp": 2, "ep": 2}, {"0p1--1p0": 2, "2p1--3p0": 2}),
    ("0", {"dp": 2}, {"0p0--0p1": 0, "1p0--1p1": 0}),  # one stage: each right to its own left
]


@pytest.mark.parametrize(("wanted", "dimensions", "circuits"), TOPOLOGIES)
def test_circuits_that_make_an_initial_topology(
    wanted: str, dimensions: dict[str, int], circuits: dict[str, int]
) -> None:
    assert initial(wanted, dimensions) == circuits


def test_spread_rings_of_an_initial_topology_keep_clear_of_the_pairs() -> None:
    assert initial("11", {"pp": 2, "dp": 2}, port_choice=PortChoice.SPREAD) == {"0p0--1p0": 1, "2p1--3p1": 1}


def test_stages_inside_one_host_need_no_links() -> None:
    assert initial("00", {"pp": 2}, gpus=2) == {}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("0", r"'0' has 1 digits; the job has 2 pipeline stages"),
        ("000", r"'000' has 3 digits"),
        ("02", r"no dimension has digit '2'; known digits: 0 pp, 1 dp"),
        ("0x", r"no dimension has digit 'x'"),
        ("0\N{SUPERSCRIPT TWO}", r"no dimension has digit '\N{SUPERSCRIPT TWO}'"),
        ("0\N{ARABIC-INDIC DIGIT ONE}", r"no dimension has digit '\N{ARABIC-INDIC DIGIT ONE}'"),
    ],
)
def test_an_initial_topology_has_one_known_digit_for_each_stage(wanted: str, message: str) -> None:
    with pytest.raises(CoreError, match=message) as refused:
        initial(wanted, {"pp": 2, "dp": 2})
    assert refused.value.problem is Problem.INVALID_REQUEST
    assert refused.value.data == {"field": "initial_topology"}


def test_a_job_without_a_pipeline_still_knows_digit_0() -> None:
    with pytest.raises(CoreError, match="known digits: 0 pipeline, 1 dp"):
        initial("7", {"dp": 2})


def test_the_two_rank_demonstration_on_the_engine() -> None:
    """Digit 0 at first, each GPU looped onto itself; the first all-reduce changes it to 1, once."""
    bench = Bench(make_fabric(1, gpus=2, one_rail=True))
    bench.observe()
    spec = make_spec(places(2, gpus=2), {"dp": 2}, force_scale_out=True, initial_topology="0")
    bench.job(spec, group("g", 0, 1))
    bench.play()
    assert job_view(bench.engine, "job").topology == {"rail0": "0"}
    ring = Stream("g")
    for n in range(3):
        bench.arrive(ring, n, 0, 1)
        bench.play()
        bench.release(ring, n, 0, 1)
    changes = [(e.data["old"], e.data["new"]) for e in bench.events("topology.changed")]
    assert changes == [(None, "-"), ("-", "0"), ("0", "1")]
    assert len(bench.steps) == 2  # one for the initial topology, one for the ring
    view = job_view(bench.engine, "job")
    assert (view.topology, view.topology_changes) == ({"rail0": "1"}, 1)


def test_an_initial_topology_is_installed_on_every_switch() -> None:
    bench = Bench(make_fabric(4, gpus=2))
    bench.observe()
    bench.job(make_spec(places(8, gpus=2), {"pp": 2, "dp": 2, "tp": 2}, initial_topology="00"))
    bench.play()
    assert job_view(bench.engine, "job").topology == {"rail0": "00", "rail1": "00"}


def test_an_initial_topology_that_is_up_from_before_is_one_event_for_each_rail() -> None:
    bench = Bench(make_fabric(4))
    bench.lit["ocs0"] = {CrossConnect(*p) for i, j in ((1, 4), (3, 6)) for p in ((i, j), (j, i))}
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}, initial_topology="00"))
    bench.play()
    assert [(e.rail, e.data) for e in bench.events("topology.changed")] == [
        ("rail0", {"old": None, "new": "00"})
    ]
    assert bench.steps == []


def test_a_stage_is_mixed_while_two_dimensions_share_it() -> None:
    bench = Bench(make_fabric(4))
    bench.observe()
    bench.job(
        make_spec(places(4), {"pp": 2, "dp": 2}), group("dp0", 0, 1), group("pp1", 1, 3, dimension="pp")
    )
    bench.arrive(Stream("dp0"), 0, 0, 1)
    bench.play()
    assert job_view(bench.engine, "job").topology == {"rail0": "1-"}
    bench.arrive(Stream("pp1:1-3", 1, 3), 0, 1, 3)
    bench.play()
    assert job_view(bench.engine, "job").topology == {"rail0": "x0"}


def test_a_circuit_of_no_known_dimension_leaves_its_stages_mixed() -> None:
    bench = Bench(make_fabric(4))
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}), group("odd", 0, 3, dimension="mesh_x"))
    bench.arrive(Stream("odd"), 0, 0, 3)
    bench.play()
    assert job_view(bench.engine, "job").topology == {"rail0": "xx"}


def test_a_circuit_that_nobody_of_the_job_asked_for_leaves_its_stages_mixed() -> None:
    bench = Bench(make_fabric(4))
    bench.lit["ocs0"] = {CrossConnect(1, 2), CrossConnect(2, 1), CrossConnect(5, 9)}  # 9 is nobody's port
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}))
    bench.play()
    assert job_view(bench.engine, "job").topology == {"rail0": "xx"}
