"""The database's schema: which revision it has, which this program needs, and how it gets there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
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
from opus_sdn.store.lockfile import ExclusiveLock
from opus_sdn.store.sqlite import database_path, migration_engine, reason

PACKAGE = Path(opus_sdn.__file__).parent


def upgrade(url: str) -> None:
    """Bring a database, new or old, to the revision this program needs; all or nothing, in one transaction.

    StoreError when the database is in use, not ours, newer than this program, or cannot be written.
    """
    path = database_path(url)
    lock = ExclusiveLock(path)
    try:
        upgrade_locked(path)
    finally:
        lock.release()


def downgrade(url: str, revision: str) -> None:
    """Take a database back to an older revision, all or nothing; `base` removes all tables."""
    path = database_path(url)
    lock = ExclusiveLock(path)
    try:
        _migrate(path, lambda settings: command.downgrade(settings, revision))
    finally:
        lock.release()


def upgrade_locked(path: Path) -> None:
    """As `upgrade`, for a caller that holds the database's lock."""
    _migrate(path, lambda settings: command.upgrade(settings, "head"))


@cache
def head() -> str:
    """The revision that this program needs."""
    found = ScriptDirectory.from_config(settings_for(None)).get_current_head()
    assert found is not None, "there is a first migration"
    return found


def current(url: str) -> str | None:
    """The database's revision; None when new (no file, or no tables). StoreError when it is not ours."""
    return revision_of(database_path(url))


def check(url: str) -> str | None:
    """None when the database has the revision this program needs, else a sentence that says what to do."""
    path = database_path(url)
    try:
        found = revision_of(path)
    except StoreError as unusable:
        return str(unusable)
    needed = head()
    if found == needed:
        return None
    if found is None:
        return f"database {path} has no tables yet, revision {needed} is needed: run `opus db upgrade`"
    scripts = ScriptDirectory.from_config(settings_for(None))
    if found not in {script.revision for script in scripts.walk_revisions()}:
        return (
            f"database {path} has revision {found}, which this program does not know (its newest is "
            f"{needed}): use the program that wrote it, or a newer one"
        )
    return f"database {path} has revision {found}, {needed} is needed: run `opus db upgrade`"


def revision_of(path: Path) -> str | None:
    """As `current`, by path. Reads only: a database that does not exist is not made."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            tables = {
                name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            }
            if "alembic_version" in tables:
                row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
                return None if row is None else str(row[0])
    except sqlite3.Error as failed:
        raise StoreError(
            f"database {path} cannot be read: {failed}; name another file, or restore it from a copy"
        ) from failed
    if tables:
        raise StoreError(
            f"database {path} holds tables of something else ({', '.join(sorted(tables)[:5])}): "
            "name another file"
        )
    return None


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


def _migrate(path: Path, act: Callable[[Config], None]) -> None:
    revision_of(path)  # refuses what is not ours before anything is written
    engine = migration_engine(path)
    try:
        with engine.begin() as connection:
            act(settings_for(connection))
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            if broken is not None:
                raise StoreError(
                    f"database {path}: rows of {broken[0]} would point nowhere; nothing was changed"
                )
    except (SQLAlchemyError, CommandError) as failed:
        raise StoreError(
            f"database {path} cannot be migrated: {reason(failed)}; nothing was changed"
        ) from failed
    finally:
        engine.dispose()
