"""Carries out the steps of one switch: start, apply within a deadline, read back, settle, and pause.

The core decides what a step is and whether it may still start; nothing here chooses. What the device holds is
known from reading it and from nothing else: an answer of `apply` only says when to read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from opus_sdn.drivers.base import (
    Applied,
    DeviceEventKind,
    Driver,
    DriverError,
    Observation,
    Refusal,
    TerminalError,
)
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Terminal
from opus_sdn.intent.switches import FailureKind, Step
from opus_sdn.reconciler.backoff import Backoff
from opus_sdn.reconciler.clock import Clock
from opus_sdn.reconciler.looking import Looker, UnreadableError
from opus_sdn.reconciler.outcome import Outcome, difference_of, outcome_of, outcome_of_failure
from opus_sdn.store.base import NobodyKnows, UnderWay

logger = logging.getLogger(__name__)

# A switch that refuses is asked again after 50 ms, as most refusals come from a reading that was out of date,
# and at least every 30 s, so that a repaired one is in use again while a person still looks at it.
STEP_PAUSE_S = (0.05, 30.0)
# Refusals for good are held against the needs that they are about, not against the switch: one bad port says
# nothing about the others. A switch that refuses this many steps in a row gets its pauses all the same.
REFUSALS_IN_A_ROW = 4
# After something strange the switch is looked at again this soon, then more and more seldom.
ATTENTIVE_S = 1.0
# While a command may still act of which nobody knows, the switch is read again after these pauses: its ports
# may be up again as soon as all of it is there.
LOST_LOOK_S = (0.1, 1.0)
# What the ports of a large device are costs it more than its circuits: not asked more often than this.
PORTS_PAUSE_S = 1.0
ABOUT_CIRCUITS = frozenset({DeviceEventKind.FOREIGN_CHANGE, DeviceEventKind.PORT, DeviceEventKind.ALARM})


def always() -> bool:
    """A single controller may start a device step at any time."""
    return True


class SwitchWorker:
    """One switch. Used on the event loop only; `changed` is called after every input to the core.

    `observe_s`: how often the switch is read when nothing happens; None for never.
    """

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
        observe_s: float | None = None,
        under_way: UnderWay | None = None,
    ) -> None:
        self.name = name
        self.driver = driver
        self.max_inflight = 1
        self.adopted = asyncio.Event()  # it has been read
        self._engine = engine
        self._clock = clock
        self._loop = loop
        self._step_deadline_s = step_deadline_s
        self._observe_s = observe_s
        self._changed = changed
        self._may_step = may_step
        self._under_way = under_way or NobodyKnows()
        self._looker = Looker(name, driver, step_deadline_s, self._away)
        self._refusal: str | None = None  # what became of the last step, if it failed
        self._queue: deque[int] = deque()  # planned steps; bounded by the core: never two on one port
        self._inflight = 0
        self._unread: list[tuple[Step, Outcome]] = []  # applied, not read back yet
        self._reading = False
        self._tasks: set[asyncio.Task[None]] = set()  # steps in flight
        self._watching: asyncio.Task[None] | None = None
        self._look = asyncio.Event()  # something was said to have changed
        self._made_at = loop.time()  # earlier starts were over before
        self._ports_at = -PORTS_PAUSE_S  # loop time at which the device was last asked for its ports
        self._step_backoff = Backoff(*STEP_PAUSE_S)
        self._refusals = 0
        self._failed_causes: frozenset[str] = frozenset()
        self._asked_until = 0.0  # loop time before which the device wants no step
        self._resume_at = 0.0  # loop time before which no step starts
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Whether a step has started and is not settled."""
        return self._inflight > 0

    @property
    def trouble(self) -> str | None:
        """Why the device cannot be used now, for the readiness page; None when it can."""
        return self._looker.trouble or self._refusal or (None if self.adopted.is_set() else "not read yet")

    # --- reading

    @property
    def begun(self) -> bool:
        """Whether it is being watched, or will be as soon as it answers."""
        return self._watching is not None

    def begin(self) -> None:
        """Adopt the device as soon as it answers, however long that takes, and watch it from then on."""
        if self._watching is not None:
            self._watching.cancel()
        self.adopted.clear()
        self._watching = self._loop.create_task(self._live())

    async def _live(self) -> None:
        try:
            await self._adopt()
            if self._observe_s is not None:
                await asyncio.gather(self._watch(self._observe_s), self._listen())
        except Exception:
            logger.exception("the switch is not watched any more", extra={"switch": self.name})

    async def _adopt(self) -> None:
        """Learn what the device is and holds now, and what became of the steps of an earlier start."""
        self.max_inflight = max(1, (await self._looker.describe()).max_inflight)
        shut = await self._shut_ports()
        observation = await self._looker.read()
        self._observed(observation, shut)
        self.adopted.set()
        left = self._engine.unsettled(self.name)
        if left:
            self._inflight += len(left)
            self._spawn(self._settle_left(left, observation))

    async def observe(self) -> None:
        """Read the device now. CoreError `switch-away` when it does not answer."""
        shut = await self._shut_ports()
        try:
            observation = await self._looker.read_once()
        except UnreadableError as error:
            self._away(str(error))
            raise CoreError(
                Problem.SWITCH_AWAY, f"switch {self.name} does not answer: {error}", switch=self.name
            ) from None
        self._observed(observation, shut)

    def _observed(self, observation: Observation, shut: Mapping[Terminal, str] | None) -> None:
        self._engine.observe(self._clock(), self.name, observation.matching, observation.dark, shut)
        self._changed()

    async def _shut_ports(self) -> Mapping[Terminal, str] | None:
        """Ports that pass no light, as of before the reading that follows; None: not asked, or no answer."""
        if self._loop.time() < self._ports_at + PORTS_PAUSE_S:
            return None
        self._ports_at = self._loop.time()
        return await self._looker.shut_ports()

    def _away(self, detail: str) -> None:
        self._engine.lose_switch(self._clock(), self.name, detail)
        self._changed()

    async def _watch(self, observe_s: float) -> None:
        """Read the switch from time to time, soon again after anything strange, and when it says so."""
        pause_s = observe_s
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            early = self._loop.time() < self._ports_at + PORTS_PAUSE_S
            shut = await self._shut_ports()
            observation = await self._looker.read()
            before = self._engine.state.switches[self.name].generation
            self._observed(observation, shut)
            strange = self._engine.state.switches[self.name].generation != before
            pause_s = min(observe_s, ATTENTIVE_S if strange or early else 2 * pause_s)

    async def _listen(self) -> None:
        """What the device tells unasked only says when to read it; it is read without that too."""
        try:
            async for event in self.driver.events():
                if event.kind in ABOUT_CIRCUITS and not event.expected:
                    told = {"switch": self.name, "kind": event.kind, "detail": event.detail}
                    logger.info("switch reports", extra=told)
                    self._look.set()
        except Exception:
            logger.exception("the switch is not listened to any more", extra={"switch": self.name})

    # --- steps

    def enqueue(self, step: int, causes: Collection[str] = ()) -> None:
        """A step whose plan is stored: start it as soon as the switch takes it.

        One for a new need does not wait for the end of a pause that others have earned.
        """
        if not self._failed_causes.issuperset(causes):
            self._refusals = 0
            self._step_backoff.succeeded()
            self._resume_at = self._asked_until
            self._failed_causes = frozenset()
        self._queue.append(step)
        self.start_due()

    def start_due(self) -> None:
        """Start queued steps as far as `max_inflight` and the pause after a failure allow."""
        while self._queue and self._inflight < self.max_inflight and not self._stopped and self._may_step():
            pause_s = self._resume_at - self._loop.time()
            if pause_s > 0:
                if self._timer is not None:
                    self._timer.cancel()
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
        if self._watching is not None:
            self._watching.cancel()
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

    async def _apply(self, step: Step) -> Outcome:
        """One device transaction, at most the step's deadline long."""
        deadline = self._loop.time() + self._step_deadline_s
        call = self._loop.create_task(self._applied(step))
        await asyncio.wait({call}, timeout=self._step_deadline_s)
        if not call.done():
            call.cancel()
            call.add_done_callback(_take_result)
            wrong = f"no answer within the step's deadline of {self._step_deadline_s:g} s"
            return Outcome(wrong, FailureKind.AMBIGUOUS)
        try:
            return outcome_of(call.result())
        except DriverError as error:
            outcome = outcome_of_failure(error)
        except Exception as error:
            logger.exception("driver failed unforeseen", extra={"switch": self.name, "step": step.id})
            outcome = Outcome(f"driver failed with {type(error).__name__}", FailureKind.AMBIGUOUS)
        if outcome.kind is FailureKind.AMBIGUOUS:
            await self._until_certain(step, deadline)
        return outcome

    async def _until_certain(self, step: Step, deadline: float) -> None:
        """Wait until a lost command can no longer act: its whole effect is there, or its deadline has passed.

        Until then its ports move; reading sooner that nothing has happened proves nothing.
        """
        backoff = Backoff(*LOST_LOOK_S)
        while self._loop.time() < deadline:
            try:
                observation = await self._looker.read_once()
            except UnreadableError:
                pass
            else:
                if difference_of(step, observation.matching) is None:
                    return
            await asyncio.sleep(min(backoff.failed(), deadline - self._loop.time()))

    async def _settle_left(self, steps: Sequence[Step], observation: Observation) -> None:
        """Steps of an earlier start: done as soon as all is there, else decided when their time is over.

        One whose command has never left, or was answered, can have no effect any more: it is over now.
        """
        ended = [step for step in steps if not self._under_way.may_be(step.id)]
        self._settle_as_read(ended, observation)
        steps = [step for step in steps if step not in ended]
        over_at = self._made_at + self._step_deadline_s  # nobody has sent anything since
        backoff = Backoff(*LOST_LOOK_S)
        over = False
        while steps:
            settled = [s for s in steps if over or difference_of(s, observation.matching) is None]
            steps = [step for step in steps if step not in settled]
            self._settle_as_read(settled, observation)
            self.start_due()
            if steps:
                await asyncio.sleep(max(0.0, min(backoff.failed(), over_at - self._loop.time())))
                over = self._loop.time() >= over_at  # before the reading: what it shows then stays so
                observation = await self._looker.read()

    def _settle_as_read(self, steps: Sequence[Step], observation: Observation) -> None:
        for step in steps:
            self._inflight -= 1
            self._under_way.end(step.id)
            wrong = difference_of(step, observation.matching)
            detail = None if wrong is None else f"cut short by the end of the controller; {wrong}"
            self._tell(step, Outcome(detail, FailureKind.AMBIGUOUS), observation)

    async def _applied(self, step: Step) -> Applied:
        if not self._may_step():  # the process may have been stopped for long since the step was started
            raise TerminalError("not sent, as this replica does not lead any more", Refusal.CLOSED)
        self._under_way.begin(step.id)
        return await self.driver.apply(step.remove, step.add, self._engine.state.start)

    async def _read_back(self) -> None:
        """Settle the steps that were applied before the device is read, one reading for all of them."""
        self._reading = True
        try:
            while self._unread:
                await asyncio.sleep(0)  # whatever has ended in this turn of the loop shares the reading
                applied, self._unread = self._unread, []
                observation = await self._looker.read()
                for step, outcome in applied:
                    self._settle(step, outcome.against(step, observation.matching), observation)
        finally:
            self._reading = False
        self.start_due()

    def _settle(self, step: Step, outcome: Outcome, observation: Observation) -> None:
        self._inflight -= 1
        self._under_way.end(step.id)
        self._refusal = outcome.wrong
        if outcome.wrong is None:
            self._refusals = 0
            self._step_backoff.succeeded()
            self._failed_causes = frozenset()
        else:
            pause_s = self._pause_after(step, outcome)
            self._look.set()  # a port may be the cause
            logger.warning(
                "device step failed",
                extra={
                    "switch": self.name,
                    "step": step.id,
                    "kind": outcome.kind,
                    "detail": outcome.wrong,
                    "pause_s": pause_s,
                },
            )
        self._tell(step, outcome, observation)

    def _pause_after(self, step: Step, outcome: Outcome) -> float:
        """For how long no step is started now, in seconds."""
        self._failed_causes |= frozenset(step.causes)
        self._refusals += 1
        at_fault = outcome.kind in (FailureKind.TERMINAL, FailureKind.MISMATCH)
        if at_fault and self._refusals < REFUSALS_IN_A_ROW:
            return 0.0
        now = self._loop.time()
        pause_s = self._step_backoff.failed(outcome.retry_after_s)
        self._asked_until = max(self._asked_until, now + outcome.retry_after_s)
        self._resume_at = max(self._resume_at, now + pause_s)
        return pause_s

    def _tell(self, step: Step, outcome: Outcome, observation: Observation) -> None:
        try:
            self._engine.settle_step(
                self._clock(),
                step.id,
                outcome.wrong is None,
                outcome.wrong,
                observation.matching,
                kind=outcome.kind,
                failed=outcome.failed,
                dark=observation.dark,
            )
        except Exception:
            logger.exception("step was not settled", extra={"switch": self.name, "step": step.id})
        self._changed()


def _take_result(call: asyncio.Task[Applied]) -> None:
    """Look at the end of a call that nobody waits for, or asyncio reports it as lost."""
    if not call.cancelled():
        call.exception()
