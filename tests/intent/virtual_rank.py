"""A rank that keeps the rules of the shim, without threads: somebody else decides what happens when.

Arriving never blocks. Everything is issued in the order of grant numbers, a gap is waited for. What has
finished on this rank is released, whether or not the program ever waits for it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from opus_sdn.intent.errors import Failure
from opus_sdn.intent.model import Arrival, Grant, Hint, RankAnswer, RankNews, Release, Stream
from tests.intent.operations import Collective, Op, Receive, ScaleUp, Send, VirtualJob, Wait

Use = tuple[Stream, int]


@dataclass(slots=True)
class VirtualRank:
    """One rank's program, and its half of the session with the controller."""

    job: VirtualJob
    rank: int
    at: int = 0  # index of the operation that the program is in
    counts: Counter[Stream] = field(default_factory=Counter)
    handles: dict[str, Use] = field(default_factory=dict)
    blocked_on: Use | None = None
    in_host: str | None = None  # scale-up group that the program waits in
    arrivals: list[Arrival] = field(default_factory=list)  # to be sent
    releases: list[Release] = field(default_factory=list)  # to be sent
    open: dict[Use, Arrival] = field(default_factory=dict)  # said or to be said, no grant seen
    grants: dict[int, Grant] = field(default_factory=dict)
    last_grant: int = 0  # seen without a gap
    issued: int = 0
    finished: set[Use] = field(default_factory=set)
    released: Counter[Stream] = field(default_factory=Counter)
    failure: Failure | None = None
    dead: bool = False
    left: bool = False

    @property
    def alive(self) -> bool:
        """Neither dead nor told that the job is over."""
        return not self.dead and self.failure is None and not self.left

    def can_step(self) -> bool:
        """Whether the program can go on by itself; for ranks that are alive."""
        if self.blocked_on is not None:
            return self.blocked_on in self.finished
        return self.in_host is None and self.at < len(self.job.programs[self.rank])

    def step(self) -> None:
        """One operation of the program, or the end of the one it was blocked in."""
        if self.blocked_on is not None:
            self.blocked_on = None
            self.at += 1
            return
        op = self.job.programs[self.rank][self.at]
        match op:
            case ScaleUp():
                self.in_host = op.group
            case Wait():
                self._block(self.handles[op.handle])
            case Collective() | Send() | Receive():
                use = self._declare(op)
                if op.handle is None:
                    self.blocked_on = use
                else:
                    self.handles[op.handle] = use
                    self.at += 1

    def leave_host_barrier(self) -> None:
        """The scale-up collective has ended."""
        self.in_host = None
        self.at += 1

    def _declare(self, op: Collective | Send | Receive) -> Use:
        stream = self.job.stream_of(self.rank, op)
        use = (stream, self.counts[stream])
        self.counts[stream] += 1
        self.open[use] = Arrival(*use, blocking=op.handle is None)
        self.arrivals.append(self.open[use])
        return use

    def _block(self, use: Use) -> None:
        self.blocked_on = use
        if use in self.open:  # the host waits from now on: that is news
            self.open[use] = Arrival(*use, blocking=True)
            self.arrivals.append(self.open[use])

    def finish(self, use: Use) -> None:
        """The operation has finished on this rank's device; releases go out in order."""
        self.finished.add(use)
        stream = use[0]
        while (stream, self.released[stream]) in self.finished:
            self.releases.append(Release(stream, self.released[stream]))
            self.released[stream] += 1

    def has_news(self) -> bool:
        """Something is to be said."""
        return bool(self.arrivals or self.releases)

    def has_ended(self) -> bool:
        """The program has ended, and everything that it issued too."""
        return self.at == len(self.job.programs[self.rank]) and self.released == self.counts

    def guess(self, rng: random.Random) -> tuple[Hint, ...]:
        """What the program may need next: mostly what it does, sometimes what comes later or never."""
        ahead = self.job.programs[self.rank][self.at :]
        gated = [op for op in ahead if isinstance(op, Collective | Send | Receive)][: rng.choice((1, 1, 3))]
        if not gated:
            return ()
        stream = self.job.stream_of(self.rank, rng.choice(gated))
        return (Hint(stream, self.counts[stream] + rng.choice((0, 0, 0, 1, 7))),)

    def news(self, again: bool = False, leave: bool = False) -> RankNews:
        """The next request: what is new or, with `again`, everything that is open."""
        # What is open may be said again at any time; the order of n within a stream is kept.
        arrivals = tuple(self.open.values()) if again else tuple(self.arrivals)
        found = RankNews(self.rank, self.last_grant, arrivals, tuple(self.releases), leave)
        self.arrivals, self.releases = [], []
        return found

    def hear(self, answer: RankAnswer) -> list[Grant]:
        """Take an answer; the grants that are new to this rank."""
        new = [grant for grant in answer.grants if grant.no > self.last_grant]
        for grant in new:
            self.grants[grant.no] = grant
            self.open.pop((grant.stream, grant.n), None)
        while self.last_grant + 1 in self.grants:
            self.last_grant += 1
        if answer.failure is not None:
            self.failure = answer.failure
        return new

    def next_to_issue(self) -> Grant | None:
        """The grant whose operation is issued next, if it has been seen."""
        return self.grants.get(self.issued + 1)

    def describe(self) -> str:
        """Where the program stands, for a picture of who waits for whom."""
        program = self.job.programs[self.rank]
        at = "the end" if self.at == len(program) else f"operation {self.at} ({_text(program[self.at])})"
        waits = f", blocked on {_use(self.blocked_on)}" if self.blocked_on else ""
        told = ", ".join(_use((g.stream, g.n)) for no, g in self.grants.items() if no > self.issued) or "none"
        state = "dead" if self.dead else "left" if self.left else "failed" if self.failure else "at"
        return f"rank {self.rank} {state} {at}{waits}; open: {len(self.open)}; granted and not issued: {told}"


def _use(use: Use) -> str:
    return f"{use[0]}#{use[1]}"


def _text(op: Op) -> str:
    name = type(op).__name__
    match op:
        case Send():
            return f"{name} to {op.to} on {op.group}"
        case Receive():
            return f"{name} from {op.source} on {op.group}"
        case Wait():
            return f"{name} for {op.handle}"
        case _:
            return f"{name} on {op.group}"
