"""Whether a job may have its ports: now, not at all, or later, when it has asked to wait in the queue.

The queue is first come, first served among jobs whose ports overlap: nobody, queued or not, gets a port for
which somebody else was queued before. Jobs whose ports are free pass those that wait for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, cast

from opus_sdn.intent import failing, seeding
from opus_sdn.intent.changes import DirectiveGiven, DirectiveKind, DirectiveWithdrawn, JobStarted
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.fabric import Port
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.links import check_budget
from opus_sdn.intent.model import Dimension, JobSpec, Place, PortChoice, RetryBudget, WorldGroup
from opus_sdn.intent.ranks import Layout
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.requests import check_job, check_places
from opus_sdn.intent.standing import QueuedJob, Told
from opus_sdn.intent.state import CoreState, make_event
from opus_sdn.intent.topology_id import circuits_of

REASONS = {
    Problem.PORTS_OVERLAP: Reason.PORTS_TAKEN,
    Problem.PORT_DRAINED: Reason.DRAINED,
    Problem.PORT_IN_USE: Reason.MANUAL,
    Problem.LIMIT_EXCEEDED: Reason.CAPACITY,
}


def put(state: CoreState, now: float, spec: JobSpec, *, queue: bool) -> int:
    """Admit a job that is not known yet: its incarnation, or 0 when it was queued. CoreError when refused."""
    check_job(state, spec)
    check_budget(state, spec, _rails(state, spec))
    waiting = state.queue.get(spec.name)
    if waiting is not None and waiting.spec.owner != spec.owner:
        raise CoreError(
            Problem.JOB_CONFLICT,
            f"job {spec.name} of owner {waiting.spec.owner!r} is queued; owner {spec.owner!r} needs another "
            "job name",
            job=spec.name,
            field="owner",
        )
    ahead = state.queue.values() if waiting is None else _before(state, waiting)
    refusal = why_not(state, spec, ahead)
    if refusal is None:
        return admit(state, now, spec)
    if not queue:
        raise refusal
    _enqueue(state, now, spec, waiting, because_of(refusal))
    return 0


def why_not(state: CoreState, spec: JobSpec, ahead: Iterable[QueuedJob]) -> CoreError | None:
    """Why a job cannot have its ports now; `ahead`: who was queued before it. None when it can."""
    ahead = [queued for queued in ahead if queued.spec.name != spec.name]
    running = [job for job in state.active.values() if job.spec.name != spec.name]
    first = sum(queued.because.reason is Reason.CAPACITY for queued in ahead)
    if len(running) + first >= state.settings.jobs_max:
        return CoreError(
            Problem.LIMIT_EXCEEDED,
            f"{len(running)} jobs run, and {first} wait for one of them to end; the limit is "
            f"{state.settings.jobs_max}",
            limit=state.settings.jobs_max,
        )
    taken = {at: (job.spec.name, "uses") for job in running for at in job.rank_at}
    for queued in ahead:
        for place in queued.spec.placement:
            taken.setdefault((place.host, place.slot), (queued.spec.name, "was queued for, before"))
    for rank, place in enumerate(spec.placement):
        refusal = _why_not_there(state, rank, place, taken.get((place.host, place.slot)))
        if refusal is not None:
            return refusal
    return None


def _why_not_there(
    state: CoreState, rank: int, place: Place, taken: tuple[str, str] | None
) -> CoreError | None:
    where = f"rank {rank} is placed on host {place.host} slot {place.slot}"
    at: dict[str, object] = {"rank": rank, "host": place.host, "slot": place.slot}
    if taken is not None:
        return CoreError(
            Problem.PORTS_OVERLAP,
            f"{where}, whose ports job {taken[0]} {taken[1]}; a port belongs to one job at a time",
            **at,
            job=taken[0],
        )
    if not state.barred:
        return None
    for index in range(state.fabric.ports_per_gpu):
        port = Port(place.host, place.slot, index)
        drain = state.drains.get(port)
        if drain is not None:
            return CoreError(
                Problem.PORT_DRAINED,
                f"{where}, whose port {port} is drained, by {drain.told.by}; undrain it, or place the rank "
                "elsewhere",
                **at,
                port=str(port),
            )
        for manual in state.manual.values():
            if port in (manual.circuit.a, manual.circuit.b):
                return CoreError(
                    Problem.PORT_IN_USE,
                    f"{where}, whose port {port} has the circuit {manual.circuit.id}, which "
                    f"{manual.told.by} keeps up; take that back, or place the rank elsewhere",
                    **at,
                    port=str(port),
                    circuit=manual.circuit.id,
                )
    return None


def admit(state: CoreState, now: float, spec: JobSpec) -> int:
    """The job runs from now on; an incarnation of its name that still holds ports ends. Its incarnation."""
    layout = Layout(spec.dimensions, len(spec.placement))
    wanted = spec.initial_topology
    seed = {} if wanted is None else dict(circuits_of(state.fabric, spec, layout, wanted))
    warnings = check_budget(state, spec, _rails(state, spec))
    known = state.jobs.get(spec.name)
    if known is not None and known.occupies_ports():
        superseded = Failure(Problem.SUPERSEDED, f"a newer incarnation of job {spec.name} was started")
        failing.fail_job(state, known, superseded)
        failing.end_job(state, known)
    if state.queue.pop(spec.name, None) is not None:
        state.ledger.add(DirectiveWithdrawn(DirectiveKind.QUEUED, spec.name), durable=True)
        state.admissions_due = True  # whoever waited behind it waits for other ports now
    incarnation = state.incarnations.pop(spec.name, state.incarnation_floor) + 1
    state.incarnations[spec.name] = incarnation  # the newest comes last
    job = JobCore(state.fabric, state.settings, spec, incarnation, now)
    state.admit(job)
    state.ledger.add(JobStarted(spec.name, incarnation, spec), durable=True)
    state.ledger.event("job.started", job, world_size=len(spec.placement), owner=spec.owner)
    for warning in warnings:
        state.ledger.event("job.retry-budget", job, **warning)
    seeding.seed_job(state, job, seed)
    state.refresh_topology(job, job.rails)
    return incarnation


def _rails(state: CoreState, spec: JobSpec) -> dict[str, None]:
    return dict.fromkeys(state.fabric.rail_of(place.host, place.slot) for place in spec.placement)


# --- the queue


def admit_queued(state: CoreState, now: float) -> None:
    """Admit whoever can have its ports now, in the order in which they came; the others learn why not."""
    while state.admissions_due:
        state.admissions_due = False
        ahead: list[QueuedJob] = []
        for queued in list(state.queue.values()):
            try:
                check_places(state.fabric, queued.spec)
                refusal = why_not(state, queued.spec, ahead)
                if refusal is None:
                    admit(state, now, queued.spec)
                    continue
            except CoreError as error:
                _drop(state, queued.spec.name, "cannot be admitted any more", detail=error.detail)
                continue
            queued.because = because_of(refusal)
            ahead.append(queued)


def withdraw(state: CoreState, name: str, by: str) -> QueuedJob:
    """A job waits no longer. CoreError `unknown-job`."""
    queued = state.queue.get(name)
    if queued is None:
        raise CoreError(Problem.UNKNOWN_JOB, f"no job {name!r} is queued", job=name)
    _drop(state, name, "was withdrawn", by=by)
    state.admissions_due = True
    return queued


def _drop(state: CoreState, name: str, why: str, **data: object) -> None:
    del state.queue[name]
    state.ledger.add(DirectiveWithdrawn(DirectiveKind.QUEUED, name), durable=True)
    said = {"name": name, "why": why, **data}
    state.ledger.add(make_event("job.unqueued", None, None, None, said))


def _enqueue(
    state: CoreState, now: float, spec: JobSpec, waiting: QueuedJob | None, because: Because
) -> None:
    """A job comes to the end of the queue; declared anew it keeps its place."""
    if waiting is not None and waiting.spec == spec:
        waiting.because = because
        return
    if waiting is None and len(state.queue) >= state.settings.queue_max:
        raise CoreError(
            Problem.LIMIT_EXCEEDED,
            f"{len(state.queue)} jobs are queued; the limit is {state.settings.queue_max}",
            limit=state.settings.queue_max,
        )
    if waiting is None:
        told = Told(state.next_directive, now, spec.owner)
        state.next_directive += 1
    else:
        told = waiting.told
    state.queue[spec.name] = QueuedJob(told, spec, because)
    data: dict[str, object] = {"by": told.by, "detail": told.detail, "spec": asdict(spec)}
    given = DirectiveGiven(DirectiveKind.QUEUED, spec.name, told.number, told.at, data)
    state.ledger.add(given, durable=True)
    said = {"name": spec.name, "owner": spec.owner, "reason": because.reason.value, "detail": because.detail}
    state.ledger.add(make_event("job.queued", None, None, None, said))


def restore_queued(state: CoreState, told: Told, data: object) -> None:
    """A job that was queued in an earlier start. CoreError when it does not fit the fabric any more."""
    spec = _spec_of(data)
    check_places(state.fabric, spec)
    state.queue[spec.name] = QueuedJob(told, spec, Because(Reason.PORTS_TAKEN, "not looked at yet"))


def _spec_of(data: object) -> JobSpec:
    """What `asdict` and JSON have made of a declaration, as it was."""
    fields = dict(cast("dict[str, Any]", data))
    fields["placement"] = tuple(Place(**place) for place in fields["placement"])
    fields["dimensions"] = tuple(Dimension(**dimension) for dimension in fields["dimensions"])
    fields["port_choice"] = PortChoice(fields["port_choice"])
    fields["world_group"] = WorldGroup(fields["world_group"])
    budget = fields["retry_budget"]
    fields["retry_budget"] = None if budget is None else RetryBudget(**budget)
    return JobSpec(**fields)


def _before(state: CoreState, waiting: QueuedJob) -> list[QueuedJob]:
    return [queued for queued in state.queue.values() if queued.told.number < waiting.told.number]


def because_of(refusal: CoreError) -> Because:
    """The refusal as the reason of a job that waits instead."""
    return Because(REASONS[refusal.problem], refusal.detail, dict(refusal.data))
