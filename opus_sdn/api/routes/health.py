"""Whether the process lives, and whether it grants, or knows who does."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from opus_sdn.api import problems
from opus_sdn.api.documents import CheckDocument, ClockDocument, LiveDocument, ReadyDocument
from opus_sdn.api.routes.common import problems_of, runtime_of
from opus_sdn.intent.errors import Problem
from opus_sdn.reconciler.phase import Phase

router = APIRouter(tags=["health"])


@router.get(
    "/livez",
    operation_id="get_liveness",
    summary="The process works, and may go on",
    responses=problems_of(),
)
async def get_liveness() -> LiveDocument:
    """Whatever keeps the controller from granting passes by itself: a lost store is opened again, a switch
    that is away is waited for. Killing the process would only take longer.
    """
    return LiveDocument(alive=True)


@router.get(
    "/clock",
    operation_id="get_clock",
    summary="What time it is by the controller's clock",
    responses=problems_of(),
)
async def get_clock(request: Request) -> ClockDocument:
    """Who asks takes it as the time at some moment between its question and the answer, and so learns how
    far its own clock is from it, and how exactly that is known.
    """
    return ClockDocument(unix_us=int(runtime_of(request).clock() * 1e6))


@router.get(
    "/readyz",
    operation_id="get_readiness",
    summary="The controller grants, or says who does",
    response_model=ReadyDocument,
    responses=problems_of(Problem.NOT_READY),
)
async def get_readiness(
    request: Request,
    verbose: Annotated[
        str | None, Query(max_length=5, description="Present: list every check, not only those that fail")
    ] = None,
) -> Response:
    """503 while switches are being read, after the store has failed, while its schema is not that of this
    program, while no replica leads, and while stopping.

    A switch in trouble is listed, but does not make the controller unready: the others go on.
    """
    runtime = runtime_of(request)
    fault = await asyncio.to_thread(runtime.store.fault)
    deciding = runtime.phase is Phase.READY
    ready = fault is None and (deciding or (runtime.phase is Phase.FOLLOWING and runtime.leader is not None))
    found = {**runtime.checks(), "database": fault}
    checks = [
        CheckDocument(name=name, ok=wrong is None, detail=wrong)
        for name, wrong in found.items()
        if wrong is not None or verbose is not None
    ]
    start = runtime.engine.state.start
    if ready:
        document = ReadyDocument(
            ready=True, start=start, leads=deciding, leader=runtime.leader, checks=checks
        )
        return Response(document.model_dump_json(), media_type="application/json")
    return problems.response(
        Problem.NOT_READY,
        "the controller does not grant: "
        + "; ".join(f"{check.name}: {check.detail}" for check in checks if not check.ok),
        instance=request.url.path,
        request_id=problems.request_id_of(request.scope),
        data={"start": start, "checks": [check.model_dump() for check in checks]},
    )
