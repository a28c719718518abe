"""The independent check of every plan: each way to break an invariant is named."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from opus_sdn.intent.checker import check_step
from opus_sdn.intent.fabric import Circuit, CircuitKind, CrossConnect, Port, Side, Switch, Terminal

SIDED = Switch("ocs", "virtual", 8, sided=True)
UNSIDED = Switch("ocs", "virtual", 8, sided=False)
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Case:
    """One step on a switch that holds `there`; `moving`, `foreign` and `unowned` are positions.

    `live`: circuits of one cross-connect each that carry traffic. `kept`: pairs that are not ours to remove.
    """

    there: Pairs = ()
    remove: Pairs = ()
    add: Pairs = ()
    live: Pairs = ()
    moving: tuple[int, ...] = ()
    foreign: tuple[int, ...] = ()
    unowned: tuple[int, ...] = ()
    kept: Pairs = ()
    switch: Switch = field(default=SIDED)

    def check(self) -> list[tuple[str, str]]:
        """Invariants and details."""
        sides = (Side.INGRESS, Side.EGRESS) if self.switch.sided else (Side.ANY,)

        def terminals(positions: tuple[int, ...]) -> set[Terminal]:
            return {Terminal("ocs", side, at) for at in positions for side in sides}

        found = check_step(
            self.switch,
            [CrossConnect(*pair) for pair in self.there],
            [CrossConnect(*pair) for pair in self.remove],
            [CrossConnect(*pair) for pair in self.add],
            {t: c for c in map(self.circuit, self.live) for t in c.terminals},
            terminals(self.moving),
            [position for position in range(self.switch.size) if position not in self.unowned],
            lambda terminal: terminal.position not in self.foreign,
            [CrossConnect(*pair) for pair in self.kept],
        )
        return [(violation.invariant, violation.detail) for violation in found]

    def circuit(self, ends: tuple[int, int]) -> Circuit:
        """A circuit that is this one cross-connect."""
        pair = CrossConnect(*ends)
        a, b = (Port(f"h{end}", 0, 0) for end in ends)
        terminals = self.switch.terminals_of(pair)
        return Circuit(f"{a}->{b}", "rail", "ocs", CircuitKind.DIRECTED, a, b, (pair,), terminals)


SOUND = [
    Case(),
    Case(add=((1, 2), (2, 1))),
    Case(there=((1, 2), (2, 1)), remove=((1, 2), (2, 1)), add=((1, 3), (3, 1))),
    Case(there=((1, 2),), add=((2, 1),)),  # the two sides of a position are different fibres
    Case(there=((1, 2),), add=((3, 4),), live=((1, 2),), moving=(5,), foreign=(1, 2)),
    # What was lost under a lock is made again, over what somebody else has put in its place.
    Case(there=((1, 3), (4, 2)), remove=((1, 3), (4, 2)), add=((1, 2),), live=((1, 2),)),
    Case(there=((1, 2),), remove=((1, 2),), add=((1, 3),), foreign=(2,)),  # a remove may free a foreign port
    Case(there=((1, 2),), remove=((1, 2),), add=((2, 3),), switch=UNSIDED),
    Case(add=((0, 7),)),
]


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_step_has_nothing_against_it(case: Case) -> None:
    assert case.check() == []


UNSOUND = [
    (
        Case(there=((1, 2),), remove=((1, 2),), live=((1, 2),)),
        [("I1", "ocs 1->2 carries traffic and is removed")],
    ),
    (
        Case(add=((1, 3),), live=((1, 2),)),
        [("I1", "ocs 1->3 takes a port on which another circuit carries traffic")],
    ),
    (
        Case(there=((1, 2),), remove=((1, 2),), kept=((1, 2),)),
        [("I2", "ocs 1->2 is somebody else's and is removed")],
    ),
    (Case(remove=((1, 2),)), [("I2", "ocs 1->2 is removed but not there")]),
    (Case(there=((1, 2),), add=((1, 3),)), [("I2", "position 1 (in) is used twice")]),
    (Case(there=((1, 2),), add=((3, 2),)), [("I2", "position 2 (out) is used twice")]),
    (Case(add=((1, 2), (3, 2))), [("I2", "position 2 (out) is used twice")]),
    (Case(there=((1, 2),), add=((2, 3),), switch=UNSIDED), [("I2", "position 2 (any) is used twice")]),
    (Case(add=((1, 8),)), [("I2", "ocs 1->8 is outside 0 to 7")]),
    (Case(add=((-1, 3),)), [("I2", "ocs -1->3 is outside 0 to 7")]),
    (Case(add=((1, 2),), unowned=(2,)), [("I2", "ocs 1->2 touches a port that is not of this fabric")]),
    (
        Case(there=((1, 2),), remove=((1, 2),), unowned=(1,)),
        [("I2", "ocs 1->2 touches a port that is not of this fabric")],
    ),
    (Case(add=((1, 2),), moving=(2,)), [("I2", "ocs 1->2 touches a moving port")]),
    (Case(there=((1, 2),), remove=((1, 2),), moving=(1,)), [("I2", "ocs 1->2 touches a moving port")]),
    (Case(add=((1, 2),), foreign=(2,)), [("I8", "ocs 1->2 uses a port of another job")]),
]


@pytest.mark.parametrize(("case", "violations"), UNSOUND)
def test_a_step_that_breaks_an_invariant_is_found(case: Case, violations: list[tuple[str, str]]) -> None:
    assert case.check() == violations
