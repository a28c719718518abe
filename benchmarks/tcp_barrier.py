"""The limit: a barrier over bare TCP that does nothing else. Server process and client.

Protocol: every client sends one byte per round; when all have, everybody gets one byte.
"""

from __future__ import annotations

import asyncio
import socket
import sys


async def serve(clients: int) -> None:
    """Serve rounds to `clients` connections until they close; prints the port it took."""
    writers: list[asyncio.StreamWriter] = []
    arrived = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        writers.append(writer)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while await reader.read(1):
            arrived += 1
            if arrived == clients:
                arrived = 0
                for each in writers:
                    each.write(b"g")

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


class BarrierClient:
    """One participant."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def arrive(self) -> None:
        """Say that this participant is there."""
        self._socket.sendall(b"a")

    def wait(self) -> None:
        """Wait until all are."""
        self._socket.recv(1)

    def close(self) -> None:
        """Leave."""
        self._socket.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
