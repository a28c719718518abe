"""The simulations of this process: a bounded queue, few at a time, and the newest results.

They decide nothing, so every replica takes its own, and knows its own only. They are kept in memory: a new
process begins without any.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from opus_sdn.api.simulations.request import SimulationRequest
from opus_sdn.api.simulations.runner import run
from opus_sdn.api.simulations.simulation import Simulation, SimulationState
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.settings import MIB, Settings

logger = logging.getLogger(__name__)

RESULTS_MAX_BYTES = 128 * MIB  # of all results that are kept


class Simulations:
    """Used on one event loop. `place` before a request is read, then `submit`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[str, Simulation] = {}  # oldest first
        self._number = 0
        self._arriving = 0
        self._runs: set[asyncio.Task[None]] = set()
        self._closed = False

    @contextmanager
    def place(self) -> Iterator[None]:
        """Keep a place in the queue while a request is read. CoreError `overloaded` when there is none."""
        if self._closed:
            raise CoreError(Problem.NOT_READY, "the controller is stopping")
        limit = self._settings.simulations_queued_max
        if self._arriving + self._count(SimulationState.QUEUED) >= limit:
            why = f"{limit} simulations are waiting (setting simulations_queued_max); ask again later"
            raise CoreError(Problem.OVERLOADED, why, limit=limit)
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    async def submit(self, request: SimulationRequest, body: bytes) -> Simulation:
        """Queue a request that was read in a `place`; `body` is the same as bytes."""
        file = await asyncio.to_thread(_unnamed_file, body)
        if self._closed:
            file.close()
            raise CoreError(Problem.NOT_READY, "the controller is stopping")
        self._number += 1
        known = Simulation(
            id=f"{self._number}-{secrets.token_hex(4)}",  # another process's ids are never mistaken for ours
            number=self._number,
            request=_without_content(request),
            body=file,
            created_at=time.time(),
            points=request.points,
        )
        self._known[known.id] = known
        self._start_next()
        return known

    def all(self) -> list[Simulation]:
        """Those that are queued, running, or kept, oldest first."""
        return list(self._known.values())

    def get(self, simulation: str) -> Simulation:
        """One by its id. Raises CoreError `not-found`."""
        found = self._known.get(simulation)
        if found is None:
            kept = self._settings.simulations_kept_max
            why = (
                f"there is no simulation {simulation!r} in this process of the controller, which keeps the "
                f"newest {kept} that have ended"
            )
            raise CoreError(Problem.NOT_FOUND, why, simulation=simulation)
        return found

    async def cancel(self, simulation: str) -> Simulation:
        """Stop it, if it has not ended; returns when nothing of it runs."""
        found = self.get(simulation)
        if found.state is SimulationState.QUEUED:
            self._end(found, None)
        else:
            found.stop.set()
            await found.ended.wait()
        return found

    def refuse_work(self) -> None:
        """Take no more, and stop all there are."""
        self._closed = True
        for known in self.all():
            if known.state is SimulationState.QUEUED:
                self._end(known, None)
            known.stop.set()

    async def close(self) -> None:
        """Return when nothing runs any more."""
        self.refuse_work()
        if self._runs:
            await asyncio.wait(self._runs)

    def _count(self, state: SimulationState) -> int:
        return sum(known.state is state for known in self._known.values())

    def _start_next(self) -> None:
        free = self._settings.simulations_running_max - self._count(SimulationState.RUNNING)
        queued = [known for known in self._known.values() if known.state is SimulationState.QUEUED]
        for known in queued[: max(0, free)]:
            known.state, known.phase, known.started_at = SimulationState.RUNNING, "starting", time.time()
            task = asyncio.create_task(self._run(known))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)

    async def _run(self, known: Simulation) -> None:
        try:
            outcome = await run(known, self._settings)
        except Exception:
            logger.exception("simulation failed", extra={"simulation": known.id})
            outcome = Failure(Problem.INTERNAL, f"a bug; the log has the details under simulation {known.id}")
        self._end(known, outcome)
        if not self._closed:
            self._start_next()

    def _end(self, known: Simulation, outcome: bytes | Failure | None) -> None:
        known.body.close()
        known.ended_at = time.time()
        if isinstance(outcome, bytes):
            known.state, known.result = SimulationState.DONE, outcome
        elif outcome is None:
            known.state = SimulationState.CANCELLED
        else:
            known.state, known.failure = SimulationState.FAILED, outcome
        known.ended.set()
        why = {} if known.failure is None else {"detail": known.failure.detail}
        logger.info("simulation ended", extra={"simulation": known.id, "state": known.state, **why})
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Keep the newest of those that have ended, by number and by the size of their results."""
        ended = [known for known in self._known.values() if known.state.final]
        ended.sort(key=lambda known: known.ended_at or 0.0, reverse=True)
        size = 0
        for count, known in enumerate(ended, start=1):
            size += len(known.result or b"")
            if count > 1 and (count > self._settings.simulations_kept_max or size > RESULTS_MAX_BYTES):
                del self._known[known.id]


def _unnamed_file(content: bytes) -> BinaryIO:
    """A file that goes with the last process that has it open."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open
    file.write(content)
    file.seek(0)
    return cast("BinaryIO", file)


def _without_content(request: SimulationRequest) -> SimulationRequest:
    inputs = {
        field: file.model_copy(update={"content": None, "text": None})
        for field, file in request.inputs.given()
    }
    return request.model_copy(update={"inputs": request.inputs.model_copy(update=inputs)})
