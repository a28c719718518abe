"""Jobs: declare, look at, end, and say that something went wrong."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from opus_sdn.api import bodies, examples
from opus_sdn.api.body import JsonBody
from opus_sdn.api.former import VOUCHED, FormerJobs
from opus_sdn.api.job_documents import JobAnswer, JobDocument, JobPage, JobSummary
from opus_sdn.api.jobs_seen import job_document, job_summary, jobs_seen
from opus_sdn.api.operator_documents import QueuedDocument
from opus_sdn.api.routes.common import (
    FATAL,
    Cursor,
    IncarnationQuery,
    JobName,
    Limit,
    job_core,
    page,
    problems_of,
    runtime_of,
)
from opus_sdn.api.schemas import AbortRequest, DeathsRequest, FailureRequest, JobRequest, LinksRequest
from opus_sdn.intent import views
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.model import Stream
from opus_sdn.reconciler.runtime import Runtime

router = APIRouter(tags=["jobs"])

_BODY = (
    Problem.MALFORMED_JSON,
    Problem.BODY_TOO_LARGE,
    Problem.NOT_LEADER,
    Problem.NOT_READY,
    Problem.OVERLOADED,
)
_STALE = (Problem.UNKNOWN_JOB, Problem.STALE_INCARNATION)


@router.put(
    "/jobs/{job}",
    operation_id="put_job",
    summary="Declare a job: a new nonce starts a new incarnation",
    response_model=JobAnswer | QueuedDocument,
    responses={
        200: {"description": "This nonce is known; nothing was changed", "model": JobAnswer},
        201: {"description": "A new incarnation was started", "model": JobAnswer},
        202: {"description": "The job is queued until it can have its ports", "model": QueuedDocument},
        **problems_of(
            *_BODY,
            Problem.UNKNOWN_PLACE,
            Problem.UNKNOWN_RANK,
            Problem.PORTS_OVERLAP,
            Problem.JOB_CONFLICT,
            Problem.RETRY_BUDGET,
            Problem.STALE_INCARNATION,
            Problem.UNROUTABLE,
            Problem.PORT_DRAINED,
            Problem.PORT_IN_USE,
            Problem.LIMIT_EXCEEDED,
        ),
    },
    openapi_extra=bodies.described(JobRequest, examples.JOB),
)
async def put_job(
    request: Request,
    response: Response,
    job: JobName,
    body: Annotated[JobRequest, Depends(JsonBody(JobRequest, "operator_body_max_bytes"))],
) -> JobAnswer | QueuedDocument:
    """The placement of all ranks, their parallelism dimensions and a nonce that all ranks of this life share.

    A running incarnation of the same name ends: who declares it anew vouches that its processes are gone.
    With `admission` `queue` a job whose ports are not free waits for them: declare it again, with the same
    nonce, until it runs.
    """
    runtime = runtime_of(request)
    runtime.take_on()
    former = _former(request)
    spec, now = body.spec(job), runtime.now()
    incarnation, created = runtime.engine.put_job(now, spec, queue=body.admission == "queue")
    if incarnation == 0:
        await runtime.stored()
        waiting = {view.job: view for view in views.queue_view(runtime.engine)}.get(job)
        if waiting is not None:
            response.status_code = 202
            return QueuedDocument.of(waiting)
        incarnation, created = job_core(runtime, job).incarnation, True  # admitted in the same moment
    former.superseded(job)
    await runtime.stored()
    core = job_core(runtime, job)
    if created:
        response.status_code = 201
        response.headers["Location"] = request.url.path
    return JobAnswer(
        job=job,
        incarnation=incarnation,
        start=runtime.engine.state.start,
        state=core.state,
        topology=core.topology,
    )


@router.get(
    "/jobs",
    operation_id="list_jobs",
    summary="All jobs, each at its newest incarnation",
    responses=problems_of(),
)
async def list_jobs(request: Request, limit: Limit = 100, cursor: Cursor = None) -> JobPage:
    """Jobs in order of name, without their ranks."""
    shown, following = page(jobs_seen(request.app), lambda seen: (seen.job,), limit, cursor)
    return JobPage(jobs=[job_summary(seen) for seen in shown], next=following)


@router.get(
    "/jobs/{job}",
    operation_id="get_job",
    summary="One job with its ranks",
    responses=problems_of(Problem.UNKNOWN_JOB),
)
async def get_job(request: Request, job: JobName) -> JobDocument:
    """The newest incarnation of a job. Ranks are listed while this start of the controller knows them."""
    return job_document(request.app, job)


@router.delete(
    "/jobs/{job}",
    operation_id="end_job",
    summary="All ranks have stopped: free the job's ports",
    responses=problems_of(Problem.NOT_READY, Problem.OVERLOADED, *_STALE),
)
async def end_job(request: Request, job: JobName, incarnation: IncarnationQuery) -> JobSummary:
    """Who calls this vouches that every process of the incarnation is gone."""
    runtime = runtime_of(request)
    runtime.take_on()
    former = _former(request)
    before = former.get(job)
    if before is not None and before.incarnation == incarnation and job not in runtime.engine.state.jobs:
        if changes := former.end(job, VOUCHED):
            await runtime.record(*changes)
        return job_summary(former.get(job) or before)
    runtime.engine.end_job(runtime.now(), job, incarnation)
    return await _stored(runtime, job)


@router.post(
    "/jobs/{job}/abort",
    operation_id="abort_job",
    summary="Fail the incarnation for all its ranks",
    responses=problems_of(*_BODY, *_STALE, Problem.UNKNOWN_RANK, *FATAL),
    openapi_extra=bodies.described(AbortRequest, examples.ABORT),
)
async def abort_job(
    request: Request,
    job: JobName,
    body: Annotated[AbortRequest, Depends(JsonBody(AbortRequest, "rank_body_max_bytes"))],
) -> JobSummary:
    """Every rank is told the cause `aborted` with this detail. Repeating it is harmless."""
    runtime = runtime_of(request)
    runtime.take_on()
    with _former(request).telling(job, body.incarnation):
        runtime.engine.abort(runtime.now(), job, body.incarnation, body.rank, body.detail)
    return await _stored(runtime, job)


@router.post(
    "/jobs/{job}/failures",
    operation_id="report_failure",
    summary="An operation failed on a rank's device",
    responses=problems_of(*_BODY, *_STALE, Problem.UNKNOWN_RANK, *FATAL),
    openapi_extra=bodies.described(FailureRequest, examples.FAILURE),
)
async def report_failure(
    request: Request,
    job: JobName,
    body: Annotated[FailureRequest, Depends(JsonBody(FailureRequest, "rank_body_max_bytes"))],
) -> JobSummary:
    """The controller waits a little for the rank that died to be known, then tells all ranks one cause."""
    runtime = runtime_of(request)
    runtime.take_on()
    if body.connection is None and (body.source, body.destination, body.n) != (None, None, None):
        raise CoreError(
            Problem.INVALID_REQUEST,
            "connection is required when source, destination or n is given",
            field="connection",
        )
    stream = None if body.connection is None else Stream(body.connection, body.source, body.destination)
    with _former(request).telling(job, body.incarnation):
        runtime.engine.operation_failed(
            runtime.now(), job, body.incarnation, body.rank, stream, body.n, body.detail
        )
    return await _stored(runtime, job)


@router.post(
    "/jobs/{job}/deaths",
    operation_id="report_deaths",
    summary="The launcher or host agent vouches that ranks are gone",
    responses=problems_of(*_BODY, *_STALE, Problem.UNKNOWN_RANK, *FATAL),
    openapi_extra=bodies.described(DeathsRequest, examples.DEATHS),
)
async def report_deaths(
    request: Request,
    job: JobName,
    body: Annotated[DeathsRequest, Depends(JsonBody(DeathsRequest, "operator_body_max_bytes"))],
) -> JobSummary:
    """Their locks go, and the job fails with the cause `rank-lost`. Repeating it is harmless."""
    runtime = runtime_of(request)
    runtime.take_on()
    with _former(request).telling(job, body.incarnation):
        runtime.engine.report_dead(runtime.now(), job, body.incarnation, body.ranks, body.detail)
    return await _stored(runtime, job)


@router.post(
    "/jobs/{job}/links",
    operation_id="report_links",
    summary="A rank's host says whether the links of its NIC ports are up",
    status_code=204,
    response_class=Response,
    responses=problems_of(*_BODY, *_STALE, Problem.UNKNOWN_RANK, Problem.INVALID_REQUEST, *FATAL),
    openapi_extra=bodies.described(LinksRequest, examples.LINKS),
)
async def report_links(
    request: Request,
    job: JobName,
    body: Annotated[LinksRequest, Depends(JsonBody(LinksRequest, "rank_body_max_bytes"))],
) -> None:
    """Kept in memory only, so it is said again from time to time. Grants on a rail may wait for it."""
    runtime = runtime_of(request)
    runtime.require_ready()
    ports = {port.index: (port.up, port.detail) for port in body.ports}
    with _former(request).telling(job, body.incarnation):
        runtime.engine.report_links(runtime.now(), job, body.incarnation, body.rank, ports)
    runtime.changed()


def _former(request: Request) -> FormerJobs:
    former: FormerJobs = request.app.state.former_jobs
    return former


async def _stored(runtime: Runtime, job: str) -> JobSummary:
    await runtime.stored()
    return job_summary(views.job_view(runtime.engine, job))
