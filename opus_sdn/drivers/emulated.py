"""The emulated optical circuit switch, and the driver that speaks to it.

`EmulatedSwitch` is the device: it holds the matching and refuses what a switch refuses. It knows no time;
whoever drives it says when the optics start and when light is through. `EmulatedDriver` does that with the
delays of the switch's options. Several drivers may share one device, as several programs may one switch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from opus_sdn.drivers.base import (
    Applied,
    Description,
    DriverError,
    Observation,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.emulated_options import EmulatedOptions, clash, misfit, normal, place, text
from opus_sdn.intent.fabric import CrossConnect, Switch, Terminal

OPERATIONS_KEPT = 1024
# Shortest advice to wait: a device without delays still needs another turn of the loop.
RETRY_MIN_S = 0.001


@dataclass(frozen=True, slots=True)
class Transition:
    """One accepted change on its way. `terminals` belong to it alone until it is finished."""

    number: int
    epoch: int
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    terminals: frozenset[Terminal]


@dataclass(frozen=True, slots=True)
class Operation:
    """One request that reached the device. `at` = seconds since 1970; `refused` = why nothing was changed."""

    at: float
    epoch: int
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    refused: str | None = None


@dataclass(slots=True)
class Counters:
    """What the device has done since it was switched on; `removed` and `added` count cross-connects."""

    applies: int = 0
    refused: int = 0
    removed: int = 0
    added: int = 0


class SwitchObserver(Protocol):
    """Someone who watches the light. Called at the very moment, before anything else can happen."""

    def change_started(self, switch: EmulatedSwitch, transition: Transition) -> None:
        """The optics of these terminals begin to move: what was removed is dark from now on."""
        ...

    def change_finished(self, switch: EmulatedSwitch, transition: Transition) -> None:
        """The optics stand: what was added carries light from now on."""
        ...


class EmulatedSwitch:
    """The device: a partial matching of cross-connects over its terminals, whatever is asked of it.

    A change goes through `accept` (judged as a whole, terminals reserved), `start` (removed pairs go dark)
    and `finish` (added pairs carry light). The table lists exactly what carries light. For one thread only.
    """

    def __init__(self, switch: Switch, *, clock: Callable[[], float] = time.time) -> None:
        self.switch = switch
        self.name = switch.name
        self.options = EmulatedOptions.of(switch)
        self.counters = Counters()
        self.operations: deque[Operation] = deque(maxlen=OPERATIONS_KEPT)
        self._clock = clock
        self._observers: list[SwitchObserver] = []
        self._holder: dict[Terminal, CrossConnect] = {}
        self._moving: dict[Terminal, Transition] = {}
        self._waiting: dict[int, Transition] = {}  # accepted, optics not started yet
        self._started: dict[int, Transition] = {}
        self._numbers = 0
        self._revision = 0
        for pair in self.options.initial:
            self._hold(pair)

    @property
    def table(self) -> frozenset[CrossConnect]:
        """The cross-connects that the device lists, which are those that carry light."""
        return frozenset(self._holder.values())

    @property
    def moving(self) -> frozenset[Terminal]:
        """Terminals of changes that are accepted and not finished."""
        return frozenset(self._moving)

    @property
    def inflight(self) -> int:
        """How many changes are accepted and not finished."""
        return len(self._waiting) + len(self._started)

    @property
    def revision(self) -> str:
        """Another one whenever the table has changed."""
        return str(self._revision)

    def is_lit(self, pair: CrossConnect) -> bool:
        """Whether light passes from this ingress to this egress right now."""
        pair = normal(self.switch, pair)
        first, second = self.switch.terminals_of(pair)
        return self._holder.get(first) == pair and self._holder.get(second) == pair

    def watch(self, observer: SwitchObserver) -> None:
        """Tell this observer of every change from now on."""
        self._observers.append(observer)

    def accept(self, remove: Iterable[CrossConnect], add: Iterable[CrossConnect], epoch: int) -> Transition:
        """Judge one request on its end state and reserve its terminals; all of it is accepted or nothing.

        Raises TerminalError for what can never be (out of range, a terminal twice, a loop, absent, busy) and
        TransientError while a terminal is still moving or the device has its fill of changes.
        """
        removed = tuple(normal(self.switch, pair) for pair in remove)
        added = tuple(normal(self.switch, pair) for pair in add)
        try:
            terminals = self._judge(removed, added)
        except DriverError as refusal:
            self.counters.refused += 1
            self.operations.append(Operation(self._clock(), epoch, removed, added, refusal.detail))
            raise
        self._numbers += 1
        transition = Transition(self._numbers, epoch, removed, added, terminals)
        self.counters.applies += 1
        self.operations.append(Operation(self._clock(), epoch, removed, added))
        self._moving.update(dict.fromkeys(terminals, transition))
        self._waiting[transition.number] = transition
        return transition

    def start(self, transition: Transition) -> None:
        """Move the optics: the removed pairs are dark and no longer listed."""
        del self._waiting[transition.number]
        self._started[transition.number] = transition
        for pair in transition.remove:
            for terminal in self.switch.terminals_of(pair):
                del self._holder[terminal]
        self.counters.removed += len(transition.remove)
        self._revision += 1
        for observer in self._observers:
            observer.change_started(self, transition)

    def finish(self, transition: Transition) -> None:
        """The optics stand: the added pairs carry light and are listed; the terminals may change again."""
        del self._started[transition.number]
        for pair in transition.add:
            self._hold(pair)
        for terminal in transition.terminals:
            del self._moving[terminal]
        self.counters.added += len(transition.add)
        self._revision += 1
        for observer in self._observers:
            observer.change_finished(self, transition)

    def _hold(self, pair: CrossConnect) -> None:
        for terminal in self.switch.terminals_of(pair):
            self._holder[terminal] = pair

    def _judge(self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...]) -> frozenset[Terminal]:
        self._judge_form(remove, add)
        terminals = frozenset(t for pair in remove + add for t in self.switch.terminals_of(pair))
        retry_after_s = max(self.options.change_s, RETRY_MIN_S)
        moving = sorted(place(t) for t in terminals if t in self._moving)
        if moving:
            raise TransientError(f"{self.name}: still moving: {', '.join(moving)}", retry_after_s)
        self._judge_end_state(remove, add)
        if self.inflight >= self.options.max_inflight:
            raise TransientError(
                f"{self.name}: {self.inflight} changes in progress; "
                f"max_inflight is {self.options.max_inflight}",
                retry_after_s,
            )
        return terminals

    def _judge_form(self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...]) -> None:
        """Refuse what is wrong whatever the device holds."""
        for verb, pairs in (("remove", remove), ("add", add)):
            for pair in pairs:
                wrong = misfit(self.switch, pair)
                if wrong is not None:
                    raise TerminalError(f"{self.name}: {verb}: {wrong}")
            wrong = clash(self.switch, pairs)
            if wrong is not None:
                raise TerminalError(f"{self.name}: {verb}: {wrong}; each may be named once")
        both = sorted(set(remove) & set(add))
        if both:
            raise TerminalError(
                f"{self.name}: {', '.join(map(text, both))} in remove and in add; "
                "leave a pair out of both to keep it"
            )

    def _judge_end_state(self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...]) -> None:
        """Refuse what does not fit what the device holds, once the removed pairs are gone."""
        absent = [pair for pair in remove if not self.is_lit(pair)]
        if absent:
            raise TerminalError(f"{self.name}: remove: not there: {', '.join(map(text, absent))}")
        freed = {t for pair in remove for t in self.switch.terminals_of(pair)}
        for pair in add:
            busy = [t for t in self.switch.terminals_of(pair) if t in self._holder and t not in freed]
            if busy:
                held = " and ".join(f"{place(t)} is held by {text(self._holder[t])}" for t in busy)
                raise TerminalError(
                    f"{self.name}: add {text(pair)}: {held}; remove that in the same request to replace it"
                )


class EmulatedDriver:
    """Driver of one `EmulatedSwitch`, with the delays of its options spent by `sleep` (seconds).

    A change that the device has accepted is carried out also when whoever asked for it stops waiting, as on a
    real switch: cancelling `apply` leaves its outcome to be read.
    """

    def __init__(
        self, device: EmulatedSwitch, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self.device = device
        self._sleep = sleep
        self._closed = False
        self._changes: set[asyncio.Task[None]] = set()

    async def describe(self) -> Description:
        """Static facts of the device."""
        self._refuse_when_closed()
        switch = self.device.switch
        return Description("emulated", switch.size, switch.sided, self.device.options.max_inflight)

    async def read(self) -> Observation:
        """The table now: a pair that is being made is not in it, one that is being removed neither."""
        self._refuse_when_closed()
        return Observation(self.device.table, self.device.revision)

    async def apply(
        self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...], epoch: int
    ) -> Applied:
        """Make the change; returns `control_ms` + `delay_ms` later, or at once when there is none."""
        self._refuse_when_closed()
        if not remove and not add:
            return Applied(dark_ms=0.0)
        transition = self.device.accept(remove, add, epoch)
        change = asyncio.get_running_loop().create_task(self._carry_out(transition))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)
        return Applied(dark_ms=self.device.options.delay_ms)

    async def close(self) -> None:
        """End the session; the device keeps its circuits and ends the changes that it has begun."""
        self._closed = True

    async def _carry_out(self, transition: Transition) -> None:
        await self._spend(self.device.options.control_ms)
        self.device.start(transition)
        await self._spend(self.device.options.delay_ms)
        self.device.finish(transition)

    async def _spend(self, milliseconds: float) -> None:
        if milliseconds > 0:
            await self._sleep(milliseconds / 1000)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise TerminalError(f"{self.device.name}: the session is closed; open a new driver")
