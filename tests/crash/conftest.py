"""Empty databases of both kinds, as many as a test asks for."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opus_sdn.store import migrate
from opus_sdn.store.base import Store
from opus_sdn.store.sql import SqlStore
from tests.postgres import PostgresServer

OpenStore = Callable[[], Store]


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with all tables and nothing in them."""
    path = tmp_path_factory.mktemp("empty") / "opus.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def empty_database(postgres: PostgresServer) -> str:
    """The same on PostgreSQL: the name of a template."""
    url = postgres.create()
    migrate.upgrade(url)
    return url.partition("@/")[2].partition("?")[0]


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens another empty store each time it is called; closed at the end."""
    numbers, opened = itertools.count(1), []

    def on_sqlite() -> Store:
        path = tmp_path / f"{next(numbers)}.db"
        shutil.copy(request.getfixturevalue("empty_file"), path)
        opened.append(SqlStore(f"sqlite:///{path}"))
        return opened[-1]

    def on_postgres() -> Store:
        server: PostgresServer = request.getfixturevalue("postgres")
        opened.append(SqlStore(server.create(request.getfixturevalue("empty_database"))))
        return opened[-1]

    yield on_sqlite if request.param == "sqlite" else on_postgres
    for store in opened:
        store.close()
