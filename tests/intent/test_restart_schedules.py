"""Random schedules over conflicting rings with restarts in between, some of which lose the newest records.

Whatever is lost: no circuit is removed under a rank that holds it, every rank is told its grants without a
gap and in an order in which in-order devices cannot wait for each other, and all programs end. The rules that
make it so are taken out one at a time, and each loss is seen.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from opus_sdn.intent import recovery
from opus_sdn.intent.changes import GroupChecked, JobStarted, StepPlanned
from opus_sdn.intent.errors import CoreError
from opus_sdn.intent.grace import Grace
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import Arrival, RankNews, Stream
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.switches import Step
from tests.intent.bench import Bench
from tests.intent.restarts import Rank, restart
from tests.intent.worlds import group, make_fabric, make_spec, places

STREAMS = {Stream("c"): (0, 1), Stream("d"): (1, 2), Stream("e"): (2, 3), Stream("x"): (0, 1)}
OPERATIONS = 4
SEEDS = range(80)


class BrokenError(AssertionError):
    """A schedule that went wrong, with the rule that was broken."""


class Schedule:
    """Four ranks on hosts with one port each. Programs arrive ahead of what they have finished.

    Stream x shares the circuit of c, so that both may be held together and their order matters.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench(make_fabric(4, ports=1))
        self.bench.observe()
        groups = [group(str(s), *ranks, ordinal=int(str(s) == "x")) for s, ranks in STREAMS.items()]
        self.bench.job(make_spec(places(4), {"dp": 4}), *groups)
        self.bench.pump()
        self.ranks = [Rank(rank) for rank in range(4)]
        self.todo = {rank: self._program(rank) for rank in range(4)}
        self.heard_since = set(range(4))
        self.late: list[tuple[int, Arrival, int]] = []  # copies on their way, with the start they spoke to

    def _program(self, rank: int) -> list[tuple[Stream, int]]:
        mine = [stream for stream, members in STREAMS.items() if rank in members]
        order = random.Random(7)  # the same on all ranks: operations of shared streams in a common order
        whole = [(s, n) for n in range(OPERATIONS) for s in STREAMS]
        order.shuffle(whole)
        counts = dict.fromkeys(STREAMS, 0)
        program = []
        for stream, _ in whole:
            if stream in mine:
                program.append((stream, counts[stream]))
            counts[stream] += 1
        return program

    def run(self) -> None:
        """Until every program has ended."""
        restarts = 3
        for _ in range(4000):
            if not any(self.todo.values()) and not any(r.open or r.held for r in self.ranks):
                return
            if restarts and self.rng.random() < 0.02:
                restarts -= 1
                self._restart()
            self._act()
            self._check()
        raise BrokenError("not all programs end")

    def _act(self) -> None:
        rank = self.rng.choice(self.ranks)
        if rank.rank not in self.heard_since:
            if self.rng.random() < 0.3:
                rank.reassert(self.bench)
                self.heard_since.add(rank.rank)
            return
        match self.rng.choice(("arrive", "hear", "finish", "pump", "step", "late")):
            case "arrive" if self.todo[rank.rank] and len(rank.open) < 3:
                stream, n = self.todo[rank.rank].pop(0)
                self.late.append((rank.rank, Arrival(stream, n), self.bench.start_number))
                rank.arrive(self.bench, stream, n)
            case "hear":
                rank.hear(self.bench)
            case "finish" if rank.held and (done := self._finishable(rank)):
                stream, n = done[0]
                rank.release(self.bench, stream, n)
            case "pump":
                self.bench.pump()
            case "step" if self.bench.planned:
                self.bench.pump()
                step = self.bench.start()
                if step is not None:
                    self._removed(step)
                    self.bench.settle(step)
            case "late" if self.late:
                self._say_again(*self.late.pop(0))

    def _finishable(self, rank: Rank) -> list[tuple[Stream, int]]:
        """In-order devices: an operation runs when it is first on the queues of both its ranks."""
        if not rank.held:
            return []
        first = next(iter(rank.held))
        for other in STREAMS[first[0]]:
            peer = self.ranks[other]
            done = peer.released.get(first[0], 0) > first[1]
            if not done and (not peer.held or next(iter(peer.held)) != first):
                return []
        return [first]

    def _say_again(self, rank: int, arrival: Arrival, start: int) -> None:
        """A copy of an old request: it changes nothing, or is refused."""
        with suppress(CoreError):
            self.bench.engine.news(self.bench.now, "job", 1, start, [RankNews(rank, 0, (arrival,))])

    def _restart(self) -> None:
        lost = self.rng.choice((0, 0, 1, 2, 5))
        lost = min(lost, len(self.bench.batches) - self._durable())
        kept = self.bench.batches[: len(self.bench.batches) - lost]
        old = self.bench
        self.bench = restart(old, lost=lost)
        self.bench.batches = kept + self.bench.batches
        self.heard_since = set()

    def _durable(self) -> int:
        """Batches up to the last one that went to the disk: jobs, groups and plans do."""
        return max(
            i + 1
            for i, batch in enumerate(self.bench.batches)
            if any(isinstance(c, JobStarted | GroupChecked | StepPlanned) for c in batch)
        )

    def _removed(self, step: Step) -> None:
        for rank in self.ranks:
            for stream, n in rank.held:
                core = self.bench.engine.state.jobs["job"]
                for circuit in core.connection(stream.connection).circuits:
                    if circuit.switch == step.switch and set(circuit.cross_connects) & set(step.remove):
                        raise BrokenError(f"{circuit.id} is removed under rank {rank.rank} at {stream}#{n}")

    def _check(self) -> None:
        job = self.bench.engine.state.jobs["job"]
        if not job.running:
            raise BrokenError(f"the job has failed: {job.failure}")
        for stream, members in STREAMS.items():
            for a, b in itertools.combinations(members, 2):
                mine, theirs = (
                    [name for name in self.ranks[r].order if name.partition("#")[0] == str(stream)]
                    for r in (a, b)
                )
                if mine[: len(theirs)] != theirs[: len(mine)]:
                    raise BrokenError(f"{stream} is granted as {mine} and as {theirs}")


@pytest.mark.parametrize("seed", SEEDS)
def test_all_programs_end_whatever_a_restart_has_lost(seed: int) -> None:
    Schedule(seed).run()


def run_all() -> None:
    """Every schedule."""
    for seed in SEEDS:
        Schedule(seed).run()


# --- each rule, taken out

Plant = Callable[[pytest.MonkeyPatch], None]


def no_start_number(patch: pytest.MonkeyPatch) -> None:
    """Requests of older starts are taken, and from ranks that have not reasserted (C14 c)."""
    patch.setattr(recovery, "check_start", lambda *_: None)
    reassert = recovery.reassert

    def whoever_comes(state: CoreState, now: float, job: JobCore, item: RankNews) -> None:
        if item.session is not None:
            reassert(state, now, job, item)

    patch.setattr(recovery, "reassert", whoever_comes)


def only_the_prover_holds(patch: pytest.MonkeyPatch) -> None:
    """One participant's run proves nothing for the others (C14 a, b)."""
    prove = recovery._prove

    def alone(state, now, job, stream, through, lengths):  # type: ignore[no-untyped-def]
        before = set(stream.held)
        prove(state, now, job, stream, through, lengths)
        for n in set(stream.held) - before:
            run = stream.held[n]
            for rank in list(run.holders)[1:]:
                del run.holders[rank]

    patch.setattr(recovery, "_prove", alone)


def no_grace(patch: pytest.MonkeyPatch) -> None:
    """Circuits are removed although a rank may hold what nobody knows (C14 d)."""
    patch.setattr(CoreState, "await_ranks", lambda self, job: None)
    patch.setattr(Grace, "why_hold_back", lambda self, ranks: None)


def marks_lost(patch: pytest.MonkeyPatch) -> None:
    """The next start does not know what was granted and released (C12)."""
    patch.setattr(recovery, "_restore_marks", lambda job, known: None)


def any_order(patch: pytest.MonkeyPatch) -> None:
    """Grants that a power cut took are given again in another order than their peers had them (C6)."""
    ordered = recovery._in_the_order_of_all
    patch.setattr(recovery, "_in_the_order_of_all", lambda runs: list(reversed(ordered(runs))))


def locks_not_restored(patch: pytest.MonkeyPatch) -> None:
    """The next start knows the marks and not who holds what (C13: rows that are not all there)."""
    patch.setattr(recovery, "_restore_run", lambda state, job, known: None)


def sessions_release_nothing(patch: pytest.MonkeyPatch) -> None:
    """What finished while the controller was away stays locked."""
    patch.setattr(recovery, "repeat", lambda *_: None)


RULES: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        no_start_number,
        only_the_prover_holds,
        no_grace,
        marks_lost,
        any_order,
        locks_not_restored,
        sessions_release_nothing,
    )
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_taken_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[name](monkeypatch)
    with pytest.raises((BrokenError, CoreError, AssertionError, LookupError)):
        run_all()
