"""Many seeds over a few processes, and what became of each."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from opus_sdn.store import migrate
from opus_sdn.store.base import Snapshot, Store
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.sql import SqlStore
from tests.sim.seeds import world_of
from tests.sim.world import World

SEEDS_AT_ONCE = 20  # handed to a process together


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed: `failure` is None, or the error with its picture."""

    seed: int
    digest: str
    steps: int
    met: dict[str, int]
    snapshot: Snapshot | None
    failure: str | None


def play(seed: int, store: str = "memory") -> Outcome:
    """Run one seed on an in-memory store, or `sqlite` on a file for each machine that the world has."""
    with tempfile.TemporaryDirectory(prefix="opus-sim-") as folder:
        world = world_of(seed, open_store=MemoryStore if store == "memory" else _SqliteFiles(Path(folder)))
        failure = None
        try:
            world.run()
        except Exception:  # noqa: BLE001 (told with its seed)
            failure = traceback.format_exc()
        snapshot = world.disk.store.snapshot() if failure is None else None
        world.disk.store.close()
        met = world.met.counts | world.books.runs
        return Outcome(seed, world.digest, world.steps, met, snapshot, failure)


def play_all(seeds: Iterable[int], store: str = "memory", processes: int | None = None) -> Iterator[Outcome]:
    """Run these seeds, in order; by default on all cores."""
    todo = [(seed, store) for seed in seeds]
    with ProcessPoolExecutor(
        processes or os.cpu_count(), mp_context=multiprocessing.get_context("forkserver")
    ) as pool:
        yield from pool.map(_play, todo, chunksize=SEEDS_AT_ONCE)


def met_by(outcomes: Iterable[Outcome]) -> Counter[str]:
    """How often each fault was met."""
    met: Counter[str] = Counter()
    for outcome in outcomes:
        met.update(outcome.met)
    return met


def _play(what: tuple[int, str]) -> Outcome:
    outcome = play(*what)
    gc.collect()  # a world is full of circles
    return outcome


class _SqliteFiles:
    """Makes an empty database each time, a copy of one that was migrated once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)

    def __call__(self) -> Store:
        path = self._folder / f"{next(self._numbers)}.db"
        shutil.copy(_migrated(), path)
        return SqlStore(f"sqlite:///{path}")


def _migrated() -> Path:
    path = Path(tempfile.gettempdir()) / f"opus-sim-{os.getpid()}.db"
    if not path.exists():
        migrate.upgrade(f"sqlite:///{path}")
    return path


__all__ = ["Outcome", "World", "met_by", "play", "play_all"]
