"""What a device step is for: an intent that waits, a lost circuit, hints, an initial topology, a directive.

Causes have names that outlive them (`job/incarnation/...`), so that a step of which the journal speaks can be
matched with what still waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opus_sdn.intent import drift
from opus_sdn.intent.fabric import Circuit, CrossConnect, DriftPolicy, Terminal
from opus_sdn.intent.hints import HintedMoves, hinted_moves
from opus_sdn.intent.job import JobCore, Lost, Seed
from opus_sdn.intent.planner import Want
from opus_sdn.intent.standing import Drain, ManualCircuit
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import Intent
from opus_sdn.intent.switches import Step, SwitchState

SEED = "initial-topology"
REPAIR = "repair/"
HINTS = "hints"

Directive = Drain | ManualCircuit
Cause = Intent | Lost | HintedMoves | Seed | Directive
Causes = dict[str, tuple[JobCore | None, Cause]]  # no job: an operator


def wants_on(state: CoreState, switch: str) -> tuple[list[Want], Causes]:
    """What operators have told, repairs of what is held, wants in their jobs' serving order, hints, seeds.

    Jobs have disjoint ports: the order among them is free. A circuit that was lost under a lock goes before
    every intent of its job: whoever wants its ports has to wait for the lock anyway.
    """
    repairs: list[Want] = []
    wants: list[Want] = []
    hints: list[Want] = []
    seeds: list[Want] = []
    causes: Causes = {}
    told = [told_want(state, directive) for directive in directives_on(state, switch)]
    causes.update({directive.key: (None, directive) for directive in directives_on(state, switch)})
    repaired = {rail.name for rail in state.fabric.rails if rail.drift is DriftPolicy.AUTO}
    for job in state.active.values():
        if job.running:
            for lost in drift.losses(state, job):
                if lost.circuit.rail in repaired:
                    name = REPAIR + lost.circuit.id
                    _add_want(repairs, causes, switch, job, name, lost, (lost.circuit,))
        for intent in job.waiting:
            circuits = intent.connection.circuits
            _add_want(wants, causes, switch, job, intent.key, intent, circuits, yields=intent.yields)
        if job.hinting.get(switch):
            moves = hinted_moves(state, job, switch)
            _add_want(hints, causes, switch, job, HINTS, moves, moves.circuits)
        if job.seed is not None:
            clear = tuple(pair for at, pair in job.seed.leftovers if at == switch)
            _add_want(seeds, causes, switch, job, SEED, job.seed, job.seed.circuits, clear)
    return told + repairs + wants + hints + seeds, causes


def directives_on(state: CoreState, switch: str) -> list[Directive]:
    """Drains and manual circuits on a switch that may still need a step."""
    drains = (drain for drain in state.drains.values() if drain.switch == switch)
    kept_up = (
        manual
        for manual in state.manual.values()
        if manual.switch == switch and not (manual.once and manual.seen)
    )
    return [*drains, *kept_up]


def told_want(state: CoreState, directive: Directive) -> Want:
    """What a directive needs on its switch now."""
    if isinstance(directive, ManualCircuit):
        return Want(directive.key, (directive.circuit,))
    switch = state.switches[directive.switch]
    pairs = dict.fromkeys(
        pair
        for terminal in directive.terminals
        if (pair := switch.holder.get(terminal)) is not None and not _came_later(switch, directive, pair)
    )
    # Both directions of a circuit: half of one is of no use to anybody.
    for pair in list(pairs):
        circuit = state.fabric.circuit_of(directive.switch, pair)
        if circuit is not None:
            pairs.update(dict.fromkeys(circuit.cross_connects))
    return Want(directive.key, (), tuple(pairs))


def _came_later(switch: SwitchState, drain: Drain, pair: CrossConnect) -> bool:
    """Whether somebody else made a pair after the drain: reported, not fought over."""
    foreign = switch.foreign.get(pair)
    return foreign is not None and foreign.since > drain.told.at


def live_against(state: CoreState, causes: Iterable[Cause]) -> Mapping[Terminal, Circuit]:
    """The live circuits that these causes have to leave alone: all, unless an operator has said force."""
    forced = {
        terminal
        for cause in causes
        if isinstance(cause, Drain | ManualCircuit) and cause.told.force
        for terminal in cause.terminals
    }
    if not forced:
        return state.live_circuit
    return {t: circuit for t, circuit in state.live_circuit.items() if forced.isdisjoint(circuit.terminals)}


def _add_want(
    wants: list[Want],
    causes: Causes,
    switch: str,
    job: JobCore,
    name: str,
    cause: Cause,
    circuits: Iterable[Circuit],
    clear: tuple[CrossConnect, ...] = (),
    *,
    yields: bool = False,
) -> None:
    mine = tuple(circuit for circuit in circuits if circuit.switch == switch)
    if mine or clear:
        key = f"{job.spec.name}/{job.incarnation}/{name}"
        wants.append(Want(key, mine, clear, yields))
        causes[key] = (job, cause)


def jobs_of(causes: Causes, keys: Iterable[str]) -> list[JobCore]:
    """The jobs of these causes, each once."""
    jobs = {job.spec.name: job for key in keys if (job := causes[key][0]) is not None}
    return list(jobs.values())


def causes_of(state: CoreState, step: Step) -> list[tuple[JobCore | None, str, Cause]]:
    """The step's causes that still wait, with their names."""
    found: list[tuple[JobCore | None, str, Cause]] = [
        (None, directive.key, directive)
        for directive in directives_on(state, step.switch)
        if directive.key in step.causes
    ]
    for job in state.active.values():
        prefix = f"{job.spec.name}/{job.incarnation}/"
        waiting: dict[str, Cause] = {prefix + intent.key: intent for intent in job.complete.values()}
        waiting |= {f"{prefix}{REPAIR}{lost.circuit.id}": lost for lost in drift.losses(state, job)}
        if step.hinted:
            waiting[prefix + HINTS] = still_hinted(state, job, step)
        if job.seed is not None:
            waiting[prefix + SEED] = job.seed
        found += [(job, key, waiting[key]) for key in step.causes if key in waiting]
    return found


def still_hinted(state: CoreState, job: JobCore, step: Step) -> HintedMoves:
    """Of the circuits that only hints brought into a step, those that hints of this job ask for now."""
    moves = hinted_moves(state, job, step.switch).connections
    return HintedMoves({circuit: moves[circuit] for circuit in step.hinted if circuit in moves})


def circuits_of(cause: Cause) -> tuple[Circuit, ...]:
    """What the cause wants to be up."""
    if isinstance(cause, Intent):
        return cause.connection.circuits
    if isinstance(cause, Drain):
        return ()
    return (cause.circuit,) if isinstance(cause, Lost | ManualCircuit) else cause.circuits
