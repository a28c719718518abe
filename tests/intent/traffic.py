"""Operations on virtual devices: issued by every participant, then finished in one of three ways."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from opus_sdn.intent.fabric import Circuit
from tests.intent.virtual_rank import Use
from tests.intent.virtual_switch import Witness


class Finish(StrEnum):
    """When an operation that all participants have issued ends."""

    EAGER = "eager"  # at once
    OP = "op"  # all ends together, at some time
    EACH = "each"  # every end at its own time


@dataclass(slots=True)
class _Operation:
    ranks: tuple[int, ...]
    issued: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)


class Traffic:
    """All operations that were issued and have not ended everywhere. Streams end in order at each rank."""

    def __init__(self, finish: Finish, in_order: bool, witness: Witness) -> None:
        self._finish = finish
        self._in_order = in_order
        self._witness = witness
        self._active: dict[int, dict[Use, _Operation]] = defaultdict(dict)  # by job
        self._queues: dict[tuple[int, int], list[Use]] = defaultdict(
            list
        )  # by job and rank, in order of issue

    def issue(
        self, job: int, rank: int, use: Use, ranks: Sequence[int], circuits: tuple[Circuit, ...]
    ) -> None:
        """A rank's device begins its half."""
        self._witness.begin((job, rank, use), circuits)
        operation = self._active[job].setdefault(use, _Operation(tuple(ranks)))
        operation.issued.add(rank)
        self._queues[job, rank].append(use)

    def endable(self, job: int) -> Iterator[tuple[Use, int | None]]:
        """Operations that can end now, with the rank they end at, or None for all ranks together."""
        for use, operation in self._active[job].items():
            if len(operation.issued) < len(operation.ranks):
                continue
            if not all(self._runs(job, rank, use) for rank in operation.ranks if rank not in operation.ended):
                continue
            if self._finish is Finish.EACH:
                yield from ((use, rank) for rank in operation.ranks if rank not in operation.ended)
            else:
                yield use, None

    def _runs(self, job: int, rank: int, use: Use) -> bool:
        """Whether this rank's half is on the wire: it is the first of its device, or of its stream."""
        queue = self._queues[job, rank]
        if self._in_order:
            return queue[0] == use
        return next(other for other in queue if other[0] == use[0]) == use

    def end(self, job: int, use: Use, rank: int | None) -> tuple[int, ...]:
        """End the operation at one rank, or at all; answers which."""
        operation = self._active[job][use]
        ended = operation.ranks if rank is None else (rank,)
        for one in ended:
            self._take_off(job, one, use)
            operation.ended.add(one)
        if len(operation.ended) == len(operation.ranks):
            del self._active[job][use]
        return ended

    def abort(self, job: int, rank: int) -> None:
        """A rank's device stops all that it has not finished; its peers' halves can never end."""
        for use in list(self._queues[job, rank]):
            self._take_off(job, rank, use)
            self._active[job][use].issued.discard(rank)

    def cut_short(self, job: int, rank: int) -> list[tuple[Use, int]]:
        """What can never end once this rank has stopped: its unfinished operations, with those who wait."""
        return [
            (use, other)
            for use, operation in self._active[job].items()
            if rank in operation.ranks and rank not in operation.ended
            for other in operation.ranks
            if other != rank and other in operation.issued and other not in operation.ended
        ]

    def forget(self, job: int) -> None:
        """All ranks of a job have aborted: what nobody can finish any more is no operation."""
        self._active.pop(job, None)

    def _take_off(self, job: int, rank: int, use: Use) -> None:
        self._witness.end((job, rank, use))
        self._queues[job, rank].remove(use)
