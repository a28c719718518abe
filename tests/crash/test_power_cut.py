"""The machine loses its power while ranks work: the newest records are gone, grants among them, and no live
circuit is torn; the ranks say what they hold, and go on by themselves.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.crash.power import SqliteMachine
from tests.sim.faults import Faults, Kind
from tests.sim.seeds import scenario_of
from tests.sim.world import World

SCALE = int(os.environ.get("OPUS_TEST_SCALE", "1"))
RUNS = min(100, 8 * SCALE)
STEPS = 400


def test_a_power_cut_takes_the_newest_records_and_no_live_circuit(empty_file: Path, tmp_path: Path) -> None:
    cuts = lost = torn = 0
    for seed in range(RUNS):
        rng = random.Random(f"power {seed}")
        moments = sorted((rng.randrange(20, STEPS), Kind.POWER_CUT) for _ in range(rng.choice((1, 2, 3))))
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(
            scenario_of(seed),
            seed,
            Faults(STEPS, moments=tuple(moments)),
            disk=lambda _, *more, folder=folder: SqliteMachine(empty_file, folder, *more),
        )
        world.run()
        assert all(run.well for run in world.fleet.runs), f"seed {seed}: a job has failed"
        machine = world.disk
        assert isinstance(machine, SqliteMachine)
        cuts, lost, torn = cuts + machine.cuts, lost + machine.lost, torn + machine.torn
        machine.store.close()
    assert min(cuts, lost, torn) >= RUNS // 4, f"{cuts} cuts took {lost} commits and {torn} in part"
