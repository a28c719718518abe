"""Thousands of small worlds in which everything goes wrong that may: no invariant breaks, and all end.

`python -m tests.sim SEED` shows one of them again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opus_sdn.drivers.faults import FaultKind
from tests.sim.faults import Kind
from tests.sim.pool import met_by, play_all
from tests.sim.seeds import calm

ROOT = Path(__file__).parents[2]
SCALE = int(os.environ.get("OPUS_TEST_SCALE", "1"))
SEEDS = min(10_000, 2_000 * SCALE)
SEEDS_ON_SQL = min(500, 40 * SCALE)
CALM_SEEDS = 40
FAILURES_SHOWN = 3
RUNS = ("run of several operations", "run cut", "run cut short", "run-deviation")


def test_no_invariant_breaks_whatever_goes_wrong_and_the_switches_come_to_rest() -> None:
    outcomes = list(play_all(range(SEEDS)))
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    assert not failures, f"{len(failures)} of {SEEDS} seeds:\n" + "\n".join(failures[:FAILURES_SHOWN])
    met = met_by(outcomes)
    unmet = [kind.value for kind in Kind if not met[kind.value]]
    unmet += [f"device {kind.value}" for kind in FaultKind if not met[f"device {kind.value}"]]
    unmet += [what for what in RUNS if not met[what]]
    assert not unmet, "faults that no seed has met"
    # A world whose job dies early is short; the others go on for more than a thousand steps.
    assert sum(outcome.steps for outcome in outcomes) >= 200 * SEEDS


def test_when_nothing_goes_wrong_every_job_does_all_its_work() -> None:
    for seed in range(CALM_SEEDS):
        world = calm(seed).run()
        assert all(run.well for run in world.fleet.runs)


def test_the_sql_store_ends_in_the_same_state_as_the_one_in_memory_on_the_same_seeds() -> None:
    seeds = range(SEEDS_ON_SQL)
    for there, here in zip(play_all(seeds, "sqlite"), play_all(seeds), strict=True):
        assert there.failure is None, there.failure
        assert (there.digest, there.snapshot) == (here.digest, here.snapshot), f"seed {here.seed} differs"


@pytest.mark.parametrize("seed", [3, 38, 228])
def test_the_same_seed_goes_the_same_way_in_every_process(seed: int) -> None:
    logs = {
        subprocess.run(
            [sys.executable, "-m", "tests.sim", str(seed)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(logs) == 1
