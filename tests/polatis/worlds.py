"""Devices with a driver before them and a fault to be had, all of one shape, for tests over several of them.

The device is 8x8. It holds 0->0 and 1->1, which the tests change, and 2->2, which nobody may touch.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from opus_sdn.drivers.base import Driver
from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch
from opus_sdn.drivers.faults import Fault, FaultKind, FaultyDriver
from opus_sdn.drivers.pairs import PortId
from opus_sdn.drivers.polatis.driver import PolatisDriver
from opus_sdn.drivers.polatis.numbering import Numbering
from opus_sdn.drivers.polatis.open import open_polatis
from opus_sdn.drivers.polatis_emulator.emulator import PolatisEmulator
from opus_sdn.drivers.polatis_emulator.spec import EmulatorSpec, UserSpec
from opus_sdn.intent.fabric import CrossConnect, Side, Switch, Terminal
from tests.drivers.devices import Pairs, device, pairs

PASSWORD = "Zq8-kept-secret"  # in no message, whatever happens
SILENCE: dict[str, object] = {"timeout_s": 0.6}  # for tests in which no answer comes
PASSWORD_VARIABLE = "OPUS_TEST_POLATIS_PASSWORD"
BYSTANDER = CrossConnect(2, 2)
BEFORE = pairs((0, 0), (1, 1), (2, 2))

# Long enough for a busy machine to answer in; what is waited for in vain is short.
QUICK: dict[str, object] = {
    "timeout_s": 10.0,
    "connect_timeout_s": 5.0,
    "readback_s": 0.2,
    "settle_s": 0.0,
    "light_s": 1.0,
}


class World(Protocol):
    """A device, its driver, and what goes wrong."""

    driver: Driver

    @property
    def table(self) -> frozenset[CrossConnect]:
        """What the device really holds."""
        ...

    def blocked(self, port: PortId) -> bool:
        """Whether the device really keeps this port shut."""
        ...

    def label(self, port: PortId) -> str:
        """What the device really calls this port."""
        ...

    async def strike(self, fault: str, *, writing: bool) -> None:
        """Let this fault befall the next call."""
        ...

    async def heal(self) -> None:
        """No fault any more."""
        ...


class EmulatedWorld:
    """The emulated switch in this process, behind a driver that fails as told."""

    def __init__(self) -> None:
        self.device: EmulatedSwitch = device(*BEFORE, name="ocs")
        self.driver: FaultyDriver = FaultyDriver(EmulatedDriver(self.device))

    @property
    def table(self) -> frozenset[CrossConnect]:
        return self.device.table

    def blocked(self, port: PortId) -> bool:
        return not self.device.state(Terminal("ocs", *port)).enabled

    def label(self, port: PortId) -> str:
        return self.device.labels.get(Terminal("ocs", *port), "")

    async def strike(self, fault: str, *, writing: bool) -> None:
        kinds = {
            "time-out before": Fault(FaultKind.REQUEST_LOST),
            "time-out after apply": Fault(FaultKind.ANSWER_LOST),
            "partial batch": Fault(FaultKind.PARTIAL, pairs=1),
            "wrong answer": Fault(FaultKind.LIE),
            "reset": Fault(FaultKind.REQUEST_LOST),
            "slow tuning": Fault(FaultKind.SLOW, seconds=0.05),
            "session limit": Fault(FaultKind.TRANSIENT, seconds=0.05),
            "remote lock": Fault(FaultKind.LOCKED),
        }
        if fault in kinds:
            self.driver = FaultyDriver(
                self.driver.inner,
                applies=[kinds[fault]] if writing else [],
                reads=[] if writing else [kinds[fault]],
            )
        elif fault == "reboot empty":
            self.device.restart(())
        elif fault == "reboot with an old table":
            self.device.restart(pairs((0, 5), (2, 2)))
        elif fault == "port failed":
            self.device.fail([Terminal("ocs", Side.INGRESS, 3)])
        elif fault == "foreign writer":
            await EmulatedDriver(self.device).apply(pairs((0, 0)), pairs((3, 0)), 0)
        else:
            raise ValueError(fault)

    async def heal(self) -> None:
        self.driver = FaultyDriver(self.driver.inner)
        self.device.fail([Terminal("ocs", Side.INGRESS, 3)], failed=False)


class PolatisWorld:
    """The emulated Polatis on real sockets, and the driver over one of its doors."""

    def __init__(self, door: str, emulator: PolatisEmulator, driver: PolatisDriver) -> None:
        self.door = door
        self.emulator = emulator
        self.driver = driver
        self.numbering = Numbering.parse(str(emulator.spec.layout))

    @property
    def table(self) -> frozenset[CrossConnect]:
        return frozenset(self.numbering.pair(a, b) for a, b in self.emulator.table.items())

    def blocked(self, port: PortId) -> bool:
        return self.numbering.number(port) in self.emulator.device.optics.disabled

    def label(self, port: PortId) -> str:
        return self.emulator.device.flash.labels.get(self.numbering.number(port), "")

    async def strike(self, fault: str, *, writing: bool) -> None:
        emulator, on = self.emulator, "write" if writing else "read"
        replies = {
            "time-out before": "request-lost",
            "time-out after apply": "reply-lost",
            "wrong answer": "wrong" if writing else "garbage",
            "reset": "reset-before",
        }
        states: dict[str, dict[str, object]] = {
            "partial batch": {"partial_batch": 1},
            "port failed": {"failed_ports": (4,)},
            "slow tuning": {"tuning_ms": dict.fromkeys(range(1, 17), 150), "early_reply": True},
            "session limit": {"session_limit": 0},
            "idle logout": {"idle_logout_s": 0.02},
            "remote lock": {"remote_lock": True},
            "protocol disabled with the socket open": {"disabled": (self.door,)},
        }
        if fault in replies:
            emulator.next_reply(replies[fault], on=on)
        elif fault in states:
            await emulator.set_faults(**states[fault])
            if fault == "session limit":
                await emulator.reboot("light", ms=0)  # which ends the session that we have
            if fault == "idle logout":
                await emulator.device.wait(100)
        elif fault == "reboot empty":
            await emulator.reboot("nothing", ms=0)
        elif fault == "reboot with an old table":
            await emulator.foreign(disconnect=[2])
            await emulator.foreign(connect=[(2, 10)])
            await emulator.reboot("old", ms=0)
        elif fault == "foreign writer":
            await emulator.foreign(connect=[(4, 9)])
        else:
            raise ValueError(fault)

    async def heal(self) -> None:
        self.emulator.script.clear()
        await self.emulator.set_faults(type(self.emulator.faults)())


def polatis_switch(emulator: PolatisEmulator, door: str, **options: object) -> Switch:
    """The switch as a fabric file would describe it."""
    os.environ[PASSWORD_VARIABLE] = emulator.spec.users[0].password
    layout = emulator.spec.layout
    settings: dict[str, object] = {
        "host": "127.0.0.1",
        "transport": door,
        "restconf_port": int(emulator.restconf_url.rpartition(":")[2]),
        "tl1_port": int(emulator.tl1_address.rpartition(":")[2]),
        "user": emulator.spec.users[0].name,
        "password_env": PASSWORD_VARIABLE,
        **QUICK,
        **options,
    }
    return Switch(
        "ocs", "polatis", max(layout.ingress, layout.egress), not layout.any_to_any, tuple(settings.items())
    )


def spec_of(size: str = "8x8", before: Pairs = BEFORE, **more: object) -> EmulatorSpec:
    """A device that holds these, with a user that is not the one it is delivered with."""
    numbering = Numbering.parse(size)
    settings: dict[str, object] = {
        "size": size,
        "initial": tuple(numbering.wire(pair) for pair in before),
        "users": (UserSpec(name="opus", password=PASSWORD),),
        "switch_ms": 2.0,
        **more,
    }
    return EmulatorSpec.model_validate(settings)


@asynccontextmanager
async def polatis_world(
    door: str, spec: EmulatorSpec | None = None, **options: object
) -> AsyncIterator[PolatisWorld]:
    """An emulated Polatis with its driver; both are ended afterwards."""
    async with PolatisEmulator(spec or spec_of()) as emulator:
        driver = open_polatis(polatis_switch(emulator, door, **options))
        try:
            yield PolatisWorld(door, emulator, driver)
        finally:
            await driver.close()


@asynccontextmanager
async def world(kind: str, **options: object) -> AsyncIterator[World]:
    """`emulated`, `restconf` or `tl1`; options of the driver where it has any."""
    if kind == "emulated":
        yield EmulatedWorld()
    else:
        async with polatis_world(kind, **options) as made:
            yield made
