"""One simulation, from the request to its result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO

from opus_sdn.api.simulations.request import SimulationRequest
from opus_sdn.intent.errors import Failure


class SimulationState(StrEnum):
    """The last three are final. A step that cannot finish is `done`: that it cannot is the result."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self in (SimulationState.DONE, SimulationState.FAILED, SimulationState.CANCELLED)


@dataclass(slots=True)
class Simulation:
    """`request` is without the content of its files, which stand in `body` until it runs.

    `done` of `points` replays are finished. `result` is JSON. Times are seconds since 1970.
    """

    id: str
    number: int
    request: SimulationRequest
    body: BinaryIO
    created_at: float
    points: int
    state: SimulationState = SimulationState.QUEUED
    phase: str = "queued"
    done: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    failure: Failure | None = None
    result: bytes | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
