"""What must hold of every replay, whatever the step."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.traces import Shape, encode, make_step, widen
from opus_sdn.whatif.engine import Step, load_step, make_scenario, replay
from opus_sdn.whatif.inputs.schedules import read_schedules
from opus_sdn.whatif.report import bytes_per_dimension
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.trace.load import build_trace
from opus_sdn.whatif.trace.model import ALL_GATHER, COLLECTIVE, REDUCE_SCATTER, Group, Operation
from tests.whatif.cases import EIGHT, EXPECTED, LLAMA, scenario, schedules, step


@given(latencies=st.lists(st.floats(0.25, 50_000), min_size=2, max_size=4))
@settings(max_examples=12, deadline=None)
def test_a_static_step_does_not_end_earlier_when_latency_grows(latencies: list[float]) -> None:
    ends = [
        replay(make_scenario(step(EIGHT), schedules(EIGHT), mode=Mode.STATIC, latency_ns=latency)).finish_ns
        for latency in sorted(latencies)
    ]
    assert ends == sorted(ends)


def test_the_order_of_files_and_of_nodes_in_them_changes_nothing() -> None:
    shape = Shape(dp=2, pp=2, tp=2, microbatches=2, rng=random.Random(4))
    seed = shape.rng.random()  # type: ignore[union-attr]
    programs = []
    for rank in range(shape.ranks):
        shape.rng = random.Random(seed)
        programs.append(shape.nodes(rank))
    groups = [Group(name, tuple(ranks)) for name, ranks in shape.groups().items()]
    ends = []
    for shuffled in (False, True):
        files = []
        for rank, nodes in enumerate(programs):
            mixed = list(nodes)
            if shuffled:
                random.Random(rank).shuffle(mixed)
            files.append((rank, f"t.{rank}.et", encode(mixed)))
        if shuffled:
            random.Random(9).shuffle(files)
        trace = build_trace(files, groups)
        made = make_scenario(Step(trace, step(EIGHT).system), schedules(EIGHT), delay_ns=5e6)
        result = replay(made)
        ends.append((result.finish_ns_per_rank, result.started_ns, result.ended_ns, result.reconfigurations))
    assert ends[0] == ends[1]


def test_collectives_take_the_closed_form_when_nothing_is_in_their_way(tmp_path: Path) -> None:
    # 2 GiB shards gathered by two members at 450 GB/s, and 4 GiB scattered: published times.
    result = replay(scenario(EIGHT, Mode.STATIC))
    rank = step(EIGHT).trace.ranks[0]
    took: dict[int, set[int]] = {ALL_GATHER: set(), REDUCE_SCATTER: set()}
    for position, operation in enumerate(rank.graph.operations):
        if operation.kind == COLLECTIVE and operation.collective in took:
            took[operation.collective].add(result.ended_ns[0][position] - result.started_ns[0][position])
    # Right after another collective on the link, its tail of 916 ns is waited for.
    assert took[ALL_GATHER] == {4_451_016, 4_451_932}
    assert 5_790_444 in took[REDUCE_SCATTER]


def test_what_the_links_carry_is_what_is_published() -> None:
    published = EXPECTED[EIGHT]["link_bytes_total"]
    assert bytes_per_dimension(scenario(EIGHT, Mode.ON_DEMAND)) == {
        "data": published["DP"],
        "scale_up": published["TP"],
        "pipeline": published["PP"],
    }


@pytest.mark.parametrize("factor", [1, 4])
def test_a_widened_step_has_the_same_work_for_each_rank(factor: int, tmp_path: Path) -> None:
    source = make_step(Shape(dp=2, pp=2, tp=2, layers=1), tmp_path / "narrow")
    wide = widen(source, tmp_path / "wide", dp=2, pp=2, factor=factor)
    loaded = {
        folder: load_step(folder / "et", folder / "workload.json", folder / "system.json")
        for folder in (source, wide)
    }
    ranks = len(loaded[wide].trace.ranks)
    assert ranks == 8 * factor

    def work(folder: Path) -> list[list[Operation]]:
        return [list(graph.operations) for graph in loaded[folder].trace.graphs]

    assert work(wide) == work(source)
    made = make_scenario(loaded[wide], read_schedules(wide / "schedules.txt"), delay_ns=1e6)
    assert replay(made).started_ns == replay(made, exact=True).started_ns


def test_reconfigurations_that_the_end_hangs_on_are_named_with_what_waited() -> None:
    result = replay(scenario(EIGHT, Mode.ON_DEMAND, 10))
    # Published: the step at 10 ms is 2 x 10 ms longer than at 0 ms, for the forward and the backward send.
    forward, backward = result.exposures
    assert (forward.time_ns, forward.topology, forward.rank) == (10_616_448_486, 3, 0)
    assert (backward.time_ns, backward.topology, backward.rank) == (41_740_726_608, 3, 4)
    assert forward.waited_ns == 10_000_001
    assert forward.operation.endswith("_SEND")
    assert backward.operation.endswith("_SEND")
    assert 20_000_000 < result.exposed_delay_ns < 22_000_000


@pytest.mark.parametrize("delay_ms", [250, 1000])
def test_exposure_grows_with_the_published_slope(delay_ms: int) -> None:
    # Ten switches are exposed on demand, six with hints (published slopes at large delays).
    for mode, count in ((Mode.ON_DEMAND, 10), (Mode.PROVISION, 6)):
        result = replay(scenario(LLAMA, mode, delay_ms))
        assert len(result.exposures) == count
        lost = result.finish_ns - EXPECTED[LLAMA]["static"]
        assert result.exposed_delay_ns == pytest.approx(lost, rel=0.2)
