"""What the core knows of one switch: the observed matching, ports that are moving, and steps in progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(slots=True)
class StepProgress:
    """A step that is planned or started."""

    step: Step
    state: StepState


class SwitchState:
    """Mutable state of one switch; the engine owns it."""

    __slots__ = ("_observed", "busy", "generation", "holder", "matching", "moving", "progress", "switch")

    def __init__(self, switch: Switch, generation: int = 0) -> None:
        self.switch = switch
        self.generation = generation
        self._observed = False
        self.matching: set[CrossConnect] = set()
        self.holder: dict[Terminal, CrossConnect] = {}
        self.moving: dict[Terminal, int] = {}  # terminal -> step that is on the device
        self.busy: dict[Terminal, int] = {}  # terminal -> step, planned ones included
        self.progress: dict[int, StepProgress] = {}

    def observe(self, matching: Iterable[CrossConnect]) -> bool:
        """Take over what was read, except on moving ports, whose step will be read back. True if it differs.

        A pair both of whose ports move keeps what was known; a read cannot say what a step will leave.
        """
        new = {p for p in matching if not self._is_moving(p)} | {
            p for p in self.matching if self._is_moving(p)
        }
        if new == self.matching and self._observed:
            return False
        self._observed = True
        self.matching = new
        self.holder = {t: p for p in new for t in self.switch.terminals_of(p)}
        self.generation += 1
        return True

    def is_up(self, circuit: Circuit) -> bool:
        """Every cross-connect observed, no terminal moving. Only then may anything be granted on it."""
        for terminal in circuit.terminals:
            if terminal in self.moving:
                return False
        return all(pair in self.matching for pair in circuit.cross_connects)

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
