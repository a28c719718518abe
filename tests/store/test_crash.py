"""SIGKILL at every moment: after it the database holds the first k batches exactly, for some k, and all that
was acknowledged. So a grant is there with all its locks, its mark and its event, or not at all (C13).

What the first k batches leave is taken from the in-memory store.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest

from opus_sdn.intent.changes import Batch, EventAppended, IntentState
from opus_sdn.store.base import EventRecord, Snapshot
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.sql import SqlStore
from tests.store.probes import ended, forked, hooked
from tests.store.world import FORTH, World, batch, granted, moved, planned, released, started

History = list[tuple[Snapshot, list[EventRecord]]]

GRANTS = [
    batch(1, started(), EventAppended("job.started"), durable=True),
    batch(2, granted(n=0, locks=((0, 1), (1, 1), (2, 1))), EventAppended("intent.granted")),
    batch(3, granted(FORTH, locks=((0, 2), (1, 2))), planned(), EventAppended("intent.granted")),
    batch(
        4,
        released((0, 1, 2), n=0),
        moved(IntentState.RELEASED),
        EventAppended("intent.released"),
        granted(n=1, length=2, locks=((0, 3), (1, 3), (2, 2))),
        EventAppended("intent.granted"),
    ),
]


def history_of(batches: list[Batch]) -> History:
    """What is stored after none, one, two ... of the batches."""
    twin = MemoryStore()
    found = [(twin.snapshot(), twin.events(0, 1000))]
    for made in batches:
        twin.submit(made).result()
        found.append((twin.snapshot(), twin.events(0, 1000)))
    return found


def check_what_survived(url: str, acknowledged: int, history: History) -> int:
    """How many batches survived."""
    store = SqlStore(url)
    survived = store.snapshot(), store.events(0, 1000)
    store.close()
    assert survived in history, "a batch survived in part"
    stored = len(history) - 1 - history[::-1].index(survived)
    assert stored >= acknowledged, "what was acknowledged is lost"
    return stored


class Countdown:
    """Kills this process at the `moment`-th call."""

    def __init__(self, moment: int) -> None:
        self._left = moment

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def acknowledge_into(pipe: int, before: Callable[[], None]) -> Callable[[Future[int]], None]:
    """Runs on the writer's thread as soon as a future completes; what is in the pipe outlives a kill."""

    def acknowledge(future: Future[int]) -> None:
        before()
        future.result()
        os.write(pipe, b"a")

    return acknowledge


def one_by_one(url: str, batches: list[Batch], moment: int, pipe: int) -> None:
    """Store the batches, with a moment between any two of: a statement, a commit, an answer."""
    store = SqlStore(url)
    here = Countdown(moment)
    with ExitStack() as hooks:
        for name in ("before_cursor_execute", "commit"):
            hooks.enter_context(hooked(name, here))
        for made in batches:
            future = store.submit(made)
            future.add_done_callback(acknowledge_into(pipe, here))
            future.result(timeout=60)
    store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes databases with tables and no content, of either kind."""
    if request.param == "sqlite":
        migrated, number = request.getfixturevalue("migrated"), itertools.count()
        return lambda: f"sqlite:///{shutil.copy(migrated, tmp_path / f'{next(number)}.db')}"
    server, template = request.getfixturevalue("postgres"), request.getfixturevalue("template")
    return lambda: str(server.create(template))


def test_a_kill_at_any_statement_leaves_whole_batches_and_all_that_was_acknowledged(
    fresh: Callable[[], str],
) -> None:
    history = history_of(GRANTS)
    moment, code = 0, -signal.SIGKILL
    outcomes: set[tuple[int, int]] = set()
    while code == -signal.SIGKILL:
        moment += 1
        assert moment < 200, "the history never ends"
        url = fresh()
        reading, writing = os.pipe()
        code = ended(forked(lambda: one_by_one(url, GRANTS, moment, writing)))  # noqa: B023 (runs at once)
        os.close(writing)
        acknowledged = len(os.read(reading, 100))
        os.close(reading)
        outcomes.add((acknowledged, check_what_survived(url, acknowledged, history)))
    assert code == 0
    # Every number of batches was cut off both before its commit and between commit and answer.
    assert outcomes == {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4)}
    assert moment > 25, "every statement was a moment"


def in_one_go(url: str, batches: list[Batch], pipe: int, parent: int) -> None:
    """Submit everything without waiting, then wait to be killed, or for the end of the parent."""
    store = SqlStore(url)
    for made in batches:
        store.submit(made).add_done_callback(acknowledge_into(pipe, lambda: None))
    os.read(parent, 1)


@pytest.mark.parametrize("seed", range(10))
def test_a_kill_under_load_leaves_whole_batches_and_all_that_was_acknowledged(seed: int, url: str) -> None:
    batches = World(seed).batches(200)
    history = history_of(batches)
    reading, writing = os.pipe()
    parent, here = os.pipe()

    def live() -> None:
        os.close(here)
        in_one_go(url, batches, writing, parent)

    child = forked(live)
    os.close(writing)
    os.close(parent)
    acknowledged = 0
    wanted = random.Random(seed).randint(1, 120)
    while acknowledged < wanted and (got := os.read(reading, 1)):
        acknowledged += len(got)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    os.close(here)
    while more := os.read(reading, 4096):
        acknowledged += len(more)
    os.close(reading)
    check_what_survived(url, acknowledged, history)
