"""Arrivals, marks and held runs: a grant needs every participant at the same n, and numbers only go up."""

from __future__ import annotations

import pytest

from opus_sdn.intent.changes import EventAppended, IntentMoved, IntentState, LocksReleased, RunGranted
from opus_sdn.intent.errors import Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import (
    Arrival,
    ArrivalState,
    CoreSettings,
    Grant,
    GroupSpec,
    RankNews,
    Release,
    Stream,
    WorldGroup,
)
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.streams import short
from tests.intent.bench import START, Bench
from tests.intent.worlds import group, make_fabric, make_spec, places

RING = Stream("ring")
THERE, BACK = Stream("line:0-1", 0, 1), Stream("line:0-1", 1, 0)


def bench_of(*groups: GroupSpec, ranks: int = 3, settings: CoreSettings | None = None) -> Bench:
    """A job whose ring of 0 and 1, and pairs of 0, 1 and 2, go over one port of each rank."""
    bench = Bench(make_fabric(ranks, ports=1), settings)
    bench.observe()
    known = groups or (group("ring", 0, 1), group("line", 0, 1), group("other", 1, 2))
    bench.job(make_spec(places(ranks), world_group=WorldGroup.RAIL), *known)
    return bench


def test_nobody_is_granted_before_everybody_has_arrived() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0)
    bench.play()
    assert (bench.grants(0), bench.steps) == ([], [])
    status = bench.answer(0).arrivals[0]
    assert (status.stream, status.n, status.state) == (RING, 0, ArrivalState.OPEN)
    assert status.because is not None
    assert (status.because.reason, status.because.data) == (Reason.MEMBERS_MISSING, {"ranks": [1]})
    bench.arrive(RING, 0, 1)
    bench.play()
    assert bench.full_grants(0) == bench.full_grants(1) == (Grant(1, RING, 0, 1),)


def test_a_grant_is_not_shown_before_its_transaction_is_stored() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.settle(step)
    effects = bench.engine.pump(bench.now)
    assert effects.batch is not None
    assert any(isinstance(change, RunGranted) for change in effects.batch.changes)
    assert bench.grants(0) == []
    assert not bench.engine.has_news_for("job", 1, 0, 0)
    status = bench.answer(0, [Arrival(RING, 0)]).arrivals[0]
    assert (status.state, status.because and status.because.reason) == (ArrivalState.OPEN, Reason.COMMITTING)
    woken = bench.engine.committed(effects.batch.id)
    assert [key.rank for key in woken] == [0, 1]
    assert bench.engine.has_news_for("job", 1, 0, 0)
    assert not bench.engine.has_news_for("job", 1, 0, 1)
    assert bench.grants(0) == [("ring", 0)]
    assert bench.answer(0, [Arrival(RING, 0)]).arrivals[0].state is ArrivalState.GRANTED


def test_c13_all_locks_of_a_grant_with_its_mark_and_its_event_are_one_transaction() -> None:
    bench = bench_of()
    bench.lit["ocs0"] = {CrossConnect(0, 1), CrossConnect(1, 0)}
    bench.observe()
    bench.play()
    bench.arrive(RING, 0, 0, 1)
    batch = bench.engine.pump(bench.now).batch
    assert batch is not None
    (grant,) = [change for change in batch.changes if isinstance(change, RunGranted)]
    assert grant.locks == ((0, 1), (1, 1))  # rank and grant number of every participant
    assert (grant.stream, grant.n + grant.length) == (RING, 1)
    assert [c.kind for c in batch.changes if isinstance(c, EventAppended)].count("intent.granted") == 1
    assert not batch.durable  # it has to survive the process, not the machine


def test_a_grant_is_repeated_with_its_number_until_it_is_acknowledged() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    assert bench.full_grants(0) == bench.full_grants(0) == (Grant(1, RING, 0, 1),)
    assert bench.full_grants(0, last_grant=1) == ()
    bench.news(0, last_grant=1)
    assert bench.full_grants(0) == ()
    bench.release(RING, 0, 0, 1)
    bench.arrive(RING, 1, 0, 1)
    bench.play()
    assert bench.full_grants(0) == (Grant(2, RING, 1, 1),)


def test_a_repeated_arrival_is_answered_from_the_marks_and_never_acted_on() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.arrive(RING, 0, 0, 1)  # granted
    bench.release(RING, 0, 0, 1)
    bench.arrive(RING, 0, 0, 1)  # done
    bench.play()
    assert bench.answer(0, [Arrival(RING, 0)]).arrivals[0].state is ArrivalState.DONE
    assert [change.n for change in bench.changes if isinstance(change, RunGranted)] == [0]


def test_a_repeat_of_an_open_arrival_updates_what_it_says() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0)
    bench.news(0, arrivals=[Arrival(RING, 0, blocking=True)])
    intent = bench.engine.state.jobs["job"].streams[RING].intents[0]
    assert intent.arrived[0].arrival.blocking


def test_a_rank_may_have_several_arrivals_open_and_they_go_in_order() -> None:
    bench = bench_of()
    bench.news(0, arrivals=[Arrival(RING, n) for n in range(3)])
    because = [status.because for status in bench.answer(0).arrivals]
    assert [b and b.reason for b in because] == [
        Reason.MEMBERS_MISSING,
        Reason.EARLIER_OPERATION,
        Reason.EARLIER_OPERATION,
    ]
    assert because[2] is not None
    assert because[2].detail == "operation 0 of ring goes first"
    bench.news(1, arrivals=[Arrival(RING, n) for n in range(3)])
    bench.play()
    assert bench.grants(1) == [("ring", 0), ("ring", 1), ("ring", 2)]
    assert len(bench.steps) == 1


def test_both_directions_of_a_pair_count_for_themselves_and_are_held_together() -> None:
    bench = bench_of()
    bench.arrive(THERE, 0, 0, 1)
    bench.arrive(BACK, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("line:0-1[0>1]", 0), ("line:0-1[1>0]", 0)]
    bench.arrive(THERE, 1, 0, 1)  # the next one while this one is held
    bench.play()
    assert len(bench.grants(0)) == 3
    assert len(bench.steps) == 1


def test_a_run_is_live_until_every_participant_has_released_it() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    other = Stream("other:1-2", 1, 2)
    bench.arrive(other, 0, 1, 2)
    bench.release(RING, 0, 0)
    bench.play()
    assert bench.grants(2) == []
    because = bench.answer(2).arrivals[0].because
    assert because is not None
    held = [{"connection": "ring", "n": 0, "ranks": [1]}]
    assert because.reason is Reason.LOCKED
    assert because.data == {"switch": "ocs0", "position": 1, "held": held}
    assert because.detail == "position 1 of ocs0 carries traffic; operation 0 of ring is held by ranks 1"
    bench.release(RING, 0, 1)
    bench.play()
    assert bench.grants(2) == [("other:1-2[1>2]", 0)]
    assert [e.data for e in bench.events("intent.released")] == [{"connection": "ring", "n": 0}]
    released = [change.ranks for change in bench.changes if isinstance(change, LocksReleased)]
    assert released == [(0,), (1,)]


def test_ranks_that_release_in_one_batch_share_one_change() -> None:
    bench = bench_of()
    bench.arrive(THERE, 0, 0, 1)
    bench.play()
    bench.release(THERE, 0, 1, 0)
    bench.release(THERE, 0, 1)  # a repeat
    bench.play()
    released = [change for change in bench.changes if isinstance(change, LocksReleased)]
    assert [(change.ranks, change.n, change.length) for change in released] == [((1, 0), 0, 1)]
    assert bench.events("intent.released")[0].data == {
        "connection": "line:0-1",
        "n": 0,
        "source": 0,
        "destination": 1,
    }


def test_one_release_may_end_several_runs() -> None:
    bench = bench_of()
    for rank in (0, 1):
        bench.news(rank, arrivals=[Arrival(THERE, n) for n in range(3)])
    bench.play()
    for rank in (0, 1):
        bench.news(rank, releases=[Release(THERE, 0, length=2)])
    assert list(bench.engine.state.jobs["job"].streams[THERE].held) == [2]


def test_an_n_beyond_what_the_rank_has_arrived_at_is_divergence_for_everybody() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0)
    bench.arrive(RING, 1, 1)
    failure = bench.failure(2)
    assert failure == bench.answer(0).failure
    assert (failure.problem, failure.rank) == (Problem.DIVERGED, 1)
    assert failure.detail == (
        "rank 1 arrives at operation 1 of ring, but its next one is 0 (rank 0 is at 1); "
        "the members have issued different numbers of operations"
    )
    assert failure.data == {"connection": "ring", "n": 1, "expected": 0}
    assert bench.answer(0).arrivals == ()
    assert all(bench.engine.has_news_for("job", 1, rank, 0) for rank in range(3))


def test_an_arrival_after_a_failure_counts_for_nothing() -> None:
    bench = bench_of()
    item = RankNews(1, arrivals=(Arrival(RING, 1), Arrival(RING, 0)))
    bench.engine.news(bench.now, "job", 1, START, [item, RankNews(0, arrivals=(Arrival(RING, 0),))])
    assert bench.engine.state.jobs["job"].open == {}


def test_messages_whose_ends_name_different_tags_fail_the_job() -> None:
    bench = bench_of()
    bench.arrive(THERE, 0, 0, tag=3)
    bench.arrive(THERE, 0, 1, tag=4)
    failure = bench.failure(0)
    assert failure.problem is Problem.TAG_ORDER
    assert "rank 0: 3, rank 1: 4" in failure.detail
    assert failure.data == {"connection": "line:0-1", "n": 0, "tags": {"0": 3, "1": 4}}


def test_a_tag_out_of_order_is_found_when_the_message_before_it_is_granted() -> None:
    bench = bench_of()
    bench.news(0, arrivals=[Arrival(THERE, 0, tag=1), Arrival(THERE, 1, tag=2)])
    bench.news(1, arrivals=[Arrival(THERE, 0, tag=1), Arrival(THERE, 1, tag=9)])
    bench.play()
    failure = bench.failure(0)
    assert (failure.problem, failure.data["n"]) == (Problem.TAG_ORDER, 1)
    assert bench.events("job.failed")[0].data["cause"] == "tag-order"


def test_a_pair_inside_a_host_is_granted_without_the_switches() -> None:
    bench = Bench(make_fabric(2, gpus=2))
    bench.observe()
    bench.job(make_spec(places(4, gpus=2)), group("line", 0, 1, 2))
    bench.arrive(Stream("line:0-1", 1, 0), 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("line:0-1[1>0]", 0)]
    assert bench.steps == []


def test_what_is_up_and_idle_is_granted_without_a_device_write() -> None:
    bench = bench_of()
    bench.lit["ocs0"] = {CrossConnect(0, 1), CrossConnect(1, 0)}
    bench.observe()
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("ring", 0)]
    assert bench.steps == []
    assert not [change for change in bench.changes if isinstance(change, IntentMoved)]


def test_an_intent_leaves_one_event_for_each_state() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0)
    bench.now += 0.25
    bench.arrive(RING, 0, 1)
    bench.play()
    bench.release(RING, 0, 0, 1)
    bench.play()
    kinds = [event.kind for event in bench.events() if event.kind.startswith("intent.")]
    assert kinds == ["intent.complete", "intent.installing", "intent.granted", "intent.released"]
    moved = [change.state for change in bench.changes if isinstance(change, IntentMoved)]
    assert moved == [IntentState.COMPLETE, IntentState.INSTALLING, IntentState.RELEASED]
    assert bench.events("intent.granted")[0].data == {
        "connection": "ring",
        "n": 0,
        "length": 1,
        "barrier_wait_ms": 250.0,
        "exposed_wait_ms": 0.0,
    }


def test_waits_are_counted_for_the_barrier_and_for_the_switch() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0)
    bench.now += 2
    bench.arrive(RING, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.now += 0.5
    bench.settle(step)
    bench.play()
    job = bench.engine.state.jobs["job"]
    assert [rank.barrier_wait_s for rank in job.ranks] == [2, 0, 0]
    assert [rank.exposed_wait_s for rank in job.ranks] == [0.5, 0.5, 0]
    assert (job.exposed_wait_s, job.grants, job.device_steps) == (0.5, 1, 1)


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "0"), (16, ", ".join(map(str, range(16)))), (18, ", ".join(map(str, range(16))) + " and 2 more")],
)
def test_long_lists_of_ranks_are_cut_for_people(count: int, text: str) -> None:
    assert short(list(range(count))) == text
