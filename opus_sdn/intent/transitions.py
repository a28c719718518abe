"""What going from one dimension to another costs a job: waits that were hidden, waits that were not.

Counted per pair of dimensions in grants: the one that used a port of the grant's connection last, and the
grant's own. A grant needed a change when a device step has made a circuit of it since that was used last.
Kept in memory, from the job's admission or the controller's start on.
"""

from __future__ import annotations

from collections.abc import Iterable

from opus_sdn.intent.fabric import Circuit
from opus_sdn.intent.job import PAIRS_MAX, JobCore, Transition
from opus_sdn.intent.state import CircuitMade, CoreState
from opus_sdn.intent.streams import Intent
from opus_sdn.intent.switches import Step

NOTHING = "-"  # before the first use of a port

OTHERS = ("others", "others")


def note_begun(state: CoreState, now: float, step: Step, circuits: Iterable[Circuit]) -> None:
    """A step begins to make circuits that somebody needs or expects to need."""
    added = set(step.add)
    for circuit in circuits:
        if circuit.switch == step.switch and added.intersection(circuit.cross_connects):
            state.made[circuit.id] = CircuitMade(step.id, now)


def note_ended(state: CoreState, now: float, step: Step, done: bool) -> None:
    """The step is over. What it was to make and did not, and what it took down, was not made."""
    for pair in (*step.add, *step.remove):
        circuit = state.fabric.circuit_of(step.switch, pair)
        made = state.made.get(circuit.id) if circuit is not None else None
        if circuit is None or made is None:
            continue
        if done and made.step == step.id:
            made.done_at = made.done_at or now
        else:
            del state.made[circuit.id]


def note_grant(state: CoreState, now: float, job: JobCore, intent: Intent) -> None:
    """An intent is granted: its pair of dimensions has another grant."""
    circuits = intent.connection.circuits
    pair = (_last_used(job, circuits), intent.connection.dimension)
    for circuit in circuits:
        job.last_used.update(dict.fromkeys(circuit.terminals, (job.grants, pair[1])))
    known = job.transitions.get(pair)
    if known is None:
        pair = pair if len(job.transitions) < PAIRS_MAX else OTHERS
        known = job.transitions.setdefault(pair, Transition())
    exposed_s = now - intent.complete_at
    known.grants += 1
    known.exposed_s += exposed_s
    made = [state.made.pop(circuit.id) for circuit in circuits if circuit.id in state.made]
    if made:
        known.changes += 1
        known.exposed_change_s += exposed_s
        known.hits += all(each.begun_at < intent.complete_at for each in made)
        known.hidden_s += max(each.hidden_s(intent.complete_at) for each in made)


def _last_used(job: JobCore, circuits: Iterable[Circuit]) -> str:
    uses = [job.last_used[t] for circuit in circuits for t in circuit.terminals if t in job.last_used]
    return max(uses)[1] if uses else NOTHING
