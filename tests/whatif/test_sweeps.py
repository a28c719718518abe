"""Sweeps over processes end with an error and not with a hang, and a journal serves only its own inputs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.traces import Shape, make_step
from opus_sdn.whatif import sweeps
from opus_sdn.whatif.engine import Step, load_step
from opus_sdn.whatif.errors import InputError, WorkerLostError
from opus_sdn.whatif.inputs.schedules import Schedules, read_schedules
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.sweeps import Worker, points, sweep


class Inputs(NamedTuple):
    step: Step
    schedules: Schedules


def made(folder: Path, **shape: int) -> Inputs:
    case = make_step(Shape(**{"layers": 1} | shape), folder)
    step = load_step(case / "et", case / "workload.json", case / "system.json")
    return Inputs(step, read_schedules(case / "schedules.txt"))


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return made(tmp_path / "case")


def test_points_that_are_refused_in_another_process_are_refused_here(inputs: Inputs) -> None:
    with pytest.raises(InputError, match="for `ideal` they hold one topology"):
        sweep(*inputs, points([0, 1], [Mode.IDEAL]), jobs=2)


def test_processes_and_one_process_find_the_same(inputs: Inputs) -> None:
    wanted = points([0, 1, 2], [Mode.ON_DEMAND, Mode.PROVISION])
    alone, together = sweep(*inputs, wanted, jobs=1), sweep(*inputs, wanted, jobs=2)
    for one in (*alone, *together):
        del one["wall_s"]
    assert alone == together


def test_a_process_that_is_killed_ends_the_sweep_and_what_is_finished_stays(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Worker.answers

    def killed_at_2_ms(worker: Worker, batch: sweeps.Batch) -> list[sweeps._Answer]:
        if batch[0].delay_ms == 2:
            journal = tmp_path / "journal"
            while not (journal.exists() and journal.read_text().count("\n") == 1):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return real(worker, batch)

    monkeypatch.setattr(Worker, "answers", killed_at_2_ms)
    with pytest.raises(WorkerLostError, match="ended from outside"):
        sweep(*inputs, points([1, 2], [Mode.ON_DEMAND]), jobs=2, journal=tmp_path / "journal")
    assert json.loads((tmp_path / "journal").read_text())["result"]["delay_ms"] == 1


def test_a_journal_of_other_inputs_is_left_alone_and_gives_no_answers(inputs: Inputs, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    others = {
        "another step": made(tmp_path / "a", layers=2),
        "other topologies": Inputs(inputs.step, inputs.schedules.with_switched(7.0)),
        "the same elsewhere": made(tmp_path / "b"),
    }
    wanted = points([1], [Mode.ON_DEMAND])
    first = sweep(*inputs, wanted, journal=journal)
    for name, other in others.items():
        found, fresh = sweep(*other, wanted, journal=journal), sweep(*other, wanted)
        assert found[0]["finish_ns"] == fresh[0]["finish_ns"], name
    assert sweep(*inputs, wanted, journal=journal) == first
    assert len(journal.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00garbage\n",
        b"[1]\n",
        b'{"step": "", "point": "", "result": 3}\n',
        b'{"point": "", "result": {"finish_ns": 1}}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_no_journal_is_neither_read_nor_written(
    content: bytes, inputs: Inputs, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(content)
    with pytest.raises(InputError, match="line 1: no journal of a sweep"):
        sweep(*inputs, points([1], [Mode.ON_DEMAND]), journal=journal)
    assert journal.read_bytes() == content
