"""The hot route: all that ranks have to say in one request, and the answer that lets them go on.

It is in the training step, so it does what it must and nothing more: one reading of the body, one decoding
from bytes to checked values, no database, no log line, and one wake-up for each waiting request. It is a
route of the framework like the others, but it takes the bare ASGI call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send

from opus_sdn.api import body, problems
from opus_sdn.api.former import FormerJobs
from opus_sdn.api.schemas import (
    ArrivalsRequest,
    WireArrival,
    WireCut,
    WireHeld,
    WireHint,
    WireMark,
    WireRank,
    WireRelease,
    WireSession,
)
from opus_sdn.intent.errors import CoreError, Failure
from opus_sdn.intent.model import (
    Arrival,
    ArrivalStatus,
    Cut,
    CutRequest,
    Grant,
    Hint,
    RankAnswer,
    RankKey,
    RankNews,
    Release,
    Session,
    Stream,
    StreamMark,
)
from opus_sdn.reconciler.runs import rfc3339, with_times
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.reconciler.waiters import Poll
from opus_sdn.settings import Settings

_REQUEST: TypeAdapter[ArrivalsRequest] = TypeAdapter(ArrivalsRequest)

# Most polls are answered within a switch's own time. Only one that waits longer is worth a task that watches
# whether its client is still there.
WATCH_AFTER_S = 0.05
LEASE_SHARE_OF_A_POLL = 1 / 3


class HotRoute(APIRoute):
    """Documented and matched as the framework's routes are, but called without its machinery."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await super().handle(scope, receive, send)  # says which methods there are
            return
        request_id = problems.request_id_of(scope)
        try:
            answer = await serve(scope["app"].state, scope["path_params"]["job"], scope, receive)
        except CoreError as error:
            await problems.of_core(error, instance=scope["path"], request_id=request_id)(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def serve(state: State, job: str, scope: Scope, receive: Receive) -> bytes:
    """Take the news of the ranks in the body, wait for news for them, and give the answer's JSON."""
    runtime: Runtime = state.runtime
    settings: Settings = state.settings
    former: FormerJobs = state.former_jobs
    # A whole session is longer than news, and comes while the controller waits for it only.
    longest = settings.rank_body_max_bytes
    if runtime.engine.awaits_sessions(job):
        longest = max(longest, settings.operator_body_max_bytes)
    raw = await body.read(scope, receive, longest)
    try:
        request = _REQUEST.validate_json(raw)
    except ValidationError as error:
        raise problems.refused_by(error) from None
    runtime.require_ready()
    if any(r.arrivals or r.releases or r.cut or r.leave or r.session is not None for r in request.ranks):
        runtime.take_on()  # who only asks is answered, and counts as alive, whatever waits for the disk
    news = [news_of(rank) for rank in request.ranks]
    try:
        runtime.engine.news(runtime.now(), job, request.incarnation, request.seen_start, news)
    except CoreError as error:
        raise former.better(error, job, request.incarnation) from None
    runtime.changed()
    if any(item.leave for item in news):
        # Nobody is there to say it again: it has to outlive this process before it is answered.
        await runtime.stored()
    # A rank is heard when it asks, so one that only waits must ask again well within its lease.
    wait_s = min(request.wait_s, settings.wait_s_max, settings.lease_s * LEASE_SHARE_OF_A_POLL)
    if wait_s > 0:
        keys = tuple([RankKey(job, request.incarnation, item.rank) for item in news])
        poll = runtime.waiters.open(keys, runtime.loop)
        try:
            if not _has_news(runtime, job, request.incarnation, news):
                await _wait(runtime.loop, poll, wait_s, receive)
        finally:
            runtime.waiters.close(poll)
        runtime.require_ready()
    return to_json(_answer(runtime, job, request.incarnation, news), fallback=str)


def _has_news(runtime: Runtime, job: str, incarnation: int, news: Sequence[RankNews]) -> bool:
    has = runtime.engine.has_news_for
    return any(has(job, incarnation, item.rank, item.last_grant) for item in news)


async def _wait(loop: asyncio.AbstractEventLoop, poll: Poll, wait_s: float, receive: Receive) -> None:
    """Until there is news, a newer poll of one of the ranks, `wait_s` seconds are over, or nobody listens."""
    timer: asyncio.TimerHandle | None = None
    watcher: asyncio.Task[None] | None = None

    def watch() -> None:
        nonlocal timer, watcher
        timer = loop.call_later(wait_s - WATCH_AFTER_S, poll.end, False)
        watcher = loop.create_task(_gone(receive))
        watcher.add_done_callback(lambda _: poll.end(woken=False))

    if wait_s > WATCH_AFTER_S:
        timer = loop.call_later(WATCH_AFTER_S, watch)
    else:
        timer = loop.call_later(wait_s, poll.end, False)
    try:
        await poll.future
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def news_of(rank: WireRank) -> RankNews:
    """The core's form of what a rank has to say."""
    return RankNews(
        rank.rank,
        rank.last_grant,
        tuple([_arrival(arrival) for arrival in rank.arrivals]),
        tuple([_release(release) for release in rank.releases]),
        rank.leave,
        tuple([_hint(hint) for hint in rank.hints]),
        session_of(rank.session) if rank.session is not None else None,
        tuple([_cut(cut) for cut in rank.cut]),
    )


def session_of(wire: WireSession) -> Session:
    """The core's form of a rank's session."""
    return Session(
        wire.last_grant,
        tuple([Grant(held.no, _stream(held), held.n, held.length) for held in wire.held]),
        tuple([_arrival(arrival) for arrival in wire.open]),
        tuple([StreamMark(_stream(mark), mark.granted, mark.released) for mark in wire.marks]),
    )


def _stream(wire: WireHeld | WireMark) -> Stream:
    return Stream(wire.connection, wire.source, wire.destination)


def _arrival(wire: WireArrival) -> Arrival:
    stream = Stream(wire.connection, wire.source, wire.destination)
    return Arrival(stream, wire.n, wire.closed, wire.quiet, wire.tag, wire.blocking)


def _release(wire: WireRelease) -> Release:
    return Release(Stream(wire.connection, wire.source, wire.destination), wire.n, wire.length)


def _cut(wire: WireCut) -> Cut:
    return Cut(Stream(wire.connection), wire.n, wire.issued, wire.length)


def _hint(wire: WireHint) -> Hint:
    return Hint(Stream(wire.connection, wire.source, wire.destination), wire.n)


def _answer(runtime: Runtime, job: str, incarnation: int, news: Sequence[RankNews]) -> dict[str, Any]:
    answer = runtime.engine.answer
    ranks = [
        _rank_answer(answer(job, incarnation, item.rank, item.last_grant, item.arrivals or None))
        for item in news
    ]
    return {"start": runtime.engine.state.start, "ranks": ranks}


def _rank_answer(answer: RankAnswer) -> dict[str, Any]:
    return {
        "rank": answer.rank,
        "arrivals": [_status(status) for status in answer.arrivals],
        "grants": [_grant(grant) for grant in answer.grants],
        "cut_requests": [_cut_request(request) for request in answer.cuts],
        "alarms": [
            {"circuit": alarm.circuit, "switch": alarm.switch, "since": rfc3339(alarm.since)}
            for alarm in answer.alarms
        ],
        "failure": failure_fields(answer.failure) if answer.failure is not None else None,
    }


def _status(status: ArrivalStatus) -> dict[str, Any]:
    because = status.because
    reason = None
    if because is not None:
        data = with_times(because.data) if because.data else {}
        reason = {"code": because.reason.value, "detail": because.detail, "data": data}
    connection, source, destination = status.stream
    return {
        "connection": connection,
        "source": source,
        "destination": destination,
        "n": status.n,
        "state": status.state.value,
        "reason": reason,
    }


def _grant(grant: Grant) -> dict[str, Any]:
    connection, source, destination = grant.stream
    return {
        "no": grant.no,
        "connection": connection,
        "source": source,
        "destination": destination,
        "n": grant.n,
        "length": grant.length,
    }


def _cut_request(request: CutRequest) -> dict[str, Any]:
    connection, source, destination = request.stream
    return {
        "connection": connection,
        "source": source,
        "destination": destination,
        "n": request.n,
        "length": request.length,
    }


def failure_fields(failure: Failure) -> dict[str, Any]:
    """A failure as the wire has it."""
    return {
        "type": problems.type_of(failure.problem),
        "detail": failure.detail,
        "rank": failure.rank,
        "data": failure.data,
    }
