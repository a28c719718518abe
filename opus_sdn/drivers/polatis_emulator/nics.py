"""NICs on the emulated switch: their link comes up some time after the light, as files like those of sysfs.

For every port of the fabric on this switch there is `<folder>/<host>/class/net/nic<slot>p<index>/carrier`,
which holds 1 or 0. A link needs light into the NIC, enough of it, for as long as the NIC takes.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from opus_sdn.drivers.polatis_emulator.device import Device
from opus_sdn.drivers.polatis_emulator.watched import WatchedDevice
from opus_sdn.intent.fabric import Fabric, Port, Side

SENSITIVITY_DBM = -20.0


def carrier_file(folder: Path, port: Port) -> Path:
    """Where the carrier of one NIC port stands."""
    return folder / port.host / "class" / "net" / f"nic{port.slot}p{port.index}" / "carrier"


class EmulatedNics:
    """The NIC ports of a fabric that are plugged into one device."""

    def __init__(self, device: Device, watched: WatchedDevice, fabric: Fabric, folder: Path) -> None:
        self._device = device
        self._folder = folder
        self._up: dict[int, bool] = {}
        self._lights: dict[int, int] = {}  # egress port -> number of its newest light
        self._nics = {
            watched.port(Side.EGRESS, at.position): at.port
            for at in fabric.attachments
            if at.switch == watched.name
        }
        for number, port in self._nics.items():
            carrier_file(folder, port).parent.mkdir(parents=True, exist_ok=True)
            self._set(number, up=False)
        device.optics.listeners.append(self._light_changed)
        self._light_changed(list(self._nics))

    def _light_changed(self, ports: Collection[int]) -> None:
        for number in ports:
            if number not in self._nics:
                continue
            self._lights[number] = self._lights.get(number, 0) + 1
            if self._enough(number):
                self._device.spawn(self._train(number, self._lights[number]))
            else:
                self._set(number, up=False)

    async def _train(self, number: int, light: int) -> None:
        """What a NIC does until its link is up; a light that went away meanwhile was for nothing."""
        told = self._device.faults.link_up_ms
        await self._device.wait(self._device.spec.link_up_ms if told is None else told)
        if self._lights[number] == light and self._enough(number):
            self._set(number, up=str(self._nics[number]) not in self._device.faults.dead_links)

    def _enough(self, number: int) -> bool:
        optics = self._device.optics
        return optics.is_lit(number) and optics.power_dbm(number) > SENSITIVITY_DBM

    def _set(self, number: int, *, up: bool) -> None:
        if self._up.get(number) is not up:
            self._up[number] = up
            carrier_file(self._folder, self._nics[number]).write_text(
                "1\n" if up else "0\n", encoding="ascii"
            )
