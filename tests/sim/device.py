"""Switches of the simulated world: devices that live on when the controller does not, and their drivers.

A command travels, is judged, moves the mirrors and is answered, each after a time of its own. What the
driver reports of it and what the device does are two things, as on a real one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    ConflictMode,
    Description,
    DeviceEvent,
    DriverError,
    Observation,
    PortState,
    Refusal,
    StaleRevisionError,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.emulated import EmulatedSwitch, Transition
from opus_sdn.drivers.event_stream import EventStream
from opus_sdn.drivers.faults import FaultKind
from opus_sdn.drivers.pairs import PortId
from opus_sdn.intent.fabric import CrossConnect, Switch
from tests.intent.virtual_switch import ViolationError

FOREIGN_EPOCH = -1  # in the device's log: somebody else's command


class Watcher(Protocol):
    """Hears of every command at the moment when the device has taken it, and of light that went by itself."""

    def sent(self, device: SimDevice, epoch: int, add: tuple[CrossConnect, ...]) -> None: ...

    def commanded(self, device: SimDevice, transition: Transition) -> None: ...

    def hurt(self, device: SimDevice, positions: set[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Command:
    """What is asked of a device. `revision`: only if its table is at that one."""

    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    epoch: int
    revision: str | None = None


class SimDevice:
    """One switch. `after` has something done once the given seconds have passed in the world."""

    def __init__(
        self,
        switch: Switch,
        rng: random.Random,
        now: Callable[[], float],
        after: Callable[[float, Callable[[], None]], None],
        watcher: Watcher,
    ) -> None:
        self.core = EmulatedSwitch(switch, clock=now)
        self.name = switch.name
        self._rng = rng
        self._after = after
        self.watcher = watcher
        self.optics_s = rng.choice((0.0, 0.003, 0.05))
        self.max_inflight = rng.choice((1, 1, 4))
        self.dead: set[int] = set()  # positions whose mirror is stuck
        self.writes = 0  # commands of the controller that the device has taken
        self.away = False
        self.read: frozenset[CrossConnect] = frozenset()  # what the controller was told last

    def execute(self, command: Command, slow_s: float, done: Callable[[DriverError | None], None]) -> None:
        """Take a command now and say how it went, if it can be taken, once the mirrors stand."""
        remove, add = command.remove, command.add
        if command.revision not in (None, self.core.revision):
            done(StaleRevisionError(f"{self.name}: the table is at another revision"))
            return
        if not remove and not add:
            done(None)
            return
        stuck = sorted(self.dead & {position for pair in add for position in pair})
        if stuck:
            done(TerminalError(f"{self.name}: port {stuck[0]} has failed"))
            return
        try:
            transition = self.core.accept(remove, add, command.epoch)
        except DriverError as refusal:
            done(refusal)
            return
        self.writes += 1
        self.watcher.commanded(self, transition)
        self.core.start(transition)

        def finish() -> None:
            self.core.finish(transition)
            done(None)

        pause_s = self.optics_s * self._rng.uniform(0.5, 2.0) + slow_s
        if pause_s:
            self._after(pause_s, finish)
        else:
            finish()

    def lose(self, positions: set[int]) -> tuple[CrossConnect, ...]:
        """The light of these positions goes, and no command of ours has taken it; the pairs that went."""
        still = self.core.moving
        gone = tuple(
            pair
            for pair in sorted(self.core.table)
            if positions & set(pair) and not set(self.core.switch.terminals_of(pair)) & still
        )
        self.watcher.hurt(self, positions | {position for pair in gone for position in pair})
        if gone:
            self._foreign(gone, ())
        return gone

    def make(self, pair: CrossConnect) -> bool:
        """Somebody else makes a cross-connect; False when it does not fit what is there."""
        terminals = set(self.core.switch.terminals_of(pair))
        if terminals & self.core.moving or terminals & {
            t for held in self.core.table for t in self.core.switch.terminals_of(held)
        }:
            return False
        self.watcher.hurt(self, set(pair))
        self._foreign((), (pair,))
        return True

    def _foreign(self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...]) -> None:
        observers, self.core._observers = self.core._observers, []  # the witness looks for our faults only
        transition = self.core.accept(remove, add, FOREIGN_EPOCH)
        self.core.start(transition)
        self.core.finish(transition)
        self.core._observers = observers


class SimDriver:
    """One process's session with a switch. `meet` draws the fault that a call meets, None for none."""

    def __init__(
        self,
        device: SimDevice,
        rng: random.Random,
        after: Callable[[float, Callable[[], None]], None],
        meet: Callable[[str], FaultKind | None],
        passing: Callable[[str], bool],
        deadline_s: float,
    ) -> None:
        self.device = device
        self._rng = rng
        self._after = after
        self._meet = meet
        self._passing = passing
        self._deadline_s = deadline_s
        self.link_s = rng.choice((0.0, 0.0005, 0.01))

    async def describe(self) -> Description:
        await self._passed("before a driver call")
        await self._travel()
        await self._passed("after a driver call")
        if self.device.away:
            raise TransientError("the switch does not answer", 0.05)
        switch = self.device.core.switch
        return Description("sim", switch.size, switch.sided, self.device.max_inflight)

    async def read(self) -> Observation:
        """What the device held when it was asked: the answer may be old when it comes."""
        await self._passed("before a driver call")
        fault = self._meet("read")
        await self._travel()
        if fault is FaultKind.SILENT:
            await asyncio.get_running_loop().create_future()
        if self.device.away or fault in (FaultKind.TRANSIENT, FaultKind.TERMINAL):
            raise TransientError("the switch does not answer", 0.05)
        core = self.device.core
        seen = Observation(core.table, core.revision, core.dark)
        if fault is FaultKind.SLOW:
            await self._wait(self._rng.uniform(0.1, 0.9) * self._deadline_s)
        await self._travel()
        await self._passed("after a driver call")
        self.device.read = seen.matching
        return seen

    async def apply(
        self,
        remove: tuple[CrossConnect, ...],
        add: tuple[CrossConnect, ...],
        epoch: int,
        *,
        mode: ConflictMode = ConflictMode.SAFE,
        expect_revision: str | None = None,
    ) -> Applied:
        """Send the command, whatever becomes of its answer."""
        assert mode is ConflictMode.SAFE, "what is in the way is removed by name or not at all"
        await self._passed("before a driver call")
        self.device.watcher.sent(self.device, epoch, add)
        fault = self._meet("apply")
        refusal = self._refusal(fault)
        if refusal is not None:
            await self._travel()
            raise refusal
        if fault is FaultKind.SILENT:
            await asyncio.get_running_loop().create_future()
        if fault is FaultKind.LIE:
            await self._travel()
            return Applied()
        if fault is FaultKind.PARTIAL:
            some = self._rng.randint(0, len(remove) + len(add))
            remove, add = remove[:some], add[: max(0, some - len(remove))]
        # The device takes a command within its deadline or not at all; the light may come later still.
        late_s = self._rng.uniform(0.0, 0.9) * self._deadline_s if fault is FaultKind.LATE else 0.0
        slow_s = self._rng.uniform(0.1, 1.5) * self._deadline_s if fault is FaultKind.SLOW else 0.0
        answer = self._send(Command(remove, add, epoch, expect_revision), late_s, slow_s)
        if fault is FaultKind.LATE:
            await self._travel()
            raise AmbiguousError("no answer (the request is still on its way)")
        failed = await answer
        await self._passed("after a driver call")
        if fault is FaultKind.ANSWER_LOST:
            raise AmbiguousError("no answer (the answer was lost)")
        if fault is FaultKind.PARTIAL:
            raise AmbiguousError(f"stopped after {len(remove) + len(add)} cross-connects")
        if failed is not None:
            raise failed
        return Applied()

    async def ports(self) -> tuple[PortState, ...]:
        await self._travel()
        return tuple(map(self.device.core.state, self.device.core.terminals))

    async def power(self, ports: Collection[PortId]) -> Mapping[PortId, float]:
        raise TerminalError("has no power monitors", Refusal.UNSUPPORTED)

    async def block(self, ports: Collection[PortId], *, blocked: bool) -> None:
        raise TerminalError("has no shutters", Refusal.UNSUPPORTED)

    async def label(self, labels: Mapping[PortId, str]) -> None:
        raise TerminalError("has no labels", Refusal.UNSUPPORTED)

    def events(self) -> AsyncIterator[DeviceEvent]:
        return self._events.subscribe()

    async def close(self) -> None:
        self._events.close()

    @cached_property
    def _events(self) -> EventStream:
        return EventStream()

    def _refusal(self, fault: FaultKind | None) -> DriverError | None:
        if self.device.away or fault is FaultKind.TRANSIENT:
            return TransientError("refused for now", self._rng.choice((0.0, 0.1)))
        match fault:
            case FaultKind.TERMINAL:
                return TerminalError("refused for good")
            case FaultKind.LOCKED:
                return TerminalError("somebody at the device keeps everybody else out", Refusal.LOCKED)
            case FaultKind.REQUEST_LOST:
                return AmbiguousError("no answer (the request was lost)")
        return None

    def _send(self, command: Command, late_s: float, slow_s: float) -> asyncio.Future[DriverError | None]:
        answer: asyncio.Future[DriverError | None] = asyncio.get_running_loop().create_future()

        def answered(failed: DriverError | None) -> None:
            if not answer.done():
                answer.set_result(failed)

        def arrived() -> None:
            done = lambda failed: self._after(self._hop_s(), lambda: answered(failed))  # noqa: E731
            self.device.execute(command, slow_s, done)

        self._after(self._hop_s() + late_s, arrived)
        return answer

    async def _passed(self, point: str) -> None:
        if self._passing(point):
            await asyncio.get_running_loop().create_future()  # nothing runs any more in this process

    def _hop_s(self) -> float:
        return self.link_s * self._rng.uniform(0.2, 3.0)

    async def _travel(self) -> None:
        await self._wait(self._hop_s())

    async def _wait(self, pause_s: float) -> None:
        there: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._after(pause_s, lambda: None if there.done() else there.set_result(None))
        await there


def require_owned(device: SimDevice, pairs: tuple[CrossConnect, ...], owned: set[int]) -> None:
    """I2: the controller touches only positions that this fabric has a port on."""
    for pair in pairs:
        if not set(pair) <= owned:
            raise ViolationError("I2", f"{device.name}: {pair} is touched, and is not ours: {sorted(owned)}")
