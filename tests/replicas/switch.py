"""One emulated switch for several controller processes: it lives in the test, they reach it by a socket.

The device records every request with the epoch that it carries, and when it came.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    ConflictMode,
    Description,
    DeviceEvent,
    DriverError,
    Observation,
    PortId,
    PortState,
)
from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch, Operation
from opus_sdn.intent.fabric import CrossConnect, Switch

T = TypeVar("T")


class SharedSwitch:
    """The device on an event loop of its own, in a thread, until `close`."""

    def __init__(self, switch: Switch, path: Path) -> None:
        self.device = EmulatedSwitch(switch)
        self.device.operations = deque()  # all of them, however many
        self.path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shared-switch", daemon=True)
        self._thread.start()
        self._driver = EmulatedDriver(self.device)
        starting = asyncio.start_unix_server(self._serve, path)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    def do(self, act: Callable[[], T]) -> T:
        """Call something of the device's world on its own thread."""

        async def call() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def operations(self) -> tuple[Operation, ...]:
        """Every request that reached the device, oldest first."""
        return tuple(self.device.operations)

    def close(self) -> None:
        """Switch it off."""
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                name, args = pickle.loads(await reader.readexactly(size))
                try:
                    answer: object = await getattr(self._driver, name)(*args)
                    if isinstance(answer, Observation):
                        answer = (answer.matching, answer.revision)
                except DriverError as failed:
                    answer = failed
                content = pickle.dumps(answer)
                writer.write(len(content).to_bytes(4, "big") + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class SharedSwitchDriver:
    """A controller's session with it; each call has a connection of its own."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def describe(self) -> Description:
        return await self._call("describe")

    async def read(self) -> Observation:
        found = await self._call("read")
        return Observation(found[0], found[1])

    async def apply(
        self,
        remove: tuple[CrossConnect, ...],
        add: tuple[CrossConnect, ...],
        epoch: int,
        *,
        mode: ConflictMode = ConflictMode.SAFE,
        expect_revision: str | None = None,
    ) -> Applied:
        assert (mode, expect_revision) == (ConflictMode.SAFE, None)
        return await self._call("apply", remove, add, epoch)

    async def ports(self) -> tuple[PortState, ...]:
        return ()

    async def power(self, ports: Collection[PortId]) -> Mapping[PortId, float]:
        return {}

    async def block(self, ports: Collection[PortId], *, blocked: bool) -> None:
        return

    async def label(self, labels: Mapping[PortId, str]) -> None:
        return

    async def events(self) -> AsyncIterator[DeviceEvent]:
        return
        yield

    async def close(self) -> None:
        return

    async def _call(self, name: str, *args: object) -> Any:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
            content = pickle.dumps((name, args))
            writer.write(len(content).to_bytes(4, "big") + content)
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = pickle.loads(await reader.readexactly(size))
            writer.close()
        except (OSError, asyncio.IncompleteReadError) as failed:
            raise AmbiguousError(f"the switch's socket: {failed}") from None
        if isinstance(answer, DriverError):
            raise answer
        return answer
