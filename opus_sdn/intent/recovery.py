"""What a controller start makes of an earlier one: its running jobs go on, its device steps are settled.

Of a job the store knows its groups, marks and locks, but not what was open, and after a power cut perhaps not
the newest grants either. So nothing is taken from a rank before it has said its whole session, and what one
participant holds or has finished proves that run for all of them: whoever has not said that he has finished
counts as a holder, and whoever was never told of his grant is told again, in the order of those who were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from opus_sdn.intent import cutting, failing
from opus_sdn.intent.changes import IntentState, RunGranted, StepMoved, StepState
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.grace import Grace
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import Domain, Grant, GroupSpec, JobSpec, RankKey, RankNews, Session, Stream
from opus_sdn.intent.moves import intent_data
from opus_sdn.intent.requests import check_places, open_in
from opus_sdn.intent.state import CoreState, step_event
from opus_sdn.intent.streams import UNNUMBERED, HeldRun, Intent, StreamState, short
from opus_sdn.intent.switches import Step
from opus_sdn.intent.topology_id import circuits_of

CUT_SHORT = "an earlier start of the controller ended before it"


@dataclass(frozen=True, slots=True)
class KnownStream:
    """The stored marks of a stream; `released` by rank, for those that have released something."""

    stream: Stream
    granted: int
    released: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A stored run with the ranks that have not released it and their grant numbers."""

    stream: Stream
    n: int
    length: int
    holders: tuple[tuple[int, int], ...]
    granted_at: float
    complete_at: float


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job as stored: running, or failed (with its cause) while ranks of it may hold something.

    `left` = ranks known to have stopped. `intact` = nothing that was ever answered is missing here.
    """

    spec: JobSpec
    incarnation: int
    started_at: float
    groups: tuple[GroupSpec, ...] = ()
    streams: tuple[KnownStream, ...] = ()
    runs: tuple[KnownRun, ...] = ()
    owners: tuple[tuple[str, int | None], ...] = ()  # circuit id -> topology digit
    left: tuple[int, ...] = ()
    failure: Failure | None = None
    intact: bool = False


@dataclass(frozen=True, slots=True)
class KnownStep:
    """A device step that was planned, and perhaps started, but not settled."""

    step: int
    switch: str
    generation: int
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    causes: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()


# --- at the start


def take_over(state: CoreState, now: float, known: KnownJob) -> None:
    """Make a job of an earlier start this one's. Raises CoreError when it does not fit the fabric."""
    check_places(state.fabric, known.spec)
    job = JobCore(state.fabric, state.settings, known.spec, known.incarnation, known.started_at)
    job.recovered = True
    for group in known.groups:
        job.check_in(group)
    for mark in known.streams:
        _restore_marks(job, mark)
    for run in known.runs:
        job.stream(run.stream)  # refused here, before anything counts as held
    _restore_owners(state, job, known)
    for rank_state in job.ranks:
        rank_state.last_heard = now
    job.lease_check_at = now + state.settings.lease_s
    for rank in known.left:
        job.ranks[rank].left = job.ranks[rank].stopped = True
    for run in known.runs:
        _restore_run(state, job, run)
    for rank_state in job.ranks:
        rank_state.unacknowledged = type(rank_state.unacknowledged)(
            sorted(rank_state.unacknowledged, key=lambda item: item[0].no)
        )
    job.grants = job.operations = sum(stream.granted for stream in job.streams.values())
    _open_grace(job, known)
    state.incarnations[known.spec.name] = known.incarnation
    state.admit(job)
    state.await_ranks(job)
    state.review(job)
    awaited = len(job.awaited)
    state.ledger.event("job.recovered", job, held=job.held_runs, awaited=awaited, intact=known.intact)


def take_over_step(state: CoreState, known: KnownStep) -> None:
    """Its ports are moving until the switch has been read; one of a switch that is gone is over."""
    step = Step(
        known.step,
        known.switch,
        known.generation,
        known.remove,
        known.add,
        known.causes,
        known.disturbed,
        None,
    )
    switch = state.switches.get(known.switch)
    if switch is None:
        detail = f"{CUT_SHORT}; the fabric has no switch {known.switch} any more"
        state.ledger.add(StepMoved(step.id, step.switch, StepState.FAILED, detail))
        state.ledger.add(step_event("step.failed", step, detail=detail))
        return
    switch.plan_step(step)
    switch.start(step)


def _restore_marks(job: JobCore, known: KnownStream) -> None:
    stream = job.stream(known.stream)
    stream.granted = max([known.granted, *(mark for _, mark in known.released)])
    stream.released.update(known.released)
    stream.next_n = dict.fromkeys(stream.participants, stream.granted)


def _restore_owners(state: CoreState, job: JobCore, known: KnownJob) -> None:
    """Whose circuits are whose: as stored, else by who has used them."""
    if known.spec.initial_topology is not None:
        seed = circuits_of(state.fabric, known.spec, job.layout, known.spec.initial_topology)
        job.owners.update({circuit.id: digit for circuit, digit in seed.items()})
    newest = {run.stream: run.granted_at for run in known.runs}
    for stream in sorted(job.streams.values(), key=lambda stream: newest.get(stream.stream, 0.0)):
        digit = job.digit(stream.connection)
        job.owners.update({circuit.id: digit for circuit in stream.connection.circuits})
    job.owners.update(known.owners)


def _restore_run(state: CoreState, job: JobCore, known: KnownRun) -> None:
    stream = job.stream(known.stream)
    intent = _granted_intent(stream, known.n, known.complete_at)
    run = HeldRun(known.n, known.length, dict(known.holders), known.granted_at, intent)
    _hold(state, job, stream, run)
    for rank, no in known.holders:
        grant = Grant(no, known.stream, known.n, known.length)
        job.ranks[rank].unacknowledged.append((grant, 0))  # stored, whatever batch that was
        job.ranks[rank].issued = max(job.ranks[rank].issued, no)


def _open_grace(job: JobCore, known: KnownJob) -> None:
    if known.failure is not None:
        job.settle_as(known.failure)
    awaited = [rank for rank, rank_state in enumerate(job.ranks) if not rank_state.stopped]
    groups = [group.spec.ranks for group in job.groups.values() if group.domain is Domain.SCALE_OUT]
    job.grace = Grace.over(awaited, groups, known.intact)


# --- when ranks come back


def check_start(state: CoreState, job: JobCore, seen_start: int) -> None:
    """Refuse what was said to another start. CoreError `stale-start` with this start's number."""
    anew = seen_start == 0 and not job.recovered
    if seen_start != state.start and not anew:
        raise CoreError(
            Problem.STALE_START,
            f"the request speaks to controller start {seen_start}; this is start {state.start}",
            seen_start=seen_start,
            start=state.start,
        )


def reassert(state: CoreState, now: float, job: JobCore, item: RankNews) -> None:
    """The first that an earlier start's rank says to this one. Its open arrivals are the caller's to take."""
    assert job.grace is not None
    rank = item.rank
    if item.session is not None:
        _take_session(state, now, job, item, item.session)
    elif job.grace.intact:
        # A client that knows of no sessions. All it was ever told is known here, so it need not say so.
        job.ranks[rank].issued = max(job.ranks[rank].issued, item.last_grant)
    else:
        failing.fail_job(state, job, _cannot_say(job, rank))
        return
    state.heard(job, rank)


def _cannot_say(job: JobCore, rank: int) -> Failure:
    return Failure(
        Problem.CONTROLLER_RESTARTED,
        f"the controller was started anew and may have lost its newest records; rank {rank} of job "
        f"{job.spec.name} did not say what it holds, as clients of an earlier version do not",
        rank,
    )


def _take_session(state: CoreState, now: float, job: JobCore, item: RankNews, session: Session) -> None:
    rank, mine = item.rank, job.ranks[item.rank]
    mine.issued = max(mine.issued, session.last_grant)
    lengths: dict[Stream, dict[int, int]] = {}
    for grant in session.held:
        lengths.setdefault(grant.stream, {})[grant.n] = grant.length
    for mark in session.marks:
        _compare(state, job, job.stream(mark.stream), mark.granted, lengths.get(mark.stream, {}))
        _prove(state, now, job, job.stream(mark.stream), mark.granted, lengths.get(mark.stream, {}))
    for grant in session.held:
        run = job.streams[grant.stream].held.get(grant.n)
        if run is not None and rank in run.holders:
            run.holders[rank] = grant.no
    _find_lacking(state, job, item, session)
    repeat(state, job, rank, session)


def repeat(state: CoreState, job: JobCore, rank: int, session: Session) -> None:
    """What a session says beyond the first word of it: what has finished."""
    for mark in session.marks:
        stream = job.stream(mark.stream)
        failing.release(state, job, rank, stream, min(mark.released, stream.granted))


def _compare(
    state: CoreState, job: JobCore, stream: StreamState, through: int, lengths: dict[int, int]
) -> None:
    """What a rank says of runs that are known here: their lengths, and which of them were cut short.

    All participants are granted the same runs. So where one says that a run goes on and another that it was
    granted nothing behind some operation of it, the run was cut there, and the first was not told of it yet.
    """
    stream.granted_once = max(stream.granted_once, through)
    for n, length in lengths.items():
        known = stream.held.get(n)
        if known is None:
            continue
        if known.guessed:
            _join(state, job, stream, known, min(n + length, stream.granted))
        if length != known.length:
            _cut(state, job, stream, known, length)
    for known in stream.held.values():
        if known.n < through < known.n + known.length:
            _cut(state, job, stream, known, through - known.n)


def _cut(state: CoreState, job: JobCore, stream: StreamState, run: HeldRun, length: int) -> None:
    """The run ends where the one says that was told, or where it is known to end."""
    failure = cutting.take_end(state, job, stream, run, min(length, run.length))
    if failure is not None:
        failing.fail_job(state, job, failure)


def _join(state: CoreState, job: JobCore, stream: StreamState, first: HeldRun, end: int) -> None:
    """Operations that were proven one by one, as nobody had said yet where runs begin, are one run."""
    first.guessed = False
    first.length = end - first.n
    assert job.grace is not None
    for n in [n for n in stream.held if first.n < n < end]:
        del stream.held[n]
        state.unhold(stream.connection.circuits)
        job.held_runs -= 1
        job.grants -= 1
        job.grace.unrecorded.pop((stream.stream, n), None)
    job.keep_to(stream, first)


def _prove(
    state: CoreState, now: float, job: JobCore, stream: StreamState, through: int, lengths: dict[int, int]
) -> None:
    """All operations below `through` were granted, as one participant knows: to every participant."""
    assert job.grace is not None
    while stream.granted < through:
        n = stream.granted
        if any(at < n < at + length for at, length in lengths.items()):
            break  # the rank was not told yet that its run was cut short
        length = min(lengths.get(n, 1), through - n)
        holders = {
            rank: UNNUMBERED
            for rank in stream.participants
            if not job.ranks[rank].stopped and stream.released[rank] <= n
        }
        run = HeldRun(n, length, holders, now, _granted_intent(stream, n, now), guessed=n not in lengths)
        never_asked = [r for r in holders if r not in job.awaited and stream.next_n[r] <= n]
        job.forget_open(stream, n, n + length)
        stream.granted = n + length
        for rank in stream.participants:
            stream.next_n[rank] = max(stream.next_n[rank], stream.granted)
        _hold(state, job, stream, run)
        job.grants += 1
        job.operations += length
        job.grace.unrecorded[stream.stream, n] = run
        job.grace.lacking.update(holders)
        if never_asked:
            failing.fail_job(state, job, _never_asked(never_asked[0], stream, n))
    if job.running:
        job.start_clock(now, stream.intents.get(stream.granted))


def _find_lacking(state: CoreState, job: JobCore, item: RankNews, session: Session) -> None:
    """Runs that the rank was granted and does not know: it has to be told of them, again or at last."""
    assert job.grace is not None
    rank = item.rank
    granted = {mark.stream: mark.granted for mark in session.marks}
    asked = {(arrival.stream, arrival.n) for arrival in open_in(item)}
    lacking = False
    for stream in job.streams.values():
        for run in stream.held.values():
            if rank not in run.holders or run.n < granted.get(stream.stream, 0):
                continue
            if run.holders[rank] <= session.last_grant:
                run.holders[rank] = UNNUMBERED
                lacking = True
            if (stream.stream, run.n) not in asked:
                failing.fail_job(state, job, _never_asked(rank, stream, run.n))
    job.grace.lacking.discard(rank)
    if lacking:
        job.grace.lacking.add(rank)


def _never_asked(rank: int, stream: StreamState, n: int) -> Failure:
    return Failure(
        Problem.DIVERGED,
        f"operation {n} of {stream.stream} was granted to all its participants, as one of them holds or has "
        f"finished it, but rank {rank} has never arrived at it",
        rank,
        {"connection": stream.connection.id, "n": n},
    )


def _hold(state: CoreState, job: JobCore, stream: StreamState, run: HeldRun) -> None:
    stream.held[run.n] = run
    job.keep_to(stream, run)
    state.hold(stream.connection.circuits)
    job.held_runs += 1


def _granted_intent(stream: StreamState, n: int, complete_at: float) -> Intent:
    intent = Intent(stream.stream, stream.connection, n, complete_at, state=IntentState.GRANTED)
    intent.complete_at = complete_at
    return intent


# --- when all were heard


def conclude(state: CoreState, job: JobCore) -> Failure | None:
    """All ranks were heard: number and store what was proven. A failure when they contradict each other."""
    grace = job.grace
    assert grace is not None
    job.grace = None
    if not job.running:
        return None
    runs = [(stream, run) for stream in job.streams.values() for run in stream.held.values()]
    try:
        ordered = _in_the_order_of_all(runs)
    except CycleError:
        return Failure(
            Problem.DIVERGED,
            f"after a restart of the controller the ranks of job {job.spec.name} name the runs that they "
            "hold in orders that contradict each other",
        )
    for stream, run in ordered:
        lacking = [rank for rank, no in run.holders.items() if no == UNNUMBERED]
        for rank in lacking:
            run.holders[rank] = _number(state, job, rank, stream, run)
        if (stream.stream, run.n) in grace.unrecorded:
            _record(state, job, stream, run)
    state.ledger.event("job.reasserted", job, proven=len(grace.unrecorded))
    return None


def _number(state: CoreState, job: JobCore, rank: int, stream: StreamState, run: HeldRun) -> int:
    mine = job.ranks[rank]
    mine.issued += 1
    grant = Grant(mine.issued, stream.stream, run.n, run.length)
    mine.unacknowledged.append((grant, state.ledger.open_batch))
    state.ledger.wake_on_commit(RankKey(job.spec.name, job.incarnation, rank))
    return mine.issued


def _record(state: CoreState, job: JobCore, stream: StreamState, run: HeldRun) -> None:
    state.ledger.add(
        RunGranted(
            job.spec.name,
            job.incarnation,
            stream.stream,
            run.n,
            run.length,
            tuple(run.holders.items()),
            tuple(circuit.id for circuit in stream.connection.circuits),
            run.intent.complete_at,
            run.granted_at,
        )
    )
    held_by = short(sorted(run.holders))
    state.ledger.event("intent.proven", job, **intent_data(run.intent), held_by=held_by)


def _in_the_order_of_all(runs: Iterable[tuple[StreamState, HeldRun]]) -> list[tuple[StreamState, HeldRun]]:
    """An order that agrees with every rank's grant numbers and every stream's. CycleError: there is none."""
    by_key = {(stream.stream, run.n): (stream, run) for stream, run in runs}
    graph: TopologicalSorter[tuple[Stream, int]] = TopologicalSorter(dict.fromkeys(by_key, ()))
    numbered: dict[int, list[tuple[int, tuple[Stream, int]]]] = {}
    for key, (_, run) in by_key.items():
        for rank, no in run.holders.items():
            if no != UNNUMBERED:
                numbered.setdefault(rank, []).append((no, key))
    chains = [[key for _, key in sorted(mine, key=lambda item: item[0])] for mine in numbered.values()]
    of_streams: dict[Stream, list[tuple[Stream, int]]] = {}
    for key in sorted(by_key, key=lambda key: key[1]):
        of_streams.setdefault(key[0], []).append(key)
    for chain in (*chains, *of_streams.values()):
        for before, after in pairwise(chain):
            graph.add(after, before)
    return [by_key[key] for key in graph.static_order()]
