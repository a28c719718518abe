"""Disks and files that SQLite cannot be kept on: each is refused in one sentence that says what to do."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opus_sdn.intent.changes import EventAppended
from opus_sdn.store import filesystem, migrate, sqlite
from opus_sdn.store.base import StoreError
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.sql import SqlStore
from tests.store.probes import ended, forked
from tests.store.world import World, batch

OpenSql = Callable[..., SqlStore]
KIB = 1024


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small disk of its own; `mounted("remount,ro")` changes it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    there = False

    def mount(options: str) -> Path:
        nonlocal there
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"this user may not mount: {done.stderr.strip()}; other tests use limits instead")
        there = True
        return folder

    yield mount
    if there:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (0x6969, "NFS"),
        (0xFF534D42, "CIFS"),
        (0xFE534D42, "SMB2"),
        (0x01021997, "9P"),
        (0x00C36400, "Ceph"),
        (0x0BD00BD0, "Lustre"),
        (0x47504653, "GPFS"),
    ],
)
def test_a_database_on_a_network_file_system_is_refused_before_anything_is_made_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(filesystem, "kind_number", lambda path: asked.append(path) or number)
    url = f"sqlite:///{tmp_path / 'opus.db'}"
    for attempt in (lambda: SqlStore(url), lambda: migrate.upgrade(url)):
        with pytest.raises(StoreError, match=rf"on a network file system \({kind}\), .* or use PostgreSQL"):
            attempt()
    assert set(asked) == {tmp_path}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mounted_as", "kind"),
    [
        ("fuse.sshfs", "fuse.sshfs"),
        ("virtiofs", "virtiofs"),
        ("fuse.fuse-overlayfs", None),
        ("fuseblk", None),
    ],
)
def test_of_user_space_file_systems_only_known_local_ones_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted_as: str, kind: str | None
) -> None:
    device = tmp_path.stat().st_dev
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw - {mounted_as} source rw\n"
    read_text = Path.read_text
    monkeypatch.setattr(filesystem, "kind_number", lambda _path: filesystem.FUSE)
    monkeypatch.setattr(
        Path, "read_text", lambda path, **more: line if path.name == "mountinfo" else read_text(path, **more)
    )
    assert filesystem.network_kind(tmp_path) == kind


@pytest.mark.parametrize(("folder", "number"), [("/proc", 0x9FA0), ("/sys", 0x62656572)])
def test_the_kernels_number_of_a_file_system_is_read(folder: str, number: int) -> None:
    assert filesystem.kind_number(Path(folder)) == number
    assert filesystem.network_kind(Path(folder)) is None


def test_the_disks_of_this_machine_are_local(tmp_path: Path) -> None:
    assert filesystem.kind_number(tmp_path) != 0
    assert filesystem.network_kind(tmp_path) is None


def fill(folder: Path) -> Path:
    """Leave no byte free; the file that takes it all."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (64 * KIB, KIB, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


def test_a_full_disk_is_said_and_after_it_was_cleared_everything_answered_is_there(
    mounted: Callable[[str], Path], opener: Callable[..., SqlStore]
) -> None:
    disk = mounted("size=4m")
    url = f"sqlite:///{disk / 'opus.db'}"
    store = opener(url)
    store.raise_start()
    filler = fill(disk)
    acknowledged, number = 0, 0
    refusal: BaseException | None = None
    while refusal is None:
        number += 1
        future = store.submit(batch(number, EventAppended("large", data={"x": "y" * 1000}), durable=True))
        refusal = future.exception(timeout=60)
        acknowledged += refusal is None
    assert "disk is full; nothing is written any more until it is opened again: free space" in str(refusal)
    store.close()
    filler.unlink()
    store = opener(url)
    assert store.raise_start() == 2
    assert store.snapshot().last_event == acknowledged
    assert not store.snapshot().clean


def test_a_new_database_on_a_full_disk_is_refused(mounted: Callable[[str], Path]) -> None:
    disk = mounted("size=64k")
    filler = fill(disk)
    with pytest.raises(StoreError, match=r"free space|No space left on device"):
        SqlStore(f"sqlite:///{disk / 'opus.db'}")
    filler.unlink()


def test_a_disk_that_became_read_only_is_said(mounted: Callable[[str], Path], migrated: Path) -> None:
    disk = mounted("size=4m")
    shutil.copy(migrated, disk / "opus.db")
    mounted("remount,ro")
    with pytest.raises(StoreError, match=r"lock file .* cannot be opened: Read-only file system; "):
        SqlStore(f"sqlite:///{disk / 'opus.db'}")


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "said"),
    [
        (0o555, 0o644, "lock file .*opus.db.lock cannot be opened: Permission denied; the database needs"),
        (0o777, 0o444, "attempt to write a readonly database; it needs an existing folder and a file that"),
        (
            0o777,
            0o000,
            "cannot be read: unable to open database file; it needs an existing folder and a file",
        ),
    ],
)
def test_a_file_or_folder_that_may_not_be_written_is_said(
    migrated: Path, folder_mode: int, file_mode: int, said: str
) -> None:
    # In a folder that other users can reach, as root may write everywhere.
    with tempfile.TemporaryDirectory(prefix="opus-") as made:
        above = Path(made)
        above.chmod(0o755)
        folder = above / "state"
        folder.mkdir()
        file = Path(shutil.copy(migrated, folder / "opus.db"))
        file.chmod(file_mode)
        folder.chmod(folder_mode)

        def open_as_other() -> None:
            if os.geteuid() == 0:
                os.setuid(pwd.getpwnam("nobody").pw_uid)
            with pytest.raises(StoreError, match=said):
                SqlStore(f"sqlite:///{file}")

        assert ended(forked(open_as_other)) == 0
        folder.chmod(0o755)


def test_a_damaged_page_is_refused_at_the_start_or_is_of_the_history_only(
    tmp_path: Path, path: Path, open_file: OpenSql
) -> None:
    store, twin = open_file(), MemoryStore()
    store.put_fabric("fabric", (("h0:0:0", "r0", "sw0", 0),), (("r0", "sw0"),))
    twin.put_fabric("fabric", (), ())
    for made in World(2).batches(300):
        store.submit(made)
        twin.submit(made)
    store.close()
    whole = path.read_bytes()
    page_bytes = int.from_bytes(whole[16:18], "big")
    refusals: list[str] = []
    for start in range(0, len(whole), page_bytes):
        damaged = tmp_path / "damaged.db"
        damaged.write_bytes(whole[:start] + b"\x5a" * page_bytes + whole[start + page_bytes :])
        try:
            opened = SqlStore(f"sqlite:///{damaged}")
        except StoreError as said:
            refusals.append(str(said))
        else:
            seen = opened.snapshot()
            opened.close()
            assert seen.locks == twin.snapshot().locks
            assert seen.jobs == twin.snapshot().jobs
            assert seen.marks == twin.snapshot().marks
    assert len(refusals) >= 15, "every table that decisions are made from"
    assert [
        said for said in refusals if "damaged.db" not in said or "restore it from a copy" not in said
    ] == []


def test_a_database_that_another_program_keeps_locked_says_so(
    opener: OpenSql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.1)
    path = tmp_path / "locked.db"
    store = opener(f"sqlite:///{path}")
    shell = sqlite3.connect(path, isolation_level=None)
    try:
        shell.execute("BEGIN IMMEDIATE")
        lost = store.submit(batch(1, EventAppended("job.started", "a", 1)))
        with pytest.raises(
            StoreError, match=r"database is locked.*another program holds it locked.*end that"
        ):
            lost.result(30)
    finally:
        shell.close()
