"""The time after a restart in which not every rank of a job has said yet what it holds.

The store may have lost its newest records. What a rank holds beyond them is known when the rank, or another
participant of the same run, has said so; until then nothing is taken from the job's ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opus_sdn.intent.model import Stream
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.streams import HeldRun, short


@dataclass(slots=True)
class Grace:
    """Of one job: whom it waits for. `intact` = the store holds all that was ever answered."""

    awaited: set[int]
    intact: bool
    lacking: set[int] = field(default_factory=set)  # ranks with a run that they may not have been told of
    unrecorded: dict[tuple[Stream, int], HeldRun] = field(default_factory=dict)  # the store has lost them
    _groups_of: dict[int, list[int]] = field(default_factory=dict)
    _awaited_in: list[set[int]] = field(default_factory=list)

    @classmethod
    def over(cls, awaited: Iterable[int], groups: Iterable[Sequence[int]], intact: bool) -> Grace:
        """A grace for these ranks; `groups` are the rank lists over which runs may have been granted."""
        grace = cls(set(awaited), intact)
        for number, ranks in enumerate(groups):
            grace._awaited_in.append(grace.awaited.intersection(ranks))
            for rank in ranks:
                grace._groups_of.setdefault(rank, []).append(number)
        return grace

    def heard(self, rank: int) -> None:
        """The rank has said what it holds, or is known to have stopped."""
        self.awaited.discard(rank)
        for number in self._groups_of.get(rank, ()):
            self._awaited_in[number].discard(rank)

    def why_hold_back(self, ranks: Sequence[int]) -> Because | None:
        """Why none of these ranks may be given a new grant yet; None when they may.

        An earlier grant that one of them was never told of must come first, as its peers have it before.
        """
        if self.intact:
            return None
        for rank in ranks:
            for number in self._groups_of.get(rank, ()):
                if self._awaited_in[number]:
                    return awaiting(self._awaited_in[number])
        if any(rank in self.lacking for rank in ranks):
            return awaiting(self.awaited)
        return None


def awaiting(ranks: Iterable[int]) -> Because:
    """The reason that names the ranks which have not been heard since the restart."""
    missing = sorted(ranks)
    detail = f"after a restart of the controller ranks {short(missing)} have not said yet what they hold"
    return Because(Reason.GRACE, detail, {"ranks": missing})
