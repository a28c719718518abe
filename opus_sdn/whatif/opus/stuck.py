"""Why a replayed step cannot finish: who waits for whom, and the circle in it."""

from __future__ import annotations

from collections.abc import Iterator

from opus_sdn.intent.explain import why_waiting
from opus_sdn.whatif.errors import CannotFinishError, Wait
from opus_sdn.whatif.opus.control import Controller
from opus_sdn.whatif.opus.outcome import NOTHING
from opus_sdn.whatif.opus.replay import FREE, Replay
from opus_sdn.whatif.trace.model import COLLECTIVE, RECEIVE, Trace
from opus_sdn.whatif.waits import circle


def cannot_finish(trace: Trace, replay: Replay, controller: Controller | None) -> CannotFinishError:
    """The error that says why nothing moves any more."""
    out = replay.out
    waits = {rank: list(_waits_of(trace, replay, controller, rank)) for rank in out.unfinished}
    return CannotFinishError(out.now_ns, len(out.unfinished), circle(waits))


def _waits_of(trace: Trace, replay: Replay, controller: Controller | None, rank: int) -> Iterator[Wait]:
    """Everything that an unfinished rank has begun or arrived at, and whom it needs for it."""
    own = trace.ranks[rank]
    slot = replay.slot[rank]
    if slot != FREE and replay.out.started_ns[rank][slot] != NOTHING:
        yield from _in_transfer(trace, replay, rank, slot)
    for position, operation in enumerate(own.graph.operations):
        if replay.out.ended_ns[rank][position] != NOTHING or position == slot:
            continue
        if controller is not None and controller.number_of(rank, position) is not None:
            yield from _at_gate(replay, controller, rank, position, operation.name)
        elif operation.kind == RECEIVE and replay.out.started_ns[rank][position] != NOTHING:
            peer = own.partners[position]
            connection = f"{peer}>{rank}"
            yield Wait(rank, operation.name, connection, peer, f"rank {peer} has not sent it")


def _in_transfer(trace: Trace, replay: Replay, rank: int, position: int) -> Iterator[Wait]:
    own = trace.ranks[rank]
    operation = own.graph.operations[position]
    if operation.kind == COLLECTIVE:
        group = trace.groups[own.partners[position]]
        for other in replay.transfers.missing(rank, position):
            yield Wait(rank, operation.name, f"group {group.name}", other, f"rank {other} has not joined it")


def _at_gate(replay: Replay, controller: Controller, rank: int, position: int, name: str) -> Iterator[Wait]:
    """A gated operation: members are missing, or something is in the way, or the rank has no slot for it."""
    stream, n = controller.stream_at(rank, position), controller.number_of(rank, position)
    state = controller.core.streams[stream]
    connection = str(stream)
    intent = state.intents.get(n) if n is not None else None
    if intent is None:
        if any(granted == position for granted, _ in replay.granted[rank]):
            yield Wait(
                rank, name, connection, rank, "it is granted, and another operation has the rank's slot"
            )
        elif replay.out.started_ns[rank][position] != NOTHING and n is not None and n < state.granted:
            sender = stream.source
            yield Wait(rank, name, connection, sender, "it is granted, and the sender has not begun")
        elif controller.failure is not None:
            yield Wait(rank, name, connection, None, controller.failure)
        return
    because = why_waiting(controller.engine.state, controller.core, intent)
    missing = [other for other in state.participants if other not in intent.arrived]
    for other in (*missing,) or (None,):
        yield Wait(rank, name, connection, other, because.detail)
