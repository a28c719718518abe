"""HTTP/1.1 as a small device speaks it, on h11: every byte of an answer can be held back, cut or reset."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import h11

from opus_sdn.drivers.polatis_emulator.listener import Connection

BODY_MAX_BYTES = 4 * 1024 * 1024
IDLE_S = 120.0
READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `path` without the query; header names in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    peer: str


class Fate(enum.Enum):
    """What becomes of an answer on its way."""

    SENT = enum.auto()
    LOST = enum.auto()  # never sent; the connection stays open
    RESET = enum.auto()  # never sent; the connection is reset
    TRUNCATED = enum.auto()  # half of it, then the connection ends
    IGNORED = enum.auto()  # as LOST, and so is whatever else comes over this connection


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; `raw` replaces all of it by other bytes."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    fate: Fate = Fate.SENT
    raw: bytes | None = None
    keep_alive: bool = True
    segment: int | None = None


Handler = Callable[[Request], Awaitable[Answer]]


async def serve(connection: Connection, handler: Handler) -> None:
    """Answer requests of one connection, one after the other, until either side has had enough."""
    machine = h11.Connection(h11.SERVER)
    while True:
        try:
            request = await _next(connection, machine)
        except h11.RemoteProtocolError as wrong:
            await _refuse(connection, machine, wrong.error_status_hint)
            return
        if request is None:
            return
        answer = await handler(request)
        if not await _send(connection, machine, request, answer):
            return
        machine.start_next_cycle()


async def _next(connection: Connection, machine: h11.Connection) -> Request | None:
    """The next whole request; None when the client has gone or is too slow."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = machine.next_event()
        if event is h11.NEED_DATA:
            if machine.they_are_waiting_for_100_continue:
                await connection.send(
                    machine.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
                )
            try:
                data = await asyncio.wait_for(connection.reader.read(READ_BYTES), IDLE_S)
            except TimeoutError:
                return None
            machine.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_MAX_BYTES:
                raise h11.RemoteProtocolError("body too large", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            path, _, query = head.target.decode("latin-1").partition("?")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            return Request(head.method.decode("latin-1"), path, query, headers, bytes(body), connection.peer)
        else:
            return None


async def _send(connection: Connection, machine: h11.Connection, request: Request, answer: Answer) -> bool:
    """Send the answer, as far as it is to arrive; whether the connection can be used again."""
    if answer.fate is Fate.RESET:
        connection.reset()
        return False
    if answer.fate in (Fate.LOST, Fate.IGNORED):
        await _drain(connection)
        return False
    if answer.raw is not None:
        await connection.send(answer.raw, answer.segment)
        return False
    headers = [*answer.headers.items()]
    if answer.body:
        headers.append(("transfer-encoding", "chunked"))
    elif answer.status not in (204, 304):
        headers.append(("content-length", "0"))
    if not answer.keep_alive:
        headers.append(("connection", "close"))
    data = (
        machine.send(h11.Response(status_code=answer.status, headers=headers, reason=_reason(answer.status)))
        or b""
    )
    if answer.body and request.method != "HEAD":
        data += machine.send(h11.Data(data=answer.body)) or b""
    data += machine.send(h11.EndOfMessage()) or b""
    if answer.fate is Fate.TRUNCATED:
        await connection.send(data[: len(data) // 2], answer.segment)
        return False
    await connection.send(data, answer.segment)
    return machine.our_state is h11.DONE and machine.their_state is h11.DONE and not connection.gone


def _reason(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()


async def _drain(connection: Connection) -> None:
    """Leave the client waiting until it goes; what it sends meanwhile goes nowhere."""
    while await connection.reader.read(READ_BYTES):
        continue


async def _refuse(connection: Connection, machine: h11.Connection, status: int) -> None:
    if machine.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    head = h11.Response(status_code=status, headers=[("content-length", "0"), ("connection", "close")])
    await connection.send((machine.send(head) or b"") + (machine.send(h11.EndOfMessage()) or b""))
