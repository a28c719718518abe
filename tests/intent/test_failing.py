"""Deadlines, leases, deaths and broken operations: one cause for all ranks, and nobody is left hanging."""

from __future__ import annotations

import pytest

from opus_sdn.intent.changes import JobState
from opus_sdn.intent.errors import Failure, Problem
from opus_sdn.intent.model import Arrival, CoreSettings, Stream
from opus_sdn.intent.views import locks_view
from tests.intent.bench import Bench
from tests.intent.worlds import group, make_fabric, make_spec, places

RING, THERE = Stream("ring"), Stream("line:1-2", 1, 2)
SETTINGS = CoreSettings(lease_s=30.0, fence_s=15.0, abort_s=5.0, fault_grace_s=12.0)
DEADLINE_S = 100.0


@pytest.fixture
def bench() -> Bench:
    """Three ranks: a ring of 0 and 1, and a pair of 1 and 2, over one port each."""
    bench = Bench(make_fabric(3, ports=1), SETTINGS)
    bench.observe()
    spec = make_spec(places(3), {"dp": 3}, deadline_s=DEADLINE_S)
    bench.job(spec, group("ring", 0, 1), group("line", 1, 2))
    bench.play()
    return bench


def everybody_lives(bench: Bench, *ranks: int) -> None:
    """These ranks, or all, are heard."""
    for rank in ranks or (0, 1, 2):
        bench.news(rank)


def pass_time(bench: Bench, seconds: float, *alive: int) -> None:
    """Time goes on; these ranks, or all, are heard every ten seconds, and the core is told of the time."""
    until = bench.now + seconds
    while bench.now < until:
        bench.now = min(until, bench.now + 10)
        everybody_lives(bench, *alive)
        bench.engine.tick(bench.now)
    bench.pump()


def cause(bench: Bench, *told: int) -> Failure:
    """The one cause that all of these ranks, or all, are told."""
    failures = [bench.failure(rank) for rank in told or (0, 1, 2)]
    assert failures == [failures[0]] * len(failures)
    return failures[0]


# --- deadlines


def test_a_deadline_counts_from_the_first_arrival_and_names_who_is_missing(bench: Bench) -> None:
    bench.arrive(RING, 0, 0)
    pass_time(bench, DEADLINE_S - 1)
    assert bench.engine.state.jobs["job"].running
    pass_time(bench, 1)
    failure = cause(bench)
    assert failure.problem is Problem.DEADLINE
    assert failure.detail == (
        "operation 0 of ring was not granted within 100 s of its first arrival: "
        "ranks 1 have not arrived at operation 0 of ring; last heard: rank 1 0 s ago"
    )
    assert failure.data == {
        "reason": "members-missing",
        "connection": "ring",
        "n": 0,
        "ranks": [1],
        "heard_s_ago": [[1, 0.0]],
    }


def blocked(bench: Bench, rank: int, stream: Stream) -> None:
    """The rank's host waits in operation 0 of the stream."""
    bench.news(rank, arrivals=[Arrival(stream, 0, blocking=True)])


def test_a_deadline_shows_who_waits_for_each_other_in_a_circle() -> None:
    """Eager sends: each rank of a triangle sends to the next one before it receives from the one before."""
    bench = Bench(make_fabric(3), SETTINGS)
    bench.observe()
    spec = make_spec(places(3), {}, deadline_s=DEADLINE_S)
    bench.job(spec, group("ring", 0, 1), group("a", 0, 1), group("b", 1, 2), group("c", 2, 0))
    bench.play()
    bench.news(0, arrivals=[Arrival(Stream("ring"), 0)])  # went on: no wait
    blocked(bench, 0, Stream("a:0-1", 0, 1))
    blocked(bench, 1, Stream("b:1-2", 1, 2))
    blocked(bench, 2, Stream("c:2-0", 2, 0))
    pass_time(bench, DEADLINE_S)
    failure = cause(bench)
    assert failure.detail.endswith(
        "; these wait for each other: rank 0 waits in a:0-1[0>1]#0 for rank 1, "
        "rank 1 waits in b:1-2[1>2]#0 for rank 2, rank 2 waits in c:2-0[2>0]#0 for rank 0"
    )
    assert failure.data["cycle"] == [[0, "a:0-1[0>1]#0", 1], [1, "b:1-2[1>2]#0", 2], [2, "c:2-0[2>0]#0", 0]]


def test_a_wait_that_leads_to_a_rank_that_may_still_come_is_no_circle() -> None:
    bench = Bench(make_fabric(4), SETTINGS)
    bench.observe()
    spec = make_spec(places(4), {}, deadline_s=DEADLINE_S)
    bench.job(spec, group("all-but-one", 0, 1, 2), group("pair", 1, 2), group("last", 2, 3))
    bench.play()
    blocked(bench, 0, Stream("all-but-one"))
    blocked(bench, 1, Stream("pair"))
    blocked(bench, 2, Stream("last"))
    pass_time(bench, DEADLINE_S, 0, 1, 2, 3)
    failure = cause(bench, 0, 1, 2, 3)
    assert failure.problem is Problem.DEADLINE
    assert "cycle" not in failure.data


def test_a_deadline_names_the_lock_that_was_not_released(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.arrive(THERE, 0, 1, 2)
    bench.play()
    pass_time(bench, DEADLINE_S)
    failure = cause(bench)
    assert failure.detail.endswith(
        "position 1 of ocs0 carries traffic; operation 0 of ring is held by ranks 0, 1"
    )
    assert failure.data == {
        "reason": "locked",
        "connection": "line:1-2",
        "n": 0,
        "source": 1,
        "destination": 2,
        "switch": "ocs0",
        "position": 1,
        "held": [{"connection": "ring", "n": 0, "ranks": [0, 1]}],
    }


def test_a_deadline_names_the_switch_that_has_not_answered(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.pump()
    assert bench.start() is not None
    pass_time(bench, DEADLINE_S)
    assert cause(bench).data["reason"] == "switching"


def test_a_deadline_on_a_switch_that_refuses_says_what_it_said(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.settle(step, ok=False, works=False, detail="port 3 is dirty")
    bench.now += DEADLINE_S
    everybody_lives(bench)
    bench.engine.tick(bench.now)  # before anything is planned anew
    failure = cause(bench)
    assert failure.data["reason"] == "switch-failed"
    assert "step 1 failed: port 3 is dirty" in failure.detail


def test_an_operation_behind_others_has_its_deadline_from_its_turn_on(bench: Bench) -> None:
    """A rank may issue a long backlog at once: waiting for the operations before it is no fault."""
    for n in range(3):
        bench.arrive(RING, n, 0)
    for n in range(2):
        pass_time(bench, DEADLINE_S - 10)
        bench.arrive(RING, n, 1)
        bench.play()
    assert bench.engine.state.jobs["job"].running
    pass_time(bench, DEADLINE_S - 10)
    assert bench.engine.state.jobs["job"].running
    pass_time(bench, 10)
    assert cause(bench).detail.startswith("operation 2 of ring was not granted within 100 s of its turn: ")


def test_a_granted_run_has_no_deadline(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    pass_time(bench, 3 * DEADLINE_S)
    assert bench.engine.state.jobs["job"].running


# --- silence


def test_a_rank_that_is_silent_for_its_lease_ends_the_job_and_loses_its_locks(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    pass_time(bench, 30, 0, 2)
    assert bench.engine.state.jobs["job"].running  # at the lease, not beyond it
    pass_time(bench, 7.5, 0, 2)
    failure = cause(bench, 0, 2)
    assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 1)
    assert failure.detail == "rank 1 has been silent for 30 s, its lease"
    assert [lock.rank for lock in locks_view(bench.engine)] == [0]


def test_while_the_controller_stood_still_no_rank_was_silent(bench: Bench) -> None:
    bench.now += 45.0
    bench.engine.stood_still(bench.now, 45.0)
    bench.engine.tick(bench.now)
    assert bench.engine.state.jobs["job"].running
    bench.now += SETTINGS.lease_s + SETTINGS.lease_s / 4
    bench.engine.tick(bench.now)
    bench.pump()
    assert cause(bench).problem is Problem.RANK_LOST


def test_locks_of_a_failed_job_stay_until_each_holder_is_known_to_have_stopped(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.engine.abort(bench.now, "job", 1, 2, "enough")
    assert [lock.rank for lock in locks_view(bench.engine)] == [0, 1]
    bench.news(0, leave=True)
    assert [lock.rank for lock in locks_view(bench.engine)] == [1]
    pass_time(bench, 40, 2)
    assert locks_view(bench.engine) == ()
    assert bench.engine.state.live == {}
    assert cause(bench).problem is Problem.ABORTED  # the first cause stays


def test_a_rank_that_leaves_with_what_it_holds_has_aborted_it(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.news(0, leave=True)
    failure = cause(bench, 1)
    assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 0)


def test_nobody_is_declared_dead_while_everybody_is_heard(bench: Bench) -> None:
    pass_time(bench, 1000)
    assert bench.engine.state.jobs["job"].running


# --- broken operations


def test_a_broken_operation_waits_for_the_dead_rank_to_be_named(bench: Bench) -> None:
    bench.now += 1
    bench.engine.operation_failed(bench.now, "job", 1, 0, RING, 3, "connection reset by peer")
    bench.engine.operation_failed(
        bench.now + 1, "job", 1, 2, None, None, "also broken"
    )  # the first one counts
    assert bench.engine.state.jobs["job"].running
    bench.now += 1
    everybody_lives(bench, 0, 2)
    bench.now += 10.9
    bench.engine.tick(bench.now)
    assert bench.engine.state.jobs["job"].running
    bench.now += 0.1
    bench.engine.tick(bench.now)
    failure = cause(bench, 0, 2)
    assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 1)
    assert failure.detail == (
        "rank 1 has been silent for 12.0 s since an operation failed "
        "(operation 3 of ring failed on rank 0: connection reset by peer)"
    )


def test_a_broken_operation_is_the_cause_once_everybody_was_heard_since(bench: Bench) -> None:
    bench.now += 1
    bench.engine.operation_failed(bench.now, "job", 1, 0, None, None, "out of memory")
    everybody_lives(bench, 1, 2)  # this may have been on its way before the operation broke
    bench.now += 1
    everybody_lives(bench, 0, 1)
    assert bench.engine.state.jobs["job"].running
    everybody_lives(bench, 2)
    failure = cause(bench)
    assert (failure.problem, failure.rank) == (Problem.OPERATION_FAILED, 0)
    assert failure.detail == "an operation failed on rank 0: out of memory"
    bench.pump()
    assert bench.events("rank.operation-failed")[0].data["rank"] == 0


def test_the_dead_are_looked_for_anew_after_the_controller_stood_still(bench: Bench) -> None:
    bench.engine.operation_failed(bench.now, "job", 1, 0, None, None, "connection reset by peer")
    bench.now += 20.0
    bench.engine.stood_still(bench.now, 20.0)
    bench.engine.tick(bench.now)
    assert bench.engine.state.jobs["job"].running  # rank 1 had no chance to be heard
    bench.now += SETTINGS.fault_grace_s
    everybody_lives(bench, 0, 2)
    bench.engine.tick(bench.now)
    bench.pump()
    failure = cause(bench, 0, 2)
    assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 1)


def test_ranks_that_have_left_are_not_waited_for(bench: Bench) -> None:
    bench.news(2, leave=True)
    bench.now += 1
    bench.engine.operation_failed(bench.now, "job", 1, 0, None, None, "boom")
    bench.now += 1
    everybody_lives(bench, 0, 1)
    assert cause(bench).problem is Problem.OPERATION_FAILED


def test_a_broken_operation_after_the_end_changes_nothing(bench: Bench) -> None:
    bench.engine.abort(bench.now, "job", 1, None, "enough")
    bench.engine.operation_failed(bench.now, "job", 1, 0, None, None, "boom")
    assert cause(bench).detail == "the job was aborted: enough"


# --- deaths and aborts


def test_a_death_that_is_vouched_for_frees_the_locks_of_the_dead_alone(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.engine.report_dead(bench.now, "job", 1, [1, 2], "signal 9")
    bench.engine.report_dead(bench.now, "job", 1, [1], "again")
    failure = cause(bench)
    assert (failure.problem, failure.rank, failure.detail) == (Problem.RANK_LOST, 1, "rank 1 died: signal 9")
    assert [lock.rank for lock in locks_view(bench.engine)] == [0]
    bench.pump()
    assert [key.rank for key in bench.woken][-3:] == [0, 1, 2]
    assert bench.events("job.failed")[0].data == {
        "cause": "rank-lost",
        "detail": "rank 1 died: signal 9",
        "rank": 1,
    }


def test_the_death_of_a_rank_that_has_left_is_no_news(bench: Bench) -> None:
    bench.news(1, leave=True)
    bench.engine.report_dead(bench.now, "job", 1, [1], "exit status 0")
    assert bench.engine.state.jobs["job"].running


def test_an_abort_names_who_did_it(bench: Bench) -> None:
    bench.engine.abort(bench.now, "job", 1, 2, "loss is not a number")
    failure = cause(bench)
    assert (failure.problem, failure.rank) == (Problem.ABORTED, 2)
    assert failure.detail == "rank 2 aborted the job: loss is not a number"


def test_the_first_cause_is_the_cause(bench: Bench) -> None:
    bench.engine.abort(bench.now, "job", 1, 2, "first")
    bench.engine.report_dead(bench.now, "job", 1, [0], "second")
    assert cause(bench).detail == "rank 2 aborted the job: first"


def test_after_a_failure_every_later_arrival_is_answered_with_the_cause(bench: Bench) -> None:
    bench.engine.abort(bench.now, "job", 1, None, "enough")
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    answer = bench.answer(0, [Arrival(RING, 0)])
    assert (answer.arrivals, answer.grants) == ((), ())
    assert answer.failure is not None
    assert bench.steps == []


def test_the_last_rank_to_leave_a_failed_job_leaves_it_failed(bench: Bench) -> None:
    bench.engine.abort(bench.now, "job", 1, None, "enough")
    for rank in range(3):
        bench.news(rank, leave=True)
    assert bench.engine.state.jobs["job"].state is JobState.FAILED


# --- when to look again


def test_the_next_deadline_is_the_earliest_of_all_that_time_decides(bench: Bench) -> None:
    assert bench.engine.next_deadline() == bench.now + 30  # the first look at the leases
    bench.now += 1
    bench.engine.operation_failed(bench.now, "job", 1, 0, None, None, "boom")
    assert bench.engine.next_deadline() == bench.now + 12
    bench.now += 1
    bench.engine.report_dead(bench.now, "job", 1, [1], "gone")
    assert bench.engine.next_deadline() is None  # nothing held, nothing waits


def test_the_deadline_of_the_oldest_open_arrival_comes_first() -> None:
    bench = Bench(make_fabric(3, ports=1), SETTINGS)
    bench.job(make_spec(places(3), {"dp": 3}, deadline_s=20.0), group("ring", 0, 1), group("line", 1, 2))
    assert Bench(make_fabric(2)).engine.next_deadline() is None
    first = bench.now
    bench.arrive(RING, 0, 0)
    bench.now += 5
    bench.arrive(THERE, 0, 2)
    bench.arrive(RING, 0, 1)  # the second one at ring 0 does not make it younger
    assert bench.engine.next_deadline() == first + 20


def test_a_failed_job_that_holds_locks_is_still_looked_at(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.engine.abort(bench.now, "job", 1, None, "enough")
    assert bench.engine.next_deadline() == bench.now + 30
