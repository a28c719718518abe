"""The switch behind all doors: one table, one transaction at a time, the optics, and who may do what."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from opus_sdn.drivers.polatis_emulator.alarms import Alarms
from opus_sdn.drivers.polatis_emulator.faults import Faults
from opus_sdn.drivers.polatis_emulator.flash import Flash
from opus_sdn.drivers.polatis_emulator.judge import Edit, Pair, end_state
from opus_sdn.drivers.polatis_emulator.optics import Optics
from opus_sdn.drivers.polatis_emulator.refusals import RefusalError, Why
from opus_sdn.drivers.polatis_emulator.spec import EmulatorSpec, Group
from opus_sdn.drivers.polatis_emulator.users import Users

ACTIVITIES_KEPT = 1024
TABLES_KEPT = 256


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks: a user of the device, through which door, from where."""

    user: str
    group: Group
    door: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    """One change of the table. `at` = seconds since 1970; `displaced` = circuits that had to go for it."""

    at: float
    actor: Actor
    removed: tuple[Pair, ...]
    added: tuple[Pair, ...]
    displaced: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """What a transaction did. `displaced` = circuits that it removed without having been told to."""

    removed: tuple[Pair, ...]
    added: tuple[Pair, ...]
    displaced: tuple[Pair, ...]


class Watcher(Protocol):
    """Someone who is told of every change of the light, at the very moment."""

    def moved(self, removed: Collection[Pair], added: Collection[Pair], ports: frozenset[int]) -> None:
        """The optics of these ports begin to move, or are shut."""
        ...


class Device:
    """The emulated switch without its protocols. For one event loop only.

    `clock` counts seconds for the light log, `wall` seconds since 1970, `sleep` spends seconds.
    """

    def __init__(
        self,
        spec: EmulatorSpec,
        flash: Flash,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.spec = spec
        self.layout = spec.layout
        self.flash = flash
        self.faults = Faults()
        self.users = Users(spec.users)
        self.sid = spec.sid
        self.optics = Optics(spec, clock)
        self.alarms = Alarms(self.optics, sleep, self.spawn, wall)
        self.optics.listeners.append(self.alarms.light_changed)
        self.activities: deque[Activity] = deque(maxlen=ACTIVITIES_KEPT)
        self.watchers: list[Watcher] = []
        self.announce: Callable[[str], None] = lambda _text: None
        self.clock = clock
        self.wall = wall
        self.changed_at = wall()
        self.booted_at = self.changed_at
        self._sleep = sleep
        self._table: dict[int, int] = {}
        self._earlier: deque[tuple[float, dict[int, int]]] = deque(maxlen=TABLES_KEPT)
        self._control = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.optics.disabled = flash.disabled
        self._show(dict(flash.table))

    @property
    def table(self) -> dict[int, int]:
        """Ingress port -> egress port, as it is now."""
        return dict(self._table)

    def seen_table(self) -> dict[int, int]:
        """The table as a reader sees it: that of `stale_read_ms` ago."""
        since = self.clock() - self.faults.stale_read_ms / 1e3
        for until, table in self._earlier:
            if until > since:
                return dict(table)
        return dict(self._table)

    def status(self, port: int) -> str:
        """The administrative state of a port."""
        if port in self.optics.failed:
            return "FAILED"
        return "DISABLED" if port in self.optics.disabled else "ENABLED"

    def measures(self, port: int) -> bool:
        """Whether the device has a power reading for this port."""
        return not self.faults.no_monitors and self.optics.measures(port)

    async def spend_control(self) -> None:
        """The management card's time for one request."""
        spent = self.spec.control_ms if self.faults.control_ms is None else self.faults.control_ms
        if spent > 0:
            await self._sleep(spent / 1e3)

    async def wait(self, milliseconds: float) -> None:
        """Spend time on the emulator's own clock."""
        await self._sleep(milliseconds / 1e3)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run this beside whoever asked for it, and keep hold of it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def stop(self) -> None:
        """End everything that runs beside."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def permit(self, actor: Actor, ports: Collection[int] = (), *, system: bool = False) -> None:
        """Raise RefusalError unless this user may write to these ports, or to the system's settings."""
        if self.faults.remote_lock:
            raise RefusalError(Why.LOCKED, "Remote interfaces are locked")
        if actor.group is Group.VIEW or (system and actor.group is not Group.ADMIN):
            raise RefusalError(Why.FORBIDDEN, f"access denied: user {actor.user} is in group {actor.group}")
        for sub in self.spec.subswitches:
            barred = sorted(set(ports) & set(sub.ports))
            if barred and actor.user not in sub.users:
                raise RefusalError(
                    Why.FORBIDDEN, f"access denied: ports of sub-switch {sub.name}: {barred[0]}", *barred
                )

    async def write(
        self,
        actor: Actor,
        edit: Edit,
        *,
        prefix: bool = False,
        guard: Callable[[], None] = lambda: None,
    ) -> Written:
        """One transaction; returns when the light is through (`early_reply`: when it is accepted).

        All of it is done or nothing, and a RefusalError raised; with `prefix` a list is done up to its first
        bad pair. `guard` is called at the very moment of the change and may refuse it. A transaction goes on
        when its asker is gone.
        """
        return await asyncio.shield(self.spawn(self._write(actor, edit, prefix=prefix, guard=guard)))

    async def _write(self, actor: Actor, edit: Edit, *, prefix: bool, guard: Callable[[], None]) -> Written:
        async with self._control:
            await self.spend_control()
            self.permit(actor)
            guard()
            failure: RefusalError | None = None
            if self.faults.module_failure:
                raise RefusalError(Why.MODULE, "optical module failure")
            limit = self.faults.partial_batch
            if limit is not None and edit.length > limit:
                edit = edit.first(limit)
                failure = RefusalError(Why.MODULE, f"optical module failure after {limit} operations")
            try:
                after = self._judge(actor, edit)
            except RefusalError as refusal:
                if not prefix:
                    raise
                failure = refusal
                edit, after = self._longest(actor, edit)
            written, motion = self._commit(actor, edit, after)
        if motion is not None and not self.faults.early_reply:
            await motion
        if failure is not None:
            raise failure
        return written

    async def set_ports(
        self, actor: Actor, *, disable: Collection[int] = (), enable: Collection[int] = ()
    ) -> None:
        """Shut or open ports; their circuits stay. Raises RefusalError and changes nothing."""
        async with self._control:
            await self.spend_control()
            for port in (*disable, *enable):
                self.require_port(port)
            self.permit(actor, (*disable, *enable))
            before = self.optics.disabled
            after = (before | set(disable)) - set(enable)
            self.flash.disabled = self.optics.disabled = after
            self.flash.save()
            self._touch()
            if shut := after - before:
                self._tell_watchers((), (), frozenset(shut))
            self.optics.refresh(before ^ after)
        for port in disable:
            self.announce(f"Port {port} disabled")
        for port in enable:
            self.announce(f"Port {port} enabled")

    def require_port(self, port: int) -> None:
        """Raise RefusalError unless this port exists."""
        if port not in self.layout.ports:
            raise RefusalError(Why.BAD_PORT, f"Invalid OXC port: {port}", port)

    def name_port(
        self, actor: Actor, port: int, *, label: str | None = None, peer: str | None = None
    ) -> None:
        """Set a port's label or its peer text; None leaves it. Raises RefusalError."""
        self.require_port(port)
        self.permit(actor, (port,))
        for kept, text in ((self.flash.labels, label), (self.flash.peers, peer)):
            if text:
                kept[port] = text
            elif text is not None:
                kept.pop(port, None)
        self.flash.save()
        self._touch()

    def set_faults(self, faults: Faults) -> None:
        """Be as healthy or as ill as this from now on."""
        before = self.optics.failed
        self.faults = faults
        self.optics.failed = frozenset(faults.failed_ports)
        self.optics.source_dbm = faults.source_dbm
        self.optics.extra_loss_db = faults.extra_loss_db
        if broken := self.optics.failed - before:
            self._tell_watchers((), (), broken)
        self.optics.refresh(before ^ self.optics.failed)
        self.optics.tell(self.layout.ports)

    def power_off(self) -> None:
        """No light anywhere."""
        before, self._table = self._table, {}
        ports = frozenset(port for pair in before.items() for port in pair)
        self._tell_watchers(before.items(), (), ports)
        self.optics.stand(ports, self.optics.point({}, ports))
        self._earlier.clear()

    def power_on(self, table: dict[int, int]) -> None:
        """Light again, over this table."""
        self.optics.disabled = self.flash.disabled
        self.booted_at = self.wall()
        self._show(table)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it; nobody may wait any more

    def _show(self, table: dict[int, int]) -> None:
        """Have this table from now on, without time spent."""
        self._table = dict(sorted(table.items()))
        ports = frozenset(port for pair in table.items() for port in pair)
        self.optics.stand(ports, self.optics.point(self._table, ports))
        self._touch()

    def _judge(self, actor: Actor, edit: Edit) -> dict[int, int]:
        after = end_state(
            self.layout,
            self._table,
            edit,
            strict=self.faults.strict_order,
            last_wins=self.faults.duplicate_egress == "last",
        )
        # Whoever moves or removes a circuit configures both its ports.
        self.permit(actor, {port for pair in self._table.items() ^ after.items() for port in pair})
        return after

    def _longest(self, actor: Actor, edit: Edit) -> tuple[Edit, dict[int, int]]:
        """As much of the edit, from its beginning, as can be done."""
        for count in range(edit.length - 1, -1, -1):
            part = edit.first(count)
            try:
                return part, self._judge(actor, part)
            except RefusalError:
                continue
        return Edit(), dict(self._table)

    def _commit(
        self, actor: Actor, edit: Edit, after: dict[int, int]
    ) -> tuple[Written, asyncio.Task[None] | None]:
        before = self._table
        removed = tuple(sorted(before.items() - after.items()))
        added = tuple(sorted(after.items() - before.items()))
        if not removed and not added:
            return Written((), (), ()), None
        told = set(edit.disconnect) | {pair[0] for pair in edit.connect}
        displaced = tuple(pair for pair in removed if not edit.clear and not told & set(pair))
        ports = frozenset(port for pair in removed + added for port in pair)
        self._earlier.append((self.clock(), before))
        self._table = after
        self.flash.save_table(after)
        self._touch()
        self.activities.append(Activity(self.wall(), actor, removed, added, displaced))
        self._tell_watchers(removed, added, ports)
        motion = self.optics.point(after, ports)
        return Written(removed, added, displaced), self.spawn(self._move(ports, motion))

    async def _move(self, ports: Collection[int], motion: int) -> None:
        """Let every port arrive after its own time."""
        usual = self.spec.switch_ms if self.faults.switch_ms is None else self.faults.switch_ms
        by_time: dict[float, list[int]] = {}
        for port in ports:
            by_time.setdefault(self.faults.tuning_ms.get(port, usual), []).append(port)
        spent = 0.0
        for due in sorted(by_time):
            if due > spent:
                await self._sleep((due - spent) / 1e3)
                spent = due
            self.optics.stand(by_time[due], motion)

    def _touch(self) -> None:
        """Another revision: never the same instant twice, however coarse the clock is."""
        self.changed_at = max(self.wall(), self.changed_at + 1e-6)

    def _tell_watchers(
        self, removed: Collection[Pair], added: Collection[Pair], ports: frozenset[int]
    ) -> None:
        for watcher in self.watchers:
            watcher.moved(removed, added, ports)
