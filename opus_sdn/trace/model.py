"""A recorded run: what every rank did, on one clock, and which operations of the ranks belong together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from opus_sdn.shim.operations import What

RANKS_MAX: Final = 1 << 16
ACTS_MAX: Final = 1 << 22  # of all ranks

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"
ALL_TO_ALL, BROADCAST, BARRIER = "all-to-all", "broadcast", "barrier"
SEND, RECEIVE, OTHER = "send", "receive", "other"
MESSAGES: Final = (SEND, RECEIVE)

# How torch's own names begin, without underscores; the longer ones first.
_KINDS: Final = (
    ("allreduce", ALL_REDUCE),
    ("reducescatter", REDUCE_SCATTER),
    ("allgather", ALL_GATHER),
    ("alltoall", ALL_TO_ALL),
    ("broadcast", BROADCAST),
    ("barrier", BARRIER),
    ("send", SEND),
    ("isend", SEND),
    ("recv", RECEIVE),
    ("irecv", RECEIVE),
)


class TraceError(ValueError):
    """A trace that cannot be read or used: which file or rank, what is wrong, what would be right."""


def canonical(kind: str) -> str:
    """What an operation is, whatever torch, gloo or NCCL call it."""
    name = kind.lower().replace("_", "").replace(":", "")
    for prefix in ("c10d", "gloo", "nccl"):
        name = name.removeprefix(prefix)
    return next((ours for begin, ours in _KINDS if name.startswith(begin)), OTHER)


class Key(NamedTuple):
    """The name of an operation on which all who take part agree. Collectives have no ends."""

    group: str
    source: int | None
    destination: int | None
    n: int


@dataclass(frozen=True, slots=True)
class Act:
    """One operation as one rank saw it. Times are ns on the run's clock.

    `begin` the program called, `end` it had finished on the device; the host stood still from `wait_begin` to
    `wait_end` (both 0: it never waited, or nobody saw it). `size` is in bytes, of the larger side.
    """

    rank: int
    number: int
    what: What
    kind: str
    key: Key
    size: int
    begin: int
    end: int
    wait_begin: int = 0
    wait_end: int = 0

    @property
    def dimension(self) -> str:
        """The parallelism dimension that it belongs to."""
        return self.what.dimension


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's operations in the order of its calls. `clock_error_ns`: how far its times may be off the
    others'; None when that is not known. `lost`: operations that were not recorded.
    """

    rank: int
    acts: tuple[Act, ...]
    clock_error_ns: int | None = None
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """A run. `ranks` are in order and complete as far as `world` says; `notes` are for people."""

    name: str
    world: int
    ranks: tuple[RankTrace, ...]
    dimensions: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def acts(self) -> Iterator[Act]:
        """All operations of all ranks."""
        for rank in self.ranks:
            yield from rank.acts

    def together(self) -> dict[Key, list[Act]]:
        """Who took part in what: one act for each rank that recorded it."""
        found: dict[Key, list[Act]] = {}
        for act in self.acts():
            found.setdefault(act.key, []).append(act)
        return found

    def missing(self) -> list[int]:
        """Ranks of which there is no trace."""
        there = {rank.rank for rank in self.ranks}
        return [rank for rank in range(self.world) if rank not in there]


class Numbering:
    """Numbers one rank's operations as all members of a group do: by what was called before on it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._counts: dict[tuple[str, int | None, int | None], int] = {}

    def key(self, what: What, kind: str) -> Key:
        """The name of the next operation of this kind."""
        source = destination = None
        if kind == SEND:
            source, destination = self._rank, what.peer
        elif kind == RECEIVE:
            source, destination = what.peer, self._rank
        stream = (what.group, source, destination)
        n = self._counts.get(stream, 0)
        self._counts[stream] = n + 1
        return Key(*stream, n)
