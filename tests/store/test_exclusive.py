"""One process at a time has the database, and forks of it neither keep nor break that."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from opus_sdn.intent.changes import EventAppended
from opus_sdn.store import migrate
from opus_sdn.store.base import StoreError
from opus_sdn.store.sql import SqlStore
from tests.store.probes import ended, forked
from tests.store.world import batch

OpenSql = Callable[..., SqlStore]


class Child:
    """A forked child that holds `act`'s result until it is let go."""

    def __init__(self, act: Callable[[], object]) -> None:
        ready, self._ready = os.pipe()
        self._go_on, go_on = os.pipe()
        self.pid = forked(lambda: self._run(act))
        os.close(self._ready)
        os.close(self._go_on)
        assert os.read(ready, 1) == b"r", "the child failed"
        os.close(ready)
        self._release = go_on

    def _run(self, act: Callable[[], object]) -> None:
        held = act()
        os.write(self._ready, b"r")
        os.read(self._go_on, 1)
        assert held is not self

    def let_go(self) -> int:
        os.write(self._release, b"g")
        os.close(self._release)
        return ended(self.pid)

    def kill(self) -> int:
        os.close(self._release)
        os.kill(self.pid, signal.SIGKILL)
        return ended(self.pid)


def test_a_second_opener_is_refused_and_told_who_has_the_database(path: Path) -> None:
    url = f"sqlite:///{path}"
    child = Child(lambda: SqlStore(url))
    for attempt in (lambda: SqlStore(url), lambda: migrate.upgrade(url)):
        with pytest.raises(StoreError, match=f"{path} is in use by process {child.pid}:"):
            attempt()
    assert child.let_go() == 0
    SqlStore(url).close()


def test_the_same_file_by_another_name_is_the_same_database(path: Path, open_sql: OpenSql) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    open_sql()
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        SqlStore(f"sqlite:///{link}")


def test_a_killed_holder_does_not_keep_the_database(path: Path, open_sql: OpenSql) -> None:
    child = Child(lambda: SqlStore(f"sqlite:///{path}"))
    assert child.kill() == -signal.SIGKILL
    assert open_sql().raise_start() == 1


def test_a_forked_child_that_lives_on_does_not_keep_its_parents_database(open_sql: OpenSql) -> None:
    store = open_sql()
    child = Child(lambda: None)
    store.close()
    assert open_sql().raise_start() == 1
    assert child.let_go() == 0


def test_a_forked_child_that_ends_or_closes_does_not_take_its_parents_database(
    path: Path, open_sql: OpenSql
) -> None:
    store = open_sql()
    assert ended(forked(store.close)) == 0
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        SqlStore(f"sqlite:///{path}")
    assert store.submit(batch(1, EventAppended("tick"))).result(timeout=60) == 1


def test_a_forked_child_cannot_use_its_parents_store(open_sql: OpenSql) -> None:
    store = open_sql()

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


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "does not name a file: use sqlite:///PATH"),
        ("sqlite:///:memory:", "does not name a file"),
        ("sqlite:///file:x.db?uri=true", "does not name a file"),
        ("postgresql://ann:secret@db/opus", r"postgresql://ann:\*\*\*@db/opus is not supported"),
        ("opus.db", "is not an SQLAlchemy URL: use sqlite:///PATH"),
        ("sqlite:////nowhere/at/all/opus.db", "needs an existing folder"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_what_would_be_right(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as refused:
        SqlStore(url)
    assert "secret" not in str(refused.value)
