"""Steps in textbook accounting: totals, times and volumes against closed forms."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from opus_sdn.whatif.engine import Step, load_step, make_scenario, replay
from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.schedules import GIGABYTE
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.trace.model import ALL_REDUCE, COMPUTE
from opus_sdn.whatif.workload import (
    CARDS,
    Batch,
    Experts,
    Model,
    Parallelism,
    Workload,
    accelerator,
    generate,
    model_card,
)
from opus_sdn.whatif.workload.pipeline import Block, orders

H200 = accelerator("h200")
INSTANT_GBPS = 1e9

# Parameters as the authors state them, in billions.
STATED = {
    "llama3-8b": 8.03,
    "llama3-70b": 70.6,
    "llama3-405b": 405.9,
    "deepseek-v2-236b": 236,
    "deepseek-v3": 671,
}


@pytest.mark.parametrize(("name", "billions"), STATED.items())
def test_cards_have_as_many_parameters_as_their_authors_state(name: str, billions: float) -> None:
    assert model_card(name).parameters == pytest.approx(billions * 1e9, rel=0.002)


@pytest.mark.parametrize(("name", "billions"), [("deepseek-v2-236b", 21), ("deepseek-v3", 37)])
def test_of_a_mixture_few_are_active(name: str, billions: float) -> None:
    assert model_card(name).active_parameters == pytest.approx(billions * 1e9, rel=0.02)


def operations(workload: Workload) -> int:
    """Of all ranks, without the optimizer."""
    per_stage = workload.parallelism.ranks // workload.parallelism.pp
    return per_stage * sum(
        operation.ops
        for program in workload.programs
        for operation in program.graph.operations
        if operation.kind == COMPUTE and operation.name != "optimizer"
    )


PLANS = [
    (Parallelism(dp=2, pp=2, tp=4), Batch(16, 4096, 2)),
    (Parallelism(dp=2, tp=2, cp=2, sharding="full"), Batch(16, 4096, 2)),
    (Parallelism(dp=2, pp=4, tp=2, schedule="zero-bubble"), Batch(32, 2048, 4)),
    (Parallelism(pp=4, tp=2, schedule="interleaved", virtual_stages=2), Batch(32, 2048, 4)),
]
WITH_EXPERTS = [
    (Parallelism(dp=4, pp=2, tp=2, ep=4), Batch(16, 4096, 2)),
    (Parallelism(dp=4, pp=2, tp=4, ep=4, expert_placement="host"), Batch(16, 4096, 2)),
    (Parallelism(dp=4, pp=2, tp=2, ep=4, expert_placement="rails", overlap_experts=True), Batch(16, 4096, 2)),
]


@pytest.mark.parametrize(
    ("name", "plan", "batch"),
    [(name, *case) for name in CARDS for case in PLANS]
    + [(name, *case) for name in CARDS if CARDS[name].experts for case in WITH_EXPERTS],
)
def test_operations_are_six_for_each_parameter_and_token_and_the_attention_term(
    name: str, plan: Parallelism, batch: Batch
) -> None:
    """12 L h s D for attention where queries and values are as wide as the model; norms are the rest."""
    model = model_card(name)
    tokens = batch.size * batch.sequence
    attention = 6 * model.layers * (model.score_width + model.value_width) * batch.sequence * tokens
    wanted = 6 * model.active_parameters * tokens + attention
    assert operations(generate(model, plan, batch)) == pytest.approx(wanted, rel=1e-3)


def test_the_attention_term_is_the_textbook_one() -> None:
    model = model_card("llama3-8b")
    assert 6 * (model.score_width + model.value_width) == 12 * model.hidden


# --- pipelines

STAGES, MICROBATCHES = 4, 8
# Eight equal layers, next to no vocabulary: every piece takes as long as every other.
EVEN = Model("even", 8, 4096, 32, 16_384, 8, mlp="plain")


def pipelined(schedule: str, virtual_stages: int = 1) -> tuple[Workload, Result]:
    """The step on links that take no time."""
    plan = Parallelism(pp=STAGES, schedule=schedule, virtual_stages=virtual_stages)
    workload = generate(EVEN, plan, Batch(2 * MICROBATCHES, 512, MICROBATCHES))
    schedules = workload.schedules(INSTANT_GBPS, INSTANT_GBPS)
    scenario = make_scenario(workload.step(H200), schedules, mode=Mode.STATIC, latency_ns=0)
    return workload, replay(scenario, semantics="opus")


def work_ns(workload: Workload, *names: str) -> float:
    """What a stage in the middle computes in a step, in nodes whose names contain any of these."""
    system = H200.system(workload.efficiency)
    return sum(
        system.compute_ns(operation)
        for operation in workload.programs[1].graph.operations
        if operation.kind == COMPUTE
        and operation.name != "optimizer"
        and any(name in operation.name for name in names or ("",))
    )


@pytest.mark.parametrize(
    ("schedule", "virtual_stages"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), (None, 1)]
)
def test_a_bubble_is_as_long_as_the_other_stages_take_for_a_microbatch(
    schedule: str, virtual_stages: int
) -> None:
    """(p - 1) (f + b), and a virtual stage is so much shorter."""
    workload, result = pipelined(schedule, virtual_stages)
    work = work_ns(workload)
    update = max(result.finish_ns_per_rank) - max(
        end
        for rank, ended in enumerate(result.ended_ns)
        for end, operation in zip(ended, workload.trace.ranks[rank].graph.operations, strict=True)
        if operation.name != "optimizer"
    )
    bubble = result.finish_ns - update - work
    wanted = (STAGES - 1) * work / MICROBATCHES / virtual_stages
    assert bubble == pytest.approx(wanted, rel=0.03)


def test_weights_fill_the_bubble_of_a_zero_bubble_pipeline() -> None:
    """ZB-H1 leaves (p - 1) (f + b - w)."""
    workload, result = pipelined("zero-bubble")
    weights = work_ns(workload, ".dw") / MICROBATCHES
    whole = work_ns(workload) / MICROBATCHES
    optimizer = H200.system(workload.efficiency).compute_ns(
        next(o for o in workload.programs[1].graph.operations if o.name == "optimizer")
    )
    bubble = result.finish_ns - optimizer - whole * MICROBATCHES
    assert bubble == pytest.approx((STAGES - 1) * (whole - 2 * weights), rel=0.15)
    one_by_one = pipelined("1f1b")[1]
    assert result.finish_ns < one_by_one.finish_ns


STAGES_AND_MICROBATCHES = [(2, 2, 2), (2, 8, 2), (2, 4, 4), (4, 8, 2), (3, 6, 3)]


@pytest.mark.parametrize(("stages", "microbatches", "virtual"), STAGES_AND_MICROBATCHES)
def test_a_stage_runs_as_many_passes_ahead_as_its_schedule_says(
    stages: int, microbatches: int, virtual: int
) -> None:
    """Forward passes before the first backward one, as the authors count them."""

    def ahead(schedule: str, pieces: int = 1) -> list[int]:
        found = orders(schedule, stages, microbatches, pieces)
        return [[block.kind for block in blocks].index("B") for blocks in found]

    assert ahead("gpipe") == [microbatches] * stages
    in_turn = [min(stages - stage, microbatches) for stage in range(stages)]
    assert ahead("1f1b") == ahead("zero-bubble") == in_turn
    interleaved = [(stages - stage - 1) * 2 + (virtual - 1) * stages + 1 for stage in range(stages)]
    if microbatches == stages:
        interleaved = [microbatches * virtual] * stages
    assert ahead("interleaved", virtual) == interleaved


@pytest.mark.parametrize(("stages", "microbatches", "virtual"), STAGES_AND_MICROBATCHES)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_messages_of_a_stage_are_needed_in_the_order_in_which_it_sends_them(
    schedule: str, stages: int, microbatches: int, virtual: int
) -> None:
    """Both of one pair of stages in one order: with two stages, forward and backward ones alternate."""
    found = orders(schedule, stages, microbatches, virtual if schedule == "interleaved" else 1)
    for receiver, blocks in enumerate(found):
        place = {block: index for index, block in enumerate(blocks)}
        for sender, others in enumerate(found):
            made = [
                Block(block.kind, block.piece + (1 if block.kind == "F" else -1), block.microbatch)
                for block in others
                if block.kind in ("F", "B")
            ]
            needed = [place[block] for block in made if sender != receiver and block in place]
            assert needed == sorted(needed)


# --- collectives


def test_an_all_reduce_moves_twice_the_gradient_less_a_share_around_the_ring() -> None:
    """2 (n - 1) / n S / B, and adding up what comes; the latency of each message is next to nothing here."""
    n, gbps = 8, 50.0
    workload = generate(replace(EVEN, layers=1), Parallelism(dp=n), Batch(n, 512))
    step = workload.step(H200)
    result = replay(
        make_scenario(step, workload.schedules(gbps, gbps), mode=Mode.STATIC, latency_ns=0), semantics="opus"
    )
    operations = step.trace.ranks[0].graph.operations
    position, gradient = next(
        (p, o) for p, o in enumerate(operations) if o.collective == ALL_REDUCE and "layer0" in o.name
    )
    assert gradient.size == 4 * EVEN.layer_parameters(0)
    taken = result.ended_ns[0][position] - result.started_ns[0][position]
    on_links = 2 * (n - 1) / n * gradient.size / (gbps * GIGABYTE / 1e9)
    added = 3 * (n - 1) / n * gradient.size / step.system.memory_gbps
    assert taken == pytest.approx(on_links + added, rel=1e-3)


MIXTURE = Model("mixture", 4, 1024, 8, 4096, 8, experts=Experts(16, 2, 512))


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_all_to_alls_move_every_routed_token_to_its_expert_and_back(ep: int) -> None:
    """Four of them in a layer: there and back, forward and backward.

    A token goes on to the next rank until it is there: (n - 1) / 2 hops on average.
    """
    plan, batch = Parallelism(dp=8, tp=2, ep=ep), Batch(16, 1024, 2)
    workload = generate(MIXTURE, plan, batch)
    assert MIXTURE.experts is not None
    tokens = batch.size * batch.sequence
    routed = tokens * MIXTURE.experts.active * MIXTURE.hidden * 2
    wanted = 4 * MIXTURE.layers * routed * (ep - 1) / 2
    assert workload.bytes_per_dimension()["ep"] == pytest.approx(wanted, rel=1e-6)


def test_experts_on_all_rails_cross_the_host_first() -> None:
    plan = Parallelism(dp=4, tp=2, ep=8, expert_placement="rails")
    names = [o.name for o in generate(MIXTURE, plan, Batch(8, 1024)).programs[0].graph.operations]
    there = names.index("mb0.layer0.dispatch.host")
    assert names[there + 1] == "mb0.layer0.dispatch"


def test_fully_sharded_weights_are_gathered_twice_and_gradients_scattered_once() -> None:
    """(n - 1) / n of what all layers have, per rank: twice with 2 bytes and once with 4."""
    n = 4
    workload = generate(EVEN, Parallelism(dp=n, sharding="full"), Batch(n, 512))
    layers = EVEN.layers * EVEN.layer_parameters(0)
    embeddings = 2 * EVEN.vocab * EVEN.hidden
    per_rank = (n - 1) / n * ((2 * 2 + 4) * layers + 4 * embeddings)
    assert workload.bytes_per_dimension()["dp"] == pytest.approx(n * per_rank, rel=1e-6)


def test_context_parallel_ranks_pass_keys_and_values_around() -> None:
    """Forward they go round, backward they and their gradients: 3 (cp - 1) parts of each rank and layer."""
    cp = 4
    model, batch = model_card("llama3-8b"), Batch(2, 4096)
    workload = generate(model, Parallelism(cp=cp), batch)
    part = batch.size * batch.sequence // cp * 2 * model.key_width * 2
    assert workload.bytes_per_dimension()["cp"] == 3 * (cp - 1) * part * model.layers * cp


# --- what cannot be

ODD = [
    ({"tp": 3}, {}, "parallelism.tp", "divide by 1, 2, 4, 8"),
    ({"pp": 64}, {}, "parallelism.pp", "32 layers"),
    ({"dp": 0}, {}, "parallelism.dp", "at least 1"),
    ({"dp": 4}, {"size": 6}, "batch.size", "[4, 8] would"),
    ({"dp": 2}, {"size": 8, "microbatches": 3}, "batch.size", "[6, 12] would"),
    ({"tp": 4}, {"sequence": 4095}, "batch.sequence", "a multiple of"),
    ({"ep": 2}, {}, "parallelism.ep", "no experts"),
    ({"schedule": "2f2b"}, {}, "parallelism.schedule", "gpipe, 1f1b"),
    ({"sharding": "zero-9"}, {}, "parallelism.sharding", "none, optimizer, full"),
    ({"pp": 4, "schedule": "interleaved"}, {}, "parallelism.virtual_stages", "2 or more"),
    (
        {"pp": 4, "schedule": "interleaved", "virtual_stages": 2},
        {"microbatches": 2},
        "batch.microbatches",
        "multiple of its 4 stages",
    ),
    ({"virtual_stages": 2}, {}, "parallelism.virtual_stages", "only the interleaved"),
    ({"dp": 65_537}, {"size": 65_537}, "parallelism", "at most 65536 ranks"),
    ({}, {"size": 4096, "microbatches": 4096}, "batch.microbatches", "at most 1024 are simulated"),
    ({}, {"size": 1 << 40}, "batch.size", "at most 1048576 such sequences"),
]


@pytest.mark.parametrize(("plan", "batch", "field", "why"), ODD)
def test_a_plan_that_does_not_work_is_refused_with_what_would(
    plan: dict[str, object], batch: dict[str, int], field: str, why: str
) -> None:
    with pytest.raises(InputError) as caught:
        generate(
            model_card("llama3-8b"),
            Parallelism(**plan),  # type: ignore[arg-type]
            Batch(**({"size": 16, "sequence": 4096} | batch)),
        )
    assert caught.value.field == field
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Parallelism(dp=8, ep=7), "160 experts divide by"),
        (Parallelism(dp=8, tp=4, ep=8, expert_placement="host"), "on one host, ep is tp: 4"),
        (Parallelism(dp=8, tp=4, ep=10, expert_placement="rails"), "a multiple of tp"),
        (Parallelism(dp=4, ep=8), "ep may be [1, 2, 4]"),
    ],
)
def test_experts_that_do_not_spread_are_refused_with_what_would(plan: Parallelism, why: str) -> None:
    with pytest.raises(InputError, match=r"parallelism\.ep") as caught:
        generate(model_card("deepseek-v2-236b"), plan, Batch(8, 4096))
    assert why in str(caught.value)


def test_unknown_names_are_refused_with_those_known() -> None:
    with pytest.raises(InputError, match="llama3-405b"):
        model_card("llama4")
    with pytest.raises(InputError, match="gb200"):
        accelerator("h300")
    with pytest.raises(InputError, match="physical"):
        generate(model_card("llama3-8b"), Parallelism(), Batch(1, 64), preset="chemical")


# --- every plan is a program that ends


# Messages of both ways go between the same two stages, and are received in the order in which they are sent.
TWO_STAGES = (
    Parallelism(dp=2, pp=2, tp=2, schedule="interleaved", virtual_stages=2),
    Batch(16, 2048, 4),
)


@pytest.mark.parametrize(("plan", "batch"), [*PLANS, *WITH_EXPERTS, TWO_STAGES])
@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.ON_DEMAND, Mode.PROVISION])
def test_every_plan_ends_on_our_own_controller(plan: Parallelism, batch: Batch, mode: Mode) -> None:
    """With three layers to a stage."""
    card = "deepseek-v3" if plan.ep > 1 else "llama3-8b"
    model = replace(model_card(card), layers=3 * plan.pp * plan.virtual_stages)
    workload = generate(model, plan, batch)
    schedules = workload.schedules(H200.scale_out_gbps, H200.scale_up_gbps)
    scenario = make_scenario(workload.step(H200), schedules, mode=mode, delay_ns=5e6)
    found = replay(scenario, semantics="opus")
    computing = max(workload.compute_ns(H200))
    assert found.finish_ns > computing
    assert prod((plan.dp, plan.pp, plan.tp, plan.cp)) == len(found.finish_ns_per_rank)


def test_sixteen_stages_are_replayed_on_one_rail_and_refused_where_combinations_would_be_written() -> None:
    plan = Parallelism(dp=2, pp=16, tp=8)
    model = replace(model_card("llama3-405b"), layers=16)
    workload = generate(model, plan, Batch(32, 4096, 16))
    schedules = workload.rail_schedules(H200.scale_out_gbps, H200.scale_up_gbps)
    assert len(schedules.topologies) == 2
    scenario = make_scenario(workload.rail_step(H200), schedules, mode=Mode.PROVISION, delay_ns=1e6)
    assert replay(scenario, semantics="opus").finish_ns > max(workload.compute_ns(H200))
    with pytest.raises(InputError, match="at most 12 stages"):
        workload.schedules(H200.scale_out_gbps, H200.scale_up_gbps)


def test_a_step_with_experts_is_written_and_read_back(tmp_path: Path) -> None:
    plan, batch = WITH_EXPERTS[2]
    workload = generate(replace(model_card("deepseek-v3"), layers=8), plan, batch)
    workload.write(tmp_path, H200)
    back = load_step(tmp_path, tmp_path / "workload.json", tmp_path / "system.json")
    schedules = workload.schedules(H200.scale_out_gbps, H200.scale_up_gbps)

    def finish(step: Step) -> list[int]:
        scenario = make_scenario(step, schedules, mode=Mode.STATIC)
        return replay(scenario, semantics="opus").finish_ns_per_rank

    assert finish(back) == finish(workload.step(H200))
