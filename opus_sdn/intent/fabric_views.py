"""Read-only pictures of rails, switches, ports and circuits, for GET routes, the command line and pages."""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.intent import drift
from opus_sdn.intent.changes import DirectiveKind, IntentState, StepState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Circuit, CrossConnect, DriftPolicy
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.reasons import Because
from opus_sdn.intent.standing import Told
from opus_sdn.intent.state import CoreState, LinkUp
from opus_sdn.intent.switches import ForeignKind, SwitchState


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
class ForeignView:
    """A cross-connect that no step of ours made, first seen at `since`."""

    pair: CrossConnect
    kind: ForeignKind
    since: float


@dataclass(frozen=True, slots=True)
class RivalView:
    """Our cross-connect that somebody takes down again and again; `instead` = what came in its place."""

    pair: CrossConnect
    times: int
    since: float
    instead: tuple[CrossConnect, ...]
    held_until: float


@dataclass(frozen=True, slots=True)
class DarkView:
    """A cross-connect through which no light passes, and why."""

    pair: CrossConnect
    detail: str


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
    drift: DriftPolicy
    carrier: bool  # grants wait for the links of both ports
    link_up: LinkUp | None  # how long links took after the light, as far as they were watched
    foreign: tuple[ForeignView, ...]  # on ports of the rail
    stalled: tuple[str, ...]  # intents that no device serves in time
    because: Because | None  # why the rail, or the first of these, is held up


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
    foreign: tuple[ForeignView, ...]
    contended: tuple[RivalView, ...]
    dark: tuple[DarkView, ...]
    stalled: tuple[str, ...]  # intents that no device serves in time
    because: Because | None  # why the switch, or the first of these, is held up


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
    drained: bool
    failed: str | None  # why no light passes


@dataclass(frozen=True, slots=True)
class DirectiveView:
    """A drained port or an operator's circuit. `done`: dark, or up; else `because`, once it is known."""

    kind: DirectiveKind
    name: str
    rail: str
    switch: str
    told: Told
    done: bool
    because: Because | None


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
        rail.drift,
        rail.carrier,
        state.link_up.get(name),
        tuple(view for view in _foreign(switch) if not positions.isdisjoint(view.pair)),
        *_held_up(state, switch, rail=name),
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
            _foreign(state),
            tuple(
                RivalView(pair, rival.times, rival.since, rival.instead, rival.held_until)
                for pair, rival in sorted(state.rivals.items())
                if rival.times >= drift.RIVAL_FROM
            ),
            tuple(DarkView(pair, why) for pair, why in sorted(state.dark.items())),
            *_held_up(engine.state, state),
        )
        for name, state in engine.state.switches.items()
    )


def switch_view(engine: Engine, name: str) -> SwitchView:
    """One switch; CoreError `not-found` for an unknown name."""
    found = next((view for view in switches_view(engine) if view.name == name), None)
    if found is None:
        known = ", ".join(engine.state.switches)
        raise CoreError(
            Problem.NOT_FOUND, f"there is no switch {name!r}; known switches: {known}", switch=name
        )
    return found


def _foreign(switch: SwitchState) -> tuple[ForeignView, ...]:
    return tuple(ForeignView(pair, f.kind, f.since) for pair, f in sorted(switch.foreign.items()))


def _held_up(
    state: CoreState, switch: SwitchState, rail: str | None = None
) -> tuple[tuple[str, ...], Because | None]:
    """Stalled intents with circuits here, and the reason of the switch, else of the first of them."""
    name = switch.switch.name
    stalled = [
        (f"{job.spec.name}/{job.incarnation}/{intent.key}", intent.because)
        for job in state.active.values()
        for intent in job.waiting
        if intent.state is IntentState.STALLED
        and any(
            circuit.switch == name and rail in (None, circuit.rail) for circuit in intent.connection.circuits
        )
    ]
    first = stalled[0][1] if stalled else None
    return tuple(key for key, _ in stalled), drift.why_unusable(switch) or first


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
                at.port in state.drains,
                next((state.shut[t].because.detail for t in terminals if t in state.shut), None),
            )
        )
    return tuple(views)


def directives_view(engine: Engine) -> tuple[DirectiveView, ...]:
    """What operators have told and what holds until it is taken back."""
    state = engine.state
    drains = [
        DirectiveView(
            DirectiveKind.DRAIN,
            str(drain.port),
            state.fabric.attachment(drain.port).rail,
            drain.switch,
            drain.told,
            not any(terminal in state.switches[drain.switch].holder for terminal in drain.terminals),
            drain.because,
        )
        for drain in state.drains.values()
    ]
    circuits = [
        DirectiveView(
            DirectiveKind.CIRCUIT,
            manual.circuit.id,
            manual.circuit.rail,
            manual.switch,
            manual.told,
            state.is_up(manual.circuit),
            manual.because or drift.why_unusable(state.switches[manual.switch]),
        )
        for manual in state.manual.values()
    ]
    return (*drains, *circuits)
