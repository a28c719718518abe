from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.store import migrate
from opus_sdn.store.base import Store
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.sql import SqlStore
from tests.postgres import PostgresServer

OpenStore = Callable[..., Store]
OpenSql = Callable[..., SqlStore]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with tables and no content, to be copied."""
    path = tmp_path_factory.mktemp("store") / "empty.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def path(migrated: Path, tmp_path: Path) -> Path:
    """A database file of this test's own."""
    return Path(shutil.copy(migrated, tmp_path / "opus.db"))


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    """The name of a PostgreSQL database with tables and no content, to be copied."""
    url = postgres.create()
    migrate.upgrade(url)
    return url.partition("@/")[2].partition("?")[0]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database of this test's own, of either kind, with tables and no content."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('path')}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create(request.getfixturevalue("template"))


@pytest.fixture
def postgres_url(postgres: PostgresServer, template: str) -> str:
    """A PostgreSQL database of this test's own."""
    return postgres.create(template)


@pytest.fixture
def opener() -> Iterator[Callable[..., SqlStore]]:
    """Opens stores by their address; closes what is still open at the end."""
    opened: list[SqlStore] = []

    def open_it(url: str, **options: Any) -> SqlStore:
        opened.append(SqlStore(url, **options))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def open_sql(url: str, opener: Callable[..., SqlStore]) -> OpenSql:
    """Opens the test's database, of either kind."""
    return lambda **options: opener(url, **options)


@pytest.fixture
def open_file(path: Path, opener: Callable[..., SqlStore]) -> OpenSql:
    """Opens the test's database file."""
    return lambda **options: opener(f"sqlite:///{path}", **options)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, opener: Callable[..., SqlStore]) -> OpenStore:
    """Opens one store of any kind."""
    if request.param == "memory":
        return MemoryStore
    if request.param == "sqlite":
        address = f"sqlite:///{request.getfixturevalue('path')}"
    else:
        address = request.getfixturevalue("postgres_url")
    return lambda **options: opener(address, **options)


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A store of any kind, empty."""
    return open_store()
