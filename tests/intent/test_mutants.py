"""Bugs planted into the core one at a time: each must be caught. What no test can catch is not tested.

A planted bug replaces one small piece of production code. The same runs without it must pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from opus_sdn.intent import order, planner, stepping
from opus_sdn.intent.changes import StepState
from opus_sdn.intent.fabric import Circuit, Fabric
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import ArrivalState
from opus_sdn.intent.order import Reservations
from opus_sdn.intent.state import CoreState, Ledger
from opus_sdn.intent.streams import HeldRun, Intent, StreamState
from opus_sdn.intent.switches import SwitchState
from tests.intent import programs
from tests.intent.modes import Mode
from tests.intent.operations import Scenario
from tests.intent.simulator import Simulation
from tests.intent.traffic import Finish
from tests.intent.virtual_switch import ViolationError

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = range(40)
CALM = Mode(finish=Finish.EACH, overtake_max=2, overtake_s=1e9)
COPIES = dataclasses.replace(CALM, copies=0.5)


def nothing_is_live(patch: pytest.MonkeyPatch) -> None:
    """The lock check is dropped: planner, re-check and checker see no circuit as live."""
    patch.setattr(CoreState, "hold", lambda self, circuits: None)
    patch.setattr(CoreState, "unhold", lambda self, circuits: None)


def grant_before_read_back(patch: pytest.MonkeyPatch) -> None:
    """What a started step adds counts as up at once."""

    def is_up(self: SwitchState, circuit: Circuit) -> bool:
        coming = {p for s in self.progress.values() if s.state is StepState.STARTED for p in s.step.add}
        return all(pair in self.matching | coming for pair in circuit.cross_connects)

    patch.setattr(SwitchState, "is_up", is_up)


def moving_counts_as_up(patch: pytest.MonkeyPatch) -> None:
    """The fast path forgets that ports move: what was up before the step still counts."""
    patch.setattr(SwitchState, "is_up", lambda self, c: all(p in self.matching for p in c.cross_connects))


def barrier_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """An intent is complete with one member missing."""

    def complete(self: StreamState) -> Intent | None:
        intent = self.intents.get(self.granted)
        return intent if intent is not None and len(intent.arrived) >= len(self.participants) - 1 else None

    patch.setattr(StreamState, "complete", complete)


def add_before_remove(patch: pytest.MonkeyPatch) -> None:
    """A plan adds first and leaves the removes to a later step; the checker is out of the way."""
    made = stepping.plan
    patch.setattr(stepping, "plan", lambda *given: dataclasses.replace(made(*given), remove=()))
    patch.setattr(stepping, "check_step", lambda *_: ())
    patch.setattr(stepping, "why_not_start", lambda *_: None)


def second_direction_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A duplex circuit is made of its first cross-connect alone."""
    made = Fabric._make_circuit

    def one_way(self: Fabric, a: Any, b: Any) -> Circuit:
        whole = made(self, a, b)
        return dataclasses.replace(
            whole, cross_connects=whole.cross_connects[:1], terminals=whole.terminals[:2]
        )

    patch.setattr(Fabric, "_make_circuit", one_way)


def no_recheck(patch: pytest.MonkeyPatch) -> None:
    """A planned step starts whatever has happened since (C9)."""
    patch.setattr(stepping, "why_not_start", lambda *_: None)


def no_reservation(patch: pytest.MonkeyPatch) -> None:
    """Whatever is up and complete goes, past everyone who waits longer."""
    patch.setattr(Reservations, "against", lambda self, circuits: None)


def marks_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A released operation leaves no mark: a late copy of its arrival counts as new (C12)."""

    def standing(self: StreamState, rank: int, n: int) -> ArrivalState | None:
        if n < self.granted and n not in self.held:
            self.granted, self.next_n[rank] = n, n
            return None
        if n < self.granted:
            return ArrivalState.GRANTED
        return ArrivalState.OPEN if n < self.next_n[rank] else None

    patch.setattr(StreamState, "standing", standing)


def overtaking_counts_strangers(patch: pytest.MonkeyPatch) -> None:
    """The conflict test is inverted where overtaking is counted."""
    conflict = order.conflict
    patch.setattr(order, "conflict", lambda a, b: not conflict(a, b))


def reservation_against_oneself(patch: pytest.MonkeyPatch) -> None:
    """The conflict test is inverted in the reservations: other circuits pass, the same one waits."""

    def against(self: Reservations, circuits: Any) -> Intent | None:
        for circuit in circuits:
            for terminal in circuit.terminals:
                held = self._held.get(terminal)
                if held is not None and held[0] == circuit.id:
                    return held[1]
        return None

    patch.setattr(Reservations, "against", against)


def first_release_frees_all(patch: pytest.MonkeyPatch) -> None:
    """One rank's release lets go of the run for all its holders."""
    release = StreamState.release

    def all_of_them(self: StreamState, rank: int, through: int) -> list[HeldRun]:
        let_go = release(self, rank, through)
        for run in let_go:
            run.holders.clear()
        return let_go

    patch.setattr(StreamState, "release", all_of_them)


def answered_before_stored(patch: pytest.MonkeyPatch) -> None:
    """A grant may be answered although its transaction is not written yet."""
    patch.setattr(Ledger, "committed", property(lambda self: 10**9, lambda self, value: None), raising=False)


def planner_without_reservation(patch: pytest.MonkeyPatch) -> None:
    """The planner lets a later want take what an earlier one waits for."""
    obstacle = planner._obstacle
    patch.setattr(planner, "_obstacle", lambda f, c, v, reserved: obstacle(f, c, v, {}))


def grant_numbers_skip(patch: pytest.MonkeyPatch) -> None:
    """A rank's grants are numbered with gaps."""
    number = JobCore.number

    def skipping(self: JobCore, intent: Intent, *given: int) -> dict[int, int]:
        self.ranks[intent.connection.ranks[0]].issued += 1
        return number(self, intent, *given)

    patch.setattr(JobCore, "number", skipping)


RULES = {
    "lock check dropped": "I1",
    "grant before read-back": "I4",
    "moving ports count as up": "I4",
    "barrier off by one": "I5",
    "add before remove": "refused",
    "second direction forgotten": "I4",
    "plan started without re-check": "I1",
    "reservation dropped": "overtaking",
    "marks forgotten": "I7",
    "overtaking counts strangers": "overtaking",
    "reservation against oneself": "overtaking",
    "first release frees all": "I1",
    "answered before stored": "I3",
    "planner without reservation": "plan",
    "grant numbers skip": "numbers",
}
CASES: dict[str, tuple[Plant, Callable[[int], Scenario], Mode]] = {
    "lock check dropped": (nothing_is_live, lambda _: programs.c12(), CALM),
    "grant before read-back": (grant_before_read_back, lambda _: programs.c12(), CALM),
    "moving ports count as up": (moving_counts_as_up, lambda _: programs.seeded_race(), CALM),
    "barrier off by one": (barrier_off_by_one, lambda _: programs.c12(), CALM),
    "add before remove": (add_before_remove, lambda _: programs.c12(), CALM),
    "second direction forgotten": (second_direction_forgotten, lambda _: programs.c12(), CALM),
    "plan started without re-check": (no_recheck, lambda _: programs.seeded_race(), CALM),
    "reservation dropped": (no_reservation, lambda _: programs.busy_pair(12), CALM),
    "marks forgotten": (marks_forgotten, lambda _: programs.c12(), COPIES),
    "overtaking counts strangers": (overtaking_counts_strangers, lambda _: programs.busy_pair(12), CALM),
    "reservation against oneself": (reservation_against_oneself, lambda _: programs.busy_pair(12), CALM),
    "first release frees all": (first_release_frees_all, lambda _: programs.c12(), CALM),
    "answered before stored": (answered_before_stored, lambda _: programs.c12(), CALM),
    "planner without reservation": (planner_without_reservation, programs.by_chance, CALM),
    "grant numbers skip": (grant_numbers_skip, lambda _: programs.c12(), CALM),
}


def play(name: str) -> None:
    """All runs of a case."""
    _, make, mode = CASES[name]
    for seed in SEEDS:
        Simulation(make(seed), seed, mode).run()


@pytest.mark.parametrize("name", CASES)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CASES[name][0](monkeypatch)
    with pytest.raises(ViolationError) as caught:
        play(name)
    assert caught.value.rule == RULES[name]


@pytest.mark.parametrize("name", CASES)
def test_the_same_runs_pass_without_the_planted_bug(name: str) -> None:
    play(name)
