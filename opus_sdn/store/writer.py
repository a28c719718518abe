"""The one thread that writes: it takes all that is queued into one transaction, and answers after the commit.

Group commit: while one transaction is on its way to the disk the next batches gather, and all of them share
the next commit. So the cost of a commit is shared exactly when there is load. Order is kept, and a batch is
never split.

After a failure nothing more is written, as the core's memory is ahead of the database by what was lost: the
controller has to stop, and to start again from what is stored.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

from sqlalchemy import Connection

from opus_sdn.store.apply import Applier
from opus_sdn.store.base import StoreError
from opus_sdn.store.sqlite import reason, set_durability

QUEUE_MAX = 16_384  # entries waiting for the writer
GROUP_MAX = 1_024  # entries in one transaction

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    act: Callable[[Applier], int]
    durable: bool
    what: str
    future: Future[int] = field(default_factory=Future)


class Writer:
    """Owns the writing connection. `submit` may be called from any thread and never waits for the disk."""

    def __init__(self, connection: Connection, applier: Applier, name: str, queue_max: int) -> None:
        self._connection = connection
        self._applier = applier
        self._name = name
        self._queue_max = queue_max
        self._queue: deque[_Entry] = deque()
        self._changed = threading.Condition()
        self._refusal: StoreError | None = None
        # A process that ends without `close` is not held up by this thread; to the database it is a crash.
        self._thread = threading.Thread(target=self._run, name="opus-store-writer", daemon=True)
        self._thread.start()

    def submit(self, act: Callable[[Applier], int], *, durable: bool, what: str) -> Future[int]:
        """Queue one entry. Its future cannot be cancelled, and holds a StoreError when the entry is lost."""
        entry = _Entry(act, durable, what)
        entry.future.set_running_or_notify_cancel()
        with self._changed:
            if self._refusal is None and len(self._queue) >= self._queue_max:
                # A hole in the order of batches cannot be mended later: this one is as good as lost.
                self._refusal = StoreError(
                    f"{self._name}: {what} is lost, as {self._queue_max} entries wait for the disk already; "
                    "nothing is written any more: use a faster disk and start again"
                )
            refusal = self._refusal
            if refusal is None:
                self._queue.append(entry)
                self._changed.notify()
        if refusal is not None:
            entry.future.set_exception(refusal)
        return entry.future

    def close(self) -> None:
        """Write what is queued and end the thread. Later submits fail."""
        with self._changed:
            if self._refusal is None:
                self._refusal = StoreError(f"{self._name} is closed")
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while group := self._next_group():
            try:
                results = self._commit(group)
            except Exception as failed:
                logger.exception("store failed, nothing is written any more")
                self._fail(group, failed)
                return
            for entry, result in zip(group, results, strict=True):
                entry.future.set_result(result)

    def _next_group(self) -> list[_Entry]:
        """What shares the next transaction; empty when the writer is closed and all is written."""
        with self._changed:
            while not self._queue and self._refusal is None:
                self._changed.wait()
            group = list(islice(self._queue, GROUP_MAX))
            for _ in group:
                self._queue.popleft()
            return group

    def _commit(self, group: list[_Entry]) -> list[int]:
        set_durability(self._connection, durable=any(entry.durable for entry in group))
        with self._connection.begin():
            results = [entry.act(self._applier) for entry in group]
            self._applier.flush()
        return results

    def _fail(self, group: list[_Entry], cause: Exception) -> None:
        with self._changed:
            lost = [*group, *self._queue]
            self._queue.clear()
            what = lost[0].what if len(lost) == 1 else f"{lost[0].what} to {lost[-1].what}"
            self._refusal = StoreError(
                f"{self._name}: {what} not written: {reason(cause)}; nothing is written "
                "any more: mend the cause and start again"
            )
            refusal = self._refusal
        for entry in lost:
            entry.future.set_exception(refusal)
