"""A store as the simulated world has it: commits take time, and crashes and power cuts take what they may.

What is committed is kept by a real store, the in-memory twin or the SQL store. A killed process loses what it
had not committed; a machine that loses power also loses commits that had not waited for the disk.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from opus_sdn.intent.changes import Batch
from opus_sdn.store.base import Snapshot, Store, StoreError, UnderWay


@dataclass(slots=True)
class _Waiting:
    batch: Batch
    future: Future[int]


@dataclass(frozen=True, slots=True)
class _Written:
    """One thing that was committed, to be written again into a new store; `durable` as it asked for."""

    write: Callable[[Store], object]
    durable: bool
    batch: Batch | None


class SimUnderWay:
    """Which commands have left, as processes tell each other by memory that a power cut takes."""

    def __init__(self, start: int, unsettled: Iterable[int], before: SimUnderWay | None) -> None:
        self._start = start
        self._steps = set(unsettled)
        if before is not None and before._start == start - 1:
            self._steps &= before._steps

    def may_be(self, step: int) -> bool:
        return step in self._steps

    def begin(self, step: int) -> None:
        self._steps.add(step)

    def end(self, step: int) -> None:
        self._steps.discard(step)


class SimDisk:
    """What outlives a process: the store's content, and the history from which it can be made anew.

    `open_store` makes an empty store; `committed` and `undone` are told of every batch.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        rng: random.Random,
        committed: Callable[[Batch], None],
        undone: Callable[[tuple[Batch, ...]], None],
    ) -> None:
        self._open_store = open_store
        self._rng = rng
        self.store = open_store()
        self._history: list[_Written] = []
        self._committed = committed
        self._undone = undone
        self.under_way: SimUnderWay | None = None
        self.broken_until_mended = False  # nobody can open it now
        self.ended_clean = True  # nothing was there before
        self.began_clean = False

    def write(self, write: Callable[[Store], Any], *, durable: bool, batch: Batch | None = None) -> Any:
        """Commit one thing."""
        result = write(self.store)
        self._history.append(_Written(write, durable, batch))
        if batch is not None:
            self._committed(batch)
        return result

    def lose_power(self) -> int:
        """Forget some of the commits after the last one that waited for the disk; how many."""
        self.under_way = None
        safe = max((at for at, entry in enumerate(self._history, 1) if entry.durable), default=0)
        kept = self._rng.randint(safe, len(self._history))
        lost = self._history[kept:]
        if lost:
            self._history = self._history[:kept]
            self.store.close()
            self.store = self._open_store()
            for entry in self._history:
                entry.write(self.store)
            self._undone(tuple(entry.batch for entry in lost if entry.batch is not None))
        return len(lost)


class SimStore:
    """One process's handle on the disk. `after` has something done once the given seconds have passed.

    `started` is told of every start number; `passing` of every point at which the process may die, and says
    whether it did. StoreError while the database cannot be reached.
    """

    def __init__(
        self,
        disk: SimDisk,
        rng: random.Random,
        after: Callable[[float, Callable[[], None]], None],
        started: Callable[[int], None],
        passing: Callable[[str], bool],
    ) -> None:
        if disk.broken_until_mended:
            raise StoreError("the database cannot be reached")
        self._started = started
        self._passing = passing
        self._disk = disk
        self._rng = rng
        self._after = after
        self._queue: deque[_Waiting] = deque()
        self._writing = False
        self._gone: str | None = None
        self.commit_s = rng.choice((0.0, 0.0005, 0.002))
        self.disk_s = self.commit_s * rng.choice((1, 4, 20))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk.store, name)

    def submit(self, batch: Batch) -> Future[int]:
        waiting = _Waiting(batch, Future())
        if self._gone is not None:
            waiting.future.set_exception(StoreError(self._gone))
            return waiting.future
        self._queue.append(waiting)
        self._write_later()
        return waiting.future

    def raise_start(self) -> int:
        start = self._now(lambda store: store.raise_start())
        self._disk.began_clean, self._disk.ended_clean = self._disk.ended_clean, False
        self._started(start)
        return start

    def under_way(self, start: int, unsettled: Iterable[int]) -> UnderWay:
        record = SimUnderWay(start, unsettled, self._disk.under_way)
        self._disk.under_way = record
        return record

    def snapshot(self) -> Snapshot:
        return replace(self._disk.store.snapshot(), clean=self._disk.began_clean)

    def put_fabric(self, document: str, ports: Any, rails: Any) -> int:
        return self._now(lambda store: store.put_fabric(document, ports, rails))

    def close(self, *, clean: bool = True) -> None:
        if self._gone is None:
            self._commit_all()
            self._gone = "the store is closed"
            self._disk.ended_clean = clean

    def die(self, *, at_once: bool = False) -> None:
        """The process is killed: some of what waits was committed just before, the rest never is."""
        for _ in range(0 if at_once else self._rng.randint(0, len(self._queue))):
            self._commit_one()
        self._queue.clear()
        self._gone = "the process is dead"

    def fail(self, detail: str) -> None:
        """The database is gone: whatever waits is lost, and whatever comes."""
        lost = list(self._queue)
        self._queue.clear()
        self._gone = detail
        for waiting in lost:
            waiting.future.set_exception(StoreError(detail))

    def _now(self, write: Callable[[Store], int]) -> int:
        self._commit_all()
        if self._passing("before a commit"):
            raise StoreError("the process is dead")
        result = self._disk.write(write, durable=True)
        if self._passing("after a commit"):
            raise StoreError("the process is dead")
        assert isinstance(result, int)
        return result

    def _write_later(self) -> None:
        if self._queue and not self._writing and self._gone is None:
            self._writing = True
            pause_s = self.disk_s if self._queue[0].batch.durable else self.commit_s
            self._after(pause_s * self._rng.uniform(0.5, 2.0), self._written)

    def _written(self) -> None:
        self._writing = False
        if self._gone is None:
            for _ in range(min(len(self._queue), self._rng.randint(1, 3))):
                if self._gone is None:
                    self._commit_one()
            self._write_later()

    def _commit_all(self) -> None:
        while self._queue and self._gone is None:
            self._commit_one()

    def _commit_one(self) -> None:
        if self._passing("before a commit"):
            return
        waiting = self._queue.popleft()
        batch = waiting.batch
        seq = self._disk.write(lambda store: store.submit(batch).result(), durable=batch.durable, batch=batch)
        if not self._passing("after a commit"):
            waiting.future.set_result(seq)
