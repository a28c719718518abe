"""The RESTCONF door: who asks, what is asked, and what becomes of the answer."""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from opus_sdn.drivers.polatis_emulator import http
from opus_sdn.drivers.polatis_emulator.device import Actor, Device
from opus_sdn.drivers.polatis_emulator.faults import Door, ReplyFault, ReplyKind, ReplyScript
from opus_sdn.drivers.polatis_emulator.http import Answer, Fate, Request
from opus_sdn.drivers.polatis_emulator.listener import Connection
from opus_sdn.drivers.polatis_emulator.refusals import RefusalError, Why
from opus_sdn.drivers.polatis_emulator.restconf_circuits import CONTAINER, Circuits
from opus_sdn.drivers.polatis_emulator.restconf_settings import Settings, as_problem
from opus_sdn.drivers.polatis_emulator.restconf_tree import Found, Tree
from opus_sdn.drivers.polatis_emulator.restconf_wire import (
    JSON_TYPE,
    XML_TYPE,
    HttpProblem,
    Segment,
    malformed,
    not_found,
    parse_body,
    parse_path,
    write_error,
    write_json,
    write_xml,
)
from opus_sdn.drivers.polatis_emulator.sessions import Sessions

REQUESTS_KEPT = 4096
RETRY_AFTER_S = "1"
GARBAGE = b"\x00\xff\x17ERR \xde\xad\xbe\xef garbage\r\n\r\n"
READS = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE"

_HEADERS = {"server": "", "pragma": "no-cache"}
_CACHE = "private, no-cache, must-revalidate, proxy-revalidate"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the device took it. `answer`: the status, or `lost` and the like."""

    at: float
    door: str
    user: str
    request: str
    answer: str


class RestconfDoor:
    """Answers RESTCONF. `log` keeps what was asked, without passwords and bodies."""

    def __init__(
        self,
        device: Device,
        sessions: Sessions,
        script: ReplyScript,
        *,
        restart: Callable[[float], None],
        cancel_restart: Callable[[], None],
        enable: Callable[[Door, bool], Awaitable[None]],
        log: deque[Asked],
    ) -> None:
        self._device = device
        self._script = script
        self._tree = Tree(device, sessions)
        self._circuits = Circuits(device)
        self._settings = Settings(
            device, sessions, restart=restart, cancel_restart=cancel_restart, enable=enable
        )
        self._log = log
        self._open = 0

    async def serve(self, connection: Connection) -> None:
        """One connection, until it ends. Beyond the limit of sessions it is told so once."""
        limit = self._device.faults.session_limit
        limit = self._device.spec.sessions_max if limit is None else limit
        self._open += 1
        handler = self.answer if self._open <= limit else self._too_many
        try:
            await http.serve(connection, handler)
        finally:
            self._open -= 1

    async def answer(self, request: Request) -> Answer:
        """One request, with whatever is to befall it."""
        faults = self._device.faults
        if Door.RESTCONF in faults.disabled:
            return Answer(0, fate=Fate.IGNORED)
        fault = self._script.meet(Door.RESTCONF, "read" if request.method in READS else "write")
        if fault is None:
            answer = await self._process(request)
        else:
            answer = await self._spoil(fault, request)
        said = (
            str(answer.status)
            if answer.fate is Fate.SENT and answer.raw is None
            else answer.fate.name.lower()
        )
        user = _credentials(request)[0]
        self._log.append(
            Asked(self._device.wall(), Door.RESTCONF, user, f"{request.method} {request.path}", said)
        )
        return replace(answer, keep_alive=faults.keep_alive, segment=faults.segment_bytes)

    async def _spoil(self, fault: ReplyFault, request: Request) -> Answer:
        """The request as it goes with this fault."""
        match fault.kind:
            case ReplyKind.REQUEST_LOST:
                return Answer(0, fate=Fate.LOST)
            case ReplyKind.RESET_BEFORE:
                return Answer(0, fate=Fate.RESET)
            case ReplyKind.UNAVAILABLE:
                unavailable = HttpProblem(503, "resource-denied", "the device is busy")
                return self._problem(unavailable, request, retry_after=True)
            case ReplyKind.LATE:
                self._device.spawn(self._later(fault.delay_ms, request))
                return Answer(0, fate=Fate.LOST)
            case ReplyKind.SLOW:
                answer = await self._process(request)
                await self._device.wait(fault.delay_ms)
                return answer
        answer = await self._process(request)
        match fault.kind:
            case ReplyKind.REPLY_LOST:
                return replace(answer, fate=Fate.LOST)
            case ReplyKind.RESET_AFTER:
                return replace(answer, fate=Fate.RESET)
            case ReplyKind.TRUNCATED:
                return replace(answer, fate=Fate.TRUNCATED)
            case ReplyKind.GARBAGE:
                return replace(answer, raw=GARBAGE)
        if request.method in READS:
            wrong = write_json("optical-switch", "product-information", {"model-name": 7}, prefixed=True)
            return Answer(200, wrong, self._headers(JSON_TYPE))
        return self._problem(HttpProblem(500, "operation-failed", "internal error"), request)

    async def _later(self, delay_ms: float, request: Request) -> None:
        await self._device.wait(delay_ms)
        await self._process(request)

    async def _too_many(self, request: Request) -> Answer:
        problem = HttpProblem(503, "resource-denied", "too many sessions")
        return replace(self._problem(problem, request, retry_after=True), keep_alive=False)

    async def _process(self, request: Request) -> Answer:
        try:
            return await self._dispatch(request)
        except HttpProblem as problem:
            return self._problem(problem, request)
        except RefusalError as refusal:
            return self._problem(as_problem(refusal), request)

    async def _dispatch(self, request: Request) -> Answer:
        actor = self._actor(request)
        path = request.path.rstrip("/")
        if request.method == "OPTIONS":
            return Answer(200, headers={**self._headers(""), "allow": METHODS})
        if path == "/api" and request.method in READS:
            root = {"data": {}, "operations": {}, "yang-library-version": "2016-06-21"}
            return await self._show(request, Found("ietf-restconf", "restconf", root))
        if path == "/api/data" and request.method in READS:
            return await self._show(request, Found("ietf-restconf", "data", self._tree.whole()))
        if path.startswith("/api/operations/"):
            return await self._operate(request, path.removeprefix("/api/operations/"), actor)
        if not path.startswith("/api/data/"):
            raise not_found()
        segments = parse_path(path.removeprefix("/api/data/"))
        if request.method in READS:
            return await self._read(request, segments)
        return await self._write(request, segments, actor)

    async def _read(self, request: Request, path: tuple[Segment, ...]) -> Answer:
        faults = self._device.faults
        await self._device.spend_control()
        try:
            found = self._tree.find(path)
        except HttpProblem:
            table = path[0].name == CONTAINER and len(path) == 2 and path[1].key is not None
            if table and faults.absent_entry == "no-content":
                return Answer(204, headers=self._headers(""))
            raise
        if _is_empty(found.value):
            match faults.empty_table:
                case "no-content":
                    return Answer(204, headers=self._headers(""))
                case "not-found":
                    raise not_found()
        return self._shown(request, found)

    async def _show(self, request: Request, found: Found) -> Answer:
        await self._device.spend_control()
        return self._shown(request, found)

    def _shown(self, request: Request, found: Found) -> Answer:
        if request.headers.get("if-none-match", "").strip('"') == self.etag:
            return Answer(304, headers=self._headers(""))
        faults = self._device.faults
        value = [found.value] if found.entry and faults.single_entry == "list" else found.value
        accept = request.headers.get("accept", "*/*").lower()
        if "json" in accept or "*/*" in accept or "application/*" in accept:
            body = write_json(found.module, found.name, value, prefixed=faults.prefixed)
            return Answer(200, body, self._headers(JSON_TYPE))
        if "xml" in accept:
            value = found.value if found.entry else value
            return Answer(200, write_xml(found.module, found.name, value), self._headers(XML_TYPE))
        raise HttpProblem(406, "invalid-value", "acceptable are yang-data+json and yang-data+xml")

    async def _write(self, request: Request, path: tuple[Segment, ...], actor: Actor) -> Answer:
        if request.method not in ("POST", "PUT", "PATCH", "DELETE"):
            raise HttpProblem(405, "operation-not-supported", f"{request.method} is not possible")
        body = None if request.method == "DELETE" else self._body(request)
        if path[0].name == CONTAINER and path[0].module in (None, "optical-switch"):
            answer = await self._circuits.write(
                request.method, path, body, actor, lambda: self._expect(request)
            )
        else:
            self._tree.find(path[:1])
            self._expect(request)
            answer = await self._settings.write(request.method, path, body or {}, actor)
        return replace(answer, headers={**self._headers(""), **answer.headers})

    async def _operate(self, request: Request, name: str, actor: Actor) -> Answer:
        if request.method != "POST":
            raise HttpProblem(405, "operation-not-supported", "an operation is posted")
        body = self._body(request) if request.body else {}
        answer = await self._settings.operate(name, body, actor)
        return replace(answer, headers=self._headers(""))

    def _body(self, request: Request) -> dict[str, Any]:
        if not request.body:
            raise malformed("a body was expected")
        return parse_body(request.body, request.headers.get("content-type", ""))

    def _expect(self, request: Request) -> None:
        """Refuse when the client has seen another revision than the present one."""
        expected = request.headers.get("if-match", "").strip('"')
        if expected and expected != "*" and self._device.faults.if_match and expected != self.etag:
            raise RefusalError(Why.MODIFIED, "the datastore was modified")

    def _actor(self, request: Request) -> Actor:
        name, password = _credentials(request)
        group = self._device.users.login(name, password)
        if group is None:
            raise HttpProblem(401, "access-denied", "access denied")
        return Actor(name, group, Door.RESTCONF, request.peer)

    @property
    def etag(self) -> str:
        """The time of the last change: its digits in groups of four, six and six."""
        digits = f"{self._device.changed_at:.6f}".replace(".", "")
        return f"{digits[:4]}-{digits[4:10]}-{digits[10:]}"

    def _headers(self, content_type: str) -> dict[str, str]:
        kind = {"content-type": content_type} if content_type else {}
        return {**_HEADERS, "etag": self.etag, **kind, "cache-control": _CACHE}

    def _problem(self, problem: HttpProblem, request: Request, *, retry_after: bool = False) -> Answer:
        body, kind = write_error(problem, self._device.faults, request.path)
        headers = {**_HEADERS, **({"content-type": kind} if kind else {})}
        if problem.status == 401:
            headers["www-authenticate"] = 'Basic realm="restconf"'
        if retry_after:
            headers["retry-after"] = RETRY_AFTER_S
        return Answer(problem.status, body, headers)


def _credentials(request: Request) -> tuple[str, str]:
    """Name and password of Basic authentication; empty when there are none."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    name, _, password = text.partition(":")
    return name, password


def _is_empty(value: object) -> bool:
    """Whether a resource has nothing in it: then this server answers without a body."""
    return value == [] or (isinstance(value, dict) and all(member == [] for member in value.values()))
