"""The SQL store and its in-memory twin end in the same state after the same random history."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from opus_sdn.store.base import EventRecord, Snapshot, Store
from opus_sdn.store.memory import MemoryStore
from opus_sdn.store.sql import SqlStore
from tests.store.world import World


def all_events(store: Store) -> list[EventRecord]:
    found: list[EventRecord] = []
    while page := store.events(found[-1].seq if found else 0, 1000):
        found += page
    return found


def same(store: Store) -> Snapshot:
    """What both stores have to agree on: only one that is written down can be left in order."""
    return replace(store.snapshot(), clean=True)


@pytest.mark.parametrize("seed", range(12))
def test_the_same_history_leaves_the_same_state_in_both_stores(
    seed: int, open_sql: Callable[..., SqlStore]
) -> None:
    choose = random.Random(seed)
    twin, store = MemoryStore(), open_sql()
    world = World(seed)
    for _ in range(12):
        # A burst shares transactions on the SQL store; its twin takes one batch after the other.
        burst = world.batches(choose.choice([1, 1, 5, 40]))
        wanted = [twin.submit(batch).result() for batch in burst]
        assert [future.result(timeout=60) for future in [store.submit(batch) for batch in burst]] == wanted
        if choose.random() < 0.3:
            store.close()
            store = open_sql()
        if choose.random() < 0.3:
            assert store.raise_start() == twin.raise_start()
        assert same(store) == same(twin)
    assert all_events(store) == all_events(twin)
    seen = store.snapshot()
    parts = (seen.jobs, seen.marks, seen.switches, seen.last_step, seen.last_event)
    assert all(parts), f"seed {seed} made a history that shows nothing"


def test_the_histories_hold_all_that_a_store_has_to_keep() -> None:
    twin = MemoryStore()
    for batch in World(1).batches(400):
        twin.submit(batch).result()
    seen = twin.snapshot()
    nothing = replace(
        seen, jobs=(), groups=(), locks=(), marks=(), intents=(), steps=(), switches=(), last_event=0
    )
    assert all(getattr(seen, name) for name in ("jobs", "locks", "marks", "intents", "steps", "switches"))
    assert nothing != seen
    kinds = {event.kind for event in twin.events(0, 1000)}
    assert kinds >= {
        "job.started",
        "job.ended",
        "job.failed",
        "intent.granted",
        "intent.released",
        "group.checked",
        "switch.observed",
        "step.planned",
        "step.started",
        "step.done",
        "step.failed",
        "step.dropped",
    }
