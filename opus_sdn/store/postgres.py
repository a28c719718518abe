"""How PostgreSQL is opened, and what a commit waits for there.

A commit either waits for the disk (`synchronous_commit=on`) or not: then it survives the death of any client,
and is lost when the server is killed before it has written its log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, NoSuchModuleError, OperationalError, SQLAlchemyError

from opus_sdn.store.base import StoreError
from opus_sdn.store.database import Database, reason

CONNECT_TIMEOUT_S = 5
# A server or network that has gone silent counts as gone after this long, on both sides.
SILENCE_MS = 10_000
# A process that was stopped in the middle of a transaction must not keep others waiting for its locks.
IDLE_IN_TRANSACTION_MS = 2_000
READ_TIMEOUT_MS = 30_000
READERS_MAX = 16
READER_WAIT_S = 30.0
# Any fixed number, known to this program only: whoever changes the schema holds it until the commit.
MIGRATION_LOCK = 0x6F707573
VERSION_TABLE = "alembic_version"

NEEDS = "it needs a running PostgreSQL server, an existing UTF-8 database in it, and a user that may use it"

Settings = dict[str, str | int]


class ProcessClaim:
    """What this process opened, its forked children must not use."""

    def __init__(self) -> None:
        self._process: int | None = os.getpid()

    @property
    def held(self) -> bool:
        """False after `release`, and in a forked child."""
        return self._process == os.getpid()

    def release(self) -> None:
        """Once is enough."""
        self._process = None


class PostgresDatabase(Database):
    """One database of a PostgreSQL server, for any number of processes: the newest start number writes."""

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        self.name = f"database {shown(url)}"
        self.insert = insert

    def claim(self) -> ProcessClaim:
        """Processes do not exclude each other here."""
        return ProcessClaim()

    def tables(self) -> dict[str, str | None]:
        """As `Database.tables`."""
        engine = self._engine({}, poolclass=NullPool)
        try:
            with engine.connect() as connection:
                names = connection.exec_driver_sql(
                    "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
                )
                found: dict[str, str | None] = dict.fromkeys(names.scalars())
                if VERSION_TABLE in found:
                    versions = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608
                    found[VERSION_TABLE] = versions.scalars().first()
        except SQLAlchemyError as failed:
            raise StoreError(f"{self.name} cannot be read: {reason(failed)}; {NEEDS}") from failed
        finally:
            engine.dispose()
        return found

    def writer_engine(self) -> Engine:
        """One connection at a time, not pooled: a lost one is replaced by asking for a new one."""
        settings: Settings = {
            "application_name": "opus-sdn-writer",
            "synchronous_commit": "off",
            "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
        }
        engine = self._engine(settings, poolclass=NullPool)

        @event.listens_for(engine, "connect")
        def _check(connection: object, _record: object) -> None:
            encoding = connection.info.parameter_status("server_encoding")  # type: ignore[attr-defined]
            if encoding != "UTF8":
                raise StoreError(f"{self.name} has encoding {encoding}, UTF8 is needed: create another one")

        return engine

    def reader_engine(self) -> Engine:
        """For any thread: each transaction sees one moment. A connection that was lost is noticed first."""
        settings: Settings = {
            "application_name": "opus-sdn-reader",
            "default_transaction_read_only": "on",
            "statement_timeout": READ_TIMEOUT_MS,
        }
        return self._engine(
            settings,
            poolclass=QueuePool,
            pool_size=4,
            max_overflow=READERS_MAX - 4,
            pool_timeout=READER_WAIT_S,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
        )

    def lease_engine(self, ttl_s: float) -> Engine:
        """For the leader's lease: an answer that comes too late is as good as none.

        Renewals do not wait for the disk: one that a crash of the server takes back only looks as if it had
        been made sooner, and candidates count from what they have seen themselves.
        """
        limit_ms = max(100, int(ttl_s * 1000 / 3))
        settings: Settings = {
            "application_name": "opus-sdn-lease",
            "synchronous_commit": "off",
            "statement_timeout": limit_ms,
            "lock_timeout": limit_ms,
            "idle_in_transaction_session_timeout": limit_ms,
        }
        return self._engine(settings, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_pre_ping=True)

    def migration_engine(self) -> Engine:
        """Whoever comes second waits until the first has committed."""
        engine = self._engine({"application_name": "opus-sdn-migration"}, poolclass=NullPool)

        @event.listens_for(engine, "begin")
        def _alone(connection: Connection) -> None:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")

        return engine

    @contextmanager
    def writing(self, connection: Connection, *, durable: bool) -> Iterator[None]:
        """What a commit waits for is a setting of the transaction."""
        with connection.begin():
            if durable:
                connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
            yield

    def check(self, connection: Connection) -> None:
        """Nothing: damage is the server's to find."""

    def remedy(self, failed: BaseException) -> str:
        """Whatever it is."""
        return NEEDS

    def must_not_be_led(self, connection: Connection) -> None:
        """By the lease, where the schema has one."""
        if connection.exec_driver_sql("SELECT to_regclass('lease')").scalar() is None:
            return
        leads = connection.exec_driver_sql(
            "SELECT address FROM lease WHERE holder <> '' "
            "AND expires_at > extract(epoch FROM clock_timestamp())"
        ).scalar()
        if leads is not None:
            raise StoreError(f"{self.name} is in use by the controller at {leads}: stop all replicas first")

    def steps_file(self) -> None:
        """None: the next one to lead may be on another machine."""

    def closed_in_order_since(self) -> float | None:
        """Not known: a server may lose its newest commits whoever has closed what."""
        return None

    def verify(self, connection: Connection) -> None:
        """Nothing: foreign keys are never off."""

    def is_gone(self, failed: Exception) -> bool:
        """The server has closed the connection, or cannot be reached, or is starting or stopping."""
        if not isinstance(failed, DBAPIError):
            return False
        state = getattr(failed.orig, "sqlstate", None)
        if state is None:
            return failed.connection_invalidated or isinstance(failed, InterfaceError | OperationalError)
        # Class 08: connection; 57P: ended by an operator, a crash or a shutdown, or not up yet; 25P03: idle.
        return failed.connection_invalidated or state.startswith(("08", "57P")) or state == "25P03"

    def _engine(self, settings: Mapping[str, str | int], **options: object) -> Engine:
        arguments: dict[str, str | int] = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": SILENCE_MS,
            "keepalives_idle": SILENCE_MS // 2000,
            "keepalives_interval": 2,
            "keepalives_count": 2,
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        }
        try:
            return create_engine(
                self._url,
                hide_parameters=True,
                connect_args={**arguments, **self._given(arguments)},
                **options,
            )
        except (ModuleNotFoundError, NoSuchModuleError) as missing:
            raise StoreError(
                f"{self.name} needs the driver psycopg, which is not installed: "
                "pip install 'opus-sdn[postgres]'"
            ) from missing

    def _given(self, arguments: Mapping[str, str | int]) -> dict[str, str | int]:
        """What the operator's address says beats what would be used otherwise; `options` are joined."""
        given: dict[str, str | int] = {}
        for name, value in self._url.query.items():
            text = value if isinstance(value, str) else value[-1]
            if name in arguments:
                given[name] = f"{text} {arguments[name]}" if name == "options" else text
        return given


def shown(url: URL) -> str:
    """An address without what may be secret: the password, and the values of parameters but the host."""
    query = {
        name: value if name in {"host", "port", "dbname", "sslmode"} else "***"
        for name, value in url.query.items()
    }
    return url.set(drivername="postgresql", query=query).render_as_string(hide_password=True)
