"""A training step as operation graphs, one per distinct shape of rank.

A rank is a `RankTrace`: the graph it shares with every rank that runs the same program, and per node what
differs between those: the group of a collective, or the peer and tag of a message. Nodes are addressed by
their position in ascending order of their ids, so that a smaller position is always tried first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

# The kinds of a node (Chakra NodeType); plain integers, because engines compare them a million times.
METADATA: Final = 1
COMPUTE: Final = 4
SEND: Final = 5
RECEIVE: Final = 6
COLLECTIVE: Final = 7

# The collectives with a ring schedule (Chakra CollectiveCommType).
ALL_REDUCE: Final = 0
ALL_GATHER: Final = 2
ALL_TO_ALL: Final = 6
REDUCE_SCATTER: Final = 7

COLLECTIVE_NAMES: Final = {
    ALL_REDUCE: "all-reduce",
    ALL_GATHER: "all-gather",
    ALL_TO_ALL: "all-to-all",
    REDUCE_SCATTER: "reduce-scatter",
}
KIND_NAMES: Final = {
    METADATA: "metadata",
    COMPUTE: "compute",
    SEND: "send",
    RECEIVE: "receive",
    COLLECTIVE: "collective",
}

NO_PARTNER: Final = -1


class Operation(NamedTuple):
    """What a node does, as far as it is the same on all ranks of one shape.

    `size` in bytes: the memory traffic of a compute node, the message or the collective's `comm_size`
    otherwise. `ops` is the number of floating-point operations, `recorded_ns` the duration that was
    measured (0: none).
    """

    kind: int
    name: str
    collective: int
    size: int
    ops: int
    recorded_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The operations of one shape of rank and what waits for what. All tuples are indexed by position.

    `indegree[i]` distinct nodes must finish before `i`; `children[i]` are the positions that wait for `i`.
    `communications` are the positions of sends, receives and collectives.
    """

    ids: tuple[int, ...]
    operations: tuple[Operation, ...]
    indegree: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    communications: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        talk = (SEND, RECEIVE, COLLECTIVE)
        found = tuple([i for i, operation in enumerate(self.operations) if operation.kind in talk])
        object.__setattr__(self, "communications", found)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """One rank: `partners[i]` is the index of a collective's group, a message's peer, or NO_PARTNER;
    `tags[i]` its tag.
    """

    rank: int
    graph: Graph
    partners: tuple[int, ...]
    tags: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator: its name in the trace and its ranks in ring order.

    With `folded` above 1, each of them stands for so many ranks that do the same at the same time, joined by
    links of the bandwidth that the schedules give from the rank to itself.
    """

    name: str
    ranks: tuple[int, ...]
    folded: int = 1

    @property
    def members(self) -> int:
        """How many ranks take part in its collectives."""
        return len(self.ranks) * self.folded


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A whole step: `ranks[r].rank == r`. `graphs` are the distinct ones; `nodes` counts operations of all
    ranks.
    """

    ranks: tuple[RankTrace, ...]
    groups: tuple[Group, ...]
    graphs: tuple[Graph, ...]
    nodes: int
