"""The database's schema: which revision it has, which this program needs, and how it gets there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

import opus_sdn
from opus_sdn.store.base import StoreError
from opus_sdn.store.database import Database, database_of, reason

PACKAGE = Path(opus_sdn.__file__).parent
VERSION_TABLE = "alembic_version"


def upgrade(url: str) -> None:
    """Bring a database, new or old, to the revision this program needs; all or nothing, in one transaction.

    StoreError when the database is in use, not ours, newer than this program, or cannot be written.
    """
    database = database_of(url)
    claim = database.claim()
    try:
        upgrade_claimed(database)
    finally:
        claim.release()


def downgrade(url: str, revision: str) -> None:
    """Take a database back to an older revision, all or nothing; `base` removes all tables."""
    database = database_of(url)
    claim = database.claim()
    try:
        _migrate(database, lambda settings: command.downgrade(settings, revision))
    finally:
        claim.release()


def upgrade_claimed(database: Database) -> None:
    """As `upgrade`, for a caller that has claimed the database."""
    since = database.closed_in_order_since()  # first: opening it leaves traces

    def act(settings: Config) -> None:
        settings.attributes["closed_in_order_since"] = since
        command.upgrade(settings, "head")

    _migrate(database, act)


@cache
def head() -> str:
    """The revision that this program needs."""
    found = ScriptDirectory.from_config(settings_for(None)).get_current_head()
    assert found is not None, "there is a first migration"
    return found


@cache
def revisions() -> tuple[str, ...]:
    """All revisions that this program knows, oldest first."""
    scripts = ScriptDirectory.from_config(settings_for(None))
    return tuple(script.revision for script in reversed(list(scripts.walk_revisions())))


def current(url: str) -> str | None:
    """The database's revision; None when new (no file, or no tables). StoreError when it is not ours."""
    return revision_of(database_of(url))


def check(url: str) -> str | None:
    """None when the database has the revision this program needs, else a sentence that says what to do."""
    database = database_of(url)
    try:
        found = revision_of(database)
    except StoreError as unusable:
        return str(unusable)
    return fault_of(database, found)


def fault_of(database: Database, found: str | None) -> str | None:
    """As `check`, for a revision that was found there."""
    needed = head()
    if found == needed:
        return None
    if found is None:
        return f"{database.name} has no tables yet, revision {needed} is needed: run `opus db upgrade`"
    if found not in revisions():
        return (
            f"{database.name} has revision {found}, which this program does not know (its newest is "
            f"{needed}): use the program that wrote it, or a newer one"
        )
    return f"{database.name} has revision {found}, {needed} is needed: run `opus db upgrade`"


def revision_of(database: Database) -> str | None:
    """As `current`. Reads only: a database that does not exist is not made."""
    tables = database.tables()
    if VERSION_TABLE in tables:
        return tables[VERSION_TABLE]
    if tables:
        raise StoreError(
            f"{database.name} holds tables of something else ({', '.join(sorted(tables)[:5])}): "
            "name another database"
        )
    return None


def revision_in(connection: Connection) -> str | None:
    """The revision, by a connection to a database that is known to be ours."""
    return connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()  # noqa: S608


def settings_for(connection: Connection | None, package: Path = PACKAGE) -> Config:
    """Alembic's settings. Migrations lie inside the package when installed, beside it in the source tree."""
    folders = [package / "migrations", package.parent / "migrations"]
    found = [folder for folder in folders if (folder / "env.py").is_file()]
    if not found:
        raise StoreError(
            f"migrations are neither in {folders[0]} nor in {folders[1]}: install opus-sdn again"
        )
    settings = Config()
    settings.set_main_option("script_location", str(found[0]).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


def _migrate(database: Database, act: Callable[[Config], None]) -> None:
    found = revision_of(database)  # refuses what is not ours before anything is written
    engine = database.migration_engine()
    try:
        with engine.begin() as connection:
            if found is not None:
                database.must_not_be_led(connection)
            act(settings_for(connection))
            database.verify(connection)
    except (SQLAlchemyError, CommandError) as failed:
        raise StoreError(
            f"{database.name} cannot be migrated: {reason(failed)}; nothing was changed"
        ) from failed
    finally:
        engine.dispose()
