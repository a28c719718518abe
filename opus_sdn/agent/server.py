"""The agent itself: HTTP over a Unix socket for the ranks of this host, most of it passed on as it is."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import h11

from opus_sdn.agent.arrivals import OK, Arrivals, Send, is_of_one_rank
from opus_sdn.agent.checkins import CheckIns, is_check_in
from opus_sdn.agent.processes import GATHER_S, Processes, RankOf
from opus_sdn.agent.upstream import Answer, Upstream, UpstreamGoneError

BODY_BYTES_MAX: Final = 32 * 1024 * 1024
READ_BYTES: Final = 1 << 16
WAIT_S_MAX: Final = 60.0
REPORTS: Final = 5  # tries to tell of a death; afterwards the lease does
_JOB_ROUTE: Final = re.compile(r"/api/v1/jobs/([^/?]+)/(arrivals|groups)")
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
MISDIRECTED: Final = 421
STATUS_TARGET: Final = "/agent"
JOBS_MAX: Final = 1024

log = logging.getLogger(__name__)


class Agent:
    """One host's agent. `run` serves until it is cancelled."""

    def __init__(self, path: Path, upstream: Upstream, host: str) -> None:
        self._path, self._upstream, self._host = path, upstream, host
        self._arrivals, self._check_ins = Arrivals(), CheckIns()
        self._processes = Processes(self._died)
        self._deaths: dict[tuple[str, str, int], dict[int, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tokens: dict[tuple[str, str], dict[str, str]] = {}
        self.received = self.sent = self.told = 0

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Serve. Raises OSError when the socket cannot be made, or another agent has it."""
        _take_over(self._path)
        before = os.umask(0o177)  # the ranks of this user only
        try:
            server = await asyncio.start_unix_server(self._serve, self._path)
        finally:
            os.umask(before)
        log.info("agent ready socket=%s", self._path)
        if ready is not None:
            ready.set()
        try:
            async with server:
                await server.serve_forever()
        finally:
            self._processes.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a rank. Where the controller does not answer, it is closed: so silence is passed
        on too, and the rank does what it does without an agent.
        """
        pid = _peer(writer)
        wire = h11.Connection(h11.SERVER)
        try:
            while (request := await _request(wire, reader)) is not None:
                head, body = request
                answer = await self._answer(head, body, pid)
                headers = [("content-type", answer.content_type), ("content-length", str(len(answer.body)))]
                if answer.status == 204:
                    headers = []
                writer.write(wire.send(h11.Response(status_code=answer.status, headers=headers)) or b"")
                writer.write(wire.send(h11.Data(data=answer.body)) or b"")
                writer.write(wire.send(h11.EndOfMessage()) or b"")
                await writer.drain()
                if wire.our_state is h11.MUST_CLOSE:
                    break
                wire.start_next_cycle()
        except UpstreamGoneError as gone:
            log.info("no answer pid=%d error=%s", pid, gone)
        except (OSError, h11.ProtocolError, asyncio.CancelledError) as failed:
            log.debug("connection ended pid=%d error=%r", pid, failed)
        finally:
            writer.close()

    async def _answer(self, head: h11.Request, body: bytes, pid: int) -> Answer:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        method, target = head.method.decode("ascii"), head.target.decode("latin-1")
        authority = headers.get("host", "")
        if target == STATUS_TARGET:
            return self._status()
        if not self._upstream.knows(authority):
            return _refusal(authority)
        route = _JOB_ROUTE.fullmatch(target)
        if method != "POST" or route is None:
            return await self._upstream.send(authority, method, target, headers, body, WAIT_S_MAX)

        async def send(content: bytes, wait_s: float) -> Answer:
            self.sent += 1
            return await self._upstream.send(authority, "POST", target, headers, content, wait_s)

        job, kind = unquote(route[1]), route[2]
        key = (authority, job, headers.get("authorization", ""))
        found = _json(body)
        self.received += 1
        if kind == "groups" and is_check_in(found):
            return await self._check_ins.ask(key, found, send)
        if kind == "arrivals" and is_of_one_rank(found):
            return await self._news(key, found, send, pid, headers)
        return await send(body, WAIT_S_MAX)

    def _status(self) -> Answer:
        """Arrivals and check-ins of ranks and the requests that they became, and deaths told."""
        counts = {"received": self.received, "sent": self.sent, "deaths_told": self.told}
        body = {**counts, "processes": self._processes.count}
        return Answer(OK, "application/json", json.dumps(body).encode())

    async def _news(
        self,
        key: tuple[str, str, str],
        found: dict[str, Any],
        send: Send,
        pid: int,
        headers: Mapping[str, str],
    ) -> Answer:
        authority, job, _ = key
        entry = found["ranks"][0]
        incarnation = found.get("incarnation")
        rank = RankOf(authority, job, incarnation if isinstance(incarnation, int) else -1, entry["rank"])
        if not entry.get("leave"):
            if len(self._tokens) >= JOBS_MAX:
                self._tokens.clear()  # each is said again with the rank's next request
            self._tokens[authority, job] = {k: v for k, v in headers.items() if k == "authorization"}
            self._processes.watch(pid, rank)
        answer = await self._arrivals.ask(key, found, send)
        if entry.get("leave"):  # whatever the controller says to it: it has stopped by itself
            self._processes.left(pid, rank)
        return answer

    def _died(self, rank: RankOf, pid: int) -> None:
        log.warning("process ended without leaving job=%s rank=%d pid=%d", rank.job, rank.rank, pid)
        self._arrivals.drop(rank.rank, rank.job)
        life = (rank.authority, rank.job, rank.incarnation)
        if life not in self._deaths:
            self._deaths[life] = {}
            task = asyncio.ensure_future(self._tell(life))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._deaths[life][rank.rank] = pid

    async def _tell(self, life: tuple[str, str, int]) -> None:
        """Vouch for what has ended, all of one moment at once."""
        await asyncio.sleep(GATHER_S)
        dead = self._deaths.pop(life)
        authority, job, incarnation = life
        which = ", ".join(f"process {pid} of rank {rank}" for rank, pid in sorted(dead.items()))
        body = {
            "incarnation": incarnation,
            "ranks": sorted(dead),
            "detail": f"ended on {self._host} without leaving: {which}"[:1000],
        }
        headers = {"content-type": "application/json", **self._tokens.get((authority, job), {})}
        for attempt in range(REPORTS):
            try:
                answer = await self._upstream.send(
                    authority, "POST", f"/api/v1/jobs/{job}/deaths", headers, json.dumps(body).encode()
                )
            except UpstreamGoneError as gone:
                log.warning("a death could not be told job=%s error=%s", job, gone)
                await asyncio.sleep(2.0**attempt)
                continue
            self.told += len(dead)
            log.info("deaths told job=%s ranks=%s status=%d", job, body["ranks"], answer.status)
            return


async def _request(wire: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Request, bytes] | None:
    """The next request with its body; None at the end of the connection."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                raise h11.RemoteProtocolError(f"a body may have {BODY_BYTES_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None  # h11 gives it first
            return head, bytes(body)
        else:
            return None


def _take_over(path: Path) -> None:
    """Remove the socket of an agent that is gone. Raises OSError when one answers."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    with socket.socket(socket.AF_UNIX) as other:
        try:
            other.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise FileExistsError(f"{path}: another agent answers there; one is enough for a host")


def _peer(writer: asyncio.StreamWriter) -> int:
    """The process at the other end, as the kernel says."""
    link = writer.get_extra_info("socket")
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _refusal(authority: str) -> Answer:
    detail = f"this host's agent does not speak to {authority!r}; start it with that in OPUS_CONTROLLER"
    body = {"type": "urn:opus:problem:wrong-controller", "status": MISDIRECTED, "detail": detail}
    return Answer(MISDIRECTED, "application/problem+json", json.dumps(body).encode())
