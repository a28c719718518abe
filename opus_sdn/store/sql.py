"""The store on an SQL database: a file of SQLite for one process, or PostgreSQL for several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from opus_sdn.intent.changes import Batch
from opus_sdn.store import migrate, rules
from opus_sdn.store.apply import Applier
from opus_sdn.store.base import EventRecord, NobodyKnows, Snapshot, StoreError, UnderWay
from opus_sdn.store.database import Claim, Database, database_of, reason
from opus_sdn.store.read import read_events, read_snapshot
from opus_sdn.store.rules import Retention
from opus_sdn.store.session import RECONNECT_S, Session
from opus_sdn.store.under_way import StepsUnderWay, boot_id
from opus_sdn.store.writer import QUEUE_MAX, Writer

T = TypeVar("T")
MayStart = Callable[[Connection, int], None]


def _always(_connection: Connection, _start: int) -> None:
    return


class SqlReader:
    """What can be asked of a database without writing, from any thread."""

    def __init__(self, database: Database, claim: Claim) -> None:
        self._database = database
        self._claim = claim
        self._closed = False
        self._engine = database.reader_engine()

    def snapshot(self) -> Snapshot:
        """Everything current."""
        return self._read(read_snapshot)

    def events(
        self, since: int, limit: int, job: str | None = None, kind: str | None = None
    ) -> list[EventRecord]:
        """Events with seq > since, oldest first. ValueError for a limit above 1000."""
        rules.check_events_limit(limit)
        return self._read(lambda connection: read_events(connection, since, limit, job, kind))

    def fault(self) -> str | None:
        """Why the database cannot be used now; None when it can."""
        try:
            found = self._read(migrate.revision_in)
        except StoreError as unusable:
            return str(unusable)
        return migrate.fault_of(self._database, found)

    def close(self) -> None:
        """Let go of the connections."""
        self._closed = True
        self._engine.dispose()

    def refusal(self) -> StoreError | None:
        """Connections must not be used after a fork, and SQLAlchemy would open new ones after `close`."""
        if self._closed:
            return StoreError(f"{self._database.name} is closed")
        if not self._claim.held:
            return StoreError(f"{self._database.name} belongs to the process that this one was forked from")
        return None

    def must_be_usable(self) -> None:
        """Raise the refusal, if any."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def _read(self, act: Callable[[Connection], T]) -> T:
        self.must_be_usable()
        try:
            with self._engine.begin() as connection:
                return act(connection)
        except SQLAlchemyError as failed:
            raise StoreError(f"{self._database.name} cannot be read: {reason(failed)}") from failed


class SqlStore:
    """Implements `Store`. A new database gets its tables; an old one is upgraded by its operator first.

    `retention` says how much history is kept; at most `queue_max` batches wait for the disk; a lost
    connection is tried again for `reconnect_s` seconds. `may_start` is called within the transaction that
    raises the start number, and raises a StoreError when it must not be; `started` hears the number after it.
    Raises StoreError when the database is in use by another process, has another revision, or cannot be
    opened.
    """

    def __init__(
        self,
        url: str,
        *,
        retention: Retention | None = None,
        queue_max: int = QUEUE_MAX,
        reconnect_s: float = RECONNECT_S,
        may_start: MayStart | None = None,
        started: Callable[[int], None] | None = None,
    ) -> None:
        database = database_of(url)
        self._may_start = may_start or _always
        self._started = started
        self._steps_file = database.steps_file()
        self._closed = False
        self._leads = False
        with ExitStack() as opened:
            self._claim = database.claim()
            opened.callback(self._claim.release)
            if migrate.revision_of(database) is None:
                migrate.upgrade_claimed(database)
            fault = migrate.fault_of(database, migrate.revision_of(database))
            if fault is not None:
                raise StoreError(fault)
            try:
                self._session = Session(database, retention or Retention(), reconnect_s=reconnect_s)
            except SQLAlchemyError as failed:
                raise StoreError(
                    f"{database.name} cannot be opened: {reason(failed)}; {database.remedy(failed)}"
                ) from failed
            opened.callback(self._session.close)
            self._reader = SqlReader(database, self._claim)
            opened.callback(self._reader.close)
            self._writer = Writer(self._session, database, queue_max)
            opened.callback(self._end_writer)
            self._opened = opened.pop_all()

    def raise_start(self) -> int:
        """Count one more start of the controller, on disk; the number of this start."""
        self._reader.must_be_usable()
        start = self._writer.take_over(self._may_start).result()
        self._leads = True
        if self._started is not None:
            self._started(start)
        return start

    def put_fabric(
        self,
        document: str,
        ports: tuple[tuple[str, str, str, int], ...],
        rails: tuple[tuple[str, str], ...],
    ) -> int:
        """Store the fabric, on disk; its generation, which rises only when the document differs."""
        rules.check_fabric_rows(ports, rails)
        self._reader.must_be_usable()

        def act(applier: Applier) -> int:
            return applier.put_fabric(document, ports, rails)

        return self._writer.submit(act, durable=True, what="fabric").result()

    def submit(self, batch: Batch) -> Future[int]:
        """Queue a batch. The future completes after its commit, in the order of submission."""
        refusal = self._reader.refusal()
        if refusal is not None:
            lost: Future[int] = Future()
            lost.set_exception(refusal)
            return lost

        def act(applier: Applier) -> int:
            return applier.batch(batch)

        return self._writer.submit(act, durable=batch.durable, what=f"batch {batch.id}")

    def under_way(self, start: int, unsettled: Iterable[int]) -> UnderWay:
        """Beside an SQLite file; a database server may be led from another machine next."""
        boot = boot_id()
        if self._steps_file is None or boot is None:
            return NobodyKnows()
        record = StepsUnderWay(self._steps_file, start, unsettled, boot)
        self._opened.callback(record.close)
        return record

    def has_room(self) -> bool:
        """Whether new requests can be taken on."""
        return self._writer.has_room()

    def fault(self) -> str | None:
        """Why the database cannot be used now; None when it can."""
        return self._reader.fault()

    def snapshot(self) -> Snapshot:
        """Everything current."""
        return self._reader.snapshot()

    def events(
        self, since: int, limit: int, job: str | None = None, kind: str | None = None
    ) -> list[EventRecord]:
        """Events with seq > since, oldest first. ValueError for a limit above 1000."""
        return self._reader.events(since, limit, job, kind)

    def close(self, *, clean: bool = True) -> None:
        """Write what is queued, then let go of the database. In a forked child nothing is touched."""
        if self._closed or not self._claim.held:
            return
        self._closed = True
        self._leads = self._leads and clean
        self._opened.close()

    def _end_writer(self) -> None:
        self._writer.close(self._session.mark_clean if self._leads else None)


class ReadOnlyStore:
    """A `Store` of a process that does not lead: what another one writes can be read, nothing else.

    Raises StoreError when the database cannot be read or has another revision. A new one gets its tables.
    """

    def __init__(self, url: str) -> None:
        database = database_of(url)
        if migrate.revision_of(database) is None:
            migrate.upgrade_claimed(database)
        fault = migrate.fault_of(database, migrate.revision_of(database))
        if fault is not None:
            raise StoreError(fault)
        self._name = database.name
        self._reader = SqlReader(database, database.claim())
        self.snapshot = self._reader.snapshot
        self.events = self._reader.events
        self.fault = self._reader.fault

    def raise_start(self) -> int:
        """Never."""
        raise self._refusal()

    def put_fabric(
        self,
        document: str,
        ports: tuple[tuple[str, str, str, int], ...],
        rails: tuple[tuple[str, str], ...],
    ) -> int:
        """Never."""
        raise self._refusal()

    def submit(self, batch: Batch) -> Future[int]:
        """Never."""
        raise self._refusal()

    def under_way(self, start: int, unsettled: Iterable[int]) -> UnderWay:
        """Never."""
        raise self._refusal()

    def has_room(self) -> bool:
        """Never."""
        return False

    def close(self, *, clean: bool = True) -> None:
        """Let go of the connections."""
        self._reader.close()

    def _refusal(self) -> StoreError:
        return StoreError(f"{self._name}: another process leads, this one only reads")
