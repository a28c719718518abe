"""The traffic witness of the emulated switches, at an address that it keeps over fabrics and terms."""

from __future__ import annotations

from collections.abc import Mapping

from opus_sdn.drivers.base import Driver
from opus_sdn.drivers.emulated import EmulatedDriver
from opus_sdn.drivers.witness import TrafficWitness
from opus_sdn.drivers.witness_server import WitnessServer
from opus_sdn.intent.fabric import Fabric


class Witness:
    """Watches the emulated switches that live in this process."""

    def __init__(self, host: str) -> None:
        self._host = "127.0.0.1" if host == "localhost" else host
        self._server: WitnessServer | None = None
        self._watched: tuple[object, ...] | None = None
        self.address = ""

    async def watch(self, fabric: Fabric, drivers: Mapping[str, Driver]) -> None:
        """Watch the emulated switches of this fabric from now on; those of before go on being watched."""
        devices = [driver.device for driver in drivers.values() if isinstance(driver, EmulatedDriver)]
        watched = (fabric, *map(id, devices))
        if watched == self._watched:
            return
        port = int(self.address.rpartition(":")[2]) if self.address else 0
        await self.close()
        self._server = WitnessServer(TrafficWitness(fabric, devices), self._host, port)
        self.address = await self._server.start()
        self._watched = watched

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.close()
