"""Simulations: replays of training steps on fabrics that need not exist. They touch nothing of the fabric."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from opus_sdn.api import bodies, examples, problems
from opus_sdn.api.body import read
from opus_sdn.api.routes.common import Cursor, Limit, page, problems_of
from opus_sdn.api.simulations.documents import (
    SimulationDocument,
    SimulationPage,
    SimulationSummary,
    summary,
    whole,
)
from opus_sdn.api.simulations.folder import locate
from opus_sdn.api.simulations.keeper import Simulations
from opus_sdn.api.simulations.request import SimulationRequest
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.settings import Settings

router = APIRouter(tags=["simulations"])

UPLOAD_S = 60.0  # a body that never ends must not keep its place in the queue

SimulationId = Annotated[
    str, Path(max_length=64, description="Id of the simulation", examples=["1-5f3a9c02"])
]

_REQUEST: TypeAdapter[SimulationRequest] = TypeAdapter(SimulationRequest)


@router.post(
    "/simulations",
    operation_id="create_simulation",
    summary="Replay a training step, once or over ranges",
    status_code=202,
    responses={
        202: {
            "headers": {
                "Location": {"description": "Where to look for its result", "schema": {"type": "string"}}
            }
        },
        **problems_of(Problem.MALFORMED_JSON, Problem.BODY_TOO_LARGE, Problem.OVERLOADED, Problem.NOT_READY),
    },
    openapi_extra=bodies.described(SimulationRequest, examples.SIMULATION),
)
async def create_simulation(request: Request, response: Response) -> SimulationSummary:
    """Answers at once; the simulation waits for its turn, and runs in a process of its own with limits on
    time and memory. Its files are sent along, or named below the controller's folder of traces, if it has
    one. Every replica runs its own simulations.
    """
    keeper, settings = _keeper(request), _settings(request)
    with keeper.place():
        body = await _body(request, settings.operator_body_max_bytes)
        wanted = _parsed(body)
        await asyncio.to_thread(_find_paths, wanted, settings)
        known = await keeper.submit(wanted, body)
    response.headers["Location"] = f"{request.url.path}/{known.id}"
    return summary(known)


@router.get(
    "/simulations",
    operation_id="list_simulations",
    summary="Simulations that wait, run or have ended lately",
    responses=problems_of(),
)
async def list_simulations(request: Request, limit: Limit = 100, cursor: Cursor = None) -> SimulationPage:
    """In the order in which they were asked for, without results. The newest that ended are kept."""
    shown, following = page(_keeper(request).all(), lambda known: (known.number,), limit, cursor)
    return SimulationPage(simulations=[summary(known) for known in shown], next=following)


@router.get(
    "/simulations/{simulation}",
    operation_id="get_simulation",
    summary="One simulation: how far it is, and its result",
    response_model=SimulationDocument,
    responses=problems_of(Problem.NOT_FOUND),
)
async def get_simulation(request: Request, simulation: SimulationId) -> Response:
    """`result` is null until `state` is `done`; `failure` says why one is `failed`."""
    return Response(whole(_keeper(request).get(simulation)), media_type="application/json")


@router.delete(
    "/simulations/{simulation}",
    operation_id="cancel_simulation",
    summary="Stop a simulation",
    responses=problems_of(Problem.NOT_FOUND),
)
async def cancel_simulation(request: Request, simulation: SimulationId) -> SimulationSummary:
    """Answers when nothing of it runs. One that has ended stays as it is, so repeating it is harmless."""
    return summary(await _keeper(request).cancel(simulation))


def _keeper(request: Request) -> Simulations:
    keeper: Simulations = request.app.state.simulations
    return keeper


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _body(request: Request, limit: int) -> bytes:
    try:
        async with asyncio.timeout(UPLOAD_S):
            return await read(request.scope, request.receive, limit)
    except TimeoutError:
        why = f"the body had not arrived after {UPLOAD_S:g} s"
        raise CoreError(Problem.INVALID_REQUEST, why, field="body") from None


def _parsed(body: bytes) -> SimulationRequest:
    try:
        wanted = _REQUEST.validate_json(body)
    except ValidationError as error:
        raise problems.refused_by(error) from None
    wanted.check()
    return wanted


def _find_paths(wanted: SimulationRequest, settings: Settings) -> None:
    """Refuse paths that lead out of the folder of traces before anything runs."""
    for field, file in wanted.inputs.given():
        if file.path is not None:
            locate(settings.traces_dir, file.path, f"inputs.{field}")
