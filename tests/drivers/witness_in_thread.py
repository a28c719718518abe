"""A witness server on a loop of its own thread, as a controller's process would run it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from opus_sdn.drivers.emulated import EmulatedSwitch
from opus_sdn.drivers.witness import TrafficWitness
from opus_sdn.drivers.witness_server import WitnessServer
from tests.drivers.devices import device, fabric

T = TypeVar("T")
PATIENCE_S = 20.0  # for what must happen soon; reached only when it never happens


class RunningWitness:
    """Address, device and witness of a running server; `call` runs something in its thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: str, ocs: EmulatedSwitch, witness: TrafficWitness
    ) -> None:
        self.address = address
        self.device = ocs
        self.witness = witness
        self._loop = loop

    def call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Look again and again, in the server's thread, until it is so."""

        async def look() -> None:
            while not condition():  # noqa: ASYNC110 - what a test waits for has no event of its own
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(look(), self._loop).result(PATIENCE_S)


@contextmanager
def running_witness(*lit: tuple[int, int]) -> Iterator[RunningWitness]:
    """Serve the witness of a device that holds these pairs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="witness")
    thread.start()
    try:
        ocs = device(*lit)
        witness = TrafficWitness(fabric(), [ocs])
        server = WitnessServer(witness)
        address = asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE_S)
        try:
            yield RunningWitness(loop, address, ocs, witness)
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
