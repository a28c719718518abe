"""One rank of each stage stands for a job of any size; windows between its phases are the published ones."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from opus_sdn.whatif.engine import make_scenario, replay
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.trace.model import SEND
from opus_sdn.whatif.windows import (
    Window,
    exposed_communication_ns,
    phases_of,
    utilisation,
    windows_of,
    windows_without_experts,
)
from opus_sdn.whatif.workload import Batch, Parallelism, Workload, accelerator, generate, model_card
from opus_sdn.whatif.workload.symmetric import static_outcome
from tests.whatif.cases import EIGHT, EXPECTED, LLAMA, MICROBATCHES
from tests.whatif.workloads import published

H200 = accelerator("published-h200")
GB200 = accelerator("published-gb200")


def windows(workload: Workload, gpu: object = H200) -> list[Window]:
    assert gpu in (H200, GB200)
    outcome = static_outcome(workload, gpu, scale_out_gbps=50)  # type: ignore[arg-type]
    return windows_of(workload, outcome.started_ns, outcome.ended_ns)


@pytest.mark.parametrize("case", [EIGHT, LLAMA, MICROBATCHES])
def test_one_rank_of_each_stage_finishes_when_all_do(case: str) -> None:
    assert max(static_outcome(published(case), H200).finish_ns) == EXPECTED[case]["static"]


PLANS = [
    (Parallelism(dp=4, pp=2, tp=2, ep=4, sharding="full"), Batch(16, 4096, 2)),
    (Parallelism(dp=2, pp=2, tp=2, cp=2, schedule="interleaved", virtual_stages=2), Batch(16, 4096, 4)),
    (
        Parallelism(dp=4, pp=2, tp=2, ep=4, expert_placement="rails", schedule="zero-bubble"),
        Batch(16, 4096, 2),
    ),
]


@pytest.mark.parametrize(("plan", "batch"), PLANS)
def test_all_ranks_of_a_stage_do_what_the_one_does(plan: Parallelism, batch: Batch) -> None:
    workload = generate(replace(model_card("deepseek-v3"), layers=8), plan, batch)
    scenario = make_scenario(workload.step(H200), workload.schedules(50, 450), mode=Mode.STATIC)
    whole = replay(scenario, semantics="opus")
    one = static_outcome(workload, H200)
    assert max(one.finish_ns) == whole.finish_ns
    per_stage = plan.ranks // plan.pp
    for rank, started in enumerate(whole.started_ns):
        assert started == one.started_ns[rank // per_stage]
    assert windows_of(workload, whole.started_ns, whole.ended_ns) == windows_of(
        workload, one.started_ns, one.ended_ns
    )


def strong_scaling(dp: int) -> Workload:
    plan = Parallelism(dp=dp, pp=4, tp=32)
    return generate(model_card("gpt-80b"), plan, Batch(15_360, 4096), preset="stg")


@pytest.mark.parametrize(("dp", "median_ms"), [(16, 187), (32, 94), (64, 47), (128, 24)])
def test_the_median_windows_at_2048_to_16384_gpus_are_the_published_ones(dp: int, median_ms: int) -> None:
    found = windows(strong_scaling(dp), GB200)
    assert round(median(window.length_ns for window in found) / 1e6) == median_ms


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_without_experts_a_step_has_two_windows_a_stage_and_one_on_the_first(schedule: str, pp: int) -> None:
    """Gradients come in, are reduced, and go on to the stage before: 2 pp - 1."""
    model = replace(model_card("llama3-8b"), layers=2 * pp)
    plan = Parallelism(dp=2, pp=pp, tp=2, schedule=schedule)
    found = windows(generate(model, plan, Batch(32, 4096, 8)))
    assert len(found) == windows_without_experts(pp) == 2 * pp - 1
    assert [window.pair for window in found if window.stage == 0] == ["pp to dp"]
    assert {window.pair for window in found} == {"pp to dp", "dp to pp"}


def test_a_stage_of_a_zero_bubble_pipeline_has_one_window() -> None:
    """Its weights' gradients come after its last message."""
    plan = Parallelism(dp=2, pp=4, tp=2, schedule="zero-bubble")
    model = replace(model_card("llama3-8b"), layers=8)
    found = windows(generate(model, plan, Batch(32, 4096, 8)))
    assert [(window.stage, window.pair) for window in found] == [(stage, "pp to dp") for stage in range(4)]


def test_phases_of_an_interleaved_pipeline_overlap() -> None:
    plan = Parallelism(dp=4, pp=4, tp=4, schedule="interleaved", virtual_stages=2)
    found = windows(generate(model_card("llama3-8b"), plan, Batch(64, 4096, 8)))
    overlapping = [window for window in found if window.length_ns < 0]
    assert overlapping
    for window in overlapping:
        assert window.stall_ns(1e6) == 1e6 - window.length_ns


def test_a_switch_that_fits_into_its_window_stalls_nobody() -> None:
    window = Window(0, "pp", "dp", 0, 10, 1)
    assert [window.stall_ns(switch) for switch in (0, 10, 25)] == [0, 0, 15]


def test_utilisation_is_compute_over_compute_communication_and_stalls() -> None:
    """Two stages that compute for 60 and 80 of 100 ns; 30 ns exceed a window of the first by 20."""
    found = [Window(0, "pp", "dp", 0, 10, 1), Window(1, "pp", "dp", 0, 30, 1)]
    assert utilisation([60, 80], [40, 20], found, 0) == pytest.approx(0.7)
    assert utilisation([60, 80], [40, 20], found, 30) == pytest.approx((60 / 120 + 80 / 100) / 2)


def test_what_a_single_stage_does_not_compute_is_communication() -> None:
    workload = generate(replace(model_card("llama3-8b"), layers=2), Parallelism(dp=4, tp=2), Batch(8, 4096))
    outcome = static_outcome(workload, H200)
    exposed = exposed_communication_ns(workload, outcome.started_ns, outcome.ended_ns)
    assert exposed == [outcome.finish_ns[0] - workload.compute_ns(H200)[0]]
    assert exposed[0] > 0


def test_waiting_for_other_stages_is_no_communication() -> None:
    workload = published(EIGHT)
    outcome = static_outcome(workload, H200)
    exposed = exposed_communication_ns(workload, outcome.started_ns, outcome.ended_ns)
    for finish, compute, talking in zip(outcome.finish_ns, workload.compute_ns(H200), exposed, strict=True):
        assert 0 < talking < finish - compute - 10**9


def test_phases_are_those_of_the_rails() -> None:
    """Of the published step of 8 ranks: what a stage sends, gets, and reduces; nothing inside its hosts."""
    outcome = static_outcome(published(EIGHT), H200)
    first, last = phases_of(published(EIGHT), outcome.started_ns, outcome.ended_ns)
    assert [(phase.dimension, phase.transfers) for phase in first] == [("pp", 2), ("dp", 49)]
    assert [(phase.dimension, phase.transfers) for phase in last] == [("pp", 1), ("dp", 49), ("pp", 1)]
    assert last[1].size == 48 * 369_098_752 + 262_144_000
    sent = next(
        begin
        for begin, operation in zip(
            outcome.started_ns[0], published(EIGHT).programs[0].graph.operations, strict=True
        )
        if operation.kind == SEND
    )
    assert last[0].begin_ns == sent  # not when the receive was posted, at 0
