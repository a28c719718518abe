"""The traffic witness over TCP: JSON lines, one request and one answer at a time per connection.

An operation belongs to the connection that began it, and ends with it: when a rank is killed, the kernel
closes its socket, and its traffic has stopped. There is no authentication, therefore only loopback.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from opus_sdn.drivers.witness import CIRCUITS_IN_USE_MAX, OPERATION_ID_MAX, TrafficWitness, WitnessError

LINE_MAX_BYTES = 262_144
CONNECTIONS_MAX = 4096
RANK_MAX = 2**31 - 1


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Begin(_Request):
    op: Literal["begin"]
    id: str = Field(min_length=1, max_length=OPERATION_ID_MAX)
    circuits: list[str] = Field(max_length=CIRCUITS_IN_USE_MAX)
    rank: int = Field(ge=0, le=RANK_MAX)


class _End(_Request):
    op: Literal["end"]
    id: str = Field(min_length=1, max_length=OPERATION_ID_MAX)


class _Report(_Request):
    op: Literal["report"]


_REQUEST: TypeAdapter[_Begin | _End | _Report] = TypeAdapter(
    Annotated[_Begin | _End | _Report, Field(discriminator="op")]
)


class WitnessServer:
    """Serves one witness on a loopback address. Runs on the loop that drives the switches."""

    def __init__(self, witness: TrafficWitness, host: str = "127.0.0.1", port: int = 0) -> None:
        if not ipaddress.ip_address(host).is_loopback:
            raise ValueError(f"host is {host}; right would be a loopback address, as anybody may connect")
        self._witness = witness
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self) -> str:
        """Listen; returns the address as `host:port`, for the variable OPUS_WITNESS."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self._witness, self._connections), self._host, self._port
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening and drop all connections; what they had begun counts as abandoned."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.drop()
        await self._server.wait_closed()
        self._server = None


class _Connection(asyncio.Protocol):
    """One client. A protocol, not a stream: a vanished client is seen as soon as its socket closes."""

    def __init__(self, witness: TrafficWitness, connections: set[_Connection]) -> None:
        self._witness = witness
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._begun: set[str] = set()
        self._client_reads = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: the transports of uvloop are such without saying so.
        self._transport = cast(asyncio.Transport, transport)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._refuse(f"{CONNECTIONS_MAX} connections are open, which is the most")
            return
        self._connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._connections.discard(self)
        for op_id in self._begun:
            self._witness.abandon(op_id)
        self._begun.clear()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._answer_lines()

    def pause_writing(self) -> None:
        # A client that asks and does not read gets no further answers, so that they cannot pile up.
        self._client_reads = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._client_reads = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._answer_lines()

    def drop(self) -> None:
        """Close without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()

    def _answer_lines(self) -> None:
        assert self._transport is not None
        while self._client_reads and not self._transport.is_closing():
            end = self._buffer.find(b"\n", 0, LINE_MAX_BYTES + 1)
            if end < 0:
                if len(self._buffer) > LINE_MAX_BYTES:
                    self._refuse(f"the line is longer than {LINE_MAX_BYTES} bytes")
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._write(self._answer(line))

    def _answer(self, line: bytes) -> dict[str, object]:
        try:
            request = _REQUEST.validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            return _error(f"{where}: {first['msg']}; the value is {str(first['input'])[:100]!r}")
        try:
            if isinstance(request, _Report):
                return self._witness.report()
            if isinstance(request, _Begin):
                self._witness.begin(request.id, request.circuits, request.rank)
                self._begun.add(request.id)
            else:
                self._end(request.id)
        except WitnessError as error:
            return _error(str(error))
        return {"ok": True}

    def _end(self, op_id: str) -> None:
        if op_id not in self._begun:
            raise WitnessError(f"operation {op_id!r} is not active on this connection; begin it here first")
        self._begun.discard(op_id)
        self._witness.end(op_id)

    def _refuse(self, why: str) -> None:
        """Say why and hang up: after this nobody knows where the next line begins."""
        self._write(_error(why))
        assert self._transport is not None
        self._transport.close()

    def _write(self, answer: dict[str, object]) -> None:
        assert self._transport is not None
        self._transport.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")


def _error(why: str) -> dict[str, object]:
    return {"ok": False, "error": why}
