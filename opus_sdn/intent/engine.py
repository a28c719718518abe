"""The controller's mind: every input goes in here, every decision comes out of `pump`.

Synchronous and deterministic. The shell around it (live runtime, simulator, what-if) calls the inputs, then
`pump`; stores the batch; tells `committed`; executes the steps between `start_step` and `settle_step`; and
answers ranks from `answer`, which never shows a grant whose batch is not stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opus_sdn.intent import (
    admission,
    cutting,
    directives,
    drift,
    dry_run,
    failing,
    links,
    recovery,
    refit,
    serving,
    stalling,
    stepping,
)
from opus_sdn.intent.changes import Batch, DirectiveGiven, GroupChecked, StepState
from opus_sdn.intent.directives import Holder, Operator
from opus_sdn.intent.dry_run import Change, Outcome
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.explain import why_waiting
from opus_sdn.intent.fabric import CrossConnect, Fabric, Terminal
from opus_sdn.intent.grace import awaiting
from opus_sdn.intent.hints import end_hint, look_again, take_hint
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import (
    Arrival,
    ArrivalState,
    ArrivalStatus,
    CoreSettings,
    Cut,
    GroupSpec,
    GroupView,
    Hint,
    JobSpec,
    RankAnswer,
    RankKey,
    RankNews,
    Stream,
)
from opus_sdn.intent.recovery import KnownJob, KnownStep
from opus_sdn.intent.requests import (
    check_group,
    check_group_count,
    check_news,
    check_rank,
    difference,
    open_in,
)
from opus_sdn.intent.serving import note_complete, serve
from opus_sdn.intent.standing import Drain, ManualCircuit, QueuedJob
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import COMMITTING
from opus_sdn.intent.switches import FailureKind, Step, SwitchState


@dataclass(frozen=True, slots=True)
class Effects:
    """What the shell has to do now: store `batch`, tell `committed`, then start `steps`."""

    batch: Batch | None
    steps: tuple[int, ...]


class Engine:
    """The pure state machine. `start` is the controller's start number, raised before every start.

    `incarnation_floor`: jobs that nobody remembers had incarnations up to this one.
    """

    def __init__(
        self,
        fabric: Fabric,
        settings: CoreSettings,
        start: int,
        *,
        last_step: int = 0,
        incarnations: Mapping[str, int] | None = None,
        generations: Mapping[str, int] | None = None,
        nonces: Mapping[str, Sequence[str]] | None = None,
        incarnation_floor: int = 0,
    ) -> None:
        if settings.lease_s <= settings.fence_s + settings.abort_s:
            raise ValueError(
                f"lease_s {settings.lease_s:g} must exceed fence_s + abort_s "
                f"({settings.fence_s:g} + {settings.abort_s:g}): a lapsed rank must have stopped by itself"
            )
        self.state = CoreState(
            fabric=fabric,
            settings=settings,
            start=start,
            switches={
                switch.name: SwitchState(switch, (generations or {}).get(switch.name, 0))
                for switch in fabric.switches
            },
            incarnations=dict(incarnations or {}),
            incarnation_floor=incarnation_floor,
            next_step=last_step + 1,
        )
        for name, used in (nonces or {}).items():
            self.state.past_nonces[name] = deque(used, settings.former_nonces_max)

    # --- taking over from an earlier start --------------------------------------------------------------

    def recover(
        self,
        now: float,
        jobs: Sequence[KnownJob],
        steps: Sequence[KnownStep],
        given: Sequence[DirectiveGiven] = (),
    ) -> tuple[KnownJob, ...]:
        """Take over jobs, unsettled device steps and directives of an earlier start; before anything else.

        Answers the jobs that do not fit the fabric any more, which are not taken over.
        """
        misfits = []
        for job in jobs:
            try:
                recovery.take_over(self.state, now, job)
            except CoreError:
                misfits.append(job)
        for step in steps:
            recovery.take_over_step(self.state, step)
        directives.restore(self.state, given)
        return tuple(misfits)

    def begin(self, now: float) -> None:
        """From now on ranks can be heard: their leases begin anew."""
        for job in self.state.active.values():
            for rank in job.ranks:
                rank.last_heard = max(rank.last_heard, now)
            job.lease_check_at = now + self.state.settings.lease_s

    def stood_still(self, now: float, for_s: float) -> None:
        """Until now nobody could be heard for so many seconds; they count as silence of no rank."""
        failing.stood_still(self.state, now, for_s)

    def awaits_sessions(self, job: str) -> bool:
        """Whether ranks of this job have not said yet what they hold."""
        core = self.state.jobs.get(job)
        return core is not None and bool(core.awaited)

    def unsettled(self, switch: str) -> tuple[Step, ...]:
        """Steps of this switch that are started and not settled."""
        progress = self.state.switches[switch].progress.values()
        return tuple(each.step for each in progress if each.state is StepState.STARTED)

    # --- inputs ---------------------------------------------------------------------------------------

    def observe(
        self,
        now: float,
        switch: str,
        matching: frozenset[CrossConnect],
        dark: Mapping[CrossConnect, str] | None = None,
        shut: Mapping[Terminal, str] | None = None,
    ) -> None:
        """A switch was read outside of a step: at adoption, from time to time, or on demand.

        `dark`: cross-connects of the matching through which no light passes, and why. `shut`: all ports that
        are closed or broken, connected or not, and how; None when the device was not asked for them.
        """
        if shut is not None:
            drift.take_ports(self.state, self.state.switches[switch], shut)
        drift.take_observation(self.state, now, self.state.switches[switch], matching, dark)
        for job in self.state.active.values():
            self.state.touch(job)

    def remember(
        self, switch: str, matching: Iterable[CrossConnect], foreign: Iterable[CrossConnect] = ()
    ) -> None:
        """What an earlier start last saw on a switch, to compare the first reading with."""
        if switch in self.state.switches:
            self.state.switches[switch].remember(matching, foreign)

    def lose_switch(self, now: float, switch: str, detail: str) -> None:
        """A switch does not answer: its steps wait until it is observed. Grants that need none go on."""
        drift.went_away(self.state, now, self.state.switches[switch], detail)

    def put_job(self, now: float, spec: JobSpec, *, queue: bool = False) -> tuple[int, bool]:
        """Admit a job. The same nonce again is the same incarnation; a new one ends the old incarnation.

        With `queue` a job that cannot have its ports yet is not refused: its incarnation is 0 until it can.
        """
        known = self.state.jobs.get(spec.name)
        if known is not None and known.spec.nonce == spec.nonce:
            if known.spec != spec:
                raise CoreError(
                    Problem.JOB_CONFLICT,
                    f"job {spec.name} with nonce {spec.nonce!r} was declared with another "
                    f"{difference(known.spec, spec)}; a changed job needs a fresh nonce",
                    job=spec.name,
                    field=difference(known.spec, spec),
                )
            return known.incarnation, False
        if spec.nonce in self.state.past_nonces.get(spec.name, ()):
            raise CoreError(
                Problem.STALE_INCARNATION,
                f"nonce {spec.nonce!r} is that of an earlier incarnation of job {spec.name}, which can do "
                "nothing any more; every init of the ranks needs a fresh nonce",
                job=spec.name,
                field="nonce",
            )
        if known is not None and known.occupies_ports() and known.spec.owner != spec.owner:
            raise CoreError(
                Problem.JOB_CONFLICT,
                f"job {spec.name} belongs to owner {known.spec.owner!r} and still runs; "
                f"owner {spec.owner!r} needs another job name",
                job=spec.name,
                field="owner",
            )
        incarnation = admission.put(self.state, now, spec, queue=queue)
        return incarnation, incarnation > 0

    def check_in(
        self, now: float, job: str, incarnation: int, groups: Sequence[GroupSpec]
    ) -> tuple[GroupView, ...]:
        """Make groups known; answers their domain and ring. Repeating it is harmless."""
        core = self._job(job, incarnation)
        self._require_running(core)
        for group in groups:
            check_group(core, group)
        check_group_count(core, groups)
        views = []
        for group in groups:
            state, new = core.check_in(group)
            views.append(state.view())
            if new:
                self._record_group(core, group)
        return tuple(views)

    def news(
        self, now: float, job: str, incarnation: int, seen_start: int, ranks: Sequence[RankNews]
    ) -> None:
        """All that ranks have to say. Refused as a whole, or taken as a whole; repeating it is harmless."""
        core = self._job(job, incarnation)
        recovery.check_start(self.state, core, seen_start)
        check_news(core, ranks)
        for item in ranks:
            if core.ranks[item.rank].stopped:
                continue
            self._hear(now, core, item.rank)
            self._acknowledge(core, item)
            if item.rank in core.awaited:
                recovery.reassert(self.state, now, core, item)
            elif item.session is not None:
                recovery.repeat(self.state, core, item.rank, item.session)
            for arrival in open_in(item):
                self._arrive(now, core, item.rank, arrival)
            for hint in item.hints:
                take_hint(core, item.rank, hint)
            for cut in item.cuts:
                self._cut(core, item.rank, cut)
            for release in item.releases:
                stream = core.streams[release.stream]
                failing.release(self.state, core, item.rank, stream, release.n + release.length)
            for arrival in item.arrivals:
                self._arrive(now, core, item.rank, arrival)
            if item.leave:
                failing.leave(self.state, core, item.rank)
            look_again(self.state, core, item.rank)
        failing.check_suspicion(self.state, now, core)

    def report_links(
        self, now: float, job: str, incarnation: int, rank: int, ports: Mapping[int, tuple[bool, str]]
    ) -> None:
        """A rank's host says of the rank's NIC ports, by index, whether their link is up. No sign of life."""
        core = self._job(job, incarnation)
        check_rank(core, rank)
        links.take_links(self.state, now, core, rank, ports)

    def operation_failed(
        self,
        now: float,
        job: str,
        incarnation: int,
        rank: int,
        stream: Stream | None,
        n: int | None,
        detail: str,
    ) -> None:
        """An operation broke on a rank's device. The cause is decided here, for all ranks alike."""
        core = self._job(job, incarnation)
        check_rank(core, rank)
        self._hear(now, core, rank)
        what = "an operation" if stream is None else f"operation {n} of {stream}"
        failure = Failure(Problem.OPERATION_FAILED, f"{what} failed on rank {rank}: {detail}", rank)
        failing.suspect(self.state, now, core, failure)
        failing.check_suspicion(self.state, now, core)

    def abort(self, now: float, job: str, incarnation: int, rank: int | None, detail: str) -> None:
        """Somebody ends the job on purpose; every rank gets the cause."""
        core = self._job(job, incarnation)
        if rank is not None:
            check_rank(core, rank)
            self._hear(now, core, rank)
        who = "the job was aborted" if rank is None else f"rank {rank} aborted the job"
        failing.fail_job(self.state, core, Failure(Problem.ABORTED, f"{who}: {detail}", rank))

    def report_dead(self, now: float, job: str, incarnation: int, ranks: Sequence[int], detail: str) -> None:
        """A launcher or host agent vouches that these processes are gone: their locks go."""
        core = self._job(job, incarnation)
        for rank in ranks:
            check_rank(core, rank)
        for rank in ranks:
            if not core.ranks[rank].stopped:
                failing.fail_job(self.state, core, failing.lost(rank, f"died: {detail}"))
                failing.stop_rank(self.state, core, rank)

    def drain_port(self, now: float, port: str, who: Operator) -> Drain:
        """No circuit for a port until it is undrained; see `directives`."""
        return directives.drain_port(self.state, now, port, who)

    def undrain_port(self, now: float, port: str, who: Operator) -> None:
        """A port may be used again."""
        directives.undrain_port(self.state, port, who)

    def want_circuit(self, now: float, a: str, b: str, who: Operator) -> ManualCircuit:
        """Keep a circuit between two ports up until it is dropped."""
        return directives.want_circuit(self.state, now, a, b, who)

    def drop_circuit(self, now: float, circuit: str, who: Operator) -> ManualCircuit:
        """An operator's circuit is nobody's from now on."""
        return directives.drop_circuit(self.state, circuit, who)

    def release_locks(
        self,
        now: float,
        who: Operator,
        job: str,
        incarnation: int,
        rank: int | None = None,
        no: int | None = None,
    ) -> tuple[Holder, ...]:
        """Take locks of a job, of one rank, or of one grant of it away."""
        return directives.release_locks(self.state, now, who, job, incarnation, rank, no)

    def look(self, now: float, change: Change, who: Operator) -> Outcome:
        """What a change would do; nothing is done."""
        return dry_run.look(self.state, now, change, who)

    def why_not_fabric(self, fabric: Fabric) -> CoreError | None:
        """Why another fabric cannot come into force now: it changes a port in use. None when it can."""
        return refit.why_not(self.state, fabric)

    def change_fabric(self, fabric: Fabric, generations: Mapping[str, int]) -> tuple[JobCore, ...]:
        """Go on with another fabric; no step may be on a device. The settled jobs, which are forgotten."""
        return refit.change(self.state, fabric, generations)

    def withdraw_job(self, now: float, job: str, by: str) -> QueuedJob:
        """A queued job waits no longer."""
        return admission.withdraw(self.state, job, by)

    def end_job(self, now: float, job: str, incarnation: int) -> None:
        """An operator or launcher says that every rank has stopped."""
        failing.end_job(self.state, self._job(job, incarnation))

    def tick(self, now: float) -> None:
        """Decide what only time decides."""
        failing.tick(self.state, now)
        stalling.tick(self.state, now)
        serving.tick(self.state, now)
        links.tick(self.state, now)

    def next_deadline(self) -> float | None:
        """When `tick` is due."""
        moments = (part.next_deadline(self.state) for part in (failing, stalling, serving, links))
        return min((moment for moment in moments if moment is not None), default=None)

    # --- effects --------------------------------------------------------------------------------------

    def pump(self, now: float) -> Effects:
        """Decide everything that can be decided now. Idle when nothing has changed since the last call."""
        state = self.state
        admission.admit_queued(state, now)
        while state.dirty_jobs:
            name = next(iter(state.dirty_jobs))
            del state.dirty_jobs[name]
            job = state.active.get(name)
            if job is not None:
                failure = self._look_at(now, job)
                if failure is not None:
                    failing.fail_job(state, job, failure)
        planned: list[int] = []
        while state.dirty_switches:
            name = next(iter(state.dirty_switches))
            del state.dirty_switches[name]
            planned += stepping.plan_switch(state, now, state.switches[name])
        return Effects(state.ledger.cut(now), tuple(planned))

    def _look_at(self, now: float, job: JobCore) -> Failure | None:
        """Conclude a grace that is over, and grant what can be granted."""
        if job.grace is not None and not job.grace.awaited:
            failure = recovery.conclude(self.state, job)
            if failure is not None:
                return failure
        return serve(self.state, now, job) if job.running else None

    def committed(self, batch: int) -> tuple[RankKey, ...]:
        """A batch is stored: its grants may be answered, its steps started. The ranks to wake."""
        return self.state.ledger.commit(batch)

    def start_step(self, now: float, step: int) -> Step | None:
        """Start a planned step whose batch is stored. None: it was dropped, pump again."""
        return stepping.start_step(self.state, now, step)

    def settle_step(
        self,
        now: float,
        step: int,
        ok: bool,
        detail: str | None,
        matching: frozenset[CrossConnect],
        *,
        kind: FailureKind = FailureKind.TERMINAL,
        failed: Mapping[CrossConnect, str] | None = None,
        dark: Mapping[CrossConnect, str] | None = None,
    ) -> None:
        """The step is over and the device was read back: `matching` is what it showed.

        If not `ok`: the `kind` of failure, and pairs that the device named as `failed`, with its reasons.
        `dark` as of `observe`.
        """
        stepping.settle_step(self.state, now, step, ok, detail, matching, kind, failed, dark)

    # --- answers --------------------------------------------------------------------------------------

    def has_news_for(self, job: str, incarnation: int, rank: int, last_grant: int) -> bool:
        """Whether a poll of this rank should be answered now."""
        core = self.state.jobs.get(job)
        if core is None or core.incarnation != incarnation:
            return True
        committed = self.state.ledger.committed
        if not core.running:
            return core.settled_in <= committed
        return any(
            grant.no > last_grant and batch <= committed for grant, batch in core.ranks[rank].unacknowledged
        ) or bool(cutting.requests_for(self.state, core, rank))

    def answer(
        self, job: str, incarnation: int, rank: int, last_grant: int, asked: Iterable[Arrival] | None = None
    ) -> RankAnswer:
        """What a rank is told: grants above `last_grant`, the state of what it asked or has open, a cause."""
        core = self._job(job, incarnation)
        check_rank(core, rank)
        state = core.ranks[rank]
        committed = self.state.ledger.committed
        grants = tuple(
            grant for grant, batch in state.unacknowledged if grant.no > last_grant and batch <= committed
        )
        wanted = [(a.stream, a.n) for a in asked] if asked is not None else list(state.open)
        statuses = tuple(self._status(core, rank, stream, n) for stream, n in wanted) if core.running else ()
        failure = None
        if not core.running and core.settled_in <= committed:
            failure = core.failure or Failure(Problem.ABORTED, f"job {job} has ended")
        alarms = drift.alarms_of(self.state, core, rank) if core.lost else ()
        cuts = cutting.requests_for(self.state, core, rank)
        return RankAnswer(rank, statuses, grants, failure, alarms, cuts)

    # --- helpers --------------------------------------------------------------------------------------

    def _job(self, name: str, incarnation: int) -> JobCore:
        job = self.state.jobs.get(name)
        if job is None:
            raise CoreError(Problem.UNKNOWN_JOB, f"there is no job {name!r}; declare it first", job=name)
        if job.incarnation != incarnation:
            raise CoreError(
                Problem.STALE_INCARNATION,
                f"job {name} is at incarnation {job.incarnation}; incarnation {incarnation} can do nothing",
                job=name,
                incarnation=job.incarnation,
            )
        return job

    def _require_running(self, job: JobCore) -> None:
        if not job.running:
            cause = job.failure or Failure(Problem.ABORTED, f"job {job.spec.name} has ended")
            raise CoreError(
                cause.problem, cause.detail, **({} if cause.rank is None else {"rank": cause.rank})
            )

    def _record_group(self, job: JobCore, group: GroupSpec) -> None:
        state = job.groups[group.name]
        group, domain = state.spec, state.domain
        name, size = job.spec.name, len(group.ranks)
        self.state.ledger.add(
            GroupChecked(
                name, job.incarnation, group.name, group.ranks, group.dimension, group.ordinal, domain
            ),
            durable=True,  # ranks name its connections when they come back after a restart
        )
        self.state.ledger.event(
            "group.checked-in",
            job,
            group=group.name,
            dimension=group.dimension,
            domain=domain.value,
            size=size,
        )

    def _hear(self, now: float, job: JobCore, rank: int) -> None:
        job.ranks[rank].last_heard = now

    def _acknowledge(self, job: JobCore, item: RankNews) -> None:
        queue = job.ranks[item.rank].unacknowledged
        while queue and queue[0][0].no <= item.last_grant:
            queue.popleft()

    def _arrive(self, now: float, job: JobCore, rank: int, arrival: Arrival) -> None:
        if not job.running:
            return
        stream = job.stream(arrival.stream)
        standing = stream.standing(rank, arrival.n)
        if (
            standing is ArrivalState.OPEN
        ):  # a repeat; it may bring that the host waits now, or a smaller offer
            known = stream.intents[arrival.n].arrived[rank]
            if arrival.blocking and not known.arrival.blocking:
                self.state.touch(job)
            known.arrival = known.arrival.joined(arrival)
        if standing is not None:
            return
        if arrival.n != stream.next_n[rank]:
            failing.fail_job(self.state, job, failing.diverged(stream.stream, stream.next_n, rank, arrival.n))
            return
        intent = stream.arrive(now, rank, arrival)
        job.ranks[rank].open[(arrival.stream, arrival.n)] = intent
        end_hint(job, rank, Hint(arrival.stream, arrival.n))
        job.open[(arrival.stream, arrival.n)] = intent
        job.start_clock(now, stream.intents.get(stream.granted))
        gone = next((r for r in stream.participants if job.ranks[r].stopped), None)
        if gone is not None:
            failing.fail_job(self.state, job, failing.lost(gone, "has left the job; others still need it"))
            return
        failure = note_complete(now, job, stream)
        if failure is not None:
            failing.fail_job(self.state, job, failure)
        self.state.touch(job)

    def _cut(self, job: JobCore, rank: int, cut: Cut) -> None:
        if not job.running:
            return
        failure = cutting.take_cut(self.state, job, rank, cut)
        if failure is not None:
            failing.fail_job(self.state, job, failure)

    def _status(self, job: JobCore, rank: int, stream: Stream, n: int) -> ArrivalStatus:
        state = job.stream(stream)
        standing = state.standing(rank, n) or ArrivalState.OPEN
        if standing is ArrivalState.GRANTED and state.is_to_be_told(rank, n):
            return ArrivalStatus(stream, n, ArrivalState.OPEN, awaiting(job.awaited))
        if standing is ArrivalState.GRANTED and not self._is_answerable(job, rank, stream, n):
            return ArrivalStatus(stream, n, ArrivalState.OPEN, COMMITTING)
        intent = state.intents.get(n)
        if standing is not ArrivalState.OPEN or intent is None:
            return ArrivalStatus(stream, n, standing)
        return ArrivalStatus(stream, n, standing, why_waiting(self.state, job, intent))

    def _is_answerable(self, job: JobCore, rank: int, stream: Stream, n: int) -> bool:
        """A grant counts for a rank only once its batch is stored; acknowledged ones are."""
        committed = self.state.ledger.committed
        return not any(
            grant.stream == stream and grant.n <= n < grant.n + grant.length and batch > committed
            for grant, batch in job.ranks[rank].unacknowledged
        )
