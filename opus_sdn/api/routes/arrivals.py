"""Where the hot route is attached and described; `HotRoute` carries it out without calling this function."""

from __future__ import annotations

from fastapi import APIRouter

from opus_sdn.api import bodies, examples, hot
from opus_sdn.api.job_documents import ArrivalsAnswer
from opus_sdn.api.routes.common import FATAL, JobName, problems_of
from opus_sdn.api.schemas import ArrivalsRequest
from opus_sdn.intent.errors import Problem

router = APIRouter(tags=["ranks"], route_class=hot.HotRoute)


@router.post(
    "/jobs/{job}/arrivals",
    operation_id="post_arrivals",
    summary="All news of one or more ranks; answers with their grants",
    response_model=ArrivalsAnswer,
    responses=problems_of(
        Problem.MALFORMED_JSON,
        Problem.BODY_TOO_LARGE,
        Problem.NOT_LEADER,
        Problem.NOT_READY,
        Problem.OVERLOADED,
        Problem.UNKNOWN_JOB,
        Problem.STALE_INCARNATION,
        Problem.STALE_START,
        Problem.UNKNOWN_RANK,
        Problem.UNKNOWN_CONNECTION,
        Problem.NOT_A_MEMBER,
        Problem.UNROUTABLE,
        Problem.RECEIVE_FROM_ANY,
        Problem.RELEASE_NOT_HELD,
        Problem.LIMIT_EXCEEDED,
        *FATAL,
    ),
    openapi_extra=bodies.described(ArrivalsRequest, examples.ARRIVALS),
)
async def post_arrivals(job: JobName) -> None:
    """Releases and arrivals are taken as a whole or refused as a whole, and repeating a request is harmless.

    The answer comes as soon as a named rank has a grant above its `last_grant` or its job has failed, else
    after `wait_s` seconds with the state then (0: at once; at most a third of the lease, as a rank is heard
    only when it asks). A newer request of a rank that waits ends its older one. A grant is answered only when
    the switch shows every circuit of it and the locks are stored.
    """
