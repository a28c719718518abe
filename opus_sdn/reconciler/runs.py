"""Files of a run: `<runs_dir>/<job>/events.jsonl` for programs and `controller.log` for people.

A reader of the store like any other, a little behind it: nothing of this is on the way to a grant, and the
store is the only queue, however fast events come. A run's files hold the events of its job and those of the
device steps that it caused.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from opus_sdn.reconciler.feed import EventFeed
from opus_sdn.store.base import EventRecord, Store, StoreError

logger = logging.getLogger(__name__)

COLLECT_S = 0.2  # one reading of the store serves all events of this time
EVENTS_AT_ONCE = 1000
FILE_BYTES_MAX = 256 * 1024 * 1024  # per file; what comes after it is in the store only
MOMENTS = frozenset({"since", "retry_at"})  # in the data of events and reasons, in seconds since 1970
STEPS_KEPT = 4096  # device steps whose jobs are remembered until they end


class RunFiles:
    """Writes the files while `run` runs. `finish` writes what is left; call it before the store is closed."""

    def __init__(self, store: Store, feed: EventFeed, runs_dir: Path) -> None:
        self._store = store
        self._feed = feed
        self._dir = runs_dir
        self._seq = feed.newest
        self._step_jobs: OrderedDict[object, tuple[str, ...]] = OrderedDict()
        self._usable = True

    async def run(self) -> None:
        """Follow the store until cancelled or the feed ends."""
        while not self._feed.closed and self._usable:
            if await self._feed.newer_than(self._seq, timeout_s=3600):
                await asyncio.sleep(COLLECT_S)
                await asyncio.to_thread(self._catch_up)

    async def finish(self) -> None:
        """Write all that is stored."""
        await asyncio.to_thread(self._catch_up)

    def _catch_up(self) -> None:
        try:
            while self._usable and self._feed.newest > self._seq:
                events = self._store.events(self._seq, EVENTS_AT_ONCE)
                if not events:
                    return
                self._append(events)
                self._seq = events[-1].seq
        except (OSError, StoreError) as error:
            # The run goes on without its files; a full disk here must not become a stopped training job.
            self._usable = False
            logger.warning("run files end here", extra={"detail": str(error), "folder": str(self._dir)})

    def _append(self, events: Iterable[EventRecord]) -> None:
        by_job: dict[str, list[EventRecord]] = {}
        for event in events:
            for job in self._jobs_of(event):
                by_job.setdefault(job, []).append(event)
        for job, its in by_job.items():
            folder = self._dir / job
            folder.mkdir(parents=True, exist_ok=True)
            _append_to(folder / "events.jsonl", [_as_json(event) for event in its])
            _append_to(folder / "controller.log", [_as_text(event) for event in its])

    def _jobs_of(self, event: EventRecord) -> tuple[str, ...]:
        if event.job is not None:
            return (event.job,)
        step, causes = event.data.get("step"), event.data.get("causes")
        if step is None:
            return ()
        if isinstance(causes, list):
            self._step_jobs[step] = tuple(dict.fromkeys(str(cause).partition("/")[0] for cause in causes))
            while len(self._step_jobs) > STEPS_KEPT:
                self._step_jobs.popitem(last=False)
        return self._step_jobs.get(step, ())


def rfc3339(at: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC, to the microsecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def with_times(data: Mapping[str, object]) -> dict[str, object]:
    """The data of an event or a reason as people and programs outside get it: moments as RFC 3339."""
    return {name: _as_told(name, value) for name, value in data.items()}


def _as_told(name: str, value: object) -> object:
    if name in MOMENTS and isinstance(value, int | float):
        return rfc3339(value)
    return with_times(value) if isinstance(value, dict) else value


def _append_to(path: Path, lines: list[str]) -> None:
    with path.open("a", encoding="utf-8") as file:
        if file.tell() < FILE_BYTES_MAX:
            file.writelines(lines)


def _as_json(event: EventRecord) -> str:
    fields = {
        "seq": event.seq,
        "at": rfc3339(event.at),
        "kind": event.kind,
        "job": event.job,
        "incarnation": event.incarnation,
        "rail": event.rail,
        "switch": event.switch,
        "data": with_times(event.data),
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n"


def _as_text(event: EventRecord) -> str:
    at: dict[str, object] = {"incarnation": event.incarnation, "rail": event.rail, "switch": event.switch}
    named = at | with_times(event.data)
    words = [f"{name}={_word(value)}" for name, value in named.items() if value is not None]
    return " ".join((rfc3339(event.at), event.kind, *words)) + "\n"


def _word(value: object) -> str:
    """A value as one word: quoted when it has a space or a line end in it."""
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if any(c.isspace() for c in text) and isinstance(value, str) else text
