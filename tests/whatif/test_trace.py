"""A trace set is read as what its bytes say, and as the same whatever the order of its files."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest

from opus_sdn.whatif.inputs.groups import read_groups
from opus_sdn.whatif.inputs.system import read_system
from opus_sdn.whatif.trace.load import build_trace, load_trace
from opus_sdn.whatif.trace.model import (
    ALL_GATHER,
    ALL_REDUCE,
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    REDUCE_SCATTER,
    SEND,
    Trace,
)

DATA = Path(__file__).with_name("data")
README_CASE = DATA / "dp2pp2tp2"
LLAMA = DATA / "dp4pp4tp8_llama"


def load(case: Path) -> Trace:
    return load_trace(case / "workload_et.tar.xz", read_groups(case / "workload.json"))


@pytest.fixture(scope="module")
def eight() -> Trace:
    return load(README_CASE)


def count(trace: Trace, rank: int, kind: int, collective: int = -1, group: str | None = None) -> int:
    found = trace.ranks[rank]
    return sum(
        operation.kind == kind
        and operation.collective == collective
        and (group is None or trace.groups[partner].name == group)
        for operation, partner in zip(found.graph.operations, found.partners, strict=True)
    )


def test_the_published_eight_rank_step_has_the_nodes_that_its_statistics_name(eight: Trace) -> None:
    assert eight.nodes == 4 * 2025 + 4 * 2027
    for rank, compute in ((0, 1493), (4, 1495)):
        assert count(eight, rank, COMPUTE) == compute
        assert count(eight, rank, SEND) == count(eight, rank, RECEIVE) == 1
        assert count(eight, rank, COLLECTIVE, ALL_GATHER) == 288
        assert count(eight, rank, COLLECTIVE, REDUCE_SCATTER) == 192
    assert count(eight, 0, COLLECTIVE, ALL_REDUCE, group="1") == 49
    assert count(eight, 0, COLLECTIVE, ALL_REDUCE, group="5") == 1


def test_ranks_that_run_the_same_program_share_one_graph(eight: Trace) -> None:
    assert len(eight.graphs) == 2
    assert [eight.graphs.index(rank.graph) for rank in eight.ranks] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(load(LLAMA).graphs) == 4


@pytest.mark.parametrize(
    ("case", "per_stage"),
    [
        (README_CASE, [28_821_396_908, 28_822_291_692]),
        (LLAMA, [2_113_353_896, 2_087_188_248, 2_087_188_248, 2_113_465_744]),
    ],
)
def test_the_compute_time_of_each_stage_is_the_published_one(case: Path, per_stage: list[int]) -> None:
    trace, system = load(case), read_system(case / "system.json")
    ranks_per_stage = len(trace.ranks) // len(per_stage)
    for stage, wanted in enumerate(per_stage):
        operations = trace.ranks[stage * ranks_per_stage].graph.operations
        assert sum(system.compute_ns(o) for o in operations if o.kind == COMPUTE) == wanted


def test_a_folder_a_prefix_and_an_archive_hold_the_same_step(tmp_path: Path, eight: Trace) -> None:
    with tarfile.open(README_CASE / "workload_et.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    groups = read_groups(README_CASE / "workload.json")
    for where in (tmp_path, tmp_path / "workload"):
        assert same(load_trace(where, groups), eight)


def test_the_order_of_the_files_means_nothing(eight: Trace) -> None:
    with tarfile.open(README_CASE / "workload_et.tar.xz") as archive:
        files = [
            (int(member.name.split(".")[-2]), member.name, archive.extractfile(member).read())  # type: ignore[union-attr]
            for member in archive
        ]
    random.Random(6).shuffle(files)
    assert same(build_trace(files, read_groups(README_CASE / "workload.json")), eight)


def same(one: Trace, other: Trace) -> bool:
    """Equal in everything a replay can see."""
    return one.groups == other.groups and [
        (r.rank, r.graph.ids, r.graph.operations, r.graph.indegree, r.graph.children, r.partners, r.tags)
        for r in one.ranks
    ] == [
        (r.rank, r.graph.ids, r.graph.operations, r.graph.indegree, r.graph.children, r.partners, r.tags)
        for r in other.ranks
    ]
