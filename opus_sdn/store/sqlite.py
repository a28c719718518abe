"""How SQLite is opened: one writing connection, several reading ones, and what a commit waits for.

The log of changes (WAL) lets readers go on while one connection writes. A commit is either `FULL`, which
waits until the log is on the disk, or `NORMAL`, which hands the log to the operating system: that survives
the death of the process by any signal, and is lost when the machine loses power.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, QueuePool, StaticPool, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from opus_sdn.store.base import StoreError

BUSY_TIMEOUT_S = 5.0  # only tools beside the controller can make anyone wait
# Pages of 4 KiB in the log before a commit copies them into the database file, with two waits for the disk.
# The same few pages change with every run, so a longer log makes this rarer at hardly more work each time;
# the price is a longer log to read after a crash.
CHECKPOINT_PAGES = 8192
LOG_MAX_BYTES = 64 * 1024 * 1024  # the log is cut to this after a checkpoint
READERS_MAX = 16
READER_WAIT_S = 30.0


def database_path(url: str) -> Path:
    """The file behind `sqlite:///PATH`, links resolved: one file has one lock. StoreError otherwise."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        # The text may hold a password: say what is right, not what it was.
        raise StoreError("database address is not an SQLAlchemy URL: use sqlite:///PATH") from None
    shown = parsed.render_as_string(hide_password=True)
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite"}:
        raise StoreError(f"database {shown} is not supported: use sqlite:///PATH, as sqlite:///opus.db")
    name = parsed.database
    if not name or name == ":memory:" or name.startswith("file:") or parsed.query:
        raise StoreError(f"database {shown} does not name a file: use sqlite:///PATH, as sqlite:///opus.db")
    return Path(name).resolve()


def writer_engine(path: Path) -> Engine:
    """The engine of the one writing connection: each transaction takes the write lock when it begins."""
    engine = _engine(path, StaticPool, "BEGIN IMMEDIATE")

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(f"database {path} is in journal mode {mode!r}, wal is needed: use a local disk")
        connection.execute(f"PRAGMA journal_size_limit={LOG_MAX_BYTES}")
        connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        connection.execute("PRAGMA foreign_keys=ON")

    return engine


def reader_engine(path: Path) -> Engine:
    """The engine of reading connections, for any thread: each transaction sees one moment."""
    engine = _engine(
        path, QueuePool, "BEGIN", pool_size=4, max_overflow=READERS_MAX - 4, pool_timeout=READER_WAIT_S
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA query_only=ON")

    return engine


def migration_engine(path: Path) -> Engine:
    """The engine for changing the schema: foreign keys are off, as tables may be copied and replaced."""
    return _engine(path, NullPool, "BEGIN IMMEDIATE")


def set_durability(connection: Connection, *, durable: bool) -> None:
    """What the next commits wait for: the disk, or the operating system. Not within a transaction."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    driver.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")


def reason(failed: Exception) -> str:
    """What the database said, without the statement that SQLAlchemy adds to it."""
    return str(getattr(failed, "orig", None) or failed)


def _engine(
    path: Path, pool: type[NullPool | QueuePool | StaticPool], begin: str, **options: object
) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=pool,
        hide_parameters=True,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        **options,
    )

    @event.listens_for(engine, "connect")
    def _manual(connection: sqlite3.Connection, _record: object) -> None:
        # Python's driver would begin transactions late and as readers; `_begin` below does it instead.
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
