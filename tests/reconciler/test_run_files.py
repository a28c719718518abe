"""The files of a run hold what the store holds of it, and never get in its way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from opus_sdn.intent.changes import Batch, EventAppended
from opus_sdn.reconciler import runs
from opus_sdn.reconciler.feed import EventFeed
from opus_sdn.reconciler.runs import RunFiles, rfc3339
from opus_sdn.store.memory import MemoryStore

AT = 1_700_000_000.25


def written(tmp_path: Path, *events: EventAppended) -> None:
    store, feed = MemoryStore(), EventFeed()
    files = RunFiles(store, feed, tmp_path)

    async def main() -> None:
        task = asyncio.create_task(files.run())
        feed.advance(store.submit(Batch(1, AT, events, durable=False)).result())
        feed.close()
        await task
        await files.finish()

    asyncio.run(main())


def test_each_job_gets_its_own_events_and_those_of_the_steps_that_it_caused(tmp_path: Path) -> None:
    written(
        tmp_path,
        EventAppended("job.started", "a", 1, data={"owner": "me"}),
        EventAppended("job.started", "b", 1),
        EventAppended("step.planned", switch="ocs0", data={"step": 1, "causes": ["a/1/ring#0"]}),
        EventAppended("step.done", switch="ocs0", data={"step": 1, "detail": None}),
        EventAppended("step.done", switch="ocs0", data={"step": 2}),
        EventAppended("intent.granted", "a", 1, data={"n": 0, "detail": "two words"}),
    )
    lines = [json.loads(line) for line in (tmp_path / "a" / "events.jsonl").read_text().splitlines()]
    assert [(line["seq"], line["kind"]) for line in lines] == [
        (1, "job.started"),
        (3, "step.planned"),
        (4, "step.done"),
        (6, "intent.granted"),
    ]
    assert lines[0] == {
        "seq": 1,
        "at": "2023-11-14T22:13:20.250000Z",
        "kind": "job.started",
        "job": "a",
        "incarnation": 1,
        "data": {"owner": "me"},
    }
    log = (tmp_path / "a" / "controller.log").read_text().splitlines()
    assert log[0] == "2023-11-14T22:13:20.250000Z job.started incarnation=1 owner=me"
    assert log[3].endswith('intent.granted incarnation=1 detail="two words" n=0')
    assert len((tmp_path / "b" / "events.jsonl").read_text().splitlines()) == 1


def test_a_file_stops_growing_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FILE_BYTES_MAX", 100)
    for _ in range(4):
        written(tmp_path, EventAppended("job.started", "a", 1, data={"owner": "x" * 40}))
    assert len((tmp_path / "a" / "events.jsonl").read_text().splitlines()) == 1


def test_a_folder_that_cannot_be_written_does_not_stop_the_controller(tmp_path: Path) -> None:
    in_the_way = tmp_path / "runs"
    in_the_way.write_text("a file where the folder should be")
    written(in_the_way, EventAppended("job.started", "a", 1))
    assert in_the_way.read_text() == "a file where the folder should be"


def test_times_are_rfc_3339_in_utc() -> None:
    assert rfc3339(AT) == "2023-11-14T22:13:20.250000Z"
    assert rfc3339(0) == "1970-01-01T00:00:00.000000Z"


def test_moments_in_the_data_of_an_event_are_told_as_times(tmp_path: Path) -> None:
    data = {"since": AT, "times": 3, "before": {"since": AT, "drained": True}, "retry_at": None}
    written(tmp_path, EventAppended("job.started", "a", 1, data=data))
    (line,) = (tmp_path / "a" / "events.jsonl").read_text().splitlines()
    told = "2023-11-14T22:13:20.250000Z"
    assert json.loads(line)["data"] == {
        "since": told,
        "times": 3,
        "before": {"since": told, "drained": True},
        "retry_at": None,
    }
