"""Runs of several operations: whom they keep from other grants, and how one ends when a member leaves it.

Operations of a run after its first one have no grant of their own, so nothing orders them against other
grants on devices that execute in order. While such a run is held its participants get no other grant.

A member whose program goes elsewhere *cuts* the run. All members are asked how far their programs have called
its operations; the run ends after the furthest, and everybody goes on from there. Whoever is behind may still
call what is missing. If its host is blocked instead, on something that the run stands in the way of, nothing
can help: what the others have called is on their devices, and waits there for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opus_sdn.intent.changes import RunCut
from opus_sdn.intent.errors import Failure, Problem
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import Cut, CutRequest, RankKey
from opus_sdn.intent.moves import intent_data
from opus_sdn.intent.order import conflict
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import UNNUMBERED, Cutting, HeldRun, Intent, StreamState, short


def why_held_back(job: JobCore, intent: Intent) -> Because | None:
    """The run of several operations because of which this intent is not granted; None when nothing is."""
    for rank in intent.connection.ranks:
        stream, run = job.kept.get(rank, (None, None))
        if stream is None or run is None or intent.past is run:
            continue
        last = run.n + run.length - 1
        detail = f"rank {rank} holds operations {run.n} to {last} of {stream.stream} as one run"
        data = {"rank": rank, "connection": stream.connection.id, "n": run.n, "length": run.length}
        return Because(Reason.RUN_HELD, detail, data)
    return None


# --- cutting


def take_cut(state: CoreState, job: JobCore, rank: int, cut: Cut) -> Failure | None:
    """A rank leaves a run, or says how far it is in one. Late copies and repeats change nothing."""
    stream = job.streams.get(cut.stream)
    run = stream.held.get(cut.n) if stream is not None else None
    if stream is None or run is None or rank not in run.holders:
        return None
    if cut.length is not None:
        failure = take_end(state, job, stream, run, cut.length)
        if failure is not None:
            return failure
    elif run.cutting is None:
        _begin(state, job, stream, run, rank, cut)
    said = run.cutting
    assert said is not None
    said.issued[rank] = max(said.issued.get(rank, 0), min(cut.issued, run.length))
    if cut.length is not None and cut.length == said.length:
        said.told.add(rank)
    if said.length is None:
        _decide(state, job, stream, run, said)
    state.touch(job)  # somebody may have caught up, or be blocked
    return None


def _begin(state: CoreState, job: JobCore, stream: StreamState, run: HeldRun, rank: int, cut: Cut) -> None:
    """From now on the run is being cut: all who hold it are asked."""
    _mark(job, stream, run)
    job.runs_cut += 1
    state.ledger.event(
        "run.cutting",
        job,
        connection=stream.connection.id,
        n=run.n,
        length=run.length,
        rank=rank,
        issued=cut.issued,
    )
    _wake(state, job, run)


def _mark(job: JobCore, stream: StreamState, run: HeldRun) -> Cutting:
    run.cutting = Cutting()
    job.cuts[stream.stream, run.n] = run
    return run.cutting


def _decide(state: CoreState, job: JobCore, stream: StreamState, run: HeldRun, said: Cutting) -> None:
    """Once all holders have said how far they are, the run ends after the furthest."""
    if not all(rank in said.issued for rank in run.holders):
        return
    end = run.n + run.length
    whole = any(stream.released[rank] >= end or stream.next_n[rank] > end for rank in stream.participants)
    said.length = run.length if whole else max(said.issued.values())
    if said.length < run.length:
        _shorten(job, stream, run, said.length)
    _record_end(state, job, stream, run, said)


def take_end(
    state: CoreState, job: JobCore, stream: StreamState, run: HeldRun, length: int
) -> Failure | None:
    """A rank knows, perhaps from an earlier start, that the run was cut to [n, n + length).

    A failure when ranks contradict each other about it.
    """
    said = run.cutting or _mark(job, stream, run)
    if length < run.length:
        end = run.n + run.length
        beyond = [rank for rank in stream.participants if stream.next_n[rank] > end]
        if beyond:
            return Failure(
                Problem.DIVERGED,
                f"the run from operation {run.n} of {stream.stream} was cut to {length} operations, but "
                f"ranks {short(beyond)} have gone on behind its old end, {end}",
                beyond[0],
                {"connection": stream.connection.id, "n": run.n, "length": length},
            )
        _shorten(job, stream, run, length)
        said.length = length
        _record_end(state, job, stream, run, said)
    said.length = run.length
    return None


def _shorten(job: JobCore, stream: StreamState, run: HeldRun, length: int) -> None:
    job.operations -= run.length - length
    stream.shorten(run, length)
    if length == 1:
        job.let_go_of(stream, run)


def _record_end(state: CoreState, job: JobCore, stream: StreamState, run: HeldRun, said: Cutting) -> None:
    """Whoever holds the run is told where it ends, once that is stored."""
    _wake(state, job, run)
    if job.grace is not None and (stream.stream, run.n) in job.grace.unrecorded:
        return  # the run is about to be recorded, as long as it is now
    state.ledger.add(RunCut(job.spec.name, job.incarnation, stream.stream, run.n, run.length))
    state.ledger.event(
        "run.cut",
        job,
        connection=stream.connection.id,
        n=run.n,
        length=run.length,
        issued={str(rank): issued for rank, issued in sorted(said.issued.items())},
    )


def _wake(state: CoreState, job: JobCore, run: HeldRun) -> None:
    """Whoever holds the run has something to hear, once the open batch is stored."""
    assert run.cutting is not None
    run.cutting.batch = state.ledger.open_batch
    for rank in run.holders:
        state.ledger.wake_on_commit(RankKey(job.spec.name, job.incarnation, rank))


def look_again(state: CoreState, job: JobCore, stream: StreamState, run: HeldRun) -> None:
    """A rank has let go of a run that others hold: it is not asked any more."""
    said = run.cutting
    if said is not None and said.length is None:
        _decide(state, job, stream, run, said)


def requests_for(state: CoreState, job: JobCore, rank: int) -> tuple[CutRequest, ...]:
    """What this rank is asked, or told, about runs that it holds; again until it has answered."""
    found = []
    for (stream, n), run in job.cuts.items():
        cutting, no = run.cutting, run.holders.get(rank)
        if cutting is None or no is None or no == UNNUMBERED or cutting.batch > state.ledger.committed:
            continue
        if any(g.no == no and batch > state.ledger.committed for g, batch in job.ranks[rank].unacknowledged):
            continue
        if rank not in cutting.told and (cutting.length is not None or rank not in cutting.issued):
            found.append(CutRequest(stream, n, cutting.length))
    return tuple(found)


# --- who is behind a cut


@dataclass(frozen=True, slots=True)
class _OpenCut:
    """A cut run that some of its holders have not called all of yet."""

    stream: StreamState
    run: HeldRun
    issued: Mapping[int, int]
    behind: frozenset[int]

    def is_against(self, intent: Intent) -> bool:
        """Whether the intent cannot be granted before the run is over.

        It needs the run's ports; or a member takes part that has called all of the run: on a device that
        executes in order, those operations are before it there.
        """
        ahead = any(rank in self.run.holders and rank not in self.behind for rank in intent.connection.ranks)
        return ahead or conflict(intent.connection.circuits, self.stream.connection.circuits)

    def others(self, intent: Intent) -> list[int]:
        """Participants of the intent that may call more of the run before they need the intent."""
        return [rank for rank in intent.connection.ranks if rank in self.behind and not _blocks(intent, rank)]


def _open_cuts(job: JobCore) -> list[_OpenCut]:
    """One operation was called by everybody who has arrived at it: of such a run nobody is behind."""
    found = []
    for (key, _), run in job.cuts.items():
        said = run.cutting
        if said is None or said.length is None or run.length == 1:
            continue
        behind = frozenset(rank for rank in run.holders if said.issued.get(rank, run.length) < run.length)
        if behind:
            found.append(_OpenCut(job.streams[key], run, said.issued, behind))
    return found


def look_behind(job: JobCore) -> Failure | None:
    """Let intents go past a cut run that waits for them; a failure when they wait for the run as well.

    Whatever waits for a run whose holders are blocked keeps nothing for itself meanwhile: it could be in the
    way of what they wait for.
    """
    for intent in job.complete.values():
        intent.past, intent.held_up = None, False
    cuts = [cut for cut in _open_cuts(job) if any(_blocked_in(job, rank) for rank in cut.behind)]
    for cut in cuts:
        for intent in job.complete.values():
            others = cut.others(intent)
            if cut.is_against(intent):
                intent.held_up = True
            elif not others and any(rank in cut.behind for rank in intent.connection.ranks):
                intent.past = cut.run
    return _stuck(job, cuts) if cuts else None


def _blocks(intent: Intent, rank: int) -> bool:
    arrived = intent.arrived.get(rank)
    return arrived is not None and arrived.arrival.blocking


def _blocked_in(job: JobCore, rank: int) -> list[Intent]:
    """What the rank's host waits for and what is not granted yet."""
    return [intent for intent in job.ranks[rank].open.values() if _blocks(intent, rank)]


def _stuck(job: JobCore, cuts: list[_OpenCut]) -> Failure | None:
    """A member behind a cut that can never go on: what its host waits for needs, in the end, the run.

    Whoever is not known to be blocked may still do anything.
    """
    going: set[int] = {rank for rank in range(len(job.ranks)) if not _blocked_in(job, rank)}
    granted: set[str] = set()
    while True:
        waits = [cut for cut in cuts if not cut.behind <= going]
        more = {
            key
            for key, intent in _open(job)
            if key not in granted and _may_go(job, intent, waits, going, granted)
        }
        granted |= more
        free = {
            rank
            for rank in range(len(job.ranks))
            if rank not in going and all(intent.key in granted for intent in _blocked_in(job, rank))
        }
        going |= free
        if not more and not free:
            return _deviation(job, waits[0], going) if waits else None


def _open(job: JobCore) -> Iterator[tuple[str, Intent]]:
    return ((intent.key, intent) for intent in job.open.values())


def _may_go(job: JobCore, intent: Intent, waits: list[_OpenCut], going: set[int], granted: set[str]) -> bool:
    """Whether an intent can be granted some time, as far as is known: its missing members may come."""
    stream = job.streams[intent.stream]
    if intent.n > stream.granted and stream.intents[intent.n - 1].key not in granted:
        return False
    if not going.issuperset(stream.missing(intent.n)):
        return False
    return all(not cut.is_against(intent) and going.issuperset(cut.others(intent)) for cut in waits)


def _deviation(job: JobCore, cut: _OpenCut, going: set[int]) -> Failure:
    rank = min(rank for rank in cut.behind if rank not in going)
    intent = _blocked_in(job, rank)[0]
    stream, run = cut.stream, cut.run
    ahead = sorted(r for r in stream.participants if r not in cut.behind)
    return Failure(
        Problem.RUN_DEVIATION,
        f"rank {rank} waits in operation {intent.n} of {intent.stream} after {cut.issued[rank]} operations "
        f"of the run [{run.n}, {run.n + run.length}) of {stream.stream}; ranks {short(ahead)} have issued "
        f"{run.length}, which end only when rank {rank} issues them too, and until then the run is in the "
        "way of what it waits for; let all members leave the run at the same operation, or train without a "
        "phase table",
        rank,
        {
            **intent_data(intent),
            "run": {"connection": stream.connection.id, "n": run.n, "length": run.length},
            "issued": cut.issued[rank],
            "ahead": ahead,
        },
    )
