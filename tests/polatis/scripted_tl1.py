"""A TL1 device of a few lines: answers each command as a test says, byte for byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from opus_sdn.drivers.polatis.options import Credentials, PolatisOptions
from opus_sdn.drivers.polatis.tl1 import Tl1Transport

PASSWORD = "Zq8-kept-secret"
Answering = Callable[[str, "Connection"], Awaitable[bytes | None]]


def answer(tag: str, completion: str, *lines: str, sid: str = "OCS", code: str = "") -> bytes:
    """A reply block in the layout that real clients' patterns fit."""
    middle = (f"   {code}\r\n" if code else "") + "".join(f'   "{line}"\r\n' for line in lines)
    return f"\r\n\r\n   {sid} 26-11-30 12:00:00\r\nM  {tag} {completion}\r\n{middle};".encode()


def unasked(*lines: str, what: str = "REPT EVT EQPT", sid: str = "OCS") -> bytes:
    """A message that the device sends on its own."""
    middle = "".join(f'   "{line}"\r\n' for line in lines)
    return f"\r\n\r\n   {sid} 26-11-30 12:00:00\r\nA  7 {what}\r\n{middle};".encode()


class Connection:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer


class ScriptedTl1:
    """Answers by the verb of a command; `heard` are all commands. What has no entry is COMPLD without text.

    An entry is the answer's lines, or a coroutine function of (tag, connection) that returns raw bytes; None:
    no answer.
    """

    def __init__(self, **answers: tuple[str, ...] | Answering) -> None:
        self.heard: list[str] = []
        self.connections = 0
        self.answers = {name.replace("_", "-"): value for name, value in answers.items()}
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = Connection(reader, writer)
        try:
            while True:
                command = (await reader.readuntil(b";")).decode().strip()
                self.heard.append(command)
                tag = command.split(":")[3].rstrip(";")
                found = self.answers.get(command.partition(":")[0], ())
                said = (
                    answer(tag, "COMPLD", *found)
                    if isinstance(found, tuple)
                    else await found(tag, connection)
                )
                if said is not None:
                    writer.write(said)
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def without_login(self) -> list[str]:
        """What was heard, with `N` for every tag."""
        return [re.sub(r"^((?:[^:]*:){3})\d+", r"\1N", c) for c in self.heard if not c.startswith("ACT-USER")]


@asynccontextmanager
async def tl1_to(
    device: ScriptedTl1,
    *,
    told: list[str] | None = None,
    user: str = "opus",
    password: str = PASSWORD,
    timeout_s: float = 2.0,
) -> AsyncIterator[Tl1Transport]:
    """The client, connected to this device."""
    server = await asyncio.start_server(device.serve, "127.0.0.1", 0)
    device.port = server.sockets[0].getsockname()[1]
    options = PolatisOptions(
        host="127.0.0.1", tl1_port=device.port, user=user, password_env="X", timeout_s=timeout_s
    )
    transport = Tl1Transport(options, Credentials(user, password), (told if told is not None else []).append)
    try:
        yield transport
    finally:
        await transport.renew()
        server.close()
        await server.wait_closed()
