"""History is bounded by default: by number and by age; what still matters stays whatever it is."""

from __future__ import annotations

from opus_sdn.intent.changes import EventAppended, JobState
from opus_sdn.store.base import Store
from opus_sdn.store.rules import DAY_S, Retention
from tests.store.conftest import OpenStore
from tests.store.world import batch, granted, settled, started


def tick(store: Store, at: float, count: int = 1) -> None:
    store.submit(batch(1, *(EventAppended("tick"),) * count, at=at)).result(timeout=60)


def test_events_go_when_they_are_too_old(open_store: OpenStore) -> None:
    store = open_store(retention=Retention(events_age_s=DAY_S))
    tick(store, at=1e9, count=5)
    tick(store, at=1e9 + DAY_S / 2, count=3)
    tick(store, at=1e9 + 1.25 * DAY_S)
    assert [event.seq for event in store.events(0, 10)] == [6, 7, 8, 9]
    tick(store, at=1e9 + 9 * DAY_S)
    assert [event.seq for event in store.events(0, 10)] == [10]


def test_the_newest_event_stays_however_old_as_numbers_go_on_from_it(open_store: OpenStore) -> None:
    store = open_store(retention=Retention(events_age_s=DAY_S))
    tick(store, at=1e9, count=5)
    late = EventAppended("late", at=1e9)  # one that happened long before it was written
    store.submit(batch(2, late, at=1e9 + 9 * DAY_S)).result(timeout=60)
    assert [event.kind for event in store.events(0, 10)] == ["late"]
    assert store.submit(batch(3, EventAppended("next"), at=1e9 + 9 * DAY_S)).result(timeout=60) == 7


def test_age_is_looked_at_once_a_minute_only(open_store: OpenStore) -> None:
    store = open_store(retention=Retention(events_age_s=10.0))
    tick(store, at=1e9)
    tick(store, at=1e9 + 30)
    assert len(store.events(0, 10)) == 2
    tick(store, at=1e9 + 61)
    assert [event.seq for event in store.events(0, 10)] == [3]


def test_the_jobs_that_ended_first_go_and_their_incarnations_are_not_numbered_again(
    open_store: OpenStore,
) -> None:
    store = open_store(retention=Retention(jobs_max=20))
    store.submit(batch(0, started("runs"), granted(job="runs"))).result(timeout=60)
    failed = settled(JobState.FAILED, "holds", cause="aborted")
    store.submit(batch(0, started("holds"), granted(job="holds"), failed)).result(timeout=60)
    for number in range(50):
        name, incarnation = f"j{number:02}", 100 + number
        over = settled(JobState.ENDED, name, incarnation)
        store.submit(batch(number, started(name, incarnation), over, at=1e9 + number)).result(timeout=60)
    seen = store.snapshot()
    kept = [job.job for job in seen.jobs if job.state is JobState.ENDED]
    assert kept == [f"j{number:02}" for number in range(50 - len(kept), 50)], "the newest of them"
    assert 19 <= len(kept) <= 20
    assert {"runs", "holds"} <= {job.job for job in seen.jobs}
    assert {lock.job for lock in seen.locks} == {"runs", "holds"}
    assert seen.incarnation_floor == 100 + 50 - len(kept) - 1
    again = batch(99, started("j00", seen.incarnation_floor + 1))
    assert store.submit(again).exception(timeout=60) is None


def test_a_job_that_runs_again_is_no_ended_one(open_store: OpenStore) -> None:
    store = open_store(retention=Retention(jobs_max=1))
    for number, name in enumerate(("a", "b")):
        over = settled(JobState.ENDED, name, 1)
        again = started(name, 2, "n2")
        store.submit(batch(number, started(name), over, again, at=1e9 + number)).result(timeout=60)
    assert [(job.job, job.state) for job in store.snapshot().jobs] == [
        ("a", JobState.RUNNING),
        ("b", JobState.RUNNING),
    ]
