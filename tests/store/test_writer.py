"""Group commit, its order and its durability, and what happens when writing fails."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, QueuePool, create_engine

from opus_sdn.intent.changes import Batch, EventAppended, StepMoved, StepState
from opus_sdn.store.base import StoreBusyError, StoreError
from opus_sdn.store.rules import Retention
from opus_sdn.store.sql import SqlStore
from tests.store.probes import hooked
from tests.store.world import batch, granted, planned, released, started

FULL, NORMAL = "waits for the disk", "does not"
DURABILITY = {2: FULL, 1: NORMAL, "on": FULL, "off": NORMAL}  # as SQLite and PostgreSQL say it

OpenSql = Callable[..., SqlStore]


@contextmanager
def commits() -> Iterator[list[str]]:
    """What each commit made inside waits for."""
    made: list[str] = []

    def count(connection: Connection) -> None:
        sqlite = connection.dialect.name == "sqlite"
        cursor = connection.connection.cursor()
        cursor.execute("PRAGMA synchronous" if sqlite else "SHOW synchronous_commit")
        found = cursor.fetchone()
        assert found is not None
        made.append(DURABILITY[found[0]])

    with hooked("commit", count):
        yield made


@contextmanager
def writer_held_up() -> Iterator[Callable[[], None]]:
    """The writer stops at its first transaction until the function is called, or the block ends."""
    reached, go_on = threading.Event(), threading.Event()

    def wait(_connection: Connection) -> None:
        reached.set()
        assert go_on.wait(60)

    def release() -> None:
        assert reached.wait(60)
        go_on.set()

    with hooked("begin", wait):
        try:
            yield release
        finally:
            go_on.set()


def results(futures: list[Future[int]]) -> list[int]:
    return [future.result(timeout=60) for future in futures]


def test_two_hundred_batches_at_once_share_a_few_commits(open_sql: OpenSql) -> None:
    store = open_sql()
    with commits() as made, writer_held_up() as go_on:
        futures = [store.submit(batch(i, EventAppended("tick"))) for i in range(200)]
        go_on()
        assert results(futures) == list(range(1, 201))
    assert 1 <= len(made) <= 2, "the first may have gone alone, the rest were all there"


def test_batches_are_answered_in_order_and_only_when_a_reader_can_see_them(open_sql: OpenSql) -> None:
    store = open_sql()
    answered: list[int] = []
    seen: list[bool] = []

    def note(future: Future[int]) -> None:
        answered.append(future.result())
        # On the writer's thread at the moment of the answer: another connection must see the batch by now.
        seen.append(store.events(answered[-1] - 1, 1) != [])

    with writer_held_up() as go_on:
        futures = [store.submit(batch(i, EventAppended("tick"))) for i in range(50)]
        for future in futures:
            future.add_done_callback(note)
        go_on()
        results(futures)
    store.close()
    assert answered == list(range(1, 51))
    assert all(seen)


def test_nothing_is_answered_before_its_commit(open_sql: OpenSql) -> None:
    store = open_sql()
    futures: list[Future[int]] = []
    looks: list[tuple[int, int]] = []

    def look(connection: Connection) -> None:
        if not isinstance(connection.engine.pool, QueuePool):  # the writer's, and not one that reads below
            looks.append((sum(future.done() for future in futures), store.snapshot().last_event))

    with hooked("commit", look), writer_held_up() as go_on:
        futures += [store.submit(batch(number, EventAppended("tick"))) for number in range(10)]
        go_on()
        results(futures)
    assert looks
    assert all(answered <= visible < 10 for answered, visible in looks)


def test_a_durable_batch_waits_for_the_disk_and_others_do_not(open_sql: OpenSql) -> None:
    store = open_sql()
    with commits() as made:
        for durable in (False, True, False, True, True):
            store.submit(batch(1, EventAppended("tick"), durable=durable)).result(timeout=60)
        store.raise_start()
        store.put_fabric("one", (), ())
        store.submit(batch(1)).result(timeout=60)
    assert made == [NORMAL, FULL, NORMAL, FULL, FULL, FULL, FULL, NORMAL]


def test_one_durable_batch_makes_its_whole_transaction_durable(open_sql: OpenSql) -> None:
    store = open_sql()
    with commits() as made, writer_held_up() as go_on:
        futures = [store.submit(batch(i, EventAppended("tick"), durable=i == 7)) for i in range(20)]
        go_on()
        results(futures)
    assert made[-1] == FULL


def test_the_work_of_a_transaction_does_not_grow_with_the_number_of_its_grants(open_sql: OpenSql) -> None:
    store = open_sql()
    results([store.submit(batch(0, started()))])
    statements: list[str] = []

    def note(*call: object) -> None:
        statements.append(str(call[2]))

    with hooked("before_cursor_execute", note), writer_held_up() as go_on:
        futures = [store.submit(batch(0))]
        for n in range(100):
            futures.append(store.submit(batch(n, granted(n=n), EventAppended("intent.granted"))))
            futures.append(store.submit(batch(n, released((0,), n=n), EventAppended("intent.released"))))
        go_on()
        results(futures)
    looks = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(looks) <= 1, "the look for old events, once a minute"
    per_transaction = 7  # one per table and kind of change, the number and the beginning
    assert len(statements) - len(looks) <= 2 * per_transaction
    # Two transactions at most: the writer may have begun with the first batches before all were queued.


def test_a_future_that_its_waiter_gave_up_does_not_disturb_the_writer(open_sql: OpenSql) -> None:
    store = open_sql()

    async def give_up_waiting() -> None:
        with writer_held_up() as go_on:
            waiting = asyncio.wrap_future(store.submit(batch(1, EventAppended("tick"))))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            go_on()

    asyncio.run(give_up_waiting())
    assert store.submit(batch(2, EventAppended("tick"))).result(timeout=60) == 2


def test_closing_writes_all_that_is_queued(open_sql: OpenSql) -> None:
    store = open_sql()
    with writer_held_up() as go_on:
        futures = [store.submit(batch(i, EventAppended("tick"))) for i in range(30)]
        closing = threading.Thread(target=store.close)
        closing.start()
        while store._writer._refusal is None:
            time.sleep(0.001)
        go_on()
        closing.join(60)
    assert results(futures) == list(range(1, 31))
    assert open_sql().snapshot().last_event == 30


def test_numbers_of_events_go_on_after_the_store_was_opened_again(open_sql: OpenSql) -> None:
    store = open_sql(retention=Retention(events_max=10))
    results([store.submit(batch(i, EventAppended("tick"))) for i in range(25)])
    store.close()
    store = open_sql(retention=Retention(events_max=10))
    assert store.submit(batch(1, EventAppended("tick"))).result(timeout=60) == 26
    assert len(store.events(0, 1000)) <= 10


def test_only_the_newest_finished_steps_are_kept_and_all_that_are_under_way(
    open_sql: OpenSql, url: str
) -> None:
    retention = Retention(steps_max=20)
    store = open_sql(retention=retention)
    for step in range(1, 101):
        state = StepState.DROPPED if step % 3 else StepState.DONE
        over = () if step in {3, 50} else (StepMoved(step, "sw0", state),)
        store.submit(batch(step, planned(step), *over)).result(timeout=60)
        if step == 60:
            store.close()
            store = open_sql(retention=retention)
    assert [step.step for step in store.snapshot().steps] == [3, 50]
    assert store.snapshot().last_step == 100
    store.close()
    engine = create_engine(url)
    with engine.connect() as connection:
        kept = list(connection.exec_driver_sql("SELECT step FROM steps ORDER BY step").scalars())
    engine.dispose()
    assert kept[:2] == [3, 50]
    assert kept[2:] == list(range(100 - len(kept) + 3, 101))
    assert 15 <= len(kept) <= 22


def submit_until_refused(store: SqlStore) -> tuple[int, StoreError]:
    """Large batches until one is refused; the last event that was acknowledged, and the refusal."""
    acknowledged = 0
    for number in range(1000):
        future = store.submit(batch(number, *(EventAppended("large", data={"x": "y" * 1000}),) * 20))
        refusal = future.exception(timeout=60)
        if refusal is not None:
            assert isinstance(refusal, StoreError)
            return acknowledged, refusal
        acknowledged = future.result()
    raise AssertionError("nothing was refused")


def test_a_full_disk_loses_nothing_that_was_acknowledged_and_stops_the_store(
    open_file: OpenSql, path: Path
) -> None:
    def cap(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count=200")

    with hooked("connect", cap):
        store = open_file()
    acknowledged, refusal = submit_until_refused(store)
    assert acknowledged > 0
    assert str(path) in str(refusal)
    assert "database or disk is full; nothing is written any more" in str(refusal)
    later = [store.submit(batch(number, EventAppended("small"))) for number in range(3)]
    assert [future.exception(timeout=60) for future in later] == [refusal] * 3
    with pytest.raises(StoreError, match="disk is full"):
        store.raise_start()
    assert store.snapshot().last_event == acknowledged, "what is there can still be read"
    store.close()
    store = open_file()
    assert store.snapshot().last_event == acknowledged
    assert store.submit(batch(1, EventAppended("small"))).result(timeout=60) == acknowledged + 1


def test_a_failed_commit_is_not_acknowledged(open_sql: OpenSql) -> None:
    store = open_sql()

    def fail(_connection: Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with hooked("commit", fail):
        future = store.submit(batch(1, EventAppended("tick")))
        assert isinstance(future.exception(timeout=60), StoreError)
    assert isinstance(store.submit(batch(2)).exception(timeout=60), StoreError)
    store.close()
    assert open_sql().snapshot().last_event == 0


def test_everything_queued_behind_a_failure_fails_with_it(open_sql: OpenSql) -> None:
    store = open_sql()
    with writer_held_up() as go_on:
        good = [store.submit(batch(i, EventAppended("tick"))) for i in range(3)]
        bad = store.submit(batch(3, granted(job="nobody")))
        behind = [store.submit(batch(i, EventAppended("tick"))) for i in range(4, 3000)]
        go_on()
        assert isinstance(bad.exception(timeout=60), StoreError)
        assert all(isinstance(future.exception(timeout=60), StoreError) for future in behind)
    acknowledged = [future.result() for future in good if future.exception(timeout=60) is None]
    store.close()
    assert open_sql().snapshot().last_event == max(acknowledged, default=0)


def test_a_queue_that_is_full_refuses_for_now_and_loses_nothing(open_sql: OpenSql) -> None:
    store = open_sql(queue_max=5)
    assert store.has_room()
    taken: list[Future[int]] = []
    with writer_held_up() as go_on:
        with pytest.raises(StoreBusyError, match="5 entries wait for the disk already, so batch"):
            taken.extend(store.submit(batch(number, EventAppended("tick"))) for number in range(10))
        assert 5 <= len(taken) <= 6, "one may have been with the writer already"
        assert not store.has_room(), "requests are refused before anything is decided"
        with pytest.raises(StoreBusyError, match="so fabric is not taken"):
            store.put_fabric("one", (), ())
        go_on()
        assert results(taken) == list(range(1, len(taken) + 1))
    assert store.has_room()
    assert store.submit(batch(11, EventAppended("tick"))).result(timeout=60) == len(taken) + 1
    store.close()
    assert open_sql().snapshot().last_event == len(taken) + 1


def test_batches_may_come_from_any_thread_and_readers_are_not_in_the_way(open_sql: OpenSql) -> None:
    store = open_sql()
    store.submit(batch(0, started())).result(timeout=60)
    start = threading.Barrier(5)
    answers: list[int] = []

    def write(worker: int) -> None:
        start.wait()
        for n in range(20):
            made: Batch = batch(n, granted(n=100 * worker + n), EventAppended("tick"))
            answers.append(store.submit(made).result(timeout=60))

    def read() -> None:
        start.wait()
        while len(answers) < 80:
            seen = store.snapshot()
            assert len(seen.locks) == 2 * seen.last_event, "a snapshot is of one moment"

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == list(range(1, 81))
