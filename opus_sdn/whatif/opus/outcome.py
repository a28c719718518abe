"""When everything in a replayed step happened, and because of what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opus_sdn.whatif.trace.model import Trace

NOTHING: Final = -1
SHIFT: Final = 32


def node_of(rank: int, position: int) -> int:
    """One number for a node of the whole step."""
    return rank << SHIFT | position


def rank_of(node: int) -> int:
    """The rank of a node."""
    return node >> SHIFT


def position_of(node: int) -> int:
    """The position of a node in its rank's graph."""
    return node & ((1 << SHIFT) - 1)


def cause_of_grant(grant: int) -> int:
    """A grant as the cause of something, beside nodes and NOTHING."""
    return NOTHING - 1 - grant


def grant_of(cause: int) -> int:
    """The grant that a cause below NOTHING is."""
    return NOTHING - 1 - cause


@dataclass(slots=True)
class Outcome:
    """Times in ns of every node by rank and position (NOTHING: never), and what start and end hung on.

    `begun_by[r][p]` is the node whose end, or (`cause_of_grant`) the grant, that let (r, p) start;
    `decided_by[r][p]` is the node whose start decided the end of a transfer: the last member of a ring, the
    sender of a message.
    """

    finish_ns: list[int]
    started_ns: list[list[int]]
    ended_ns: list[list[int]]
    begun_by: list[list[int]]
    decided_by: list[list[int]]
    now_ns: int = 0

    @classmethod
    def blank(cls, trace: Trace) -> Outcome:
        """Before anything has happened."""

        def nothing() -> list[list[int]]:
            return [[NOTHING] * len(rank.graph) for rank in trace.ranks]

        return cls([NOTHING] * len(trace.ranks), nothing(), nothing(), nothing(), nothing())

    @property
    def unfinished(self) -> list[int]:
        """Ranks that have not come to their end."""
        return [rank for rank, finish in enumerate(self.finish_ns) if finish == NOTHING]

    def last_node(self) -> int:
        """The node that ended last; NOTHING when none did."""
        last, found = -1, NOTHING
        for rank, ended in enumerate(self.ended_ns):
            latest = max(ended, default=-1)
            if latest > last:
                last, found = latest, node_of(rank, ended.index(latest))
        return found
