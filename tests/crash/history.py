"""What clients of a controller saw, and whether a lock service could have answered so.

A history is a list of observations, each with the moment before and the moment after it: an observation was
true at some moment between. The checker knows the ports that each stream needs and nothing of the controller.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Key = tuple[str, int]  # stream and n


class Kind(StrEnum):
    """What a client did, or heard."""

    ARRIVED = "arrived"  # it is about to say so
    GRANTED = "granted"  # it has heard so
    RELEASED = "released"  # it is about to say so


@dataclass(frozen=True, slots=True)
class Observation:
    """One client's observation at `at` seconds of one clock. `no`: the grant's number for that client."""

    at: float
    rank: int
    kind: Kind
    stream: str
    n: int
    no: int = 0


@dataclass(slots=True)
class Recorder:
    """Takes observations from several threads."""

    observations: list[Observation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, rank: int, kind: Kind, stream: str, n: int, no: int = 0) -> None:
        """One observation, now."""
        with self._lock:
            self.observations.append(Observation(time.monotonic(), rank, kind, stream, n, no))


def anomalies(
    history: Sequence[Observation],
    members: Mapping[str, Sequence[int]],
    circuits: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """What no correct controller does. `circuits`: by stream, each port it needs with its other end.

    Everybody's observations are in the order of one clock: what a client does between saying that it arrives
    and hearing of its grant, and between hearing of it and saying that it has finished, is known to the
    checker as well as to the client.
    """
    return [
        *_barrier(history, members),
        *_once_and_in_order(history, members),
        *_numbers(history),
        *_exclusion(history, circuits),
        *_one_order(history),
    ]


def _barrier(history: Iterable[Observation], members: Mapping[str, Sequence[int]]) -> Iterable[str]:
    """Nobody hears of a grant before all members have arrived at that operation."""
    arrived: dict[Key, set[int]] = defaultdict(set)
    for seen in history:
        key = (seen.stream, seen.n)
        if seen.kind is Kind.ARRIVED:
            arrived[key].add(seen.rank)
        elif seen.kind is Kind.GRANTED and (missing := set(members[seen.stream]) - arrived[key]):
            yield f"barrier: rank {seen.rank} was granted {key}, and ranks {sorted(missing)} had not arrived"


def _once_and_in_order(history: Sequence[Observation], members: Mapping[str, Sequence[int]]) -> Iterable[str]:
    """Each member hears of each of its operations once, in order; none is left out."""
    expected: dict[tuple[int, str], int] = defaultdict(int)
    for seen in history:
        if seen.kind is Kind.GRANTED:
            if seen.n != expected[seen.rank, seen.stream]:
                yield (
                    f"order: rank {seen.rank} was granted {seen.stream}#{seen.n}, "
                    f"{expected[seen.rank, seen.stream]} was next"
                )
            expected[seen.rank, seen.stream] = seen.n + 1
    for stream, ranks in members.items():
        counts = {rank: expected[rank, stream] for rank in ranks}
        if len(set(counts.values())) > 1:
            yield f"lost: members of {stream} have heard of {counts} operations"


def _numbers(history: Iterable[Observation]) -> Iterable[str]:
    """Each client's grants are numbered from 1 without a gap."""
    last: dict[int, int] = defaultdict(int)
    for seen in history:
        if seen.kind is Kind.GRANTED:
            if seen.no != last[seen.rank] + 1:
                yield f"numbers: rank {seen.rank} was given grant {seen.no} after {last[seen.rank]}"
            last[seen.rank] = seen.no


def _exclusion(history: Iterable[Observation], circuits: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """While somebody holds a stream, nobody is granted one that needs a port of it for another circuit."""
    held: dict[str, set[tuple[int, int]]] = defaultdict(set)  # stream -> rank, n
    for seen in history:
        if seen.kind is Kind.RELEASED:
            held[seen.stream].discard((seen.rank, seen.n))
        elif seen.kind is Kind.GRANTED:
            mine = circuits[seen.stream]
            for other, holders in held.items():
                theirs = circuits[other]
                clash = [port for port in mine if port in theirs and mine[port] != theirs[port]]
                if holders and clash:
                    yield (
                        f"exclusion: rank {seen.rank} was granted {seen.stream}#{seen.n} while {other} was "
                        f"held by {sorted(holders)}; both need {clash}"
                    )
            held[seen.stream].add((seen.rank, seen.n))


def _one_order(history: Iterable[Observation]) -> Iterable[str]:
    """Two clients that share two operations hear of them in the same order: their devices run in order."""
    heard: dict[int, list[Key]] = defaultdict(list)
    for seen in history:
        if seen.kind is Kind.GRANTED:
            heard[seen.rank].append((seen.stream, seen.n))
    ranks = sorted(heard)
    for at, first in enumerate(ranks):
        for second in ranks[at + 1 :]:
            common = set(heard[first]) & set(heard[second])
            mine = [key for key in heard[first] if key in common]
            theirs = [key for key in heard[second] if key in common]
            if mine != theirs:
                differs = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
                yield (
                    f"one order: rank {first} heard of {mine[differs]}, "
                    f"rank {second} of {theirs[differs]} first"
                )
