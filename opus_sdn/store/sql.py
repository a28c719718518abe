"""The store on an SQL database: one file of SQLite, one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from opus_sdn.intent.changes import Batch
from opus_sdn.store import migrate, rules
from opus_sdn.store.apply import Applier
from opus_sdn.store.base import EventRecord, Snapshot, StoreError
from opus_sdn.store.lockfile import ExclusiveLock
from opus_sdn.store.read import read_events, read_snapshot
from opus_sdn.store.sqlite import database_path, reader_engine, reason, writer_engine
from opus_sdn.store.writer import QUEUE_MAX, Writer

T = TypeVar("T")


class SqlStore:
    """Implements `Store`. A new database gets its tables; an old one is upgraded by its operator first.

    `events_max` events are kept, the newest; at most `queue_max` batches wait for the disk. Raises StoreError
    when the database is in use by another process, has another revision, or cannot be opened.
    """

    def __init__(self, url: str, *, events_max: int = rules.EVENTS_MAX, queue_max: int = QUEUE_MAX) -> None:
        if events_max < 1:
            raise ValueError(f"events_max is {events_max}: keep at least 1, the numbering goes on from it")
        self._path = database_path(url)
        self._closed = False
        with ExitStack() as opened:
            self._lock = ExclusiveLock(self._path)
            opened.callback(self._lock.release)
            if migrate.revision_of(self._path) is None:
                migrate.upgrade_locked(self._path)
            fault = migrate.check(url)
            if fault is not None:
                raise StoreError(fault)
            try:
                engine = writer_engine(self._path)
                opened.callback(engine.dispose)
                connection = opened.enter_context(engine.connect())
                with connection.begin():
                    applier = Applier(connection, events_max)
            except SQLAlchemyError as failed:
                raise StoreError(
                    f"database {self._path} cannot be opened: {reason(failed)}; "
                    "it needs a local disk with free space that this user may write to"
                ) from failed
            self._reader = reader_engine(self._path)
            opened.callback(self._reader.dispose)
            self._writer = Writer(connection, applier, f"database {self._path}", queue_max)
            opened.callback(self._writer.close)
            self._opened = opened.pop_all()

    def raise_start(self) -> int:
        """Count one more start of the controller, on disk; the number of this start."""
        self._must_be_usable()
        return self._writer.submit(Applier.raise_start, durable=True, what="start number").result()

    def put_fabric(
        self,
        document: str,
        ports: tuple[tuple[str, str, str, int], ...],
        rails: tuple[tuple[str, str], ...],
    ) -> int:
        """Store the fabric, on disk; its generation, which rises only when the document differs."""
        rules.check_fabric_rows(ports, rails)
        self._must_be_usable()

        def act(applier: Applier) -> int:
            return applier.put_fabric(document, ports, rails)

        return self._writer.submit(act, durable=True, what="fabric").result()

    def submit(self, batch: Batch) -> Future[int]:
        """Queue a batch. The future completes after its commit, in the order of submission."""
        refusal = self._refusal()
        if refusal is not None:
            lost: Future[int] = Future()
            lost.set_exception(refusal)
            return lost

        def act(applier: Applier) -> int:
            return applier.batch(batch)

        return self._writer.submit(act, durable=batch.durable, what=f"batch {batch.id}")

    def snapshot(self) -> Snapshot:
        """Everything current."""
        return self._read(read_snapshot)

    def events(
        self, since: int, limit: int, job: str | None = None, kind: str | None = None
    ) -> list[EventRecord]:
        """Events with seq > since, oldest first. ValueError for a limit above 1000."""
        rules.check_events_limit(limit)
        return self._read(lambda connection: read_events(connection, since, limit, job, kind))

    def close(self) -> None:
        """Write what is queued, then let go of the database. In a forked child nothing is touched."""
        if self._closed or not self._lock.held:
            return
        self._closed = True
        self._opened.close()

    def _read(self, act: Callable[[Connection], T]) -> T:
        self._must_be_usable()
        try:
            with self._reader.begin() as connection:
                return act(connection)
        except SQLAlchemyError as failed:
            raise StoreError(f"database {self._path} cannot be read: {reason(failed)}") from failed

    def _must_be_usable(self) -> None:
        refusal = self._refusal()
        if refusal is not None:
            raise refusal

    def _refusal(self) -> StoreError | None:
        """Connections must not be used after a fork, and SQLAlchemy would open new ones after `close`."""
        if self._closed:
            return StoreError(f"database {self._path} is closed")
        if not self._lock.held:
            return StoreError(f"database {self._path} belongs to the process that this one was forked from")
        return None
