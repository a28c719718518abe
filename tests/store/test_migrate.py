"""The schema goes up, down and up, is what the rows say, and every other database is left as it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

import opus_sdn
from opus_sdn.store import migrate
from opus_sdn.store.base import Snapshot, StoreError
from opus_sdn.store.database import database_of
from opus_sdn.store.sql import SqlStore
from tests.store.world import World

OpenSql = Callable[..., SqlStore]

OURS = {
    "meta",
    "lease",
    "left_ranks",
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
    "circuit_owners",
    "directives",
}
LATER = {"lease", "circuit_owners", "left_ranks", "directives"}  # than the first revision
COLUMNS = {
    "circuits": "switch, ingress, egress",
    "jobs": "job, incarnation, spec, state, cause, detail, started_at, settled_at",
}  # of the first one


def tables(url: str) -> set[str]:
    return set(database_of(url).tables()) - {"alembic_version"}


def execute(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def content(url: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables that every revision has."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {
            name: sorted(
                map(tuple, connection.exec_driver_sql(f"SELECT {COLUMNS.get(name, '*')} FROM {name}")),
                key=repr,
            )
            for name in OURS - LATER - {"meta"}
        }
    engine.dispose()
    return found


def as_first(seen: Snapshot) -> Snapshot:
    """Without what the first revision did not keep of jobs."""
    return replace(seen, jobs=tuple(replace(job, rank=None, data={}, over=False) for job in seen.jobs))


def test_a_database_with_content_goes_up_down_and_up_and_keeps_it_all(url: str, open_sql: OpenSql) -> None:
    store = open_sql()
    assert [store.raise_start(), store.raise_start()] == [1, 2]
    store.put_fabric("one", (("h0:0:0", "r0", "sw0", 0),), (("r0", "sw0"),))
    for made in World(3).batches(150):
        store.submit(made).result(timeout=60)
    before = store.snapshot()
    store.close()
    rows = content(url)
    assert all(rows[name] for name in OURS - LATER - {"meta"}), "every table has something to lose"
    migrate.downgrade(url, "0001")
    assert tables(url) == OURS - LATER
    assert content(url) == rows
    newest = migrate.head()
    assert f"has revision 0001, {newest} is needed: run `opus db upgrade`" in str(migrate.check(url))
    with pytest.raises(StoreError, match=f"has revision 0001, {newest} is needed"):
        open_sql()
    migrate.upgrade(url)
    assert (migrate.check(url), tables(url), content(url)) == (None, OURS, rows)
    store = open_sql()
    after = store.snapshot()
    assert as_first(after) == replace(as_first(before), clean=after.clean, owners=(), left=(), directives=())
    assert store.raise_start() == 3
    assert not store.snapshot().clean, "what an older program did is not known to have ended in order"
    store.close()
    migrate.upgrade(url)
    assert content(url) == rows, "an upgrade that changes nothing keeps everything"
    migrate.downgrade(url, "base")
    assert tables(url) == set()
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert tables(url) == OURS
    assert migrate.current(url) == migrate.head()
    assert open_sql().snapshot().locks == ()


def test_a_database_that_was_never_started_goes_up_down_and_up(url: str, open_sql: OpenSql) -> None:
    migrate.downgrade(url, "0001")
    migrate.upgrade(url)
    store = open_sql()
    assert store.raise_start() == 1
    assert store.snapshot().clean, "there is nothing that could be missing"


def test_the_migrations_make_what_the_rows_say(url: str) -> None:
    engine = database_of(url).migration_engine()
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
    url: str, statement: str, said: str
) -> None:
    execute(url, statement)
    before = content(url)
    found = migrate.check(url)
    assert found is not None
    assert said in found
    with pytest.raises(StoreError, match=said):
        SqlStore(url)
    with pytest.raises(StoreError):
        migrate.upgrade(url)
    assert content(url) == before


def test_a_migration_that_fails_changes_nothing(url: str) -> None:
    migrate.downgrade(url, "base")
    # The last table that the first revision makes is in the way.
    execute(url, "CREATE TABLE events (x INTEGER)", "INSERT INTO events VALUES (1)")
    with pytest.raises(
        StoreError, match=r"cannot be migrated: .*events.* already exists; nothing was change"
    ):
        migrate.upgrade(url)
    assert tables(url) == {"events"}


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
