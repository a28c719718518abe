"""A database that cannot be used: a sentence that says why, and no word to any switch."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from opus_sdn.api.server import StartError, running
from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch
from opus_sdn.store import filesystem
from opus_sdn.store.lockfile import ExclusiveLock
from tests.api.world import controller, fabric, settings, wait_until


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call that reaches a switch's driver."""
    calls: list[str] = []

    def noting(name: str) -> Callable[..., object]:
        real = getattr(EmulatedDriver, name)

        def call(self: EmulatedDriver, *args: object, **more: object) -> object:
            calls.append(name)
            return real(self, *args, **more)

        return call

    for name in ("describe", "read", "apply"):
        monkeypatch.setattr(EmulatedDriver, name, noting(name))
    return calls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the database of a controller that had a fabric."""
    with controller(tmp_path, declared=fabric(), durable=True):
        return tmp_path


def on_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(filesystem, "kind_number", lambda _path: 0x6969)
    yield


def in_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    held = ExclusiveLock(folder / "opus.db")
    yield
    held.release()


def damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with closing(sqlite3.connect(folder / "opus.db")) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'locks'").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (folder / "opus.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\x5a" * 4096)
    yield


def not_a_database(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (folder / "opus.db").write_bytes(b"a letter to a friend, not a database" * 200)
    yield


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (on_the_network, r"is on a network file system \(NFS\)"),
        (in_use, rf"is in use by process {os.getpid()}"),
        (damaged, r"restore it from a copy"),
        (not_a_database, r"file is not a database; name another file, or restore it from a copy"),
    ],
)
def test_a_controller_that_cannot_use_its_database_says_why_and_asks_no_switch(
    folder: Path,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    how: Callable[[Path, pytest.MonkeyPatch], Iterator[None]],
    said: str,
) -> None:
    asked.clear()
    made = how(folder, monkeypatch)
    next(made)
    with pytest.raises(StartError, match=said), running(settings(folder)):
        pass
    assert asked == []
    next(made, None)


def test_a_disk_that_fills_up_ends_decisions_and_leaves_the_switch_and_goes_on_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[EmulatedSwitch] = []
    make = EmulatedDriver.__init__

    def noting(self: EmulatedDriver, device: EmulatedSwitch, **more: object) -> None:
        devices.append(device)
        make(self, device, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(EmulatedDriver, "__init__", noting)
    full = False
    connect = sqlite3.connect

    class Limited(sqlite3.Connection):
        """A connection to a disk that is full while the test says so."""

        def commit(self) -> None:
            if full:
                raise sqlite3.OperationalError("database or disk is full")
            super().commit()

    def connected(*args: object, **more: object) -> sqlite3.Connection:
        return connect(*args, **{**more, "factory": Limited})  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", connected)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", connected)
    with controller(tmp_path, declared=fabric(), durable=True) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        for rank in (0, 1):
            opus.arrive(rank, "dp", 0)
        wait_until(lambda: opus.say(0)["grants"], "granted")
        before = opus.get("/switches/ocs0")["matching"]
        operations = len(devices[0].operations)
        full = True
        assert opus.http.put("/api/v1/jobs/j/groups/g", json=_group()).status_code == 503
        wait_until(lambda: opus.http.get("/readyz").status_code == 503, "it says that it is not ready")
        assert len(devices[0].operations) == operations
        full = False
        wait_until(lambda: opus.http.get("/readyz").status_code == 200, "it goes on by itself")
        assert opus.get("/switches/ocs0")["matching"] == before
        assert len(devices[0].operations) == operations, "nothing differed, so nothing was done"
        assert [(lock["rank"], lock["n"]) for lock in opus.get("/locks")["locks"]] == [(0, 0), (1, 0)]


def _group() -> dict[str, object]:
    return {"incarnation": 1, "ranks": [0, 1], "dimension": "dp"}
