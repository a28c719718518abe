"""An independent check of every plan before it is journaled: I1, I2 and I8, from the definitions alone.

It shares no code with the planner on purpose: a plan that breaks an invariant is a bug, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from opus_sdn.intent.fabric import Circuit, CrossConnect, Side, Switch, Terminal


@dataclass(frozen=True, slots=True)
class Violation:
    """Which invariant a plan would break, and how."""

    invariant: str
    detail: str


def check_step(
    switch: Switch,
    observed: Iterable[CrossConnect],
    remove: Iterable[CrossConnect],
    add: Iterable[CrossConnect],
    live: Mapping[Terminal, Circuit],
    moving: Collection[Terminal],
    owned: Collection[int],
    may_use: Callable[[Terminal], bool],
    kept: Collection[CrossConnect] = (),
) -> tuple[Violation, ...]:
    """All invariants that this step would break. `may_use` says whose ports the causes may take (I8).

    `live`: the circuit that carries traffic on a terminal; `kept`: pairs that are not ours to remove.
    """
    remove, add = list(remove), list(add)
    held = set(observed)
    return (
        *_removals(switch, held, remove, live, kept),
        *_blocked(switch, add, live),
        *_matching(switch, (held - set(remove)) | set(add)),
        *_touched(switch, remove + add, moving, owned),
        *(
            Violation("I8", f"{_name(switch, pair)} uses a port of another job")
            for pair in add
            for terminal in _terminals(switch, pair)
            if not may_use(terminal)
        ),
    )


def _removals(
    switch: Switch,
    held: Collection[CrossConnect],
    remove: Iterable[CrossConnect],
    live: Mapping[Terminal, Circuit],
    kept: Collection[CrossConnect],
) -> Iterator[Violation]:
    for pair in remove:
        if pair not in held:
            yield Violation("I2", f"{_name(switch, pair)} is removed but not there")
        if pair in kept:
            yield Violation("I2", f"{_name(switch, pair)} is somebody else's and is removed")
        if any(pair in live[t].cross_connects for t in _terminals(switch, pair) if t in live):
            yield Violation("I1", f"{_name(switch, pair)} carries traffic and is removed")


def _blocked(
    switch: Switch, add: Iterable[CrossConnect], live: Mapping[Terminal, Circuit]
) -> Iterator[Violation]:
    for pair in add:
        if any(pair not in live[t].cross_connects for t in _terminals(switch, pair) if t in live):
            yield Violation(
                "I1", f"{_name(switch, pair)} takes a port on which another circuit carries traffic"
            )


def _matching(switch: Switch, after: Iterable[CrossConnect]) -> Iterator[Violation]:
    used: set[Terminal] = set()
    for pair in after:
        for terminal in _terminals(switch, pair):
            if terminal in used:
                yield Violation("I2", f"position {terminal.position} ({terminal.side}) is used twice")
            used.add(terminal)


def _touched(
    switch: Switch, pairs: Iterable[CrossConnect], moving: Collection[Terminal], owned: Collection[int]
) -> Iterator[Violation]:
    for pair in pairs:
        terminals = _terminals(switch, pair)
        if any(not 0 <= terminal.position < switch.size for terminal in terminals):
            yield Violation("I2", f"{_name(switch, pair)} is outside 0 to {switch.size - 1}")
        elif any(terminal.position not in owned for terminal in terminals):
            yield Violation("I2", f"{_name(switch, pair)} touches a port that is not of this fabric")
        if any(terminal in moving for terminal in terminals):
            yield Violation("I2", f"{_name(switch, pair)} touches a moving port")


def _terminals(switch: Switch, pair: CrossConnect) -> tuple[Terminal, Terminal]:
    sides = (Side.INGRESS, Side.EGRESS) if switch.sided else (Side.ANY, Side.ANY)
    return Terminal(switch.name, sides[0], pair[0]), Terminal(switch.name, sides[1], pair[1])


def _name(switch: Switch, pair: CrossConnect) -> str:
    return f"{switch.name} {pair[0]}->{pair[1]}"
