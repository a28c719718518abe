"""Tells the traffic witness which circuits an operation uses, and when it has finished.

Standard library only. One request and its answer at a time, from any thread; a forked child never touches the
socket of its parent and connects anew when it has something to say.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Any

ANSWER_MAX_BYTES = 16 * 1024 * 1024


class WitnessError(Exception):
    """The witness refused a request or cannot be reached; what it has seen since is not complete."""


class WitnessClient:
    """Connection to a witness at `host:port`, made at the first request and again after it broke.

    Calls block until the witness has answered, at most `timeout_s` seconds. A connection that breaks takes
    its active operations with it: the witness counts them as abandoned. Nothing is sent twice.
    """

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        self._host, self._port = _parse(address)
        self._address = address
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        _clients.add(self)

    def begin(self, op_id: str, circuits: Sequence[str], rank: int) -> None:
        """Say that `rank` is about to use these circuits; call before the operation is issued."""
        self._ask({"op": "begin", "id": op_id, "circuits": list(circuits), "rank": rank})

    def end(self, op_id: str) -> None:
        """Say that the operation has finished on the device; call before the controller is told so."""
        self._ask({"op": "end", "id": op_id})

    def report(self) -> dict[str, Any]:
        """What the witness has seen: violations, operations ever begun, operations active now."""
        return self._ask({"op": "report"})

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        with self._lock:
            self._drop()

    def forget_parent(self) -> None:
        """In a forked child: let go of the parent's socket, and of a lock that its threads may hold."""
        self._lock = threading.Lock()
        self._drop()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                answer = self._exchange(line)
            except (OSError, ValueError) as error:
                # An answer that comes late would be taken for that of the next request.
                self._drop()
                raise WitnessError(
                    f"witness at {self._address}: no answer to {request['op']}: {error}"
                ) from error
            except BaseException:
                self._drop()
                raise
        if answer.get("ok") is False:
            raise WitnessError(f"witness at {self._address} refused {request['op']}: {answer.get('error')}")
        return answer

    def _exchange(self, line: bytes) -> dict[str, Any]:
        if self._socket is None:
            self._socket = socket.create_connection((self._host, self._port), self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(line)
        received = bytearray()
        while not received.endswith(b"\n"):
            part = self._socket.recv(65_536)
            if not part:
                raise ConnectionError("the witness closed the connection")
            received += part
            if len(received) > ANSWER_MAX_BYTES:
                raise ValueError(f"the answer is longer than {ANSWER_MAX_BYTES} bytes")
        answer = json.loads(received)
        if not isinstance(answer, dict):
            raise ValueError(f"the answer is {answer!r:.100}; right would be a JSON object")
        return answer

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _parse(address: str) -> tuple[str, int]:
    """Split `host:port` or `[ipv6]:port`."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(
            f"witness address is {address!r}; right would be host:port, for example 127.0.0.1:8701"
        )
    return host, int(port)


_clients: weakref.WeakSet[WitnessClient] = weakref.WeakSet()


def _forget_in_child() -> None:
    for client in list(_clients):
        client.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
