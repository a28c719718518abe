"""What every request has: an id, and a host name that is this machine's.

Pure ASGI: a middleware that wraps requests and responses in objects of its own would cost the hot route more
than the route itself.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opus_sdn.api import problems
from opus_sdn.intent.errors import CoreError, Problem

logger = logging.getLogger(__name__)

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
LOOPBACK_HOSTS_KEPT = 16


class RequestContext:
    """Gives each request its id, refuses names of other machines, and answers for our bugs.

    As there are no tokens, a web page that resolves its own name to this machine could command the switches
    through a visitor's browser. Such requests carry the page's host name; ours carry a loopback one.
    """

    def __init__(self, app: ASGIApp, start: int) -> None:
        self._app = app
        self._prefix = f"{start:x}-"
        self._numbers = itertools.count(1)
        self._loopback_hosts: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, host = None, b""
        for name, value in scope["headers"]:
            if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
                request_id = value.decode("ascii")
            elif name == b"host":
                host = value
        if request_id is None:
            request_id = f"{self._prefix}{next(self._numbers):x}"
        scope["opus.request_id"] = request_id
        if host not in self._loopback_hosts and not self._is_loopback(host):
            refusal = CoreError(
                Problem.INVALID_REQUEST,
                f"the Host header is {host.decode('latin-1')[:100]!r}: this controller answers to loopback "
                "names only, as 127.0.0.1, [::1] or localhost",
                field="header.Host",
            )
            await problems.of_core(refusal, instance=scope["path"], request_id=request_id)(
                scope, receive, send
            )
            return
        header = (b"x-request-id", request_id.encode("ascii"))
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if header not in message["headers"]:
                    message["headers"] = [*message["headers"], header]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            # A bug of ours ends this request and nothing else. It is logged once, here.
            logger.exception("request failed", extra={"request_id": request_id, "path": scope["path"]})
            if started:
                raise
            await problems.bug(scope["path"], request_id)(scope, receive, send)

    def _is_loopback(self, host: bytes) -> bool:
        """Whether a Host header names this machine by a loopback name; the first few are remembered."""
        if not host:
            return True  # no browser leaves it out
        name = host.decode("latin-1").lower()
        name = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
        try:
            known = name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            known = False
        if known and len(self._loopback_hosts) < LOOPBACK_HOSTS_KEPT:
            self._loopback_hosts.add(host)
        return known
