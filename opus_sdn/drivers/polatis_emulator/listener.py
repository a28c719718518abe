"""A listening address that can be taken away and put back, with the connections that came through it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

Serve = Callable[["Connection"], Awaitable[None]]

CLOSE_S = 2.0
# Linger of zero seconds: closing resets the connection instead of ending it in order.
_RESET = struct.pack("ii", 1, 0)


class Connection:
    """One client's socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.peer = _peer(writer)
        self.gone = False
        self._writer = writer

    async def send(self, data: bytes, segment: int | None = None) -> None:
        """Send these bytes; with `segment` in pieces of at most so many bytes, each a packet of its own."""
        if self.gone:
            return
        try:
            if segment is None:
                self._writer.write(data)
                await self._writer.drain()
                return
            for begin in range(0, len(data), segment):
                self._writer.write(data[begin : begin + segment])
                await self._writer.drain()
                await asyncio.sleep(0)
        except (ConnectionError, TimeoutError):
            self.gone = True

    def reset(self) -> None:
        """End the connection at once; the client gets an error where it waits for bytes."""
        self.gone = True
        with contextlib.suppress(OSError, AttributeError):
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()

    async def close(self) -> None:
        """End the connection in order."""
        self.gone = True
        self._writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError):
            await asyncio.wait_for(self._writer.wait_closed(), CLOSE_S)


class Listener:
    """Takes connections at one address. The port stays ours while nobody may connect."""

    def __init__(
        self, serve: Serve, host: str, port: int, tls: ssl.SSLContext | None = None, line_max: int = 65_536
    ) -> None:
        self._serve = serve
        self._host = host
        self._tls = tls
        self._line_max = line_max
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = port
        self.connections: list[Connection] = []

    @property
    def address(self) -> str:
        """`host:port`, with the host in brackets where it has colons."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether new connections are taken."""
        return self._server is not None

    async def open(self) -> None:
        """Take connections; the first time on any free port when none was given."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accept, self._host, self.port, ssl=self._tls, limit=self._line_max
            )
            self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        """Reset every open connection."""
        for connection in list(self.connections):
            connection.reset()

    async def close(self) -> None:
        """Refuse new connections, drop the open ones, and wait until nothing runs any more."""
        self.shut()
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(reader, writer)
        self._tasks.add(task)
        self.connections.append(connection)
        try:
            with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                await self._serve(connection)
            if not connection.gone:
                await connection.close()
        except asyncio.CancelledError:
            connection.reset()
        finally:
            self._tasks.discard(task)
            self.connections.remove(connection)


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if name else ""
