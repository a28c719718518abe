"""The fabric, its switches and ports."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response

from opus_sdn.api import bodies, examples
from opus_sdn.api.body import JsonBody
from opus_sdn.api.documents import (
    CircuitDocument,
    CircuitPage,
    FabricAnswer,
    PortDocument,
    PortPage,
    RailDocument,
    RailPage,
    StepDocument,
    StepPage,
    SwitchDocument,
    SwitchPage,
)
from opus_sdn.api.fabric_keeper import FabricKeeper
from opus_sdn.api.routes.common import (
    ETAG,
    Cursor,
    IfNoneMatch,
    Limit,
    page,
    problems_of,
    runtime_of,
    tagged,
    tagged_bytes,
)
from opus_sdn.fabric_file import FabricSpec
from opus_sdn.intent import fabric_views
from opus_sdn.intent.errors import CoreError, Problem

router = APIRouter(tags=["fabric"])

_NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "The client has this representation"}}


def _keeper(request: Request) -> FabricKeeper:
    keeper: FabricKeeper = request.app.state.fabric
    return keeper


@router.get(
    "/fabric",
    operation_id="get_fabric",
    summary="The fabric as declared",
    response_model=FabricSpec,
    responses={200: {"headers": ETAG}, **_NOT_MODIFIED, **problems_of(Problem.NOT_FOUND)},
)
async def get_fabric(request: Request, if_none_match: IfNoneMatch = None) -> Response:
    """Change it here and send it back with its ETag in If-Match."""
    keeper = _keeper(request)
    if keeper.spec is None:
        raise CoreError(Problem.NOT_FOUND, "no fabric is declared yet; PUT one here")
    return tagged_bytes(keeper.document.encode(), keeper.etag, if_none_match)


@router.put(
    "/fabric",
    operation_id="put_fabric",
    summary="Declare the fabric",
    response_model=FabricAnswer,
    responses={
        200: {"headers": ETAG},
        201: {"description": "The first fabric was declared", "model": FabricAnswer, "headers": ETAG},
        **problems_of(
            Problem.MALFORMED_JSON,
            Problem.BODY_TOO_LARGE,
            Problem.PORT_IN_USE,
            Problem.PRECONDITION_FAILED,
            Problem.PRECONDITION_REQUIRED,
            Problem.NOT_LEADER,
            Problem.NOT_READY,
        ),
    },
    openapi_extra=bodies.described(FabricSpec, examples.FABRIC),
)
async def put_fabric(
    request: Request,
    response: Response,
    body: Annotated[FabricSpec, Depends(JsonBody(FabricSpec, "operator_body_max_bytes"))],
    dry_run: Annotated[bool, Query(description="Check everything, change nothing")] = False,
    if_match: Annotated[
        str | None, Header(max_length=256, description="ETag of the fabric that was changed")
    ] = None,
) -> FabricAnswer:
    """The whole fabric. The same document again changes nothing. In this version another document is taken
    only while no job holds ports; switches that stay as they are keep their circuits.
    """
    keeper = _keeper(request)
    first = keeper.spec is None
    answer = await keeper.put(body, if_match=if_match, dry_run=dry_run)
    response.headers["ETag"] = keeper.etag
    if first and answer.applied:
        response.status_code = 201
    return answer


@router.get(
    "/switches",
    operation_id="list_switches",
    summary="Every switch as last read, with its steps",
    responses=problems_of(),
)
async def list_switches(request: Request, limit: Limit = 100, cursor: Cursor = None) -> SwitchPage:
    """Switches in order of name."""
    switches = fabric_views.switches_view(runtime_of(request).engine)
    shown, following = page(switches, lambda switch: (switch.name,), limit, cursor)
    return SwitchPage(switches=[SwitchDocument.of(switch) for switch in shown], next=following)


@router.get(
    "/switches/{switch}",
    operation_id="get_switch",
    summary="One switch as last read",
    responses=problems_of(Problem.NOT_FOUND),
)
async def get_switch(request: Request, switch: str) -> SwitchDocument:
    """With its foreign, contended and dark cross-connects, and why it is held up."""
    return SwitchDocument.of(fabric_views.switch_view(runtime_of(request).engine, switch))


@router.post(
    "/switches/{switch}/observe",
    operation_id="observe_switch",
    summary="Read a switch now",
    responses=problems_of(Problem.NOT_FOUND, Problem.SWITCH_AWAY, Problem.NOT_READY),
)
async def observe_switch(request: Request, switch: str) -> SwitchDocument:
    """Answers when what it shows, and what follows from that, is stored. The switch is read from time to time
    anyway; this is for people who have just changed something, or want to know now.
    """
    runtime = runtime_of(request)
    await runtime.observe(switch)
    return SwitchDocument.of(fabric_views.switch_view(runtime.engine, switch))


@router.get(
    "/rails",
    operation_id="list_rails",
    summary="Every rail, desired and observed",
    responses=problems_of(),
)
async def list_rails(request: Request, limit: Limit = 100, cursor: Cursor = None) -> RailPage:
    """Rails in order of name."""
    engine = runtime_of(request).engine
    names = [rail.name for rail in engine.state.fabric.rails]
    shown, following = page(names, lambda name: (name,), limit, cursor)
    return RailPage(
        rails=[RailDocument.of(fabric_views.rail_view(engine, name)) for name in shown], next=following
    )


@router.get(
    "/rails/{rail}",
    operation_id="get_rail",
    summary="One rail, desired and observed, with its topology ids",
    response_model=RailDocument,
    responses={200: {"headers": ETAG}, **_NOT_MODIFIED, **problems_of(Problem.NOT_FOUND)},
)
async def get_rail(request: Request, rail: str, if_none_match: IfNoneMatch = None) -> Response:
    """The tag changes with anything that the representation shows."""
    view = fabric_views.rail_view(runtime_of(request).engine, rail)
    return tagged(RailDocument.of(view), view.generation, if_none_match)


@router.get(
    "/ports",
    operation_id="list_ports",
    summary="Every NIC port and what it is joined to",
    responses=problems_of(),
)
async def list_ports(request: Request, limit: Limit = 100, cursor: Cursor = None) -> PortPage:
    """Ports in order of rail and position."""
    ports = fabric_views.ports_view(runtime_of(request).engine)
    shown, following = page(ports, lambda port: (port.rail, port.position, port.port), limit, cursor)
    return PortPage(ports=[PortDocument.model_validate(port) for port in shown], next=following)


@router.get(
    "/circuits",
    operation_id="list_circuits",
    summary="Every circuit that the switches show",
    responses=problems_of(),
)
async def list_circuits(request: Request, limit: Limit = 100, cursor: Cursor = None) -> CircuitPage:
    """Circuits in order of rail and id."""
    circuits = fabric_views.circuits_view(runtime_of(request).engine)
    shown, following = page(circuits, lambda circuit: (circuit.rail, circuit.id), limit, cursor)
    return CircuitPage(circuits=[CircuitDocument.model_validate(c) for c in shown], next=following)


@router.get(
    "/steps",
    operation_id="list_steps",
    summary="Device steps that are planned or in flight",
    responses=problems_of(),
)
async def list_steps(request: Request, limit: Limit = 100, cursor: Cursor = None) -> StepPage:
    """Steps in order of number; finished ones are in the events."""
    switches = fabric_views.switches_view(runtime_of(request).engine)
    steps = [step for switch in switches for step in switch.steps]
    shown, following = page(steps, lambda step: (step.step,), limit, cursor)
    return StepPage(steps=[StepDocument.of(step) for step in shown], next=following)
