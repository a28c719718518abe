"""Whether light passes through circuits that are in the table: a connected circuit may be dark."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from opus_sdn.drivers.pairs import place
from opus_sdn.drivers.polatis.discovery import Device
from opus_sdn.intent.fabric import CrossConnect

PAUSE_S: Final = (0.02, 0.2)


class Light:
    """Looks at ports and power of one device. `patience_s`: how long light may take after the change."""

    def __init__(self, device: Device, threshold_dbm: float, patience_s: float) -> None:
        self._device = device
        self._threshold_dbm = threshold_dbm
        self._patience_s = patience_s

    async def dark(self, pairs: Collection[CrossConnect]) -> Mapping[CrossConnect, str]:
        """Which of these circuits pass no light now, and why."""
        blocked = await self._blocked(pairs)
        return blocked | await self._dim([pair for pair in pairs if pair not in blocked])

    async def awaited(self, pairs: Collection[CrossConnect]) -> Mapping[CrossConnect, str]:
        """The same, once those that only need time have had it."""
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + self._patience_s, PAUSE_S[0]
        blocked = await self._blocked(pairs)
        waiting = [pair for pair in pairs if pair not in blocked]
        while True:
            dim = await self._dim(waiting)
            if not dim or loop.time() >= until:
                return blocked | dim
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S[1])

    async def _blocked(self, pairs: Collection[CrossConnect]) -> dict[CrossConnect, str]:
        """Circuits with a port that is disabled or has failed."""
        if not pairs:
            return {}
        numbering = self._device.numbering
        states = await self._device.transport.ports(numbering.total)
        found: dict[CrossConnect, str] = {}
        for pair in pairs:
            for number in numbering.wire(pair):
                state = states.get(number)
                if state is None or state.failed or not state.enabled:
                    what = "is disabled" if state is not None else "is not listed by the device any more"
                    if state is not None and state.failed:
                        what = "has failed"
                    found[pair] = f"{place(numbering.port(number))} {what}"
                    break
        return found

    async def _dim(self, pairs: Collection[CrossConnect]) -> dict[CrossConnect, str]:
        """Circuits with too little light at a monitored end: at the egress, or at either without sides."""
        numbering, monitors = self._device.numbering, self._device.monitors
        ends = {
            pair: monitors.intersection(numbering.wire(pair)[1 if numbering.sided else 0 :]) for pair in pairs
        }
        numbers = sorted({number for ports in ends.values() for number in ports})
        if not numbers:
            return {}
        power = await self._device.transport.power(numbers) or {}
        found: dict[CrossConnect, str] = {}
        for pair, ports in ends.items():
            for number in sorted(ports):
                where, dbm = place(numbering.port(number)), power.get(number)
                if dbm is None:
                    found[pair] = f"{where} has a monitor that tells nothing any more"
                elif dbm < self._threshold_dbm:
                    found[pair] = f"{where} reads {dbm:.2f} dBm, below {self._threshold_dbm:g}"
        return found
