"""The one writing connection: transactions that are numbered, and what is done when one is cut off.

Every transaction raises the number of commits by one under the start number of its writer. So a writer whose
start number is no longer the newest is refused by the database itself; and when the connection is lost while
a transaction commits, a new connection reads from the number whether it is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, select, update

from opus_sdn.store.apply import Applier, Statements, statements_of
from opus_sdn.store.base import CommitsLostError, StaleEpochError
from opus_sdn.store.database import Database
from opus_sdn.store.rows import MetaRow, table
from opus_sdn.store.rules import Retention

RECONNECT_S = 10.0  # how long a lost connection is tried again before the store has failed
PAUSE_S = (0.05, 1.0)

_META = table(MetaRow)
_NUMBERS = select(_META.c.start_number, _META.c.commits)

Act = Callable[[Applier], int]


class _NotNextError(Exception):
    """The number of commits is not what the last transaction left, or the start number has risen."""


class Session:
    """Used by one thread. A failure other than StoreBusyError leaves it unusable."""

    def __init__(self, database: Database, retention: Retention, *, reconnect_s: float = RECONNECT_S) -> None:
        self._database = database
        self._retention = retention
        self._statements: Statements = statements_of(database.insert)
        self._reconnect_s = reconnect_s
        self._no_more_tries = threading.Event()
        self._engine = database.writer_engine()
        try:
            self._connection = self._engine.connect()
            with self._connection.begin():
                database.check(self._connection)
                self._start, self._commits = self._numbers()
                self._load()
        except BaseException:
            self._engine.dispose()
            raise

    def give_up(self) -> None:
        """Do not wait for a lost connection any more. For any thread."""
        self._no_more_tries.set()

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()
        self._engine.dispose()

    def commit(self, acts: Sequence[Act], *, durable: bool) -> list[int]:
        """Carry out the acts in one transaction; what each of them returned, once it is committed.

        A lost connection is made anew and the transaction read back, or carried out again, for a while.
        Raises StaleEpochError, CommitsLostError, and whatever the database or an act raises.
        """
        give_up_at = time.monotonic() + self._reconnect_s
        results: list[int] | None = None  # known from when the transaction may have been committed
        cut_off = False
        while True:
            try:
                if cut_off and self._is_there(results is not None):
                    assert results is not None
                    return results
                with self._database.writing(self._connection, durable=durable):
                    self._count()
                    done = [act(self._applier) for act in acts]
                    self._applier.flush()
                    results = done
            except _NotNextError:
                cut_off = True
            except Exception as failed:
                if not self._database.is_gone(failed):
                    raise
                self._reconnect(failed, give_up_at)
                cut_off = True
            else:
                self._commits += 1
                return results

    def take_over(self, may: Callable[[Connection, int], None]) -> int:
        """Raise the start number, on disk: from then on only this session writes. The new number.

        `may` is called in the same transaction, with the new number, and raises when it must not be.
        """
        with self._database.writing(self._connection, durable=True):
            row = self._connection.execute(
                update(_META)
                .values(
                    start_number=_META.c.start_number + 1,
                    commits=_META.c.commits + 1,
                    began_clean=_META.c.ended_clean,
                    ended_clean=False,
                )
                .returning(_META.c.start_number, _META.c.commits)
            ).one()
            may(self._connection, row.start_number)
            # Others may have written since this session was opened; from here on they cannot.
            self._load()
        self._start, self._commits = int(row.start_number), int(row.commits)
        return self._start

    def mark_clean(self, _applier: Applier) -> int:
        """An act: this start has ended in order."""
        self._connection.execute(update(_META).values(ended_clean=True))
        return 0

    def _numbers(self) -> tuple[int, int]:
        row = self._connection.execute(_NUMBERS).one()
        return int(row.start_number), int(row.commits)

    def _load(self) -> None:
        self._applier = Applier(self._connection, self._statements, self._retention)

    def _count(self) -> None:
        counted = self._connection.execute(
            update(_META)
            .where(_META.c.start_number == self._start, _META.c.commits == self._commits)
            .values(commits=self._commits + 1)
        )
        if counted.rowcount != 1:
            raise _NotNextError

    def _is_there(self, maybe: bool) -> bool:
        """Whether the transaction that was cut off, which `maybe` was committed, is there."""
        with self._connection.begin():
            start, commits = self._numbers()
            self._load()
        ahead = commits - self._commits
        if start != self._start or ahead > int(maybe):
            raise StaleEpochError(
                f"{self._database.name}: another process writes there now, under start {start}; "
                f"start {self._start} may not any more"
            )
        if ahead < 0:
            raise CommitsLostError(
                f"{self._database.name} was started anew without its last {-ahead} transactions: ranks have "
                "to say again what they hold"
            )
        self._commits = commits
        return ahead == 1

    def _reconnect(self, failed: Exception, give_up_at: float) -> None:
        """A new connection, or the failure when there is none in time."""
        self._connection.invalidate()
        self._connection.close()
        pause_s = PAUSE_S[0]
        while True:
            try:
                self._connection = self._engine.connect()
            except Exception as again:
                if not self._database.is_gone(again):
                    raise
                left_s = give_up_at - time.monotonic()
                if left_s <= 0 or self._no_more_tries.wait(min(pause_s, left_s)):
                    raise failed from again
                pause_s = min(2 * pause_s, PAUSE_S[1])
            else:
                return
