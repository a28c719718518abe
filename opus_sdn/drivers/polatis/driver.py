"""The driver of a Polatis: the same logic over every transport.

Read, judge, write, read back, look for light; and read once more after a while, for somebody else may write
too. An answer that is lost is resolved by reading. What the device may do with circuits in the way differs
from door to door, so conflicts are found here, before anything is written.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    ConflictMode,
    Description,
    DeviceEvent,
    DeviceEventKind,
    DriverError,
    Observation,
    PortState,
    Refusal,
    StaleRevisionError,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.event_stream import EventStream
from opus_sdn.drivers.pairs import PortId, place, ports_of, text
from opus_sdn.drivers.polatis.discovery import Device, discover
from opus_sdn.drivers.polatis.light import Light
from opus_sdn.drivers.polatis.numbering import NumberingError
from opus_sdn.drivers.polatis.options import Credentials, PolatisOptions
from opus_sdn.drivers.polatis.plan import Matching, Plan, make_plan, results_of
from opus_sdn.drivers.polatis.wire import ChangedError, PortBusyError, Tell, Transport, WireTable, shown
from opus_sdn.intent.fabric import CrossConnect, Switch

logger = logging.getLogger(__name__)

OpenTransport = Callable[[Tell], Transport]

# How often a change is judged anew when the table changed between reading and writing.
ATTEMPTS: Final = 3
READ_BACK_PAUSE_S: Final = (0.01, 0.25)
PAIRS_NAMED: Final = 8
_PORT_NAMED: Final = re.compile(r"\b[Pp]ort[ =:]?(\d{1,5})\b")


class PolatisDriver:
    """One switch. Everything goes one after the other: the device serialises it anyway, and has few sessions.

    `doors`: the transports to try, in order; the first one behind which the device is found is kept.
    """

    def __init__(
        self,
        switch: Switch,
        options: PolatisOptions,
        credentials: Credentials,
        doors: Sequence[OpenTransport],
    ) -> None:
        self._switch = switch
        self._options = options
        self._credentials = credentials
        self._doors = doors
        self._device: Device | None = None
        self._lock = asyncio.Lock()
        self._events = EventStream()
        self._known: Matching | None = None  # the table as last read
        self._changing: frozenset[int] = frozenset()  # port numbers of the change under way
        self._settling: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._closed = False

    async def describe(self) -> Description:
        """Static facts of the device; the first call finds it and checks that it is the declared one."""
        async with self._lock:
            device = await self._ready()
            return Description(
                model=device.identity.model,
                size=device.numbering.ingress,
                sided=device.numbering.sided,
                max_inflight=1,
                egress_size=device.numbering.egress or None,
                starts=(1, device.numbering.ingress + 1 if device.numbering.sided else 1),
                power=device.monitored,
                shutter=True,
                labels=True,
                persistence=device.persistence,
            )

    async def read(self) -> Observation:
        """The table, and which of its circuits are dark."""
        async with self._lock:
            device = await self._ready()
            _, table = await self._table(device)
            dark = await self._light(device).dark(table) if self._options.verify_light else {}
            return Observation(table, _revision(table), dark)

    async def apply(
        self,
        remove: tuple[CrossConnect, ...],
        add: tuple[CrossConnect, ...],
        epoch: int,
        *,
        mode: ConflictMode = ConflictMode.SAFE,
        expect_revision: str | None = None,
    ) -> Applied:
        """Make the change; returns when it was read back and light was seen, or was not in time.

        A pair to be added that is there already is left alone.
        """
        async with self._lock:
            device = await self._ready()
            for _ in range(ATTEMPTS):
                wire, before = await self._table(device)
                if expect_revision not in (None, _revision(before)):
                    raise StaleRevisionError(
                        f"{self._switch.name}: the table is at revision {_revision(before)}, "
                        f"and {expect_revision} was expected"
                    )
                plan = self._judged(device, before, remove, add, mode)
                try:
                    return await self._make(device, plan, wire, before)
                except ChangedError:
                    continue
            raise StaleRevisionError(
                f"{self._switch.name}: the device was changed by others {ATTEMPTS} times between reading and "
                "writing"
            )

    async def ports(self) -> tuple[PortState, ...]:
        """Every port, with its power where that is measured."""
        async with self._lock:
            device = await self._ready()
            _, table = await self._table(device)
            numbering = device.numbering
            states = await device.transport.ports(numbering.total, labels=True)
            everything = range(1, numbering.total + 1)
            if missing := [number for number in everything if number not in states]:
                raise TransientError(
                    f"{self._switch.name}: the device lists {len(states)} of {numbering.total} ports; "
                    f"{place(numbering.port(missing[0]))} is missing"
                )
            power = (await device.transport.power(everything) if device.monitored else None) or {}
            holder = {port: pair for pair in table for port in ports_of(pair, sided=numbering.sided)}
            return tuple(
                PortState(
                    numbering.port(number),
                    enabled=states[number].enabled,
                    failed=states[number].failed,
                    in_use=holder.get(numbering.port(number)),
                    power_dbm=power.get(number),
                    label=states[number].label,
                )
                for number in everything
            )

    async def power(self, ports: Collection[PortId]) -> Mapping[PortId, float]:
        """Optical power in dBm of those of these ports that are measured."""
        async with self._lock:
            device = await self._ready()
            numbers = {self._number(device, port): port for port in ports}
            found = await device.transport.power(sorted(numbers)) if device.monitored else None
            if found is None:
                raise TerminalError(f"{self._switch.name}: has no power monitors", Refusal.UNSUPPORTED)
            return {numbers[number]: dbm for number, dbm in found.items()}

    async def block(self, ports: Collection[PortId], *, blocked: bool) -> None:
        """Close or open shutters. Circuits stay in the table."""
        async with self._lock:
            device = await self._ready()
            numbers = sorted(self._number(device, port) for port in ports)
            if not numbers:
                return
            transport, total = device.transport, device.numbering.total

            async def now() -> Mapping[int, object]:
                states = await transport.ports(total)
                return {n: states[n].enabled for n in numbers if n in states}

            self._changing = frozenset(numbers)
            try:
                wanted = dict.fromkeys(numbers, not blocked)
                await self._written(
                    lambda: transport.shutter(numbers, closed=blocked), now, wanted, "shutters"
                )
            finally:
                self._changing = frozenset()

    async def label(self, labels: Mapping[PortId, str]) -> None:
        """Name ports on the device."""
        async with self._lock:
            device = await self._ready()
            wanted = {self._number(device, port): name for port, name in labels.items()}
            if not wanted:
                return
            transport, total = device.transport, device.numbering.total

            async def now() -> Mapping[int, object]:
                states = await transport.ports(total, labels=True)
                return {n: states[n].label for n in wanted if n in states}

            await self._written(lambda: transport.label(wanted), now, wanted, "labels")

    def events(self) -> AsyncIterator[DeviceEvent]:
        """Messages of the device, changes that others made, and warnings; from now on."""
        return self._events.subscribe()

    async def close(self) -> None:
        """Log out; the circuits stay."""
        self._closed = True
        if self._settling is not None:
            self._settling.cancel()
        async with self._lock:
            if self._device is not None:
                await self._device.transport.close()
        self._events.close()

    # --- one change

    def _judged(
        self,
        device: Device,
        before: Matching,
        remove: tuple[CrossConnect, ...],
        add: tuple[CrossConnect, ...],
        mode: ConflictMode,
    ) -> Plan:
        try:
            return make_plan(device.numbering, before, remove, add, mode)
        except TerminalError as error:
            detail = f"{self._switch.name}: {error.detail}"
            raise TerminalError(detail, error.reason, error.displaced) from None

    async def _make(self, device: Device, plan: Plan, wire: WireTable, before: Matching) -> Applied:
        if plan.empty:
            dark, unseen = await self._seen(device, plan, before)
            results = tuple(results_of(plan, before, before, dark, unseen=unseen))
            return Applied(dark_ms=0.0, pairs=results, revision=_revision(before))
        loop = asyncio.get_running_loop()
        begun = loop.time()
        numbers = {n for pair in (*plan.gone, *plan.add) for n in device.numbering.wire(pair)}
        self._changing = frozenset(numbers)
        notes: list[str] = []
        try:
            trouble = await self._write(device, plan, wire, notes)
            after = await self._read_back(device, plan, before, trouble)
            dark, unseen = await self._seen(device, plan, after)
        except ChangedError:
            raise
        except BaseException:
            self._known = None  # whatever the table is next, nobody else need have made it so
            raise
        finally:
            self._changing = frozenset()
            self._arrange_settling()
        if trouble is not None and plan.reached(after):
            notes.append(f"{trouble.detail}; read back as asked for")
        lit = plan.add and not dark and unseen is None and device.monitored and self._options.verify_light
        why = trouble.detail if trouble is not None else None
        return Applied(
            dark_ms=(loop.time() - begun) * 1e3 if lit else None,
            notes=tuple(notes),
            pairs=tuple(results_of(plan, before, after, dark, why=why, unseen=unseen)),
            revision=_revision(after),
        )

    async def _write(
        self, device: Device, plan: Plan, wire: WireTable, notes: list[str]
    ) -> DriverError | None:
        """Send what the plan says; what went wrong, if anything. Raises ChangedError if nothing was sent."""
        transport = device.transport
        try:
            if plan.overwrite is not None:
                await transport.replace(plan.overwrite, wire)
                return None
            if plan.delete:
                mark = await transport.delete(plan.delete, wire)
                # Without a mark of the state that our own removal left, the next request is unconditional.
                left = tuple(pair for pair in wire.pairs if pair[0] not in plan.delete)
                wire = WireTable(left, mark)
            try:
                await transport.merge(plan.merge, wire)
            except ChangedError as error:
                if plan.delete:
                    return TransientError(f"{error.detail}, after the removals were made", 0.0)
                raise
            except PortBusyError as error:
                return await self._remove_then_add(device, plan, error, notes)
        except ChangedError:
            raise
        except DriverError as error:
            return error
        return None

    async def _remove_then_add(
        self, device: Device, plan: Plan, refused: PortBusyError, notes: list[str]
    ) -> DriverError | None:
        """A device that does not judge by the end state is asked twice, and the ports are dark for longer."""
        _, now = await self._table(device)
        left = sorted(device.numbering.wire(pair)[0] for pair in plan.gone & now)
        ports = {p for pair in plan.add for p in ports_of(pair, sided=device.numbering.sided)}
        others = [
            pair
            for pair in now - plan.gone - set(plan.add)
            if ports.intersection(ports_of(pair, sided=device.numbering.sided))
        ]
        if others or not left:
            return refused
        notes.append("the device refused to move circuits in one request; they were removed first")
        logger.info("circuits are moved in two requests", extra={"switch": self._switch.name})
        try:
            await device.transport.delete(left, WireTable(()))
            await device.transport.merge(plan.merge, WireTable(()))
        except DriverError as error:
            return error
        return None

    async def _read_back(
        self, device: Device, plan: Plan, before: Matching, trouble: DriverError | None
    ) -> Matching:
        """The table afterwards. Raises `trouble` if nothing was changed, AmbiguousError if that is open."""
        lost = isinstance(trouble, AmbiguousError)
        patience_s = self._options.readback_s if trouble is None or lost else 0.0
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + patience_s, READ_BACK_PAUSE_S[0]
        while True:
            unread, after = None, before
            try:
                _, after = await self._table(device)
            except DriverError as error:
                unread = error
            if (unread is None and plan.reached(after)) or loop.time() >= until:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, READ_BACK_PAUSE_S[1])
        if unread is not None:
            told = f"{trouble.detail}; and " if trouble is not None else "written, but "
            raise AmbiguousError(f"{told}it cannot be read back: {unread.detail}")
        if trouble is not None and not plan.reached(after):
            if lost:
                raise AmbiguousError(
                    f"{trouble.detail}; read back: {plan.asked - plan.missing(after)} of {plan.asked} pairs "
                    "as asked for"
                )
            if after == before:
                raise trouble
        return after

    async def _seen(
        self, device: Device, plan: Plan, table: Matching
    ) -> tuple[Mapping[CrossConnect, str], str | None]:
        """Which of the added circuits stay dark, and why; and why that could not be seen."""
        if not self._options.verify_light:
            return {}, None
        try:
            there = [pair for pair in plan.add if pair in table]
            return await self._light(device).awaited(there), None
        except DriverError as error:
            return {}, f"light not seen: {error.detail}"

    async def _written(
        self,
        write: Callable[[], Awaitable[None]],
        now: Callable[[], Awaitable[Mapping[int, object]]],
        wanted: Mapping[int, object],
        what: str,
    ) -> None:
        """Carry out a write of something else than the table, and believe what is read back only.

        Several ports may take several requests: a refusal says that nothing was changed only where reading
        shows it.
        """
        trouble: DriverError | None = None
        before = await now()
        try:
            await write()
        except DriverError as error:
            trouble = error
        told = f"{trouble.detail}; and " if trouble is not None else ""
        try:
            after = await now()
        except DriverError as error:
            raise AmbiguousError(f"{told}whether {what} are set cannot be read: {error.detail}") from None
        if after != wanted:
            if trouble is not None and after != before:
                some = sum(after.get(number) == value for number, value in wanted.items())
                raise AmbiguousError(f"{told}{some} of {len(wanted)} {what} read back as asked for")
            raise trouble or AmbiguousError(
                f"{self._switch.name}: the device reports that {what} are set, but reads back otherwise"
            )

    # --- what others do

    def _arrange_settling(self) -> None:
        """Have the table read once more when the change has had time to be undone by somebody else."""
        if self._settling is not None:
            self._settling.cancel()
        if self._options.settle_s and not self._closed:
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(self._options.settle_s, self._begin_settling)

    def _begin_settling(self) -> None:
        self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        try:
            async with self._lock:
                await self._table(await self._ready())
        except DriverError as error:
            logger.info(
                "not read again after a change", extra={"switch": self._switch.name, "detail": error.detail}
            )

    async def _table(self, device: Device) -> tuple[WireTable, Matching]:
        """The table as the wire has it and as we do; tells of changes that were not ours."""
        wire = await device.transport.table()
        try:
            table = frozenset(device.numbering.pair(a, b) for a, b in wire.pairs)
        except NumberingError as error:
            raise TransientError(f"{self._switch.name}: table not understood: {error}") from None
        if self._known is not None and table != self._known:
            self._tell_foreign(device, self._known, table)
        self._known = table
        return wire, table

    def _tell_foreign(self, device: Device, known: Matching, table: Matching) -> None:
        def ours(pair: CrossConnect) -> bool:
            return not self._changing.isdisjoint(device.numbering.wire(pair))

        lost = sorted(pair for pair in known - table if not ours(pair))
        new = sorted(pair for pair in table - known if not ours(pair))
        parts = [
            f"{what} {', '.join(map(text, pairs[:PAIRS_NAMED]))}"
            for what, pairs in (("gone:", lost), ("new:", new))
            if pairs
        ]
        if not parts:
            return
        ports = {p for pair in (*lost, *new) for p in ports_of(pair, sided=device.numbering.sided)}
        detail = f"somebody else changed the table: {'; '.join(parts)}"
        logger.warning("foreign change", extra={"switch": self._switch.name, "detail": detail})
        self._events.put(DeviceEvent(DeviceEventKind.FOREIGN_CHANGE, detail, tuple(sorted(ports))))

    def _hear(self, message: str) -> None:
        """A message that the device sent unasked."""
        numbers = {int(found) for found in _PORT_NAMED.findall(message)}
        ports: list[PortId] = []
        if self._device is not None:
            known = range(1, self._device.numbering.total + 1)
            ports = [self._device.numbering.port(number) for number in sorted(numbers) if number in known]
        lowered = message.lower()
        kind = DeviceEventKind.OTHER
        if any(word in lowered for word in ("los", "power", "alarm", "loss", "degrade")):
            kind = DeviceEventKind.ALARM
        elif "enabled" in lowered or "disabled" in lowered:
            kind = DeviceEventKind.PORT
        expected = bool(numbers) and numbers <= self._changing
        self._events.put(DeviceEvent(kind, shown(message), tuple(ports), expected))

    # --- the device

    async def _ready(self) -> Device:
        if self._closed:
            raise TerminalError(
                f"{self._switch.name}: the session is closed; open a new driver", Refusal.CLOSED
            )
        if self._device is None:
            self._device = await discover(self._switch, [door(self._hear) for door in self._doors])
            if self._credentials.are_default:
                self._warn("user and password are those that the device was delivered with; change them")
            if not (self._options.tls and self._device.transport.name == "RESTCONF"):
                logger.info(
                    "the password goes over the network in clear", extra={"switch": self._switch.name}
                )
        return self._device

    def _warn(self, detail: str) -> None:
        logger.warning("switch access is weak", extra={"switch": self._switch.name, "detail": detail})
        self._events.put(DeviceEvent(DeviceEventKind.WARNING, f"{self._switch.name}: {detail}"))

    def _light(self, device: Device) -> Light:
        return Light(device, self._options.light_threshold_dbm, self._options.light_s)

    def _number(self, device: Device, port: PortId) -> int:
        try:
            return device.numbering.number(port)
        except NumberingError as error:
            raise TerminalError(
                f"{self._switch.name}: {place(port)} is unknown: {error}", Refusal.INVALID
            ) from None


def _revision(table: Matching) -> str:
    """Another one whenever the table is another one."""
    listed = ",".join(map(text, sorted(table)))
    return hashlib.blake2b(listed.encode(), digest_size=8).hexdigest()
