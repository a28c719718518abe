"""Who holds what, and who waits for what and why."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from opus_sdn.api.job_documents import IntentDocument, IntentPage, LockDocument, LockPage
from opus_sdn.api.routes.common import Cursor, Limit, page, problems_of, runtime_of
from opus_sdn.api.schemas import NAME_PATTERN
from opus_sdn.intent import views
from opus_sdn.intent.errors import Problem

router = APIRouter(tags=["waits"])

OfJob = Annotated[str | None, Query(pattern=NAME_PATTERN, description="Only of this job")]


@router.get(
    "/locks",
    operation_id="list_locks",
    summary="Who holds which circuits, and for how long",
    responses=problems_of(),
)
async def list_locks(
    request: Request, job: OfJob = None, limit: Limit = 100, cursor: Cursor = None
) -> LockPage:
    """Locks in order of time and id, oldest first."""
    runtime = runtime_of(request)
    locks = [lock for lock in views.locks_view(runtime.engine) if job in (None, lock.job)]
    shown, following = page(locks, lambda lock: (lock.since, lock.id), limit, cursor)
    now = runtime.now()
    return LockPage(locks=[LockDocument.of(lock, now) for lock in shown], next=following)


@router.get(
    "/intents",
    operation_id="list_intents",
    summary="Runs that are not granted, and why",
    responses=problems_of(Problem.UNKNOWN_JOB),
)
async def list_intents(
    request: Request, job: OfJob = None, limit: Limit = 100, cursor: Cursor = None
) -> IntentPage:
    """Intents in order of first arrival."""
    intents = views.intents_view(runtime_of(request).engine, job)
    shown, following = page(intents, lambda intent: (intent.first_at, intent.id), limit, cursor)
    return IntentPage(intents=[IntentDocument.of(intent) for intent in shown], next=following)
