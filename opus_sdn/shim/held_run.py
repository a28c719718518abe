"""A granted run of several operations on one rank: which calls of the program it covers, how it is cut. Pure.

The program calls the operations of a run without asking. A run is left when the program turns elsewhere, or
when another rank has left it: from then on this rank's calls are kept back until the controller says where
the run ends. It is over when all operations up to its end have finished on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from opus_sdn.intent.model import Stream

W = TypeVar("W")


class Fate(Enum):
    """What becomes of a call."""

    ISSUE = "the run covers it"
    KEEP = "it is not known yet whether the run covers it"
    ARRIVE = "it comes after the run"


@dataclass(slots=True)
class HeldRun(Generic[W]):
    """Operations [n, n + length) of a stream. `called` of them were called; `closed` is what was offered."""

    stream: Stream
    n: int
    length: int
    closed: int
    called: int
    finished: int = 0
    is_cut: bool = False
    is_told: bool = False  # where the cut run ends
    kept: list[tuple[int, W]] = field(default_factory=list)
    here: list[W] = field(default_factory=list)  # issued by the program's threads; nobody may wait for them

    @property
    def is_over(self) -> bool:
        """All its operations have finished, and it is certain that no further one belongs to it."""
        return self.finished == self.length and self.is_told == self.is_cut

    @property
    def is_complete(self) -> bool:
        """All its operations were called."""
        return self.called >= self.length

    def covers(self, n: int) -> bool:
        """Whether operation n belongs to it, as far as is known."""
        return self.n <= n < self.n + self.length

    def call(self, n: int, work: W) -> Fate:
        """The program calls operation n of the stream."""
        if not self.covers(n):
            return Fate.ARRIVE
        if self.is_cut and not self.is_told:
            self.kept.append((n, work))
            return Fate.KEEP
        self.called += 1
        return Fate.ISSUE

    def finish(self) -> bool:
        """One of its operations has finished. Whether the run is over."""
        self.finished += 1
        return self.is_over

    def is_left_by_waiting(self, connection: str) -> bool:
        """Whether the program leaves the run when it waits for something of another connection or group.

        A rank that did offer the run as closed said that it would not. Where the length comes from quiet
        offers, such a wait is in order: nobody waits for ports of the run then.
        """
        waits_outside = connection != self.stream.connection
        return waits_outside and not self.is_cut and not self.is_complete and self.closed >= self.length

    def leave(self) -> bool:
        """The program turns elsewhere, or the controller asks. Whether that has to be said."""
        if self.is_cut:
            return False
        self.is_cut = True
        return True

    def end_at(self, length: int) -> tuple[list[W], list[W]]:
        """The run ends after so many operations: of the calls kept back, those that go out, and the rest."""
        self.length, self.is_told = length, True
        kept, self.kept = self.kept, []
        going = [work for n, work in kept if self.covers(n)]
        self.called += len(going)
        return going, [work for n, work in kept if not self.covers(n)]
