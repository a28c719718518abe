"""A job that may wait for its ports: rank 0 asks again until it runs, or gives up in time."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from opus_sdn.shim import enrolment
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.enrolment import Meeting, enrol
from opus_sdn.shim.errors import OpusInitError
from opus_sdn.shim.settings import from_environ
from tests.shim.scripted_server import ScriptedServer, answer

WAITS = json.dumps({"job": "j", "state": "queued", "reason": {"detail": "job other uses its ports"}}).encode()
RUNS = json.dumps({"job": "j", "incarnation": 4, "start": 7, "state": "running", "topology": {}}).encode()


class Dictionary:
    """Torch's store, for one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes:
        return self._values[key].encode()

    def add(self, key: str, amount: int) -> int:
        return amount

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        assert all(key in self._values for key in keys)


def enrolled(server: ScriptedServer, admission: str, timeout_s: float) -> enrolment.Enrolment:
    environ = {
        "OPUS_CONTROLLER": f"http://127.0.0.1:{server.port}",
        "OPUS_JOB": "j",
        "OPUS_HOST": "h0",
        "OPUS_GPU_SLOT": "0",
        "OPUS_OWNER": "ada",
        "OPUS_ADMISSION": admission,
    }
    settings = from_environ(environ)
    assert settings.controller is not None
    client = ControllerClient(settings.controller)
    timeout = timedelta(seconds=timeout_s)
    try:
        return enrol(Meeting(Dictionary(), 0, 1, timeout), 0, settings, client, timeout)
    finally:
        client.close()


def test_rank_0_asks_again_with_the_same_nonce_until_the_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "QUEUED_POLL_S", 0.001)
    with ScriptedServer(answer(WAITS, 202), answer(WAITS, 202), answer(RUNS, 201)) as server:
        assert enrolled(server, "queue", 100).incarnation == 4
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]
    assert [body["admission"] for body in bodies] == ["queue"] * 3
    assert len({body["nonce"] for body in bodies}) == 1


def test_a_job_that_waits_for_too_long_is_withdrawn_and_says_for_what() -> None:
    with ScriptedServer(answer(WAITS, 202), answer(WAITS, 202), answer(b"", 204)) as server:
        with pytest.raises(OpusInitError, match=r"still queued after 0\.009 s: job other uses its ports"):
            enrolled(server, "queue", 0.01)
        assert server.requests[-1].startswith(b"DELETE /api/v1/queue/j?by=ada ")


def test_without_asking_for_the_queue_nothing_is_said_of_it() -> None:
    with ScriptedServer(answer(RUNS, 201)) as server:
        enrolled(server, "refuse", 100)
    assert b"admission" not in server.requests[0], "controllers of an earlier version know no such field"
