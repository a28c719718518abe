"""Who waits for whom when nothing moves any more."""

from __future__ import annotations

from opus_sdn.whatif.errors import CannotFinishError, Wait
from opus_sdn.whatif.peer.ranks import IDLE, Ranks
from opus_sdn.whatif.trace.model import COLLECTIVE, COLLECTIVE_NAMES, SEND
from opus_sdn.whatif.waits import circle


def cannot_finish(ranks: Ranks) -> CannotFinishError:
    """The error for a replay in which nothing is left to happen and ranks are unfinished."""
    unfinished = [rank for rank, left in enumerate(ranks.left) if left]
    waits = {rank: _waits(ranks, rank) for rank in unfinished}
    return CannotFinishError(ranks.now, len(unfinished), circle(waits))


def _waits(ranks: Ranks, rank: int) -> list[Wait]:
    """What a rank waits for: the operation it is in or those it has tried to start, else its receives.

    Receives are posted long before they are needed; they tell why a rank waits only where nothing else does.
    """
    found: list[Wait] = []
    position = ranks.talking[rank]
    if position != IDLE:
        found += _running(ranks, rank, position)
    for waiting in ranks.ready_talk[rank]:
        if position == IDLE:
            found += _refused(ranks, rank, waiting)
    return found or [
        _wait(ranks, rank, receive, ranks.partners[rank][receive], "nothing has arrived")
        for receive in sorted(ranks.receiving[rank])
    ]


def _running(ranks: Ranks, rank: int, position: int) -> list[Wait]:
    partner = ranks.partners[rank][position]
    if ranks.programs[rank].kinds[position] != COLLECTIVE:
        return [_wait(ranks, rank, position, None, _dark(ranks, rank, partner))]
    group = ranks.trace.groups[partner]
    absent = [
        member
        for member in group.ranks
        if ranks.talking[member] == IDLE
        or ranks.programs[member].kinds[ranks.talking[member]] != COLLECTIVE
        or ranks.partners[member][ranks.talking[member]] != partner
    ]
    if absent:
        return [_wait(ranks, rank, position, member, "it has not begun its part") for member in absent]
    after = group.ranks[(group.ranks.index(rank) + 1) % len(group.ranks)]
    return [_wait(ranks, rank, position, None, _dark(ranks, rank, after))]


def _dark(ranks: Ranks, source: int, destination: int) -> str:
    topology = ranks.control.topology
    lit = ranks.scenario.schedules.bandwidth(topology, source, destination) > 0
    state = "is up but its messages match no receive" if lit else "is dark"
    return f"the link from rank {source} to rank {destination} {state} in topology {topology}"


def _refused(ranks: Ranks, rank: int, position: int) -> list[Wait]:
    partner = ranks.partners[rank][position]
    if ranks.programs[rank].kinds[position] == COLLECTIVE and ranks.switched[partner]:
        missing = [member for member in ranks.control.missing_votes(partner) if member != rank]
        if missing:
            return [
                _wait(ranks, rank, position, member, "it has not voted for the round") for member in missing
            ]
    holders = [
        other
        for other, talking in enumerate(ranks.talking)
        if talking != IDLE
        and ranks.programs[other].kinds[talking] == COLLECTIVE
        and ranks.switched[ranks.partners[other][talking]]
    ]
    if ranks.control.in_flight and holders:
        reason = "its collective is in flight, so no topology is accepted"
        return [_wait(ranks, rank, position, holder, reason) for holder in holders]
    if ranks.control.draining:
        return [_wait(ranks, rank, position, None, "a change of topology drains for ever")]
    return [_wait(ranks, rank, position, None, "nobody wakes it")]


def _wait(ranks: Ranks, rank: int, position: int, whom: int | None, reason: str) -> Wait:
    program = ranks.programs[rank]
    operation = program.graph.operations[position]
    partner = ranks.partners[rank][position]
    if operation.kind == COLLECTIVE:
        what = COLLECTIVE_NAMES[operation.collective]
        connection = f"group {ranks.trace.groups[partner].name}"
    elif operation.kind == SEND:
        what, connection = "send", f"pair {rank} -> {partner}"
    else:
        what, connection = "receive", f"pair {partner} -> {rank}"
    name = f"{what} {operation.name or 'without a name'} (node {program.graph.ids[position]})"
    return Wait(rank, name, connection, whom, reason)
