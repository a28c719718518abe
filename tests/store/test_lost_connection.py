"""A database server that goes away: what was answered stays true, or the store says that it does not.

What is wanted after a number of batches is taken from the in-memory store.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from opus_sdn.intent.changes import EventAppended
from opus_sdn.store import migrate
from opus_sdn.store.base import CommitsLostError, Snapshot, StaleEpochError, StoreError
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.sql import SqlStore
from tests.postgres import PostgresServer
from tests.store.probes import hooked
from tests.store.world import World, batch, granted, started

OpenStore = Callable[..., SqlStore]
KILLS = 3 if float(os.environ.get("OPUS_TEST_SCALE", "1")) <= 1 else 20


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of this test's own, to be killed."""
    own = PostgresServer()
    yield own
    own.remove()


def cut(server: PostgresServer, url: str) -> None:
    """End the writer's connection from the server's side."""
    database = url.partition("@/")[2].partition("?")[0]
    server.execute(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'opus-sdn-writer' AND datname = current_database()",
    )


class Once:
    """Calls `act` at the `moment`-th call, before or instead of what follows, and never again."""

    def __init__(self, moment: int, act: Callable[[], None]) -> None:
        self.left = moment
        self._act = act

    def __call__(self, *_: object) -> None:
        if threading.current_thread().name == "opus-store-writer":
            self.left -= 1
            if self.left == 0:
                self._act()


@pytest.mark.parametrize("event", ["begin", "before_cursor_execute", "commit"])
def test_a_connection_cut_before_the_commit_costs_nothing_but_time(
    event: str, postgres: PostgresServer, postgres_url: str, opener: OpenStore
) -> None:
    store, twin = opener(postgres_url), MemoryStore()
    for made in World(3).batches(30):
        with hooked(
            event, Once(2 if event == "before_cursor_execute" else 1, lambda: cut(postgres, postgres_url))
        ):
            assert store.submit(made).result(timeout=60) == twin.submit(made).result()
    assert same(store) == same(twin)


def test_an_answer_to_commit_that_is_lost_is_read_back_and_nothing_is_done_twice(
    postgres_url: str, opener: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, twin = opener(postgres_url), MemoryStore()
    commit = psycopg.Connection.commit
    lost = 0

    def commit_and_lose(connection: psycopg.Connection[Any]) -> None:
        nonlocal lost
        commit(connection)
        if threading.current_thread().name == "opus-store-writer" and choose.random() < 0.5:
            lost += 1
            connection.close()
            raise psycopg.OperationalError("the connection is lost")

    choose = random.Random(1)
    monkeypatch.setattr(psycopg.Connection, "commit", commit_and_lose)
    for made in World(4).batches(60):
        assert store.submit(made).result(timeout=60) == twin.submit(made).result()
    assert lost > 10
    assert same(store) == same(twin)
    assert store.events(0, 1000) == twin.events(0, 1000)


def same(store: SqlStore | MemoryStore) -> Snapshot:
    return replace(store.snapshot(), clean=True)


def test_a_commit_that_arrives_after_its_connection_was_lost_is_not_done_twice(
    postgres_url: str, opener: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old transaction commits while its repetition waits for the row that both of them count in."""
    store = opener(postgres_url)
    store.submit(batch(0, started())).result(timeout=60)
    cut_off: list[psycopg.Connection[Any]] = []
    repeated = threading.Event()
    real = {name: getattr(psycopg.Connection, name) for name in ("commit", "rollback", "close")}

    def commit(connection: psycopg.Connection[Any]) -> None:
        if threading.current_thread().name == "opus-store-writer" and not cut_off:
            cut_off.append(connection)
            raise psycopg.OperationalError("the connection is lost")
        real["commit"](connection)

    def unless_cut_off(name: str) -> Callable[[psycopg.Connection[Any]], None]:
        """What the store does to a lost connection does not reach the server."""
        return lambda connection: None if connection in cut_off else real[name](connection)

    def note(*call: object) -> None:
        if cut_off and str(call[2]).startswith("UPDATE meta"):
            repeated.set()

    monkeypatch.setattr(psycopg.Connection, "commit", commit)
    for name in ("rollback", "close"):
        monkeypatch.setattr(psycopg.Connection, name, unless_cut_off(name))
    with hooked("before_cursor_execute", note):
        future = store.submit(batch(1, granted(), EventAppended("intent.granted")))
        assert repeated.wait(60)
        assert not future.done()
        real["commit"](cut_off[0])
        assert future.result(timeout=60) == 1
    real["close"](cut_off[0])
    assert store.snapshot().last_event == 1
    assert [lock.rank for lock in store.snapshot().locks] == [0, 1]
    assert store.submit(batch(2, EventAppended("next"))).result(timeout=60) == 2


def test_a_server_that_stays_away_fails_the_store_after_the_time_that_was_set(
    server: PostgresServer, opener: OpenStore
) -> None:
    store = opener(server.create(), reconnect_s=0.3)
    server.stop()
    with pytest.raises(StoreError, match=r"batch 1 not written: .*; nothing is written any more"):
        store.submit(batch(1, EventAppended("tick"))).result(timeout=60)
    with pytest.raises(StoreError, match="cannot be read"):
        store.snapshot()
    fault = store.fault()
    assert fault is not None
    assert "cannot be read" in fault
    server.start()
    assert store.fault() is None
    assert store.snapshot().last_event == 0, "reading goes on by itself"
    assert isinstance(store.submit(batch(2)).exception(timeout=60), StoreError), "writing does not"


def test_a_server_that_comes_back_without_its_newest_commits_is_noticed(
    server: PostgresServer, opener: OpenStore
) -> None:
    url = server.create()
    store = opener(url)
    assert store.raise_start() == 1
    store.submit(batch(1, EventAppended("kept"), durable=True)).result(timeout=60)
    # The log writer sleeps at most 0.2 s: what was answered in the last moment is only in memory.
    lost = False
    for start in range(2, 22):
        for number in range(5):
            store.submit(batch(number, EventAppended("tick"))).result(timeout=60)
        server.stop(signal.SIGKILL)
        server.start()
        failed = store.submit(batch(6, EventAppended("after"))).exception(timeout=60)
        lost = failed is not None
        if lost:
            assert isinstance(failed, CommitsLostError)
            assert "without its last" in str(failed)
            assert store.submit(batch(7)).exception(timeout=60) is failed
        store.close()
        store = opener(url)
        assert store.raise_start() == start
        assert store.snapshot().clean is not lost
        if lost:
            break
    assert lost, "no kill lost anything: then synchronous_commit is on for grants"
    assert store.events(0, 1)[0].kind == "kept", "what asked for the disk is there"


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_server_killed_under_load_keeps_whole_batches_and_what_asked_for_the_disk(
    seed: int, server: PostgresServer, opener: OpenStore
) -> None:
    url = server.create()
    migrate.upgrade(url)
    batches = World(seed).batches(300)
    history = history_of(batches)
    store = opener(url)
    store.raise_start()
    quiet = random.Random(seed).randint(1, 250)
    futures = [store.submit(made) for made in batches[:quiet]]
    futures[-1].result(timeout=60)
    futures += [store.submit(made) for made in batches[quiet:]]
    server.stop(signal.SIGKILL)
    server.start()
    failed = next((at for at, future in enumerate(futures) if future.exception(timeout=60)), len(futures))
    assert all(future.exception() for future in futures[failed:]), "nothing follows what is lost"
    after = opener(url)
    after.raise_start()
    found = replace(after.snapshot(), start=0, clean=True)
    assert found in history, "a batch survived in part"
    stored = len(history) - 1 - history[::-1].index(found)
    durable = max((at + 1 for at in range(failed) if batches[at].durable), default=0)
    assert stored >= durable, "what was on disk is lost"


def history_of(batches: list[Any]) -> list[Snapshot]:
    twin = MemoryStore()
    found = [replace(twin.snapshot(), clean=True)]
    for made in batches:
        twin.submit(made).result()
        found.append(replace(twin.snapshot(), clean=True))
    return found


def test_a_writer_with_an_older_start_number_is_refused_by_the_database(
    postgres_url: str, opener: OpenStore
) -> None:
    old, new = opener(postgres_url), opener(postgres_url)
    assert old.raise_start() == 1
    old.submit(batch(1, started(), EventAppended("by the old"))).result(timeout=60)
    assert new.raise_start() == 2
    with pytest.raises(
        StaleEpochError, match="another process writes there now, under start 2; start 1 may not"
    ):
        old.submit(batch(2, EventAppended("too late"))).result(timeout=60)
    # The new one has seen what the old one wrote after the new one was opened.
    assert new.submit(batch(1, granted(), EventAppended("by the new"))).result(timeout=60) == 2
    assert [event.kind for event in new.events(0, 10)] == ["by the old", "by the new"]
    old.close()
    assert new.submit(batch(2, EventAppended("still"))).result(timeout=60) == 3


def test_a_stop_in_order_is_remembered_and_any_other_end_is_not(url: str, opener: OpenStore) -> None:
    store = opener(url)
    assert store.raise_start() == 1
    assert store.snapshot().clean, "nothing was there before"
    store.close()
    store = opener(url)
    assert store.raise_start() == 2
    assert store.snapshot().clean, "the first start ended in order"
    assert store.submit(batch(1, granted(job="nobody"))).exception(timeout=60)
    store.close()
    store = opener(url)
    assert store.raise_start() == 3
    assert not store.snapshot().clean, "the second start failed"
    reader = opener(url) if url.startswith("postgres") else None
    if reader is not None:
        reader.close()  # it never wrote: that it ends says nothing
    store.close()
    store = opener(url)
    assert store.raise_start() == 4
    assert store.snapshot().clean
