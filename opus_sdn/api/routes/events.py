"""The history: as pages, by long poll, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from opus_sdn.api.documents import EventDocument, EventsAnswer
from opus_sdn.api.routes.common import problems_of, runtime_of
from opus_sdn.api.schemas import NAME_PATTERN, WHOLE_MAX
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.store.base import EventRecord, Store

router = APIRouter(tags=["events"])

STREAMS_MAX = 64  # each reads the store for itself
KEEP_ALIVE_S = 15.0
COLLECT_S = 0.05  # a stream sends all events of this time together
STREAM_PAGE = 500

Since = Annotated[
    int | None,
    Query(ge=0, le=WHOLE_MAX, description="Only events after this number; absent: from the oldest"),
]
OfJob = Annotated[str | None, Query(pattern=NAME_PATTERN, description="Only of this job")]
OfKind = Annotated[
    str | None,
    Query(
        pattern=r"^[a-z][a-z0-9.-]{0,63}$", description="Only of this kind, as `intent` or `intent.granted`"
    ),
]


@router.get(
    "/events",
    operation_id="list_events",
    summary="The history, as it is or as it happens",
    response_model=EventsAnswer,
    responses={
        200: {
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'id: 12\nevent: intent.granted\ndata: {"seq":12,"kind":"intent.granted"}\n\n',
                }
            }
        },
        **problems_of(Problem.EVENTS_COMPACTED, Problem.NOT_READY),
    },
)
async def list_events(
    request: Request,
    since: Since = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Most events of one answer")] = 100,
    job: OfJob = None,
    kind: OfKind = None,
    wait_s: Annotated[
        float, Query(ge=0, le=60, allow_inf_nan=False, description="Longest wait for an event, seconds")
    ] = 0.0,
    accept: Annotated[str | None, Header(max_length=1024, include_in_schema=False)] = None,
    last_event_id: Annotated[
        str | None, Header(max_length=32, description="Where a broken stream goes on; for streams only")
    ] = None,
) -> Response:
    """With `Accept: text/event-stream` an endless stream, its ids the event numbers; else JSON, oldest first.

    With `wait_s` an answer without events comes after that many seconds at the latest.
    """
    runtime = runtime_of(request)
    source = _Source(runtime, job, kind)
    if accept is not None and "text/event-stream" in accept:
        start = _resume_at(last_event_id, since)
        first = await source.read(start, STREAM_PAGE)
        return _stream(request, source, first)
    answer = await _poll(source, since, limit, min(wait_s, request.app.state.settings.wait_s_max))
    return Response(answer.model_dump_json(), media_type="application/json")


class _Source:
    """The history through one filter."""

    def __init__(self, runtime: Runtime, job: str | None, kind: str | None) -> None:
        self.feed = runtime.feed
        self._runtime = runtime
        self._filter = (job, kind)

    async def read(self, since: int | None, limit: int) -> tuple[list[EventRecord], int]:
        """Matching events after `since`, and the number to go on from."""
        newest = self.feed.newest
        events = await asyncio.to_thread(_read, self._runtime.store, since, newest, limit, self._filter)
        if events:
            self.feed.advance(events[-1].seq)  # the store may be ahead of what this loop has heard
        if len(events) == limit:
            return events, events[-1].seq
        return events, max([newest, since or 0, *(event.seq for event in events[-1:])])


def _read(
    store: Store, since: int | None, newest: int, limit: int, which: tuple[str | None, str | None]
) -> list[EventRecord]:
    if since is not None:
        oldest = next((event.seq for event in store.events(0, 1)), newest + 1)
        if since + 1 < oldest or since > max(newest, oldest - 1):
            raise CoreError(
                Problem.EVENTS_COMPACTED,
                f"since is {since}, but the events kept are {oldest} to {newest}; read the current state, "
                "then go on from newest",
                since=since,
                oldest=oldest,
                newest=newest,
            )
    return store.events(since or 0, limit, *which)


async def _poll(source: _Source, since: int | None, limit: int, wait_s: float) -> EventsAnswer:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + wait_s
    events, newest = await source.read(since, limit)
    while not events and (left_s := give_up_at - loop.time()) > 0:
        if not await source.feed.newer_than(newest, left_s):
            break
        events, newest = await source.read(newest, limit)
    return EventsAnswer(events=[EventDocument.of(event) for event in events], newest=newest)


def _resume_at(last_event_id: str | None, since: int | None) -> int | None:
    if last_event_id is None:
        return since
    if not last_event_id.isascii() or not last_event_id.isdecimal():
        raise CoreError(
            Problem.INVALID_REQUEST,
            f"the Last-Event-ID header is {last_event_id!r}; it must be the number of an event",
            field="header.Last-Event-ID",
        )
    return int(last_event_id)


def _stream(request: Request, source: _Source, first: tuple[list[EventRecord], int]) -> Response:
    open_streams: set[object] = request.app.state.event_streams
    if len(open_streams) >= STREAMS_MAX:
        raise CoreError(
            Problem.NOT_READY, f"{STREAMS_MAX} event streams are open, which is the most; ask again later"
        )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        _lines(source, first, open_streams), media_type="text/event-stream", headers=headers
    )


async def _lines(
    source: _Source, first: tuple[list[EventRecord], int], open_streams: set[object]
) -> AsyncIterator[str]:
    me = object()
    open_streams.add(me)
    events, newest = first
    try:
        yield ": events\n\n"
        while True:
            if events:
                yield "".join(_message(event) for event in events)
            if len(events) < STREAM_PAGE:
                while not await source.feed.newer_than(newest, KEEP_ALIVE_S):
                    if source.feed.closed:
                        return
                    yield ": still here\n\n"
                await asyncio.sleep(COLLECT_S)
            try:
                events, newest = await source.read(newest, STREAM_PAGE)
            except CoreError:
                return  # overtaken by compaction; when it resumes it is told so
    finally:
        open_streams.discard(me)


def _message(event: EventRecord) -> str:
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {EventDocument.of(event).model_dump_json()}\n\n"
