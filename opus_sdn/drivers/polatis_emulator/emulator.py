"""The whole emulated switch: its doors on real sockets, its page, and what can be done to it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from opus_sdn.drivers.polatis_emulator import http
from opus_sdn.drivers.polatis_emulator.device import Actor, Device, Written
from opus_sdn.drivers.polatis_emulator.faults import Door, Faults, ReplyFault, ReplyKind, ReplyScript
from opus_sdn.drivers.polatis_emulator.flash import Flash
from opus_sdn.drivers.polatis_emulator.judge import Edit, Pair
from opus_sdn.drivers.polatis_emulator.listener import Listener
from opus_sdn.drivers.polatis_emulator.nics import EmulatedNics
from opus_sdn.drivers.polatis_emulator.optics import LightLog
from opus_sdn.drivers.polatis_emulator.page import Page
from opus_sdn.drivers.polatis_emulator.restconf import REQUESTS_KEPT, Asked, RestconfDoor
from opus_sdn.drivers.polatis_emulator.sessions import Sessions
from opus_sdn.drivers.polatis_emulator.spec import EmulatorSpec, Group
from opus_sdn.drivers.polatis_emulator.tl1 import Tl1Door
from opus_sdn.drivers.polatis_emulator.watched import WatchedDevice
from opus_sdn.drivers.witness import TrafficWitness
from opus_sdn.drivers.witness_server import WitnessServer
from opus_sdn.intent.fabric import Fabric

FOREIGN = Actor("foreign", Group.ADMIN, "foreign")


class Kept(StrEnum):
    """What a restart leaves."""

    LIGHT = "light"  # only the management card restarts: circuits and light stay
    SAVED = "saved"  # power is lost; the table comes back as the startup mode says
    OLD = "old"  # power is lost; the table before the last saved one comes back
    NOTHING = "nothing"  # power is lost; no circuit comes back


class PolatisEmulator:
    """One switch on real sockets. `async with PolatisEmulator(spec) as switch`, or `start` and `stop`.

    Ports of 0 take free ones. `clock` counts the seconds of the light log; `sleep` spends seconds.
    For one event loop only; everything here may be called while clients are served.
    """

    def __init__(
        self,
        spec: EmulatorSpec | None = None,
        *,
        host: str = "127.0.0.1",
        restconf_port: int = 0,
        tl1_port: int = 0,
        page_port: int = 0,
        tls: ssl.SSLContext | None = None,
        state_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.spec = spec or EmulatorSpec()
        self.script = ReplyScript()
        self.requests: deque[Asked] = deque(maxlen=REQUESTS_KEPT)
        self.sessions = Sessions()
        self.device = Device(self.spec, Flash(self.spec, state_file), clock=clock, sleep=sleep)
        self._scheme = "https" if tls is not None else "http"
        self._rebooting = False
        self._restart_due: asyncio.Task[Any] | None = None
        self._foreign: asyncio.Task[Any] | None = None
        self._witness: WitnessServer | None = None
        self.witness_address = ""
        restconf = RestconfDoor(
            self.device,
            self.sessions,
            self.script,
            restart=self._restart,
            cancel_restart=self._cancel_restart,
            enable=self._enable,
            log=self.requests,
        )
        tl1 = Tl1Door(self.device, self.sessions, self.script, restart=self._restart, log=self.requests)
        page = Page(self)
        self._listeners = {
            Door.RESTCONF: Listener(restconf.serve, host, restconf_port, tls),
            Door.TL1: Listener(tl1.serve, host, tl1_port),
        }
        self._page = Listener(lambda connection: http.serve(connection, page.answer), host, page_port)

    async def start(self) -> None:
        """Listen. Raises OSError when a port is taken."""
        await self._page.open()
        for listener in self._listeners.values():
            await listener.open()
        await self._set_doors()

    async def stop(self) -> None:
        """Drop everybody and stop; nothing is left running."""
        for listener in (*self._listeners.values(), self._page):
            await listener.close()
        if self._witness is not None:
            await self._witness.close()
        await self.device.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def restconf_url(self) -> str:
        """Where RESTCONF is, without the path `/api`."""
        return f"{self._scheme}://{self._listeners[Door.RESTCONF].address}"

    @property
    def tl1_address(self) -> str:
        """Where TL1 is, as host:port."""
        return self._listeners[Door.TL1].address

    @property
    def page_url(self) -> str:
        """Where a person can watch, and the side door for faults is."""
        return f"http://{self._page.address}"

    @property
    def table(self) -> dict[int, int]:
        """The circuits: ingress port -> egress port."""
        return self.device.table

    @property
    def light(self) -> LightLog:
        """When each port was dark."""
        return self.device.optics.log

    @property
    def faults(self) -> Faults:
        """The states in force."""
        return self.device.faults

    async def set_faults(self, faults: Faults | None = None, **changes: object) -> None:
        """Be in these states from now on: those of `faults` (by default the present ones) with `changes`.

        Raises pydantic's ValidationError for a state that cannot be.
        """
        document = (faults or self.faults).model_dump() | changes
        await self._use(Faults.model_validate(document))

    def next_reply(
        self,
        kind: ReplyKind | str,
        *,
        door: Door | str | None = None,
        on: str = "write",
        delay_ms: float = 0.0,
        times: int = 1,
    ) -> None:
        """Let this befall the next requests that fit."""
        fault = {"kind": kind, "door": door, "on": on, "delay_ms": delay_ms, "times": times}
        self.script.add(ReplyFault.model_validate(fault))

    async def foreign(self, *, connect: Iterable[Pair] = (), disconnect: Iterable[int] = ()) -> Written:
        """Change the table as somebody else, displacing what is in the way."""
        return await self.device.write(FOREIGN, Edit(tuple(connect), tuple(disconnect)))

    async def reboot(self, kept: Kept | str = Kept.LIGHT, ms: float | None = None) -> None:
        """Restart; returns when the doors are open again, `ms` (by default the switch's own time) later.

        Every session is cut and nobody can connect meanwhile.
        """
        kept = Kept(kept)
        self._rebooting = True
        await self._set_doors()
        for listener in self._listeners.values():
            listener.cut()
        if kept is not Kept.LIGHT:
            self.device.power_off()
        await self.device.wait(self.spec.reboot_ms if ms is None else ms)
        flash = self.device.flash
        match kept:
            case Kept.SAVED:
                self.device.power_on(flash.restored())
            case Kept.OLD:
                self.device.power_on(dict(flash.older[-1]) if flash.older else {})
            case Kept.NOTHING:
                self.device.power_on({})
        self._rebooting = False
        await self._set_doors()

    async def watch_traffic(self, fabric: Fabric, switch: str = "") -> str:
        """Let ranks report their traffic over this switch of the fabric; returns where, as host:port.

        `switch` may be left out when the fabric has one only. Raises ValueError when it is not this switch.
        """
        device = self._watched(fabric, switch)
        self._witness = WitnessServer(TrafficWitness(fabric, [device]))
        self.witness_address = await self._witness.start()
        return self.witness_address

    def plug_nics(self, fabric: Fabric, folder: Path, switch: str = "") -> None:
        """Have the NICs of this fabric on this switch, whose links can be read below `folder` as in sysfs.

        Raises ValueError when `switch` is not this switch, and OSError when the files cannot be written.
        """
        EmulatedNics(self.device, self._watched(fabric, switch), fabric, folder)

    def _watched(self, fabric: Fabric, switch: str) -> WatchedDevice:
        names = [entry.name for entry in fabric.switches]
        name = switch or (names[0] if len(names) == 1 else "")
        if name not in names:
            raise ValueError(f"switch is {switch!r}; right would be one of the fabric's: {', '.join(names)}")
        return WatchedDevice(self.device, fabric.switch(name))

    async def _use(self, faults: Faults) -> None:
        before = self.faults.foreign_writer
        self.device.set_faults(faults)
        if faults.foreign_writer != before:
            if self._foreign is not None:
                self._foreign.cancel()
                self._foreign = None
            if faults.foreign_writer is not None:
                self._foreign = self.device.spawn(self._write_foreign())
        await self._set_doors()

    async def _set_doors(self) -> None:
        """Listen where somebody may connect now."""
        for door, listener in self._listeners.items():
            if self._rebooting or door in self.faults.disabled:
                listener.shut()
            else:
                await listener.open()

    async def _enable(self, door: Door, wanted: bool) -> None:
        disabled = set(self.faults.disabled) - {door} if wanted else {*self.faults.disabled, door}
        await self.set_faults(disabled=tuple(sorted(disabled)))

    def _restart(self, seconds: float) -> None:
        self._cancel_restart()
        self._restart_due = self.device.spawn(self._restart_after(seconds))

    def _cancel_restart(self) -> None:
        if self._restart_due is not None and not self._rebooting:
            self._restart_due.cancel()
        self._restart_due = None

    async def _restart_after(self, seconds: float) -> None:
        await self.device.wait(seconds * 1e3)
        await self.reboot(Kept.LIGHT)

    async def _write_foreign(self) -> None:
        """Remove circuits, again and again, as a controller does that does not know them."""
        while (writer := self.faults.foreign_writer) is not None:
            await self.device.wait(writer.every_s * 1e3)
            ports = writer.ports if writer.ports is not None else tuple(self.table)
            with contextlib.suppress(Exception):  # a refusal is none of its business
                await self.foreign(disconnect=ports)
