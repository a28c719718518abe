"""How SQLite is opened: one writing connection, several reading ones, and what a commit waits for.

The log of changes (WAL) lets readers go on while one connection writes. A commit is either `FULL`, which
waits until the log is on the disk, or `NORMAL`, which hands the log to the operating system: that survives
the death of the process by any signal, and is lost when the machine loses power.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, QueuePool, StaticPool, create_engine, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import URL

from opus_sdn.store import filesystem
from opus_sdn.store.base import StoreError
from opus_sdn.store.database import Database
from opus_sdn.store.lockfile import ExclusiveLock

BUSY_TIMEOUT_S = 5.0  # only tools beside the controller can make anyone wait
# Pages of 4 KiB in the log before a commit copies them into the database file, with two waits for the disk.
# The same few pages change with every run, so a longer log makes this rarer at hardly more work each time;
# the price is a longer log to read after a crash.
CHECKPOINT_PAGES = 8192
LOG_MAX_BYTES = 64 * 1024 * 1024  # the log is cut to this after a checkpoint
READERS_MAX = 16
READER_WAIT_S = 30.0
VERSION_TABLE = "alembic_version"


class SqliteDatabase(Database):
    """One file on a local disk, for one process at a time."""

    def __init__(self, url: URL) -> None:
        """The file behind `sqlite:///PATH`, links resolved: one file has one lock. StoreError otherwise."""
        name = url.database
        if not name or name == ":memory:" or name.startswith("file:") or url.query:
            shown = url.render_as_string(hide_password=True)
            raise StoreError(
                f"database {shown} does not name a file: use sqlite:///PATH, as sqlite:///opus.db"
            )
        self.path = Path(name).resolve()
        self.name = f"database {self.path}"
        self.insert = insert

    def claim(self) -> ExclusiveLock:
        """The lock file beside the database, on a local disk."""
        network = filesystem.network_kind(self.path.parent)
        if network is not None:
            raise StoreError(
                f"{self.name} is on a network file system ({network}), where its locks do not hold: name a "
                "file on a local disk, or use PostgreSQL"
            )
        return ExclusiveLock(self.path)

    def tables(self) -> dict[str, str | None]:
        """As `Database.tables`."""
        if not self.path.exists():
            return {}
        try:
            with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as connection:
                names = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
                found: dict[str, str | None] = dict.fromkeys(name for (name,) in names)
                if VERSION_TABLE in found:
                    row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608
                    found[VERSION_TABLE] = None if row is None else str(row[0])
        except sqlite3.Error as failed:
            raise StoreError(f"{self.name} cannot be read: {failed}; {_remedy(failed)}") from failed
        return found

    def check(self, connection: Connection) -> None:
        """Look through all that is needed to go on. History is left out: it is long, and only for reading."""
        for name in sorted(self.tables().keys() - {"events"}):
            for (found,) in connection.exec_driver_sql(f"PRAGMA quick_check('{name}')"):
                if found != "ok":
                    raise StoreError(f"{self.name} is damaged: {found}; restore it from a copy")

    def writer_engine(self) -> Engine:
        """Each transaction takes the write lock when it begins."""
        engine = self._engine(StaticPool, "BEGIN IMMEDIATE")

        @event.listens_for(engine, "connect")
        def _prepare(connection: sqlite3.Connection, _record: object) -> None:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise StoreError(f"{self.name} is in journal mode {mode!r}, wal is needed: use a local disk")
            connection.execute(f"PRAGMA journal_size_limit={LOG_MAX_BYTES}")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
            connection.execute("PRAGMA foreign_keys=ON")

        return engine

    def reader_engine(self) -> Engine:
        """For any thread: each transaction sees one moment."""
        engine = self._engine(
            QueuePool, "BEGIN", pool_size=4, max_overflow=READERS_MAX - 4, pool_timeout=READER_WAIT_S
        )

        @event.listens_for(engine, "connect")
        def _prepare(connection: sqlite3.Connection, _record: object) -> None:
            connection.execute("PRAGMA query_only=ON")

        return engine

    def migration_engine(self) -> Engine:
        """Foreign keys are off, as tables may be copied and replaced."""
        return self._engine(NullPool, "BEGIN IMMEDIATE")

    @contextmanager
    def writing(self, connection: Connection, *, durable: bool) -> Iterator[None]:
        """What a commit waits for is a setting of the connection, made before the transaction begins."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        with connection.begin():
            yield

    def must_not_be_led(self, connection: Connection) -> None:
        """Nothing: the claim says so."""

    def steps_file(self) -> Path | None:
        """As `Database.steps_file`."""
        return self.path.with_name(f"{self.path.name}.steps")

    def closed_in_order_since(self) -> float | None:
        """The last one to close the file removes its log; whoever is killed leaves it there."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists() and log.stat().st_size:
            return None
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def verify(self, connection: Connection) -> None:
        """What foreign keys would have refused while they were off."""
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if broken is not None:
            raise StoreError(f"{self.name}: rows of {broken[0]} would point nowhere; nothing was changed")

    def remedy(self, failed: BaseException) -> str:
        """By what SQLite said."""
        return _remedy(getattr(failed, "orig", None) or failed)

    def is_gone(self, failed: Exception) -> bool:
        """Never: there is no connection that could be lost."""
        return False

    def _engine(self, pool: type[NullPool | QueuePool | StaticPool], begin: str, **options: object) -> Engine:
        engine = create_engine(
            URL.create("sqlite", database=str(self.path)),
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


def _remedy(failed: BaseException) -> str:
    """What to do about an error of SQLite."""
    code = getattr(failed, "sqlite_errorcode", 0) & 0xFF  # without the details above it
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return "name another file, or restore it from a copy"
    if code == sqlite3.SQLITE_FULL:
        return "free space on its disk"
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return "another program holds it locked, as a shell or a backup that writes to it: end that one"
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN}:
        return "it needs an existing folder and a file that this user may write to"
    return "it needs a local disk with free space that this user may write to"
