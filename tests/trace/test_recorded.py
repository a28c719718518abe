"""What a recorder writes, and what is read of it, also where it was cut short."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.shim.operations import STEP, Operation, OperationLog, What
from opus_sdn.shim.recorder import Recorder, describe
from opus_sdn.trace.model import RankTrace, TraceError
from opus_sdn.trace.recorded import read_recorded, write_recorded
from tests.trace.runs import two_by_two
from tests.waiting import wait_until

AHEAD_NS = 3_600_000_000_000  # by how much the controller's clock is ahead of the ranks'


class Controller:
    """Tells the time, its own; away until it is back."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away

    def request(self, method: str, path: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        if self.away:
            raise OSError("nobody there")
        assert (method, path) == ("GET", "/clock")
        return {"unix_us": (time.monotonic_ns() + AHEAD_NS) // 1000}


def done(log: OperationLog, what: What, begin_ns: int, size: int = 64) -> Operation:
    operation = log.begin(what, size)
    operation.called_ns = operation.issued_ns = operation.wait_begin_ns = begin_ns
    operation.finished_ns = operation.wait_end_ns = begin_ns + 1000
    return operation


def what(kind: str = "allreduce", **changes: Any) -> What:
    return What(kind, "ranks-0-1.0", "mesh_dp", "dp", (0, 1), **changes)


def record(folder: Path, rank: int, controller: Controller, job: str = "a", incarnation: int = 1) -> None:
    """A rank with one all-reduce at 1 s of its clock, a message, and one operation that never ended."""
    log = OperationLog()
    head = {"job": job, "incarnation": incarnation, "rank": rank, "world": 2, "dimensions": [["dp", 2]]}
    recorder = Recorder(folder, head, log.follow(), controller)
    done(log, what(connection="ranks-0-1.0"), 1_000_000_000)
    done(log, what("send" if rank == 0 else "recv", peer=1 - rank), 2_000_000_000)
    log.begin(what(), 1)
    recorder.close()


def test_ranks_are_read_on_the_controllers_clock_with_the_error_of_that(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path, rank, Controller())
    run = read_recorded(tmp_path)
    assert (run.name, run.world, run.dimensions, run.missing()) == ("a", 2, (("dp", 2),), [])
    for rank in run.ranks:
        assert rank.clock_error_ns is not None
        first, second = rank.acts  # what never ended is no operation
        assert abs(first.begin - 1_000_000_000 - AHEAD_NS) <= rank.clock_error_ns
        assert first.end - first.begin == 1000
        assert second.key == ("ranks-0-1.0", 0, 1, 0)
    assert run.ranks[0].acts[0].key == run.ranks[1].acts[0].key == ("ranks-0-1.0", None, None, 0)
    assert [act.what.connection for act in run.ranks[0].acts] == ["ranks-0-1.0", None]
    assert run.notes[0].startswith("clocks: known to within")


def test_where_one_rank_could_not_ask_all_times_stay_the_ranks_own(tmp_path: Path) -> None:
    record(tmp_path, 0, Controller())
    record(tmp_path, 1, Controller(away=True))
    run = read_recorded(tmp_path)
    assert [rank.acts[0].begin for rank in run.ranks] == [1_000_000_000, 1_000_000_000]
    assert run.notes[0].startswith("clocks: not compared")


def test_operations_are_on_disk_while_the_program_runs(tmp_path: Path) -> None:
    log = OperationLog()
    head = {"job": "a", "incarnation": 1, "rank": 0, "world": 1}
    recorder = Recorder(tmp_path, head, log.follow(), Controller(away=True))
    done(log, what(), 5)
    wait_until(lambda: '"op"' in recorder.path.read_text(), "the operation is in the file")
    recorder.close()


def test_a_log_that_turned_over_says_how_much_is_missing(tmp_path: Path) -> None:
    log = OperationLog(capacity=4)
    follower = log.follow()
    for number in range(10):
        done(log, what(), number)
    head = {"job": "a", "incarnation": 1, "rank": 0, "world": 1}
    Recorder(tmp_path, head, follower, Controller(away=True)).close()
    run = read_recorded(tmp_path)
    assert (run.ranks[0].lost, len(run.ranks[0].acts)) == (6, 4)
    assert any("6 operations were not recorded" in note for note in run.notes)


def test_the_line_that_a_killed_rank_was_writing_is_passed_over(tmp_path: Path) -> None:
    record(tmp_path, 0, Controller())
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    path.write_text(whole + '{"op":[7,0,nul')
    assert len(read_recorded(tmp_path).ranks[0].acts) == 2
    path.write_text(whole + '{"op":[7,0,nul\n')
    with pytest.raises(TraceError, match=r"opus.jsonl:\d+: is no JSON document"):
        read_recorded(tmp_path)


def test_the_newest_life_of_a_job_is_read_and_two_jobs_are_refused(tmp_path: Path) -> None:
    record(tmp_path, 0, Controller(), incarnation=1)
    record(tmp_path, 0, Controller(), incarnation=2)
    record(tmp_path, 1, Controller(), incarnation=2)
    assert read_recorded(tmp_path).missing() == []
    record(tmp_path, 0, Controller(), job="b")
    with pytest.raises(TraceError, match="holds traces of a, b; keep each job's in a folder of its own"):
        read_recorded(tmp_path)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "does not begin as a trace of ours"),
        ('{"format":"opus-trace","version":2}\n', "is of version 2; this program reads 1"),
        ('{"format":"opus-trace","version":1,"rank":-1}\n', "rank is -1; wanted a number up to 65536"),
        (
            '{"format":"opus-trace","version":1,"job":"a","rank":0,"world":1,"incarnation":1}\n{"op":[1,2]}\n',
            "an operation is not whole",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, text: str, want: str) -> None:
    (tmp_path / "x.opus.jsonl").write_text(text)
    with pytest.raises(TraceError, match=r"x\.opus\.jsonl: ") as refused:
        read_recorded(tmp_path)
    assert want in str(refused.value)


def told(rank: RankTrace) -> list[tuple[object, ...]]:
    """A rank's operations in values: records of kinds are compared as objects."""
    return [
        (
            act.number,
            describe(act.what),
            act.kind,
            act.key,
            act.size,
            act.begin,
            act.end,
            act.wait_begin,
            act.wait_end,
        )
        for act in rank.acts
    ]


def test_the_end_of_a_step_is_no_operation(tmp_path: Path) -> None:
    log = OperationLog()
    follower = log.follow()
    done(log, what(), 1)
    done(log, STEP, 2000)
    done(
        log, What("allreduce", "ranks-0-1.0", "mesh_dp", "dp", (0, 1)), 4000
    )  # another object of the same kind
    head = {"job": "a", "incarnation": 1, "rank": 0, "world": 1}
    Recorder(tmp_path, head, follower, Controller(away=True)).close()
    (path,) = tmp_path.iterdir()
    assert path.read_text().count('"what"') == 2
    assert [act.key.n for act in read_recorded(tmp_path).ranks[0].acts] == [0, 1]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = two_by_two()
    write_recorded(run, tmp_path)
    again = read_recorded(tmp_path)
    assert [told(rank) for rank in again.ranks] == [told(rank) for rank in run.ranks]
    assert json.loads(next(iter(sorted(tmp_path.iterdir()))).read_text().splitlines()[0])["world"] == 4
