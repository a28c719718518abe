"""HTTP to the controller, with the standard library alone: one kept connection per caller, JSON both ways.

Every call of the controller's API may be repeated without harm, so a connection that broke is replaced and
the request sent again. Proxies of the environment are not used: a rank's grants must not depend on them.
A forked child never writes to its parent's sockets: it closes its copies and connects anew.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opus_sdn.intent.errors import Problem
from opus_sdn.shim.errors import ControllerError, ControllerUnavailableError, SettingsError
from opus_sdn.shim.settings import Address
from opus_sdn.shim.whereabouts import Whereabouts

ANSWER_MAX_BYTES = 32 * 1024 * 1024
DETAIL_MAX_CHARS = 2000
IDLE_CONNECTIONS_MAX = 8
CONNECT_S_MAX = 5.0
NO_CONTENT = 204
NOT_READY = 503  # the one refusal that passes by itself
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0

# What sending and receiving raise when the exchange came to nothing.
BROKEN = (OSError, http.client.HTTPException)


class Connection:
    """One kept connection. `send`, then wait for `fileno` to become readable, then `receive`.

    Split in two so that one thread can keep a long poll open and still send news on a second connection.
    """

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
        agent: Path | None = None,
    ) -> None:
        """`agent`: the Unix socket of the host's agent, which speaks to the controller instead."""
        self.address = address
        self._agent = agent
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = f"Host: {str(address).partition('//')[2]}\r\n{lines}"
        self._tls = tls
        self._socket: socket.socket | None = None
        self.used = False  # an answer has come over it, so a break may only mean that it was idle too long

    def fileno(self) -> int:
        """The socket's descriptor, for select; -1 when not connected."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def must_warm_up(self) -> bool:
        """Whether the next answer has to come at once.

        After a TLS handshake the server sends session tickets: the socket is readable, but no answer there.
        """
        return self._tls is not None and not self.used

    def send(self, method: str, path: str, body: bytes | None, timeout_s: float) -> None:
        """Send a whole request in one piece, connecting first where needed. Raises OSError."""
        link = self._socket if self._socket is not None else self._connect(min(timeout_s, CONNECT_S_MAX))
        link.settimeout(timeout_s)
        length = f"Content-Length: {len(body)}\r\n" if body is not None else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{length}\r\n"
        link.sendall(head.encode("ascii") + (body or b""))

    def receive(self) -> tuple[int, bytes]:
        """Read the whole answer. Raises OSError or HTTPException; the connection is of no use after that."""
        assert self._socket is not None
        with http.client.HTTPResponse(self._socket) as answer:
            answer.begin()
            body = answer.read(ANSWER_MAX_BYTES + 1)
        if len(body) > ANSWER_MAX_BYTES:
            raise http.client.HTTPException(f"the answer has more than {ANSWER_MAX_BYTES} bytes")
        if answer.length:
            raise http.client.IncompleteRead(body, answer.length)
        self.used = True
        if answer.will_close:
            self.close()
        return answer.status, body

    def close(self) -> None:
        """Close the socket; the next `send` connects again."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.used = False

    def _connect(self, timeout_s: float) -> socket.socket:
        if self._agent is not None:
            return self._connect_agent(self._agent, timeout_s)
        host = self.address.host
        link = socket.create_connection((host, self.address.port), timeout_s)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                link = self._tls.wrap_socket(link, server_hostname=host)
        except BaseException:
            link.close()
            raise
        self._socket = link
        return link

    def _connect_agent(self, path: Path, timeout_s: float) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.settimeout(timeout_s)
            link.connect(str(path))
        except BaseException:
            link.close()
            raise
        self._socket = link
        return link


class ControllerClient:
    """Requests to the controller, from any thread. `timeout_s` bounds one attempt, not the retries.

    With `others` there are several controllers, of which one leads: requests follow it.
    """

    def __init__(
        self,
        address: Address,
        token: str | None = None,
        ca_file: Path | None = None,
        timeout_s: float = 10.0,
        others: tuple[Address, ...] = (),
        agent: Path | None = None,
    ) -> None:
        """`agent`: requests go through the agent of this host, by its Unix socket."""
        self._agent = agent
        self.where = Whereabouts(address, others)
        self.timeout_s = timeout_s
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        tls = agent is None and any(each.tls for each in (address, *others))
        self._tls = _tls_context(ca_file) if tls else None
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        _clients.add(self)

    def __repr__(self) -> str:
        return f"ControllerClient({self.address})"

    @property
    def address(self) -> Address:
        """Where the next request goes."""
        return self.where.now

    def connection(self) -> Connection:
        """A connection of the caller's own, outside the pool."""
        address = self.address
        connection = Connection(address, self._headers, self._tls if address.tls else None, self._agent)
        self._all.add(connection)
        return connection

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        retry_s: float = 0.0,
    ) -> dict[str, Any]:
        """Ask and return the answer's JSON object, trying again for `retry_s` seconds while nobody answers.

        Raises ControllerError when the controller refused, ControllerUnavailableError when it did not answer.
        """
        data = encode(body) if body is not None else None
        attempt_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + retry_s
        pause_s = BACKOFF_FIRST_S
        moves = self.where.count + 1  # without a pause: every address once, and the leader
        while True:
            asked = self.address
            try:
                return self._attempt(method, path, data, attempt_s)
            except (ControllerUnavailableError, ControllerError) as failed:
                left = deadline - time.monotonic()
                passing = self.passes(failed, asked)
                if passing and self.address != asked and moves > 0:
                    moves -= 1
                    continue
                if left <= 0 or not passing:
                    raise
            time.sleep(min(left, jittered(pause_s)))
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    def passes(self, failed: Exception, asked: Address) -> bool:
        """Whether asking again may help, and where: the controller asked may not lead, or not be there."""
        if not isinstance(failed, ControllerError):
            self.where.useless(asked)
            return True
        if failed.problem == Problem.NOT_LEADER:
            if not self.where.leads(failed.data.get("leader")):
                self.where.useless(asked)
            return True
        if failed.status == NOT_READY:
            self.where.useless(asked)
            return True
        return False

    def close(self) -> None:
        """Close all idle connections; the client may still be used."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def forget_parent(self) -> None:
        """In a forked child: close the copies of the parent's sockets; its threads may have held the lock."""
        self._lock = threading.Lock()
        self._idle = []
        for connection in list(self._all):
            connection.close()

    def _attempt(self, method: str, path: str, data: bytes | None, timeout_s: float) -> dict[str, Any]:
        """One exchange; a kept connection that turns out to be closed is replaced once, for nothing came."""
        while True:
            with self._lock:
                while self._idle and self._idle[-1].address != self.address:
                    self._idle.pop().close()
                connection = self._idle.pop() if self._idle else self.connection()
            kept = connection.used
            try:
                connection.send(method, path, data, timeout_s)
                status, body = connection.receive()
            except BROKEN as failed:
                connection.close()
                if kept and not isinstance(failed, TimeoutError):
                    continue
                raise unavailable(connection.address, f"{method} {path}", failed) from None
            except BaseException:
                connection.close()
                raise
            with self._lock:
                spare = len(self._idle) >= IDLE_CONNECTIONS_MAX
                if not spare:
                    self._idle.append(connection)
            if spare:
                connection.close()
            return decode(connection.address, f"{method} {path}", status, body)


def encode(body: Mapping[str, Any]) -> bytes:
    """A JSON request body."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def decode(address: Address, what: str, status: int, body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; raises ControllerError for a refusal, with the problem's own words."""
    try:
        answer = {} if status == NO_CONTENT else json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ControllerUnavailableError(
            f"controller at {address}: {what} was answered with status {status} and no JSON object; "
            "does OPUS_CONTROLLER name the controller itself?"
        )
    if 200 <= status < 300:
        return answer
    kind = str(answer.pop("type", "")).rpartition(":")[2] or f"http-{status}"
    detail = str(answer.pop("detail", answer.get("title", "no reason given")))[:DETAIL_MAX_CHARS]
    for member in ("title", "status", "instance"):
        answer.pop(member, None)
    raise ControllerError(kind, status, detail, answer)


def unavailable(address: Address, what: str, cause: BaseException) -> ControllerUnavailableError:
    """The error for an exchange that broke; `what` names the request."""
    reason = str(cause) or type(cause).__name__
    return ControllerUnavailableError(f"controller at {address} did not answer {what}: {reason}")


def jittered(pause_s: float) -> float:
    """A pause that differs between ranks, so that a restarted controller is not asked by all at once."""
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
    except (OSError, ssl.SSLError) as failed:
        raise SettingsError(
            f"OPUS_CA_FILE: is {str(ca_file)!r}, which holds no usable certificates ({failed}); "
            "name a PEM file with the controller's certificate authority"
        ) from None


_clients: weakref.WeakSet[ControllerClient] = weakref.WeakSet()


def _forget_in_child() -> None:
    for client in list(_clients):
        client.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
