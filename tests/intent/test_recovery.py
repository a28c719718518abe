"""What a restarted controller makes of running jobs: C12 and C14 of the protocol by name, and their edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from opus_sdn.intent.changes import JobLetGo, JobState, RankLeft, RunGranted, StepMoved, StepState
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Arrival, ArrivalState, CoreSettings, Grant, Session, Stream, StreamMark
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.recovery import KnownJob, KnownStep
from opus_sdn.intent.switches import FailureKind
from tests.intent.bench import Bench
from tests.intent.restarts import Rank, known_jobs, restart
from tests.intent.worlds import group, make_fabric, make_spec, places

C, D, E = Stream("c"), Stream("d"), Stream("e")


class World:
    """Rings C of ranks 0 and 1, D of 1 and 2, which meet at rank 1's one port, and E of 3 and 4, apart."""

    def __init__(self) -> None:
        self.bench = Bench(make_fabric(5, ports=1))
        self.bench.observe()
        self.bench.job(make_spec(places(5), {"dp": 5}), group("c", 0, 1), group("d", 1, 2), group("e", 3, 4))
        self.ranks = [Rank(rank) for rank in range(5)]
        self.bench.play()

    def arrive(self, stream: Stream, n: int, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank].arrive(self.bench, stream, n)

    def hear(self, *ranks: int) -> None:
        self.bench.play()
        for rank in ranks:
            self.ranks[rank].hear(self.bench)

    def release(self, stream: Stream, n: int, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank].release(self.bench, stream, n)
        self.bench.play()

    def run(self, stream: Stream, n: int, *ranks: int) -> None:
        """One operation from its arrival to its release."""
        self.arrive(stream, n, *ranks)
        self.hear(*ranks)
        self.release(stream, n, *ranks)

    def restart(self, lost: int = 0, intact: bool = False, settle: bool = True) -> None:
        self.bench = restart(self.bench, lost=lost, intact=intact, settle=settle)

    def reassert(self, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank].reassert(self.bench)
        self.bench.play()

    def lose(self, *kinds: type) -> int:
        """How many of the newest batches go, so that the oldest change of this kind is among them."""
        for at, batch in enumerate(self.bench.batches):
            if any(isinstance(change, kinds) for change in batch):
                return len(self.bench.batches) - at
        raise AssertionError(f"no {kinds} among what was written")

    def status(self, rank: int, stream: Stream, n: int) -> tuple[ArrivalState, Reason | None]:
        """State and reason of an arrival as the rank is told."""
        (status,) = self.bench.answer(rank, [Arrival(stream, n)]).arrivals
        return status.state, status.because.reason if status.because else None

    def problem(self, rank: int = 0) -> Problem:
        """The cause that the job has ended with."""
        return self.bench.failure(rank).problem


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("intact", [False, True])
def test_a_job_goes_on_after_a_restart_where_it_was(world: World, intact: bool) -> None:
    world.run(C, 0, 0, 1)
    world.arrive(C, 1, 0, 1)
    world.hear(0, 1)
    steps = len(world.bench.steps)
    world.restart(intact=intact)
    assert world.bench.events("job.recovered")[0].data == {"held": 1, "awaited": 5, "intact": intact}
    world.reassert(0, 1, 2, 3, 4)
    assert world.bench.events("job.reasserted")[0].data == {"proven": 0}
    assert [world.ranks[r].order for r in (0, 1)] == [["c#0", "c#1"]] * 2
    world.release(C, 1, 0, 1)
    world.run(C, 2, 0, 1)
    assert world.ranks[0].last_grant == 3
    assert (steps, len(world.bench.steps)) == (1, 0), "the circuit was up all the time"
    world.run(D, 0, 1, 2)
    assert len(world.bench.steps) == 1


def test_a_grant_whose_answer_was_lost_is_given_again_under_its_number(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(1)
    world.restart()
    world.reassert(*range(5))
    world.hear(0)
    assert [grant.no for grant in world.ranks[0].held.values()] == [1]
    world.release(C, 0, 0, 1)
    assert not world.bench.engine.state.live


def test_c14a_a_rank_that_lost_its_grant_counts_as_holder_when_a_peer_proves_the_run(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(1)
    world.restart(lost=world.lose(RunGranted))
    world.reassert(0, 2, 3, 4)
    world.arrive(D, 0, 2)
    world.reassert(1)
    world.arrive(D, 0, 1)
    world.bench.play()
    assert world.status(2, D, 0) == (ArrivalState.OPEN, Reason.LOCKED)
    world.ranks[1].release(world.bench, C, 0)
    world.bench.play()
    assert world.status(2, D, 0) == (ArrivalState.OPEN, Reason.LOCKED), "rank 0 still holds it"
    world.hear(0)
    world.release(C, 0, 0)
    world.hear(1, 2)
    assert world.ranks[2].order == ["d#0"]


def test_c14b_a_rank_that_lost_its_grant_is_told_of_it_when_a_peer_proves_the_run(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(1)
    world.restart(lost=world.lose(RunGranted))
    world.reassert(0)
    assert world.status(0, C, 0) == (ArrivalState.OPEN, Reason.MEMBERS_MISSING)
    world.reassert(1)
    assert world.status(0, C, 0) == (ArrivalState.OPEN, Reason.GRACE), "other peers may prove earlier ones"
    world.reassert(2)
    world.arrive(C, 1, 0, 1)
    world.bench.play()
    assert world.status(1, C, 1) == (ArrivalState.OPEN, Reason.GRACE), "rank 0 must hear of C#0 first"
    world.reassert(3, 4)
    world.hear(0)
    assert world.ranks[0].order == ["c#0", "c#1"]
    proven = [change for change in world.bench.changes if isinstance(change, RunGranted)]
    assert [(change.stream, change.n, dict(change.locks)) for change in proven] == [
        (C, 0, {1: 1, 0: 1}),
        (C, 1, {1: 2, 0: 2}),
    ]


def test_c14b_what_a_peer_has_finished_proves_the_run_as_well(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(1)
    world.release(C, 0, 1)
    world.restart(lost=world.lose(RunGranted))
    world.reassert(*range(5))
    world.hear(0)
    assert world.ranks[0].order == ["c#0"]
    world.release(C, 0, 0)
    world.run(C, 1, 0, 1)
    assert world.ranks[1].order == ["c#0", "c#1"]


def test_c14c_nothing_is_taken_from_a_rank_before_it_has_reasserted(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    old = world.bench.start_number
    world.restart(lost=world.lose(RunGranted))
    late = [world.ranks[0].news(), world.ranks[1].news()]
    for seen in (old, 0):
        with pytest.raises(CoreError) as refused:
            world.bench.engine.news(world.bench.now, "job", 1, seen, late)
        assert refused.value.problem is Problem.STALE_START
        assert refused.value.data["start"] == old + 1
    assert not world.bench.engine.state.jobs["job"].open
    world.reassert(*range(5))
    world.release(C, 0, 0, 1)
    assert not world.bench.engine.state.live, "it was granted once"


def test_c14d_nothing_is_removed_until_all_ranks_have_said_what_they_hold(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0)
    world.restart(lost=world.lose(RunGranted))
    world.reassert(1, 2, 3, 4)
    world.arrive(D, 0, 1, 2)
    world.bench.play()
    assert world.status(2, D, 0)[1] is Reason.GRACE
    assert not world.bench.steps, "rank 0, not heard yet, transmits over C"
    world.reassert(0)
    assert world.status(2, D, 0)[1] is Reason.LOCKED
    world.hear(1)
    world.release(C, 0, 0, 1)
    world.hear(2)
    assert world.ranks[2].order == ["d#0"]


def test_a_step_planned_before_is_dropped_when_its_removal_has_come_under_grace(world: World) -> None:
    world.run(C, 0, 0, 1)
    world.arrive(D, 0, 1, 2)
    (step,) = world.bench.pump()
    job = world.bench.engine.state.jobs["job"]
    world.bench.engine.state.graced.update(dict.fromkeys(job.terminals, job))
    assert world.bench.engine.start_step(world.bench.now, step) is None
    world.bench.pump()
    assert "have not all said" in str(world.bench.events("step.dropped")[0].data["detail"])


def test_grants_that_need_no_removal_go_while_others_are_awaited(world: World) -> None:
    world.run(E, 0, 3, 4)
    world.run(C, 0, 0, 1)
    world.restart()
    world.reassert(3, 4)
    world.run(E, 1, 3, 4)
    assert world.ranks[3].order == ["e#0", "e#1"]
    world.reassert(0, 1)
    world.arrive(C, 1, 0, 1)
    world.bench.play()
    assert world.status(0, C, 1)[1] is Reason.GRACE, "rank 2 may hold an earlier run with rank 1"
    world.reassert(2)
    world.hear(0, 1)
    assert world.ranks[0].order == ["c#0", "c#1"]


def test_a_rank_that_lost_several_grants_gets_them_in_the_order_of_those_who_prove_them() -> None:
    """Ranks 0 and 1 share X and Y; rank 1 was granted Y first, then X, and holds both."""
    bench = Bench(make_fabric(2, ports=4))
    bench.observe()
    bench.job(make_spec(places(2), {"dp": 2}), group("x", 0, 1), group("y", 0, 1, ordinal=1))
    x, y, ranks = Stream("x"), Stream("y"), [Rank(0), Rank(1)]
    for rank in ranks:
        rank.arrive(bench, y, 0)
    bench.play()
    for rank in ranks:
        rank.arrive(bench, x, 0)
    bench.play()
    ranks[1].hear(bench)
    assert ranks[1].order == ["y#0", "x#0"]
    lost = next(i for i, b in enumerate(bench.batches) if any(isinstance(c, RunGranted) for c in b))
    bench = restart(bench, lost=len(bench.batches) - lost)
    for rank in ranks:
        rank.reassert(bench)
    bench.play()
    ranks[0].hear(bench)
    assert ranks[0].order == ["y#0", "x#0"]


def test_ranks_that_name_their_runs_in_contradictory_orders_end_the_job() -> None:
    bench = Bench(make_fabric(2, ports=4))
    bench.observe()
    bench.job(make_spec(places(2), {"dp": 2}), group("x", 0, 1), group("y", 0, 1, ordinal=1))
    bench.pump()
    x, y = Stream("x"), Stream("y")
    bench = restart(bench)
    for rank, (first, second) in enumerate([(x, y), (y, x)]):
        held = (Grant(1, first, 0, 1), Grant(2, second, 0, 1))
        session = Session(2, held, (), (StreamMark(x, 1, 0), StreamMark(y, 1, 0)))
        bench.news(rank, session=session, last_grant=2)
    assert bench.failure(0).problem is Problem.DIVERGED
    assert "contradict each other" in bench.failure(1).detail


def test_c12_marks_outlive_a_restart_and_late_copies_are_only_answered(world: World) -> None:
    world.run(C, 0, 0, 1)
    world.restart()
    world.reassert(*range(5))
    for rank in (0, 1):
        world.bench.news(rank, arrivals=[Arrival(C, 0)], last_grant=1)
    world.bench.play()
    assert world.status(0, C, 0) == (ArrivalState.DONE, None)
    assert not world.bench.engine.state.live
    world.run(D, 0, 1, 2)


def test_an_arrival_that_no_answer_had_confirmed_comes_beside_the_session(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(1)
    world.restart()
    world.bench.news(0, session=Session(), arrivals=[Arrival(C, 0)])
    world.reassert(1, 2, 3, 4)
    world.hear(0)
    assert world.ranks[0].order == ["c#0"]


def test_a_session_that_comes_twice_is_taken_once(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    world.restart()
    session = world.ranks[0].session()
    world.reassert(*range(5))
    world.release(C, 0, 0, 1)
    world.bench.news(0, session=session, last_grant=1)
    world.bench.play()
    assert not world.bench.engine.state.live
    world.ranks[0].arrive(world.bench, C, 1)
    world.ranks[0].reassert(world.bench)
    assert list(world.ranks[0].open) == [(C, 1)]


def test_a_session_older_than_what_the_store_knows_takes_nothing_back(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    older = world.ranks[0].session()
    world.release(C, 0, 0, 1)
    world.restart()
    world.bench.news(0, session=older, last_grant=1)
    world.reassert(1, 2, 3, 4)
    assert not world.bench.engine.state.live
    world.run(C, 1, 0, 1)


def test_what_finished_while_the_controller_was_away_is_released_by_the_session(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    for rank in (0, 1):
        world.ranks[rank].finish(C, 0)
    world.restart()
    world.reassert(*range(5))
    assert not world.bench.engine.state.live
    world.run(D, 0, 1, 2)


def test_a_rank_that_never_comes_back_is_lost_after_its_lease_and_its_ports_are_kept_so_long(
    world: World,
) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    world.restart(lost=world.lose(RunGranted))
    world.reassert(1, 2, 3, 4)
    world.bench.now += 20
    for rank in (1, 2, 3, 4):
        world.bench.news(rank, last_grant=world.ranks[rank].last_grant)
    world.bench.engine.abort(world.bench.now, "job", 1, 2, "enough")
    for rank in (1, 2, 3, 4):
        world.bench.news(rank, leave=True, last_grant=world.ranks[rank].last_grant)
    world.bench.play()
    other = make_spec(places(1), {"dp": 1}, name="other")
    with pytest.raises(CoreError, match="whose ports job job uses"):
        world.bench.engine.put_job(world.bench.now, other)
    world.bench.now += 11
    world.bench.engine.tick(world.bench.now)
    world.bench.play()
    assert not world.bench.engine.state.active
    assert world.bench.engine.put_job(world.bench.now, other) == (1, True)


def test_a_rank_silent_for_a_lease_after_the_restart_is_the_cause_for_all(world: World) -> None:
    world.restart()
    world.reassert(0, 1, 2, 3)
    world.bench.now += 29
    for rank in range(4):
        world.bench.news(rank)
    world.bench.engine.tick(world.bench.now)
    assert world.bench.engine.state.jobs["job"].running
    world.bench.now += 2
    world.bench.engine.tick(world.bench.now)
    failure = world.bench.failure(0)
    assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 4)


def test_leases_begin_when_ranks_can_be_heard(world: World) -> None:
    world.restart()
    world.bench.now += 100  # a switch was away all the time
    world.bench.engine.begin(world.bench.now)
    world.bench.engine.tick(world.bench.now)
    world.reassert(*range(5))
    assert world.bench.engine.state.jobs["job"].running


def test_a_rank_of_a_job_that_fails_under_grace_still_says_what_it_holds(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    world.restart(lost=world.lose(RunGranted))
    world.bench.engine.abort(world.bench.now, "job", 1, None, "enough")
    world.reassert(0)
    assert world.problem(0) is Problem.ABORTED
    world.reassert(1, 2, 3, 4)
    assert world.bench.engine.state.live, "what rank 0 said that it holds"
    assert not world.bench.engine.state.graced
    for rank in range(5):
        world.bench.news(rank, leave=True, session=world.ranks[rank].session())
    world.bench.play()
    assert not world.bench.engine.state.live
    assert not world.bench.engine.state.graced
    assert not world.bench.engine.state.active


def test_a_new_incarnation_ends_the_grace_of_the_one_before(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    world.restart()
    world.bench.job(make_spec(places(5), {"dp": 5}, nonce="second"), group("d", 1, 2))
    assert not world.bench.engine.state.graced
    world.bench.play()
    for rank in (1, 2):
        world.bench.news(rank, arrivals=[Arrival(D, 0)], incarnation=2)
    world.bench.play()
    assert world.bench.answer(1, incarnation=2).grants


def test_a_failed_job_keeps_its_locks_and_cause_over_a_restart(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    world.bench.engine.abort(world.bench.now, "job", 1, 0, "enough")
    world.bench.play()
    world.restart(intact=True)
    assert world.bench.engine.state.live
    assert not world.bench.engine.state.graced
    world.reassert(0)
    told = world.bench.failure(0)
    assert (told.problem, told.detail, told.rank) == (Problem.ABORTED, "rank 0 aborted the job: enough", 0)
    for rank in range(5):
        world.bench.news(rank, leave=True)
    world.bench.play()
    assert not world.bench.engine.state.active
    assert [type(change) for change in world.bench.changes if isinstance(change, JobLetGo)] == [JobLetGo]


def test_the_ports_of_a_failed_job_are_kept_until_all_its_ranks_were_heard_or_silent_for_a_lease(
    world: World,
) -> None:
    world.bench.engine.abort(world.bench.now, "job", 1, 0, "enough")
    world.bench.play()
    assert world.bench.engine.state.active == {}, "before the restart it was known that nobody held anything"
    before = [batch for batch in world.bench.batches if not any(isinstance(c, JobLetGo) for c in batch)]
    (known,) = known_jobs([change for batch in before for change in batch])
    assert known.failure is None, "its end was in the same batch, which is lost here"
    failed = replace(known, failure=Failure(Problem.ABORTED, "enough"))
    bench = Bench(world.bench.engine.state.fabric, start=8)
    bench.engine.recover(bench.now, [failed], [])
    assert bench.engine.state.graced
    bench.now += 31
    bench.engine.tick(bench.now)
    assert not bench.engine.state.graced
    assert not bench.engine.state.active


def test_a_rank_of_a_failed_job_hears_its_cause_whatever_it_was_granted_before(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    world.release(C, 0, 0, 1)
    world.arrive(E, 0, 3, 4)
    world.hear(3, 4)
    world.bench.engine.report_dead(world.bench.now, "job", 1, [1], "exit status 9")
    world.bench.play()
    new = restart(world.bench)
    for rank in (0, 3):
        world.ranks[rank].reassert(new)
        assert new.failure(rank).detail == "rank 1 died: exit status 9"


def test_a_rank_that_had_left_is_not_awaited(world: World) -> None:
    (known,) = known_jobs(world.bench.changes)
    bench = Bench(world.bench.engine.state.fabric, start=8)
    left = KnownJob(known.spec, 1, 1.0, known.groups, left=(4,))
    assert bench.engine.recover(bench.now, [left], []) == ()
    assert not bench.engine.state.jobs["job"].in_doubt or 4 not in bench.engine.state.jobs["job"].awaited
    for rank in range(4):
        bench.news(rank, session=Session())
    bench.play()
    assert bench.events("job.reasserted")
    bench.news(4, leave=True)  # its farewell, once more


def test_a_farewell_is_remembered_on_disk(world: World) -> None:
    world.bench.news(4, leave=True)
    world.bench.play()
    assert RankLeft("job", 1, 4) in world.bench.durable
    new = restart(world.bench)
    for rank in range(4):
        new.news(rank, session=Session())
    new.play()
    assert new.events("job.reasserted"), "nobody else is awaited"


def test_a_job_that_does_not_fit_the_fabric_any_more_is_not_taken_over(world: World) -> None:
    (known,) = known_jobs(world.bench.changes)
    small = Bench(make_fabric(4, ports=1), start=8)
    assert small.engine.recover(small.now, [known], []) == (known,)
    assert not small.engine.state.jobs


def test_the_topology_counts_for_the_dimension_that_used_it_last() -> None:
    bench = Bench(make_fabric(2))
    bench.observe()
    spec = make_spec(places(2), {"pp": 1, "dp": 2}, initial_topology="1")
    bench.job(spec, group("dp", 0, 1))
    bench.play()
    before = bench.engine.state.jobs["job"].topology
    bench = restart(bench)
    assert bench.engine.state.jobs["job"].topology == before
    (known,) = known_jobs([change for batch in bench.batches for change in batch]) or [None]
    assert known is None


def test_stored_owners_of_circuits_are_believed(world: World) -> None:
    world.run(C, 0, 0, 1)
    (known,) = known_jobs(world.bench.changes)
    (circuit,) = world.bench.engine.state.jobs["job"].connections["c"].circuits
    bench = Bench(world.bench.engine.state.fabric, start=8)
    owned = KnownJob(known.spec, 1, 1.0, known.groups, known.streams, owners=((circuit.id, 4),))
    bench.engine.recover(bench.now, [owned], [])
    assert bench.engine.state.jobs["job"].owners == {circuit.id: 4}


# --- clients of an earlier version -----------------------------------------------------------------------


def test_a_client_without_sessions_goes_on_when_the_store_is_known_to_be_whole(world: World) -> None:
    world.run(C, 0, 0, 1)
    world.arrive(C, 1, 0, 1)
    world.hear(1)
    world.restart(intact=True)
    for rank in world.ranks:
        world.bench.engine.news(world.bench.now, "job", 1, world.bench.start_number, [rank.news()])
    world.hear(0)
    assert [world.ranks[r].order for r in (0, 1)] == [["c#0", "c#1"]] * 2
    world.release(C, 1, 0, 1)
    world.run(D, 0, 1, 2)


def test_a_client_without_sessions_ends_its_job_when_the_store_may_have_lost_something(world: World) -> None:
    world.restart()
    world.bench.engine.news(world.bench.now, "job", 1, world.bench.start_number, [world.ranks[3].news()])
    failure = world.bench.failure(0)
    assert (failure.problem, failure.rank) == (Problem.CONTROLLER_RESTARTED, 3)


def test_in_a_whole_store_nothing_is_held_back_and_idle_circuits_may_go(world: World) -> None:
    world.run(C, 0, 0, 1)
    world.restart(intact=True)
    world.reassert(1, 2)
    world.run(D, 0, 1, 2)
    assert world.ranks[2].order == ["d#0"]


# --- sessions that cannot be ------------------------------------------------------------------------------

HELD, MARK = Grant(1, C, 0, 1), StreamMark(C, 1, 0)


@pytest.mark.parametrize(
    ("session", "field"),
    [
        (Session(1, (HELD,), (), ()), "session.held"),
        (Session(1, (), (), (MARK,)), "session.marks"),
        (Session(1, (Grant(1, C, 1, 1),), (), (StreamMark(C, 2, 0),)), "session.held"),
        (Session(0, (HELD,), (), (MARK,)), "session.last_grant"),
        (Session(1, (HELD,), (Arrival(C, 2),), (MARK,)), "session.open"),
        (Session(1, (HELD,), (), (MARK, MARK)), "session.marks"),
        (Session(1, (HELD, Grant(1, E, 0, 1)), (), (MARK, StreamMark(E, 1, 0))), "rank"),
        (Session(0, (), (), (StreamMark(C, 70_000, 70_000),)), "limit"),
    ],
)
def test_a_session_that_contradicts_itself_is_refused_and_nothing_is_taken(
    world: World, session: Session, field: str
) -> None:
    world.restart()
    with pytest.raises(CoreError) as refused:
        world.bench.news(0, session=session, last_grant=session.last_grant)
    assert refused.value.data.get("field", field) == field
    assert 0 in world.bench.engine.state.jobs["job"].awaited


def test_two_runs_under_one_number_are_refused(world: World) -> None:
    world.restart()
    marks = (StreamMark(C, 1, 0), StreamMark(D, 1, 0))
    session = Session(1, (Grant(1, C, 0, 1), Grant(1, D, 0, 1)), (), marks)
    with pytest.raises(CoreError, match="under one grant number"):
        world.bench.news(1, session=session, last_grant=1)


def test_a_rank_that_has_been_heard_proves_nothing_more(world: World) -> None:
    world.restart()
    world.reassert(*range(5))
    with pytest.raises(CoreError, match="more than this start has granted"):
        world.bench.news(0, session=Session(0, (), (), (StreamMark(C, 1, 1),)))


def told_by_a_peer(world: World) -> None:
    """Rank 1 holds C#0, which rank 0, heard before, has never arrived at."""
    world.reassert(0)
    world.bench.news(1, session=Session(1, (HELD,), (), (MARK,)), last_grant=1)


def told_by_the_store(world: World) -> None:
    """The store knows that rank 0 holds C#0, and rank 0 says that it has never arrived at it."""
    world.bench.news(0, session=Session())


@pytest.mark.parametrize("tell", [told_by_a_peer, told_by_the_store])
def test_a_participant_that_never_arrived_at_a_granted_run_has_diverged(
    world: World, tell: Callable[[World], None]
) -> None:
    if tell is told_by_the_store:
        world.arrive(C, 0, 0, 1)
        world.hear(0, 1)
    world.restart()
    tell(world)
    failure = world.bench.failure(1)
    assert (failure.problem, failure.rank) == (Problem.DIVERGED, 0)


def test_a_rank_that_acknowledges_a_grant_and_does_not_know_its_run_is_told_again(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(1)
    world.restart()
    confused = Session(5, (), (Arrival(C, 0),), ())
    world.bench.news(0, session=confused, last_grant=5)
    world.reassert(1, 2, 3, 4)
    assert [(grant.no, grant.n) for grant in world.bench.full_grants(0, 5)] == [(6, 0)]


def test_runs_longer_than_one_operation_are_proven_whole(world: World) -> None:
    world.restart()
    long = Session(1, (Grant(1, C, 0, 3),), (), (StreamMark(C, 3, 0),))
    world.bench.news(1, session=long, last_grant=1)
    waiting = Session(0, (), tuple(Arrival(C, n) for n in range(3)), ())
    world.bench.news(0, session=waiting)
    world.reassert(2, 3, 4)
    assert [(grant.n, grant.length) for grant in world.bench.full_grants(0)] == [(0, 3)]
    run = world.bench.engine.state.jobs["job"].streams[C].held[0]
    assert (run.length, run.holders) == (3, {0: 1, 1: 1})


def test_messages_are_proven_like_rings(world: World) -> None:
    there = Stream("c:0-1", 0, 1)
    world.restart()
    sent = Session(1, (Grant(1, there, 0, 1),), (), (StreamMark(there, 1, 0),))
    world.bench.news(0, session=sent, last_grant=1)
    world.bench.news(1, session=Session(0, (), (Arrival(there, 0),), ()))
    world.reassert(2, 3, 4)
    assert [(str(grant.stream), grant.n) for grant in world.bench.full_grants(1)] == [("c:0-1[0>1]", 0)]


def test_arrivals_of_a_run_that_a_peer_proves_later_are_no_intent_any_more(world: World) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(1)
    world.arrive(C, 1, 0)
    world.restart(lost=world.lose(RunGranted))
    world.reassert(0, 1)
    job = world.bench.engine.state.jobs["job"]
    assert list(job.open) == list(job.clocks) == list(job.ranks[0].open) == [(C, 1)]


# --- device steps of an earlier start ----------------------------------------------------------------------


@pytest.mark.parametrize(("works", "outcome"), [(True, StepState.DONE), (False, StepState.FAILED)])
def test_ports_of_a_step_cut_short_move_until_the_switch_has_been_read(
    world: World, works: bool, outcome: StepState
) -> None:
    world.arrive(C, 0, 0, 1)
    world.bench.pump()
    (old,) = [world.bench.start()]
    assert old is not None
    world.restart(settle=False)
    world.reassert(*range(5))
    assert world.status(0, C, 0)[1] is Reason.MOVING
    (step,) = world.bench.engine.unsettled("ocs0")
    assert (step.id, step.add) == (old.id, old.add)
    world.bench.settle(step, ok=works, works=works, kind=FailureKind.AMBIGUOUS)
    world.bench.play()
    moved = [change for change in world.bench.changes if isinstance(change, StepMoved)]
    assert (moved[0].step, moved[0].state) == (old.id, outcome)
    world.hear(0, 1)
    assert world.ranks[0].order == ["c#0"]


def test_a_step_of_a_switch_that_is_gone_is_over(world: World) -> None:
    bench = Bench(world.bench.engine.state.fabric, start=8)
    bench.engine.recover(bench.now, [], [KnownStep(3, "gone", 1, (), (CrossConnect(0, 1),))])
    bench.pump()
    (moved,) = [change for change in bench.changes if isinstance(change, StepMoved)]
    assert (moved.step, moved.state) == (3, StepState.FAILED)
    assert "no switch gone" in (moved.detail or "")


def test_whether_sessions_are_awaited(world: World) -> None:
    assert not world.bench.engine.awaits_sessions("job")
    world.restart()
    assert world.bench.engine.awaits_sessions("job")
    assert not world.bench.engine.awaits_sessions("nobody")


def test_a_restart_while_nothing_runs_leaves_nothing_to_wait_for(world: World) -> None:
    for rank in range(5):
        world.bench.news(rank, leave=True)
    world.bench.play()
    assert world.bench.engine.state.jobs["job"].state is JobState.ENDED
    assert known_jobs([change for batch in world.bench.batches for change in batch]) == []


def test_settings_limit_what_a_session_may_prove() -> None:
    assert CoreSettings().proven_max == 65_536


def test_a_circuit_that_was_lost_under_a_lock_while_no_controller_looked_is_an_alarm_and_made_again(
    world: World,
) -> None:
    world.arrive(C, 0, 0, 1)
    world.hear(0, 1)
    lit = world.bench.lit["ocs0"]
    ring = set(lit)
    lit.clear()
    world.restart()
    world.bench.play()
    (lost,) = world.bench.events("circuit.lost")
    assert lost.data["ranks"] == [0, 1]
    assert world.bench.lit["ocs0"] == ring, "adding takes nothing from anybody: the grace is no obstacle"
    assert len(world.bench.events("circuit.restored")) == 1
