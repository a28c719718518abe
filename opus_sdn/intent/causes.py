"""What a device step is for: an intent that waits, a held circuit that was lost, hints, an initial topology.

Causes have names that outlive them (`job/incarnation/...`), so that a step of which the journal speaks can be
matched with what still waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from opus_sdn.intent import drift
from opus_sdn.intent.fabric import Circuit, CrossConnect, DriftPolicy
from opus_sdn.intent.hints import HintedMoves, hinted_moves
from opus_sdn.intent.job import JobCore, Lost, Seed
from opus_sdn.intent.planner import Want
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import Intent
from opus_sdn.intent.switches import Step

SEED = "initial-topology"
REPAIR = "repair/"
HINTS = "hints"

Cause = Intent | Lost | HintedMoves | Seed
Causes = dict[str, tuple[JobCore, Cause]]


def wants_on(state: CoreState, switch: str) -> tuple[list[Want], Causes]:
    """Repairs of what is held, then wants in their jobs' serving order, then hints, then seeds.

    Jobs have disjoint ports: the order among them is free. A circuit that was lost under a lock goes before
    every intent of its job: whoever wants its ports has to wait for the lock anyway.
    """
    repairs: list[Want] = []
    wants: list[Want] = []
    hints: list[Want] = []
    seeds: list[Want] = []
    causes: Causes = {}
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
    return repairs + wants + hints + seeds, causes


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
    jobs = {id(causes[key][0]): causes[key][0] for key in keys}
    return list(jobs.values())


def causes_of(state: CoreState, step: Step) -> list[tuple[JobCore, str, Cause]]:
    """The step's causes that still wait, with their names."""
    found: list[tuple[JobCore, str, Cause]] = []
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
    return (cause.circuit,) if isinstance(cause, Lost) else cause.circuits
