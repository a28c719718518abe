"""The agent as a process, between a real controller and real ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.runs import dimensions
from opus_sdn.demo.shapes import PROTOTYPE8, Crash, TrainConfig
from opus_sdn.fabric_file import generate_fabric
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import ControllerError, ControllerUnavailableError
from opus_sdn.shim.settings import Address
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

CONFIG = TrainConfig(PROTOTYPE8, steps=3, microbatches=2)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    fabric = generate_fabric(hosts=4, gpus_per_host=2, delay_ms=5)
    with Controller(fabric, tmp_path_factory.mktemp("controller")) as started:
        yield started


def program(path: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "opus_sdn.cli", "agent", "--socket", str(path), *more]


@contextmanager
def agent(path: Path, controller: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        program(path),
        env=os.environ | {"OPUS_CONTROLLER": controller, "OPUS_HOST": "host0"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert "ready on" in process.stderr.readline()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def client(path: Path, url: str) -> ControllerClient:
    return ControllerClient(Address(False, "127.0.0.1", int(url.rpartition(":")[2])), agent=path)


def counts(path: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(path))
        link.sendall(b"GET /agent HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")
        found: dict[str, Any] = json.loads(link.makefile("rb").read().partition(b"\r\n\r\n")[2])
        return found


def train(zygote: Zygote, controller: Controller, job: str, config: TrainConfig, path: Path | None) -> Any:
    environment = controller.environment(job) | {"OPUS_DIMENSIONS": dimensions(config.shape)}
    return zygote.launch(
        "opus_sdn.demo.train:run",
        8,
        args=(config, "opus"),
        environment=environment | ({"OPUS_AGENT": str(path)} if path is not None else {}),
        rank_environment=config.shape.environment,
        deadline_s=180.0,
    )


def test_a_training_through_the_agent_is_the_same_in_fewer_requests(
    zygote: Zygote, controller: Controller, tmp_path: Path
) -> None:
    alone = train(zygote, controller, "alone", CONFIG, None).values()
    path = tmp_path / "agent.sock"
    with agent(path, controller.url):
        through = train(zygote, controller, "through", CONFIG, path).values()
        seen = counts(path)
    assert [result.checksum for result in through] == [result.checksum for result in alone]
    assert controller.get("/jobs/through")["state"] == "ended"  # every rank's farewell has come through
    assert controller.witness()["violations"] == []
    assert seen["received"] > 100
    assert seen["sent"] < seen["received"]
    assert (seen["deaths_told"], seen["processes"]) == (0, 0)  # all left in order
    assert not path.exists()


def test_the_agent_tells_of_a_killed_rank_and_all_others_get_its_name(
    zygote: Zygote, controller: Controller, tmp_path: Path
) -> None:
    path = tmp_path / "agent.sock"
    config = TrainConfig(PROTOTYPE8, steps=3, microbatches=2, crash=Crash(rank=5, step=1))
    with agent(path, controller.url):
        outcomes = train(zygote, controller, "killed", config, path).wait()
        assert outcomes[5].status == -signal.SIGKILL, "\n".join(map(str, outcomes))
        wait_until(lambda: counts(path)["deaths_told"] >= 1, "the death is told")
    failure = controller.get("/jobs/killed")["failure"]
    assert (failure["type"].rpartition(":")[2], failure["rank"]) == ("rank-lost", 5)
    assert "ended on host0 without leaving: process" in failure["detail"]
    assert all(not outcome.ok for outcome in outcomes)


def test_what_is_no_news_is_passed_on_as_it_is(controller: Controller, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with agent(path, controller.url):
        through = client(path, controller.url)
        assert through.request("GET", "/livez") == {"alive": True}
        with pytest.raises(ControllerError) as refused:
            through.request("GET", "/api/v1/jobs/nobody")
        assert (refused.value.problem, refused.value.status) == ("unknown-job", 404)
        elsewhere = ControllerClient(Address(False, "10.1.1.1", 8700), agent=path)
        with pytest.raises(ControllerError, match=r"does not speak to '10\.1\.1\.1:8700'"):
            elsewhere.request("GET", "/livez")


def test_without_agent_or_controller_a_rank_is_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with pytest.raises(ControllerUnavailableError):
        client(path, "http://127.0.0.1:9").request("GET", "/livez")
    with agent(path, "http://127.0.0.1:9"), pytest.raises(ControllerUnavailableError):
        client(path, "http://127.0.0.1:9").request("GET", "/livez")


def test_only_the_user_may_speak_to_it_and_only_one_serves_a_socket(
    controller: Controller, tmp_path: Path
) -> None:
    path = tmp_path / "agent.sock"
    with agent(path, controller.url) as first:
        assert path.stat().st_mode & 0o777 == 0o600
        second = subprocess.run(
            program(path),
            env=os.environ | {"OPUS_CONTROLLER": controller.url},
            capture_output=True,
            text=True,
        )
        assert (second.returncode, "another agent answers there" in second.stderr) == (1, True)
        first.kill()
        first.wait()
    with agent(path, controller.url):  # the socket of one that was killed is taken over
        assert counts(path)["received"] == 0


def test_a_place_that_cannot_be_is_refused() -> None:
    for where, says in (
        ("/" + "x" * 120, "at most 107 bytes"),
        ("/proc/x/agent.sock", "/proc/x/agent.sock: "),
    ):
        ran = subprocess.run(
            program(Path(where)),
            env=os.environ | {"OPUS_CONTROLLER": "http://127.0.0.1:9"},
            capture_output=True,
            text=True,
        )
        assert (ran.returncode != 0, says in ran.stderr) == (True, True), ran.stderr
