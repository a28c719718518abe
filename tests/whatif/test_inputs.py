"""The published simulator's inputs are read as they are; what cannot be used is named with the reason."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from benchmarks.traces import SYSTEM, Shape
from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.groups import read_groups
from opus_sdn.whatif.inputs.hints import DATA_PARALLEL, derive_hints, read_hints
from opus_sdn.whatif.inputs.network import Network, read_network
from opus_sdn.whatif.inputs.schedules import parse_schedules, read_schedules
from opus_sdn.whatif.inputs.system import System, read_system
from opus_sdn.whatif.trace.model import COMPUTE, Operation
from tests.whatif.cases import DATA, EIGHT, LLAMA, schedules

HERE = Path("schedules.txt")


def compute(size: int, ops: int, recorded_ns: int = 0) -> Operation:
    return Operation(COMPUTE, "", -1, size, ops, recorded_ns)


def test_the_system_file_says_what_a_computation_takes() -> None:
    system = read_system(DATA / EIGHT / "system.json")
    assert (system.memory_gbps, system.peak_tflops, system.endpoint_delay_ns) == (4800, 989, 10)
    # The input norm is bound by memory and the embedding by operations; both figures are published.
    assert system.compute_ns(compute(2_147_483_648, 10_737_418_240)) == 447_392
    assert system.compute_ns(compute(2_147_483_648, 68_719_476_736_000)) == 69_483_798


def test_recorded_durations_count_where_operations_are_not_counted_or_not_wanted() -> None:
    measured = compute(0, 0, 7_000)
    assert System(4800, 989).compute_ns(measured) == 7_000
    both = compute(4_800_000, 1, 7_000)
    assert System(4800, 989).compute_ns(both) == 1_000
    assert System(4800, 989, roofline=False).compute_ns(both) == 7_000


def test_memory_traffic_alone_takes_its_time() -> None:
    assert System(4800, 989).compute_ns(compute(4_800_000, 0)) == 1_000


def test_the_network_file_says_how_many_ranks_and_how_long_things_take() -> None:
    assert read_network(DATA / EIGHT / "network_10ms.yml") == Network(8, 936.25, 10_000_000.0)


def test_schedules_are_read_plain_and_packed(tmp_path: Path) -> None:
    packed = DATA / EIGHT / "schedules.txt.xz"
    plain = tmp_path / "schedules.txt"
    plain.write_bytes(lzma.decompress(packed.read_bytes()))
    assert read_schedules(plain).topologies == read_schedules(packed).topologies
    found = read_schedules(plain)
    assert (found.ranks, found.stages) == (8, 2)
    assert [found.stage_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (found.bandwidth(0, 0, 1), found.bandwidth(3, 0, 1), found.bandwidth(3, 0, 4)) == (50, 0, 50)


def test_rows_that_are_equal_are_kept_once() -> None:
    found = schedules(LLAMA)
    rows = {id(row) for topology in found.topologies for row in topology}
    # A stage has its ring, or pipeline links to one neighbour, to the other or to both.
    assert len(rows) == 128 * 4


def test_one_topology_with_every_link_is_the_published_collapsed_one() -> None:
    for case in (EIGHT, LLAMA):
        assert schedules(case).collapsed().topologies == schedules(case, "schedules-collapsed").topologies


@pytest.mark.parametrize("gbps", [12.5, 25.0, 100.0, 200.0])
def test_another_bandwidth_of_the_switched_links_is_the_published_schedule_for_it(gbps: float) -> None:
    published = schedules(LLAMA, f"schedules_bw{gbps:g}")
    assert schedules(LLAMA).with_switched(gbps).topologies == published.topologies


def test_the_generator_of_test_steps_writes_the_published_topologies() -> None:
    made = "\n".join(Shape(dp=2, pp=2, tp=2).schedules()).encode()
    assert parse_schedules(BytesIO(made), HERE).topologies == schedules(EIGHT).topologies


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no block"),
        ("1 2\n", "begins with"),
        ("BW 0\n0 1\n1 0\n", "topology 0 has no END"),
        ("BW 0\n0 1\nBW 1\n", "topology 0 has no END"),
        ("BW 0\n0 1\n1 0\nEND\nBW 0\n0 1\n1 0\nEND\n", "occurs twice"),
        ("BW 1\n0 1\n1 0\nEND\n", "topologies 0 to"),
        ("BW 0\n0 1\n1 0\nEND\nBW 2\n0 1\n1 0\nEND\n", "topologies 0 to"),
        ("BW x\n0 1\n1 0\nEND\n", "ids below"),
        ("BW 99999\n0 1\n1 0\nEND\n", "ids below"),
        ("BW 0\n0 -1\n1 0\nEND\n", "0 (dark) or from"),
        ("BW 0\n0 nan\n1 0\nEND\n", "0 (dark) or from"),
        ("BW 0\n0 fast\n1 0\nEND\n", "0 (dark) or from"),
        ("BW 0\n0 1 2\n1 0\nEND\n", "row 0 of topology 0 has 3 numbers"),
        ("BW 0\nEND\n", "topology 0 has 0 rows"),
        ("BW 0\n0 1\n1 0\nEND\nBW 1\n0 1\nEND\n", "topology 1 has 1 rows"),
        ("BW 0\n0\nEND\nBW 1\n0\nEND\nBW 2\n0\nEND\nBW 3\n0\nEND\n", "1 ranks do not divide"),
    ],
)
def test_schedules_that_are_none_are_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=r"schedules\.txt") as refused:
        parse_schedules(BytesIO(text.encode()), HERE)
    assert why in refused.value.why


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s.pop("peak-perf"), "peak-perf"),
        (lambda s: s.update({"peak-perf": 0}), "peak-perf"),
        (lambda s: s.update({"local-mem-bw": "fast"}), "local-mem-bw"),
        (lambda s: s.update({"local-mem-bw": True}), "local-mem-bw"),
        (lambda s: s.update({"endpoint-delay": -1}), "endpoint-delay"),
        (lambda s: s.update({"preferred-dataset-splits": 0}), "preferred-dataset-splits"),
        (lambda s: s.update({"active-chunks-per-dimension": 2}), "active-chunks-per-dimension"),
        (
            lambda s: s.update({"all-reduce-implementation": ["doubleBinaryTree"]}),
            "all-reduce-implementation",
        ),
    ],
)
def test_a_system_that_is_not_modelled_is_refused(change: Change, field: str, tmp_path: Path) -> None:
    changed = dict(SYSTEM)
    change(changed)
    file = tmp_path / "system.json"
    file.write_text(json.dumps(changed))
    with pytest.raises(InputError) as refused:
        read_system(file)
    assert refused.value.field == field
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "JSON object"),
        ("{", "no JSON"),
        ('{"1": []}', "a list of ranks"),
        ('{"1": 4}', "a list of ranks"),
        ('{"1": [0, -1]}', "an integer of at least 0"),
        ('{"1": [0, 0]}', "occurs twice"),
        ('{"1": [0, 1.5]}', "an integer of at least 0"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_groups_that_are_none_are_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "groups.json"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        read_groups(file)
    assert why in refused.value.why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- 1", "YAML mapping"),
        ("{", "no YAML"),
        ("9: {-1: [0]}", "ranks are 0 to 7"),
        ("a: {-1: [0]}", "ranks are 0 to 7"),
        ("0: [1]", "a mapping target"),
        ("0: {8: [1]}", "a target is -1"),
        ("0: {0: [1]}", "a target is -1"),
        ("0: {4: 1}", "list of numbers"),
        ("0: {4: [-1]}", "list of numbers"),
    ],
)
def test_hints_that_are_none_are_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "hints.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        read_hints(file, 8)
    assert why in refused.value.why


def test_files_that_are_missing_packed_badly_or_too_long_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_groups(tmp_path / "missing.json")
    bad = tmp_path / "schedules.txt.xz"
    bad.write_bytes(b"not packed")
    with pytest.raises(InputError, match="no readable xz"):
        read_schedules(bad)
    bomb = tmp_path / "groups.json.xz"
    bomb.write_bytes(lzma.compress(b" " * (1 << 25)))
    with pytest.raises(InputError, match="at most"):
        read_groups(bomb)


def test_hints_are_asked_for_when_the_last_communication_of_the_kind_before_has_finished() -> None:
    # Scale-up communications count but ask for nothing; the first kind is asked for after communication 0.
    stage0: list[int | None] = [None, None, 4, 4, None, DATA_PARALLEL, DATA_PARALLEL]
    assert derive_hints([stage0])[0] == {0: (4,), 3: (DATA_PARALLEL,)}
    # A rank that begins with a message asks at once for what follows: one request after one communication.
    stage1: list[int | None] = [0, None, DATA_PARALLEL, 0]
    assert derive_hints([stage1])[0] == {0: (DATA_PARALLEL,), 2: (0,)}
