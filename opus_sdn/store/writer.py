"""The one thread that writes: it takes all that is queued into one transaction, and answers after the commit.

Group commit: while one transaction is on its way to the disk the next batches gather, and all of them share
the next commit. So the cost of a commit is shared exactly when there is load. Order is kept, and a batch is
never split. A full queue refuses and loses nothing: whoever submits has to wait.

After a failure nothing more is written, as the core's memory is ahead of the database by what was lost: the
controller has to start a new term from what is stored.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Connection

from opus_sdn.store.apply import Applier
from opus_sdn.store.base import StoreBusyError, StoreError
from opus_sdn.store.database import Database, reason
from opus_sdn.store.session import Session

QUEUE_MAX = 16_384  # entries waiting for the writer
GROUP_MAX = 1_024  # entries in one transaction

logger = logging.getLogger(__name__)

May = Callable[[Connection, int], None]


@dataclass(frozen=True, slots=True)
class _Entry:
    """`act` for a part of a shared transaction, `may` for taking over in one of its own."""

    what: str
    durable: bool
    act: Callable[[Applier], int] | None = None
    may: May | None = None
    future: Future[int] = field(default_factory=Future)


class Writer:
    """Owns the writing session. `submit` may be called from any thread and never waits for the disk."""

    def __init__(self, session: Session, database: Database, queue_max: int) -> None:
        self._session = session
        self._name = database.name
        self._remedy = database.remedy
        self._queue_max = queue_max
        self._queue: deque[_Entry] = deque()
        self._changed = threading.Condition()
        self._refusal: StoreError | None = None
        # A process that ends without `close` is not held up by this thread; to the database it is a crash.
        self._thread = threading.Thread(target=self._run, name="opus-store-writer", daemon=True)
        self._thread.start()

    def has_room(self) -> bool:
        """Whether less than half of the queue is taken."""
        return 2 * len(self._queue) < self._queue_max

    def submit(self, act: Callable[[Applier], int], *, durable: bool, what: str) -> Future[int]:
        """Queue one entry. Its future cannot be cancelled, and holds a StoreError when the entry is lost.

        Raises StoreBusyError, with nothing queued, when too many wait already.
        """
        return self._append(_Entry(what, durable, act=act))

    def take_over(self, may: May) -> Future[int]:
        """Queue the raising of the start number, see `Session.take_over`."""
        return self._append(_Entry("start number", durable=True, may=may))

    def close(self, last: Callable[[Applier], int] | None = None) -> None:
        """Write what is queued, then `last`, durably, if nothing has failed, and end the thread."""
        with self._changed:
            if self._refusal is None:
                self._refusal = StoreError(f"{self._name} is closed")
                if last is not None:
                    self._queue.append(_Entry("end", durable=True, act=last))
            self._changed.notify()
        self._session.give_up()
        self._thread.join()

    def _append(self, entry: _Entry) -> Future[int]:
        entry.future.set_running_or_notify_cancel()
        with self._changed:
            refusal = self._refusal
            if refusal is None and len(self._queue) >= self._queue_max:
                raise StoreBusyError(
                    f"{self._name}: {len(self._queue)} entries wait for the disk already, so {entry.what} is "
                    "not taken: ask again in a second, or use a faster disk"
                )
            if refusal is None:
                self._queue.append(entry)
                self._changed.notify()
        if refusal is not None:
            entry.future.set_exception(refusal)
        return entry.future

    def _run(self) -> None:
        while group := self._next_group():
            try:
                results = self._write(group)
            except Exception as failed:  # noqa: BLE001  # whatever it is, it is told to all who wait
                self._fail(group, failed)
                return
            for entry, result in zip(group, results, strict=True):
                entry.future.set_result(result)

    def _next_group(self) -> list[_Entry]:
        """What shares the next transaction; empty when the writer is closed and all is written."""
        group: list[_Entry] = []
        with self._changed:
            while not self._queue and self._refusal is None:
                self._changed.wait()
            while self._queue and len(group) < GROUP_MAX:
                if self._queue[0].may is not None:
                    return group or [self._queue.popleft()]
                group.append(self._queue.popleft())
        return group

    def _write(self, group: list[_Entry]) -> list[int]:
        first = group[0]
        if first.may is not None:
            return [self._session.take_over(first.may)]
        acts = [entry.act for entry in group if entry.act is not None]
        return self._session.commit(acts, durable=any(entry.durable for entry in group))

    def _fail(self, group: list[_Entry], cause: Exception) -> None:
        with self._changed:
            lost = [*group, *self._queue]
            self._queue.clear()
            what = lost[0].what if len(lost) == 1 else f"{lost[0].what} to {lost[-1].what}"
            if isinstance(cause, StoreError) and type(cause) is not StoreError:
                self._refusal = cause  # its kind says what to do
            else:
                remedy = "mend the cause" if isinstance(cause, StoreError) else self._remedy(cause)
                self._refusal = StoreError(
                    f"{self._name}: {what} not written: {reason(cause)}; nothing is written "
                    f"any more until it is opened again: {remedy}"
                )
            refusal = self._refusal
        if not isinstance(cause, StoreError):
            logger.error("store failed, nothing is written any more", exc_info=cause)
        for entry in lost:
            entry.future.set_exception(refusal)
