"""Many replays of one step: over delays, latencies, bandwidths, modes and semantics, in several processes.

Points that share an on-demand run are replayed one after another by one process, which also keeps what it
has solved. Every finished point can be written to a journal at once; a sweep that finds a point there does
not replay it.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from opus_sdn.whatif.engine import Step, load_semantics, make_scenario, replay
from opus_sdn.whatif.errors import CannotFinishError, InputError, WorkerLostError
from opus_sdn.whatif.inputs.network import DEFAULT_LATENCY_NS
from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.journal import Journal
from opus_sdn.whatif.report import Document, document, stuck_document
from opus_sdn.whatif.scenario import Mode

MAX_POINTS = 100_000
_NAMES_OF_FILES = ("fabric", "job")  # options


@dataclass(frozen=True, slots=True)
class Point:
    """One replay of a sweep. `bandwidth_gbps` None: as the schedules say; `options`: (name, value) pairs."""

    delay_ms: float
    mode: Mode = Mode.ON_DEMAND
    semantics: str = "peer"
    bandwidth_gbps: float | None = None
    latency_ns: float = DEFAULT_LATENCY_NS
    options: tuple[tuple[str, object], ...] = ()

    @property
    def key(self) -> str:
        """The point as a line that is equal for equal points."""
        return json.dumps(asdict(self), sort_keys=True)


def points(
    delays_ms: Sequence[float],
    modes: Sequence[Mode],
    semantics: Sequence[str] = ("peer",),
    bandwidths_gbps: Sequence[float | None] = (None,),
    latencies_ns: Sequence[float] = (DEFAULT_LATENCY_NS,),
    options: Mapping[str, object] | None = None,
) -> list[Point]:
    """Every combination. `options` are for the semantics that have any: not for `peer`."""
    own = tuple(sorted((options or {}).items()))
    combinations = product(semantics, latencies_ns, bandwidths_gbps, delays_ms, modes)
    found = [
        Point(delay, mode, name, gbps, latency, own if name != "peer" else ())
        for name, latency, gbps, delay, mode in combinations
    ]
    if len(found) > MAX_POINTS:
        raise InputError(f"at most {MAX_POINTS} points", file="sweep", value=len(found))
    return list(dict.fromkeys(found))


def sweep(
    step: Step,
    schedules: Schedules,
    wanted: Sequence[Point],
    *,
    jobs: int | None = None,
    journal: Path | None = None,
    dask: str | None = None,
    done: Callable[[int, int], None] | None = None,
) -> list[Document]:
    """The documents of the points, in their order. A step that cannot finish is one with `cannot_finish`.

    `jobs` processes, by default one for each processor. `journal` is read first and appended to; what it
    holds of other steps is left alone. `dask` is the address of a scheduler whose workers replay instead.
    `done(finished, all)` is called after each point. Raises InputError, and WorkerLostError where a process
    ended in the middle.
    """
    files = {str(value) for point in wanted for name, value in point.options if name in _NAMES_OF_FILES}
    kept = None if journal is None else Journal(journal, step, schedules, files)
    found = {} if kept is None else kept.read()
    missing = [point for point in wanted if point.key not in found]
    count = len(wanted) - len(missing)
    if done is not None:
        done(count, len(wanted))
    results = _results(step, schedules, _batches(missing), jobs or os.cpu_count() or 1, dask)
    with closing(results), kept or nullcontext():
        for point, result in results:
            found[point.key] = result
            if kept is not None:
                kept.add(point.key, result)
            count += 1
            if done is not None:
                done(count, len(wanted))
    return [found[point.key] for point in wanted]


Batch = list[Point]
_Answer = tuple[Point, Document]


def _batches(missing: Iterable[Point]) -> list[Batch]:
    """Points that share all but the mode."""
    found: dict[tuple[object, ...], Batch] = {}
    for point in missing:
        key = (point.semantics, point.latency_ns, point.bandwidth_gbps, point.delay_ms)
        found.setdefault(key, []).append(point)
    for batch in found.values():
        batch.sort(key=lambda point: list(Mode).index(point.mode))  # on demand first: it yields the hints
    return list(found.values())


def _results(
    step: Step, schedules: Schedules, batches: list[Batch], jobs: int, dask: str | None
) -> Generator[_Answer, None, None]:
    if dask is not None:
        yield from _on_dask(step, schedules, batches, dask)
        return
    if jobs == 1 or len(batches) < 2:
        worker = Worker(step, schedules)
        for batch in batches:
            yield from worker.answers(batch)
        return
    yield from _in_processes(step, schedules, batches, min(jobs, len(batches)))


def _in_processes(step: Step, schedules: Schedules, batches: list[Batch], jobs: int) -> Iterator[_Answer]:
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    gc.collect()
    gc.freeze()  # what the processes share stays shared
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context(method), _begin, (step, schedules))
    try:
        for future in as_completed([pool.submit(_work, batch) for batch in batches]):
            yield from future.result()
    except BrokenProcessPool:
        why = "a process of the sweep was ended from outside, perhaps for want of memory: try fewer --jobs"
        raise WorkerLostError(why) from None
    except BaseException:  # also when the caller is interrupted, or wants no more
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class Worker:
    """Replays points of one step, and keeps what their replays have in common."""

    def __init__(self, step: Step, schedules: Schedules) -> None:
        self._step, self._schedules = step, schedules
        self._memos: dict[str, object | None] = {}
        self._bandwidths: dict[float, Schedules] = {}

    def answers(self, batch: Batch) -> list[_Answer]:
        """The documents of a batch."""
        return [(point, self.answer(point)) for point in batch]

    def answer(self, point: Point) -> Document:
        """The document of one point."""
        if point.semantics not in self._memos:
            self._memos[point.semantics] = load_semantics(point.semantics).new_memo()
        schedules, gbps = self._schedules, point.bandwidth_gbps
        if gbps is not None:
            if gbps not in self._bandwidths:
                self._bandwidths[gbps] = schedules.with_switched(gbps)
            schedules = self._bandwidths[gbps]
        scenario = make_scenario(
            self._step,
            schedules,
            mode=point.mode,
            delay_ns=point.delay_ms * 1e6,
            latency_ns=point.latency_ns,
            options=dict(point.options),
        )
        about: Document = {"bandwidth_gbps": gbps}
        try:
            result = replay(scenario, semantics=point.semantics, memo=self._memos[point.semantics])
        except CannotFinishError as error:
            return about | stuck_document(scenario, point.semantics, error)
        return about | document(scenario, result)


_worker: Worker | None = None


def _begin(step: Step, schedules: Schedules) -> None:
    """What a process of the sweep does first. Ctrl-C is for the one that gives out the work."""
    global _worker  # noqa: PLW0603 - a pool hands its processes no other place to keep things
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    _worker = Worker(step, schedules)


def _work(batch: Batch) -> list[_Answer]:
    assert _worker is not None
    gc.collect(1)
    return _worker.answers(batch)


def _on_dask(step: Step, schedules: Schedules, batches: list[Batch], address: str) -> Iterator[_Answer]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        why = "needs the package `distributed`: pip install 'opus-sdn[dask]'"
        raise InputError(why, file="--dask", value=address) from None
    try:
        client = distributed.Client(address, timeout="5s")
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers: {error}", file="--dask", value=address) from None
    with client:
        shared = client.scatter((step, schedules), broadcast=True)
        futures = [client.submit(_answers_there, shared, batch, pure=False) for batch in batches]
        for _, answers in distributed.as_completed(futures, with_results=True):
            yield from answers


def _answers_there(shared: tuple[Step, Schedules], batch: Batch) -> list[_Answer]:
    return Worker(*shared).answers(batch)
