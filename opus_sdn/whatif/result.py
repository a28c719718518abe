"""What a replay found, in the same form for all semantics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Exposure:
    """A reconfiguration that an operation had to wait for: when it began to wait, and how long."""

    time_ns: int
    waited_ns: int
    rank: int
    operation: str


@dataclass(slots=True)
class Result:
    """A finished step. Times in ns of the step, `wall_s` in seconds of ours.

    `reconfigurations` are (time, topology id). `spans[r]`, where kept, is (position, start, end) for each
    node of rank r in the order in which they finished. `finished_communications[r]`, where kept, are the
    kinds of its communications in that order, as hints are derived from them.
    """

    semantics: str
    mode: str
    finish_ns: int
    finish_ns_per_rank: list[int]
    reconfigurations: list[tuple[int, int | str]] = field(default_factory=list)
    exposures: list[Exposure] = field(default_factory=list)
    spans: list[list[tuple[int, int, int]]] | None = None
    finished_communications: list[list[int | None]] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0

    @property
    def exposed_delay_ms(self) -> float:
        """What the step is known to have lost to reconfigurations, in ms."""
        return sum(exposure.waited_ns for exposure in self.exposures) / 1e6
