"""Rules taken out of the production code one at a time: the simulator sees each of them missing.

The same seeds pass with all rules in, as `test_seeds.py` shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from opus_sdn.api import recovered
from opus_sdn.drivers.faults import FaultKind
from opus_sdn.intent import failing, recovery
from opus_sdn.intent.grace import Grace
from opus_sdn.intent.model import ArrivalState
from opus_sdn.intent.state import CoreState, Ledger
from opus_sdn.intent.streams import Intent, StreamState
from opus_sdn.reconciler.runtime import Runtime
from tests.intent.virtual_switch import ViolationError
from tests.sim.faults import Faults, Kind
from tests.sim.seeds import STEPS, scenario_of
from tests.sim.store import SimUnderWay
from tests.sim.world import World

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 120


@dataclass(frozen=True)
class Mutant:
    """A rule left out, and the faults that show it."""

    plant: Plant
    faults: Callable[[int], Faults]


def no_start_number(patch: pytest.MonkeyPatch) -> None:
    """What was said to an earlier start is taken by this one."""
    patch.setattr(recovery, "check_start", lambda *_: None)


def no_proof(patch: pytest.MonkeyPatch) -> None:
    """What one participant holds or has finished proves nothing for the others."""
    patch.setattr(recovery, "_prove", lambda *_: None)


def no_grace(patch: pytest.MonkeyPatch) -> None:
    """After a restart nobody is waited for: no grant is held back, and everything may be removed."""
    patch.setattr(Grace, "why_hold_back", lambda *_: None)
    patch.setattr(CoreState, "await_ranks", lambda *_: None)


def answered_before_stored(patch: pytest.MonkeyPatch) -> None:
    """A grant may be answered although its transaction is not written yet (C13)."""
    patch.setattr(Ledger, "committed", property(lambda self: 10**9, lambda self, value: None), raising=False)


def farewells_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A later start waits for ranks that have left."""
    known = recovered.known_jobs

    def without_left(before: Any) -> Any:
        return tuple(replace(job, left=()) for job in known(before))

    patch.setattr("opus_sdn.api.term.known_jobs", without_left)


def farewells_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """A farewell is answered before it is stored."""

    async def at_once(self: Runtime) -> None:
        self.changed()

    patch.setattr(Runtime, "stored", at_once)


def leases_shorter_than_the_fence(patch: pytest.MonkeyPatch) -> None:
    """A rank's locks go although it may still transmit (C15)."""
    silent = failing._check_leases

    def early(state: Any, now: float, job: Any) -> None:
        job.lease_check_at = min(job.lease_check_at, now)
        silent(state, now + 22.0, job)

    patch.setattr(failing, "_check_leases", early)


def nothing_is_live(patch: pytest.MonkeyPatch) -> None:
    """No lock is ever looked at."""
    patch.setattr(CoreState, "hold", lambda *_: None)
    patch.setattr(CoreState, "unhold", lambda *_: None)


def barrier_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """An intent is complete with one member missing."""

    def complete(self: StreamState) -> Intent | None:
        intent = self.intents.get(self.granted)
        return intent if intent is not None and len(intent.arrived) >= len(self.participants) - 1 else None

    patch.setattr(StreamState, "complete", complete)


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


def nothing_was_sent(patch: pytest.MonkeyPatch) -> None:
    """Commands that left before the controller died are not waited for."""
    patch.setattr(SimUnderWay, "may_be", lambda *_: False)


def late_kills(seed: int) -> Faults:
    """The controller dies, and every second command of a switch acts late."""
    return replace(_at_random_moments(seed, Kind.KILL), device=((FaultKind.LATE, 0.5),))


def kills(seed: int) -> Faults:
    """The controller dies three times."""
    return _at_random_moments(seed, Kind.KILL)


def cuts(seed: int) -> Faults:
    """The machine loses its power three times, and messages are copied."""
    return replace(_at_random_moments(seed, Kind.POWER_CUT), copied=0.3)


def cut_offs(seed: int) -> Faults:
    """Three ranks are cut off."""
    return _at_random_moments(seed, Kind.CUT_OFF)


def copies(seed: int) -> Faults:
    """Messages are copied."""
    return Faults(STEPS, copied=0.3)


def _at_random_moments(seed: int, kind: Kind) -> Faults:
    rng = random.Random(f"moments {seed}")
    return Faults(STEPS, moments=tuple(sorted((rng.randrange(10, STEPS), kind) for _ in range(3))))


MUTANTS = {
    "no start number": Mutant(no_start_number, kills),
    "no proof": Mutant(no_proof, cuts),
    "no grace": Mutant(no_grace, cuts),
    "answered before stored": Mutant(answered_before_stored, kills),
    "farewells not stored": Mutant(farewells_not_stored, kills),
    "farewells answered at once": Mutant(farewells_answered_at_once, kills),
    "leases shorter than the fence": Mutant(leases_shorter_than_the_fence, cut_offs),
    "lock check dropped": Mutant(nothing_is_live, copies),
    "nothing was sent": Mutant(nothing_was_sent, late_kills),
    "barrier off by one": Mutant(barrier_off_by_one, copies),
    "marks forgotten": Mutant(marks_forgotten, copies),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_left_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.plant(monkeypatch)
    with pytest.raises(ViolationError):
        _play_all(mutant)


def _play_all(mutant: Mutant) -> None:
    for seed in range(SEEDS_MAX):
        World(scenario_of(seed), seed, mutant.faults(seed)).run()
