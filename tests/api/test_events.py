"""Reading the history: in pages, by waiting, and as a stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from opus_sdn.api.routes import events
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.rules import Retention
from tests.api.world import PATIENCE_S, PREFIX, Controller, controller, fabric, wait_until


def test_pages_follow_one_another_without_gap_or_repetition(opus: Controller) -> None:
    for nonce in range(2, 8):
        opus.declare(nonce=str(nonce))
    whole = opus.get("/events", limit=500)
    seen: list[int] = []
    since: int | None = None
    while True:
        page = opus.get("/events", limit=3, **({} if since is None else {"since": since}))
        if not page["events"]:
            break
        seen += [event["seq"] for event in page["events"]]
        since = page["newest"]
    assert seen == [event["seq"] for event in whole["events"]] == list(range(1, whole["newest"] + 1))


def test_events_can_be_asked_for_by_job_and_kind(opus: Controller) -> None:
    opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    opus.declare("k")
    kinds = {event["kind"] for event in opus.get("/events", kind="job")["events"]}
    assert kinds == {"job.started", "job.ended"}
    assert [e["job"] for e in opus.get("/events", kind="job.started")["events"]] == ["j", "k"]
    assert {e["job"] for e in opus.get("/events", job="k")["events"]} == {"k"}


def test_a_waiting_reader_is_answered_by_the_next_event_that_it_asked_for(opus: Controller) -> None:
    newest = opus.get("/events", limit=500)["newest"]
    waiting = opus.later(opus.get, "/events", since=newest, wait_s=60, job="k")
    opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    assert not waiting.done(), "an event of another job"
    opus.declare("k")
    answer = waiting.result()
    assert answer["events"][0]["kind"] == "job.started"
    assert answer["newest"] > newest


def test_a_reader_whose_wait_is_over_gets_an_empty_answer_to_go_on_from(opus: Controller) -> None:
    newest = opus.get("/events", limit=500)["newest"]
    for wait_s in (0, 0.05):
        assert opus.get("/events", since=newest, wait_s=wait_s) == {"events": [], "newest": newest}


def test_what_is_compacted_is_gone_and_the_reader_is_told_where_to_go_on(tmp_path: Path) -> None:
    with controller(
        tmp_path, declared=fabric(), store=MemoryStore(retention=Retention(events_max=10))
    ) as opus:
        for nonce in range(20):
            opus.declare(nonce=str(nonce))
        gone = opus.http.get(f"{PREFIX}/events", params={"since": 1})
        assert (gone.status_code, gone.json()["type"]) == (410, "urn:opus-sdn:problem:events-compacted")
        oldest, newest = gone.json()["oldest"], gone.json()["newest"]
        assert opus.get("/events", since=newest)["events"] == []
        assert opus.get("/events", since=oldest - 1)["events"][0]["seq"] == oldest
        assert opus.get("/events")["events"][0]["seq"] == oldest
        stream = opus.http.get(
            f"{PREFIX}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": "1"}
        )
        assert stream.status_code == 410


def test_a_number_of_the_future_is_of_another_history(opus: Controller) -> None:
    ahead = opus.http.get(f"{PREFIX}/events", params={"since": 10_000})
    assert (ahead.status_code, ahead.json()["type"]) == (410, "urn:opus-sdn:problem:events-compacted")


class Stream:
    """A reader of server-sent events in a thread, until `enough` of the newest one."""

    def __init__(self, opus: Controller, enough: Callable[[dict[str, Any]], bool], **headers: str) -> None:
        self.ids: list[int] = []
        self.events: list[dict[str, Any]] = []
        self._enough = enough
        self._client = httpx.Client(base_url=opus.address.url, trust_env=False, timeout=90)
        self._headers = {"Accept": "text/event-stream", **headers}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._client.stream("GET", f"{PREFIX}/events", headers=self._headers) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            for message in _messages(response.iter_lines()):
                event = json.loads(message["data"])
                assert event["kind"] == message["event"]
                self.ids.append(int(message["id"]))
                self.events.append(event)
                if self._enough(event):
                    return

    def join(self) -> None:
        """Wait until it has enough, or the stream has ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._client.close()


def _messages(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


def test_a_stream_brings_what_was_and_what_comes_and_resumes_where_it_broke(opus: Controller) -> None:
    def starts(incarnation: int) -> Callable[[dict[str, Any]], bool]:
        return lambda event: (event["kind"], event["incarnation"]) == ("job.started", incarnation)

    stream = Stream(opus, starts(2))
    wait_until(lambda: len(stream.events) >= 3, "the history so far")
    before = len(stream.events)
    opus.declare(nonce="2")
    stream.join()
    assert len(stream.events) > before
    last = stream.ids[-1]
    assert stream.ids == [event["seq"] for event in stream.events] == list(range(1, last + 1))

    resumed = Stream(opus, starts(3), **{"Last-Event-ID": str(last)})
    opus.declare(nonce="3")
    resumed.join()
    assert resumed.ids == list(range(last + 1, resumed.ids[-1] + 1))


def test_a_stream_ends_when_the_controller_stops(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric()) as opus:
        stream = Stream(opus, lambda _: False)
        wait_until(lambda: stream.events, "it runs")
    stream.join()


def test_no_more_streams_are_opened_than_the_controller_can_serve(
    opus: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STREAMS_MAX", 1)
    stream = Stream(opus, lambda event: event["kind"] == "job.ended")
    wait_until(lambda: stream.events, "one is open")
    refused = opus.http.get(f"{PREFIX}/events", headers={"Accept": "text/event-stream"})
    assert (refused.status_code, refused.json()["type"]) == (503, "urn:opus-sdn:problem:not-ready")
    opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    stream.join()

    def free() -> bool:
        again = Stream(opus, lambda _: True)
        again.join()
        return bool(again.events)

    wait_until(free, "its place is free again")


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "٣"])
def test_a_resume_number_that_is_none_is_refused(opus: Controller, value: str) -> None:
    headers = {b"Accept": b"text/event-stream", b"Last-Event-ID": value.encode()}
    refused = opus.http.get(f"{PREFIX}/events", headers=headers)
    assert refused.status_code == 422
    assert "Last-Event-ID" in refused.json()["detail"]
