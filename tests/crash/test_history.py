"""What eight clients of a real server see, checked from outside: who holds what when, and in which order.

`make test` plays one short run; OPUS_TEST_SCALE=20, as `make soak` has it, 20 runs of 2,000 operations.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.intent.engine import Engine
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import RankAnswer, RankNews
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import HeldRun, Intent, StreamState
from tests.crash.clients import CLIENTS, MEMBERS, play
from tests.crash.history import Kind, Observation, anomalies

SCALE = int(os.environ.get("OPUS_TEST_SCALE", "1"))
RUNS = min(20, SCALE)
OPERATIONS = min(2_000, 300 * SCALE)

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_history_of_grants_and_locks_has_no_anomaly(seed: int, tmp_path: Path) -> None:
    seen, circuits, stuck = play(tmp_path, seed, OPERATIONS)
    assert anomalies(seen, MEMBERS, circuits) == []
    assert not stuck
    assert sum(each.kind is Kind.GRANTED for each in seen) == 2 * OPERATIONS


def nothing_is_live(patch: pytest.MonkeyPatch) -> None:
    """No lock is ever looked at."""
    patch.setattr(CoreState, "hold", lambda self, circuits: None)
    patch.setattr(CoreState, "unhold", lambda self, circuits: None)


def first_release_frees_all(patch: pytest.MonkeyPatch) -> None:
    """One member's release lets go of the run for both."""
    release = StreamState.release

    def all_of_them(self: StreamState, rank: int, through: int) -> list[HeldRun]:
        let_go = release(self, rank, through)
        for run in let_go:
            run.holders.clear()
        return let_go

    patch.setattr(StreamState, "release", all_of_them)


def half_a_barrier(patch: pytest.MonkeyPatch) -> None:
    """One member is enough."""

    def complete(self: StreamState) -> Intent | None:
        return self.intents.get(self.granted)

    patch.setattr(StreamState, "complete", complete)


def told_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """A rank with two grants to hear of is told the second one first, if it is an odd one."""
    answer = Engine.answer

    def swapped(self: Engine, job: str, incarnation: int, rank: int, *more: Any, **named: Any) -> RankAnswer:
        told = answer(self, job, incarnation, rank, *more, **named)
        if rank % 2 and len(told.grants) >= 2:
            first, second, *rest = told.grants
            told = replace(told, grants=(replace(second, no=first.no), replace(first, no=second.no), *rest))
        return told

    patch.setattr(Engine, "answer", swapped)


def acknowledged_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """With a rank's acknowledgement the grant after it is forgotten too."""

    def forget(self: Engine, job: JobCore, item: RankNews) -> None:
        queue = job.ranks[item.rank].unacknowledged
        while queue and queue[0][0].no <= item.last_grant + (item.last_grant > 5):
            queue.popleft()

    patch.setattr(Engine, "_acknowledge", forget)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (nothing_is_live, "exclusion"),
        (first_release_frees_all, "exclusion"),
        (half_a_barrier, "barrier"),
        (told_in_another_order, "one order"),
        (acknowledged_one_too_many, "lost"),
    ],
)
def test_a_planted_bug_is_an_anomaly(
    plant: Plant, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seen, circuits, _ = play(tmp_path, 0, 200, patience_s=3.0)
    assert found in {anomaly.partition(":")[0] for anomaly in anomalies(seen, MEMBERS, circuits)}


def test_what_the_checker_calls_an_anomaly() -> None:
    def at(rank: int, kind: Kind, stream: str, n: int = 0, no: int = 0) -> Observation:
        return Observation(0.0, rank, kind, stream, n, no)

    circuits = {"g0": {"p0": "p1", "p1": "p0"}, "g1": {"p1": "p2", "p2": "p1"}}
    members = {"g0": (0, 1), "g1": (1, 2)}
    arrived = [at(0, Kind.ARRIVED, "g0"), at(1, Kind.ARRIVED, "g0")]
    granted = [at(0, Kind.GRANTED, "g0", no=1), at(1, Kind.GRANTED, "g0", no=1)]
    released = [at(0, Kind.RELEASED, "g0"), at(1, Kind.RELEASED, "g0")]
    then = [at(1, Kind.ARRIVED, "g1"), at(2, Kind.ARRIVED, "g1")]
    then_granted = [at(1, Kind.GRANTED, "g1", no=2), at(2, Kind.GRANTED, "g1", no=1)]

    def found(*history: list[Observation]) -> set[str]:
        whole = [each for part in history for each in part]
        return {anomaly.partition(":")[0] for anomaly in anomalies(whole, members, circuits)}

    assert found(arrived, granted, released, then, then_granted) == set()
    assert found(arrived, granted, released[:1], then, then_granted) == {"exclusion"}
    assert found(arrived[:1], granted) == {"barrier"}
    assert found(arrived, granted[:1]) == {"lost"}
    assert found(arrived, granted, granted) == {"order", "numbers"}
    assert found(arrived, [replace(granted[0], no=2), granted[1]]) == {"numbers"}
    assert found(arrived, [replace(each, n=1) for each in granted]) >= {"order"}
    assert CLIENTS == 8
