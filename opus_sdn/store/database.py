"""The databases that a store can be kept in, each behind the same few questions.

What differs between them stands in `sqlite.py` and `postgres.py`; all else of the store is written once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from opus_sdn.store.base import StoreError

USE = "use sqlite:///PATH, as sqlite:///opus.db, or postgresql://USER@HOST/DATABASE"


class Claim(Protocol):
    """The right of this process to use a database."""

    @property
    def held(self) -> bool:
        """False after `release`, and in a forked child."""
        ...

    def release(self) -> None:
        """Let go of the right; once is enough."""
        ...


class Database(ABC):
    """One database. `name` is how messages call it, without secrets; engines are the caller's to dispose."""

    name: str
    # Builds an INSERT of this database, which knows `on_conflict_do_update` and `excluded`.
    insert: Callable[[Table], Any]

    @abstractmethod
    def claim(self) -> Claim:
        """Take the right to use the database. StoreError when another process of this machine has it."""

    @abstractmethod
    def tables(self) -> dict[str, str | None]:
        """Its tables, that of the schema's revision with the revision; empty when new or not there.

        Reads only: a database that does not exist is not made. StoreError when it cannot be read.
        """

    @abstractmethod
    def writer_engine(self) -> Engine:
        """For the one writing connection: each transaction has the right to write when it begins."""

    @abstractmethod
    def reader_engine(self) -> Engine:
        """For reading connections of any thread: each transaction sees one moment."""

    @abstractmethod
    def migration_engine(self) -> Engine:
        """For changing the schema: one process at a time, all or nothing."""

    @abstractmethod
    def writing(self, connection: Connection, *, durable: bool) -> AbstractContextManager[object]:
        """A transaction whose commit waits for the disk if `durable`, else survives the process only."""

    @abstractmethod
    def must_not_be_led(self, connection: Connection) -> None:
        """Before a migration, in its transaction: StoreError when a controller decides on this database."""

    @abstractmethod
    def steps_file(self) -> Path | None:
        """Where a process says which commands may be under way; None when the next one may not see that."""

    @abstractmethod
    def closed_in_order_since(self) -> float | None:
        """If whoever used it last has closed it: since when the machine has not lost power; None if unknown.

        In seconds since 1970. What was written since then and before it was closed is all there.
        """

    @abstractmethod
    def verify(self, connection: Connection) -> None:
        """After a migration, in its transaction: StoreError when rows would point nowhere."""

    @abstractmethod
    def check(self, connection: Connection) -> None:
        """Before anything is written: StoreError when the database is damaged."""

    @abstractmethod
    def remedy(self, failed: BaseException) -> str:
        """What to do about a failure, as the end of a message."""

    @abstractmethod
    def is_gone(self, failed: Exception) -> bool:
        """Whether this failure means that the connection is lost, so that a new one may go on."""


def database_of(url: str) -> Database:
    """The database at an SQLAlchemy URL. StoreError says what is wrong, without a password."""
    from opus_sdn.store.postgres import PostgresDatabase
    from opus_sdn.store.sqlite import SqliteDatabase

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The text may hold a password: say what is right, not what it was.
        raise StoreError(f"database address is not an SQLAlchemy URL: {USE}") from None
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            return SqliteDatabase(parsed)
        case "postgresql" | "postgresql+psycopg":
            return PostgresDatabase(parsed)
    raise StoreError(f"database {parsed.drivername}://... is not supported: {USE}")


def reason(failed: BaseException) -> str:
    """What the database said, in one line, without the statement that SQLAlchemy adds to it."""
    return " ".join(str(getattr(failed, "orig", None) or failed).split())
