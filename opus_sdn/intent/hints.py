"""Hints: where ranks expect to go next, and which circuits may move for that before anybody has arrived.

A hint never blocks anything and never locks: its circuits are planned after those of every complete intent.
Each hint moves each circuit at most once. Were it repeated without end, two wrong hints could move mirrors
back and forth for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.intent.fabric import Circuit
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import Connection, Hint
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import Intent, StreamState


@dataclass(frozen=True, slots=True)
class HintedMoves:
    """Circuits that hints ask for, each with the connection it is for: the cause of a device step."""

    connections: dict[Circuit, Connection]

    @property
    def circuits(self) -> tuple[Circuit, ...]:
        """The circuits alone, in order of the hints."""
        return tuple(self.connections)


def take_hint(job: JobCore, rank: int, hint: Hint) -> None:
    """The rank's newest hint. A late copy of one whose operation has arrived says nothing new."""
    job.hints_heard = True
    session = job.ranks[rank]
    if job.stream(hint.stream).standing(rank, hint.n) is not None:
        return
    if hint not in session.hinted:
        if len(session.hinted) >= job.settings.hints_max:
            return
        session.hinted[hint] = set()
    session.hint = hint
    hinting = job.hinting.setdefault(job.switch_of[rank], {})
    hinting.pop(rank, None)
    hinting[rank] = None  # the newest comes last


def end_hint(job: JobCore, rank: int, hint: Hint) -> None:
    """The rank arrives there: the hint has had its time."""
    job.ranks[rank].hinted.pop(hint, None)
    if job.ranks[rank].hint == hint:
        forget_hint(job, rank)


def end_hints(job: JobCore, stream: StreamState) -> None:
    """Operations below the stream's mark are granted: hints at them have had their time."""
    for rank in stream.participants:
        for hint in [h for h in job.ranks[rank].hinted if h.stream == stream.stream and h.n < stream.granted]:
            end_hint(job, rank, hint)


def forget_hint(job: JobCore, rank: int) -> None:
    """It is not known any more where the rank goes next; what its hints have moved stays known."""
    if job.ranks[rank].hint is not None:
        job.ranks[rank].hint = None
        del job.hinting[job.switch_of[rank]][rank]


def drop_hints(job: JobCore, switch: str) -> None:
    """Forget where ranks of this switch expect to go."""
    for rank in list(job.hinting.get(switch, ())):
        forget_hint(job, rank)


def look_again(state: CoreState, job: JobCore, rank: int) -> None:
    """Something changed at a rank. What hints may move on its switch depends on its neighbours there only."""
    switch = job.switch_of[rank]
    if job.hinting.get(switch):
        state.dirty_switches[switch] = None


def hinted_moves(state: CoreState, job: JobCore, switch: str) -> HintedMoves:
    """Circuits of a switch that may move for hints now.

    Both ends have hinted or arrived at an operation that uses the circuit, one of them with a hint that has
    not moved it yet, and whatever is in its way joins ranks that are going elsewhere.
    """
    found: dict[Circuit, Connection] = {}
    for rank in job.hinting.get(switch, ()):
        hint = job.ranks[rank].hint
        assert hint is not None, "ranks without a hint are not listed"
        moved = job.ranks[rank].hinted[hint]
        if job.streams[hint.stream].complete() is not None:
            continue  # there is a real need for its circuits, planned as such or patient on purpose
        connection = job.connections[hint.stream.connection]
        for circuit in connection.circuits:
            ends = ends_of(job, circuit)
            if rank not in ends or circuit in found or circuit.id in moved or state.is_up(circuit):
                continue
            if all(_heads_for(job, end, circuit) for end in ends) and _is_free(state, job, circuit):
                found[circuit] = connection
    return HintedMoves(found)


def spend(job: JobCore, circuit: Circuit) -> None:
    """A circuit moves for the hints of its ends: they will not move it again."""
    for rank in ends_of(job, circuit):
        session = job.ranks[rank]
        if session.hint is not None and _uses(job, session.hint, circuit):
            session.hinted[session.hint].add(circuit.id)


def ends_of(job: JobCore, circuit: Circuit) -> list[int]:
    """The ranks of this job at the two ends of a circuit."""
    places = ((circuit.a.host, circuit.a.slot), (circuit.b.host, circuit.b.slot))
    return [job.rank_at[place] for place in places if place in job.rank_at]


def _uses(job: JobCore, hint: Hint, circuit: Circuit) -> bool:
    return circuit in job.connections[hint.stream.connection].circuits


def _heads_for(job: JobCore, rank: int, circuit: Circuit) -> bool:
    """The rank has hinted, or waits at, an operation that uses the circuit."""
    session = job.ranks[rank]
    return (session.hint is not None and _uses(job, session.hint, circuit)) or any(
        circuit in intent.connection.circuits for intent in session.open.values()
    )


def _is_free(state: CoreState, job: JobCore, circuit: Circuit) -> bool:
    """Everything in the circuit's way joins ranks that go elsewhere. Locks are the planner's matter."""
    switch = state.switches[circuit.switch]
    for terminal in circuit.terminals:
        pair = switch.holder.get(terminal)
        if pair is None or pair in circuit.cross_connects:
            continue
        in_the_way = state.fabric.circuit_of(circuit.switch, pair)
        if in_the_way is not None and not all(
            _is_elsewhere(job, rank, in_the_way) for rank in ends_of(job, in_the_way)
        ):
            return False
    return True


def _is_elsewhere(job: JobCore, rank: int, circuit: Circuit) -> bool:
    """The rank does not wait for this circuit, and its newest hint, else what it waits for, is another."""
    session = job.ranks[rank]
    if session.stopped:
        return True
    if any(
        circuit in intent.connection.circuits and not _is_held_up(job, intent)
        for intent in session.open.values()
    ):
        return False
    if session.hint is None:
        return bool(session.open)
    return not _uses(job, session.hint, circuit)


def _is_held_up(job: JobCore, intent: Intent) -> bool:
    """Whether a member that is still missing goes somewhere else first: until then nobody loses by a move.

    Receives are often posted long before anybody sends; they must not keep the sender from what comes first.
    """
    return any(
        rank not in intent.arrived
        and (hint := job.ranks[rank].hint) is not None
        and hint.stream.connection != intent.connection.id
        for rank in intent.connection.ranks
    )
