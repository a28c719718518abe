"""The in-memory store, SQLite and PostgreSQL answer the same to whatever comes, step by step.

Hypothesis chooses the steps: histories as the core writes them, contradictions, stops and starts. After each
one all stores hold the same, or have refused the same.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from opus_sdn.intent.changes import (
    Batch,
    Change,
    CircuitsObserved,
    CircuitsOwned,
    EventAppended,
    IntentMoved,
    IntentState,
    JobState,
    RankLeft,
    RunCut,
    StepMoved,
    StepState,
)
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Stream
from opus_sdn.store.base import Snapshot, Store, StoreError
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.rules import DAY_S, Retention
from opus_sdn.store.sql import SqlStore
from tests.postgres import PostgresServer
from tests.store.world import BACK, FORTH, RING, checked, granted, planned, released, settled, spec, started

SCALE = float(os.environ.get("OPUS_TEST_SCALE", "1"))
JOBS = st.sampled_from(["llama", "gpt", "mo\u00eb"])
STREAMS = st.sampled_from([RING, FORTH, BACK])
# Small, so that what is kept is left behind all the time.
RETENTION = Retention(events_max=12, events_age_s=DAY_S, jobs_max=1, steps_max=10_000)


class Stores(RuleBasedStateMachine):
    """Three stores side by side; `make` gives the addresses of two fresh databases."""

    make: Iterator[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.urls = next(self.make)
        self.twin = MemoryStore(retention=RETENTION)
        self.stores: list[SqlStore] = [SqlStore(url, retention=RETENTION) for url in self.urls]
        self.accepted: list[Batch | str] = []
        self.now = 1e9
        self.numbers = itertools.count(1)
        self.jobs: dict[str, int] = {}
        self.settled: set[str] = set()
        self.held: dict[tuple[str, Stream, int], int] = {}
        self.next_n: dict[tuple[str, Stream], int] = {}
        self.steps: dict[int, StepState] = {}

    def teardown(self) -> None:
        for store in self.stores:
            store.close()

    # --- what the core writes

    @rule(job=JOBS, skip=st.integers(1, 2))
    def start_job(self, job: str, skip: int) -> None:
        floor = self.twin.snapshot().incarnation_floor
        incarnation = self.jobs.get(job, floor) + skip
        self.jobs[job] = incarnation
        self.settled.discard(job)
        self._forget(job)
        self._all(started(job, incarnation), EventAppended("job.started", job, incarnation))

    @rule(job=JOBS, ended=st.booleans(), detail=st.text(max_size=5))
    def settle_job(self, job: str, ended: bool, detail: str) -> None:
        if job not in self.jobs:
            return
        state = JobState.ENDED if ended else JobState.FAILED
        change = replace(settled(state, job, self.jobs[job], "aborted"), detail=detail)
        if ended:
            self.settled.add(job)
            self._forget(job)
        self._all(change)
        kept = {each.job for each in self.twin.snapshot().jobs}
        self.jobs = {name: incarnation for name, incarnation in self.jobs.items() if name in kept}

    @rule(job=JOBS, stream=STREAMS, length=st.integers(1, 3))
    def grant(self, job: str, stream: Stream, length: int) -> None:
        if job not in self.jobs or job in self.settled:
            return
        n = self.next_n.get((job, stream), 0)
        self.next_n[job, stream] = n + length
        self.held[job, stream, n] = length
        run = granted(stream, n, length, ((0, n + 1), (1, n + 1)), job, self.jobs[job])
        self._all(run, EventAppended("intent.granted", job, self.jobs[job], data={"n": n}))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), stale=st.booleans())
    def cut(self, data: st.DataObject, stale: bool) -> None:
        job, stream, n = data.draw(st.sampled_from(sorted(self.held, key=str)))
        length = data.draw(st.integers(1, self.held[job, stream, n]))
        incarnation = self.jobs[job] - int(stale and self.jobs[job] > 1)
        newest = n + self.held[job, stream, n] == self.next_n[job, stream]
        if newest and incarnation == self.jobs[job]:
            self.held[job, stream, n] = length
            self.next_n[job, stream] = n + length
        if newest or incarnation != self.jobs[job]:
            self._all(RunCut(job, incarnation, stream, n, length))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ranks=st.sampled_from([(0,), (1,), (0, 1)]), stale=st.booleans())
    def release(self, data: st.DataObject, ranks: tuple[int, ...], stale: bool) -> None:
        job, stream, n = data.draw(st.sampled_from(sorted(self.held, key=str)))
        incarnation = self.jobs[job] - int(stale and self.jobs[job] > 1)
        changes: list[Change] = [released(ranks, stream, n, self.held[job, stream, n], job, incarnation)]
        if ranks == (0, 1) and incarnation == self.jobs[job]:
            del self.held[job, stream, n]
            changes.append(IntentMoved(job, incarnation, stream, n, IntentState.RELEASED))
        self._all(*changes)

    @rule(job=JOBS, group=st.sampled_from(["dp0", "pp1"]))
    def check_in(self, job: str, group: str) -> None:
        if job in self.jobs:
            self._all(checked(group, job, self.jobs[job]))

    @rule(job=JOBS, rank=st.integers(0, 3))
    def leave(self, job: str, rank: int) -> None:
        if job in self.jobs:
            self._all(RankLeft(job, self.jobs[job], rank))

    @rule(job=JOBS, digit=st.none() | st.integers(0, 3), circuits=st.sets(st.sampled_from("abc")))
    def own_circuits(self, job: str, digit: int | None, circuits: set[str]) -> None:
        if job in self.jobs:
            self._all(CircuitsOwned(job, self.jobs[job], digit, tuple(sorted(circuits))))

    @rule(switch=st.sampled_from(["sw0", "sw1"]), ends=st.permutations(range(4)), count=st.integers(0, 4))
    def observe(self, switch: str, ends: list[int], count: int) -> None:
        pairs = tuple(CrossConnect(i, j) for i, j in enumerate(ends))[:count]
        self._all(CircuitsObserved(switch, next(self.numbers), pairs))

    @rule()
    def plan_step(self) -> None:
        step = max(self.steps, default=0) + 1
        self.steps[step] = StepState.PLANNED
        self._all(planned(step))

    @precondition(lambda self: self._open_steps())
    @rule(data=st.data(), state=st.sampled_from(StepState), detail=st.none() | st.text(max_size=3))
    def move_step(self, data: st.DataObject, state: StepState, detail: str | None) -> None:
        step = data.draw(st.sampled_from(self._open_steps()))
        self.steps[step] = state
        self._all(StepMoved(step, "sw0", state, detail))

    @rule(count=st.integers(1, 9), later_s=st.sampled_from([0.0, 1.0, 61.0, DAY_S]))
    def let_time_pass(self, count: int, later_s: float) -> None:
        self.now += later_s
        self._all(*(EventAppended("tick", data={"z": number}) for number in range(count)))

    @rule(document=st.sampled_from(["one", "two"]))
    def put_fabric(self, document: str) -> None:
        generation = self.twin.put_fabric(document, (), ())
        assert {store.put_fabric(document, (), ()) for store in self.stores} == {generation}
        self.accepted.append(document)

    # --- what happens to stores

    @rule()
    def start_anew(self) -> None:
        number = self.twin.raise_start()
        assert {store.raise_start() for store in self.stores} == {number}
        self.accepted.append("start")

    @rule()
    def stop_and_open(self) -> None:
        self._reopen()

    @rule(
        wrong=st.sampled_from(
            [
                granted(job="nobody"),
                StepMoved(10_000, "sw0", StepState.DONE),
                EventAppended("x", data={"a": float("nan")}),
            ]
        )
    )
    def contradict(self, wrong: Change) -> None:
        before = self._states()
        batch = self._batch(EventAppended("torn"), wrong)
        said = self.twin.submit(batch).exception()
        assert isinstance(said, StoreError)
        for store in self.stores:
            refusal = store.submit(batch).exception(timeout=60)
            assert isinstance(refusal, StoreError)
            assert str(said).partition(" not written: ")[2].partition("; nothing")[0] in str(refusal)
        assert self._states() == before, "nothing of it was written"
        self._reopen()
        self.twin = MemoryStore(retention=RETENTION)
        for one in self.accepted:
            if isinstance(one, Batch):
                self.twin.submit(one).result()
            elif one == "start":
                self.twin.raise_start()
            else:
                self.twin.put_fabric(one, (), ())

    @invariant()
    def all_hold_the_same(self) -> None:
        states = self._states()
        assert all(state == states[0] for state in states[1:])

    # --- how

    def _states(self) -> list[Any]:
        stores: list[Store] = [self.twin, *self.stores]
        return [(_same(store.snapshot()), store.events(0, 1000)) for store in stores]

    def _open_steps(self) -> list[int]:
        return [step for step, state in self.steps.items() if state in {StepState.PLANNED, StepState.STARTED}]

    def _forget(self, job: str) -> None:
        self.held = {key: length for key, length in self.held.items() if key[0] != job}
        self.next_n = {key: n for key, n in self.next_n.items() if key[0] != job}

    def _batch(self, *changes: Change) -> Batch:
        self.now += 0.5
        return Batch(next(self.numbers), self.now, changes, durable=False)

    def _all(self, *changes: Change) -> None:
        batch = self._batch(*changes)
        last = self.twin.submit(batch).result()
        assert {store.submit(batch).result(timeout=60) for store in self.stores} == {last}
        self.accepted.append(batch)

    def _reopen(self) -> None:
        for store in self.stores:
            store.close()
        self.stores = [SqlStore(url, retention=RETENTION) for url in self.urls]


def _same(seen: Snapshot) -> Snapshot:
    """Only a store that is written down can be left in order."""
    return replace(seen, clean=True)


def test_all_stores_hold_the_same_after_every_step(
    migrated: Path, postgres: PostgresServer, template: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = itertools.count()

        def databases() -> Iterator[tuple[str, ...]]:
            while True:
                file = shutil.copy(migrated, Path(folder) / f"{next(numbers)}.db")
                yield f"sqlite:///{file}", postgres.create(template)

        Stores.make = databases()
        run_state_machine_as_test(
            Stores,
            settings=settings(
                max_examples=10 if SCALE <= 1 else int(10 * SCALE),
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud7ff", "\U0001f50c"])
def test_texts_that_one_database_would_refuse_are_stored_alike_in_all(text: str, store: Store) -> None:
    batch = Batch(1, 1.0, (started(), replace(settled(JobState.FAILED, cause="aborted"), detail=text)), False)
    store.submit(batch).result(timeout=60)
    (job,) = store.snapshot().jobs
    assert job.detail == text.replace("\0", "\ufffd")
    assert job.spec == spec()
