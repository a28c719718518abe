"""What the core knows of one switch: the observed matching, ports that are moving, and steps in progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from opus_sdn.intent.changes import StepState
from opus_sdn.intent.fabric import Circuit, CrossConnect, Switch, Terminal
from opus_sdn.intent.lifecycle import advance_step


@dataclass(frozen=True, slots=True)
class Step:
    """One device transaction, fully specified. `causes` are the intents (or seeds) it is for."""

    id: int
    switch: str
    generation: int
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    causes: tuple[str, ...]
    disturbed: tuple[str, ...]
    job: tuple[str, int] | None  # name and incarnation, when it is for one job only
    hinted: tuple[Circuit, ...] = ()  # of what it makes, circuits that only hints ask for


@dataclass(slots=True)
class StepProgress:
    """A step that is planned or started."""

    step: Step
    state: StepState


class ForeignKind(StrEnum):
    """Whose positions a cross-connect that we did not make ends on."""

    OWN_PORTS = "own-ports"  # two ports of this fabric
    MIXED = "mixed"  # a port of this fabric and a position that is none
    OUTSIDE = "outside"  # positions that are no ports of this fabric


@dataclass(frozen=True, slots=True)
class Foreign:
    """A cross-connect that no step of ours made, and when it was first seen."""

    kind: ForeignKind
    since: float


@dataclass(frozen=True, slots=True)
class Away:
    """The switch does not answer: in its own words, and since when."""

    detail: str
    since: float


class FailureKind(StrEnum):
    """Why a step failed, as far as the driver can tell. Each asks for another reaction."""

    TRANSIENT = "transient"  # nothing was changed; a matter of the switch and of time
    TERMINAL = "terminal"  # nothing was changed: something in the request is impossible
    AMBIGUOUS = "ambiguous"  # unknown until it was read back
    MISMATCH = "mismatch"  # the device says done, and shows otherwise


@dataclass(slots=True)
class Setback:
    """A need whose step failed: how often it did so alone, the end of its pause, and whom it goes with."""

    times: int
    until: float
    group: tuple[int, int]  # the step that failed and the part of it


@dataclass(slots=True)
class Rival:
    """Somebody takes down a cross-connect that we made: how often, first and last time, what came instead."""

    times: int
    since: float
    last: float
    instead: tuple[CrossConnect, ...] = ()
    held_until: float = 0.0  # we do not make it again before


@dataclass(frozen=True, slots=True)
class Seen:
    """How a reading differs from what was known. `first`: since the start of this controller."""

    appeared: frozenset[CrossConnect]
    vanished: frozenset[CrossConnect]
    first: bool
    compared: bool  # False: nothing was known to compare with
    lighter: bool = False  # light passes elsewhere than before


class SwitchState:
    """Mutable state of one switch; the engine owns it."""

    __slots__ = (
        "_remembered",
        "away",
        "busy",
        "dark",
        "foreign",
        "generation",
        "holder",
        "lit_at",
        "made",
        "matching",
        "moving",
        "observed",
        "progress",
        "retry_at",
        "rivals",
        "setbacks",
        "switch",
    )

    def __init__(self, switch: Switch, generation: int = 0) -> None:
        self.switch = switch
        self.generation = generation
        self.observed = False  # nothing is planned on a switch that was never read
        self._remembered: frozenset[CrossConnect] | None = None
        self.matching: set[CrossConnect] = set()
        self.dark: dict[CrossConnect, str] = {}  # of the matching, where no light passes, and why
        self.lit_at: dict[CrossConnect, float] = {}  # of those that pass light, since when that was seen
        self.holder: dict[Terminal, CrossConnect] = {}
        self.moving: dict[Terminal, int] = {}  # terminal -> step that is on the device
        self.busy: dict[Terminal, int] = {}  # terminal -> step, planned ones included
        self.progress: dict[int, StepProgress] = {}
        self.made: set[CrossConnect] = set()  # of the matching, what our own steps made
        self.foreign: dict[CrossConnect, Foreign] = {}  # the rest of it
        self.rivals: dict[CrossConnect, Rival] = {}
        self.away: Away | None = None
        self.setbacks: dict[str, Setback] = {}  # by the name of what needs it
        self.retry_at: float | None = None  # the end of the first pause

    def remember(self, matching: Iterable[CrossConnect], foreign: Iterable[CrossConnect] = ()) -> None:
        """What an earlier start last saw: to compare the first reading with, never to be used instead."""
        self._remembered = frozenset(matching)
        self.made = set(self._remembered.difference(foreign))

    def observe(
        self, matching: Iterable[CrossConnect], dark: Mapping[CrossConnect, str] | None = None
    ) -> Seen | None:
        """Take over what was read, except on moving ports, whose step will be read back. None: no news.

        `dark`: pairs of the matching that pass no light, and why. A pair both of whose ports move keeps what
        was known; a read cannot say what a step will leave.
        """
        first = not self.observed
        before = self.matching if self._remembered is None else self._remembered
        new = {p for p in matching if not self._is_moving(p)} | {p for p in before if self._is_moving(p)}
        blind = {pair: why for pair, why in (dark or {}).items() if pair in new}
        if new == self.matching and blind == self.dark and not first:
            return None
        seen = Seen(
            frozenset(new - before),
            frozenset(before - new),
            first,
            compared=not first or self._remembered is not None,
            lighter=blind != self.dark,
        )
        self.observed = True
        self._remembered = None
        self.matching = new
        self.dark = blind
        self.holder = {t: p for p in new for t in self.switch.terminals_of(p)}
        self.generation += 1
        return seen

    def note_light(self, now: float) -> None:
        """Remember of everything that passes light when that was seen first."""
        lit = (pair for pair in self.matching if pair not in self.dark)
        self.lit_at = {pair: self.lit_at.get(pair, now) for pair in lit}

    def is_up(self, circuit: Circuit) -> bool:
        """Every cross-connect observed, light passes, no terminal moves: only then may it be granted."""
        for terminal in circuit.terminals:
            if terminal in self.moving:
                return False
        return all(pair in self.matching and pair not in self.dark for pair in circuit.cross_connects)

    def terminals_of_step(self, step: Step) -> tuple[Terminal, ...]:
        """All terminals that a step touches."""
        pairs = step.remove + step.add
        return tuple(dict.fromkeys(t for pair in pairs for t in self.switch.terminals_of(pair)))

    def plan_step(self, step: Step) -> None:
        """Remember a planned step; its terminals are left alone by later planning."""
        self.progress[step.id] = StepProgress(step, StepState.PLANNED)
        for terminal in self.terminals_of_step(step):
            self.busy[terminal] = step.id

    def start(self, step: Step) -> None:
        """The step goes to the device: its ports are not up for anybody until it is settled."""
        progress = self.progress[step.id]
        progress.state = advance_step(progress.state, StepState.STARTED)
        for terminal in self.terminals_of_step(step):
            self.moving[terminal] = step.id

    def finish(self, step: Step, state: StepState) -> None:
        """The step is over (done, failed or dropped): its ports are free again."""
        progress = self.progress.pop(step.id)
        progress.state = advance_step(progress.state, state)
        for terminal in self.terminals_of_step(step):
            self.busy.pop(terminal, None)
            self.moving.pop(terminal, None)

    def _is_moving(self, pair: CrossConnect) -> bool:
        return any(terminal in self.moving for terminal in self.switch.terminals_of(pair))
