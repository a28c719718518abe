"""The emulated device as the traffic witness sees a switch: by positions from 0, each side apart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from opus_sdn.drivers.polatis_emulator.device import Device
from opus_sdn.drivers.polatis_emulator.judge import Pair
from opus_sdn.drivers.witness import LightObserver
from opus_sdn.intent.fabric import CrossConnect, Side, Switch, Terminal


@dataclass(frozen=True, slots=True)
class LightChange:
    """Terminals that move or are shut, and what was connected there. No epoch comes over the wire."""

    terminals: frozenset[Terminal]
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    epoch: int = 0


class WatchedDevice:
    """Presents one device under the name that it has in the fabric."""

    def __init__(self, device: Device, switch: Switch) -> None:
        if switch.sided is device.layout.any_to_any:
            wanted = "any_to_any" if device.layout.any_to_any else "sided"
            raise ValueError(
                f"switch {switch.name}: layout does not fit a device of {device.layout}; "
                f"right would be {wanted}"
            )
        self.switch = switch
        self.name = switch.name
        self._device = device
        self._observers: list[LightObserver] = []
        device.watchers.append(self)

    def is_lit(self, pair: CrossConnect) -> bool:
        """Whether light passes from this ingress to this egress right now."""
        optics = self._device.optics
        ingress, egress = self.port(Side.INGRESS, pair.ingress), self.port(Side.EGRESS, pair.egress)
        return optics.peer(ingress) == egress and optics.is_lit(egress)

    def watch(self, observer: LightObserver) -> None:
        """Tell this observer of every change from now on."""
        self._observers.append(observer)

    def moved(self, removed: Collection[Pair], added: Collection[Pair], ports: frozenset[int]) -> None:
        """The device says that the light of these ports goes."""
        change = LightChange(
            frozenset(map(self._terminal, ports)),
            tuple(map(self._cross_connect, removed)),
            tuple(map(self._cross_connect, added)),
        )
        for observer in self._observers:
            observer.change_started(self, change)

    def port(self, side: Side, position: int) -> int:
        """The device's number of a position."""
        offset = self._device.layout.ingress if self.switch.sided and side is Side.EGRESS else 0
        return offset + position + 1

    def _terminal(self, port: int) -> Terminal:
        if not self.switch.sided:
            return Terminal(self.name, Side.ANY, port - 1)
        ingress = self._device.layout.ingress
        if port <= ingress:
            return Terminal(self.name, Side.INGRESS, port - 1)
        return Terminal(self.name, Side.EGRESS, port - ingress - 1)

    def _cross_connect(self, pair: Pair) -> CrossConnect:
        first, second = (self._terminal(port).position for port in pair)
        return CrossConnect(first, second)
