"""What a replay found, in the same form for all semantics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Exposure:
    """A wait for a reconfiguration that the end of the step hangs on.

    `time_ns`: when the reconfiguration began; `topology`: the id that it led to, where there is one for all
    ranks; `operation` of `rank` waited `waited_ns` for it. `details` are the semantics' own.
    """

    time_ns: int
    topology: int | str | None
    waited_ns: int
    rank: int
    operation: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """A finished step. Times in ns of the step, `wall_s` in seconds of ours.

    `reconfigurations` are (time, topology id). `started_ns[r][p]` and `ended_ns[r][p]` are those of the
    node of rank r at position p. `finished_communications[r]`, where kept, are the kinds of its
    communications in the order of their ends, as hints are derived from them. `details` are the semantics'
    own figures.
    """

    semantics: str
    mode: str
    finish_ns: int
    finish_ns_per_rank: list[int]
    started_ns: list[list[int]]
    ended_ns: list[list[int]]
    reconfigurations: list[tuple[int, int | str]] = field(default_factory=list)
    exposures: list[Exposure] = field(default_factory=list)
    finished_communications: list[list[int | None]] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0

    @property
    def exposed_delay_ns(self) -> int:
        """What the end of the step is later for waiting for reconfigurations."""
        return sum(exposure.waited_ns for exposure in self.exposures)
