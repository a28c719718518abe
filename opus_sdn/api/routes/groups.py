"""Process groups and their connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from opus_sdn.api import bodies, examples
from opus_sdn.api.body import JsonBody
from opus_sdn.api.former import FormerJobs
from opus_sdn.api.job_documents import (
    ConnectionDocument,
    ConnectionPage,
    GroupDocument,
    GroupPage,
    GroupsAnswer,
)
from opus_sdn.api.routes.common import (
    FATAL,
    Cursor,
    GroupName,
    JobName,
    Limit,
    job_core,
    page,
    problems_of,
    runtime_of,
)
from opus_sdn.api.schemas import NAME_PATTERN, GroupRequest, GroupsRequest, group_spec
from opus_sdn.intent import views
from opus_sdn.intent.errors import Problem
from opus_sdn.intent.model import GroupSpec, GroupView

router = APIRouter(tags=["groups"])

_CHECK_IN = (
    Problem.MALFORMED_JSON,
    Problem.BODY_TOO_LARGE,
    Problem.NOT_LEADER,
    Problem.NOT_READY,
    Problem.OVERLOADED,
    Problem.UNKNOWN_JOB,
    Problem.STALE_INCARNATION,
    Problem.UNKNOWN_RANK,
    Problem.GROUP_CONFLICT,
    Problem.LIMIT_EXCEEDED,
    *FATAL,
)
JobQuery = Annotated[str, Query(pattern=NAME_PATTERN, description="Job name")]


@router.put(
    "/jobs/{job}/groups/{group}",
    operation_id="check_in_group",
    summary="Check a process group in",
    responses=problems_of(*_CHECK_IN),
    openapi_extra=bodies.described(GroupRequest, examples.GROUP),
)
async def check_in_group(
    request: Request,
    job: JobName,
    group: GroupName,
    body: Annotated[GroupRequest, Depends(JsonBody(GroupRequest, "rank_body_max_bytes"))],
) -> GroupDocument:
    """Answers how the group's traffic travels, and what its ring needs. Any member may send it, or all."""
    (view,) = await _check_in(request, job, body.incarnation, lambda world: [group_spec(group, body, world)])
    return GroupDocument.of(view)


@router.post(
    "/jobs/{job}/groups",
    operation_id="check_in_groups",
    summary="Check several process groups in at once",
    responses=problems_of(*_CHECK_IN),
    openapi_extra=bodies.described(GroupsRequest, examples.GROUPS),
)
async def check_in_groups(
    request: Request,
    job: JobName,
    body: Annotated[GroupsRequest, Depends(JsonBody(GroupsRequest, "rank_body_max_bytes"))],
) -> GroupsAnswer:
    """All of them or none. The answer has them in the order of the request."""
    checked = await _check_in(
        request,
        job,
        body.incarnation,
        lambda world: [group_spec(group.name, group, world) for group in body.groups],
    )
    return GroupsAnswer(groups=[GroupDocument.of(view) for view in checked])


@router.get(
    "/jobs/{job}/groups",
    operation_id="list_groups",
    summary="The job's process groups that have checked in",
    responses=problems_of(Problem.UNKNOWN_JOB),
)
async def list_groups(request: Request, job: JobName, limit: Limit = 100, cursor: Cursor = None) -> GroupPage:
    """Groups in order of name."""
    groups = views.groups_view(runtime_of(request).engine, job)
    shown, following = page(groups, lambda group: (group.name,), limit, cursor)
    return GroupPage(groups=[GroupDocument.of(group) for group in shown], next=following)


@router.get(
    "/connections",
    operation_id="list_connections",
    summary="The job's connections: rings that checked in, and pairs that were used",
    responses=problems_of(Problem.UNKNOWN_JOB),
)
async def list_connections(
    request: Request, job: JobQuery, limit: Limit = 100, cursor: Cursor = None
) -> ConnectionPage:
    """Connections in order of id."""
    connections = views.connections_view(runtime_of(request).engine, job)
    shown, following = page(connections, lambda connection: (connection.id,), limit, cursor)
    return ConnectionPage(connections=[ConnectionDocument.of(c) for c in shown], next=following)


@router.get(
    "/connections/{connection}",
    operation_id="get_connection",
    summary="One connection with its circuits",
    responses=problems_of(
        Problem.UNKNOWN_JOB, Problem.UNKNOWN_CONNECTION, Problem.UNROUTABLE, Problem.LIMIT_EXCEEDED
    ),
)
async def get_connection(
    request: Request,
    connection: Annotated[
        str, Path(min_length=1, max_length=192, description="As `dp-0` or `pp-0:0-4`", examples=["pp-0:0-4"])
    ],
    job: JobQuery,
) -> ConnectionDocument:
    """A pair of a checked-in group has its circuits also before its first message."""
    return ConnectionDocument.of(views.connection_view(runtime_of(request).engine, job, connection))


async def _check_in(
    request: Request, job: str, incarnation: int, groups: Callable[[int], list[GroupSpec]]
) -> tuple[GroupView, ...]:
    """Check in what `groups` makes of the job's number of ranks."""
    runtime = runtime_of(request)
    runtime.take_on()
    former: FormerJobs = request.app.state.former_jobs
    with former.telling(job, incarnation):
        specs = groups(len(job_core(runtime, job).ranks))
        checked = runtime.engine.check_in(runtime.now(), job, incarnation, specs)
    await runtime.stored()
    return checked
