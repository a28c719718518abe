"""`opus trace` on what it cannot do anything with, and around a command that records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opus_sdn.trace.recorded import write_recorded
from tests.trace.runs import two_by_two


def opus(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opus_sdn.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


RECORD = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["OPUS_TRACE_DIR"])
folder.mkdir(parents=True, exist_ok=True)
for rank in range(int(sys.argv[1])):
    (folder / f"a.1.{rank}.opus.jsonl").write_text("")
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("ranks", "status", "want", "says"),
    [
        ("2", "0", 0, "2 ranks recorded their operations"),
        ("2", "3", 1, "ended with status 3"),
        ("0", "0", 1, 'no rank recorded anything: init_process_group("opus")'),
    ],
)
def test_record_tells_the_command_where_and_says_how_it_went(
    tmp_path: Path, ranks: str, status: str, want: int, says: str
) -> None:
    program = [sys.executable, "-c", RECORD, ranks, status]
    ran = opus("trace", "record", "--out", str(tmp_path / "traces"), "--", *program)
    assert ran.returncode == want
    assert says in ran.stderr


def test_record_without_a_command_is_a_usage_error() -> None:
    ran = opus("trace", "record")
    assert (ran.returncode, "no command; write it behind --" in ran.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("windows", "nowhere"), 1, "nowhere: there is no such file or folder"),
        (("windows", "{run}", "--dimensions", "tp"), 2, "'tp' is not among those of the trace: dp, pp"),
        (("windows", "{run}", "--dimensions", "dp"), 1, "no rank goes from one dimension to another"),
        (("windows", "{run}", "--group", "all-reduce"), 2, "wanted KIND=DIMENSION, as all-reduce=dp"),
        (("windows", "{empty}"), 1, "no communication"),
    ],
)
def test_what_cannot_be_is_told_by_name(
    tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    write_recorded(two_by_two(), tmp_path / "run")
    (tmp_path / "empty").mkdir()
    places = {"run": tmp_path / "run", "empty": tmp_path / "empty"}
    ran = opus("trace", *(argument.format(**places) for argument in arguments))
    assert (ran.returncode, says in ran.stderr) == (code, True), ran.stderr


def test_windows_are_a_table_with_a_line_for_each_pair(tmp_path: Path) -> None:
    write_recorded(two_by_two(), tmp_path)
    ran = opus("trace", "windows", str(tmp_path))
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [line[:4] for line in lines[1:3]] == [["dp", "->", "pp", "4"], ["pp", "->", "dp", "4"]]
