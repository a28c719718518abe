"""How long each cross-connect of a device was lit and dark, for the tests of delays."""

from __future__ import annotations

from collections import defaultdict

from opus_sdn.drivers.emulated import EmulatedSwitch, Transition
from opus_sdn.intent.fabric import CrossConnect
from tests.drivers.virtual_time import now


class LightLog:
    """Notes every moment at which a cross-connect of the table appears or vanishes."""

    def __init__(self, device: EmulatedSwitch) -> None:
        self._lit = device.table
        self.moments: dict[CrossConnect, list[tuple[float, bool]]] = defaultdict(list)
        device.watch(self)

    def change_started(self, switch: EmulatedSwitch, transition: Transition) -> None:
        self._note(switch)

    def change_finished(self, switch: EmulatedSwitch, transition: Transition) -> None:
        self._note(switch)

    def _note(self, switch: EmulatedSwitch) -> None:
        for pair in self._lit ^ switch.table:
            self.moments[pair].append((now(), pair in switch.table))
        self._lit = switch.table
