"""An engine on a test bench: the store writes at once, and switches do what they are told when told to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opus_sdn.intent.changes import Change, EventAppended
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import Failure
from opus_sdn.intent.fabric import CrossConnect, Fabric
from opus_sdn.intent.model import (
    Arrival,
    CoreSettings,
    Cut,
    CutRequest,
    Grant,
    GroupSpec,
    Hint,
    JobSpec,
    RankAnswer,
    RankKey,
    RankNews,
    Release,
    Session,
    Stream,
)
from opus_sdn.intent.switches import FailureKind, Step

START = 7  # the controller's start number on the bench
NOON = 1_700_000_000.0


class Bench:
    """One engine with what its shell would keep. `now` is moved by hand."""

    def __init__(
        self, fabric: Fabric, settings: CoreSettings | None = None, start: int = START, next_step: int = 1
    ) -> None:
        self.now = NOON
        self.start_number = start
        self.engine = Engine(fabric, settings or CoreSettings(), start, last_step=next_step - 1)
        self.durable: list[Change] = []  # what had to reach the disk before it counted
        self.batches: list[tuple[Change, ...]] = []  # as they were written
        self.lit: dict[str, set[CrossConnect]] = {switch.name: set() for switch in fabric.switches}
        self.changes: list[Change] = []  # all that was written
        self.planned: list[int] = []  # stored, not started
        self.steps: list[Step] = []  # started, ever
        self.woken: list[RankKey] = []

    def observe(self) -> None:
        """The controller reads every switch."""
        for name, lit in self.lit.items():
            self.engine.observe(self.now, name, frozenset(lit))

    def job(self, spec: JobSpec, *groups: GroupSpec) -> int:
        """Declare a job and check in its groups; its incarnation."""
        incarnation, _ = self.engine.put_job(self.now, spec)
        if groups:
            self.engine.check_in(self.now, spec.name, incarnation, groups)
        return incarnation

    def news(
        self,
        rank: int,
        *,
        arrivals: Iterable[Arrival] = (),
        releases: Iterable[Release] = (),
        last_grant: int = 0,
        leave: bool = False,
        hints: Iterable[Hint] = (),
        session: Session | None = None,
        cuts: Iterable[Cut] = (),
        job: str = "job",
        incarnation: int = 1,
    ) -> None:
        """One rank's request."""
        item = RankNews(
            rank, last_grant, tuple(arrivals), tuple(releases), leave, tuple(hints), session, tuple(cuts)
        )
        self.engine.news(self.now, job, incarnation, self.start_number, [item])

    def arrive(self, stream: Stream, n: int, *ranks: int, tag: int | None = None, **offer: int) -> None:
        """These ranks arrive at an operation, one after the other. `offer`: closed, quiet, blocking."""
        for rank in ranks:
            self.news(rank, arrivals=[Arrival(stream, n, tag=tag, **offer)])  # type: ignore[arg-type]

    def hint(self, stream: Stream, n: int, *ranks: int) -> None:
        """These ranks expect to need an operation next."""
        for rank in ranks:
            self.news(rank, hints=[Hint(stream, n)])

    def release(self, stream: Stream, n: int, *ranks: int, length: int = 1) -> None:
        """These ranks release a run."""
        for rank in ranks:
            self.news(rank, releases=[Release(stream, n, length)])

    def cut(self, stream: Stream, n: int, rank: int, issued: int, length: int | None = None) -> None:
        """A rank leaves a run, or says how far it is in it."""
        self.news(rank, cuts=[Cut(stream, n, issued, length)])

    def cuts(self, rank: int) -> tuple[CutRequest, ...]:
        """What a rank is asked and told about runs that it holds."""
        return self.answer(rank).cuts

    def pump(self, store: bool = True) -> tuple[int, ...]:
        """Decide, and write it down unless `store` is False; the steps that were planned."""
        effects = self.engine.pump(self.now)
        if effects.batch is not None:
            self.changes += effects.batch.changes
            self.batches.append(effects.batch.changes)
            if effects.batch.durable:
                self.durable += effects.batch.changes
            if store:
                self.woken += self.engine.committed(effects.batch.id)
        self.planned += effects.steps
        return effects.steps

    def start(self) -> Step | None:
        """Start the oldest planned step."""
        step = self.engine.start_step(self.now, self.planned.pop(0))
        if step is not None:
            self.steps.append(step)
        return step

    def settle(
        self,
        step: Step,
        ok: bool = True,
        works: bool = True,
        detail: str | None = None,
        kind: FailureKind = FailureKind.TERMINAL,
    ) -> None:
        """The device has carried the step out, unless it does not work, and is read."""
        if works:
            self.lit[step.switch] -= set(step.remove)
            self.lit[step.switch] |= set(step.add)
        self.engine.settle_step(self.now, step.id, ok, detail, frozenset(self.lit[step.switch]), kind=kind)

    def pause(self) -> None:
        """Time goes on to the next moment at which something is due."""
        self.pump()
        due = self.engine.next_deadline()
        assert due is not None, "nothing is due"
        self.now = max(self.now, due)
        self.engine.tick(self.now)

    def play(self) -> None:
        """Let everything happen that can, until the core has nothing more to say."""
        for _ in range(100):
            self.pump()
            if not self.planned:
                return
            while self.planned:
                step = self.start()
                if step is not None:
                    self.settle(step)
        raise AssertionError("the core still plans after 100 rounds")

    def answer(
        self, rank: int, asked: Sequence[Arrival] | None = None, last_grant: int = 0, incarnation: int = 1
    ) -> RankAnswer:
        """What a rank is told."""
        return self.engine.answer("job", incarnation, rank, last_grant, asked)

    def failure(self, rank: int) -> Failure:
        """The cause that a rank is told, once it is written down."""
        self.pump()
        failure = self.answer(rank).failure
        assert failure is not None
        return failure

    def grants(self, rank: int, last_grant: int = 0) -> list[tuple[str, int]]:
        """Stream and number of a rank's unacknowledged grants."""
        return [(str(g.stream), g.n) for g in self.full_grants(rank, last_grant)]

    def full_grants(self, rank: int, last_grant: int = 0) -> tuple[Grant, ...]:
        """A rank's unacknowledged grants."""
        return self.answer(rank, last_grant=last_grant).grants

    def events(self, kind: str | None = None) -> list[EventAppended]:
        """Everything that was recorded as an event, or those of one kind."""
        found = [change for change in self.changes if isinstance(change, EventAppended)]
        return [event for event in found if kind is None or event.kind == kind]
