"""Jobs that the core knows, and former ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI

from opus_sdn.api import problems
from opus_sdn.api.former import FormerJob, FormerJobs
from opus_sdn.api.job_documents import (
    AlarmDocument,
    CutDocument,
    DimensionDocument,
    FailureDocument,
    JobDocument,
    JobSummary,
    RankDocument,
    TransitionDocument,
)
from opus_sdn.intent import views
from opus_sdn.intent.errors import Failure
from opus_sdn.reconciler.runs import rfc3339

Seen = views.JobView | FormerJob


def jobs_seen(app: FastAPI) -> Iterator[Seen]:
    """Every job at its newest incarnation."""
    engine = app.state.runtime.engine
    known = views.jobs_view(engine)
    yield from known
    here = {view.job for view in known}
    former: FormerJobs = app.state.former_jobs
    yield from (job for job in former if job.job not in here)


def job_document(app: FastAPI, job: str) -> JobDocument:
    """One job. Raises CoreError `unknown-job`."""
    engine = app.state.runtime.engine
    former: FormerJobs = app.state.former_jobs
    before = former.get(job) if job not in engine.state.jobs else None
    seen: Seen = before or views.job_view(engine, job)
    spec = seen.spec
    return JobDocument(
        **_summary(seen),
        dimensions=[DimensionDocument(name=d.name, size=d.size) for d in spec.dimensions],
        port_choice=spec.port_choice,
        world_group=spec.world_group,
        force_scale_out=spec.force_scale_out,
        deadline_s=spec.deadline_s,
        transitions=_transitions(seen) if isinstance(seen, views.JobView) else [],
        cuts=_cuts(seen) if isinstance(seen, views.JobView) else [],
        ranks=[_rank(rank) for rank in seen.ranks] if isinstance(seen, views.JobView) else [],
    )


def job_summary(seen: Seen) -> JobSummary:
    """A job without its ranks."""
    return JobSummary(**_summary(seen))


def _summary(seen: Seen) -> dict[str, Any]:
    common = {
        "job": seen.job,
        "owner": seen.spec.owner,
        "incarnation": seen.incarnation,
        "state": seen.state,
        "world_size": len(seen.spec.placement),
        "failure": _failure(seen.failure) if seen.failure is not None else None,
    }
    if isinstance(seen, FormerJob):
        names = ("grants", "operations", "runs_cut", "topology_changes", "device_steps")
        counts = {**dict.fromkeys(names, 0), "exposed_wait_ms": 0.0}
        return {**common, **counts, "started_at": None, "topology": {}, "alarms": []}
    return {
        **common,
        "started_at": rfc3339(seen.started_at),
        "topology": seen.topology,
        "grants": seen.grants,
        "operations": seen.operations,
        "runs_cut": seen.runs_cut,
        "topology_changes": seen.topology_changes,
        "device_steps": seen.device_steps,
        "exposed_wait_ms": seen.exposed_wait_ms,
        "alarms": [_alarm(alarm) for alarm in seen.alarms],
    }


def _transitions(seen: views.JobView) -> list[TransitionDocument]:
    return [TransitionDocument(**asdict(transition)) for transition in seen.transitions]


def _cuts(seen: views.JobView) -> list[CutDocument]:
    return [
        CutDocument(
            connection=cut.connection,
            n=cut.n,
            length=cut.length,
            decided=cut.decided,
            issued={str(rank): issued for rank, issued in cut.issued.items()},
            holders=list(cut.holders),
        )
        for cut in seen.cuts
    ]


def _failure(failure: Failure) -> FailureDocument:
    return FailureDocument(
        type=problems.type_of(failure.problem), detail=failure.detail, rank=failure.rank, data=failure.data
    )


def _alarm(view: views.AlarmView) -> AlarmDocument:
    return AlarmDocument(
        circuit=view.circuit,
        rail=view.rail,
        switch=view.switch,
        since=rfc3339(view.since),
        ranks=list(view.ranks),
    )


def _rank(view: views.RankView) -> RankDocument:
    return RankDocument(
        rank=view.rank,
        host=view.host,
        slot=view.slot,
        stage=view.stage,
        last_heard=rfc3339(view.last_heard),
        stopped=view.stopped,
        grants=view.grants,
        open=view.open,
        barrier_wait_ms=view.barrier_wait_ms,
        exposed_wait_ms=view.exposed_wait_ms,
    )
