"""A machine with SQLite that loses its power: of the log, what was not waited for is on the disk or not.

The database's own files are cut: everything up to the last byte that a commit has waited for is there, and of
what was written after it any part, down to the middle of a page.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opus_sdn.intent.changes import Batch
from opus_sdn.store.base import Store
from opus_sdn.store.sql import SqlStore
from tests.sim.store import SimDisk


class SqliteMachine(SimDisk):
    """The disk of one machine. `torn` counts the cuts that went through the middle of a commit."""

    def __init__(
        self,
        empty: Path,
        folder: Path,
        rng: random.Random,
        committed: Callable[[Batch], None],
        undone: Callable[[tuple[Batch, ...]], None],
    ) -> None:
        self._folder = folder
        self._number = 1
        self._path = Path(shutil.copy(empty, folder / "1.db"))
        self._synced = 0  # bytes of the log that are surely there
        self._ends: list[tuple[int, int]] = []  # after each write: transactions so far, bytes of the log
        self.cuts = self.lost = self.torn = 0
        super().__init__(self._open, rng, committed, undone)

    def _open(self) -> Store:
        return SqlStore(f"sqlite:///{self._path}")

    @property
    def _log(self) -> Path:
        return Path(f"{self._path}-wal")

    def write(self, write: Callable[[Store], Any], *, durable: bool, batch: Batch | None = None) -> Any:
        """Commit one thing, and look at how long the log is then."""
        result = super().write(write, durable=durable, batch=batch)
        size = self._log.stat().st_size
        self._ends.append((_transactions(self._path), size))
        if durable:
            self._synced = size
        return result

    def lose_power(self) -> int:
        """Cut the log somewhere after what was waited for, and open what is left; how much is lost."""
        size = self._log.stat().st_size
        cut = self._rng.randint(self._synced, size)
        self.torn += cut not in {end for _, end in self._ends} and cut != size
        self._number += 1
        path = self._folder / f"{self._number}.db"
        shutil.copy(self._path, path)
        Path(f"{path}-wal").write_bytes(self._log.read_bytes()[:cut])
        self.store.close()
        self._path = path
        survived = _transactions(path)
        kept = sum(1 for transactions, _ in self._ends if transactions <= survived)
        lost, self._history = self._history[kept:], self._history[:kept]
        assert not any(entry.durable for entry in lost), "what was waited for is lost"
        del self._ends[kept:]
        self.store = self._open()
        self._synced = self._log.stat().st_size if self._log.exists() else 0
        self.cuts += 1
        self.lost += len(lost)
        self._undone(tuple(entry.batch for entry in lost if entry.batch is not None))
        return len(lost)


def _transactions(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT commits FROM meta").fetchone()[0])
    finally:
        connection.close()
