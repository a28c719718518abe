"""A job that may wait for its ports: rank 0 asks again until it runs, or gives up in time."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

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
    """Torch's store, for the threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key].encode()

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(key in self._values for key in keys), timeout.total_seconds()
            ):
                raise TimeoutError


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


# --- the meeting


LATE = timedelta(seconds=30)
Life = dict[int, dict[str, Any]]


def meet(store: Dictionary, hosts: list[str], order: list[int]) -> tuple[list[Any], Life]:
    """One life: ranks come in this order, each when the one before waits; what rank 0 and others learn."""
    learned: Life = {}
    places: list[Any] = []

    def come(rank: int) -> None:
        meeting = Meeting(store, rank, len(hosts), LATE)
        meeting.present({"host": hosts[rank]})
        if rank == 0:
            places.extend(meeting.places())
            meeting.publish({"hosts": [place["host"] for place in places]})
        else:
            learned[rank] = meeting.result()

    threads = [threading.Thread(target=come, args=(rank,), daemon=True) for rank in order]
    for thread in threads:
        thread.start()
        thread.join(0.3)
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()
    return places, learned


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_a_second_life_over_the_same_store_learns_nothing_of_the_first(order: list[int]) -> None:
    """The launcher says nothing that would tell the lives apart."""
    store = Dictionary()
    for hosts in (["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]):
        places, learned = meet(store, hosts, order)
        assert [place["host"] for place in places] == hosts
        assert learned == {1: {"hosts": hosts}, 2: {"hosts": hosts}}


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_died_while_it_enrolled_leaves_nothing_that_counts(dead: int) -> None:
    store = Dictionary()
    Meeting(store, dead, 2, LATE).present({"host": "of the dead"})
    places, learned = meet(store, ["a", "b"], [1 - dead, dead])
    assert [place["host"] for place in places] == ["a", "b"]
    assert learned == {1: {"hosts": ["a", "b"]}}


def test_whoever_does_not_come_is_missed_in_time() -> None:
    for rank in (0, 1):
        meeting = Meeting(Dictionary(), rank, 2, timedelta(seconds=0.3))
        meeting.present({"host": "a"})
        with pytest.raises(OpusInitError, match="start all 2 ranks"):
            meeting.places() if rank == 0 else meeting.result()
