"""A server of raw bytes: answers what the test tells it to, connection by connection, request by request."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

# What becomes of one request: bytes to answer with, and whether the connection is kept.
Deed = Callable[[socket.socket, bytes], bool]


def answer(body: bytes = b"{}", status: int = 200, keep: bool = True, head: bytes = b"") -> Deed:
    """A well-formed answer."""

    def deed(link: socket.socket, _: bytes) -> bool:
        link.sendall(b"HTTP/1.1 %d x\r\n%sContent-Length: %d\r\n\r\n%s" % (status, head, len(body), body))
        return keep

    return deed


def raw(data: bytes, keep: bool = False) -> Deed:
    """These bytes and nothing else."""

    def deed(link: socket.socket, _: bytes) -> bool:
        link.sendall(data)
        return keep

    return deed


class ScriptedServer:
    """Serves `deeds`, in order over all connections; the last one is repeated."""

    def __init__(self, *deeds: Deed, tls: ssl.SSLContext | None = None) -> None:
        self.deeds = list(deeds)
        self.requests: list[bytes] = []
        self.connections = 0
        self.over = threading.Event()
        self._tls = tls
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> ScriptedServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError), link:
            if self._tls is not None:
                link = self._tls.wrap_socket(link, server_side=True)
            while (request := _read(link)) is not None:
                with self._lock:
                    self.requests.append(request)
                    deed = self.deeds.pop(0) if len(self.deeds) > 1 else self.deeds[0]
                if not deed(link, request):
                    break
            link.close()


def _read(link: socket.socket) -> bytes | None:
    """One request with its body; None when the client has closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = link.recv(65536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(body) < length:
        body += link.recv(65536)
    return head + b"\r\n\r\n" + body
