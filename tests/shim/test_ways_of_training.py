"""Real ranks train in every way that torch offers, and learn what they learn on plain gloo, bit by bit.

Through a real controller and an emulated switch with a traffic witness.
Pipelines are in `test_training_on_opus`.
"""

from __future__ import annotations

from typing import Any

import pytest

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import Zygote
from opus_sdn.fabric_file import generate_fabric
from tests.shim.small_controller import SmallController, a_fabric
from tests.shim.test_torch_api import places
from tests.shim.training_programs import PROGRAMS

WORLD = 8
GPUS = 2
DEADLINE_S = 120.0

pytestmark = pytest.mark.torch

Found = list[dict[str, Any]]


def train(ranks: Zygote, backend: str, **environment: str) -> Found:
    return ranks.run(
        "tests.shim.training_programs:run",
        WORLD,
        args=(backend,),
        environment=environment,
        rank_environment=places(GPUS),
        deadline_s=DEADLINE_S,
    )


@pytest.fixture(scope="module")
def runs(ranks: Zygote, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Found, dict[str, Any]]:
    """The same programs on plain gloo and through the controller, and the traffic witness's report."""
    fabric = generate_fabric(hosts=WORLD // GPUS, gpus_per_host=GPUS, delay_ms=2)
    with Controller(fabric, tmp_path_factory.mktemp("ways")) as controller:
        environment = controller.environment("ways")
        through_opus = train(ranks, "opus", OPUS_WORLD_GROUP="rail", **environment)
        report = controller.witness()
        assert controller.get("/jobs/ways")["state"] == "ended"
        assert controller.all("/locks") == []
    return train(ranks, "gloo"), through_opus, report


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_way_of_training_learns_what_it_learns_on_plain_gloo(
    runs: tuple[Found, Found, dict[str, Any]], name: str
) -> None:
    plain, through_opus, _ = runs
    for rank in range(WORLD):
        learned, asked = through_opus[rank][name]
        assert learned == plain[rank][name][0], rank
        assert len(set(learned["losses"])) > 1, "something was learned"
        assert asked > 0, "it was not bypassed"


def test_twenty_of_twenty_ddp_runs_end_with_status_0(ranks: Zygote) -> None:
    """By the interpreter's own shutdown, as scripts end; five at a time. Threads of gloo, of the shim and of
    autograd are there when it begins; a group that outlived them would end the process with SIGABRT."""
    wanted = None
    for batch in range(4):
        with SmallController(a_fabric(hosts=2, gpus=5)) as controller:
            launches = [
                ranks.launch(
                    "tests.shim.training_programs:ddp_as_a_script",
                    2,
                    args=("opus",),
                    environment={
                        "OPUS_CONTROLLER": controller.url,
                        "OPUS_JOB": f"job{number}",
                        "OPUS_DIMENSIONS": "dp=2",
                        "OPUS_GPU_SLOT": str(number),
                    },
                    rank_environment=lambda rank: {"OPUS_HOST": f"host{rank}"},
                    deadline_s=DEADLINE_S,
                    interpreter_exit=True,
                )
                for number in range(5)
            ]
            for launch in launches:
                learned = launch.values()  # raises for a status that is not 0
                wanted = wanted or learned
                assert learned == wanted, batch
                assert not any("terminate called" in outcome.log for outcome in launch.wait())


def test_no_circuit_was_missing_or_moved_under_an_operation(
    runs: tuple[Found, Found, dict[str, Any]],
) -> None:
    _, through_opus, report = runs
    assert (report["violations"], report["active"]) == ([], 0)
    assert report["operations"] == sum(asked for one in through_opus for _, asked in one.values())
