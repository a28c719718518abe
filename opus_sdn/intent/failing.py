"""How an incarnation ends: failures with one cause for all ranks, leases, deadlines, ranks that stopped.

Silence is not death. A failed incarnation keeps its locks until each holder is known to have stopped: it
left, its launcher or agent vouches for its death, or it was silent for a lease, which is longer than the
time after which a shim aborts its own unfinished device work.
"""

from __future__ import annotations

from collections.abc import Mapping

from opus_sdn.intent import cutting
from opus_sdn.intent.changes import IntentState, JobSettled, JobState, RankLeft
from opus_sdn.intent.errors import Failure, Problem
from opus_sdn.intent.explain import why_waiting
from opus_sdn.intent.hints import forget_hint
from opus_sdn.intent.job import JobCore, Suspicion
from opus_sdn.intent.model import RankKey, Stream
from opus_sdn.intent.moves import intent_data, record_move
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import HeldRun, Intent, StreamState
from opus_sdn.intent.waits import wait_for_cycle

MARGIN_SHARE = 1 / 12  # of the time in which a dead rank is looked for; 1 s by default
CYCLE_SHOWN_MAX = 8  # waits spelled out in one message; the data has all of them


def fail_job(state: CoreState, job: JobCore, failure: Failure) -> None:
    """End the incarnation for every rank with one cause. Only the first cause counts."""
    if not job.running:
        return
    _give_up_intents(state, job)
    job.settle(JobState.FAILED, failure)
    _record_end(state, job, JobState.FAILED, failure)
    wake_all(state, job)
    state.review(job)


def end_job(state: CoreState, job: JobCore) -> None:
    """Every rank is known to have stopped: locks go, ports are free."""
    for rank in range(len(job.ranks)):
        stop_rank(state, job, rank)
    if job.state is not JobState.ENDED:
        _give_up_intents(state, job)
        job.settle(JobState.ENDED, None)
        _record_end(state, job, JobState.ENDED, None)
    wake_all(state, job)
    state.review(job)


def _give_up_intents(state: CoreState, job: JobCore) -> None:
    """Complete intents that others have heard of fail; the rest were never more than arrivals."""
    for intent in job.complete.values():
        if intent.announced:
            intent.move(IntentState.FAILED)
            record_move(state, job, intent, "intent.failed")


def _record_end(state: CoreState, job: JobCore, to: JobState, failure: Failure | None) -> None:
    cause, detail = (failure.problem.value, failure.detail) if failure else (None, None)
    rank, more = (failure.rank, failure.data) if failure else (None, {})
    job.settled_in = job.settled_in or state.ledger.open_batch
    settled = JobSettled(job.spec.name, job.incarnation, to, cause, detail, rank, more)
    state.ledger.add(settled, durable=True)
    data = {"rank": failure.rank} if failure and failure.rank is not None else {}
    state.ledger.event(f"job.{to.value}", job, cause=cause, detail=detail, **data)


def wake_all(state: CoreState, job: JobCore) -> None:
    """Every waiting poll of the job has something to hear, once it is stored."""
    for rank in range(len(job.ranks)):
        state.ledger.wake_on_commit(RankKey(job.spec.name, job.incarnation, rank))


def release(state: CoreState, job: JobCore, rank: int, stream: StreamState, through: int) -> None:
    """One rank has finished its operations below `through` on a stream."""
    for run in stream.release(rank, through):
        let_go(state, job, stream, run, rank)


def let_go(state: CoreState, job: JobCore, stream: StreamState, run: HeldRun, rank: int) -> None:
    """A rank, no longer among the run's holders, has let go of it; the last one frees its circuits."""
    state.ledger.release(job, stream.stream, run, rank)
    if run.holders:
        cutting.look_again(state, job, stream, run)
        return
    del stream.held[run.n]
    job.let_go_of(stream, run)
    job.cuts.pop((stream.stream, run.n), None)
    state.unhold(stream.connection.circuits)
    job.held_runs -= 1
    run.intent.move(IntentState.RELEASED)
    record_move(state, job, run.intent, "intent.released")
    state.touch(job)
    state.review(job)


def stop_rank(state: CoreState, job: JobCore, rank: int) -> None:
    """The rank is known to have stopped: it holds nothing any more, and expects nothing."""
    job.ranks[rank].stopped = True
    forget_hint(job, rank)
    for stream in job.streams_of[rank]:
        for run in list(stream.held.values()):
            if rank in run.holders:
                del run.holders[rank]
                let_go(state, job, stream, run, rank)
    state.heard(job, rank)


def leave(state: CoreState, job: JobCore, rank: int) -> None:
    """A rank is done. What it still had open can never complete; the last one to leave ends the job."""
    # Whoever leaves while it holds something has aborted it: its peers can never finish.
    stopped_early = bool(job.ranks[rank].open) or _holds(job, rank)
    job.ranks[rank].left = True
    stop_rank(state, job, rank)
    # Nobody will be there to say it again after a power cut.
    state.ledger.add(RankLeft(job.spec.name, job.incarnation, rank), durable=True)
    state.ledger.event("rank.left", job, rank=rank)
    if all(r.stopped for r in job.ranks) and job.running:
        end_job(state, job)
    elif stopped_early or any(rank in intent.connection.ranks for intent in job.open.values()):
        fail_job(state, job, lost(rank, "left the job while operations with it were open"))


def _holds(job: JobCore, rank: int) -> bool:
    return any(rank in run.holders for stream in job.streams_of[rank] for run in stream.held.values())


def lost(rank: int, how: str) -> Failure:
    """The failure that names a rank which is gone."""
    return Failure(Problem.RANK_LOST, f"rank {rank} {how}", rank)


def diverged(stream: Stream, next_n: Mapping[int, int], rank: int, n: int) -> Failure:
    """Members of one stream disagree on what comes next; everybody learns who said what."""
    said = {r: m for r, m in next_n.items() if r != rank}
    others = ", ".join(f"rank {r} is at {m}" for r, m in list(said.items())[:16])
    return Failure(
        Problem.DIVERGED,
        f"rank {rank} arrives at operation {n} of {stream}, but its next one is {next_n[rank]} ({others}); "
        "the members have issued different numbers of operations",
        rank,
        {"connection": stream.connection, "n": n, "expected": next_n[rank]},
    )


def suspect(state: CoreState, now: float, job: JobCore, failure: Failure) -> None:
    """An operation failed on a rank's device. Wait a little for the rank that died to be named."""
    if job.running and job.suspicion is None:
        job.suspicion = Suspicion(now, now + state.settings.fault_grace_s, failure)
        state.ledger.event("rank.operation-failed", job, rank=failure.rank, detail=failure.detail)


def check_suspicion(state: CoreState, now: float, job: JobCore) -> None:
    """Decide a suspicion: everybody was heard since, so nobody died; or time is up, and silence names one."""
    suspicion = job.suspicion
    if suspicion is None:
        return
    # A sign of life counts only from a little later on: a dead rank's last request may still be on its way.
    silent = job.silent_since(suspicion.first_at + state.settings.fault_grace_s * MARGIN_SHARE)
    if not silent:
        fail_job(state, job, suspicion.failure)
    elif now >= suspicion.decide_at:
        waited = now - suspicion.first_at
        named = lost(
            min(silent, key=lambda rank: job.ranks[rank].last_heard),
            f"has been silent for {waited:.1f} s since an operation failed ({suspicion.failure.detail})",
        )
        fail_job(state, job, named)


def tick(state: CoreState, now: float) -> None:
    """Everything that only time decides: suspicions, leases, deadlines."""
    for job in list(state.active.values()):
        check_suspicion(state, now, job)
        _check_leases(state, now, job)
        if job.running and job.clocks:
            intent = next(iter(job.clocks.values()))
            if now >= intent.clock_at + job.spec.deadline_s:
                fail_job(state, job, _late(state, now, job, intent))


def _check_leases(state: CoreState, now: float, job: JobCore) -> None:
    """Ranks silent for a whole lease are gone: by then their shims have aborted what was unfinished."""
    if now < job.lease_check_at or not job.occupies_ports():
        return
    lease_s = state.settings.lease_s
    silent = job.silent_since(now - lease_s)
    if silent:
        fail_job(state, job, lost(silent[0], f"has been silent for {lease_s:g} s, its lease"))
        for rank in silent:
            stop_rank(state, job, rank)
    job.lease_check_at = now + lease_s / 4


def stood_still(state: CoreState, now: float, for_s: float) -> None:
    """The controller heard nobody for a while: leases last longer by it, dead ranks are looked for anew."""
    for job in state.active.values():
        for rank in job.ranks:
            rank.last_heard = min(now, rank.last_heard + for_s)
        if job.suspicion is not None:
            job.suspicion = Suspicion(now, now + state.settings.fault_grace_s, job.suspicion.failure)


def _late(state: CoreState, now: float, job: JobCore, intent: Intent) -> Failure:
    """The deadline's failure: it says who or what is missing, and who waits for each other in a circle.

    Of ranks that are missing it says when they were last heard: a rank that is stopped or cut off is silent,
    one in a long checkpoint or in a hang of its own speaks.
    """
    because = why_waiting(state, job, intent)
    cycle = wait_for_cycle(job)
    detail = (
        f"operation {intent.n} of {intent.stream} was not granted within {job.spec.deadline_s:g} s of its "
        f"{'turn' if intent.clock_at > intent.first_at else 'first arrival'}: {because.detail}"
    )
    data: dict[str, object] = {"reason": because.reason.value, **intent_data(intent), **because.data}
    if because.reason is Reason.MEMBERS_MISSING:
        missing = job.streams[intent.stream].missing(intent.n)
        heard = [[rank, round(now - job.ranks[rank].last_heard, 1)] for rank in missing]
        shown = [f"rank {rank} {ago:g} s ago" for rank, ago in heard[:CYCLE_SHOWN_MAX]]
        detail += f"; last heard: {', '.join(shown)}"
        data["heard_s_ago"] = heard
    if cycle:
        detail += f"; these wait for each other: {', '.join(map(str, cycle[:CYCLE_SHOWN_MAX]))}"
        data["cycle"] = [[wait.rank, wait.operation, wait.waits_for] for wait in cycle]
    return Failure(Problem.DEADLINE, detail, data=data)


def next_deadline(state: CoreState) -> float | None:
    """When `tick` next has something to decide; None when nothing is due at any time."""
    moments: list[float] = []
    for job in state.active.values():
        if job.suspicion is not None:
            moments.append(job.suspicion.decide_at)
        moments.append(job.lease_check_at)
        if job.running and job.clocks:
            moments.append(next(iter(job.clocks.values())).clock_at + job.spec.deadline_s)
    return min(moments, default=None)
