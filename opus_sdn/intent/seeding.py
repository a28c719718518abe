"""The initial topology of a job: wanted once, and less than everything that a rank waits for."""

from __future__ import annotations

from collections.abc import Iterable

from opus_sdn.intent.fabric import Circuit, CrossConnect
from opus_sdn.intent.job import JobCore, Seed
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.switches import Step


def seed_job(state: CoreState, job: JobCore, circuits: dict[Circuit, int]) -> None:
    """Want the initial topology; it yields to every complete intent and is tried once."""
    job.owners.update({circuit.id: digit for circuit, digit in circuits.items()})
    job.seed = seed_of(state, job, circuits)
    if job.seed is not None:
        switches = (circuit.switch for circuit in job.seed.circuits)
        for switch in (*switches, *(at for at, _ in job.seed.leftovers)):
            state.dirty_switches[switch] = None


def seed_of(state: CoreState, job: JobCore, circuits: Iterable[Circuit]) -> Seed | None:
    """What is missing of an initial topology, and what is left over; None when it is there."""
    circuits = list(circuits)
    missing = tuple(circuit for circuit in circuits if not state.is_up(circuit))
    leftovers = _leftovers(state, job, circuits) if circuits else ()
    return Seed(missing, leftovers) if missing or leftovers else None


def _leftovers(
    state: CoreState, job: JobCore, wanted: Iterable[Circuit]
) -> tuple[tuple[str, CrossConnect], ...]:
    """Cross-connects between two of the job's own ports that the topology asked for does not have."""
    kept = {(circuit.switch, pair) for circuit in wanted for pair in circuit.cross_connects}
    found: dict[tuple[str, CrossConnect], None] = {}
    for terminal in sorted(job.terminals):
        switch = state.switches[terminal.switch]
        pair = switch.holder.get(terminal)
        if pair is None or (terminal.switch, pair) in kept:
            continue
        if all(end in job.terminals for end in switch.switch.terminals_of(pair)):
            found[terminal.switch, pair] = None
    return tuple(found)


def without(seed: Seed, step: Step) -> Seed | None:
    """What a seed still wants after a step: each of its circuits and leftovers is moved once."""
    circuits = tuple(
        c for c in seed.circuits if c.switch != step.switch or not set(c.cross_connects) & set(step.add)
    )
    leftovers = tuple(
        (at, pair) for at, pair in seed.leftovers if at != step.switch or pair not in step.remove
    )
    return Seed(circuits, leftovers) if circuits or leftovers else None
