"""A real controller process that kills itself at points of its own choice, under sixteen real busy ranks.

How often, says OPUS_DEATHS (6; the full figure is 500). Switches and traffic witness are another process.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from opus_sdn.demo.controller import Controller, ControllerFailedError
from opus_sdn.fabric_file import generate_fabric
from tests.crash.matrix import POINTS
from tests.emulated import emulated_switches
from tests.shim.test_kills import WORLD, BusyRank, declare, rings_of
from tests.waiting import wait_until

DEATHS = int(os.environ.get("OPUS_DEATHS", "6"))
LATEST = 60  # it dies at the n-th time that it comes to the point, at most this one


class MortalController(Controller):
    """`opus serve` that dies by its own hand at the point that is set before it starts."""

    point = ""

    def _start(self, port: int) -> dict[str, Any]:
        self._ready.unlink(missing_ok=True)
        environment = {"OPUS_SDN_PORT": str(port), "OPUS_TEST_DIE": self.point}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.crash.mortal", "serve"),
                    *("--fabric", str(self._fabric_file), "--ready-file", str(self._ready)),
                ],
                env=os.environ | self._environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._wait_ready()

    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None


def test_sixteen_ranks_go_on_whatever_the_controller_was_doing_when_it_died(tmp_path: Path) -> None:
    rng = random.Random(DEATHS)
    fabric = yaml.safe_load(generate_fabric(hosts=WORLD, gpus_per_host=1, ports_per_gpu=1, delay_ms=1))
    with (
        emulated_switches(fabric, tmp_path) as switches,
        MortalController(json.dumps(switches.fabric), tmp_path / "c", witness=switches.witness) as controller,
    ):
        declare(controller)
        rings = rings_of(controller)
        ranks = [BusyRank(controller, rank, rings[rank]) for rank in range(WORLD)]
        for rank in ranks:
            rank.start()
        controller.kill()
        deaths, early = 1, 0
        while deaths < DEATHS:
            # A few deaths in a row before it serves anybody are enough: ranks fence when nobody answers.
            controller.point = f"{rng.choice(POINTS)}:{rng.randint(1 if early < 2 else LATEST // 2, LATEST)}"
            try:
                controller.start_again()
            except ControllerFailedError:  # it died before it was ready
                deaths, early = deaths + 1, early + 1
                continue
            early = 0
            wait_until(
                lambda: controller.is_dead() or any(rank.failed for rank in ranks), f"dies {controller.point}"
            )
            deaths += 1
            assert not [rank.failed for rank in ranks if rank.failed], controller.point
        controller.point = ""
        controller.start_again()
        end = max(rank.rounds for rank in ranks) + 2
        for rank in ranks:
            rank.stop_after(end)
        for rank in ranks:
            rank.join()
        assert not [rank.failed for rank in ranks if rank.failed]
        for rank in ranks:  # every operation was granted once, and to both ends
            assert len(set(rank.order)) == len(rank.order) == 2 * end
        wait_until(lambda: controller.get("/jobs/busy")["state"] == "ended", "all have left")
        assert controller.all("/locks") == []
        report = switches.report()
    assert (report["violations"], report["operations"]) == ([], WORLD * 2 * end)
