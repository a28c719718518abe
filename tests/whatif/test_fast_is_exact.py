"""Where the fast path has an answer it is that of the event-by-event engine, for every node."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.traces import Shape, make_step
from opus_sdn.whatif.engine import load_step, make_scenario, replay
from opus_sdn.whatif.errors import CannotFinishError
from opus_sdn.whatif.inputs.hints import Hints, derive_hints
from opus_sdn.whatif.inputs.schedules import read_schedules
from opus_sdn.whatif.peer.exact import ExactEngine
from opus_sdn.whatif.peer.fast import FastEngine
from opus_sdn.whatif.peer.order import UnknownOrderError
from opus_sdn.whatif.peer.solve import Solver
from opus_sdn.whatif.scenario import Mode, Scenario
from tests.whatif.cases import MICROBATCHES, published_hints, scenario

SEEDS_A_TEST = 12
TESTS = 5 * int(os.environ.get("OPUS_TEST_SCALE", "1"))


def outcome(engine: FastEngine | ExactEngine) -> object:
    """Everything that a replay finds out."""
    try:
        result = engine.run()
    except CannotFinishError as hang:
        return "hangs", hang.time_ns, hang.cycle, engine.ended
    return (
        result.finish_ns_per_rank,
        result.reconfigurations,
        result.started_ns,
        result.ended_ns,
        result.finished_communications,
    )


def random_shape(rng: random.Random) -> Shape:
    return Shape(
        dp=rng.choice((1, 2, 2, 3, 4)),
        pp=rng.choice((1, 2, 2, 3)),
        tp=rng.choice((1, 2, 4)),
        layers=rng.choice((1, 2, 3)),
        microbatches=rng.choice((1, 1, 2, 3)),
        gather_bytes=rng.choice((1 << 10, 1 << 16, 1 << 20, 3_000_001)),
        gradient_bytes=rng.choice((1 << 12, 1 << 20, 1 << 24, 1_000_003)),
        message_bytes=rng.choice((64, 1 << 16, 1 << 22)),
        ops=rng.choice((1 << 31, 1 << 34, 1 << 36)),
        reduce_each=rng.random() < 0.3,
        rng=random.Random(rng.random()) if rng.random() < 0.7 else None,
    )


def random_scenarios(seed: int, folder: Path) -> list[Scenario]:
    rng = random.Random(seed)
    made = make_step(random_shape(rng), folder)
    step = load_step(made / "et", made / "workload.json", made / "system.json")
    schedules = read_schedules(made / "schedules.txt")
    delay_ns = rng.choice((0, 1, 500, 20_000, 1e6, 1e7))
    on_demand = make_scenario(step, schedules, delay_ns=delay_ns)
    return [
        make_scenario(step, schedules, mode=Mode.STATIC),
        on_demand,
        make_scenario(
            step, schedules, mode=Mode.PROVISION, delay_ns=delay_ns, hints=hints_or_none(on_demand)
        ),
    ]


def hints_or_none(on_demand: Scenario) -> Hints:
    try:
        found = ExactEngine(on_demand).run().finished_communications
    except CannotFinishError:
        return {}
    assert found is not None
    return derive_hints(found)


# Among the first of these are steps in which a change of topology puts an end off that was on the agenda.
FIRST_SEEDS = [270, 240, *range(0, SEEDS_A_TEST * TESTS, SEEDS_A_TEST)]


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_random_steps_are_replayed_the_same_by_both_engines(first: int, tmp_path: Path) -> None:
    solver = Solver()  # shared by unlike steps, so that nothing may depend on which of them came first
    asked: Counter[bool] = Counter()
    for seed in range(first, first + SEEDS_A_TEST):
        for found in random_scenarios(seed, tmp_path / str(seed)):
            try:
                fast = outcome(FastEngine(found, solver))
            except UnknownOrderError:
                asked[False] += 1
                continue
            asked[True] += 1
            assert fast == outcome(ExactEngine(found)), f"seed {seed}, {found.mode}"
    assert asked[True] > 2 * asked[False], "the fast path gives up more often than a third of the time"


@pytest.mark.parametrize("mode", [Mode.ON_DEMAND, Mode.PROVISION])
@pytest.mark.parametrize("delay_ms", [0, 1, 250])
def test_the_microbatched_step_is_replayed_the_same_by_both_engines(mode: Mode, delay_ms: int) -> None:
    hints = published_hints(MICROBATCHES, 0 if delay_ms == 0 else 10) if mode is Mode.PROVISION else None
    wanted = scenario(MICROBATCHES, mode, delay_ms, hints)
    either, exact = replay(wanted), replay(wanted, exact=True)
    assert either.started_ns == exact.started_ns
    assert either.ended_ns == exact.ended_ns
    assert either.reconfigurations == exact.reconfigurations


def test_where_order_in_a_nanosecond_is_unknown_the_exact_engine_is_asked_and_that_is_said() -> None:
    result = replay(scenario(MICROBATCHES, Mode.ON_DEMAND, 10))
    assert result.details["engine"] == "exact"
    assert "nanosecond" in result.details["why"]
