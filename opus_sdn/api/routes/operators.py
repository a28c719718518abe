"""What operators tell: drained ports, circuits of their own, locks taken away, jobs that wait."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from opus_sdn.api import bodies, examples
from opus_sdn.api.body import JsonBody
from opus_sdn.api.operator_documents import (
    DirectiveDocument,
    DirectivePage,
    QueuedDocument,
    QueuePage,
    ReleasedDocument,
)
from opus_sdn.api.operator_schemas import CircuitRequest, DrainRequest, UndrainRequest
from opus_sdn.api.plan_book import PlanBook
from opus_sdn.api.plan_documents import ChangePlanDocument, ChangePlanPage
from opus_sdn.api.plan_schemas import PlanRequest
from opus_sdn.api.routes.common import (
    Cursor,
    IncarnationQuery,
    JobName,
    Limit,
    page,
    problems_of,
    runtime_of,
)
from opus_sdn.api.schemas import RANKS_MAX
from opus_sdn.intent import fabric_views, views
from opus_sdn.intent.changes import DirectiveKind
from opus_sdn.intent.directives import Operator
from opus_sdn.intent.errors import CoreError, Problem

router = APIRouter(tags=["operators"])

_ACT = (Problem.NOT_LEADER, Problem.NOT_READY, Problem.OVERLOADED)
_BODY = (Problem.MALFORMED_JSON, Problem.BODY_TOO_LARGE, *_ACT)

PortPath = Annotated[str, Path(max_length=300, description="Port, as host:slot:index")]
PlanPath = Annotated[str, Path(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$", description="Plan", examples=["7-3"])]
By = Annotated[str, Query(min_length=1, max_length=128, description="Who asks for it")]
Detail = Annotated[str, Query(max_length=4096, description="Why, for whoever reads it later")]
Force = Annotated[bool, Query(description="Goes before locks: traffic may be cut. Audited")]


@router.get(
    "/directives",
    operation_id="list_directives",
    summary="Drained ports and operators' circuits",
    responses=problems_of(),
)
async def list_directives(request: Request, limit: Limit = 100, cursor: Cursor = None) -> DirectivePage:
    """What operators have told and what holds until it is taken back, in order of kind and name."""
    held = fabric_views.directives_view(runtime_of(request).engine)
    shown, following = page(held, lambda view: (view.kind.value, view.name), limit, cursor)
    return DirectivePage(directives=[DirectiveDocument.of(view) for view in shown], next=following)


@router.post(
    "/ports/{port}/drain",
    operation_id="drain_port",
    summary="No circuit for a port from now on",
    responses=problems_of(*_BODY, Problem.NOT_FOUND, Problem.LOCKED, Problem.PORT_IN_USE),
    openapi_extra=bodies.described(DrainRequest, examples.DRAIN),
)
async def drain_port(
    request: Request,
    port: PortPath,
    body: Annotated[DrainRequest, Depends(JsonBody(DrainRequest, "rank_body_max_bytes"))],
) -> DirectiveDocument:
    """What is idle on it is taken down, and what needs it waits with the reason `drained`. Refused with the
    holders while a rank holds it, unless forced. It lasts over restarts; repeating it is harmless.
    """
    runtime = runtime_of(request)
    runtime.take_on()
    runtime.engine.drain_port(runtime.now(), port, body.operator())
    drained = _directive(request, DirectiveKind.DRAIN, port)  # somebody may take it back while it is stored
    await runtime.stored()
    return drained


@router.post(
    "/ports/{port}/undrain",
    operation_id="undrain_port",
    summary="A port may be used again",
    status_code=204,
    responses=problems_of(*_BODY, Problem.NOT_FOUND),
    openapi_extra=bodies.described(UndrainRequest, examples.UNDRAIN),
)
async def undrain_port(
    request: Request,
    port: PortPath,
    body: Annotated[UndrainRequest, Depends(JsonBody(UndrainRequest, "rank_body_max_bytes"))],
) -> Response:
    """Whatever waited for it goes on. Repeating it is harmless."""
    runtime = runtime_of(request)
    runtime.take_on()
    runtime.engine.undrain_port(runtime.now(), port, body.operator())
    await runtime.stored()
    return Response(status_code=204)


@router.post(
    "/circuits",
    operation_id="keep_circuit",
    summary="Keep a circuit between two ports up",
    status_code=201,
    responses=problems_of(
        *_BODY,
        Problem.NOT_FOUND,
        Problem.UNROUTABLE,
        Problem.LOCKED,
        Problem.PORT_IN_USE,
        Problem.PORT_DRAINED,
    ),
    openapi_extra=bodies.described(CircuitRequest, examples.CIRCUIT),
)
async def keep_circuit(
    request: Request,
    body: Annotated[CircuitRequest, Depends(JsonBody(CircuitRequest, "rank_body_max_bytes"))],
) -> DirectiveDocument:
    """Of the kind that the fabric's switches make, repaired when somebody takes it down, and in nobody's job:
    jobs that need its ports are not admitted. Refused on ports of a running job, unless forced.
    """
    runtime = runtime_of(request)
    runtime.take_on()
    circuit = runtime.engine.want_circuit(runtime.now(), body.a, body.b, body.operator()).circuit
    kept = _directive(request, DirectiveKind.CIRCUIT, circuit.id)  # somebody may drop it while it is stored
    await runtime.stored()
    return kept


@router.delete(
    "/circuits/{circuit}",
    operation_id="drop_circuit",
    summary="Keep an operator's circuit up no longer",
    status_code=204,
    responses=problems_of(*_ACT, Problem.NOT_FOUND),
)
async def drop_circuit(
    request: Request,
    circuit: Annotated[str, Path(max_length=700, description="Circuit, as in the list of directives")],
    by: By,
    detail: Detail = "",
) -> Response:
    """It stays on the switch, and goes when something else needs its ports; drain one to have it dark."""
    runtime = runtime_of(request)
    runtime.take_on()
    runtime.engine.drop_circuit(runtime.now(), circuit, Operator(by, detail))
    await runtime.stored()
    return Response(status_code=204)


@router.delete(
    "/locks/{lock}",
    operation_id="release_lock",
    summary="Take one lock away from its rank",
    responses=problems_of(*_ACT, Problem.NOT_FOUND, Problem.LOCKED),
)
async def release_lock(
    request: Request,
    lock: Annotated[str, Path(max_length=300, description="Lock, as in the list of locks")],
    by: By,
    detail: Detail = "",
    force: Force = False,
) -> ReleasedDocument:
    """Refused without force, as the rank may still transmit: then say that it is dead, or wait for its lease.
    What is taken by force may be re-pointed under traffic; who, why and what was held stand in the event.
    """
    parts = lock.rsplit(".", 3)
    if len(parts) != 4 or not all(part.isdecimal() for part in parts[1:]):
        raise CoreError(
            Problem.NOT_FOUND,
            f"there is no lock {lock!r}; locks are written job.incarnation.grant.rank, as GET /locks lists",
            lock=lock,
        )
    runtime = runtime_of(request)
    runtime.take_on()
    incarnation, no, rank = map(int, parts[1:])
    who = Operator(by, detail, force)
    taken = runtime.engine.release_locks(runtime.now(), who, parts[0], incarnation, rank, no)
    await runtime.stored()
    return ReleasedDocument.of(taken)


@router.delete(
    "/jobs/{job}/locks",
    operation_id="release_locks",
    summary="Take all locks of a job, or of one rank, away",
    responses=problems_of(*_ACT, Problem.NOT_FOUND, Problem.LOCKED),
)
async def release_locks(
    request: Request,
    job: JobName,
    incarnation: IncarnationQuery,
    by: By,
    rank: Annotated[int | None, Query(ge=0, lt=RANKS_MAX, description="Only of this rank")] = None,
    detail: Detail = "",
    force: Force = False,
) -> ReleasedDocument:
    """As for one lock."""
    runtime = runtime_of(request)
    runtime.take_on()
    who = Operator(by, detail, force)
    taken = runtime.engine.release_locks(runtime.now(), who, job, incarnation, rank)
    await runtime.stored()
    return ReleasedDocument.of(taken)


@router.get(
    "/queue",
    operation_id="list_queue",
    summary="Jobs that wait for their ports, and why",
    responses=problems_of(),
)
async def list_queue(request: Request, limit: Limit = 100, cursor: Cursor = None) -> QueuePage:
    """First come first. None of them is passed by a later one that needs a port of it."""
    queued = views.queue_view(runtime_of(request).engine)
    shown, following = page(queued, lambda view: (view.position,), limit, cursor)
    return QueuePage(queue=[QueuedDocument.of(view) for view in shown], next=following)


@router.delete(
    "/queue/{job}",
    operation_id="withdraw_job",
    summary="A queued job waits no longer",
    status_code=204,
    responses=problems_of(*_ACT, Problem.UNKNOWN_JOB),
)
async def withdraw_job(request: Request, job: JobName, by: By) -> Response:
    """Whoever waited behind it moves up. A job that was admitted meanwhile is not queued any more."""
    runtime = runtime_of(request)
    runtime.take_on()
    runtime.engine.withdraw_job(runtime.now(), job, by)
    await runtime.stored()
    return Response(status_code=204)


@router.post(
    "/plans",
    operation_id="make_plan",
    summary="Look at a change before it is made",
    status_code=201,
    responses=problems_of(*_BODY),
    openapi_extra=bodies.described(PlanRequest, examples.PLAN),
)
async def make_plan(
    request: Request,
    response: Response,
    body: Annotated[PlanRequest, Depends(JsonBody(PlanRequest, "operator_body_max_bytes"))],
) -> ChangePlanDocument:
    """Its device steps, the circuits that they disturb, what would stay blocked and why, or the problem with
    which it would be refused now. Nothing is changed. The plan is kept for an hour, the newest 64 of them.
    """
    made = await _plans(request).make(body)
    response.headers["Location"] = f"{request.url.path}/{made.id}"
    return made


@router.get(
    "/plans",
    operation_id="list_plans",
    summary="Changes that were looked at",
    responses=problems_of(),
)
async def list_plans(request: Request, limit: Limit = 100, cursor: Cursor = None) -> ChangePlanPage:
    """Those that are kept, oldest first, applied ones too."""
    shown, following = page(_plans(request).kept(), _plan_order, limit, cursor)
    return ChangePlanPage(plans=shown, next=following)


@router.get(
    "/plans/{plan}",
    operation_id="get_plan",
    summary="A change that was looked at",
    responses=problems_of(Problem.NOT_FOUND),
)
async def get_plan(request: Request, plan: PlanPath) -> ChangePlanDocument:
    """As it was made; `applied_at` says whether it was applied."""
    return _plans(request).get(plan)


@router.post(
    "/plans/{plan}/apply",
    operation_id="apply_plan",
    summary="Make the change that was looked at",
    responses=problems_of(
        *_ACT,
        Problem.NOT_FOUND,
        Problem.STALE_PLAN,
        Problem.LOCKED,
        Problem.PORT_IN_USE,
        Problem.PORT_DRAINED,
    ),
)
async def apply_plan(request: Request, plan: PlanPath) -> ChangePlanDocument:
    """Refused when the fabric or one of its switches has changed since, or when it would do anything else
    than what it showed. It is told in the name of whoever made the plan.
    """
    return await _plans(request).apply(plan)


def _plan_order(plan: ChangePlanDocument) -> tuple[int, ...]:
    return tuple(map(int, plan.id.split("-")))


def _plans(request: Request) -> PlanBook:
    plans: PlanBook = request.app.state.plans
    return plans


def _directive(request: Request, kind: DirectiveKind, name: str) -> DirectiveDocument:
    held = fabric_views.directives_view(runtime_of(request).engine)
    return DirectiveDocument.of(next(view for view in held if (view.kind, view.name) == (kind, name)))
