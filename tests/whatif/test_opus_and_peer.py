"""Both semantics have engines of their own: where neither switches anything they must agree, to the ns."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.traces import Shape, make_step
from opus_sdn.whatif.engine import load_step, make_scenario, replay
from opus_sdn.whatif.inputs.schedules import read_schedules
from opus_sdn.whatif.scenario import Mode


@pytest.mark.parametrize("seed", range(8))
def test_static_steps_of_random_shapes_are_equal_on_every_rank(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    shape = Shape(
        dp=rng.choice((1, 2, 3, 4)),
        pp=rng.choice((1, 2, 3)),
        tp=rng.choice((1, 2, 4)),
        layers=rng.choice((1, 3)),
        microbatches=rng.choice((1, 2, 4)),
        reduce_each=rng.random() < 0.5,
        gather_bytes=rng.randrange(1 << 20, 1 << 24),
        gradient_bytes=rng.randrange(1 << 20, 1 << 26),
        rng=random.Random(seed),
    )
    folder = make_step(shape, tmp_path)
    step = load_step(folder / "et", folder / "workload.json", folder / "system.json")
    schedules = read_schedules(folder / "schedules.txt")
    scenario = make_scenario(step, schedules, mode=Mode.STATIC, latency_ns=rng.choice((0.0, 936.25, 5e4)))
    ours, theirs = (replay(scenario, semantics=name) for name in ("opus", "peer"))
    assert ours.finish_ns_per_rank == theirs.finish_ns_per_rank
    assert ours.ended_ns == theirs.ended_ns


@pytest.mark.parametrize("mode", [Mode.ON_DEMAND, Mode.PROVISION])
@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_finish_on_our_controller_with_every_delay(
    seed: int, mode: Mode, tmp_path: Path
) -> None:
    rng = random.Random(f"{seed} {mode}")
    shape = Shape(
        dp=rng.choice((2, 3)),
        pp=rng.choice((2, 3)),
        tp=rng.choice((1, 2)),
        microbatches=rng.choice((1, 4)),
        reduce_each=rng.random() < 0.5,
        rng=random.Random(seed),
    )
    folder = make_step(shape, tmp_path)
    step = load_step(folder / "et", folder / "workload.json", folder / "system.json")
    schedules = read_schedules(folder / "schedules.txt")
    for delay_ms in (0, 0.3, 40):
        options: dict[str, object] = {"ring_patience_ms": rng.choice((0, 1, 100))}
        scenario = make_scenario(step, schedules, mode=mode, delay_ns=delay_ms * 1e6, options=options)
        assert replay(scenario, semantics="opus").finish_ns > 0
