"""Jobs come, check their groups in, are superseded, and end."""

from __future__ import annotations

import pytest

from opus_sdn.intent.changes import GroupChecked, IntentMoved, IntentState, JobSettled, JobStarted, JobState
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Arrival, CoreSettings, Domain, Stream
from tests.intent.bench import NOON, START, Bench
from tests.intent.worlds import group, make_fabric, make_spec, places

RING = Stream("ring")
GROUPS = (group("ring", 0, 1), group("line", 0, 1, dimension="pp"))


@pytest.fixture
def bench() -> Bench:
    """A job of two ranks on a fabric of four hosts."""
    bench = Bench(make_fabric(4))
    bench.observe()
    bench.job(make_spec(places(2), {"dp": 2}), *GROUPS)
    bench.play()
    return bench


def test_the_same_nonce_is_the_same_incarnation(bench: Bench) -> None:
    spec = make_spec(places(2), {"dp": 2})
    assert bench.engine.put_job(bench.now, spec) == (1, False)
    assert len([c for c in bench.changes if isinstance(c, JobStarted)]) == 1


def test_a_new_nonce_is_a_new_incarnation_and_the_old_one_can_do_nothing(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.arrive(RING, 1, 0)
    moved = make_spec(places(2, first_host=2), {"dp": 2}, nonce="second")  # placement may change with it
    assert bench.engine.put_job(bench.now, moved) == (2, True)
    bench.play()
    assert bench.engine.has_news_for("job", 1, 0, 99)
    with pytest.raises(CoreError) as refused:
        bench.arrive(RING, 0, 0)
    assert refused.value.problem is Problem.STALE_INCARNATION
    with pytest.raises(CoreError, match="incarnation 1 can do nothing"):
        bench.answer(0)
    assert bench.engine.state.live == {}  # a newer incarnation vouches that the old processes are gone
    settled = [c for c in bench.changes if isinstance(c, JobSettled)]
    assert [(c.incarnation, c.state, c.cause) for c in settled] == [
        (1, JobState.FAILED, "superseded"),
        (1, JobState.ENDED, None),
    ]
    kinds = [e.kind for e in bench.events() if e.kind.startswith("job.")]
    assert kinds == ["job.started", "job.failed", "job.ended", "job.started"]


def test_incarnations_go_on_from_what_the_store_remembers() -> None:
    bench = Bench(make_fabric(2))
    bench.engine.state.incarnations["job"] = 41
    assert bench.job(make_spec(places(2))) == 42


def test_of_jobs_that_are_over_a_limited_number_of_names_is_kept_and_no_number_is_given_again() -> None:
    bench = Bench(make_fabric(2), CoreSettings(settled_jobs_max=1, job_names_max=3))
    numbers: dict[str, int] = {}
    for at, name in enumerate(("a", "b", "a", "c", "d", "e", "b", "a")):
        spec = make_spec(places(2), {"dp": 2}, name, nonce=str(at))
        incarnation, _ = bench.engine.put_job(bench.now, spec)
        assert incarnation > numbers.get(name, 0)
        numbers[name] = incarnation
        bench.engine.end_job(bench.now, name, incarnation)
        bench.play()
        assert set(bench.engine.state.incarnations) == set(bench.engine.state.past_nonces)
        assert len(bench.engine.state.incarnations) <= 3
    assert numbers["a"] > 2, "it was forgotten, its numbers were not"


def test_a_job_that_has_failed_and_holds_nothing_makes_room_for_any_owner(bench: Bench) -> None:
    bench.engine.abort(bench.now, "job", 1, None, "enough")
    other = make_spec(places(2), {"dp": 2}, nonce="second")
    object.__setattr__(other, "owner", "somebody else")
    assert bench.engine.put_job(bench.now, other) == (2, True)


def test_a_job_that_has_failed_keeps_its_ports_while_it_may_still_transmit(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.engine.abort(bench.now, "job", 1, 0, "enough")
    neighbour = make_spec(places(1), name="neighbour")
    with pytest.raises(CoreError, match="whose ports job job uses"):
        bench.job(neighbour)
    bench.news(0, leave=True)
    with pytest.raises(CoreError, match="whose ports job job uses"):
        bench.job(neighbour)
    bench.news(1, leave=True)
    assert bench.job(neighbour) == 1


def test_a_step_planned_for_an_old_incarnation_is_never_executed(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.pump()
    assert len(bench.planned) == 1
    bench.job(make_spec(places(2), {"dp": 2}, nonce="second"), *GROUPS)
    assert bench.start() is None
    bench.pump()
    assert bench.events("step.dropped")[0].data["detail"] == "what it was planned for no longer waits"


def test_checking_in_answers_where_the_group_travels_and_what_its_ring_needs() -> None:
    bench = Bench(make_fabric(2, gpus=2))
    bench.job(make_spec(places(4, gpus=2), {"pp": 2, "tp": 2}))
    both = group("tp", 0, 1, dimension="tp"), group("pp", 0, 2, dimension="mesh_pp"), group("odd", 0, 3)
    inside, across, odd = bench.engine.check_in(bench.now, "job", 1, both)
    assert (inside.domain, inside.connection) == (Domain.SCALE_UP, None)
    assert (across.domain, across.dimension) == (Domain.SCALE_OUT, "pp")  # the layout knows better
    assert across.connection is not None
    assert [c.id for c in across.connection.circuits] == ["h0:0:1--h1:0:0"]
    # No rail joins 0 and 3: refused when somebody arrives, never when the groups are made.
    assert (odd.domain, odd.connection) == (Domain.SCALE_OUT, None)
    assert bench.engine.check_in(bench.now, "job", 1, both) == (inside, across, odd)
    bench.pump()
    assert [c.group for c in bench.changes if isinstance(c, GroupChecked)] == ["tp", "pp", "odd"]


def test_a_label_that_was_declared_stays_whatever_the_layout_says(bench: Bench) -> None:
    bench = Bench(make_fabric(4))
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}))
    labels = ["dp", "fsdp", "mesh_x"]
    groups = [group(label, 0, 2, dimension=label) for label in labels]  # by its ranks a pipeline
    views = bench.engine.check_in(bench.now, "job", 1, groups)
    assert [view.dimension for view in views] == ["dp", "pp", "pp"]


def test_nothing_is_checked_in_after_the_end(bench: Bench) -> None:
    bench.engine.end_job(bench.now, "job", 1)
    with pytest.raises(CoreError, match="job job has ended") as refused:
        bench.engine.check_in(bench.now, "job", 1, [group("late", 0, 1)])
    assert refused.value.problem is Problem.ABORTED


def test_checking_in_after_a_failure_answers_its_cause(bench: Bench) -> None:
    bench.engine.report_dead(bench.now, "job", 1, [1], "exit status 9")
    with pytest.raises(CoreError, match="rank 1 died: exit status 9") as refused:
        bench.engine.check_in(bench.now, "job", 1, [group("late", 0, 1)])
    assert (refused.value.problem, refused.value.data) == (Problem.RANK_LOST, {"rank": 1})


def test_the_job_ends_when_its_last_rank_has_left(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.release(RING, 0, 0, 1)
    bench.news(0, leave=True)
    bench.news(1, leave=True)
    bench.play()
    job = bench.engine.state.jobs["job"]
    assert (job.state, job.failure) == (JobState.ENDED, None)
    assert [e.data.get("rank") for e in bench.events("rank.left")] == [0, 1]
    failure = bench.failure(0)
    assert (failure.problem, failure.detail) == (Problem.ABORTED, "job job has ended")
    assert len(bench.woken) == 4  # two grants, two ends


def test_a_rank_that_has_left_cannot_come_back_but_may_say_again_that_it_left(bench: Bench) -> None:
    bench.news(0, leave=True)
    bench.news(0, leave=True)
    bench.play()
    assert [e.data for e in bench.events("rank.left")] == [{"rank": 0}]
    with pytest.raises(
        CoreError, match="rank 0 has left job job; it starts again with a new incar"
    ) as refused:
        bench.arrive(RING, 0, 0)
    assert refused.value.problem is Problem.UNKNOWN_RANK


def test_a_rank_that_was_declared_dead_but_lives_is_told_the_cause_and_nothing_is_taken_from_it(
    bench: Bench,
) -> None:
    bench.engine.report_dead(bench.now, "job", 1, [0], "no sign of life")
    bench.arrive(RING, 0, 0)
    failure = bench.failure(0)
    assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 0)
    assert bench.engine.state.jobs["job"].open == {}


def test_a_rank_that_leaves_with_open_arrivals_fails_the_job(bench: Bench) -> None:
    bench.arrive(RING, 0, 0)
    bench.news(0, leave=True)
    failure = bench.failure(1)
    assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 0)
    assert failure.detail == "rank 0 left the job while operations with it were open"


def test_a_rank_that_leaves_while_others_wait_for_it_fails_the_job(bench: Bench) -> None:
    bench.arrive(RING, 0, 1)
    bench.news(0, leave=True)
    failure = bench.failure(1)
    assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 0)


def test_an_arrival_that_needs_a_rank_that_has_left_fails_the_job(bench: Bench) -> None:
    bench.news(0, leave=True)
    bench.arrive(RING, 0, 1)
    failure = bench.failure(1)
    assert (failure.rank, failure.detail) == (0, "rank 0 has left the job; others still need it")


def test_an_operator_ends_a_job_and_its_ports_are_free_at_once(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.engine.end_job(bench.now, "job", 1)
    bench.engine.end_job(bench.now, "job", 1)  # again
    bench.play()
    assert bench.engine.state.live == {}
    assert [c.state for c in bench.changes if isinstance(c, JobSettled)] == [JobState.ENDED]
    assert not bench.engine.state.jobs["job"].occupies_ports()


@pytest.mark.parametrize("how", ["end", "abort"])
def test_intents_that_were_heard_of_leave_an_event_when_their_job_is_over(how: str, bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)  # complete, and waits for its circuit
    bench.pump()
    bench.arrive(Stream("line:0-1", 0, 1), 0, 0)  # not complete: nobody has heard of it
    bench.arrive(Stream("line:0-1", 1, 0), 0, 0, 1)  # complete, and not looked at yet
    if how == "end":
        bench.engine.end_job(bench.now, "job", 1)
    else:
        bench.engine.abort(bench.now, "job", 1, None, "enough")
    bench.pump()
    failed = [c for c in bench.changes if isinstance(c, IntentMoved) and c.state is IntentState.FAILED]
    assert [(c.stream, c.n) for c in failed] == [(RING, 0)]
    assert len(bench.events("intent.failed")) == 1
    assert all(not stream.intents for stream in bench.engine.state.jobs["job"].streams.values())


def test_the_topology_of_a_job_that_is_over_is_history(bench: Bench) -> None:
    bench.engine.end_job(bench.now, "job", 1)
    bench.play()
    bench.changes.clear()
    bench.lit["ocs0"] = {CrossConnect(1, 2), CrossConnect(2, 1)}
    bench.observe()
    bench.play()
    assert bench.events("topology.changed") == []


def test_a_job_that_starts_again_uses_what_is_up_without_a_device_write(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.job(make_spec(places(2), {"dp": 2}, nonce="second"), *GROUPS)
    writes = len(bench.steps)
    for rank in (0, 1):
        bench.news(rank, arrivals=[Arrival(RING, 0)], incarnation=2)
    bench.play()
    assert len(bench.steps) == writes
    assert bench.engine.answer("job", 2, 0, 0).grants[0].no == 1  # numbers start anew


def test_an_initial_topology_is_not_made_when_it_is_there_already() -> None:
    bench = Bench(make_fabric(2))
    bench.lit["ocs0"] = {CrossConnect(1, 2), CrossConnect(2, 1)}
    bench.observe()
    bench.job(make_spec(places(2), {"dp": 2}, initial_topology="1"))
    bench.play()
    assert bench.steps == []
    assert bench.engine.state.jobs["job"].topology == {"rail0": "1"}


def test_an_initial_topology_yields_to_the_first_real_need() -> None:
    bench = Bench(make_fabric(4))
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}, initial_topology="00"), group("dp0", 0, 1))
    bench.pump()
    bench.arrive(Stream("dp0"), 0, 0, 1)
    bench.play()
    assert [step.add for step in bench.steps] == [(CrossConnect(1, 2), CrossConnect(2, 1))]
    assert bench.grants(0) == [("dp0", 0)]


def test_an_initial_topology_is_given_up_when_its_job_is_over() -> None:
    bench = Bench(make_fabric(4))
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}, initial_topology="00"))
    bench.engine.end_job(bench.now, "job", 1)
    bench.play()
    assert bench.steps == []
    assert bench.events("step.planned") == []


def test_two_jobs_on_one_switch_are_planned_together_and_never_touch_each_other() -> None:
    bench = Bench(make_fabric(4))
    bench.observe()
    for number in (0, 1):
        spec = make_spec(places(2, first_host=2 * number), {"dp": 2}, name=f"job{number}")
        bench.job(spec, group("ring", 0, 1))
        for rank in (0, 1):
            bench.news(rank, arrivals=[Arrival(RING, 0)], job=f"job{number}")
    bench.play()
    assert [step.causes for step in bench.steps] == [("job0/1/ring#0", "job1/1/ring#0")]
    assert bench.engine.state.jobs["job0"].device_steps == 1
    bench.engine.abort(bench.now, "job0", 1, None, "enough")
    assert bench.engine.state.jobs["job1"].running


def test_news_from_before_the_first_answer_names_no_start() -> None:
    bench = Bench(make_fabric(2))
    bench.job(make_spec(places(2), {"dp": 2}), *GROUPS)
    bench.engine.news(bench.now, "job", 1, 0, [])
    bench.engine.news(bench.now, "job", 1, START, [])
    assert bench.engine.state.jobs["job"].started_at == NOON
