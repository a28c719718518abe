"""What goes wrong in one run, drawn from its seed: which kinds at all, how often, and when.

Every run has some kinds only, so that rare ones are seen together and alone. After `steps` steps nothing goes
wrong any more.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum

from opus_sdn.drivers.faults import FaultKind


class Kind(StrEnum):
    """Faults that come at one moment. `Faults` has those that may meet any message or command."""

    KILL = "kill -9 of the controller"
    POWER_CUT = "power cut"
    STOP = "stop and start of the controller"
    STORE_LOST = "database gone for a while"
    PAUSE = "controller paused"
    CLOCK_JUMP = "clock jump"
    WAKE_UP_DROPPED = "wake-up dropped"
    AWAY = "switch away"
    PORT_DEATH = "port death"
    FOREIGN = "foreign writer"
    DEATH = "rank death"
    CUT_OFF = "rank cut off"
    DRAIN = "port drained for a while"


BY_OPERATORS = frozenset({Kind.DRAIN})
# What may come together with anything else costs time only; the others may end a job, rightly.
HARMLESS = frozenset(
    {
        Kind.KILL,
        Kind.POWER_CUT,
        Kind.STOP,
        Kind.STORE_LOST,
        Kind.PAUSE,
        Kind.CLOCK_JUMP,
        Kind.WAKE_UP_DROPPED,
        Kind.AWAY,
        Kind.DRAIN,
    }
)


@dataclass(frozen=True, slots=True)
class Faults:
    """One run's faults. Shares are of requests, answers and commands."""

    steps: int = 200
    lost: float = 0.0
    copied: float = 0.0
    delay_s: tuple[float, ...] = (0.001,)  # a message takes one of these, more or less
    device: tuple[tuple[FaultKind, float], ...] = ()
    moments: tuple[tuple[int, Kind], ...] = ()  # at which step
    reported: bool = True  # a launcher says which process has died
    again: bool = False  # and starts the job again

    @classmethod
    def drawn(cls, seed: int, steps: int, kinds: frozenset[Kind] = frozenset(Kind)) -> Faults:
        """Some faults of these kinds."""
        rng = random.Random(f"faults {seed}")
        device: list[tuple[FaultKind, float]] = []
        if rng.random() < 0.5:
            some = rng.sample(list(FaultKind), rng.randint(1, 3))
            device = [(kind, rng.choice((0.05, 0.2, 0.5))) for kind in some]
        # A set's order is another one in every process.
        chosen = [kind for kind in Kind if kind in kinds - BY_OPERATORS and rng.random() < 0.25]
        times = [kind for kind in chosen for _ in range(rng.choice((1, 1, 2, 3)))]
        moments = [(rng.randrange(5, steps), kind) for kind in times]
        told = random.Random(f"operators {seed}")  # apart, so that a seed's faults stay what they were
        chosen = [kind for kind in Kind if kind in kinds & BY_OPERATORS and told.random() < 0.25]
        moments += [(told.randrange(5, steps), kind) for kind in chosen for _ in range(told.randint(1, 4))]
        return cls(
            steps,
            lost=rng.choice((0.0, 0.0, 0.02, 0.15)),
            copied=rng.choice((0.0, 0.0, 0.05, 0.3)),
            delay_s=rng.choice(((0.0005,), (0.0005, 0.005), (0.0005, 0.0005, 0.05), (0.001, 0.3))),
            device=tuple(device),
            moments=tuple(sorted(moments)),
            reported=rng.random() < 0.5,
            again=rng.random() < 0.5,
        )


@dataclass(slots=True)
class Drawn:
    """Faults met so far, by name."""

    counts: dict[str, int] = field(default_factory=dict)

    def note(self, name: str) -> None:
        """One more."""
        self.counts[name] = self.counts.get(name, 0) + 1
