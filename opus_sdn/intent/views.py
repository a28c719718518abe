"""Read-only pictures of jobs and what they wait for, for GET routes, the command line and pages."""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.intent import drift
from opus_sdn.intent.changes import IntentState, JobState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.explain import why_waiting
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import Connection, GroupView, JobSpec
from opus_sdn.intent.reasons import Because
from opus_sdn.intent.serving import length_of


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank's session. Waits are summed over its grants, in milliseconds."""

    rank: int
    host: str
    slot: int
    stage: int
    last_heard: float
    stopped: bool
    grants: int
    open: int
    barrier_wait_ms: float
    exposed_wait_ms: float


@dataclass(frozen=True, slots=True)
class AlarmView:
    """A circuit that ranks of the job hold and that is not there, or passes no light, since `since`."""

    circuit: str
    rail: str
    switch: str
    since: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransitionView:
    """Grants of one dimension on ports that another one, or the same, had used before. Times are sums, in ms.

    `changes` needed a device step, of which `hits` were begun or done on hints when all had arrived; `hidden`
    is what of their time had passed by then, `exposed` from then until the grant.
    """

    before: str
    after: str
    grants: int
    changes: int
    hits: int
    exposed_wait_ms: float
    exposed_change_ms: float
    hidden_change_ms: float


@dataclass(frozen=True, slots=True)
class CutView:
    """A held run that a member has left: how far each rank that has answered is, and where it ends.

    `decided`: `length` is where it ends, not where it would have.
    """

    connection: str
    n: int
    length: int
    decided: bool
    issued: dict[int, int]
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobView:
    """One job's newest incarnation. `exposed_wait_ms` sums over grants, not over ranks.

    A grant is for one operation or a run of several: `operations` counts these.
    """

    job: str
    incarnation: int
    spec: JobSpec
    state: JobState
    failure: Failure | None
    started_at: float
    topology: dict[str, str]
    grants: int
    operations: int
    runs_cut: int
    topology_changes: int
    device_steps: int
    exposed_wait_ms: float
    ranks: tuple[RankView, ...]
    alarms: tuple[AlarmView, ...]
    transitions: tuple[TransitionView, ...]
    cuts: tuple[CutView, ...]


@dataclass(frozen=True, slots=True)
class QueuedView:
    """A job that waits for its ports. `position` counts the jobs that were queued before it."""

    job: str
    owner: str
    position: int
    since: float
    world_size: int
    because: Because


@dataclass(frozen=True, slots=True)
class LockView:
    """One rank's hold on a granted run. `id` is stable while it is held."""

    id: str
    job: str
    incarnation: int
    connection: str
    source: int | None
    destination: int | None
    n: int
    length: int
    rank: int
    no: int
    since: float
    circuits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IntentView:
    """One intent that is not granted, with who arrived, who is missing and why it waits.

    `length`: operations that a grant would be for, as far as the offers of those go who have arrived.
    """

    id: str
    job: str
    incarnation: int
    connection: str
    source: int | None
    destination: int | None
    n: int
    state: IntentState
    first_at: float
    complete_at: float | None
    overtaken: int
    length: int
    arrived: tuple[int, ...]
    missing: tuple[int, ...]
    because: Because


def jobs_view(engine: Engine) -> tuple[JobView, ...]:
    """Every job's newest incarnation, by name."""
    return tuple(job_view(engine, name) for name in sorted(engine.state.jobs))


def job_view(engine: Engine, name: str) -> JobView:
    """One job; CoreError `unknown-job`."""
    job = _job(engine, name)
    ranks = tuple(
        RankView(
            rank,
            place.host,
            place.slot,
            job.layout.stage_of[rank],
            state.last_heard,
            state.stopped,
            state.grants,
            len(state.open),
            round(state.barrier_wait_s * 1e3, 3),
            round(state.exposed_wait_s * 1e3, 3),
        )
        for rank, (place, state) in enumerate(zip(job.spec.placement, job.ranks, strict=True))
    )
    return JobView(
        name,
        job.incarnation,
        job.spec,
        job.state,
        job.failure,
        job.started_at,
        dict(job.topology),
        job.grants,
        job.operations,
        job.runs_cut,
        job.topology_changes,
        job.device_steps,
        round(job.exposed_wait_s * 1e3, 3),
        ranks,
        tuple(
            AlarmView(
                lost.circuit.id,
                lost.circuit.rail,
                lost.circuit.switch,
                lost.since,
                tuple(drift.ranks_on(job, lost.circuit)),
            )
            for lost in drift.losses(engine.state, job)
        ),
        tuple(
            TransitionView(
                before,
                after,
                seen.grants,
                seen.changes,
                seen.hits,
                round(seen.exposed_s * 1e3, 3),
                round(seen.exposed_change_s * 1e3, 3),
                round(seen.hidden_s * 1e3, 3),
            )
            for (before, after), seen in sorted(job.transitions.items())
        ),
        tuple(
            CutView(
                stream.connection,
                n,
                run.length,
                said.length is not None,
                dict(sorted(said.issued.items())),
                tuple(sorted(run.holders)),
            )
            for (stream, n), run in job.cuts.items()
            if (said := run.cutting) is not None
        ),
    )


def _job(engine: Engine, name: str) -> JobCore:
    job = engine.state.jobs.get(name)
    if job is None:
        raise CoreError(Problem.UNKNOWN_JOB, f"there is no job {name!r}; declare it first", job=name)
    return job


def queue_view(engine: Engine) -> tuple[QueuedView, ...]:
    """Jobs that wait for their ports, first come first."""
    return tuple(
        QueuedView(
            name,
            queued.spec.owner,
            position,
            queued.told.at,
            len(queued.spec.placement),
            queued.because,
        )
        for position, (name, queued) in enumerate(engine.state.queue.items())
    )


def groups_view(engine: Engine, name: str) -> tuple[GroupView, ...]:
    """A job's checked-in groups, in order of check-in."""
    return tuple(group.view() for group in _job(engine, name).groups.values())


def connection_view(engine: Engine, name: str, connection: str) -> Connection:
    """One connection of a job, pairs made on demand; CoreError when unknown or unroutable."""
    return _job(engine, name).connection(connection)


def connections_view(engine: Engine, name: str) -> tuple[Connection, ...]:
    """All connections of a job that have been used or checked in."""
    return tuple(_job(engine, name).connections.values())


def locks_view(engine: Engine) -> tuple[LockView, ...]:
    """Every lock, oldest first."""
    views = [
        LockView(
            f"{job.spec.name}.{job.incarnation}.{no}.{rank}",
            job.spec.name,
            job.incarnation,
            stream.connection.id,
            stream.stream.source,
            stream.stream.destination,
            run.n,
            run.length,
            rank,
            no,
            run.granted_at,
            tuple(circuit.id for circuit in stream.connection.circuits),
        )
        for job in engine.state.jobs.values()
        for stream in job.streams.values()
        for run in stream.held.values()
        for rank, no in run.holders.items()
    ]
    return tuple(sorted(views, key=lambda view: (view.since, view.id)))


def intents_view(engine: Engine, name: str | None = None) -> tuple[IntentView, ...]:
    """Intents that are not granted, in order of first arrival; of one job, or of all."""
    jobs = engine.state.jobs.values() if name is None else [_job(engine, name)]
    return tuple(
        IntentView(
            f"{job.spec.name}/{job.incarnation}/{intent.key}",
            job.spec.name,
            job.incarnation,
            intent.connection.id,
            intent.stream.source,
            intent.stream.destination,
            intent.n,
            intent.state,
            intent.first_at,
            intent.complete_at if intent.state is not IntentState.DECLARED else None,
            intent.overtaken,
            length_of(engine.state, intent),
            tuple(sorted(intent.arrived)),
            tuple(job.streams[intent.stream].missing(intent.n)),
            why_waiting(engine.state, job, intent),
        )
        for job in jobs
        for intent in job.open.values()
    )
