"""Read-only pictures of the core's state for GET routes, the command line and pages. No decisions here."""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.intent.changes import IntentState, JobState, StepState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.explain import why_waiting
from opus_sdn.intent.fabric import Circuit, CrossConnect
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import Connection, GroupView, JobSpec
from opus_sdn.intent.reasons import Because


@dataclass(frozen=True, slots=True)
class CircuitView:
    """One observed circuit. `digit` = dimension that used it last; `live` = some rank holds it."""

    id: str
    rail: str
    switch: str
    a: str
    b: str
    job: str | None
    digit: int | None
    live: bool
    moving: bool


@dataclass(frozen=True, slots=True)
class RailView:
    """Desired and observed state of one rail. `topology` has an id for every job with ranks on it."""

    name: str
    switch: str
    slots: tuple[int, ...]
    generation: int
    topology: dict[str, str]
    circuits: tuple[CircuitView, ...]
    desired: tuple[str, ...]  # circuits that complete intents wait for
    matching: tuple[CrossConnect, ...]
    moving: tuple[int, ...]  # positions


@dataclass(frozen=True, slots=True)
class StepView:
    """A step that is planned or on the device."""

    step: int
    switch: str
    state: StepState
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    causes: tuple[str, ...]
    disturbed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwitchView:
    """One switch as last read."""

    name: str
    driver: str
    size: int
    sided: bool
    generation: int
    matching: tuple[CrossConnect, ...]
    steps: tuple[StepView, ...]


@dataclass(frozen=True, slots=True)
class PortView:
    """One NIC port: where it sits, whose it is, and what it is joined to."""

    port: str
    rail: str
    switch: str
    position: int
    job: str | None
    rank: int | None
    circuit: str | None
    moving: bool


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
class JobView:
    """One job's newest incarnation. `exposed_wait_ms` sums over grants, not over ranks."""

    job: str
    incarnation: int
    spec: JobSpec
    state: JobState
    failure: Failure | None
    started_at: float
    topology: dict[str, str]
    grants: int
    topology_changes: int
    device_steps: int
    exposed_wait_ms: float
    ranks: tuple[RankView, ...]


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
    """One intent that is not granted, with who arrived, who is missing and why it waits."""

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
    arrived: tuple[int, ...]
    missing: tuple[int, ...]
    because: Because


def rail_view(engine: Engine, name: str) -> RailView:
    """One rail; CoreError `not-found` for an unknown name."""
    state = engine.state
    rail = next((rail for rail in state.fabric.rails if rail.name == name), None)
    if rail is None:
        known = ", ".join(rail.name for rail in state.fabric.rails)
        raise CoreError(Problem.NOT_FOUND, f"there is no rail {name!r}; known rails: {known}", rail=name)
    switch = state.switches[rail.switch]
    positions = {a.position for a in state.fabric.attachments if a.rail == name}
    desired = [
        circuit.id
        for job in state.jobs.values()
        for intent in job.waiting
        for circuit in intent.connection.circuits
        if circuit.rail == name
    ]
    return RailView(
        name,
        rail.switch,
        rail.slots,
        switch.generation,
        {j.spec.name: j.topology[name] for j in state.jobs.values() if name in j.rails},
        tuple(view for view in circuits_view(engine) if view.rail == name),
        tuple(dict.fromkeys(desired)),
        tuple(sorted(p for p in switch.matching if p.ingress in positions)),
        tuple(sorted({t.position for t in switch.moving if t.position in positions})),
    )


def circuits_view(engine: Engine) -> tuple[CircuitView, ...]:
    """Every observed circuit between two of our ports, by rail and id."""
    state = engine.state
    found: dict[str, CircuitView] = {}
    for name, switch in state.switches.items():
        for pair in switch.matching:
            circuit = state.fabric.circuit_of(name, pair)
            if circuit is not None:
                found[circuit.id] = _circuit_view(engine, circuit)
    return tuple(sorted(found.values(), key=lambda view: (view.rail, view.id)))


def _circuit_view(engine: Engine, circuit: Circuit) -> CircuitView:
    state = engine.state
    job = _job_at(engine, circuit.a.host, circuit.a.slot)
    moving = state.switches[circuit.switch].moving
    return CircuitView(
        circuit.id,
        circuit.rail,
        circuit.switch,
        str(circuit.a),
        str(circuit.b),
        job.spec.name if job else None,
        job.owners.get(circuit.id) if job else None,
        any(terminal in state.live for terminal in circuit.terminals),
        any(terminal in moving for terminal in circuit.terminals),
    )


def _job_at(engine: Engine, host: str, slot: int) -> JobCore | None:
    for job in engine.state.jobs.values():
        if (host, slot) in job.rank_at and job.occupies_ports():
            return job
    return None


def switches_view(engine: Engine) -> tuple[SwitchView, ...]:
    """Every switch with its steps in progress."""
    return tuple(
        SwitchView(
            name,
            state.switch.driver,
            state.switch.size,
            state.switch.sided,
            state.generation,
            tuple(sorted(state.matching)),
            tuple(
                StepView(p.step.id, name, p.state, p.step.remove, p.step.add, p.step.causes, p.step.disturbed)
                for p in state.progress.values()
            ),
        )
        for name, state in engine.state.switches.items()
    )


def ports_view(engine: Engine) -> tuple[PortView, ...]:
    """Every port of the fabric, in attachment order."""
    state = engine.state
    owners = {
        at: (j, rank) for j in state.jobs.values() if j.occupies_ports() for at, rank in j.rank_at.items()
    }
    views = []
    for at in state.fabric.attachments:
        terminals = [
            t for t in state.fabric.terminals_of(at.port.host, at.port.slot) if t.position == at.position
        ]
        switch = state.switches[at.switch]
        pair = next((switch.holder[t] for t in terminals if t in switch.holder), None)
        circuit = state.fabric.circuit_of(at.switch, pair) if pair is not None else None
        owner = owners.get((at.port.host, at.port.slot))
        views.append(
            PortView(
                str(at.port),
                at.rail,
                at.switch,
                at.position,
                owner[0].spec.name if owner else None,
                owner[1] if owner else None,
                circuit.id if circuit else None,
                any(terminal in switch.moving for terminal in terminals),
            )
        )
    return tuple(views)


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
        job.topology_changes,
        job.device_steps,
        round(job.exposed_wait_s * 1e3, 3),
        ranks,
    )


def _job(engine: Engine, name: str) -> JobCore:
    job = engine.state.jobs.get(name)
    if job is None:
        raise CoreError(Problem.UNKNOWN_JOB, f"there is no job {name!r}; declare it first", job=name)
    return job


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
            tuple(sorted(intent.arrived)),
            tuple(job.streams[intent.stream].missing(intent.n)),
            why_waiting(engine.state, job, intent),
        )
        for job in jobs
        for intent in job.open.values()
    )
