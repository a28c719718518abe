"""The in-memory twin of the SQL store: the same promises but for the disk, and nothing waits.

It is written apart from the SQL store, table by table in dictionaries, so that running both side by side
finds the mistakes of either.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice, takewhile
from typing import TypeVar

from opus_sdn.intent.changes import (
    Batch,
    Change,
    CircuitsObserved,
    CircuitsOwned,
    DirectiveGiven,
    DirectiveKind,
    DirectiveWithdrawn,
    EventAppended,
    GroupChecked,
    IntentMoved,
    IntentState,
    JobLetGo,
    JobSettled,
    JobStarted,
    JobState,
    LocksReleased,
    RankLeft,
    RunCut,
    RunGranted,
    StepMoved,
    StepPlanned,
    StepState,
)
from opus_sdn.intent.model import Stream
from opus_sdn.store import codec, rules
from opus_sdn.store.base import (
    EventRecord,
    GroupRecord,
    IntentRecord,
    JobRecord,
    LeftRecord,
    LockRecord,
    MarkRecord,
    NobodyKnows,
    OwnerRecord,
    Snapshot,
    StepRecord,
    StoreError,
    SwitchRecord,
    UnderWay,
)
from opus_sdn.store.rules import Retention

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class MemoryStore:
    """Implements `Store` for tests and simulations. What it holds ends with it; futures are done at once."""

    def __init__(self, *, retention: Retention | None = None) -> None:
        self._guard = threading.Lock()
        self._closed = False
        self._refusal: StoreError | None = None
        self._retention = retention or Retention()
        self._start = 0
        self._began_clean = False
        self._incarnation_floor = 0
        self._fabric: str | None = None
        self._fabric_generation = 0
        self._last_step = 0
        self._last_event = 0
        self._jobs: dict[str, JobRecord] = {}
        self._ended_at: dict[str, float] = {}
        self._groups: dict[tuple[str, str], GroupRecord] = {}
        self._left: dict[tuple[str, int], LeftRecord] = {}
        self._locks: dict[tuple[str, Stream, int, int], LockRecord] = {}
        self._granted: dict[tuple[str, Stream], int] = {}
        self._released: dict[tuple[str, Stream, int], int] = {}
        self._owners: dict[tuple[str, str], OwnerRecord] = {}
        self._intents: dict[tuple[str, Stream, int], IntentRecord] = {}
        self._directives: dict[tuple[DirectiveKind, str], DirectiveGiven] = {}
        self._steps: dict[int, StepRecord] = {}
        self._switches: dict[str, SwitchRecord] = {}
        self._events: deque[EventRecord] = deque()
        self._undo: list[Callable[[], object]] = []
        self._now = 0.0
        self._look_for_old_at = 0.0

    def raise_start(self) -> int:
        """Count one more start of the controller."""
        with self._guard:
            self._must_be_usable()
            self._began_clean = self._start == 0  # nothing was there before
            self._start += 1
            return self._start

    def put_fabric(
        self,
        document: str,
        ports: tuple[tuple[str, str, str, int], ...],
        rails: tuple[tuple[str, str], ...],
    ) -> int:
        """Store the fabric; its generation, which rises only when the document differs."""
        rules.check_fabric_rows(ports, rails)
        with self._guard:
            self._must_be_usable()
            if document != self._fabric:
                self._fabric = document
                self._fabric_generation += 1
            return self._fabric_generation

    def submit(self, batch: Batch) -> Future[int]:
        """Apply a batch at once: all of it, or nothing, and then no later one either."""
        done: Future[int] = Future()
        with self._guard:
            if self._refusal is None:
                self._refusal = self._apply(batch)
            if self._refusal is None:
                done.set_result(self._last_event)
            else:
                done.set_exception(self._refusal)
        return done

    def under_way(self, start: int, unsettled: Iterable[int]) -> UnderWay:
        """Nothing: what is in memory has no start after this one."""
        return NobodyKnows()

    def has_room(self) -> bool:
        """Always: nothing waits."""
        return True

    def fault(self) -> str | None:
        """Never anything."""
        return None

    def snapshot(self) -> Snapshot:
        """Everything current."""
        with self._guard:
            self._must_be_open()
            return Snapshot(
                start=self._start,
                fabric=self._fabric,
                fabric_generation=self._fabric_generation,
                jobs=tuple(self._jobs[job] for job in sorted(self._jobs)),
                groups=tuple(self._groups[key] for key in sorted(self._groups)),
                left=tuple(self._left[key] for key in sorted(self._left)),
                locks=tuple(sorted(self._locks.values(), key=_lock_order)),
                marks=self._mark_records(),
                intents=tuple(sorted(self._intents.values(), key=_intent_order)),
                steps=tuple(self._steps[step] for step in sorted(self._steps)),
                switches=tuple(self._switches[switch] for switch in sorted(self._switches)),
                last_step=self._last_step,
                last_event=self._last_event,
                clean=self._began_clean,
                incarnation_floor=self._incarnation_floor,
                owners=tuple(self._owners[key] for key in sorted(self._owners)),
                directives=tuple(sorted(self._directives.values(), key=lambda given: given.number)),
            )

    def events(
        self, since: int, limit: int, job: str | None = None, kind: str | None = None
    ) -> list[EventRecord]:
        """Events with seq > since, oldest first. ValueError for a limit above 1000."""
        rules.check_events_limit(limit)
        with self._guard:
            self._must_be_open()
            found = (
                event
                for event in self._events
                if event.seq > since
                and (job is None or event.job == job)
                and (kind is None or f"{event.kind}.".startswith(f"{kind}."))
            )
            return list(islice(found, limit))

    def close(self, *, clean: bool = True) -> None:
        """Later calls fail."""
        with self._guard:
            self._closed = True
            self._refusal = StoreError("the in-memory store is closed")

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreError("the in-memory store is closed")

    def _must_be_usable(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _apply(self, batch: Batch) -> StoreError | None:
        last_step, last_event = self._last_step, self._last_event
        self._undo.clear()
        try:
            for change in batch.changes:
                self._change(change, batch.at)
        except StoreError as failed:
            for undo in reversed(self._undo):
                undo()
            self._last_step, self._last_event = last_step, last_event
            return StoreError(f"batch {batch.id} not written: {failed}; nothing is written any more")
        self._now = max(self._now, batch.at)
        if self._last_event != last_event:
            self._trim_events()
        return None

    def _trim_events(self) -> None:
        drop = rules.events_to_drop(len(self._events), self._retention.events_max)
        if self._events and self._now >= self._look_for_old_at:
            self._look_for_old_at = self._now + rules.LOOK_FOR_OLD_EVERY_S
            oldest_kept = self._now - self._retention.events_age_s
            old = sum(1 for _ in takewhile(lambda event: event.at < oldest_kept, self._events))
            drop = max(drop, rules.old_events_to_drop(min(old, len(self._events) - 1)))
        for _ in range(drop):
            self._events.popleft()

    def _trim_jobs(self) -> None:
        drop = rules.jobs_to_drop(len(self._ended_at), self._retention.jobs_max)
        floor = self._incarnation_floor
        self._undo.append(lambda: setattr(self, "_incarnation_floor", floor))
        for job in sorted(self._ended_at, key=lambda name: self._ended_at[name])[:drop]:
            self._incarnation_floor = max(self._incarnation_floor, self._jobs[job].incarnation)
            self._drop(self._jobs, job)
            self._drop(self._ended_at, job)

    def _put(self, table: dict[K, V], key: K, value: V) -> None:
        if key in table:
            before = table[key]
            self._undo.append(lambda: table.update({key: before}))
        else:
            self._undo.append(lambda: table.pop(key))
        table[key] = value

    def _drop(self, table: dict[K, V], key: K) -> None:
        if key in table:
            before = table.pop(key)
            self._undo.append(lambda: table.update({key: before}))

    def _change(self, change: Change, at: float) -> None:
        match change:
            case StepPlanned() | StepMoved() | CircuitsObserved():
                self._change_of_switch(change)
            case RunGranted() | RunCut() | LocksReleased():
                self._change_of_run(change)
            case CircuitsOwned():
                self._circuits_owned(change)
            case EventAppended():
                self._event_appended(change, at if change.at is None else change.at)
            case IntentMoved():
                self._intent_moved(change)
            case GroupChecked():
                self._group_checked(change)
            case RankLeft():
                self._rank_left(change)
            case DirectiveGiven() | DirectiveWithdrawn():
                self._directive(change)
            case JobStarted():
                self._job_started(change, at)
            case JobSettled() | JobLetGo():
                self._job_settled(change, at)

    def _change_of_run(self, change: RunGranted | RunCut | LocksReleased) -> None:
        match change:
            case RunGranted():
                self._run_granted(change)
            case RunCut():
                self._run_cut(change)
            case LocksReleased():
                self._locks_released(change)

    def _change_of_switch(self, change: StepPlanned | StepMoved | CircuitsObserved) -> None:
        match change:
            case StepPlanned():
                self._step_planned(change)
            case StepMoved():
                self._step_moved(change)
            case CircuitsObserved():
                matching, foreign = (tuple(sorted(set(pairs))) for pairs in (change.matching, change.foreign))
                seen = SwitchRecord(change.switch, change.generation, matching, foreign)
                self._put(self._switches, change.switch, seen)

    def _directive(self, change: DirectiveGiven | DirectiveWithdrawn) -> None:
        if isinstance(change, DirectiveWithdrawn):
            self._drop(self._directives, (change.kind, change.name))
            return
        what = f"data of {change.kind} {change.name!r}"
        given = replace(change, data=codec.data_from_json(codec.to_json(change.data, what), what))
        self._put(self._directives, (change.kind, change.name), given)

    def _circuits_owned(self, change: CircuitsOwned) -> None:
        if self._may_act(change):
            for circuit in change.circuits:
                owner = OwnerRecord(change.job, change.incarnation, circuit, change.digit)
                self._put(self._owners, (change.job, circuit), owner)

    def _may_act(
        self, change: RunCut | LocksReleased | CircuitsOwned | IntentMoved | JobSettled | RankLeft | JobLetGo
    ) -> bool:
        return rules.may_act(self._newest(change.job), change.job, change.incarnation)

    def _newest(self, job: str) -> int:
        return self._jobs[job].incarnation if job in self._jobs else 0

    def _run_granted(self, change: RunGranted) -> None:
        rules.must_act(self._newest(change.job), change.job, change.incarnation)
        job, incarnation, stream, n, length = (
            change.job,
            change.incarnation,
            change.stream,
            change.n,
            change.length,
        )
        for rank, no in change.locks:
            if (job, stream, n, rank) in self._locks:
                raise rules.granted_twice(stream, n, rank)
            lock = LockRecord(job, incarnation, stream, rank, n, length, no, change.granted_at)
            self._put(self._locks, (job, stream, n, rank), lock)
        granted = max(n + length, self._granted.get((job, stream), 0))
        self._put(self._granted, (job, stream), granted)
        intent = IntentRecord(
            job, incarnation, stream, n, length, IntentState.GRANTED, change.complete_at, change.granted_at
        )
        self._put(self._intents, (job, stream, n), intent)

    def _run_cut(self, change: RunCut) -> None:
        if not self._may_act(change):
            return
        run = (change.job, change.stream, change.n)
        for key in [key for key in self._locks if key[:3] == run]:
            self._put(self._locks, key, replace(self._locks[key], length=change.length))
        if run in self._intents:
            self._put(self._intents, run, replace(self._intents[run], length=change.length))
        self._put(self._granted, run[:2], change.n + change.length)

    def _locks_released(self, change: LocksReleased) -> None:
        if not self._may_act(change):
            return
        for rank in change.ranks:
            self._drop(self._locks, (change.job, change.stream, change.n, rank))
            key = (change.job, change.stream, rank)
            self._put(self._released, key, max(change.n + change.length, self._released.get(key, 0)))

    def _intent_moved(self, change: IntentMoved) -> None:
        if self._may_act(change) and change.state in {IntentState.RELEASED, IntentState.FAILED}:
            self._drop(self._intents, (change.job, change.stream, change.n))

    def _event_appended(self, change: EventAppended, at: float) -> None:
        what = f"data of event {change.kind!r}"
        self._last_event += 1
        event = EventRecord(
            seq=self._last_event,
            at=at,
            kind=change.kind,
            job=change.job,
            incarnation=change.incarnation,
            rail=change.rail,
            switch=change.switch,
            data=codec.data_from_json(codec.to_json(change.data, what), what),
        )
        self._events.append(event)
        self._undo.append(self._events.pop)

    def _group_checked(self, change: GroupChecked) -> None:
        rules.must_act(self._newest(change.job), change.job, change.incarnation)
        group = GroupRecord(
            job=change.job,
            incarnation=change.incarnation,
            group=change.group,
            ranks=change.ranks,
            dimension=change.dimension,
            ordinal=change.ordinal,
            domain=change.domain,
        )
        self._put(self._groups, (change.job, change.group), group)

    def _job_started(self, change: JobStarted, at: float) -> None:
        rules.must_be_newer(self._newest(change.job), change.job, change.incarnation)
        self._forget_work(change.job)
        started = JobRecord(change.job, change.incarnation, change.spec, JobState.RUNNING, None, None, at)
        self._put(self._jobs, change.job, started)
        self._drop(self._ended_at, change.job)

    def _rank_left(self, change: RankLeft) -> None:
        if self._may_act(change) and change.job not in self._ended_at:
            left = LeftRecord(change.job, change.incarnation, change.rank)
            self._put(self._left, (change.job, change.rank), left)

    def _job_settled(self, change: JobSettled | JobLetGo, at: float) -> None:
        if not self._may_act(change):
            return
        if isinstance(change, JobLetGo):
            self._over(change.job)
            return
        what = f"data of job {change.job!r}"
        settled = replace(
            self._jobs[change.job],
            state=change.state,
            cause=change.cause,
            detail=codec.text(change.detail),
            rank=change.rank,
            data=codec.data_from_json(codec.to_json(change.data, what), what),
            settled_at=at,
            over=False,
        )
        self._put(self._jobs, change.job, settled)
        self._drop(self._ended_at, change.job)
        if change.state is JobState.ENDED:
            self._over(change.job)

    def _over(self, job: str) -> None:
        self._forget_work(job)
        over = replace(self._jobs[job], over=True)
        self._put(self._jobs, job, over)
        self._put(self._ended_at, job, over.settled_at or 0.0)
        self._trim_jobs()

    def _forget_work(self, job: str) -> None:
        self._drop_all(self._groups, [key for key in self._groups if key[0] == job])
        self._drop_all(self._left, [key for key in self._left if key[0] == job])
        self._drop_all(self._locks, [key for key in self._locks if key[0] == job])
        self._drop_all(self._granted, [key for key in self._granted if key[0] == job])
        self._drop_all(self._released, [key for key in self._released if key[0] == job])
        self._drop_all(self._owners, [key for key in self._owners if key[0] == job])
        self._drop_all(self._intents, [key for key in self._intents if key[0] == job])

    def _drop_all(self, table: dict[K, V], keys: list[K]) -> None:
        for key in keys:
            self._drop(table, key)

    def _step_planned(self, change: StepPlanned) -> None:
        rules.step_must_be_newer(self._last_step, change.step)
        self._last_step = change.step
        step = StepRecord(
            step=change.step,
            switch=change.switch,
            generation=change.generation,
            remove=change.remove,
            add=change.add,
            causes=change.causes,
            disturbed=change.disturbed,
            state=StepState.PLANNED,
            detail=None,
        )
        self._put(self._steps, change.step, step)

    def _step_moved(self, change: StepMoved) -> None:
        if change.step not in self._steps:
            raise rules.unknown_step(change.step, change.switch)
        if change.state in {StepState.PLANNED, StepState.STARTED}:
            moved = replace(self._steps[change.step], state=change.state, detail=codec.text(change.detail))
            self._put(self._steps, change.step, moved)
        else:
            self._drop(self._steps, change.step)

    def _mark_records(self) -> tuple[MarkRecord, ...]:
        released: dict[tuple[str, Stream], list[tuple[int, int]]] = {}
        for (job, stream, rank), mark in self._released.items():
            released.setdefault((job, stream), []).append((rank, mark))
        return tuple(
            MarkRecord(
                job=job,
                incarnation=self._jobs[job].incarnation,
                stream=stream,
                granted=self._granted.get((job, stream), 0),
                released=tuple(sorted(released.get((job, stream), ()))),
            )
            for job, stream in sorted(self._granted.keys() | released.keys(), key=_stream_order)
        )


def _stream_order(key: tuple[str, Stream]) -> tuple[str, str, int, int]:
    return (key[0], *codec.stream_key(key[1]))


def _lock_order(lock: LockRecord) -> tuple[str, str, int, int, int, int]:
    return (*_stream_order((lock.job, lock.stream)), lock.n, lock.rank)


def _intent_order(intent: IntentRecord) -> tuple[str, str, int, int, int]:
    return (*_stream_order((intent.job, intent.stream)), intent.n)
