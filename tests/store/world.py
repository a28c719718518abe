"""Batches as the core makes them: by hand for single facts, and at random for long histories."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from opus_sdn.intent.changes import (
    Batch,
    Change,
    CircuitsObserved,
    CircuitsOwned,
    DirectiveGiven,
    DirectiveKind,
    DirectiveWithdrawn,
    EventAppended,
    GroupChecked,
    IntentMoved,
    IntentState,
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
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Dimension, Domain, JobSpec, Place, PortChoice, Stream

RING = Stream("dp0")
FORTH = Stream("pp0:0-1", 0, 1)
BACK = Stream("pp0:0-1", 1, 0)


def spec(job: str = "llama", nonce: str = "n1", ranks: int = 2) -> JobSpec:
    return JobSpec(
        name=job,
        owner="ann",
        nonce=nonce,
        placement=tuple(Place(f"host{rank // 2}", rank % 2) for rank in range(ranks)),
        dimensions=(Dimension("pp", 2), Dimension("dp", ranks // 2)),
        port_choice=PortChoice.SPREAD,
        deadline_s=30.5,
        initial_topology="012",
    )


def started(job: str = "llama", incarnation: int = 1, nonce: str = "n1") -> JobStarted:
    return JobStarted(job, incarnation, spec(job, nonce))


def settled(
    state: JobState, job: str = "llama", incarnation: int = 1, cause: str | None = None
) -> JobSettled:
    if cause is None:
        return JobSettled(job, incarnation, state)
    data: dict[str, object] = {"n": incarnation, "ranks": [1, 2]}
    return JobSettled(job, incarnation, state, cause, f"because of {cause}", incarnation % 3, data)


def checked(group: str = "dp0", job: str = "llama", incarnation: int = 1) -> GroupChecked:
    return GroupChecked(job, incarnation, group, (1, 0), "dp", 3, Domain.SCALE_OUT)


def granted(
    stream: Stream = RING,
    n: int = 0,
    length: int = 1,
    locks: tuple[tuple[int, int], ...] = ((0, 1), (1, 1)),
    job: str = "llama",
    incarnation: int = 1,
) -> RunGranted:
    return RunGranted(job, incarnation, stream, n, length, locks, ("a--b",), 10.25, 10.5)


def released(
    ranks: tuple[int, ...],
    stream: Stream = RING,
    n: int = 0,
    length: int = 1,
    job: str = "llama",
    incarnation: int = 1,
) -> LocksReleased:
    return LocksReleased(job, incarnation, stream, n, length, ranks)


def moved(state: IntentState, stream: Stream = RING, n: int = 0, incarnation: int = 1) -> IntentMoved:
    return IntentMoved("llama", incarnation, stream, n, state)


def planned(step: int = 1, switch: str = "sw0") -> StepPlanned:
    add, remove = (CrossConnect(2, 5), CrossConnect(5, 2)), (CrossConnect(2, 4),)
    return StepPlanned(step, switch, 7, remove, add, ("dp0#3",), ("a--c",))


def batch(number: int, *changes: Change, at: float = 100.0, durable: bool = False) -> Batch:
    return Batch(number, at, changes, durable)


@dataclass
class _Job:
    name: str
    incarnation: int = 0
    running: bool = False
    next_n: dict[Stream, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    held: list[tuple[Stream, int, int, set[int]]] = field(default_factory=list)


class World:
    """A random history that the core could have written, as long as wanted; the same for the same seed."""

    RANKS = 4
    STREAMS = (RING, Stream("tp1"), FORTH, BACK)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._cuts = random.Random(f"cuts {seed}")
        self._jobs = [_Job("llama"), _Job("gpt"), _Job("mo\u00eb")]
        self._steps: dict[int, tuple[str, StepState]] = {}
        self._step = 0
        self._batch = 0
        self._told = 0
        self._extra: list[Change] = []

    def batches(self, count: int) -> list[Batch]:
        return [self.batch() for _ in range(count)]

    def batch(self) -> Batch:
        self._batch += 1
        changes: list[Change] = []
        for _ in range(self._random.randint(1, 4)):
            acts = [self._run] * 4 + [
                self._group,
                self._leave,
                self._switch,
                self._step_move,
                self._directive,
            ]
            if self._random.random() < 0.15:
                acts = [self._job]
            changes += self._random.choice(acts)()
        return Batch(self._batch, 1000.0 + self._batch / 8, tuple(changes), self._random.random() < 0.1)

    def _event(self, kind: str, job: _Job | None = None) -> EventAppended:
        data: dict[str, object] = {
            "z": self._random.randint(-5, 5),
            "a": [None, True, 0.5, "\u00e9\u2028", {"k": []}],
        }
        if job is None:
            return EventAppended(kind, switch="sw0", rail=self._random.choice(["r0", None]), data=data)
        return EventAppended(kind, job.name, job.incarnation, data=data)

    def _job(self) -> list[Change]:
        job = self._random.choice(self._jobs)
        if not job.running or self._random.random() < 0.5:
            job.incarnation += self._random.randint(1, 2)
            job.running, job.next_n, job.numbers, job.held = True, {}, {}, []
            nonce = str(self._random.random())
            return [
                JobStarted(job.name, job.incarnation, spec(job.name, nonce)),
                self._event("job.started", job),
            ]
        state = self._random.choice([JobState.ENDED, JobState.FAILED])
        cause = "rank-lost" if state is JobState.FAILED else None
        changes = [settled(state, job.name, job.incarnation, cause), self._event(f"job.{state.value}", job)]
        if state is JobState.FAILED and self._random.random() < 0.5:
            state = JobState.ENDED
            changes.append(JobLetGo(job.name, job.incarnation))
        if state is JobState.ENDED:
            job.running, job.held = False, []
        return changes

    def _run(self) -> list[Change]:
        running = [job for job in self._jobs if job.running]
        if not running:
            return self._job()
        job = self._random.choice(running)
        if job.held and self._random.random() < 0.6:
            return self._release(job)
        cut = self._cut(job)
        stream = self._random.choice(self.STREAMS)
        n, length = job.next_n.get(stream, 0), self._random.choice([1, 1, 3])
        job.next_n[stream] = n + length
        ranks = range(self.RANKS) if stream.source is None else (0, 1)
        for rank in ranks:
            job.numbers[rank] = job.numbers.get(rank, 0) + 1
        job.held.append((stream, n, length, set(ranks)))
        locks = tuple((rank, job.numbers[rank]) for rank in ranks)
        run = granted(stream, n, length, locks, job.name, job.incarnation)
        return [*cut, run, self._event("intent.granted", job)]

    def _cut(self, job: _Job) -> list[Change]:
        """Now and then the run that was granted last ends earlier."""
        if not job.held or self._cuts.random() > 0.2:
            return []
        at = len(job.held) - 1
        stream, n, length, ranks = job.held[at]
        if n + length != job.next_n[stream]:
            return []
        shorter = self._cuts.randint(1, length)
        job.held[at] = (stream, n, shorter, ranks)
        job.next_n[stream] = n + shorter
        return [RunCut(job.name, job.incarnation, stream, n, shorter), self._event("run.cut", job)]

    def _release(self, job: _Job) -> list[Change]:
        stream, n, length, ranks = self._random.choice(job.held)
        some = tuple(sorted(self._random.sample(sorted(ranks), self._random.randint(1, len(ranks)))))
        ranks -= set(some)
        if self._random.random() < 0.2:
            digit = self._random.choice([None, 0, 3])
            self._extra = [CircuitsOwned(job.name, job.incarnation, digit, ("a--b", "c--d"))]
        extra, self._extra = self._extra, []
        changes: list[Change] = [*extra, released(some, stream, n, length, job.name, job.incarnation)]
        if self._random.random() < 0.1 and job.incarnation > 1:
            changes.append(released(some, stream, n, length, job.name, job.incarnation - 1))
        if not ranks:
            job.held.remove((stream, n, length, ranks))
            over = IntentMoved(job.name, job.incarnation, stream, n, IntentState.RELEASED)
            changes += [over, self._event("intent.released", job)]
        return changes

    def _group(self) -> list[Change]:
        running = [job for job in self._jobs if job.running]
        if not running:
            return self._job()
        job = self._random.choice(running)
        name = self._random.choice(["dp0", "tp1", "pp0"])
        return [checked(name, job.name, job.incarnation), self._event("group.checked", job)]

    def _leave(self) -> list[Change]:
        running = [job for job in self._jobs if job.running]
        if not running:
            return self._job()
        job = self._random.choice(running)
        stale = self._random.random() < 0.1
        left = RankLeft(job.name, job.incarnation - stale, self._random.randrange(self.RANKS))
        return [left, self._event("rank.left", job)]

    def _directive(self) -> list[Change]:
        kind, name = self._random.choice(list(DirectiveKind)), self._random.choice(["h0:0:0", "h1:0:0"])
        if self._random.random() < 0.4:
            return [DirectiveWithdrawn(kind, name)]
        self._told += 1
        data: dict[str, object] = {"by": "ann", "force": self._random.random() < 0.5}
        return [DirectiveGiven(kind, name, self._told, self._told / 4, data), self._event("told")]

    def _switch(self) -> list[Change]:
        switch = self._random.choice(["sw0", "sw1"])
        egress = self._random.sample(range(6), 6)
        pairs = [CrossConnect(i, j) for i, j in enumerate(egress) if self._random.random() < 0.5]
        self._random.shuffle(pairs)
        return [CircuitsObserved(switch, self._batch, tuple(pairs)), self._event("switch.observed")]

    def _step_move(self) -> list[Change]:
        under_way = [
            step
            for step, (_, state) in self._steps.items()
            if state in {StepState.PLANNED, StepState.STARTED}
        ]
        if not under_way or self._random.random() < 0.4:
            self._step += 1
            self._steps[self._step] = ("sw0", StepState.PLANNED)
            return [planned(self._step), self._event("step.planned")]
        step = self._random.choice(under_way)
        switch, state = self._steps[step]
        later = [StepState.DONE, StepState.FAILED, StepState.DROPPED]
        state = StepState.STARTED if state is StepState.PLANNED else self._random.choice(later)
        self._steps[step] = (switch, state)
        detail = "no light" if state is StepState.FAILED else None
        return [StepMoved(step, switch, state, detail), self._event(f"step.{state.value}")]
