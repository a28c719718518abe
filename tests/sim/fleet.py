"""The jobs of the simulated world: their launchers, and ranks whose programs and devices take time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opus_sdn.intent.errors import Problem
from opus_sdn.intent.fabric import Circuit
from opus_sdn.intent.model import Grant, RankKey
from opus_sdn.shim.wire import job_path
from tests.intent.operations import Scenario, VirtualJob
from tests.intent.traffic import Finish, Traffic
from tests.intent.virtual_rank import Use
from tests.sim.places import Cabling, groups_body, job_body
from tests.sim.rank import Exchange, Offers, SimRank

if TYPE_CHECKING:
    from tests.sim.world import World

DEADLINE_S = 300.0  # of a run's grant
LAUNCHER_S = 10.0  # a launcher waits so long for an answer


class Run:
    """One incarnation of a job, and its launcher."""

    def __init__(self, number: int, job: VirtualJob, nonce: str, cabling: Cabling) -> None:
        self.number = number
        self.job = job
        self.nonce = nonce
        self.cabling = cabling
        self.incarnation = 0
        self.ranks: list[SimRank] = []
        self.refused: str | None = None
        self.lethal: str | None = None  # a fault that may end this job, rightly
        self.relaunched = False  # its launcher is about to start it once more

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.spec.name

    @property
    def over(self) -> bool:
        """Every process has ended."""
        if self.relaunched:
            return False
        if self.refused is not None:
            return True
        return bool(self.ranks) and all(rank.gone or rank.dead for rank in self.ranks)

    @property
    def well(self) -> bool:
        """Every rank has done all its work."""
        return bool(self.ranks) and all(rank.gone and rank.failure is None for rank in self.ranks)

    def key(self, rank: SimRank) -> RankKey:
        """What the controller calls this rank."""
        return RankKey(self.name, self.incarnation, rank.rank)


class Question:
    """Something that is asked until it is answered. `refused` is told of an answer that is no success."""

    def __init__(
        self,
        world: World,
        method: str,
        path: str,
        body: dict[str, Any],
        answered: Callable[[dict[str, Any]], None],
        refused: Callable[[str], None],
        *,
        sure: bool = False,
    ) -> None:
        self._world = world
        self._sure = sure
        self._what = (method, path, json.dumps(body).encode())
        self._answered, self._refused = answered, refused
        self._done = False
        self._ask()

    def _ask(self) -> None:
        if self._done:
            return
        over = False

        def once(status: int | None, said: bytes = b"") -> None:
            nonlocal over
            if not over:
                over = True
                self._take(status, said)

        request = self._world.request(*self._what, once, lambda: once(None), sure=self._sure)

        def late() -> None:
            if not over:
                request.gone()
                once(None)

        self._world.after(LAUNCHER_S, late)

    def _take(self, status: int | None, said: bytes) -> None:
        if self._done:
            return
        if status is None or status == 503:
            self._world.after(0.2 * self._world.jitter(), self._ask)
            return
        answer = json.loads(said or b"{}")
        if str(answer.get("type")).endswith(":port-drained"):  # a launcher that tries again
            self._world.after(0.5 * self._world.jitter(), self._ask)
            return
        self._done = True
        self._world.log("answer", *self._what[:2], status)
        if status < 300:
            self._answered(answer)
        else:
            self._refused(str(answer.get("detail")))


class Fleet:
    """All jobs. Ranks ask it to send, to wake them, and tell it what they were granted."""

    def __init__(self, world: World, scenario: Scenario, *, in_order: bool, offers: Offers) -> None:
        self.world = world
        self.offers = offers
        self.scenario = scenario
        self.runs: list[Run] = []
        self.unheard: set[SimRank] = set()  # cut off: nothing of them arrives, and nothing at them
        self.frozen = False  # programs and devices stand still
        self.pace_s = world.rng.choice((0.0005, 0.005, 0.05))
        self._traffic = Traffic(Finish.EACH, in_order, self)
        self._deferred: list[Callable[[], None]] = []
        self._finishing: set[tuple[int, Use, int | None]] = set()
        self._woken: dict[SimRank, float] = {}

    @property
    def over(self) -> bool:
        """Every process of every job has ended."""
        return all(run.over for run in self.runs)

    @property
    def alive(self) -> list[tuple[Run, SimRank]]:
        """Ranks that run."""
        return [(run, rank) for run in self.runs for rank in run.ranks if rank.alive]

    def named(self, name: str) -> Run:
        """The newest incarnation of a job."""
        return next(run for run in self.runs if run.name == name)

    def freeze(self) -> None:
        """From now on nothing is declared and nothing finishes; sessions go on."""
        self.frozen = True

    def thaw(self) -> None:
        """Programs and devices go on."""
        self.frozen = False
        deferred, self._deferred = self._deferred, []
        for act in deferred:
            self._soon(act)

    def describe(self) -> list[str]:
        """Where everybody stands."""
        lines = []
        for run in self.runs:
            lines.append(f"job {run.name}/{run.incarnation}: refused {run.refused}, lethal {run.lethal}")
            lines += [f"  {rank.describe()}" for rank in run.ranks]
        return lines

    def _soon(self, act: Callable[[], None], factor: float = 1.0) -> None:
        self.world.after(self.pace_s * self.world.rng.random() * factor, act)

    def _unless_frozen(self, act: Callable[[], None]) -> Callable[[], None]:
        def maybe() -> None:
            if self.frozen:
                self._deferred.append(maybe)
            else:
                act()

        return maybe

    # --- launchers

    def launch(self) -> None:
        """Declare all jobs."""
        for number, job in enumerate(self.scenario.jobs):
            self.runs.append(self._launched(number, job, "first"))

    def _launched(self, number: int, job: VirtualJob, nonce: str) -> Run:
        run = Run(number, job, nonce, Cabling(self.scenario.fabric, job))
        self.world.books.know(run.name, run.cabling)
        body = job_body(job, nonce, DEADLINE_S)
        self._ask(run, "PUT", job_path(run.name), body, lambda answer: self._declared(run, answer))
        return run

    def _declared(self, run: Run, answer: dict[str, Any]) -> None:
        run.incarnation = answer["incarnation"]
        body = groups_body(run.job, run.incarnation)
        then: Callable[[Any], None] = lambda _: self._begin(run, answer["start"])  # noqa: E731
        self._ask(run, "POST", job_path(run.name, "groups"), body, then)

    def _ask(
        self,
        run: Run,
        method: str,
        path: str,
        body: dict[str, Any],
        then: Callable[[dict[str, Any]], None],
    ) -> None:
        def refused(detail: str) -> None:
            self.world.log("refused", path, detail)
            run.refused = detail

        Question(self.world, method, path, body, then, refused)

    def _report(self, run: Run, route: str, body: dict[str, Any]) -> None:
        path = job_path(run.name, route)
        Question(self.world, "POST", path, body, lambda _: None, lambda _: None)

    def _begin(self, run: Run, start: int) -> None:
        run.ranks = [
            SimRank(
                self, run.job, run.incarnation, rank, start, deadline_s=2 * DEADLINE_S, offers=self.offers
            )
            for rank in range(len(run.job.programs))
        ]
        for rank in run.ranks:
            self._program_later(run, rank)
            rank.turn()

    def _maybe_again(self, run: Run) -> None:
        """A launcher starts a job that has failed once more, when all its processes are gone."""
        if self.runs[run.number] is not run or not run.over or run.well or run.nonce != "first":
            return
        if self.world.faults.again:
            run.relaunched = True
            self._traffic.forget(run.number)
            self._finishing = {key for key in self._finishing if key[0] != run.number}

            def again() -> None:
                fresh = self._launched(run.number, run.job, "again")
                fresh.lethal = run.lethal
                self.runs[run.number] = fresh

            self.world.after(0.5 * self.world.jitter(), again)

    # --- programs

    def _program_later(self, run: Run, rank: SimRank) -> None:
        self._soon(self._unless_frozen(lambda: self._step_program(run, rank)))

    def _step_program(self, run: Run, rank: SimRank) -> None:
        program = rank.program
        if not rank.alive or rank.closing:
            return
        if program.can_step():
            before = dict(program.counts)
            program.step()
            for stream, count in program.counts.items():
                if before.get(stream, 0) < count:
                    self.world.log("arrive", run.name, rank.rank, stream, count - 1)
                    self.world.books.arrived(run.key(rank), stream, count - 1)
            if program.runs:  # it may have called an operation that its run covers
                self._soon(self._unless_frozen(lambda: self._issue(run, rank)))
            rank.turn()
        elif program.in_host is not None:
            self._maybe_leave_host(run, program.in_host)
            return
        elif program.has_ended():
            self.world.log("ended", run.name, rank.rank)
            rank.close()
            rank.turn()
            return
        if rank.alive and (program.can_step() or program.in_host is not None or program.has_ended()):
            self._program_later(run, rank)

    def _maybe_leave_host(self, run: Run, group: str) -> None:
        """A collective inside a host ends when all have come to it; whoever comes last goes on for all."""
        members = [run.ranks[rank] for rank in run.job.members(group)]
        if all(member.program.in_host == group for member in members):
            for member in members:
                member.program.leave_host_barrier()
                self._program_later(run, member)

    # --- sessions (what `SimRank` needs)

    def now(self) -> float:
        """The world's clock."""
        return self.world.time

    def jitter(self) -> float:
        """For pauses."""
        return self.world.jitter()

    def send(self, rank: SimRank, exchange: Exchange, body: bytes) -> None:
        """A rank's request."""
        if rank in self.unheard:
            return
        world = self.world

        def reply(status: int, said: bytes) -> None:
            if rank not in self.unheard:
                world.log("answer", rank.job.spec.name, rank.rank, status, said.decode()[:400])
                rank.answered(exchange, status, said)

        def broken() -> None:
            world.after(world.hop_s(), lambda: rank.broken(exchange))

        request = world.request("POST", job_path(rank.job.spec.name, "arrivals"), body, reply, broken)
        exchange.hang_up = lambda: world.after(world.hop_s(), request.gone)

    def wake_at(self, rank: SimRank, at: float) -> None:
        """Turn a rank then, unless it asks for another moment before."""
        self._woken[rank] = at

        def wake() -> None:
            if self._woken.get(rank) == at:
                del self._woken[rank]
                rank.turn()

        # A sum of seconds may fall short of a moment by its last digit, and would be asked for for ever.
        self.world.after(max(0.0, at - self.world.time) + 1e-6, wake)

    def granted(self, rank: SimRank, grants: tuple[Grant, ...]) -> None:
        """A rank has heard grants, in order."""
        run = self._run_of(rank)
        for grant in grants:
            self.world.log("granted", run.name, rank.rank, grant.no, grant.stream, grant.n)
            self.world.books.heard(run.key(rank), grant)
        self._soon(self._unless_frozen(lambda: self._issue(run, rank)))

    def failed(self, rank: SimRank) -> None:
        """A rank has learned, or decided by its fence, that its job is over: it aborts, then leaves."""
        run = self._run_of(rank)
        assert rank.failure is not None
        self.world.log("failed", run.name, rank.rank, rank.failure.problem, rank.failure.detail)
        if rank.failure.problem == Problem.RUN_DEVIATION and self.offers.dream is not None:
            run.lethal = run.lethal or "a rank has left a run that its peer could not leave"
            self.world.books.runs["run-deviation"] += 1

        def abort() -> None:
            if not rank.dead:
                self._stop_device(run, rank)
                rank.close()
                rank.turn()

        self.world.after(self.world.rng.uniform(0.0, 0.9) * rank.abort_s, abort)

    def left(self, rank: SimRank) -> None:
        """A rank's process has ended in order."""
        run = self._run_of(rank)
        self.world.log("left", run.name, rank.rank)
        self._stop_device(run, rank)
        self._maybe_again(run)

    def _run_of(self, rank: SimRank) -> Run:
        return next(run for run in self.runs if rank in run.ranks)

    # --- devices

    def _issue(self, run: Run, rank: SimRank) -> None:
        while (grant := rank.next_to_issue()) is not None:
            rank.issued += 1
            use = (grant.stream, grant.n)
            self.world.log("issue", run.name, rank.rank, *use)
            ranks = run.cabling.participants(grant.stream)
            self._traffic.issue(run.number, rank.rank, use, ranks, run.cabling.circuits(grant.stream))
        self._finish_later(run)

    def _finish_later(self, run: Run) -> None:
        for use, rank in list(self._traffic.endable(run.number)):
            if (run.number, use, rank) not in self._finishing:
                self._finishing.add((run.number, use, rank))
                self._soon(self._unless_frozen(self._finisher(run, use, rank)), 2.0)

    def _finisher(self, run: Run, use: Use, rank: int | None) -> Callable[[], None]:
        def finish() -> None:
            self._finishing.discard((run.number, use, rank))
            if self.runs[run.number] is not run or (use, rank) not in list(self._traffic.endable(run.number)):
                return
            for ended in self._traffic.end(run.number, use, rank):
                self.world.log("finish", run.name, ended, *use)
                self.world.books.finished(run.key(run.ranks[ended]), *use)
                run.ranks[ended].program.finish(use)
                run.ranks[ended].turn()
                self._step_program(run, run.ranks[ended])
            self._finish_later(run)

        return finish

    def begin(self, use: tuple[int, int, Use], circuits: tuple[Circuit, ...]) -> None:
        """The traffic of one rank begins (for `Traffic`)."""
        number, rank, (stream, n) = use
        run = self.runs[number]
        self.world.books.began(run.key(run.ranks[rank]), stream, n)
        self.world.witness.begin(self._name(use), [circuit.id for circuit in circuits], rank)

    def end(self, use: tuple[int, int, Use]) -> None:
        """The traffic of one rank has ended (for `Traffic`)."""
        self.world.witness.end(self._name(use))

    def _name(self, use: tuple[int, int, Use]) -> str:
        number, rank, (stream, n) = use
        run = self.runs[number]
        return f"{run.name}/{run.incarnation} {rank} {stream}#{n}"

    def kill(self, run: Run, rank: SimRank) -> None:
        """A process is killed, and its device work ends with it; its launcher may say so."""
        rank.die()
        self._stop_device(run, rank)
        if self.world.faults.reported:
            body = {"incarnation": run.incarnation, "ranks": [rank.rank], "detail": "exit status 137"}
            self._report(run, "deaths", body)
        self.world.after(0.0, lambda: self._maybe_again(run))

    def _stop_device(self, run: Run, rank: SimRank) -> None:
        if self.runs[run.number] is run:
            for use, peer in self._traffic.cut_short(run.number, rank.rank):
                pause_s = self.world.rng.choice((0.01, 1.0))
                self.world.after(pause_s, self._failure(run, run.ranks[peer], use))
            self._traffic.abort(run.number, rank.rank)
        self.world.books.stopped(run.key(rank))

    def _failure(self, run: Run, rank: SimRank, use: Use) -> Callable[[], None]:
        """An operation raises on a rank's device, as its peer has gone; its session reports it."""

        def report() -> None:
            if rank.alive and not rank.closing:
                (connection, source, destination), n = use
                body: dict[str, Any] = {
                    "incarnation": run.incarnation,
                    "rank": rank.rank,
                    "connection": connection,
                    "n": n,
                    "detail": "connection reset by peer",
                }
                if source is not None:
                    body |= {"source": source, "destination": destination}
                self._report(run, "failures", body)

        return report
