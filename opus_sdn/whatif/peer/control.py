"""Votes, topology requests and the global in-flight lock of the published simulator, weak points included."""

from __future__ import annotations

from opus_sdn.whatif.inputs.hints import DATA_PARALLEL
from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.trace.model import Group


class Votes:
    """The members of one group agree on rounds: not on operations, which is where microbatches go wrong."""

    __slots__ = ("finished", "finished_rounds", "started_rounds", "voted")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.voted = dict.fromkeys(members, 0)
        self.finished = dict.fromkeys(members, 0)
        self.finished_rounds = 0
        self.started_rounds = 0


class Control:
    """Who may start, and which topology is asked for. The owner moves the links and says when they have
    drained.

    A topology id has one bit for each pipeline stage, stage 0 being the most significant: 1 stands for
    pipeline links, 0 for data-parallel rings. The bits are set before a request is decided and stay when it
    is rejected.
    """

    def __init__(self, schedules: Schedules, groups: tuple[Group, ...]) -> None:
        self._stage = [schedules.stage_of(rank) for rank in range(schedules.ranks)]
        self._stages = schedules.stages
        self._wanted = 0
        self._votes: list[Votes | None] = [
            None if schedules.everywhere(group.ranks) else Votes(group.ranks) for group in groups
        ]
        self.topology = 0
        self.draining = False
        self.in_flight = 0
        self.rejected = 0
        self.votes_waited = 0

    def switched(self, group: int) -> bool:
        """Whether the group needs links that some topology lacks."""
        return self._votes[group] is not None

    def votes(self, group: int) -> Votes:
        """The votes of a switched group."""
        votes = self._votes[group]
        assert votes is not None
        return votes

    def missing_votes(self, group: int) -> list[int]:
        """The members that the next round still waits for."""
        votes = self.votes(group)
        return [member for member, vote in votes.voted.items() if vote <= votes.finished_rounds]

    def vote(self, rank: int, group: int) -> bool:
        """`rank` tries to begin its next collective on a switched group: whether all votes are there.

        A further try changes nothing before somebody's vote or completion does.
        """
        votes = self.votes(group)
        if votes.voted[rank] <= votes.finished[rank]:
            votes.voted[rank] += 1
        if (
            votes.voted[rank] - votes.finished_rounds > 1
            or min(votes.voted.values()) <= votes.finished_rounds
        ):
            self.votes_waited += 1
            return False
        return True

    def may_start(self, rank: int, group: int) -> tuple[bool, bool]:
        """With all votes there: may `rank` begin, and must links move? The first of a round asks for them."""
        votes = self.votes(group)
        moves = False
        if votes.started_rounds == votes.finished_rounds:
            self._set(rank, 0)
            accepted, moves = self._request()
            if not accepted:
                return False, False
            self.in_flight += 1
            votes.started_rounds += 1
        return True, moves

    def finish(self, rank: int, group: int) -> None:
        """`rank` has finished its part of a collective on a switched group."""
        votes = self.votes(group)
        votes.finished[rank] += 1
        if min(votes.finished.values()) > votes.finished_rounds:
            self.in_flight -= 1
            votes.finished_rounds += 1

    def may_send(self, rank: int, peer: int) -> tuple[bool, bool]:
        """A message is about to be sent: may it, and are links to move?"""
        self._set(rank, 1)
        self._set(peer, 1)
        return self._request()

    def hint(self, rank: int, target: int) -> bool:
        """A request ahead of the need; dropped when rejected. Whether links are to move."""
        if target == DATA_PARALLEL:
            self._set(rank, 0)
        else:
            self._set(rank, 1)
            self._set(target, 1)
        return self._request()[1]

    def _set(self, rank: int, pipeline: int) -> None:
        if self._stages:
            mask = 1 << (self._stages - 1 - self._stage[rank])
            self._wanted = self._wanted | mask if pipeline else self._wanted & ~mask

    def _request(self) -> tuple[bool, bool]:
        """Accepted, and whether this made a change; an accepted change begins to drain."""
        if self._wanted == self.topology:
            return True, False
        if self.draining or self.in_flight:
            self.rejected += 1
            return False, False
        self.topology = self._wanted
        self.draining = True
        return True, True
