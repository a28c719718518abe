"""A virtual rank that offers runs: what the shim does with a phase table, a run it holds, and a cut.

Operations that a held run covers are issued as the program calls them, without an arrival. A rank that leaves
its run says how far it is and calls no more of it until it is told where the run ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from opus_sdn.intent.model import Arrival, Cut, CutRequest, Grant, RankAnswer, RankNews, Release, Stream
from tests.intent.offers import Offer, Table, honest
from tests.intent.operations import Collective, Receive, Send, VirtualJob
from tests.intent.virtual_rank import Use, VirtualRank


@dataclass(slots=True)
class Held:
    """A run of several operations as its rank knows it."""

    grant: Grant
    offer: Offer
    length: int
    called: int
    cut: Cut | None = None  # what this rank said last
    told: bool = False

    @property
    def end(self) -> int:
        return self.grant.n + self.length


@dataclass(slots=True)
class RunningRank(VirtualRank):
    """`table` says what the program may offer; a `dreamer` believes now and then in longer runs."""

    table: Table = honest
    dreamer: random.Random | None = None
    cuts: list[Cut] = field(default_factory=list)  # to be sent
    runs: dict[Stream, Held] = field(default_factory=dict)
    ready: list[Grant] = field(default_factory=list)  # everything that may be issued, in order
    kept: dict[Stream, int] = field(default_factory=dict)  # operations called and kept back until told
    offers: dict[Use, Offer] = field(default_factory=dict)  # of what is open
    broken: dict[Use, list[bool]] = field(default_factory=dict)  # since then: closed, quiet no longer true
    awake: bool = False  # it has left a run, and offers single operations from now on

    # --- the program

    def step(self) -> None:
        VirtualRank.step(self)
        if self.at == len(self.job.programs[self.rank]) and self.blocked_on is None and self.in_host is None:
            self._leave_runs(lambda held: True)
        elif self.in_host is not None:
            self._break(0, None)
            self._leave_runs(lambda held: held.offer[0] >= held.length)

    def _declare(self, op: Collective | Send | Receive) -> Use:
        stream = self.job.stream_of(self.rank, op)
        held = self.runs.get(stream)
        n = self.counts[stream]
        self._break(1, stream)
        if op.handle is None:
            self._break(0, stream)
        self._leave_runs(lambda other: other is not held and self._leaves(other, op))
        self.counts[stream] += 1
        if held is not None and n < held.end and (held.told or held.cut is None):
            self._call(held)
        elif held is not None and held.cut is not None and not held.told:
            self.kept[stream] = self.kept.get(stream, 0) + 1
        else:
            self._arrive(stream, n, blocking=op.handle is None)
        return stream, n

    def _leaves(self, held: Held, op: Collective | Send | Receive) -> bool:
        """Issuing elsewhere, or blocking elsewhere, is not what was offered for a run so long."""
        return held.offer[1] >= held.length or (op.handle is None and held.offer[0] >= held.length)

    def _block(self, use: Use) -> None:
        stream, n = use
        if use not in self.finished:
            self._break(0, stream)
        self._leave_runs(
            lambda held: (
                not (held.grant.stream == stream and held.grant.n <= n < held.end)
                and held.offer[0] >= held.length
                and use not in self.finished
            )
        )
        self.blocked_on = use
        if use in self.open:  # the host waits from now on: that is news
            self.open[use] = replace(self.open[use], blocking=True)
            self.tell(self.open[use], new=False)

    def _break(self, kind: int, stream: Stream | None) -> None:
        """The program goes elsewhere before all is called that an open arrival offers: it offers less."""
        for use, offer in self.offers.items():
            called = self.counts[use[0]] - use[1]
            if use[0] != stream and called < offer[kind] and not self.broken[use][kind]:
                self.broken[use][kind] = True
                known = self.open[use]
                smaller = replace(known, closed=called) if kind == 0 else replace(known, quiet=called)
                self.open[use] = smaller
                self.tell(smaller, new=False)

    def _arrive(self, stream: Stream, n: int, blocking: bool) -> None:
        use = (stream, n)
        self.broken[use] = [False, False]
        self.offers[use] = (1, 1) if self.awake else self._offer(stream)
        closed, quiet = self.offers[use]
        self.open[use] = Arrival(*use, blocking=blocking, closed=closed, quiet=quiet)
        self.tell(self.open[use], new=True)

    def _offer(self, stream: Stream) -> Offer:
        others = any(use[0] != stream for use in self.open)
        unfinished = any(s != stream and self.released[s] < self.counts[s] for s in self.counts)
        idle = not others and not unfinished
        offer = self.table(self.job, self.rank, self.at, idle)
        if self.dreamer is not None and self.dreamer.random() < 0.5:
            most = self._left(stream)
            offer = (self.dreamer.randint(1, most), self.dreamer.randint(1, most) if idle else 1)
        return offer

    def _left(self, stream: Stream) -> int:
        program = self.job.programs[self.rank][self.at :]
        gated = (op for op in program if isinstance(op, Collective | Send | Receive))
        return sum(self.job.stream_of(self.rank, op) == stream for op in gated)

    # --- what is said

    def tell(self, arrival: Arrival, *, new: bool) -> None:
        """An arrival, or what has changed about one that is open."""
        self.arrivals.append(arrival)

    def tell_cut(self, cut: Cut) -> None:
        """How far this rank is in a run."""
        self.cuts.append(cut)

    def tell_release(self, release: Release) -> None:
        """A run is over for this rank."""
        self.releases.append(release)

    # --- runs

    def _call(self, held: Held) -> None:
        self.ready.append(Grant(held.grant.no, held.grant.stream, held.grant.n + held.called, 1))
        held.called += 1
        if held.told:
            self._say(held)

    def _leave_runs(self, leaves: Callable[[Held], bool]) -> None:
        for held in list(self.runs.values()):
            if held.cut is None and held.called < held.length and leaves(held):
                self.awake = True
                self._say(held)
                self._lower_offers()

    def _lower_offers(self) -> None:
        for use, known in list(self.open.items()):
            if (known.closed, known.quiet) != (1, 1):
                self.open[use] = replace(known, closed=1, quiet=1)
                self.broken[use] = [True, True]
                self.tell(self.open[use], new=False)

    def _say(self, held: Held) -> None:
        length = held.length if held.told else None
        held.cut = Cut(held.grant.stream, held.grant.n, held.called, length)
        self.tell_cut(held.cut)

    def hear(self, answer: RankAnswer) -> list[Grant]:
        before = self.last_grant
        new = VirtualRank.hear(self, answer)
        for no in range(before + 1, self.last_grant + 1):
            self.take(self.grants[no])
        for request in answer.cuts:
            self.take_cut(request)
        return new

    def take(self, grant: Grant) -> None:
        """A grant is next by its number."""
        offer = self.offers.pop((grant.stream, grant.n), (1, 1))
        broken = self.broken.pop((grant.stream, grant.n), [False, False])
        held = Held(grant, offer, grant.length, 0)
        if grant.length > 1:
            self.runs[grant.stream] = held
        for n in range(grant.n, min(held.end, self.counts[grant.stream])):
            self.open.pop((grant.stream, n), None)
            self.offers.pop((grant.stream, n), None)
            self.broken.pop((grant.stream, n), None)
            self._call(held)
        self.arrivals = [a for a in self.arrivals if not (a.stream == grant.stream and a.n < held.end)]
        at_end = self.at == len(self.job.programs[self.rank])
        left = any(now and said >= held.length for now, said in zip(broken, offer, strict=True))
        self._leave_runs(lambda run: run is held and (left or at_end))  # the grant comes late

    def take_cut(self, request: CutRequest) -> None:
        """A question about a run that this rank may hold, or where the run ends."""
        held = self.runs.get(request.stream)
        if held is None or held.grant.n != request.n:
            return
        if request.length is None:
            if held.cut is None:
                self._say(held)
            return
        if held.told:
            return
        held.told, held.length = True, request.length
        self._say(held)
        self.awake = True
        stream = held.grant.stream
        kept = self.kept.pop(stream, 0)
        for n in range(self.counts[stream] - kept, self.counts[stream]):
            if n < held.end:
                self._call(held)
            else:
                self._arrive(stream, n, blocking=self.blocked_on == (stream, n))
        self._maybe_release(held)

    def next_to_issue(self) -> Grant | None:
        return self.upcoming(self.issued)

    def upcoming(self, issued: int) -> Grant | None:
        """What is issued after so many operations, if it may be by now."""
        return self.ready[issued] if issued < len(self.ready) else None

    def finish(self, use: Use) -> None:
        held = self.runs.get(use[0])
        if held is None or not held.grant.n <= use[1] < held.end:
            self.finish_one(use)
            return
        self.finished.add(use)
        self._maybe_release(held)

    def finish_one(self, use: Use) -> None:
        """An operation with a grant of its own has finished."""
        VirtualRank.finish(self, use)

    def _maybe_release(self, held: Held) -> None:
        stream, n = held.grant.stream, held.grant.n
        if held.cut is not None and not held.told:
            return
        if all((stream, at) in self.finished for at in range(n, held.end)):
            del self.runs[stream]
            self.released[stream] = held.end
            self.tell_release(Release(stream, n, held.length))

    def has_news(self) -> bool:
        return bool(self.cuts) or VirtualRank.has_news(self)

    def news(self, again: bool = False, leave: bool = False) -> RankNews:
        cuts = [held.cut for held in self.runs.values() if held.cut is not None] if again else self.cuts
        found = replace(VirtualRank.news(self, again, leave), cuts=tuple(cuts))
        self.cuts = []
        return found

    def describe(self) -> str:
        runs = ", ".join(
            f"{s}[{h.grant.n}, {h.end}) called {h.called}, {h.cut}" for s, h in self.runs.items()
        )
        return f"{VirtualRank.describe(self)}; runs: {runs or 'none'}; kept back: {self.kept}"


def ranks_with(table: Table = honest, dream: int | None = None) -> Callable[[VirtualJob, int], RunningRank]:
    """Ranks with this table. With `dream`, a seed, their tables are wrong now and then."""

    def make(job: VirtualJob, rank: int) -> RunningRank:
        dreamer = random.Random(f"dream {dream} {rank}") if dream is not None else None
        return RunningRank(job, rank, table=table, dreamer=dreamer)

    return make
