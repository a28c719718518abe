"""How fast the step could be at best on a switch with this delay, whatever its controller knows.

On a stage after the first, the ring of the data-parallel group needs the port towards the stage before until
its last collective has finished on all members; the gradients sent to that stage need the same port. So each
such send waits at least the delay, less the time that the program leaves between the two, and the chain of
sends through the pipeline adds up. This holds as long as ports, order and the one communication slot are what
they are; where a late collective leaves the slot to others, a step may be about 0.1 % faster than the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.intent.model import Stream
from opus_sdn.whatif.opus.control import Controller
from opus_sdn.whatif.opus.outcome import Outcome
from opus_sdn.whatif.trace.model import SEND, Trace


@dataclass(frozen=True, slots=True)
class Bound:
    """`gaps_ns[s - 1]`: on stage s, from the end of the ring's last collective to the send; static run."""

    gaps_ns: tuple[int, ...]
    static_ns: int

    def at(self, delay_ns: int) -> int:
        """No step with this delay is faster, in ns."""
        return self.static_ns + sum(max(0, delay_ns - gap) for gap in self.gaps_ns)


def lower_bound(trace: Trace, static: Outcome, controller: Controller) -> Bound | None:
    """From a static run of the step. None for programs that send more than once per stage and step."""
    stage_of = controller.core.layout.stage_of
    gaps: dict[int, int] = {}
    for rank in range(len(trace.ranks)):
        sends = _sends_back(trace, controller, rank, stage_of)
        if len(sends) > 1:
            return None
        for position in sends:
            sent = static.started_ns[rank][position]
            before = [
                static.ended_ns[rank][ring]
                for ring in _rings(trace, controller, rank)
                if static.ended_ns[rank][ring] <= sent
                and controller.conflict(
                    controller.stream_at(rank, ring), controller.stream_at(rank, position)
                )
            ]
            if before:
                stage = stage_of[rank]
                gaps[stage] = max(gaps.get(stage, 0), sent - max(before))
    return Bound(tuple(gaps[stage] for stage in sorted(gaps)), max(static.finish_ns))


def _sends_back(trace: Trace, controller: Controller, rank: int, stage_of: tuple[int, ...]) -> list[int]:
    own = trace.ranks[rank]
    return [
        position
        for position, operation in enumerate(own.graph.operations)
        if operation.kind == SEND
        and controller.gates(rank, position)
        and stage_of[own.partners[position]] < stage_of[rank]
    ]


def _rings(trace: Trace, controller: Controller, rank: int) -> list[int]:
    own = trace.ranks[rank]
    return [
        position
        for position in range(len(own.graph))
        if controller.gates(rank, position) and _is_ring(controller.stream_at(rank, position))
    ]


def _is_ring(stream: Stream) -> bool:
    return stream.source is None
