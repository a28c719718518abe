"""RESTCONF's writes to everything but the circuits, and its operations."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from opus_sdn.drivers.polatis_emulator.alarms import AlarmSetting
from opus_sdn.drivers.polatis_emulator.device import Actor, Device
from opus_sdn.drivers.polatis_emulator.faults import Door
from opus_sdn.drivers.polatis_emulator.http import Answer, Fate
from opus_sdn.drivers.polatis_emulator.judge import Edit
from opus_sdn.drivers.polatis_emulator.optics import Attenuation
from opus_sdn.drivers.polatis_emulator.refusals import RefusalError, Why
from opus_sdn.drivers.polatis_emulator.restconf_tree import STARTUP
from opus_sdn.drivers.polatis_emulator.restconf_wire import (
    HttpProblem,
    Segment,
    as_list,
    decimal,
    local,
    malformed,
    not_found,
    whole_number,
)
from opus_sdn.drivers.polatis_emulator.sessions import Sessions

TEXT = re.compile(r"[ -~]{0,128}")
VOA_MODES = ("NONE", "RELATIVE", "ABSOLUTE", "CONVERGED", "MAXIMUM", "FIXED")
ALARM_MODES = {
    "POWER_ALARM_DISABLED": (False, False),
    "POWER_ALARM_ENABLED": (True, False),
    "POWER_ALARM_CONTINUOUS": (True, False),
    "POWER_ALARM_SINGLE": (True, True),
}
ALARM_LEAVES = (
    "low-power-threshold",
    "degrade-power-threshold",
    "high-power-threshold",
    "alarm-clear-holdoff",
)

Members = dict[str, Any]


class Settings:
    """Answers PATCH and PUT of settings (of ports, and of the system), and POST of operations.

    `restart` reboots the management card after so many seconds, `cancel_restart` thinks better of it,
    `enable` switches a protocol on or off.
    """

    def __init__(
        self,
        device: Device,
        sessions: Sessions,
        *,
        restart: Callable[[float], None],
        cancel_restart: Callable[[], None],
        enable: Callable[[Door, bool], Awaitable[None]],
    ) -> None:
        self._device = device
        self._sessions = sessions
        self._restart = restart
        self._cancel_restart = cancel_restart
        self._enable = enable
        self._of_ports: dict[str, Callable[[Actor, int, Members], None]] = {
            "port-config": self._port,
            "opm-config": self._monitor,
            "opm-alarm-config": self._alarm,
            "voa": self._attenuator,
        }
        self._operations: dict[str, Callable[[Actor, Members], Awaitable[None]]] = {
            "port-set-state": self._set_state,
            "add-group-cross-connect": self._connect_groups,
            "delete-group-cross-connect": self._disconnect_group,
            "disconnect-session": self._disconnect_session,
            "clear-notification-ids": self._clear_notifications,
            "system-restart": self._system_restart,
            "system-restart-cancel": self._system_restart_cancel,
        }

    async def write(self, method: str, path: tuple[Segment, ...], body: Members, actor: Actor) -> Answer:
        """Change settings."""
        if method not in ("PATCH", "PUT"):
            raise HttpProblem(405, "operation-not-supported", f"{method} is not possible here")
        name = path[0].name
        if name in self._of_ports:
            await self._device.spend_control()
            for port, members in _ports_of(path, body):
                self._of_ports[name](actor, port, members)
            return Answer(204)
        if name == "system-config":
            await self._system(path, body, actor)
            return Answer(204)
        raise HttpProblem(405, "operation-not-supported", f"{name} cannot be written")

    async def operate(self, name: str, body: Members, actor: Actor) -> Answer:
        """Run an operation. Raises HttpProblem 404 for one that there is not."""
        operation = self._operations.get(local(name))
        if operation is None:
            raise not_found()
        given = body.get("input", {})
        if not isinstance(given, dict):
            raise malformed("input is not an object")
        members = {local(str(member)): value for member, value in given.items()}
        await operation(actor, members)
        # A restart without delay is faster than its own answer.
        at_once = local(name) == "system-restart" and members.get("seconds", 0) in (0, "0")
        return Answer(204, fate=Fate.LOST if at_once else Fate.SENT)

    def _port(self, actor: Actor, port: int, members: Members) -> None:
        _only(members, "label", "peer-port")
        for value in members.values():
            if not isinstance(value, str) or TEXT.fullmatch(value) is None:
                raise HttpProblem(400, "invalid-value", f'"{value!s:.64}" is not a valid value')
        self._device.name_port(actor, port, label=members.get("label"), peer=members.get("peer-port"))

    def _monitor(self, actor: Actor, port: int, members: Members) -> None:
        _only(members, "wavelength", "offset", "averaging-time-select")
        self._measured(actor, port)
        if "offset" in members:
            offset = decimal(members["offset"], "offset")
            if abs(offset) > 100:
                raise HttpProblem(400, "invalid-value", f"offset {offset} is not in -100..100")
            self._device.optics.offset_db[port] = offset
        if "averaging-time-select" in members:
            select = whole_number(members["averaging-time-select"], "averaging-time-select")
            if not 1 <= select <= 8:
                raise HttpProblem(400, "invalid-value", f"averaging-time-select {select} is not in 1..8")
            self._device.alarms.averaging[port] = select

    def _alarm(self, actor: Actor, port: int, members: Members) -> None:
        _only(members, "alarm-mode", *ALARM_LEAVES)
        self._measured(actor, port)
        setting = self._device.alarms.settings.get(port, AlarmSetting())
        mode = members.get("alarm-mode")
        if mode is not None:
            if mode not in ALARM_MODES:
                raise HttpProblem(400, "invalid-value", f'"{mode!s:.64}" is not a valid value for alarm-mode')
            enabled, single = ALARM_MODES[mode]
            setting = replace(setting, enabled=enabled, single=single)
        given = {leaf: decimal(members[leaf], leaf) for leaf in ALARM_LEAVES if leaf in members}
        setting = replace(
            setting,
            low_dbm=given.get("low-power-threshold", setting.low_dbm),
            degrade_dbm=given.get("degrade-power-threshold", setting.degrade_dbm),
            high_dbm=given.get("high-power-threshold", setting.high_dbm),
            holdoff_s=given.get("alarm-clear-holdoff", setting.holdoff_s),
        )
        self._device.alarms.arm(port, setting)

    def _attenuator(self, actor: Actor, port: int, members: Members) -> None:
        _only(members, "atten-mode", "atten-level", "reference-port")
        self._measured(actor, port)
        voa = self._device.optics.attenuation.get(port, Attenuation())
        mode = str(members.get("atten-mode", f"VOA_MODE_{voa.mode}")).removeprefix("VOA_MODE_")
        if mode not in VOA_MODES:
            raise HttpProblem(400, "invalid-value", f'"{mode:.64}" is not a valid value for atten-mode')
        level = decimal(members.get("atten-level", voa.level), "atten-level")
        reference = whole_number(members.get("reference-port", voa.reference), "reference-port")
        self._device.optics.attenuation[port] = Attenuation(mode, level, reference)

    def _measured(self, actor: Actor, port: int) -> None:
        self._device.require_port(port)
        self._device.permit(actor, (port,))
        if not self._device.measures(port):
            raise not_found()

    async def _system(self, path: tuple[Segment, ...], body: Members, actor: Actor) -> None:
        self._device.permit(actor, system=True)
        await self._device.spend_control()
        members = body.get("system-config", body)
        if len(path) > 1 and path[1].name == "protocols":
            await self._protocol(path, body)
            return
        if not isinstance(members, dict):
            raise malformed("system-config is not an object")
        members = {local(str(member)): value for member, value in members.items()}
        _only(members, "startup-mode")
        for mode, text in STARTUP.items():
            if members.get("startup-mode") == text:
                self._device.flash.startup_mode = mode
                self._device.flash.save()
                return
        raise HttpProblem(400, "invalid-value", "startup-mode is not one of MODE_PRESERVE, MODE_VOLATILE")

    async def _protocol(self, path: tuple[Segment, ...], body: Members) -> None:
        entries = as_list(body.get("protocol", {}))
        key = path[2].key if len(path) > 2 else None
        for entry in entries:
            if not isinstance(entry, dict):
                raise malformed("protocol is not an object")
            name = str(entry.get("protocol-name", key)).lower()
            enabled = entry.get("enabled")
            if name not in list(Door) or enabled not in (True, False, "true", "false"):
                raise HttpProblem(400, "invalid-value", "protocol needs a known name and enabled")
            if name == Door.RESTCONF and enabled in (False, "false"):
                raise HttpProblem(400, "invalid-value", "an interface cannot disable itself")
            await self._enable(Door(name), enabled in (True, "true"))

    async def _set_state(self, actor: Actor, given: Members) -> None:
        _only(given, "port-disab", "port-enab")
        ports = {
            leaf: [whole_number(port, leaf) for port in as_list(given.get(leaf, []))]
            for leaf in ("port-disab", "port-enab")
        }
        await self._device.set_ports(actor, disable=ports["port-disab"], enable=ports["port-enab"])

    async def _connect_groups(self, actor: Actor, given: Members) -> None:
        _only(given, "group-name-from", "group-name-to")
        first = self._group(given.get("group-name-from"))
        second = self._group(given.get("group-name-to"))
        if len(first) != len(second):
            raise HttpProblem(400, "invalid-value", "the groups have different numbers of ports")
        await self._device.write(actor, Edit(tuple(zip(first, second, strict=True))))

    async def _disconnect_group(self, actor: Actor, given: Members) -> None:
        _only(given, "group-name")
        await self._device.write(actor, Edit(disconnect=self._group(given.get("group-name"))))

    def _group(self, name: object) -> tuple[int, ...]:
        for group in self._device.spec.groups:
            if group.name == name:
                return group.ports
        raise HttpProblem(400, "invalid-value", f'"{name!s:.64}" is not the name of a group')

    async def _disconnect_session(self, actor: Actor, given: Members) -> None:
        self._device.permit(actor, system=True)
        if not self._sessions.disconnect(whole_number(given.get("session-id"), "session-id")):
            raise HttpProblem(400, "invalid-value", "no session has this number")

    async def _clear_notifications(self, actor: Actor, given: Members) -> None:
        self._device.permit(actor, system=True)
        self._device.alarms.clear()

    async def _system_restart(self, actor: Actor, given: Members) -> None:
        self._device.permit(actor, system=True)
        seconds = whole_number(given.get("seconds", 0), "seconds")
        self._restart(float(seconds))

    async def _system_restart_cancel(self, actor: Actor, given: Members) -> None:
        self._device.permit(actor, system=True)
        self._cancel_restart()


def _only(members: Members, *known: str) -> None:
    for member in members:
        if member not in known:
            raise HttpProblem(400, "unknown-element", f"unknown element: {member:.64}")


def _ports_of(path: tuple[Segment, ...], body: Members) -> list[tuple[int, Members]]:
    """The ports of a body and what is to be set at each: by key in the path, or by their own numbers."""
    if len(path) > 2 or (len(path) == 2 and path[1].name != "port"):
        raise not_found()
    key = path[1].key if len(path) == 2 else None
    inner = body.get(path[0].name, body)
    if not isinstance(inner, dict):
        raise malformed(f"{path[0].name} is not an object")
    entries = [entry for name, value in inner.items() if local(name) == "port" for entry in as_list(value)]
    if not entries:
        raise HttpProblem(400, "missing-element", "missing element: port")
    found = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise malformed("port is not an object")
        members = {local(str(member)): value for member, value in entry.items()}
        port = whole_number(members.pop("port-id", key), "port-id")
        if key is not None and str(port) != key:
            raise HttpProblem(400, "invalid-value", "the key in the message body and the URI differ")
        found.append((port, members))
    return found


def as_problem(refusal: RefusalError) -> HttpProblem:
    """How RESTCONF says what the device refused."""
    status, tag = {
        Why.BAD_PORT: (400, "invalid-value"),
        Why.SAME_SIDE: (400, "invalid-value"),
        Why.DUPLICATE: (400, "invalid-value"),
        Why.IN_USE: (409, "in-use"),
        Why.EXISTS: (409, "data-exists"),
        Why.FORBIDDEN: (403, "access-denied"),
        Why.LOCKED: (403, "access-denied"),
        Why.MODULE: (500, "operation-failed"),
        Why.MODIFIED: (412, "operation-failed"),
    }[refusal.why]
    if refusal.why is Why.EXISTS:
        name = f"/opsw:cross-connects/opsw:pair[opsw:ingress='{refusal.ports[0]}']"
        return HttpProblem(status, tag, f"object already exists: {name}", "/optical-switch:cross-connects")
    return HttpProblem(status, tag, refusal.detail)
