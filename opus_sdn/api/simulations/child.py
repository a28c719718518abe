"""The process that runs one simulation: request on stdin, progress and outcome on stdout, nothing else.

It yields the processor to the controller, has a memory limit where the system knows one, and ends when the
controller is gone. Arguments: an empty folder for the files sent along, the folder of traces or nothing, the
limit in bytes.

Each answer is a line of JSON: `{"progress": ...}` many times, then `{"failed": ...}`, `{"crashed": ...}`, or
`{"done": <bytes>}` and the result after it.
"""

from __future__ import annotations

import base64
import binascii
import gc
import json
import os
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import BinaryIO

from opus_sdn.api.simulations.folder import locate
from opus_sdn.api.simulations.request import ReplayRequest, SimulationRequest, SweepRequest
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.whatif.engine import load_step, make_scenario, replay
from opus_sdn.whatif.errors import CannotFinishError, InputError
from opus_sdn.whatif.inputs.hints import read_hints
from opus_sdn.whatif.inputs.schedules import read_schedules
from opus_sdn.whatif.report import document, stuck_document
from opus_sdn.whatif.sweeps import points, sweep

TEXT_MAX = 4096  # of one text in a failure: a broken file may put megabytes into it
PARENT_CHECK_S = 1.0
NICENESS = 10

Files = dict[str, Path]


class Answers:
    """What the controller is told."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def progress(self, phase: str, done: int, points: int) -> None:
        """How far it has come."""
        self._line({"progress": {"phase": phase, "done": done, "points": points}})

    def failed(self, problem: Problem, detail: str, **data: object) -> None:
        """There is no result, and why."""
        cut = {name: value[:TEXT_MAX] if isinstance(value, str) else value for name, value in data.items()}
        self._line({"failed": {"problem": problem.value, "detail": detail[:TEXT_MAX], "data": cut}})

    def crashed(self, trace: str) -> None:
        """There is no result, by a fault of ours."""
        self._line({"crashed": trace[-TEXT_MAX:]})

    def done(self, result: object) -> None:
        """The result."""
        content = json.dumps(result).encode()
        self._line({"done": len(content)}, content)

    def _line(self, answer: object, more: bytes = b"") -> None:
        self._stream.write(json.dumps(answer).encode() + b"\n" + more)
        self._stream.flush()


def main(folder: Path, traces: Path | None, memory_bytes: int) -> None:
    """Run the simulation that stands on stdin."""
    answers = Answers(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(), folder), daemon=True).start()
    os.nice(NICENESS)
    _limit(memory_bytes)
    try:
        request = SimulationRequest.model_validate_json(sys.stdin.buffer.read())
        answers.done(_run(request, folder, traces, answers))
    except InputError as error:
        places = [f"{folder}{os.sep}", *([f"{traces.resolve()}{os.sep}"] if traces else [])]
        file, detail = error.file, str(error)
        for place in places:
            file, detail = file.replace(place, ""), detail.replace(place, "")
        value = None if error.value is None else repr(error.value)[:TEXT_MAX]
        answers.failed(
            Problem.INVALID_REQUEST, detail, file=file, node=error.node, field=error.field, value=value
        )
    except CoreError as error:
        answers.failed(error.problem, error.detail, **error.data)
    except MemoryError:
        why = f"it needs more than {memory_bytes} bytes of memory (setting simulation_memory_max_bytes)"
        answers.failed(Problem.LIMIT_EXCEEDED, why, limit_bytes=memory_bytes)
    except Exception:  # noqa: BLE001 - a bug of ours: the controller has the log
        answers.crashed(traceback.format_exc())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(request: SimulationRequest, folder: Path, traces: Path | None, answers: Answers) -> object:
    answers.progress("loading", 0, request.points)
    gc.disable()  # a replay makes millions of small tuples and hardly any cycles
    files = {field: _file(request, field, folder, traces) for field, _ in request.inputs.given()}
    own: dict[str, object] = {name: str(files[name]) for name in ("fabric", "job") if name in files}
    if request.sweep is not None:
        return _sweep(request.sweep, files, own, answers)
    assert request.replay is not None  # the request was checked
    return _replay(request.replay, files, own, answers)


def _file(request: SimulationRequest, field: str, folder: Path, traces: Path | None) -> Path:
    """Where the input is, after it was written there if it was sent along."""
    given = dict(request.inputs.given())[field]
    if given.path is not None:
        return locate(traces, given.path, f"inputs.{field}")
    assert given.name is not None  # the request was checked
    file = folder / field / given.name
    file.parent.mkdir()
    if given.text is not None:
        file.write_text(given.text, encoding="utf-8")
        return file
    try:
        file.write_bytes(base64.b64decode(given.content or "", validate=True))
    except (binascii.Error, ValueError) as error:
        field = f"inputs.{field}.content"
        raise CoreError(Problem.INVALID_REQUEST, f"{field} is no base64: {error}", field=field) from None
    return file


def _replay(wanted: ReplayRequest, files: Files, own: dict[str, object], answers: Answers) -> object:
    step = load_step(files["et"], files["groups"], files["system"])
    scenario = make_scenario(
        step,
        read_schedules(files["schedules"]),
        mode=wanted.mode,
        delay_ns=wanted.delay_ms * 1e6,
        latency_ns=wanted.latency_ns,
        hints=read_hints(files["hints"], len(step.trace.ranks)) if "hints" in files else None,
        options={**wanted.options, **own},
    )
    answers.progress("replaying", 0, 1)
    try:
        result = replay(scenario, semantics=wanted.semantics, exact=wanted.exact)
    except CannotFinishError as stuck:
        return stuck_document(scenario, wanted.semantics, stuck)
    answers.progress("replaying", 1, 1)
    return document(scenario, result)


def _sweep(wanted: SweepRequest, files: Files, own: dict[str, object], answers: Answers) -> object:
    step = load_step(files["et"], files["groups"], files["system"])
    schedules = read_schedules(files["schedules"])
    combinations = points(
        wanted.delays_ms,
        wanted.modes,
        wanted.semantics,
        wanted.bandwidths_gbps or [None],
        wanted.latencies_ns,
        {**wanted.options, **own},
    )

    def told(done: int, of: int) -> None:
        gc.collect(1)
        answers.progress("replaying", done, of)

    return sweep(step, schedules, combinations, jobs=1, done=told)


def _end_with(parent: int, folder: Path) -> None:
    """End this process, without leaving files, once it is nobody's any more."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _limit(memory_bytes: int) -> None:
    """Have allocations beyond the limit fail, where the system can; macOS cannot."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    except (ImportError, OSError, ValueError):
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, int(sys.argv[3]))
