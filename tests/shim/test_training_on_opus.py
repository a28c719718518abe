"""Real ranks train and talk through a real controller: same results as plain gloo, to the last bit.

The emulated switch takes a little time for each change, and its traffic witness sees every operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.deadlock_cases import CASES
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.results import TrainResult
from opus_sdn.demo.shapes import PP4_DP2, PROTOTYPE8, Crash, Shape, TrainConfig, schedule_run
from opus_sdn.fabric_file import generate_fabric

SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBV")
DEADLINE_S = 120.0

pytestmark = pytest.mark.torch

StartController = Callable[..., Controller]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="module")
def eight_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller for runs of eight hosts with one GPU of two ports each; a change takes 2 ms."""
    fabric = generate_fabric(hosts=8, gpus_per_host=1, delay_ms=2)
    with Controller(fabric, tmp_path_factory.mktemp("eight-hosts")) as controller:
        yield controller


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartController]:
    """Start a controller for one test."""
    started: list[Controller] = []

    def start_one(**fabric: Any) -> Controller:
        started.append(Controller(generate_fabric(**fabric), tmp_path / f"controller{len(started)}"))
        return started[-1]

    yield start_one
    for controller in started:
        controller.stop()


def dimensions(shape: Shape) -> dict[str, str]:
    return {"OPUS_DIMENSIONS": ",".join(f"{name}={size}" for name, size in shape.dimensions)}


def train(
    zygote: Zygote, config: TrainConfig, backend: str, environment: Mapping[str, str]
) -> list[TrainResult]:
    return zygote.run(
        "opus_sdn.demo.train:run",
        config.shape.world_size,
        args=(config, backend),
        environment=environment,
        rank_environment=config.shape.environment,
        deadline_s=DEADLINE_S,
    )


def what_was_learned(results: list[TrainResult]) -> list[tuple[Any, ...]]:
    return [(one.losses, one.grad_norms, one.checksum) for one in results]


@pytest.mark.parametrize("reshard", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_learns_what_it_learns_on_plain_gloo(
    zygote: Zygote, eight_hosts: Controller, schedule: str, reshard: bool
) -> None:
    """C1 is among them (Interleaved1F1B, resharded), and the program that a barrier per phase hangs on."""
    config = schedule_run(schedule, reshard, steps=2)
    job = f"{schedule}-{reshard}".lower()
    before = eight_hosts.witness()["operations"]
    environment = eight_hosts.environment(job) | dimensions(PP4_DP2)
    through_opus = what_was_learned(train(zygote, config, "opus", environment))
    assert through_opus == what_was_learned(train(zygote, config, "gloo", {}))
    witness = eight_hosts.witness()
    assert witness["operations"] > before
    assert witness["violations"] == []
    view = eight_hosts.get(f"/jobs/{job}")
    assert view["state"] == "ended"
    assert view["topology_changes"] > 0
    assert not [lock for lock in eight_hosts.all("/locks") if lock["job"] == job]


def test_tensor_parallel_groups_inside_a_host_never_ask(zygote: Zygote, start: StartController) -> None:
    controller = start(hosts=4, gpus_per_host=2, delay_ms=5)
    config = TrainConfig(PROTOTYPE8, steps=2)
    environment = controller.environment("prototype") | dimensions(PROTOTYPE8)
    through_opus = what_was_learned(train(zygote, config, "opus", environment))
    assert through_opus == what_was_learned(train(zygote, config, "gloo", {}))
    connections = {c["id"]: c for c in controller.all("/connections", job="prototype")}
    events = controller.events("prototype")
    asked = {
        connections[e["data"]["connection"]]["dimension"] for e in events if e["kind"] == "intent.granted"
    }
    assert asked == {"pp", "dp"}
    ids = {e["data"]["new"] for e in events if e["kind"] == "topology.changed"}
    assert {"--", "00", "11"} <= ids
    assert ids <= {a + b for a in "01x-" for b in "01x-"}
    assert {e["rail"] for e in events if e["kind"] == "topology.changed"} == {"rail0", "rail1"}
    assert controller.witness()["violations"] == []


@pytest.mark.parametrize("name", CASES)
def test_a_program_that_careless_control_planes_deadlock_finishes(
    zygote: Zygote, start: StartController, name: str
) -> None:
    """One rank per host; one port per GPU where no ring of three needs two, so that every conflict is one."""
    case = CASES[name]
    ports = 2 if any(len(ranks) > 2 for ranks in case.groups.values()) else 1
    hosts = case.shape.world_size
    controller = start(hosts=hosts, gpus_per_host=1, ports_per_gpu=ports, delay_ms=2)
    got = zygote.run(
        "opus_sdn.demo.deadlock_programs:run",
        hosts,
        args=(name, "opus"),
        environment=controller.environment(name.lower()),
        rank_environment=case.shape.environment,
        deadline_s=60.0,
    )
    assert list(got) == list(case.expected)
    assert controller.witness()["violations"] == []


def test_two_ranks_on_one_host_wait_for_the_switch_once(zygote: Zygote, start: StartController) -> None:
    """The published demonstration: bits 1 -> 0, digits 0 -> 1; only the first all-reduce waits."""
    controller = start(hosts=1, gpus_per_host=2, rails=1, delay_ms=50)
    settings = {
        "OPUS_FORCE_DOMAIN": "scale-out",
        "OPUS_DIMENSIONS": "dp=2",
        "OPUS_INITIAL_TOPOLOGY": "0",
        "OPUS_HOST": "host0",
    }
    environment = controller.environment("two") | settings
    results = zygote.run("opus_sdn.demo.two_ranks:run", 2, args=("opus", 5), environment=environment)
    assert [one.values for one in results] == [(3.0, 6.0, 9.0, 12.0, 15.0)] * 2
    events = controller.events("two")
    assert [e["data"]["new"] for e in events if e["kind"] == "topology.changed"] == ["-", "0", "1"]
    waits = [e["data"]["exposed_wait_ms"] for e in events if e["kind"] == "intent.granted"]
    assert len(waits) == 5
    assert waits[0] >= 50.0
    view = controller.get("/jobs/two")
    assert (view["topology_changes"], view["device_steps"]) == (1, 1)
    assert controller.witness()["violations"] == []


def test_a_rank_killed_in_the_middle_of_a_step_is_named_to_all_and_the_job_starts_again(
    zygote: Zygote, start: StartController
) -> None:
    """Its launcher reports the death, as an agent does; the launcher's restart count says zero both times."""
    controller = start(hosts=4, gpus_per_host=2, delay_ms=2)
    killed = 3
    config = TrainConfig(PROTOTYPE8, steps=3)
    environment = (
        controller.environment("again") | dimensions(PROTOTYPE8) | {"TORCHELASTIC_RESTART_COUNT": "0"}
    )

    def report(rank: int, status: int) -> None:
        if status < 0:
            controller.report_death("again", rank, status)

    launch = zygote.launch(
        "opus_sdn.demo.train:run",
        PROTOTYPE8.world_size,
        args=(replace(config, crash=Crash(killed, step=1)), "opus"),
        environment=environment,
        rank_environment=PROTOTYPE8.environment,
        deadline_s=DEADLINE_S,
        on_exit=report,
    )
    outcomes = launch.wait()
    assert not any(one.hung for one in outcomes)
    survivors = [one for one in outcomes if one.rank != killed]
    # torch's pipelining wraps what a stage raises: the cause is in the chain.
    told = [re.findall(r"OpusJobFailed: (.*)", one.error.traceback) for one in survivors if one.error]
    assert len(told) == 7
    assert {text for texts in told for text in texts} == {
        f"rank-lost: rank {killed} died: killed by signal 9 (incarnation 1)"
    }, "one cause for all"

    old = {"incarnation": 1, "seen_start": 0, "ranks": [{"rank": 0, "last_grant": 0}], "wait_s": 0}
    assert what_was_learned(train(zygote, config, "opus", environment)) == what_was_learned(
        train(zygote, config, "gloo", {})
    )
    assert controller.get("/jobs/again")["incarnation"] == 2
    refused = controller.try_post("/jobs/again/arrivals", old)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:stale-incarnation")
    assert controller.witness()["violations"] == []
