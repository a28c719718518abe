"""Drives the real engine with virtual ranks, a virtual store and virtual switches, one event after another.

Everything that may happen next is an event; a seeded scheduler picks one, so that every run can be had again.
After each event `Watch` checks the invariants. A run ends when every rank has left, or is stuck.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from opus_sdn.intent.changes import JobState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.model import CoreSettings, RankKey, RankNews
from tests.intent.modes import Mode
from tests.intent.operations import Scenario, VirtualJob
from tests.intent.traffic import Finish, Traffic
from tests.intent.virtual_rank import VirtualRank
from tests.intent.virtual_shell import Event, VirtualShell
from tests.intent.virtual_switch import ViolationError, VirtualSwitch, Witness
from tests.intent.watch import Watch

EVENTS_MAX = 60_000
OWN_EVENTS = frozenset(
    {"step", "host", "hear", "issue", "finish"}
)  # of ranks; the core learns nothing by them
SHELL_EVENTS = frozenset({"pump", "commit", "start", "optics", "read", "settle"})


@dataclass(slots=True)
class _Run:
    """One job on the virtual machine."""

    job: VirtualJob
    incarnation: int
    ranks: list[VirtualRank]
    repeats: list[int]


class Simulation:
    """One run. `death` = (rank, event number): that process of the first job ends; `report` tells of it.

    With `time_passes` a run in which nothing can happen any more goes on with the core's next deadline. At
    event `restart` every process of the first job is ended by its launcher, which starts them all again.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        mode: Mode | None = None,
        *,
        death: tuple[int, int] | None = None,
        report: bool = True,
        restart: int | None = None,
        settings: CoreSettings | None = None,
        time_passes: bool = False,
        rank_class: Callable[[VirtualJob, int], VirtualRank] = VirtualRank,
    ) -> None:
        self.scenario, self.seed = scenario, seed
        self.mode = mode or Mode.drawn(seed)
        self.now = 1_000_000.0
        self.events = 0
        self.trace: deque[Event] = deque(maxlen=40)
        self._rng = random.Random(f"{scenario.name} {seed}")
        self._death, self._report, self._restart = death, report, restart
        self._time_passes, self._rank_class = time_passes, rank_class
        fabric = scenario.fabric
        self.switches = {
            s.name: VirtualSwitch(s.name, s.size, s.sided, set(scenario.lit.get(s.name, ())))
            for s in fabric.switches
        }
        self.engine = Engine(fabric, settings or self.mode.settings(), start=1)
        self.witness = Witness(fabric, self.switches)
        self.watch = Watch(self.engine, fabric, self.switches, self.witness)
        self.shell = VirtualShell(self.engine, self.watch, self.mode, self._rng, lambda: self.now)
        self.traffic = Traffic(self.mode.finish, self.mode.in_order, self.witness)
        self._copies: list[tuple[int, _Run, RankNews]] = []  # with the event before which it does not come
        self._priority: dict[Event, float] = {}
        self.runs: list[_Run] = []

    # --- the whole run

    def run(self) -> Simulation:
        """Play until every rank has left or died; ViolationError when an invariant breaks or it is stuck."""
        try:
            self._begin()
            while not self._over():
                self._next_event(self._enabled())
            self._end()
        except Exception as error:
            error.add_note(self.picture())
            raise
        return self

    def _begin(self) -> None:
        for name, switch in self.switches.items():
            self.engine.observe(self.now, name, frozenset(switch.matching))
        self.runs = [self._admit(job) for job in self.scenario.jobs]

    def _admit(self, job: VirtualJob) -> _Run:
        incarnation, _ = self.engine.put_job(self.now, job.spec)
        self.engine.check_in(self.now, job.spec.name, incarnation, job.groups)
        ranks = [self._rank_class(job, rank) for rank in range(len(job.programs))]
        self.shell.pump_due = True
        return _Run(job, incarnation, ranks, [self.mode.repeats] * len(ranks))

    def _over(self) -> bool:
        return all(rank.left or rank.dead for run in self.runs for rank in run.ranks)

    def _end(self) -> None:
        """I10: with nothing left to do the devices are left alone. Nothing is held, nothing stays moving."""
        writes = self.watch.steps_started
        while events := self._enabled():
            self._next_event(events)
        if self.watch.steps_started > writes:
            raise ViolationError("I10", "the devices are changed although every rank has left")
        if self.engine.state.live or self.watch.open_runs() or self.witness.active:
            raise ViolationError("end", f"still held at the end: {self.watch.open_runs()}")
        if any(s.moving or s.busy or s.progress for s in self.engine.state.switches.values()):
            raise ViolationError("end", "ports are still moving at the end")
        for run in self.runs:
            state = self.engine.state.jobs[run.job.spec.name].state
            failed = any(rank.failure or rank.dead for rank in run.ranks)
            if state is not (JobState.FAILED if failed else JobState.ENDED):
                raise ViolationError("end", f"job {run.job.spec.name} is {state} at the end")

    def _next_event(self, events: list[Event]) -> None:
        if not events and self._pause_ends() is not None:
            events = [("pause",)]  # needs that a device refused are tried again after a while
        if not events:
            if not self._time_passes:
                raise ViolationError("stuck", "nothing can happen any more and not all programs have ended")
            events = [("time",)]
        if self.events > EVENTS_MAX:
            raise ViolationError("endless", f"more than {EVENTS_MAX} events")
        event = self._pick(events)
        self.trace.append(event)
        self.events += 1
        self.now += self._rng.random() * self.mode.pace_s
        if event[0] in SHELL_EVENTS:
            getattr(self.shell, f"do_{event[0]}")(*event[1:])
        else:
            getattr(self, f"_do_{event[0]}")(*event[1:])
        if self.mode.finish is Finish.EAGER:
            self._finish_eagerly()
        if self._death is not None and self.events >= self._death[1]:
            self._die(self._death[0])
        if self._restart is not None and self.events >= self._restart:
            self._start_again()
        if event[0] not in OWN_EVENTS:
            self.watch.after_event()

    def _pick(self, events: list[Event]) -> Event:
        if not self.mode.priorities or self._rng.random() < 0.05:
            return self._rng.choice(events)
        priority, rng = self._priority, self._rng
        if rng.random() < 0.02 and priority:
            priority[rng.choice(list(priority))] = rng.random()
        return max(events, key=lambda event: priority.setdefault(event[:3], rng.random()))

    # --- what can happen now

    def _enabled(self) -> list[Event]:
        events = list(self.shell.enabled())
        for number, run in enumerate(self.runs):
            events += self._enabled_in(number, run)
        if any(run.job.spec.name in self._patient() for run in self.runs):
            events.append(("patience",))
        late = [("copy", at) for at, copy in enumerate(self._copies) if not events or self.events >= copy[0]]
        return events + late

    def _enabled_in(self, number: int, run: _Run) -> Iterator[Event]:
        for rank in run.ranks:
            if not rank.dead and not rank.left:
                yield from self._enabled_at(number, run, rank)
        for group in dict.fromkeys(rank.in_host for rank in run.ranks if rank.in_host and rank.alive):
            if all(run.ranks[r].in_host == group for r in run.job.members(group)):
                yield ("host", number, group)
        if self.mode.finish is not Finish.EAGER:
            for use, rank in self.traffic.endable(number):
                yield ("finish", number, use, rank)

    def _enabled_at(self, number: int, run: _Run, rank: VirtualRank) -> Iterator[Event]:
        at = (number, rank.rank)
        if rank.failure is not None:
            yield ("leave", *at)
            return
        if rank.can_step():
            yield ("step", *at)
        if rank.has_news():
            yield ("send", *at)
        elif rank.has_ended():
            yield ("leave", *at)
        elif rank.open and run.repeats[rank.rank]:
            yield ("repeat", *at)
        if self._has_news(run, rank):
            yield ("hear", *at)
        if rank.next_to_issue() is not None:
            yield ("issue", *at)

    def _has_news(self, run: _Run, rank: VirtualRank) -> bool:
        return self.engine.has_news_for(run.job.spec.name, run.incarnation, rank.rank, rank.last_grant)

    # --- ranks

    def _do_step(self, number: int, rank: int) -> None:
        self.runs[number].ranks[rank].step()

    def _do_host(self, number: int, group: str) -> None:
        run = self.runs[number]
        for rank in run.job.members(group):
            run.ranks[rank].leave_host_barrier()

    def _do_send(self, number: int, rank: int) -> None:
        virtual = self.runs[number].ranks[rank]
        news = virtual.news()
        if self.mode.hints and self._rng.random() < self.mode.hints:
            news = replace(news, hints=virtual.guess(self._rng))
        self._deliver(self.runs[number], news)

    def _do_repeat(self, number: int, rank: int) -> None:
        run = self.runs[number]
        run.repeats[rank] -= 1
        self._deliver(run, run.ranks[rank].news(again=True))

    def _deliver(self, run: _Run, news: RankNews) -> None:
        if self._rng.random() < self.mode.copies:
            self._copies.append((self.events + self._rng.randrange(150), run, news))
        self._tell(run, news)

    def _tell(self, run: _Run, news: RankNews) -> None:
        key = self._key(run, news.rank)
        running = self.engine.state.jobs[key.job].running
        self.engine.news(self.now, key.job, key.incarnation, 1, [news])
        self.shell.pump_due = True
        for release in news.releases:
            self.watch.released(key, release.stream, release.n)
        for arrival in news.arrivals if running else ():
            self.watch.arrived(key, arrival.stream, arrival.n)

    def _do_copy(self, index: int) -> None:
        """A copy of an old request arrives late: nothing may change by it."""
        _, run, news = self._copies.pop(index)
        try:
            self._tell(run, news)
        except CoreError as error:  # its rank has left since, or its incarnation is over
            if error.problem not in (Problem.UNKNOWN_RANK, Problem.STALE_INCARNATION):
                raise

    def _do_hear(self, number: int, rank: int) -> None:
        run = self.runs[number]
        virtual, key = run.ranks[rank], self._key(run, rank)
        answer = self.engine.answer(key.job, key.incarnation, rank, virtual.last_grant)
        self.watch.told(key, answer.grants, virtual.last_grant)
        if self._rng.random() < self.mode.lost:
            return
        virtual.hear(answer)
        if virtual.failure is not None:
            self.traffic.abort(number, rank)

    def _do_issue(self, number: int, rank: int) -> None:
        run = self.runs[number]
        virtual = run.ranks[rank]
        grant = virtual.next_to_issue()
        connection = self.engine.state.jobs[run.job.spec.name].connection(grant.stream.connection)
        virtual.issued += 1
        ranks = run.job.participants(grant.stream)
        self.traffic.issue(number, rank, (grant.stream, grant.n), ranks, connection.circuits)

    def _do_finish(self, number: int, use: tuple, rank: int | None) -> None:
        for ended in self.traffic.end(number, use, rank):
            self.runs[number].ranks[ended].finish(use)

    def _finish_eagerly(self) -> None:
        for number in range(len(self.runs)):
            while endable := list(self.traffic.endable(number)):
                for use, rank in endable:
                    self._do_finish(number, use, rank)

    def _do_leave(self, number: int, rank: int) -> None:
        run = self.runs[number]
        virtual = run.ranks[rank]
        self._tell(run, virtual.news(leave=True))
        virtual.left = True
        self.watch.stopped(self._key(run, rank))

    def _die(self, rank: int) -> None:
        """A process of the first job ends: its device work ends with it, and its launcher may say so."""
        self._death = None
        run = self.runs[0]
        if run.ranks[rank].left:
            return
        run.ranks[rank].dead = True
        self.traffic.abort(0, rank)
        if self._report:
            self.engine.report_dead(self.now, run.job.spec.name, run.incarnation, [rank], "exit status 137")
            self.watch.stopped(self._key(run, rank))
            self.shell.pump_due = True

    def _start_again(self) -> None:
        """The launcher ends all processes of the first job and starts them anew, under another nonce."""
        self._restart = None
        if self._over():
            return
        old = self.runs[0]
        for rank in old.ranks:
            self.traffic.abort(0, rank.rank)
            self.watch.stopped(self._key(old, rank.rank))
        self.traffic.forget(0)
        spec = replace(old.job.spec, nonce=f"{old.job.spec.nonce} again")
        self.runs[0] = self._admit(replace(old.job, spec=spec))

    # --- time

    def _patient(self) -> dict[str, float]:
        jobs = self.engine.state.active.values()
        return {job.spec.name: job.patient_until for job in jobs if job.patient_until is not None}

    def _do_patience(self) -> None:
        """Time goes by until the first of the rings that yield yields no more."""
        self.now = max(self.now, min(self._patient().values()))
        self.engine.tick(self.now)
        self.shell.pump_due = True

    def _pause_ends(self) -> float | None:
        return min((s.retry_at for s in self.engine.state.switches.values() if s.retry_at), default=None)

    def _do_pause(self) -> None:
        """Nothing happens but time, until the pause after a failed step is over."""
        due = self._pause_ends()
        assert due is not None
        self.now = max(self.now, due)
        self.engine.tick(self.now)
        self.shell.pump_due = True

    def _do_time(self) -> None:
        """Nothing happens but time: those who live are heard, then the core's next deadline comes."""
        for run in self.runs:
            for rank in run.ranks:
                if rank.alive:
                    news = RankNews(rank.rank, rank.last_grant)
                    self.engine.news(self.now, run.job.spec.name, run.incarnation, 1, [news])
        due = self.engine.next_deadline()
        assert due is not None, "nothing is due"
        self.now = max(self.now, due)
        self.engine.tick(self.now)
        self.shell.pump_due = True
        for run in self.runs:
            for rank in run.ranks:
                if rank.dead and self.engine.state.jobs[run.job.spec.name].ranks[rank.rank].stopped:
                    self.watch.stopped(self._key(run, rank.rank))

    # --- for people

    @property
    def failures(self) -> list[Failure | None]:
        """What each rank of the first job was told."""
        return [rank.failure for rank in self.runs[0].ranks]

    def _key(self, run: _Run, rank: int) -> RankKey:
        return RankKey(run.job.spec.name, run.incarnation, rank)

    def picture(self) -> str:
        """Who waits for whom, and how to see it again."""
        lines = [f"replay: scenario {self.scenario.name!r}, seed {self.seed}, {self.mode}"]
        for run in self.runs:
            core = self.engine.state.jobs[run.job.spec.name]
            lines.append(f"job {run.job.spec.name}: {core.state} after {self.events} events")
            lines += [rank.describe() for rank in run.ranks]
            for intent in core.open.values():
                because = core.streams[intent.stream].why_open(intent)
                lines.append(f"  {intent.key} ({intent.state}): {because.reason}: {because.detail}")
        lines += [f"  held: {held}" for held in self.watch.open_runs()]
        lines += [f"  last events: {', '.join(map(str, self.trace))}"]
        return "\n".join(lines)
