"""The emulated optical circuit switch, and the driver that speaks to it.

`EmulatedSwitch` is the device: it holds the matching and refuses what a switch refuses. It knows no time;
whoever drives it says when the optics start and when light is through. `EmulatedDriver` does that with the
delays of the switch's options. Several drivers may share one device, as several programs may one switch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from opus_sdn.drivers.base import (
    Applied,
    ConflictMode,
    Description,
    DeviceEvent,
    DeviceEventKind,
    DriverError,
    Observation,
    PairOutcome,
    PairResult,
    PortState,
    Refusal,
    StaleRevisionError,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.emulated_options import EmulatedOptions
from opus_sdn.drivers.event_stream import EventStream
from opus_sdn.drivers.pairs import PortId, clash, displaced_by, misfit, normal, place, text
from opus_sdn.intent.fabric import CrossConnect, Side, Switch, Terminal

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
    and `finish` (added pairs carry light). What the table lists carries light, unless one of its ports is
    blocked or has failed. For one thread only.
    """

    def __init__(self, switch: Switch, *, clock: Callable[[], float] = time.time) -> None:
        self.switch = switch
        self.name = switch.name
        self.options = EmulatedOptions.of(switch)
        self.counters = Counters()
        self.operations: deque[Operation] = deque(maxlen=OPERATIONS_KEPT)
        self._clock = clock
        self._observers: list[SwitchObserver] = []
        self.labels: dict[Terminal, str] = {}
        self._blocked: set[Terminal] = set()
        self._failed: set[Terminal] = set()
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
        """The cross-connects that the device lists."""
        return frozenset(self._holder.values())

    @property
    def dark(self) -> dict[CrossConnect, str]:
        """What the table lists and no light passes, and why."""
        reasons = dict.fromkeys(self._failed, "has failed") | dict.fromkeys(self._blocked, "is blocked")
        return {self._holder[t]: f"{place(t)} {reasons[t]}" for t in sorted(reasons) if t in self._holder}

    @property
    def terminals(self) -> tuple[Terminal, ...]:
        """Every port that the device has, ingress first."""
        sides = (Side.INGRESS, Side.EGRESS) if self.switch.sided else (Side.ANY,)
        return tuple(Terminal(self.name, side, p) for side in sides for p in range(self.switch.size))

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
        return self._holds(pair) and not (self._blocked | self._failed).intersection(
            self.switch.terminals_of(pair)
        )

    def state(self, terminal: Terminal) -> PortState:
        """One port as the device would report it."""
        return PortState(
            PortId(terminal.side, terminal.position),
            enabled=terminal not in self._blocked,
            failed=terminal in self._failed,
            in_use=self._holder.get(terminal),
            label=self.labels.get(terminal, ""),
        )

    def block(self, terminals: Iterable[Terminal], *, blocked: bool) -> None:
        """Close these ports to light, or open them. Their circuits stay in the table."""
        changed = frozenset(t for t in terminals if (t in self._blocked) != blocked)
        self._blocked.symmetric_difference_update(changed)
        self._tell(changed)

    def fail(self, terminals: Iterable[Terminal], *, failed: bool = True) -> None:
        """These ports break, or are mended."""
        changed = frozenset(t for t in terminals if (t in self._failed) != failed)
        self._failed.symmetric_difference_update(changed)
        self._tell(changed)

    def restart(self, table: Iterable[CrossConnect]) -> None:
        """Switch the device off and on: what was under way is forgotten, and this is the table."""
        pairs = [normal(self.switch, pair) for pair in table]
        self._tell(frozenset(t for pair in {*self.table, *pairs} for t in self.switch.terminals_of(pair)))
        for record in (self._holder, self._moving, self._waiting, self._started):
            record.clear()
        for pair in pairs:
            self._hold(pair)
        self._revision += 1

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
        if self._waiting.pop(transition.number, None) is None:  # forgotten in a restart
            return
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
        if self._started.pop(transition.number, None) is None:
            return
        for pair in transition.add:
            self._hold(pair)
        for terminal in transition.terminals:
            del self._moving[terminal]
        self.counters.added += len(transition.add)
        self._revision += 1
        for observer in self._observers:
            observer.change_finished(self, transition)

    def _tell(self, terminals: frozenset[Terminal]) -> None:
        """Something happens to the light of these ports at once, without a request for it."""
        if terminals:
            transition = Transition(0, 0, (), (), terminals)
            for observer in self._observers:
                observer.change_started(self, transition)
                observer.change_finished(self, transition)

    def _holds(self, pair: CrossConnect) -> bool:
        first, second = self.switch.terminals_of(pair)
        return self._holder.get(first) == pair and self._holder.get(second) == pair

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
                    raise TerminalError(f"{self.name}: {verb}: {wrong}", Refusal.INVALID)
            wrong = clash(self.switch, pairs)
            if wrong is not None:
                raise TerminalError(f"{self.name}: {verb}: {wrong}; each may be named once", Refusal.INVALID)
        both = sorted(set(remove) & set(add))
        if both:
            raise TerminalError(
                f"{self.name}: {', '.join(map(text, both))} in remove and in add; "
                "leave a pair out of both to keep it",
                Refusal.INVALID,
            )

    def _judge_end_state(self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...]) -> None:
        """Refuse what does not fit what the device holds, once the removed pairs are gone."""
        absent = [pair for pair in remove if not self._holds(pair)]
        if absent:
            raise TerminalError(
                f"{self.name}: remove: not there: {', '.join(map(text, absent))}", Refusal.ABSENT
            )
        freed = {t for pair in remove for t in self.switch.terminals_of(pair)}
        for pair in add:
            busy = [t for t in self.switch.terminals_of(pair) if t in self._holder and t not in freed]
            if busy:
                held = " and ".join(f"{place(t)} is held by {text(self._holder[t])}" for t in busy)
                raise TerminalError(
                    f"{self.name}: add {text(pair)}: {held}; remove that in the same request to replace it",
                    Refusal.WOULD_DISPLACE,
                    tuple(dict.fromkeys(self._holder[t] for t in busy)),
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
        self._events = EventStream()

    async def describe(self) -> Description:
        """Static facts of the device."""
        self._refuse_when_closed()
        switch = self.device.switch
        return Description(
            "emulated", switch.size, switch.sided, self.device.options.max_inflight, shutter=True, labels=True
        )

    async def read(self) -> Observation:
        """The table now: a pair that is being made is not in it, one that is being removed neither."""
        self._refuse_when_closed()
        return Observation(self.device.table, self.device.revision, self.device.dark)

    async def apply(
        self,
        remove: tuple[CrossConnect, ...],
        add: tuple[CrossConnect, ...],
        epoch: int,
        *,
        mode: ConflictMode = ConflictMode.SAFE,
        expect_revision: str | None = None,
    ) -> Applied:
        """Make the change; returns `control_ms` + `delay_ms` later, or at once when there is none."""
        self._refuse_when_closed()
        if expect_revision not in (None, self.device.revision):
            raise StaleRevisionError(
                f"{self.device.name}: the table is at revision {self.device.revision}, "
                f"and {expect_revision} was expected"
            )
        remove, add, displaced = self._in_mode(remove, add, mode)
        if not remove and not add:
            return Applied(dark_ms=0.0)
        transition = self.device.accept(remove, add, epoch)
        change = asyncio.get_running_loop().create_task(self._carry_out(transition))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)
        return Applied(
            dark_ms=self.device.options.delay_ms,
            pairs=tuple(self._results(transition, displaced)),
            revision=self.device.revision,
        )

    async def ports(self) -> tuple[PortState, ...]:
        """Every port; nothing measures its power."""
        self._refuse_when_closed()
        return tuple(map(self.device.state, self.device.terminals))

    async def power(self, ports: Collection[PortId]) -> Mapping[PortId, float]:
        """Refused: the emulated switch has no power monitors."""
        self._refuse_when_closed()
        raise TerminalError(f"{self.device.name}: has no power monitors", Refusal.UNSUPPORTED)

    async def block(self, ports: Collection[PortId], *, blocked: bool) -> None:
        """Close or open ports at once."""
        self._refuse_when_closed()
        self.device.block(self._terminals(ports), blocked=blocked)
        what = "blocked" if blocked else "open"
        for port in sorted(ports):
            self._events.put(DeviceEvent(DeviceEventKind.PORT, f"{place(port)} is {what}", (port,), True))

    async def label(self, labels: Mapping[PortId, str]) -> None:
        """Name ports, at once."""
        self._refuse_when_closed()
        for terminal, name in zip(self._terminals(labels), labels.values(), strict=True):
            self.device.labels[terminal] = name

    def events(self) -> AsyncIterator[DeviceEvent]:
        """Ports that this session blocked and opened."""
        return self._events.subscribe()

    async def close(self) -> None:
        """End the session; the device keeps its circuits and ends the changes that it has begun."""
        self._closed = True
        self._events.close()

    def _in_mode(
        self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...], mode: ConflictMode
    ) -> tuple[tuple[CrossConnect, ...], tuple[CrossConnect, ...], frozenset[CrossConnect]]:
        """Removes, adds and what is displaced, with all that the mode removes written out."""
        switch, table = self.device.switch, self.device.table
        if mode is ConflictMode.UPDATE:
            displaced = displaced_by(table, remove, [normal(switch, p) for p in add], sided=switch.sided)
            return remove + displaced, add, frozenset(displaced)
        if mode is ConflictMode.OVERWRITE:
            wanted = {normal(switch, pair) for pair in add}
            gone = tuple(sorted(table - wanted))
            return (
                gone,
                tuple(p for p in add if normal(switch, p) not in table),
                frozenset(gone) - set(remove),
            )
        return remove, add, frozenset()

    def _results(self, done: Transition, displaced: frozenset[CrossConnect]) -> Iterable[PairResult]:
        table, dark = self.device.table, self.device.dark
        for pair in done.remove:
            if pair in table and pair not in done.add:
                yield PairResult(pair, PairOutcome.FAILED, removed=True, reason="still there")
            else:
                fine = PairOutcome.DISPLACED if pair in displaced else PairOutcome.APPLIED
                yield PairResult(pair, fine, removed=True)
        for pair in done.add:
            if pair not in table:
                yield PairResult(pair, PairOutcome.FAILED, reason="not there")
            elif pair in dark:
                yield PairResult(pair, PairOutcome.CONNECTED_DARK, reason=dark[pair])
            else:
                yield PairResult(pair, PairOutcome.APPLIED)

    def _terminals(self, ports: Iterable[PortId]) -> list[Terminal]:
        known = {PortId(t.side, t.position): t for t in self.device.terminals}
        for port in ports:
            if port not in known:
                raise TerminalError(
                    f"{self.device.name}: {place(port)} is unknown; positions are 0 to "
                    f"{self.device.switch.size - 1}, sides are "
                    + ("ingress and egress" if self.device.switch.sided else "none"),
                    Refusal.INVALID,
                )
        return [known[port] for port in ports]

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
            raise TerminalError(
                f"{self.device.name}: the session is closed; open a new driver", Refusal.CLOSED
            )
