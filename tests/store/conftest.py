from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opus_sdn.store import migrate
from opus_sdn.store.base import Store
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.sql import SqlStore

OpenStore = Callable[..., Store]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with tables and no content, to be copied."""
    path = tmp_path_factory.mktemp("store") / "empty.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def path(migrated: Path, tmp_path: Path) -> Path:
    """A database of this test's own."""
    return Path(shutil.copy(migrated, tmp_path / "opus.db"))


@pytest.fixture
def open_sql(path: Path) -> Iterator[Callable[..., SqlStore]]:
    """Opens the test's database; closes what is still open at the end."""
    opened: list[SqlStore] = []

    def open_it(**options: int) -> SqlStore:
        opened.append(SqlStore(f"sqlite:///{path}", **options))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture(params=["memory", "sql"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    """Opens one store of either kind."""
    if request.param == "memory":
        return MemoryStore
    opener: OpenStore = request.getfixturevalue("open_sql")
    return opener


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A store of either kind, empty."""
    return open_store()
