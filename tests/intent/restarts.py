"""A controller that is started anew on the bench: what the store kept, and ranks that say what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from opus_sdn.intent.changes import (
    Change,
    GroupChecked,
    JobLetGo,
    JobSettled,
    JobStarted,
    JobState,
    LocksReleased,
    RankLeft,
    RunCut,
    RunGranted,
    StepMoved,
    StepPlanned,
    StepState,
)
from opus_sdn.intent.errors import Failure, Problem
from opus_sdn.intent.model import (
    Arrival,
    Cut,
    Grant,
    GroupSpec,
    RankNews,
    Release,
    Session,
    Stream,
    StreamMark,
)
from opus_sdn.intent.recovery import KnownJob, KnownRun, KnownStep, KnownStream
from tests.intent.bench import Bench


class Rank:
    """A rank as its shim keeps it: what it was granted, holds, has finished and waits for.

    `hear` takes what the controller would answer now; an answer that the test does not let it hear is lost.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.last_grant = 0
        self.open: dict[tuple[Stream, int], Arrival] = {}
        self.granted: dict[Stream, int] = {}
        self.released: dict[Stream, int] = {}
        self.held: dict[tuple[Stream, int], Grant] = {}
        self.cuts: dict[tuple[Stream, int], Cut] = {}  # of held runs
        self.order: list[str] = []  # what it was told, in the order in which it would issue it

    def arrive(self, bench: Bench, stream: Stream, n: int, **offer: int) -> None:
        """Declare an operation."""
        arrival = Arrival(stream, n, **offer)  # type: ignore[arg-type]
        self.open[stream, n] = arrival
        bench.news(self.rank, arrivals=[arrival], last_grant=self.last_grant)

    def hear(self, bench: Bench) -> None:
        """Hear what there is to hear."""
        for grant in bench.full_grants(self.rank, self.last_grant):
            assert grant.no == self.last_grant + 1, "grant numbers have no gap"
            self.last_grant = grant.no
            if self.open.pop((grant.stream, grant.n), None) is not None:
                self.held[grant.stream, grant.n] = grant
                self.granted[grant.stream] = grant.n + grant.length
                self.order.append(f"{grant.stream}#{grant.n}")
        for request in bench.answer(self.rank, last_grant=self.last_grant).cuts:
            if request.length is not None:
                run = (request.stream, request.n)
                self.held[run] = replace(self.held[run], length=request.length)
                self.granted[request.stream] = request.n + request.length
                self.cuts[run] = replace(self.cuts[run], length=request.length)

    def cut(self, bench: Bench, stream: Stream, n: int, issued: int) -> None:
        """Leave a run, or say how far it is in one."""
        self.cuts[stream, n] = Cut(stream, n, issued)
        bench.news(self.rank, cuts=[self.cuts[stream, n]], last_grant=self.last_grant)

    def finish(self, stream: Stream, n: int) -> Release:
        """The device has finished an operation; the controller is not told yet."""
        grant = self.held.pop((stream, n))
        self.cuts.pop((stream, n), None)
        self.released[stream] = n + grant.length
        return Release(stream, n, grant.length)

    def release(self, bench: Bench, stream: Stream, n: int) -> None:
        """Finish an operation and say so."""
        bench.news(self.rank, releases=[self.finish(stream, n)], last_grant=self.last_grant)

    def session(self) -> Session:
        """All that it has to say to a new start."""
        marks = [StreamMark(stream, n, self.released.get(stream, 0)) for stream, n in self.granted.items()]
        opened = sorted(self.open.values(), key=lambda arrival: arrival.n)
        return Session(self.last_grant, tuple(self.held.values()), tuple(opened), tuple(marks))

    def reassert(self, bench: Bench) -> None:
        """Say it."""
        bench.news(self.rank, session=self.session(), cuts=self.cuts.values(), last_grant=self.last_grant)

    def news(self, **more: object) -> RankNews:
        """A request of a client that knows of no sessions."""
        return RankNews(self.rank, self.last_grant, tuple(self.open.values()), **more)  # type: ignore[arg-type]


def restart(old: Bench, *, lost: int = 0, intact: bool = False, settle: bool = True) -> Bench:
    """The next start: `lost` of the newest batches have not reached the disk; the switches keep their light.

    With `settle` the device steps that were cut short are over, as what the switches show.
    """
    batches = old.batches[: len(old.batches) - lost]
    changes = [change for batch in batches for change in batch]
    steps = [change.step for batch in old.batches for change in batch if isinstance(change, StepPlanned)]
    state = old.engine.state
    new = Bench(state.fabric, state.settings, old.start_number + 1, max(steps, default=0) + 1)
    new.now, new.lit = old.now, old.lit
    misfits = new.engine.recover(new.now, known_jobs(changes, intact), known_steps(changes))
    assert misfits == ()
    new.observe()
    for switch in new.lit if settle else ():
        for step in new.engine.unsettled(switch):
            new.settle(step, works=False)
    new.engine.begin(new.now)
    new.pump()
    return new


def known_jobs(changes: Iterable[Change], intact: bool = False) -> list[KnownJob]:
    """What a store that was told this knows of its newest incarnations."""
    kept = list(changes)
    found = []
    started = {change.job: change for change in kept if isinstance(change, JobStarted)}
    for job in started.values():
        mine = [c for c in kept if getattr(c, "job", None) == job.job and c.incarnation == job.incarnation]  # type: ignore[union-attr]
        settled = [c for c in mine if isinstance(c, JobSettled)]
        over = any(isinstance(c, JobLetGo) for c in mine)
        if over or any(c.state is JobState.ENDED for c in settled):
            continue
        failure = (
            Failure(Problem(settled[0].cause), settled[0].detail or "", settled[0].rank) if settled else None
        )  # type: ignore[arg-type]
        groups = [
            GroupSpec(c.group, c.ranks, c.dimension, c.ordinal) for c in mine if isinstance(c, GroupChecked)
        ]
        streams, runs = _work(mine)
        left = tuple(c.rank for c in mine if isinstance(c, RankLeft))
        found.append(
            KnownJob(
                job.spec,
                job.incarnation,
                1.0,
                tuple(groups),
                streams,
                runs,
                left=left,
                failure=failure,
                intact=intact,
            )
        )
    return found


def _work(changes: Sequence[object]) -> tuple[tuple[KnownStream, ...], tuple[KnownRun, ...]]:
    granted: dict[Stream, int] = {}
    released: dict[Stream, dict[int, int]] = {}
    runs: dict[tuple[Stream, int], RunGranted] = {}
    holders: dict[tuple[Stream, int], dict[int, int]] = {}
    for change in changes:
        match change:
            case RunGranted():
                key = (change.stream, change.n)
                granted[change.stream] = max(granted.get(change.stream, 0), change.n + change.length)
                runs[key], holders[key] = change, dict(change.locks)
            case RunCut():
                granted[change.stream] = change.n + change.length
                runs[change.stream, change.n] = replace(runs[change.stream, change.n], length=change.length)
            case LocksReleased():
                for rank in change.ranks:
                    marks = released.setdefault(change.stream, {})
                    marks[rank] = max(marks.get(rank, 0), change.n + change.length)
                    holders.get((change.stream, change.n), {}).pop(rank, None)
    streams = [
        KnownStream(stream, granted.get(stream, 0), tuple(released.get(stream, {}).items()))
        for stream in dict.fromkeys([*granted, *released])
    ]
    held = [
        KnownRun(run.stream, run.n, run.length, tuple(holders[key].items()), run.granted_at, run.complete_at)
        for key, run in runs.items()
        if holders[key]
    ]
    return tuple(streams), tuple(held)


def known_steps(changes: Iterable[Change]) -> list[KnownStep]:
    """Steps that were planned and not settled."""
    planned: dict[int, StepPlanned] = {}
    for change in changes:
        if isinstance(change, StepPlanned):
            planned[change.step] = change
        elif isinstance(change, StepMoved) and change.state is not StepState.STARTED:
            del planned[change.step]
    return [
        KnownStep(s.step, s.switch, s.generation, s.remove, s.add, s.causes, s.disturbed)
        for s in planned.values()
    ]
