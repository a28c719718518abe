"""The schema goes up, down and up, is what the rows say, and every other database is left as it is."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory

import opus_sdn
from opus_sdn.intent.changes import EventAppended
from opus_sdn.store import migrate
from opus_sdn.store.base import StoreError
from opus_sdn.store.sql import SqlStore
from opus_sdn.store.sqlite import migration_engine
from tests.store.world import batch, checked, granted, planned, started

OpenSql = Callable[..., SqlStore]

OURS = {
    "meta",
    "fabric",
    "rails",
    "ports",
    "switches",
    "circuits",
    "jobs",
    "groups",
    "intents",
    "locks",
    "marks",
    "steps",
    "events",
}


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in found} - {"alembic_version"}


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_database_with_content_goes_up_down_and_up(path: Path, open_sql: OpenSql) -> None:
    url = f"sqlite:///{path}"
    store = open_sql()
    store.put_fabric("one", (("h0:0:0", "r0", "sw0", 0),), (("r0", "sw0"),))
    store.submit(batch(1, started(), checked(), granted(), planned(), EventAppended("x"))).result(timeout=60)
    store.close()
    migrate.upgrade(url)
    assert migrate.check(url) is None
    assert tables(path) == OURS
    store = open_sql()
    assert len(store.snapshot().locks) == 2, "an upgrade that changes nothing keeps everything"
    store.close()
    migrate.downgrade(url, "base")
    assert tables(path) == set()
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert tables(path) == OURS
    assert migrate.current(url) == migrate.head()
    assert open_sql().snapshot().locks == ()


def test_the_migrations_make_what_the_rows_say(path: Path) -> None:
    engine = migration_engine(path)
    with engine.begin() as connection:
        command.check(migrate.settings_for(connection))
    engine.dispose()


def test_there_is_one_line_of_revisions() -> None:
    scripts = ScriptDirectory.from_config(migrate.settings_for(None))
    assert scripts.get_heads() == [migrate.head()]
    assert len(scripts.get_bases()) == 1


def test_a_new_database_gets_its_tables_when_it_is_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    store = SqlStore(url)
    assert migrate.check(url) is None, "also while it is open"
    assert store.raise_start() == 1
    store.close()


def test_looking_at_a_database_does_not_make_it(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    assert migrate.current(f"sqlite:///{path}") is None
    said = migrate.check(f"sqlite:///{path}")
    assert said is not None
    assert "has no tables yet" in said
    assert "run `opus db upgrade`" in said
    assert not path.exists()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE alembic_version SET version_num = '9999'",
            "revision 9999, which this program does not know",
        ),
        ("DROP TABLE alembic_version", "holds tables of something else"),
    ],
)
def test_a_database_of_something_else_is_refused_and_left_as_it_is(
    path: Path, statement: str, said: str
) -> None:
    url = f"sqlite:///{path}"
    execute(path, statement)
    before = path.read_bytes()
    found = migrate.check(url)
    assert found is not None
    assert said in found
    with pytest.raises(StoreError, match=said):
        SqlStore(url)
    with pytest.raises(StoreError):
        migrate.upgrade(url)
    assert path.read_bytes() == before


def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    url = f"sqlite:///{path}"
    migrate.downgrade(url, "base")
    execute(path, "CREATE TABLE events (x)")  # the last table that the first revision makes
    execute(path, "INSERT INTO events VALUES (1)")
    with pytest.raises(
        StoreError, match="cannot be migrated: table events already exists; nothing was changed"
    ):
        migrate.upgrade(url)
    assert tables(path) == {"events"}


def test_migrations_are_found_in_the_source_tree_and_inside_an_installed_package(tmp_path: Path) -> None:
    source = Path(opus_sdn.__file__).parent
    in_tree = migrate.settings_for(None).get_main_option("script_location")
    assert in_tree == str(source.parent / "migrations")
    package = tmp_path / "site-packages" / "opus_sdn"
    with pytest.raises(StoreError, match="migrations are neither in"):
        migrate.settings_for(None, package)
    shutil.copytree(source.parent / "migrations", package / "migrations")
    installed = migrate.settings_for(None, package)
    assert installed.get_main_option("script_location") == str(package / "migrations")
    assert ScriptDirectory.from_config(installed).get_current_head() == migrate.head()
