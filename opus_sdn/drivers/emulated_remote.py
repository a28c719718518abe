"""The driver of an emulated switch that lives in another process (`opus emulator switches`)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, TypeVar

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    ConflictMode,
    Description,
    DeviceEvent,
    DeviceEventKind,
    Observation,
    PairOutcome,
    PairResult,
    PortState,
    Refusal,
    StaleRevisionError,
    SwitchConfigError,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.event_stream import EventStream
from opus_sdn.drivers.pairs import PortId, place
from opus_sdn.intent.fabric import CrossConnect, Side, Switch

CONNECT_S = 2.0
LINE_MAX_BYTES = 16 * 1024 * 1024

T = TypeVar("T")


def address_of(switch: Switch) -> tuple[str, int] | None:
    """Host and port of the option `address`; None without one. SwitchConfigError when it is none."""
    given = dict(switch.options).get("address")
    if given is None:
        return None
    host, _, port = str(given).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise SwitchConfigError(
            f"switch {switch.name}: option address is {given!r}; "
            "it must be that of an emulator, as 127.0.0.1:7001"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


class RemoteEmulatedDriver:
    """One session with the emulator at host and port, opened when needed and again after it broke."""

    def __init__(self, switch: Switch, host: str, port: int) -> None:
        self._switch = switch
        self._host = host
        self._port = port
        self._closed = False
        self._line: _Line | None = None
        self._opening = asyncio.Lock()
        self._events = EventStream()

    async def describe(self) -> Description:
        """Static facts of the device."""
        said = await self._surely("describe")
        return Description(
            "emulated", said["size"], said["sided"], said["max_inflight"], shutter=True, labels=True
        )

    async def read(self) -> Observation:
        """The table now."""
        said = await self._surely("read")
        return Observation(
            frozenset(_pair(pair) for pair in said["matching"]),
            said["revision"],
            {CrossConnect(ingress, egress): why for ingress, egress, why in said["dark"]},
        )

    async def apply(
        self,
        remove: tuple[CrossConnect, ...],
        add: tuple[CrossConnect, ...],
        epoch: int,
        *,
        mode: ConflictMode = ConflictMode.SAFE,
        expect_revision: str | None = None,
    ) -> Applied:
        """Make the change. A connection that breaks before the answer leaves it to be read."""
        said = await self._ask(
            "apply", remove=remove, add=add, epoch=epoch, mode=mode, expect_revision=expect_revision
        )
        results = (
            PairResult(CrossConnect(ingress, egress), PairOutcome(outcome), removed, reason)
            for ingress, egress, outcome, removed, reason in said["pairs"]
        )
        return Applied(said["dark_ms"], tuple(said["notes"]), tuple(results), said["revision"])

    async def ports(self) -> tuple[PortState, ...]:
        """Every port; nothing measures its power."""
        said = await self._surely("ports")
        return tuple(
            PortState(
                PortId(Side(side), position),
                enabled,
                failed,
                None if in_use is None else _pair(in_use),
                label=label,
            )
            for side, position, enabled, failed, in_use, label in said["ports"]
        )

    async def power(self, ports: Collection[PortId]) -> Mapping[PortId, float]:
        """Refused: the emulated switch has no power monitors."""
        self._refuse_when_closed()
        raise TerminalError(f"{self._switch.name}: has no power monitors", Refusal.UNSUPPORTED)

    async def block(self, ports: Collection[PortId], *, blocked: bool) -> None:
        """Close or open ports at once."""
        await self._ask("block", ports=sorted(ports), blocked=blocked)
        what = "blocked" if blocked else "open"
        for port in sorted(ports):
            self._events.put(DeviceEvent(DeviceEventKind.PORT, f"{place(port)} is {what}", (port,), True))

    async def label(self, labels: Mapping[PortId, str]) -> None:
        """Name ports, at once."""
        await self._ask("label", labels=[(*port, name) for port, name in labels.items()])

    def events(self) -> AsyncIterator[DeviceEvent]:
        """Ports that this session blocked and opened."""
        return self._events.subscribe()

    async def close(self) -> None:
        """End the session; the device keeps its circuits and ends the changes that it has begun."""
        self._closed = True
        self._events.close()
        if self._line is not None:
            self._line.close()

    async def _surely(self, op: str) -> dict[str, Any]:
        """Ask what changes nothing: a lost answer is no doubt about anything."""
        try:
            return await self._ask(op)
        except AmbiguousError as error:
            raise TransientError(error.detail, 0.0) from None

    async def _ask(self, op: str, **more: Any) -> dict[str, Any]:
        self._refuse_when_closed()
        async with self._opening:
            if self._line is None or self._line.broken:
                self._line = await self._connect()
        said = await self._line.ask({"op": op, "switch": self._switch.name, **more})
        if "failed" in said:
            raise _failure(said)
        return said

    async def _connect(self) -> _Line:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=LINE_MAX_BYTES)
        except (OSError, TimeoutError) as failed:
            raise TransientError(
                f"{self._switch.name}: no emulator at {self._host}:{self._port} "
                f"({str(failed) or 'no answer'}); start `opus emulator switches`"
            ) from None
        return _Line(self._switch.name, reader, writer)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise TerminalError(
                f"{self._switch.name}: the session is closed; open a new driver", Refusal.CLOSED
            )


class _Line:
    """One connection: requests go out as they come, answers find theirs by number."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.broken = False
        self._name = name
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer. Raises AmbiguousError when the connection breaks first."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._writer.write(json.dumps({"id": number, **request}).encode() + b"\n")
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """Hang up; what was asked stays without an answer."""
        self._reading.cancel()
        self._end()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                said = json.loads(line)
                answer = self._waiting.get(said["id"])
                if answer is not None and not answer.done():
                    answer.set_result(said)
        except (OSError, ValueError):
            pass  # as the end of the stream
        finally:
            self._end()

    def _end(self) -> None:
        self.broken = True
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(AmbiguousError(f"{self._name}: the emulator hung up before its answer"))


def _failure(said: Mapping[str, Any]) -> TransientError | TerminalError:
    kinds: dict[str, Callable[[], TransientError | TerminalError]] = {
        "stale-revision": lambda: StaleRevisionError(said["detail"]),
        "transient": lambda: TransientError(said["detail"], said["retry_after_s"]),
        "terminal": lambda: TerminalError(
            said["detail"],
            Refusal(said.get("reason", Refusal.REFUSED)),
            tuple(_pair(pair) for pair in said.get("displaced", ())),
        ),
    }
    return kinds[said["failed"]]()


def _pair(given: list[int]) -> CrossConnect:
    return CrossConnect(*given)
