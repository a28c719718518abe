"""Emulated switches in a process of their own, as a real switch is no part of its controller.

They keep their light when the controller is gone, carry out what they have accepted, and are watched by the
traffic witness from their own side.

JSON lines over TCP; requests on one connection may be answered in another order, each with its `id`. There is
no authentication, therefore only loopback.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from opus_sdn.drivers.base import (
    ConflictMode,
    DriverError,
    Refusal,
    StaleRevisionError,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch
from opus_sdn.drivers.pairs import PortId
from opus_sdn.intent.fabric import CrossConnect, Side, Switch

LINE_MAX_BYTES = 4 * 1024 * 1024
CONNECTIONS_MAX = 256
UNDER_WAY_MAX = 1024  # requests of one connection that are not answered yet

_Pair = tuple[int, int]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: int
    switch: str = Field(max_length=256)


class _Ask(_Request):
    op: Literal["describe", "read", "ports", "operations"]


class _Apply(_Request):
    op: Literal["apply"]
    remove: list[_Pair]
    add: list[_Pair]
    epoch: int
    mode: ConflictMode = ConflictMode.SAFE
    expect_revision: str | None = None


class _Block(_Request):
    op: Literal["block"]
    ports: list[tuple[Side, int]]
    blocked: bool


class _Label(_Request):
    op: Literal["label"]
    labels: list[tuple[Side, int, str]]


_REQUEST: TypeAdapter[_Ask | _Apply | _Block | _Label] = TypeAdapter(
    Annotated[_Ask | _Apply | _Block | _Label, Field(discriminator="op")]
)


class EmulatorServer:
    """Serves these switches, whose state lives as long as it does. Runs on one event loop."""

    def __init__(self, switches: Iterable[Switch], host: str = "127.0.0.1", port: int = 0) -> None:
        if not ipaddress.ip_address(host).is_loopback:
            raise ValueError(f"host is {host}; right would be a loopback address, as anybody may connect")
        self.devices = {switch.name: EmulatedSwitch(switch) for switch in switches}
        self._drivers = {name: EmulatedDriver(device) for name, device in self.devices.items()}
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen; the address as `host:port`, for the option `address` of the switches."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=LINE_MAX_BYTES)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._writers.add(writer)
        under_way = asyncio.Semaphore(UNDER_WAY_MAX)
        try:
            while line := await reader.readline():
                await under_way.acquire()
                # A request that was read is carried out, whether or not anybody waits for its answer.
                task = asyncio.get_running_loop().create_task(self._one(line, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                task.add_done_callback(lambda _: under_way.release())
        except (ConnectionError, ValueError):
            pass  # gone, or a line without an end
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = _REQUEST.validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            answer = {"id": 0, "failed": "terminal", "detail": f"{where}: {first['msg']}"}
        else:
            answer = {"id": request.id, **await self._answer(request)}
        if not writer.is_closing():
            writer.write(to_json(answer) + b"\n")

    async def _answer(self, request: _Ask | _Apply | _Block | _Label) -> dict[str, Any]:
        driver = self._drivers.get(request.switch)
        if driver is None:
            known = ", ".join(sorted(self._drivers))
            wrong = f"switch {request.switch!r} is unknown to this emulator; it has: {known}"
            return {"failed": "terminal", "detail": wrong, "reason": Refusal.WRONG_DEVICE}
        try:
            return await self._do(request, driver)
        except StaleRevisionError as error:
            return {"failed": "stale-revision", "detail": error.detail}
        except TransientError as error:
            return {"failed": "transient", "detail": error.detail, "retry_after_s": error.retry_after_s}
        except TerminalError as error:
            return {
                "failed": "terminal",
                "detail": error.detail,
                "reason": error.reason,
                "displaced": error.displaced,
            }
        except DriverError as error:
            return {"failed": "terminal", "detail": error.detail}

    async def _do(self, request: _Ask | _Apply | _Block | _Label, driver: EmulatedDriver) -> dict[str, Any]:
        match request:
            case _Apply():
                applied = await driver.apply(
                    _pairs(request.remove),
                    _pairs(request.add),
                    request.epoch,
                    mode=request.mode,
                    expect_revision=request.expect_revision,
                )
                return {
                    "dark_ms": applied.dark_ms,
                    "notes": applied.notes,
                    "pairs": [(*r.pair, r.outcome, r.removed, r.reason) for r in applied.pairs],
                    "revision": applied.revision,
                }
            case _Block():
                await driver.block([PortId(*port) for port in request.ports], blocked=request.blocked)
                return {}
            case _Label():
                await driver.label({PortId(side, position): name for side, position, name in request.labels})
                return {}
        return await self._tell(request, driver)

    async def _tell(self, request: _Ask, driver: EmulatedDriver) -> dict[str, Any]:
        if request.op == "describe":
            found = await driver.describe()
            return {"size": found.size, "sided": found.sided, "max_inflight": found.max_inflight}
        if request.op == "read":
            seen = await driver.read()
            dark = [(*pair, why) for pair, why in seen.dark.items()]
            return {"matching": sorted(seen.matching), "revision": seen.revision, "dark": dark}
        if request.op == "ports":
            ports = await driver.ports()
            return {"ports": [(*p.port, p.enabled, p.failed, p.in_use, p.label) for p in ports]}
        operations = driver.device.operations
        return {"operations": [(o.at, o.epoch, o.remove, o.add, o.refused) for o in operations]}


def _pairs(given: Iterable[_Pair]) -> tuple[CrossConnect, ...]:
    return tuple(CrossConnect(*pair) for pair in given)
