"""What operators tell: ports are drained, circuits of their own kept up, locks released by force.

Each of these is stored before it is answered, holds until it is withdrawn, and leaves an event that says who
did it and what was there before and after. Force is the only thing that goes before a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opus_sdn.intent.admission import restore_queued
from opus_sdn.intent.changes import DirectiveGiven, DirectiveKind, DirectiveWithdrawn
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Circuit, DriftPolicy, Fabric, Port, Terminal
from opus_sdn.intent.failing import let_go
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.standing import Bar, Drain, ManualCircuit, Told
from opus_sdn.intent.state import CoreState, make_event
from opus_sdn.intent.streams import HeldRun, StreamState

HOLDERS_SHOWN_MAX = 8  # in one message; the data has all of them


@dataclass(frozen=True, slots=True)
class Operator:
    """Who tells something, and in his own words why. `force`: it goes before locks and running jobs."""

    name: str
    detail: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """One rank's hold on a run whose circuits are concerned."""

    job: str
    rank: int
    connection: str
    n: int
    no: int

    def data(self) -> dict[str, object]:
        """For events and problems."""
        return {
            "job": self.job,
            "rank": self.rank,
            "connection": self.connection,
            "n": self.n,
            "no": self.no,
        }


# --- drains


def drain_port(state: CoreState, now: float, name: str, who: Operator) -> Drain:
    """No circuit for a port from now on. CoreError `not-found`, `port-in-use`, `locked`; force goes first."""
    port, terminals, manual, holders = check_drain(state, name, who)
    known = state.drains.get(port)
    if known is not None and (known.told.force or not who.force):
        return known
    if manual is not None:
        _withdraw(state, DirectiveKind.CIRCUIT, manual.circuit.id)
        del state.manual[manual.circuit.id]
    at = state.fabric.attachment(port)
    drain = Drain(_told(state, now, who), port, at.switch, terminals)
    state.drains[port] = drain
    _give(state, DirectiveKind.DRAIN, str(port), drain.told, {})
    before: dict[str, object] = {
        "drained": known is not None,
        "circuit": manual.circuit.id if manual is not None else None,
        "holders": [holder.data() for holder in holders],
    }
    _audit(state, "port.drained", who, at.rail, at.switch, port=str(port), before=before, drained=True)
    close_and_open(state)
    return drain


def check_drain(
    state: CoreState, name: str, who: Operator
) -> tuple[Port, tuple[Terminal, ...], ManualCircuit | None, tuple[Holder, ...]]:
    """The port, its terminals, and the circuit and locks that force would go before. CoreError as above."""
    port = port_named(state.fabric, name)
    terminals = terminals_of_port(state.fabric, port)
    if port in state.drains and not who.force:
        return port, terminals, None, ()
    holders = holders_at(state, terminals)
    manual = next((m for m in state.manual.values() if not set(m.terminals).isdisjoint(terminals)), None)
    if manual is not None and not who.force:
        raise CoreError(
            Problem.PORT_IN_USE,
            f"port {port} has the circuit {manual.circuit.id}, which {manual.told.by} keeps up; take that "
            "back first, or say force",
            port=str(port),
            circuit=manual.circuit.id,
        )
    if holders and not who.force:
        raise _locked(f"port {port} carries traffic", holders)
    return port, terminals, manual, holders


def undrain_port(state: CoreState, name: str, who: Operator) -> None:
    """The port may be used again. Harmless when it is not drained. CoreError `not-found`."""
    port = port_named(state.fabric, name)
    drain = state.drains.pop(port, None)
    if drain is None:
        return
    _withdraw(state, DirectiveKind.DRAIN, str(port))
    before: dict[str, object] = {"drained": True, "by": drain.told.by, "since": drain.told.at}
    rail = state.fabric.attachment(port).rail
    _audit(state, "port.undrained", who, rail, drain.switch, port=str(port), before=before, drained=False)
    close_and_open(state)


# --- manual circuits


def want_circuit(state: CoreState, now: float, a: str, b: str, who: Operator) -> ManualCircuit:
    """Keep a circuit between two ports up. CoreError `not-found`, `unroutable`, `port-drained`,
    `port-in-use`, `locked`; force goes before jobs and their locks, never before another operator.
    """
    circuit, holders, users = check_circuit(state, a, b, who)
    known = state.manual.get(circuit.id)
    if known is not None and (known.told.force or not who.force):
        return known
    rail = next(rail for rail in state.fabric.rails if rail.name == circuit.rail)
    manual = ManualCircuit(_told(state, now, who), circuit, once=rail.drift is DriftPolicy.OBSERVE)
    manual.seen = manual.once and state.is_up(circuit)
    state.manual[circuit.id] = manual
    _give(state, DirectiveKind.CIRCUIT, circuit.id, manual.told, {"a": str(circuit.a), "b": str(circuit.b)})
    before: dict[str, object] = {
        "up": state.is_up(circuit),
        "jobs": [job.spec.name for job in users],
        "holders": [holder.data() for holder in holders],
    }
    _audit(
        state,
        "circuit.wanted",
        who,
        circuit.rail,
        circuit.switch,
        circuit=circuit.id,
        before=before,
        kept_up=True,
    )
    close_and_open(state)
    return manual


def check_circuit(
    state: CoreState, a: str, b: str, who: Operator
) -> tuple[Circuit, tuple[Holder, ...], list[JobCore]]:
    """The circuit, and the locks and jobs that force would go before. CoreError as above."""
    circuit = circuit_between(state.fabric, a, b)
    if circuit.id in state.manual and not who.force:
        return circuit, (), []
    _require_open(state, circuit)
    holders = holders_at(state, circuit.terminals, but=circuit)
    users = [job for job in state.active.values() if not job.terminals.isdisjoint(circuit.terminals)]
    if holders and not who.force:
        raise _locked(f"a port of circuit {circuit.id} carries traffic", holders)
    if users and not who.force:
        raise CoreError(
            Problem.PORT_IN_USE,
            f"a port of circuit {circuit.id} belongs to job {users[0].spec.name}; end the job first, or say "
            "force",
            circuit=circuit.id,
            job=users[0].spec.name,
        )
    return circuit, holders, users


def drop_circuit(state: CoreState, name: str, who: Operator) -> ManualCircuit:
    """The circuit is nobody's from now on; it stays until its ports are needed. CoreError `not-found`."""
    manual = kept_circuit(state, name)
    del state.manual[name]
    _withdraw(state, DirectiveKind.CIRCUIT, name)
    before: dict[str, object] = {"kept_up": True, "by": manual.told.by, "since": manual.told.at}
    circuit = manual.circuit
    _audit(
        state,
        "circuit.dropped",
        who,
        circuit.rail,
        circuit.switch,
        circuit=name,
        before=before,
        kept_up=False,
    )
    close_and_open(state)
    return manual


def kept_circuit(state: CoreState, name: str) -> ManualCircuit:
    """An operator's circuit by its id. CoreError `not-found`."""
    manual = state.manual.get(name)
    if manual is None:
        known = ", ".join(list(state.manual)[:HOLDERS_SHOWN_MAX]) or "none"
        raise CoreError(
            Problem.NOT_FOUND, f"no operator keeps a circuit {name!r} up; kept up: {known}", circuit=name
        )
    return manual


def _require_open(state: CoreState, circuit: Circuit) -> None:
    for port in (circuit.a, circuit.b):
        if port in state.drains:
            raise CoreError(
                Problem.PORT_DRAINED,
                f"port {port} is drained, by {state.drains[port].told.by}; undrain it first",
                port=str(port),
            )
    other = next(
        (
            manual
            for manual in state.manual.values()
            if manual.circuit != circuit and not set(manual.terminals).isdisjoint(circuit.terminals)
        ),
        None,
    )
    if other is not None:
        raise CoreError(
            Problem.PORT_IN_USE,
            f"a port of circuit {circuit.id} has the circuit {other.circuit.id}, which {other.told.by} keeps "
            "up; take that back first",
            circuit=other.circuit.id,
        )


# --- locks


def release_locks(
    state: CoreState,
    now: float,
    who: Operator,
    name: str,
    incarnation: int,
    rank: int | None = None,
    no: int | None = None,
) -> tuple[Holder, ...]:
    """Take locks away: all of a job, of one of its ranks, or one grant of it. CoreError `not-found`; `locked`
    without force, as whoever holds a lock may still transmit.
    """
    job = state.jobs.get(name)
    found = [] if job is None or job.incarnation != incarnation else _held(job, rank, no)
    if job is None or not found:
        what = f"job {name} at incarnation {incarnation}"
        what += "" if rank is None else f", rank {rank}"
        what += "" if no is None else f", grant {no}"
        raise CoreError(Problem.NOT_FOUND, f"no lock is held by {what}", job=name)
    holders = tuple(Holder(name, r, stream.connection.id, run.n, run.holders[r]) for stream, run, r in found)
    if not who.force:
        heard = {r: round(now - job.ranks[r].last_heard, 1) for _, _, r in found}
        first, silent_s = next(iter(heard.items()))
        raise CoreError(
            Problem.LOCKED,
            f"rank {first} of job {name} was heard {silent_s:g} s ago and is not known to have stopped: it "
            f"may still transmit. Its locks go when it is silent for {state.settings.lease_s:g} s or is "
            "reported dead; force takes them away now",
            holders=[holder.data() for holder in holders],
        )
    for stream, run, r in found:
        del run.holders[r]
        let_go(state, job, stream, run, r)
    _audit(state, "locks.forced", who, None, None, job, before=[h.data() for h in holders], after=[])
    state.touch(job)
    return holders


def _held(job: JobCore, rank: int | None, no: int | None) -> list[tuple[StreamState, HeldRun, int]]:
    return [
        (stream, run, holder)
        for stream in job.streams.values()
        for run in stream.held.values()
        for holder, number in run.holders.items()
        if rank in (None, holder) and no in (None, number)
    ]


def holders_at(
    state: CoreState, terminals: Iterable[Terminal], but: Circuit | None = None
) -> tuple[Holder, ...]:
    """Who holds a circuit on any of these terminals, other than `but`."""
    live = {state.live_circuit[t] for t in terminals if t in state.live_circuit} - {but}
    if not live:
        return ()
    return tuple(
        Holder(job.spec.name, rank, stream.connection.id, run.n, no)
        for job in state.active.values()
        for stream in job.streams.values()
        if stream.held and not live.isdisjoint(stream.connection.circuits)
        for run in stream.held.values()
        for rank, no in run.holders.items()
    )


def _locked(what: str, holders: Sequence[Holder]) -> CoreError:
    said = ", ".join(
        f"rank {h.rank} of job {h.job} ({h.connection}#{h.n})" for h in holders[:HOLDERS_SHOWN_MAX]
    )
    return CoreError(
        Problem.LOCKED,
        f"{what}, held by {said}; wait until it is released, or say force",
        holders=[holder.data() for holder in holders],
    )


# --- names


def port_named(fabric: Fabric, name: str) -> Port:
    """A port by `host:slot:index`. CoreError `not-found`."""
    try:
        port = Port.parse(name)
        fabric.attachment(port)
    except (ValueError, KeyError):
        raise CoreError(
            Problem.NOT_FOUND,
            f"there is no port {name!r}; ports are written host:slot:index, and GET /ports lists them",
            port=name,
        ) from None
    return port


def terminals_of_port(fabric: Fabric, port: Port) -> tuple[Terminal, ...]:
    """All sides of a port's position."""
    at = fabric.attachment(port)
    return tuple(t for t in fabric.terminals_of(port.host, port.slot) if t.position == at.position)


def circuit_between(fabric: Fabric, a: str, b: str) -> Circuit:
    """The circuit between two ports by name. CoreError `not-found`, `unroutable`, `invalid-request`."""
    first, second = port_named(fabric, a), port_named(fabric, b)
    if first == second:
        raise CoreError(
            Problem.INVALID_REQUEST, f"a and b are both {a}; a circuit joins two ports", field="b"
        )
    return fabric.circuit(first, second)


# --- keeping


def restore(state: CoreState, given: Iterable[DirectiveGiven]) -> None:
    """Take over what was told to earlier starts. What does not fit the fabric any more is withdrawn."""
    for directive in given:
        state.next_directive = max(state.next_directive, directive.number + 1)
        if directive.kind is DirectiveKind.PLAN:
            continue  # of no effect until it is applied
        try:
            _restore_one(state, directive)
        except CoreError as error:
            _misfit(state, directive.kind, directive.name, error)
    close_and_open(state)


def fit(state: CoreState) -> None:
    """Another fabric is in force: what was told of its ports is told of where they are now."""
    for port, drain in list(state.drains.items()):
        try:
            terminals = terminals_of_port(state.fabric, port_named(state.fabric, str(port)))
        except CoreError as error:
            del state.drains[port]
            _misfit(state, DirectiveKind.DRAIN, str(port), error)
            continue
        drain.switch, drain.terminals = state.fabric.attachment(port).switch, terminals
    for manual in state.manual.values():
        rail = next(rail for rail in state.fabric.rails if rail.name == manual.circuit.rail)
        manual.once = rail.drift is DriftPolicy.OBSERVE
    close_and_open(state)


def _misfit(state: CoreState, kind: DirectiveKind, name: str, error: CoreError) -> None:
    _withdraw(state, kind, name)
    data = {"directive": kind.value, "name": name, "detail": error.detail}
    state.ledger.add(make_event("directive.dropped", None, None, None, data))


def _restore_one(state: CoreState, given: DirectiveGiven) -> None:
    data = given.data
    told = Told(given.number, given.at, str(data["by"]), str(data["detail"]), force=data.get("force") is True)
    if given.kind is DirectiveKind.QUEUED:
        restore_queued(state, told, data["spec"])
    elif given.kind is DirectiveKind.DRAIN:
        port = port_named(state.fabric, given.name)
        switch = state.fabric.attachment(port).switch
        state.drains[port] = Drain(told, port, switch, terminals_of_port(state.fabric, port))
    else:
        circuit = circuit_between(state.fabric, str(data["a"]), str(data["b"]))
        rail = next(rail for rail in state.fabric.rails if rail.name == circuit.rail)
        once = rail.drift is DriftPolicy.OBSERVE
        state.manual[circuit.id] = ManualCircuit(told, circuit, once=once, seen=once)


def close_and_open(state: CoreState) -> None:
    """Close every terminal that a directive closes, open all others, and look again at what waits."""
    state.barred = {}
    for drain in state.drains.values():
        detail = f"port {drain.port} is drained, by {drain.told.by}"
        because = Because(Reason.DRAINED, detail, {"port": str(drain.port), "by": drain.told.by})
        state.barred.update(dict.fromkeys(drain.terminals, Bar(because)))
        state.dirty_switches[drain.switch] = None
    for manual in state.manual.values():
        detail = f"{manual.told.by} keeps the circuit {manual.circuit.id} up on a port of it"
        data: dict[str, object] = {"circuit": manual.circuit.id, "by": manual.told.by}
        bar = Bar(Because(Reason.MANUAL, detail, data), manual.circuit)
        state.barred.update(dict.fromkeys(manual.terminals, bar))
        state.dirty_switches[manual.switch] = None
    state.admissions_due = True
    for job in state.active.values():
        state.touch(job)


def _told(state: CoreState, now: float, who: Operator) -> Told:
    told = Told(state.next_directive, now, who.name, who.detail, who.force)
    state.next_directive += 1
    return told


def _give(state: CoreState, kind: DirectiveKind, name: str, told: Told, data: dict[str, object]) -> None:
    said: dict[str, object] = {"by": told.by, "detail": told.detail, "force": told.force, **data}
    state.ledger.add(DirectiveGiven(kind, name, told.number, told.at, said), durable=True)


def _withdraw(state: CoreState, kind: DirectiveKind, name: str) -> None:
    state.ledger.add(DirectiveWithdrawn(kind, name), durable=True)


def _audit(
    state: CoreState,
    kind: str,
    who: Operator,
    rail: str | None,
    switch: str | None,
    job: JobCore | None = None,
    **data: object,
) -> None:
    said = {"by": who.name, "detail": who.detail, "force": who.force, **data}
    state.ledger.add(make_event(kind, job, rail, switch, said), durable=True)
