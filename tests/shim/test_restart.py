"""The controller dies under real ranks, again and again: they go on by themselves, with right results.

The switches live in a process of their own, as real ones do, and so does their traffic witness.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.results import StepRecord
from opus_sdn.demo.shapes import Shape, TrainConfig
from opus_sdn.fabric_file import generate_fabric
from tests.emulated import EmulatedSwitches, emulated_switches
from tests.waiting import wait_until

STEPS = 40
TRAIN = "opus_sdn.demo.train:run"
PROGRAM = "tests.shim.rank_programs:rings_and_messages"

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.fixture
def switches(tmp_path: Path) -> Iterator[EmulatedSwitches]:
    declared = yaml.safe_load(generate_fabric(hosts=4, gpus_per_host=1, ports_per_gpu=1, delay_ms=3))
    with emulated_switches(declared, tmp_path) as switches:
        yield switches


@pytest.mark.parametrize("mode", ["on-demand", "provision"])
def test_a_training_step_goes_on_over_the_death_of_the_controller_and_learns_the_same(
    zygote: Zygote, tmp_path: Path, mode: str
) -> None:
    """Pipeline 2 x data 2, resharded: the controller is killed in the middle of the second step."""
    config = TrainConfig(Shape(pp=2, dp=2, tp=1, gpus_per_host=1), "1F1B", True, steps=5, layers=2)
    declared = yaml.safe_load(generate_fabric(hosts=4, gpus_per_host=1, delay_ms=3))
    train: dict[str, Any] = {"rank_environment": config.shape.environment, "deadline_s": 120.0}
    begun = threading.Event()

    def on_message(rank: int, record: StepRecord) -> None:
        if record.step == 0:
            begun.set()

    with (
        emulated_switches(declared, tmp_path) as switches,
        Controller(json.dumps(switches.fabric), tmp_path / "c", witness=switches.witness) as controller,
    ):
        environment = controller.environment("trained") | {"OPUS_DIMENSIONS": "pp=2,dp=2", "OPUS_MODE": mode}
        launch = zygote.launch(
            TRAIN, 4, args=(config, "opus"), environment=environment, on_message=on_message, **train
        )
        assert begun.wait(60.0)
        before = controller.get("/jobs/trained")["grants"]

        def is_in_the_next_step() -> bool:
            job = controller.get("/jobs/trained")
            return job["grants"] >= before + 3 or job["state"] == "ended"

        wait_until(is_in_the_next_step, "the next step")
        controller.kill()
        controller.start_again()
        found = launch.values()
        job = controller.get("/jobs/trained")
        assert (job["state"], job["incarnation"], controller.start) == ("ended", 1, 2)
        report = switches.report()
    plain = zygote.run(TRAIN, 4, args=(config, "gloo"), **train)
    learned, wanted = ([(r.losses, r.grad_norms, r.checksum) for r in one] for one in (found, plain))
    assert learned == wanted
    assert report["violations"] == []


def sums(rank: int) -> list[float]:
    """What every rank of the program finds: a + (a + 2) of its own ring, and the same of its neighbour's."""
    pair = [0 + 2, 1 + 3]
    return [float(sum(pair) + 4 * step) for step in range(STEPS)]


def killed(controller: Controller) -> None:
    controller.kill()


def stopped(controller: Controller) -> None:
    assert controller.stop() == 0


@pytest.mark.parametrize("end", [killed, stopped])
def test_a_job_goes_on_over_restarts_of_the_controller(
    zygote: Zygote, switches: EmulatedSwitches, tmp_path: Path, end: Callable[[Controller], None]
) -> None:
    heard: list[int] = []
    with Controller(json.dumps(switches.fabric), tmp_path / "c", witness=switches.witness) as controller:
        launch = zygote.launch(
            PROGRAM,
            4,
            args=("opus", STEPS),
            environment=controller.environment("restarted") | {"OPUS_DIMENSIONS": "pp=2,dp=2"},
            rank_environment=lambda rank: {"OPUS_HOST": f"host{rank}", "LOCAL_RANK": "0"},
            on_message=lambda rank, step: heard.append(step),
            deadline_s=120.0,
        )
        restarts = 3
        for restart in range(restarts):
            wait_until(lambda target=8 * (restart + 1): max(heard, default=0) >= target, "some steps")
            end(controller)
            controller.start_again()
        assert launch.values() == [sums(rank) for rank in range(4)]
        job: Any = controller.get("/jobs/restarted")
        assert (job["state"], job["incarnation"], controller.start) == ("ended", 1, restarts + 1)
        recovered = [e["data"] for e in controller.events("restarted") if e["kind"] == "job.recovered"]
        assert [data["intact"] for data in recovered] == [end is stopped] * restarts
        assert len([e for e in controller.events("restarted") if e["kind"] == "job.reasserted"]) == restarts
    report = switches.report()
    assert report["violations"] == []
    assert report["operations"] >= 4 * STEPS * 3
