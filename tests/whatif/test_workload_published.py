"""Steps that our own generator makes in the published accounting are the published ones, node for node."""

from __future__ import annotations

from pathlib import Path

import pytest

from opus_sdn.whatif.engine import load_step, make_scenario, replay
from opus_sdn.whatif.inputs.schedules import read_schedules
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.trace.model import COLLECTIVE, COLLECTIVE_NAMES, COMPUTE, RECEIVE, SEND, RankTrace, Trace
from opus_sdn.whatif.workload import accelerator
from tests.whatif.cases import DATA, EIGHT, EXPECTED, LLAMA, MICROBATCHES, schedules, step
from tests.whatif.workloads import PLANS, published

H200 = accelerator("published-h200")
KEYS = {Mode.ON_DEMAND: "on_demand", Mode.PROVISION: "provisioned"}


def partners(trace: Trace, rank: RankTrace) -> list[object]:
    """Whom each node of a rank is with: ranks in ring order, or a peer."""
    return [
        trace.groups[partner].ranks if operation.kind == COLLECTIVE else partner
        for operation, partner in zip(rank.graph.operations, rank.partners, strict=True)
    ]


@pytest.mark.parametrize("case", PLANS)
def test_every_node_is_the_published_one(case: str) -> None:
    """What it does, how much, what waits for it, and with whom; names and tags are our own."""
    ours, theirs = published(case).trace, step(case).trace
    assert len(ours.ranks) == len(theirs.ranks)
    for own, other in zip(ours.ranks, theirs.ranks, strict=True):
        assert [operation._replace(name="") for operation in own.graph.operations] == [
            operation._replace(name="") for operation in other.graph.operations
        ]
        assert own.graph.children == other.graph.children
        assert partners(ours, own) == partners(theirs, other)


@pytest.mark.parametrize("case", PLANS)
def test_the_topologies_are_the_published_ones(case: str) -> None:
    assert published(case).schedules(50, 450).topologies == schedules(case).topologies


def test_the_balanced_topology_is_the_published_one() -> None:
    """It is published with six digits behind the point."""
    ours = published(LLAMA).balanced(50, 450).topologies[0]
    theirs = read_schedules(DATA / LLAMA / "schedules_baseline.txt.xz").topologies[0]
    assert all(
        round(cell, 6) == wanted
        for own, other in zip(ours, theirs, strict=True)
        for cell, wanted in zip(own, other, strict=True)
    )


# The published statistics of the step of 8 ranks, by kind, collective and bytes.
STAGES_OF_EIGHT = [
    {
        ("all-gather", 2_147_483_648): 288,
        ("reduce-scatter", 4_294_967_296): 192,
        ("all-reduce", 369_098_752): 48,
        ("all-reduce", 262_144_000): 2,
        ("send", 2_147_483_648): 1,
        ("receive", 2_147_483_648): 1,
        "compute": computes,
    }
    for computes in (1493, 1495)
]


@pytest.mark.parametrize("stage", [0, 1])
def test_operations_are_as_many_as_published(stage: int) -> None:
    found: dict[object, int] = {}
    for operation in published(EIGHT).programs[stage].graph.operations:
        name = {SEND: "send", RECEIVE: "receive", COMPUTE: "compute"}.get(operation.kind)
        key = name if name == "compute" else (name or COLLECTIVE_NAMES[operation.collective], operation.size)
        found[key] = found.get(key, 0) + 1
    assert found == STAGES_OF_EIGHT[stage]


def test_bytes_on_links_are_as_published() -> None:
    assert published(EIGHT).bytes_per_dimension() == {
        "dp": 143_831_072_768,
        "tp": 8_248_434_360_320,
        "pp": 17_179_869_184,
    }


@pytest.mark.parametrize(
    ("case", "compute_ns"),
    [
        (EIGHT, [28_821_396_908, 28_822_291_692]),
        (LLAMA, [2_113_353_896, 2_087_188_248, 2_087_188_248, 2_113_465_744]),
    ],
)
def test_computing_takes_as_long_as_published(case: str, compute_ns: list[int]) -> None:
    assert published(case).compute_ns(H200) == compute_ns


@pytest.mark.parametrize("mode", [Mode.ON_DEMAND, Mode.PROVISION])
@pytest.mark.parametrize("delay_ms", [0, 1, 10, 50])
def test_the_minimal_example_takes_as_long_as_published(mode: Mode, delay_ms: int) -> None:
    ours = published(EIGHT)
    scenario = make_scenario(ours.step(H200), ours.schedules(50, 450), mode=mode, delay_ns=delay_ms * 1e6)
    wanted = EXPECTED[EIGHT]["runs"][f"{delay_ms}ms"][KEYS[mode]]["last_rank"]
    assert replay(scenario).finish_ns == wanted


@pytest.mark.parametrize("case", [EIGHT, MICROBATCHES])
def test_what_is_written_is_read_back(case: str, tmp_path: Path) -> None:
    ours = published(case)
    ours.write(tmp_path, H200)
    back = load_step(tmp_path, tmp_path / "workload.json", tmp_path / "system.json")
    assert back.system == ours.step(H200).system
    assert back.trace.groups == ours.trace.groups
    assert read_schedules(tmp_path / "schedules.txt.xz").topologies == ours.schedules(50, 450).topologies
    for own, other in zip(ours.trace.ranks, back.trace.ranks, strict=True):
        assert own.graph.operations == other.graph.operations
        assert own.graph.children == other.graph.children
        assert (own.partners, own.tags) == (other.partners, other.tags)
    assert len(back.trace.graphs) == ours.parallelism.pp
