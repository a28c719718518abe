"""How a simulated run goes, apart from the order of its events."""

from __future__ import annotations

import random
from dataclasses import dataclass

from opus_sdn.intent.model import CoreSettings
from tests.intent.traffic import Finish


@dataclass(frozen=True, slots=True)
class Mode:
    """Ways of finishing, faults that must be harmless, and the settings that decide an order."""

    finish: Finish = Finish.EACH
    in_order: bool = False  # a device runs what was issued in order of issue
    priorities: bool = False  # some parts of the world are much faster than others
    copies: float = 0.0  # share of requests of which a copy is delivered later
    repeats: int = 0  # how often a rank says again what it has open
    lost: float = 0.0  # share of answers that never arrive
    device_faults: float = 0.0  # share of steps of which the device says that they failed
    steps_at_once: int = 8
    pace_s: float = 0.001  # time between two events, at most
    overtake_max: int = 8
    overtake_s: float = 0.25
    hints: float = 0.0  # share of requests that also say what the rank expects next, right or wrong
    patience_s: float = 0.0  # of rings that no host waits for

    @classmethod
    def drawn(cls, seed: int) -> Mode:
        """A mode for a seed, so that every seed tries something else."""
        rng = random.Random(f"mode {seed}")
        return cls(
            finish=rng.choice(list(Finish)),
            in_order=rng.random() < 0.4,
            priorities=rng.random() < 0.6,
            copies=rng.choice((0.0, 0.0, 0.15)),
            repeats=rng.choice((0, 0, 3)),
            lost=rng.choice((0.0, 0.0, 0.2)),
            device_faults=rng.choice((0.0, 0.0, 0.25)),
            steps_at_once=rng.choice((1, 8)),
            overtake_max=rng.choice((1, 2, 8)),
            overtake_s=rng.choice((0.005, 0.25, 1e9)),
            hints=rng.choice((0.0, 0.5, 1.0)),
            patience_s=rng.choice((0.0, 0.0, 0.01)),
        )

    def settings(self) -> CoreSettings:
        """The core's settings for this mode; no lease ever lapses."""
        return CoreSettings(
            overtake_max=self.overtake_max,
            overtake_s=self.overtake_s,
            ring_patience_s=self.patience_s,
            lease_s=1e9,
            fence_s=1.0,
            abort_s=1.0,
        )
