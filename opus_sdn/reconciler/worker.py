"""Carries out the steps of one switch: start, apply within a deadline, read back, settle, and pause.

The core decides what a step is and whether it may still start; nothing here chooses. What the device holds is
known from reading it and from nothing else: an answer of `apply` only says when to read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    Driver,
    DriverError,
    TerminalError,
    TransientError,
)
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.switches import Step
from opus_sdn.reconciler.backoff import Backoff
from opus_sdn.reconciler.clock import Clock

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

# A switch that refuses is asked again after 50 ms, as most refusals come from a reading that was out of date,
# and at least every 30 s, so that a repaired one is in use again while a person still looks at it.
STEP_PAUSE_S = (0.05, 30.0)
# Reading changes nothing and everything on the switch waits for it: at least every 5 s.
READ_PAUSE_S = (0.05, 5.0)


class _Outcome(NamedTuple):
    """How one `apply` ended: what went wrong, if anything, and how long the device wants to be left alone."""

    wrong: str | None = None
    retry_after_s: float = 0.0


def always() -> bool:
    """A single controller may start a device step at any time."""
    return True


class SwitchWorker:
    """One switch. Used on the event loop only; `changed` is called after every input to the core."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        engine: Engine,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        step_deadline_s: float,
        changed: Callable[[], None],
        may_step: Callable[[], bool] = always,
    ) -> None:
        self.name = name
        self.driver = driver
        self.max_inflight = 1
        self.trouble: str | None = "not read yet"  # why the device cannot be used now, for the readiness page
        self._engine = engine
        self._clock = clock
        self._loop = loop
        self._step_deadline_s = step_deadline_s
        self._changed = changed
        self._may_step = may_step
        self._queue: deque[int] = deque()  # planned steps; bounded by the core: never two on one port
        self._inflight = 0
        self._unread: list[tuple[Step, _Outcome]] = []  # applied, not read back yet
        self._reading = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._step_backoff = Backoff(*STEP_PAUSE_S)
        self._resume_at = 0.0  # loop time before which no step starts
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Whether a step has started and is not settled."""
        return self._inflight > 0

    async def adopt(self) -> None:
        """Learn what the device is and holds now; returns once it has answered, however long that takes."""
        self.max_inflight = max(1, (await self._surely(self.driver.describe)).max_inflight)
        observation = await self._surely(self.driver.read)
        self.trouble = None
        self._engine.observe(self._clock(), self.name, observation.matching)
        if left := self._engine.unsettled(self.name):
            self._inflight += len(left)
            self._spawn(self._settle_left(left))
        self._changed()

    async def _settle_left(self, steps: Sequence[Step]) -> None:
        """Steps of an earlier start: what became of them is known when their deadline has passed."""
        await asyncio.sleep(self._step_deadline_s)
        observation = await self._surely(self.driver.read)
        for step in steps:
            self._inflight -= 1
            wrong = _difference(step, observation.matching)
            detail = None if wrong is None else f"cut short by the end of the controller; {wrong}"
            self._engine.settle_step(self._clock(), step.id, wrong is None, detail, observation.matching)
        self._changed()
        self.start_due()

    def enqueue(self, step: int) -> None:
        """A step whose plan is stored: start it as soon as the switch takes it."""
        self._queue.append(step)
        self.start_due()

    def start_due(self) -> None:
        """Start queued steps as far as `max_inflight` and the pause after a failure allow."""
        while self._queue and self._inflight < self.max_inflight and not self._stopped and self._may_step():
            pause_s = self._resume_at - self._loop.time()
            if pause_s > 0:
                if self._timer is None:
                    self._timer = self._loop.call_later(pause_s, self._resume)
                return
            step = self._engine.start_step(self._clock(), self._queue.popleft())
            self._changed()
            if step is not None:
                self._inflight += 1
                self._spawn(self._carry_out(step))

    def stop(self) -> None:
        """Start nothing more. Steps in flight go on; see `drained`."""
        self._stopped = True
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no step is in flight; False, giving them up, when that takes longer than `timeout_s`."""
        give_up_at = self._loop.time() + timeout_s
        while self._tasks:
            pause_s = give_up_at - self._loop.time()
            if pause_s <= 0:
                for task in self._tasks:
                    task.cancel()
                return False
            await asyncio.wait(self._tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _resume(self) -> None:
        self._timer = None
        self.start_due()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, step: Step) -> None:
        outcome = await self._apply(step)
        # Not in one line: the list to append to must be looked up after the wait, reading replaces it.
        self._unread.append((step, outcome))
        if not self._reading:
            await self._read_back()

    async def _apply(self, step: Step) -> _Outcome:
        """One device transaction, at most the step's deadline long."""
        deadline = self._loop.time() + self._step_deadline_s
        call = self._loop.create_task(self._applied(step))
        await asyncio.wait({call}, timeout=self._step_deadline_s)
        if not call.done():
            call.cancel()
            call.add_done_callback(_take_result)
            return _Outcome(f"no answer within the step's deadline of {self._step_deadline_s:g} s")
        try:
            return _Outcome(call.result().shortfall())
        except TransientError as error:
            return _Outcome(error.detail, error.retry_after_s)
        except TerminalError as error:
            return _Outcome(error.detail)
        except AmbiguousError as error:
            wrong = f"answer lost: {error.detail}"
        except Exception as error:
            logger.exception("driver failed unforeseen", extra={"switch": self.name, "step": step.id})
            wrong = f"driver failed with {type(error).__name__}"
        # The lost command may still take effect until the step's deadline: reading sooner proves nothing.
        await asyncio.sleep(deadline - self._loop.time())
        return _Outcome(wrong)

    async def _applied(self, step: Step) -> Applied:
        if not self._may_step():  # the process may have been stopped for long since the step was started
            raise TerminalError("not sent, as this replica does not lead any more")
        return await self.driver.apply(step.remove, step.add, self._engine.state.start)

    async def _read_back(self) -> None:
        """Settle the steps that were applied before the device is read, one reading for all of them."""
        self._reading = True
        try:
            while self._unread:
                applied, self._unread = self._unread, []
                observation = await self._surely(self.driver.read)
                for step, outcome in applied:
                    self._settle(step, outcome, observation.matching)
        finally:
            self._reading = False
        self.start_due()

    def _settle(self, step: Step, outcome: _Outcome, matching: frozenset[CrossConnect]) -> None:
        self._inflight -= 1
        # A device that says "done" and did nothing has failed: else it would be asked again without a pause.
        wrong = outcome.wrong
        if wrong is None and (difference := _difference(step, matching)) is not None:
            wrong = f"device reported success, but {difference}"
        self.trouble = wrong
        if wrong is None:
            self._step_backoff.succeeded()
        else:
            pause_s = self._step_backoff.failed(outcome.retry_after_s)
            self._resume_at = self._loop.time() + pause_s
            logger.warning(
                "device step failed",
                extra={"switch": self.name, "step": step.id, "detail": wrong, "pause_s": pause_s},
            )
        try:
            self._engine.settle_step(self._clock(), step.id, wrong is None, wrong, matching)
        except Exception:
            logger.exception("step was not settled", extra={"switch": self.name, "step": step.id})
        self._changed()

    async def _surely(self, ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Ask the device until it answers. Reading changes nothing, so there is no reason to give up."""
        backoff = Backoff(*READ_PAUSE_S)
        while True:
            try:
                answer = await asyncio.wait_for(ask(), self._step_deadline_s)
            except TimeoutError:
                trouble = f"no answer within {self._step_deadline_s:g} s"
            except DriverError as error:
                trouble = error.detail
            except Exception as error:
                logger.exception("driver failed unforeseen", extra={"switch": self.name})
                trouble = f"driver failed with {type(error).__name__}"
            else:
                return answer
            if trouble != self.trouble:
                logger.warning("switch cannot be read", extra={"switch": self.name, "detail": trouble})
            self.trouble = trouble
            await asyncio.sleep(backoff.failed())


def _take_result(call: asyncio.Task[Applied]) -> None:
    """Look at the end of a call that nobody waits for, or asyncio reports it as lost."""
    if not call.cancelled():
        call.exception()


def _difference(step: Step, matching: frozenset[CrossConnect]) -> str | None:
    """What the device holds otherwise than the step left it; None when it is as it should be."""
    missing = [pair for pair in step.add if pair not in matching]
    left = [pair for pair in step.remove if pair in matching and pair not in step.add]
    if not missing and not left:
        return None
    parts = [
        f"{what} {pair.ingress}-{pair.egress}"
        for what, pairs in (("missing", missing), ("still there", left))
        for pair in pairs
    ]
    return "it reads back otherwise: " + ", ".join(parts[:8])
