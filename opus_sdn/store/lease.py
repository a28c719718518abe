"""The lease of the leader: one row of a PostgreSQL database, with the leader's epoch and the server's time.

Whoever takes the lease raises the start number in the same transaction, which is its epoch: from then on the
database refuses whatever an earlier leader still writes. The row says until when the leader leads, and until
when a device step that it started may still be under way.

The server's clock may be set, forward or back. So a candidate takes a lease that has run out only when it has
also seen it unchanged for as long as it was given, by a clock of its own that is never set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection, Engine, RowMapping, text
from sqlalchemy.exc import SQLAlchemyError

from opus_sdn.store.base import StoreError
from opus_sdn.store.database import database_of, reason
from opus_sdn.store.postgres import PostgresDatabase

# When the statement reached the server: the same wherever it stands in it, and never too late.
NOW = "extract(epoch FROM statement_timestamp())::double precision"
_READ = text(f"SELECT *, {NOW} AS now FROM lease WHERE id = 1")  # noqa: S608
_READ_LOCKED = text(f"SELECT *, {NOW} AS now FROM lease WHERE id = 1 FOR UPDATE")  # noqa: S608
_TAKE = text(
    "INSERT INTO lease (id, epoch, holder, address, renewals, renewed_at, expires_at, quiet_at) "  # noqa: S608
    f"VALUES (1, :epoch, :holder, :address, 0, {NOW}, {NOW} + :ttl, {NOW} + :ttl + :step) "
    "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, holder = excluded.holder, "
    "address = excluded.address, renewals = 0, renewed_at = excluded.renewed_at, "
    "expires_at = excluded.expires_at, quiet_at = greatest(lease.quiet_at, excluded.quiet_at)"
)
_RENEW = text(
    f"UPDATE lease SET renewals = renewals + 1, renewed_at = {NOW}, expires_at = {NOW} + :ttl, "  # noqa: S608
    f"quiet_at = greatest(quiet_at, {NOW} + :ttl + :step) WHERE id = 1 AND epoch = :epoch"
)
_RELEASE = text(
    f"UPDATE lease SET holder = '', expires_at = {NOW}, "  # noqa: S608
    f"quiet_at = CASE WHEN :drained THEN {NOW} ELSE quiet_at END WHERE id = 1 AND epoch = :epoch"
)
# What a leader that was stopped in the middle of a transaction has locked must not keep its successor out. A
# transaction takes milliseconds: an old one is no candidate's that is about to take the lease.
_END_WRITERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'opus-sdn-writer' "
    "AND xact_start < statement_timestamp() - make_interval(secs => :stopped_s) AND EXISTS "
    "(SELECT 1 FROM lease WHERE id = 1 AND epoch = :epoch AND renewals = :renewals)"
)

T = TypeVar("T")


class LeaseHeldError(StoreError):
    """Another process leads, or was faster."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The row as read. `left_s` and `quiet_s` are negative when over; `holder` is empty when released."""

    epoch: int
    holder: str
    address: str
    renewals: int
    given_s: float  # for how long it was given when it was last renewed
    step_s: float  # how much longer than the lease a step of its holder may be under way
    left_s: float  # until it runs out, by the server's clock
    quiet_s: float  # until no step of any earlier leader can be under way


@dataclass(frozen=True, slots=True)
class _Sight:
    """Since when, by our own clock, the lease has been seen as it is."""

    epoch: int
    renewals: int
    since: float


class Lease:
    """One process's view of the lease, for one thread at a time."""

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        holder: str,
        address: str,
        ttl_s: float,
        step_deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holder = holder
        self.address = address
        self.ttl_s = ttl_s
        self._name = database.name
        self._times = {"ttl": ttl_s, "step": step_deadline_s}
        self._clock = clock
        self._sight: _Sight | None = None
        self.asked_at = 0.0  # by our clock: when the lease was taken, at the latest
        self.quiet_until = 0.0  # by our clock: before that a step of an earlier leader may be under way
        self._engine: Engine = database.lease_engine(ttl_s)

    def read(self) -> LeaseRecord | None:
        """The lease as it is now; None when nobody ever had it. StoreError without an answer."""
        row = self._ask(lambda connection: connection.execute(_READ).mappings().first())
        record = None if row is None else _record(row)
        self._look(record)
        return record

    def free_in_s(self, record: LeaseRecord | None) -> float:
        """Seconds until this process may try to take the lease that it has just read; 0 for now."""
        if record is None or not record.holder:
            return 0.0
        assert self._sight is not None
        unchanged_s = self._clock() - self._sight.since
        return max(0.0, record.left_s, record.given_s - unchanged_s)

    def take(self, connection: Connection, epoch: int) -> None:
        """Take the lease within the transaction that raises the start number to `epoch`.

        Raises LeaseHeldError when it is not free, or no longer as it was read.
        """
        self.asked_at = self._clock()
        row = connection.execute(_READ_LOCKED).mappings().first()
        record = None if row is None else _record(row)
        self._look(record)  # one that was renewed since has been seen for no time
        if self.free_in_s(record) > 0:
            assert record is not None
            raise LeaseHeldError(
                f"{self._name}: {record.holder} at {record.address} leads, under start {record.epoch}"
            )
        values = {"epoch": epoch, "holder": self.holder, "address": self.address, **self._times}
        connection.execute(_TAKE, values)
        self.quiet_until = self._quiet_until(record)

    def end_holder(self, record: LeaseRecord) -> None:
        """End a transaction that its writer has left open, unless the lease is no longer as in `record`."""
        values = {"epoch": record.epoch, "renewals": record.renewals, "stopped_s": self.ttl_s / 3}
        self._ask(lambda connection: connection.execute(_END_WRITERS, values))

    def renew(self, epoch: int) -> bool:
        """Hold the lease for another while; False when somebody else has it."""
        values = {"epoch": epoch, **self._times}
        return self._ask(lambda connection: connection.execute(_RENEW, values).rowcount == 1)

    def release(self, epoch: int, *, drained: bool) -> None:
        """Let others take the lease at once. `drained`: no device step is under way any more."""
        values = {"epoch": epoch, "drained": drained}
        self._ask(lambda connection: connection.execute(_RELEASE, values))

    def close(self) -> None:
        """Let go of the connection."""
        self._engine.dispose()

    def _quiet_until(self, before: LeaseRecord | None) -> float:
        """By the server's clock and by ours, whichever is later."""
        now = self._clock()
        if before is None:
            return now
        ended = now + before.quiet_s
        if before.holder and self._sight is not None:
            ended = max(ended, self._sight.since + before.given_s + before.step_s)
        return max(now, ended)

    def _look(self, record: LeaseRecord | None) -> None:
        if record is None:
            self._sight = None
        elif self._sight is None or (record.epoch, record.renewals) != (
            self._sight.epoch,
            self._sight.renewals,
        ):
            self._sight = _Sight(record.epoch, record.renewals, self._clock())

    def _ask(self, act: Callable[[Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return act(connection)
        except SQLAlchemyError as failed:
            raise StoreError(f"{self._name}: the lease cannot be reached: {reason(failed)}") from failed


def open_lease(url: str, *, holder: str, address: str, ttl_s: float, step_deadline_s: float) -> Lease:
    """The lease of the database at this address. StoreError for one that only one process may use."""
    database = database_of(url)
    if not isinstance(database, PostgresDatabase):
        raise StoreError(f"{database.name} is for one process: use PostgreSQL for several")
    return Lease(database, holder=holder, address=address, ttl_s=ttl_s, step_deadline_s=step_deadline_s)


def _record(row: RowMapping) -> LeaseRecord:
    return LeaseRecord(
        epoch=row["epoch"],
        holder=row["holder"],
        address=row["address"],
        renewals=row["renewals"],
        given_s=row["expires_at"] - row["renewed_at"],
        step_s=row["quiet_at"] - row["expires_at"],
        left_s=row["expires_at"] - row["now"],
        quiet_s=row["quiet_at"] - row["now"],
    )
