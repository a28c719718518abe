"""One process at a time has the database, and forks of it neither keep nor break that."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from opus_sdn.intent.changes import EventAppended
from opus_sdn.store import migrate
from opus_sdn.store.base import StoreError
from opus_sdn.store.rules import Retention
from opus_sdn.store.sql import SqlStore
from tests.store.probes import ended, forked, hooked
from tests.store.world import batch

OpenSql = Callable[..., SqlStore]


@contextmanager
def child_that_holds(act: Callable[[], object]) -> Iterator[int]:
    """A forked child that keeps the result of `act` until the block ends, however it ends; its process id."""
    ready, say_ready = os.pipe()
    wait, let_go = os.pipe()

    def run() -> None:
        os.close(let_go)
        held = act()
        os.write(say_ready, b"r")
        assert os.read(wait, 1) == b"", "the parent closes its end, or dies"
        del held

    pid = forked(run)
    os.close(say_ready)
    os.close(wait)
    try:
        assert os.read(ready, 1) == b"r", "the child failed"
        yield pid
    finally:
        os.close(ready)
        os.close(let_go)
        ended(pid)


def test_a_second_opener_is_refused_and_told_who_has_the_database(path: Path) -> None:
    url = f"sqlite:///{path}"
    with child_that_holds(lambda: SqlStore(url)) as pid:
        for attempt in (lambda: SqlStore(url), lambda: migrate.upgrade(url)):
            with pytest.raises(StoreError, match=f"{path} is in use by process {pid}:"):
                attempt()
    SqlStore(url).close()


def test_the_same_file_by_another_name_is_the_same_database(path: Path, open_file: OpenSql) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    open_file()
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        SqlStore(f"sqlite:///{link}")


def test_a_killed_holder_does_not_keep_the_database(path: Path, open_file: OpenSql) -> None:
    with child_that_holds(lambda: SqlStore(f"sqlite:///{path}")) as pid:
        os.kill(pid, signal.SIGKILL)
    assert open_file().raise_start() == 1


def test_a_forked_child_that_lives_on_does_not_keep_its_parents_database(open_file: OpenSql) -> None:
    store = open_file()
    with child_that_holds(lambda: None):
        store.close()
        assert open_file().raise_start() == 1


def test_a_forked_child_that_ends_or_closes_does_not_take_its_parents_database(
    path: Path, open_file: OpenSql
) -> None:
    store = open_file()
    assert ended(forked(store.close)) == 0
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        SqlStore(f"sqlite:///{path}")
    assert store.submit(batch(1, EventAppended("tick"))).result(timeout=60) == 1


def test_a_forked_child_cannot_use_its_parents_store(open_file: OpenSql) -> None:
    store = open_file()

    def use() -> None:
        assert "forked" in str(store.submit(batch(1)).exception(timeout=60))
        for call in (store.raise_start, store.snapshot, lambda: store.events(0, 1)):
            with pytest.raises(StoreError, match="forked"):
                call()

    assert ended(forked(use)) == 0
    assert store.raise_start() == 1


def test_a_database_that_failed_to_open_is_free_again(path: Path) -> None:
    path.write_bytes(b"this is no database, it is a letter to a friend" * 100)
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be read: file is not a database"):
            SqlStore(f"sqlite:///{path}")


def test_a_disk_that_fails_is_reported_in_one_line_and_the_database_is_free_again(
    path: Path, open_file: OpenSql
) -> None:
    def fail(_connection: Connection) -> None:
        raise OperationalError("SELECT secret", None, sqlite3.OperationalError("disk I/O error"))

    with hooked("begin", fail), pytest.raises(StoreError, match="cannot be opened: disk I/O error; it needs"):
        SqlStore(f"sqlite:///{path}")
    store = open_file()
    with hooked("begin", fail), pytest.raises(StoreError, match=r"cannot be read: disk I/O error$"):
        store.snapshot()
    assert store.snapshot().last_event == 0


def test_a_store_keeps_at_least_its_newest_event() -> None:
    with pytest.raises(ValueError, match="events_max is 0: keep at least 1"):
        Retention(events_max=0)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "does not name a file: use sqlite:///PATH"),
        ("sqlite:///:memory:", "does not name a file"),
        ("sqlite:///file:x.db?uri=true", "does not name a file"),
        ("mysql://ann:secret@db/opus", r"mysql://... is not supported: use sqlite:///PATH"),
        ("opus.db", "is not an SQLAlchemy URL: use sqlite:///PATH"),
        ("sqlite:////nowhere/at/all/opus.db", "needs an existing folder"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_what_would_be_right(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as refused:
        SqlStore(url)
    assert "secret" not in str(refused.value)
