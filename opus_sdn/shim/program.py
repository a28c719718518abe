"""What the shim knows of the program: where it is in its steps, the runs that it holds, what it needs next.

The job calls these methods with its lock held, in the order of the program's calls. Nothing here blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from opus_sdn.intent.model import Grant, Stream
from opus_sdn.shim.held_run import Fate, HeldRun
from opus_sdn.shim.operations import Operation
from opus_sdn.shim.phase_tracker import PhaseTracker
from opus_sdn.shim.phases import Position

W = TypeVar("W")

NO_OFFER = (1, 1)


class Announces(Protocol):
    """What is told to the controller."""

    def offer(self, stream: Stream, n: int, closed: int, quiet: int) -> None:
        """Offer a shorter run with an arrival that is not granted yet."""

    def cut(self, stream: Stream, n: int, issued: int) -> None:
        """How far this rank is in a run that it leaves, or that is being cut."""


class Called(NamedTuple, Generic[W]):
    """What becomes of a call; `run` covers it where it is issued at once, the offers go with an arrival."""

    fate: Fate
    run: HeldRun[W] | None
    closed: int
    quiet: int


class Program(Generic[W]):
    """The program of one rank. `says_hints`: it says what it needs next."""

    def __init__(self, tracker: PhaseTracker, says: Announces, says_hints: bool) -> None:
        self.tracker = tracker
        self._says = says
        self._says_hints = says_hints
        self._runs: dict[Stream, HeldRun[W]] = {}
        self._offered: dict[tuple[Stream, int], int] = {}  # open arrivals with an offer -> what was closed
        self._unfinished: Counter[str] = Counter()  # calls by connection
        self._idle_groups: set[tuple[tuple[int, ...], int]] = set()
        self.is_bypassed = False  # there are groups whose operations are not seen
        self.grants = self.longer_runs = self.operations_in_longer_runs = self.runs_cut = self.hints = 0
        self._dropped = 0  # tables, as far as this is known here
        self._hinted: tuple[Stream, int] | None = None

    # --- groups

    def has_group(self, ranks: tuple[int, ...], ordinal: int) -> None:
        """There is a group of these ranks, of which nothing was seen yet."""
        self._idle_groups.add((ranks, ordinal))

    def uses_group(self, ranks: tuple[int, ...], ordinal: int) -> None:
        """It is used."""
        self._idle_groups.discard((ranks, ordinal))

    # --- the program's calls

    def call(self, operation: Operation, stream: Stream, n: int, work: W) -> Called[W]:
        """The program calls operation n of a stream that needs grants."""
        position = self.turn(operation)
        self._unfinished[stream.connection] += 1
        run = self._runs.get(stream)
        if run is not None:
            fate = run.call(n, work)
            if fate is not Fate.ARRIVE:
                if fate is Fate.ISSUE and run.is_told:
                    self._says.cut(stream, run.n, run.called)
                return Called(fate, run, *NO_OFFER)
        closed, quiet = self._offers(position, stream)
        if max(closed, quiet) > 1:
            self._offered[stream, n] = closed
        return Called(Fate.ARRIVE, None, closed, quiet)

    def turn(self, operation: Operation) -> Position | None:
        """The program calls an operation, or ends a step. Leaves a held run if it was not expected to."""
        tracker = self.tracker
        position = tracker.follow(operation)
        if tracker.dropped != self._dropped:
            self._dropped = tracker.dropped
            self.leave()
        return position

    def wait(self, connection: str) -> bool:
        """The program waits for an operation of this connection or group. Whether it left a run by that."""
        for run in self._runs.values():
            if run.is_left_by_waiting(connection):
                self.tracker.drop()
                self._dropped = self.tracker.dropped
                self.leave()
                return True
        return False

    def leave(self) -> None:
        """The program goes where its table did not say: take back what was offered, cut what is held."""
        for stream, n in self._offered:
            self._says.offer(stream, n, *NO_OFFER)
        self._offered.clear()
        for run in self._runs.values():
            if not run.is_complete:
                self._cut(run)

    def _cut(self, run: HeldRun[W]) -> None:
        if run.leave():
            self.runs_cut += 1
            self._says.cut(run.stream, run.n, run.called)

    def _offers(self, position: Position | None, stream: Stream) -> tuple[int, int]:
        """Closed and quiet: what the table says, as far as it holds at this moment."""
        if position is None or stream.source is not None:
            return NO_OFFER
        elsewhere = self._unfinished.total() > self._unfinished[stream.connection]
        unseen = self._idle_groups or self.is_bypassed
        return 1 if unseen else position.closed, 1 if elsewhere else position.quiet

    # --- what the controller says

    def granted(self, grant: Grant, called: int) -> HeldRun[W] | None:
        """A run is granted, of which the program has called so many operations. Held if it is longer."""
        self.grants += 1
        offered = {n: self._offered.pop((grant.stream, n), None) for n in range(grant.n, grant.n + called)}
        if grant.length == 1:
            return None
        closed = offered.get(grant.n)
        run: HeldRun[W] = HeldRun(grant.stream, grant.n, grant.length, closed or 1, called)
        self._runs[grant.stream] = run
        self.longer_runs += 1
        if closed is None:  # the offer was taken back, too late
            self._cut(run)
        return run

    def asked(self, stream: Stream, n: int) -> HeldRun[W] | None:
        """The controller asks how far this rank is in a run; None when it holds no such run."""
        run = self._runs.get(stream)
        if run is None or run.n != n:
            return None
        self._cut(run)
        return run

    def told(self, stream: Stream, n: int, length: int) -> tuple[HeldRun[W], list[W], list[W]] | None:
        """A run that is cut ends after so many operations: what is issued now, and what has to arrive."""
        run = self._runs.get(stream)
        if run is None or run.n != n or run.is_told:
            return None
        going, rest = run.end_at(length)
        if going:
            self._says.cut(stream, n, run.called)
        return run, going, rest

    # --- what has finished

    def finished(self, stream: Stream, n: int) -> int | None:
        """Operation n has finished on the device. The first number of what is to be released, if anything."""
        self._unfinished[stream.connection] -= 1
        run = self._runs.get(stream)
        if run is None or not run.covers(n):
            return n
        run.finish()
        return self.over(run)

    def over(self, run: HeldRun[W]) -> int | None:
        """Forget a run that is over; its first number, else None."""
        if not run.is_over:
            return None
        del self._runs[run.stream]
        self.operations_in_longer_runs += run.length
        return run.n

    @property
    def holds_runs(self) -> bool:
        """A run of several operations is held."""
        return bool(self._runs)

    @property
    def runs(self) -> list[HeldRun[W]]:
        """Runs of several operations that are held; at most one, by the rules."""
        return list(self._runs.values())

    def hint(self, numbers: Mapping[Stream, int]) -> tuple[Stream, int] | None:
        """The operation that the program needs next, where that is known and was not said before.

        `numbers`: the next one of each stream that was used before; of others the controller knows nothing.
        """
        need = self.tracker.next_need() if self._says_hints else None
        if need is None or need not in numbers or self._hinted == (need, numbers[need]):
            return None
        self._hinted = need, numbers[need]
        self.hints += 1
        return self._hinted
