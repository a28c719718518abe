"""What RESTCONF shows of the device: the data tree, and how a path finds its way in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from opus_sdn.drivers.polatis_emulator.alarms import AVERAGING_DEFAULT, AlarmSetting
from opus_sdn.drivers.polatis_emulator.device import Device
from opus_sdn.drivers.polatis_emulator.faults import Door
from opus_sdn.drivers.polatis_emulator.optics import Attenuation
from opus_sdn.drivers.polatis_emulator.restconf_wire import Segment, local, not_found
from opus_sdn.drivers.polatis_emulator.sessions import Sessions
from opus_sdn.drivers.polatis_emulator.spec import StartupMode

OPTICAL, POLATIS, LIBRARY = "optical-switch", "polatis-switch", "ietf-yang-library"
KEYS = {
    "pair": "ingress",
    "pairs": "ingress",
    "port": "port-id",
    "group": "group-name",
    "subswitch": "subswitch-name",
    "user": "name",
    "protocol": "protocol-name",
    "alarm": "alarm-time",
    "session": "session-id",
    "log": "log-time",
    "module": "name",
}
STARTUP = {StartupMode.PRESERVE: "MODE_PRESERVE", StartupMode.VOLATILE: "MODE_VOLATILE"}
POLATIS_REVISION = "2018-01-19"


@dataclass(frozen=True, slots=True)
class Found:
    """A resource: its module, its name, its value. `entry`: it is one entry of a list."""

    module: str
    name: str
    value: Any
    entry: bool = False


class Tree:
    """The data tree. Every part is made anew when it is asked for."""

    def __init__(self, device: Device, sessions: Sessions) -> None:
        self._device = device
        self._sessions = sessions
        self._parts: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
            "cross-connects": (OPTICAL, self._circuits),
            "product-information": (OPTICAL, self._product),
            "port-config": (OPTICAL, self._ports),
            "opm-power": (OPTICAL, self._power),
            "opm-config": (OPTICAL, self._monitors),
            "opm-alarm-config": (OPTICAL, self._alarm_settings),
            "voa": (OPTICAL, self._attenuators),
            "groups": (OPTICAL, self._groups),
            "subswitches": (OPTICAL, self._subswitches),
            "system-config": (OPTICAL, self._system),
            "system-alarms": (POLATIS, self._alarms),
            "notification-log": (POLATIS, self._log),
            "sessions": (POLATIS, self._open_sessions),
            "modules-state": (LIBRARY, self._modules),
        }

    def find(self, path: tuple[Segment, ...]) -> Found:
        """The resource at this path. Raises HttpProblem 404 when there is none."""
        first = path[0]
        part = self._parts.get(first.name)
        if part is None or first.key is not None or first.module not in (None, part[0]):
            raise not_found()
        module, value = part[0], part[1]()
        found = Found(module, first.name, value)
        for segment in path[1:]:
            found = _step(found, segment)
        return found

    def whole(self) -> dict[str, Any]:
        """All of it, by qualified names."""
        return {f"{module}:{name}": make() for name, (module, make) in self._parts.items()}

    def _circuits(self) -> dict[str, Any]:
        pairs = [{"ingress": a, "egress": b} for a, b in self._device.seen_table().items()]
        return {self._device.spec.pair_list: pairs}

    def _product(self) -> dict[str, Any]:
        spec = self._device.spec
        return {
            "manufacturer": "Polatis",
            "serial-number": spec.serial,
            "model-name": spec.model_name,
            "software-version": spec.firmware,
        }

    def _ports(self) -> dict[str, Any]:
        device, flash = self._device, self._device.flash
        return {
            "port": [
                {
                    "port-id": port,
                    "status": device.status(port),
                    "label": flash.labels.get(port, ""),
                    "peer-port": flash.peers.get(port, ""),
                }
                for port in device.layout.ports
            ]
        }

    def _power(self) -> dict[str, Any]:
        return self._measured(lambda port: {"power": self._decimal(self._device.optics.power_dbm(port))})

    def _monitors(self) -> dict[str, Any]:
        optics, alarms = self._device.optics, self._device.alarms
        return self._measured(
            lambda port: {
                "wavelength": self._decimal(1550.0),
                "offset": self._decimal(optics.offset_db.get(port, 0.0)),
                "averaging-time-select": alarms.averaging.get(port, AVERAGING_DEFAULT),
            }
        )

    def _alarm_settings(self) -> dict[str, Any]:
        return self._measured(self._alarm_setting)

    def _alarm_setting(self, port: int) -> dict[str, Any]:
        setting = self._device.alarms.settings.get(port, AlarmSetting())
        on = "POWER_ALARM_SINGLE" if setting.single else "POWER_ALARM_ENABLED"
        return {
            "alarm-mode": on if setting.enabled else "POWER_ALARM_DISABLED",
            "low-power-threshold": self._decimal(setting.low_dbm),
            "degrade-power-threshold": self._decimal(setting.degrade_dbm),
            "high-power-threshold": self._decimal(setting.high_dbm),
            "alarm-clear-holdoff": int(setting.holdoff_s),
        }

    def _attenuators(self) -> dict[str, Any]:
        def one(port: int) -> dict[str, Any]:
            voa = self._device.optics.attenuation.get(port, Attenuation())
            return {
                "atten-mode": f"VOA_MODE_{voa.mode}",
                "atten-level": self._decimal(voa.level),
                "reference-port": voa.reference,
            }

        return self._measured(one)

    def _measured(self, leaves: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        device = self._device
        ports = [port for port in device.layout.ports if device.measures(port)]
        return {"port": [{"port-id": port, **leaves(port)} for port in ports]} if ports else {}

    def _groups(self) -> dict[str, Any]:
        layout = self._device.layout
        groups = []
        for group in self._device.spec.groups:
            # Ports without sides are listed as ingress ports.
            inside = [port for port in group.ports if layout.any_to_any or port <= layout.ingress]
            outside = [port for port in group.ports if port not in inside]
            groups.append({"group-name": group.name, "ingress": inside, "egress": outside})
        return {"group": groups} if groups else {}

    def _subswitches(self) -> dict[str, Any]:
        subs = [
            {"subswitch-name": sub.name, "port": list(sub.ports), "user": list(sub.users)}
            for sub in self._device.spec.subswitches
        ]
        return {"subswitch": subs} if subs else {}

    def _system(self) -> dict[str, Any]:
        device = self._device
        users = [{"name": name, "polatis-switch:group": device.users.group(name)} for name in device.users]
        protocols = [
            {"protocol-name": door.value.upper(), "enabled": door not in device.faults.disabled}
            for door in Door
        ]
        return {
            "user": users,
            "protocols": {"protocol": protocols},
            "polatis-switch:startup-mode": STARTUP[device.flash.startup_mode],
            "current-datetime": _time(device.wall()),
            "boot-datetime": _time(device.booted_at),
        }

    def _alarms(self) -> dict[str, Any]:
        active = [
            {"alarm-time": _time(alarm.at), "alarm-type": alarm.kind, "alarm-message": alarm.message}
            for alarm in self._device.alarms.active.values()
        ]
        return {"alarm": active} if active else {}

    def _log(self) -> dict[str, Any]:
        log = [
            {"log-time": _time(alarm.at), "log-type": alarm.kind, "log-message": alarm.message}
            for alarm in self._device.alarms.history
        ]
        return {"log": log} if log else {}

    def _open_sessions(self) -> dict[str, Any]:
        sessions = [
            {
                "session-id": session.number,
                "protocol-name": session.protocol.upper(),
                "protocol-port": session.port,
                "client-address": session.address,
                "user-name": session.user,
            }
            for session in self._sessions
        ]
        return {"session": sessions} if sessions else {}

    def _modules(self) -> dict[str, Any]:
        revisions = {OPTICAL: self._device.spec.yang_revision, POLATIS: POLATIS_REVISION}
        modules = [
            {
                "name": name,
                "revision": revision,
                "namespace": f"http://www.polatis.com/yang/{name}",
                "conformance-type": "implement",
            }
            for name, revision in revisions.items()
        ]
        return {"module-set-id": self._device.spec.yang_revision, "module": modules}

    def _decimal(self, value: float) -> str | float:
        return round(value, 2) if self._device.faults.decimals == "number" else f"{value:.2f}"


def _step(found: Found, segment: Segment) -> Found:
    """One step down from a resource."""
    if not isinstance(found.value, dict):
        raise not_found()
    for member, value in found.value.items():
        module = member.rpartition(":")[0] or found.module
        if local(member) != segment.name or segment.module not in (None, module):
            continue
        if segment.key is None:
            return Found(module, segment.name, value)
        if not isinstance(value, list):
            raise not_found()
        # Lists with a second key (modules have their revision) are found by the first one.
        key, wanted = KEYS[segment.name], segment.key.partition(",")[0]
        for entry in value:
            if str(entry[key]) == wanted:
                return Found(module, segment.name, entry, entry=True)
        raise not_found()
    raise not_found()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
