"""The record of commands that have left: what it proves to the next start, and when it proves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opus_sdn.store import migrate, sql
from opus_sdn.store.base import StoreError
from opus_sdn.store.sql import SqlStore
from opus_sdn.store.under_way import StepsUnderWay

BOOT = "0b8f8cf5-6ea5-4f29-a6b4-3c2f5a2f6b11"
OTHER_BOOT = "6f2d7a50-93a5-4f0e-8a55-9f1f1c5b7a02"
UNSETTLED = (3, 4, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file beside a database."""
    return tmp_path / "opus.db.steps"


def next_start(
    path: Path, start: int = 2, boot: str = BOOT, *, unsettled: tuple[int, ...] = UNSETTLED
) -> list[int]:
    """Which unsettled steps the next start has to wait for."""
    record = StepsUnderWay(path, start, unsettled, boot)
    record.close()
    return [step for step in unsettled if record.may_be(step)]


def killed_after(path: Path, *told: int) -> None:
    """Start 1 is killed after it has told these: a step that leaves, or its negative once it is over."""
    record = StepsUnderWay(path, 1, (), BOOT)
    for step in told:
        if step > 0:
            record.begin(step)
        else:
            record.end(-step)
    record.close()


@pytest.mark.parametrize(
    ("told", "waited_for"),
    [
        ((), []),
        ((4,), [4]),
        ((3, 4, 5), [3, 4, 5]),
        ((3, 4, -3), [4]),
        ((3, -3, 4, -4, 5), [5]),
        ((3, 9, -3, 4), [4]),  # 9 has an end in the store
        ((3, 3, -7), [3]),
        (tuple(range(1, 400)), [3, 4, 5]),
    ],
)
def test_only_steps_that_have_left_and_are_not_over_are_waited_for(
    path: Path, told: tuple[int, ...], waited_for: list[int]
) -> None:
    killed_after(path, *told)
    assert next_start(path) == waited_for


def test_a_start_that_is_killed_at_once_hands_on_what_the_one_before_had_sent(path: Path) -> None:
    killed_after(path, 4)
    assert next_start(path, 2) == [4]
    assert next_start(path, 3) == [4]


def test_without_the_record_of_the_very_start_before_all_are_waited_for(path: Path) -> None:
    assert next_start(path, 2) == [3, 4, 5]
    killed_after(path, 4)
    assert next_start(path, 3) == [3, 4, 5]
    killed_after(path, 4)
    assert next_start(path, 1) == [3, 4, 5]


def test_what_was_written_before_the_machine_started_anew_proves_nothing(path: Path) -> None:
    killed_after(path, 4)
    assert next_start(path, boot=OTHER_BOOT) == [3, 4, 5]


@pytest.mark.parametrize("content", [b"", b"opus-steps-1", b"x" * 4096, b"opus-steps-1" + b"\0" * 44])
def test_a_file_that_is_not_ours_or_torn_proves_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert next_start(path) == [3, 4, 5]


def test_a_word_that_is_torn_at_the_end_is_no_step(path: Path) -> None:
    killed_after(path, 4)
    with path.open("ab") as file:
        file.write(b"\5\0\0")
    assert next_start(path) == [4]


def break_file(record: StepsUnderWay) -> None:
    """Writing to the file fails from now on."""
    assert record._file is not None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, record._file)
    os.close(null)


def test_a_record_that_cannot_be_written_is_taken_away(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = StepsUnderWay(path, 1, (), BOOT)
    record.begin(4)
    break_file(record)
    record.begin(5)
    record.begin(6)
    assert "not recorded" in caplog.text
    assert next_start(path) == [3, 4, 5]


def test_a_record_that_cannot_be_taken_away_either_stops_the_command(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = StepsUnderWay(path, 1, (), BOOT)
    break_file(record)

    def refuse(_path: Path, **_: bool) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match="can be neither written nor removed: Permission denied"):
        record.begin(5)


def test_a_folder_that_takes_no_file_is_told_and_all_steps_are_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = tmp_path / "missing" / "opus.db.steps"
    record = StepsUnderWay(missing, 2, UNSETTLED, BOOT)
    assert [step for step in UNSETTLED if record.may_be(step)] == [3, 4, 5]
    record.begin(7)
    record.end(7)
    assert "not recorded" in caplog.text


WRITER = """
import os, signal, sys
from pathlib import Path
from opus_sdn.store.under_way import StepsUnderWay
record = StepsUnderWay(Path(sys.argv[1]), 1, (), sys.argv[2])
record.begin(3)
record.begin(4)
record.end(3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_told_survives_kill_9(path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", WRITER, str(path), BOOT], check=False)
    assert died.returncode == -signal.SIGKILL
    assert next_start(path) == [4]


def test_a_database_file_has_its_record_beside_it_over_starts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'opus.db'}"
    migrate.upgrade(url)
    waited_for = []
    for told in (3, 4):
        store = SqlStore(url)
        record = store.under_way(store.raise_start(), UNSETTLED)
        waited_for.append([step for step in UNSETTLED if record.may_be(step)])
        record.begin(told)
        store.close(clean=False)
    assert waited_for == [[3, 4, 5], [3, 4, 5]]
    store = SqlStore(url)
    record = store.under_way(store.raise_start(), (4, 6))
    assert [step for step in (4, 6) if record.may_be(step)] == [4]
    store.close()


def test_where_the_machine_does_not_say_which_boot_it_is_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opus_sdn.store import under_way

    monkeypatch.setattr(under_way, "BOOT_ID", tmp_path / "missing")
    store = SqlStore(f"sqlite:///{tmp_path / 'opus.db'}")
    assert isinstance(store.under_way(store.raise_start(), ()), sql.NobodyKnows)
    store.close()
