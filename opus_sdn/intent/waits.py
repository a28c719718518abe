"""Who waits for whom: the picture that a deadline's message shows.

Only host-blocking arrivals count: a rank that issued an operation and went on does not wait in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opus_sdn.intent.changes import IntentState
from opus_sdn.intent.job import JobCore


@dataclass(frozen=True, slots=True)
class Wait:
    """Rank `rank` is blocked in `operation` until `waits_for` arrives there."""

    rank: int
    operation: str
    waits_for: int

    def __str__(self) -> str:
        return f"rank {self.rank} waits in {self.operation} for rank {self.waits_for}"


def wait_for_cycle(job: JobCore) -> tuple[Wait, ...]:
    """Ranks that wait for each other in a circle, so that none can ever go on; empty if there is none."""
    edges: dict[int, tuple[str, list[int]]] = {}
    for intent in job.open.values():
        if intent.state is IntentState.DECLARED:
            missing = job.streams[intent.stream].missing(intent.n)
            for rank, arrived in intent.arrived.items():
                if arrived.arrival.blocking:
                    edges.setdefault(rank, (intent.key, missing))
    circle = _circle({rank: missing for rank, (_, missing) in edges.items()})
    return tuple(
        Wait(rank, edges[rank][0], after) for rank, after in zip(circle, circle[1:] + circle[:1], strict=True)
    )


def _circle(edges: Mapping[int, list[int]]) -> list[int]:
    """The first circle that a depth-first walk meets, in walking order."""
    finished: set[int] = set()
    for start in edges:
        path: list[int] = []
        branches: list[Iterator[int]] = [iter((start,))]
        while branches:
            rank = next(branches[-1], None)
            if rank is None:
                branches.pop()
                if path:
                    finished.add(path.pop())
            elif rank in path:
                return path[path.index(rank) :]
            elif rank in edges and rank not in finished:
                path.append(rank)
                branches.append(iter(edges[rank]))
    return []
