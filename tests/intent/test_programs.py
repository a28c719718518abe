"""Programs that could be stuck or unsafe, by name and by chance, played by virtual ranks on the real core.

After every event the invariants are checked (see `watch.py`); a run that cannot go on fails with a picture
of who waits for whom and the seed to see it again. OPUS_TEST_SCALE multiplies the number of seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from opus_sdn.intent.errors import Problem
from opus_sdn.intent.model import CoreSettings, Grant
from tests.intent import programs
from tests.intent.modes import Mode
from tests.intent.operations import ScaleUp, Scenario, ends_without_controller
from tests.intent.schedules import SCHEDULES, Shape, drawn, training
from tests.intent.simulator import Simulation
from tests.intent.traffic import Finish
from tests.intent.virtual_rank import VirtualRank
from tests.intent.virtual_switch import ViolationError
from tests.intent.worlds import group

SCALE = float(os.environ.get("OPUS_TEST_SCALE", "1"))


def seeds(count: int, first: int = 0) -> range:
    """So many seeds, times the scale."""
    return range(first, first + max(1, round(count * SCALE)))


def all_end(make: Callable[[], Scenario], seeds_: Iterable[int] = (), mode: Mode | None = None) -> None:
    """The program ends by itself, and it ends here too, in every order of events that was drawn."""
    assert all(ends_without_controller(job) for job in make().jobs)
    for seed in seeds_ or seeds(25):
        Simulation(make(), seed, mode).run()


def test_c1_an_irecv_waited_for_between_two_collectives_is_not_held_up_by_them() -> None:
    all_end(programs.c1)


def test_c2_scale_up_collectives_that_couple_ranks_leave_the_rails_free_to_move() -> None:
    all_end(programs.c2)


def test_c5_messages_that_were_posted_together_are_issued_as_they_are_granted() -> None:
    all_end(programs.c5a)
    all_end(programs.c5b)


@pytest.mark.parametrize(("stages", "ports"), [(3, 1), (3, 2), (4, 1), (4, 2)])
def test_c5_a_circle_of_sends_and_receives_ends(stages: int, ports: int) -> None:
    all_end(lambda: programs.c5c(stages, ports), seeds(15))


def test_c6_two_communicators_issued_in_opposite_orders_end_on_in_order_devices() -> None:
    all_end(programs.c6, mode=Mode(finish=Finish.OP, in_order=True))


class OwnOrder(VirtualRank):
    """A rank that issues in the order of its program instead of that of its grant numbers."""

    def next_to_issue(self) -> Grant | None:
        granted = {(grant.stream, grant.n): grant for grant in self.grants.values()}
        order = list(self.handles.values())
        return granted.get(order[self.issued]) if self.issued < len(order) else None


def test_c6_the_same_program_is_stuck_when_each_rank_issues_in_its_own_order() -> None:
    with pytest.raises(ViolationError, match="stuck"):
        Simulation(programs.c6(), 0, Mode(finish=Finish.OP, in_order=True), rank_class=OwnOrder).run()


def test_c7_a_grant_in_the_middle_of_other_collectives_ends_on_in_order_devices() -> None:
    all_end(programs.c7, mode=Mode(finish=Finish.OP, in_order=True))
    all_end(programs.c7)


def test_c12_copies_of_arrivals_that_come_after_the_release_change_nothing() -> None:
    mode = Mode(copies=0.6, repeats=3, lost=0.2)
    all_end(programs.c12, seeds(60), mode)
    all_end(programs.c1, seeds(30), mode)


def test_c16_a_rank_that_dies_ends_the_job_for_all_others_with_one_cause() -> None:
    for seed in seeds(40):
        shape = replace(drawn(seed), pp=2, dp=2)
        victim = seed % 4
        run = Simulation(training(shape), seed, death=(victim, 10 + 3 * (seed % 40))).run()
        told = {failure for rank, failure in enumerate(map(str, run.failures)) if rank != victim}
        assert len(told) == 1
        cause = run.failures[(victim + 1) % 4]
        assert cause is not None
        assert (cause.problem, cause.rank) == (Problem.RANK_LOST, victim)


def test_c16_a_rank_that_falls_silent_is_named_when_its_lease_is_over() -> None:
    settings = CoreSettings(lease_s=30.0, fence_s=15.0, abort_s=5.0)
    for seed in seeds(15):
        run = Simulation(
            programs.c12(), seed, death=(1, 15), report=False, settings=settings, time_passes=True
        ).run()
        for rank in (0, 2):
            cause = run.failures[rank]
            assert cause is not None
            assert (cause.problem, cause.rank) == (Problem.RANK_LOST, 1)


def test_c16_a_deadline_ends_the_job_for_all_and_names_who_is_missing() -> None:
    base = programs.c12()
    job = base.jobs[0]
    busy = group("never", 2, 0)  # rank 2 computes for ever
    late = replace(job, groups=(*job.groups, busy), programs=(*job.programs[:2], (ScaleUp("never"),)))
    for seed in seeds(10):
        run = Simulation(replace(base, jobs=(late,)), seed, time_passes=True).run()
        cause = run.failures[0]
        assert cause is not None
        assert run.failures == [cause] * 3
        assert cause.problem is Problem.DEADLINE
        # Whichever was asked for first: rank 0 may wait for rank 1, which waits for rank 2.
        assert (cause.data["connection"], cause.data["ranks"]) in [("d", [2]), ("c", [1])]


def test_a_rank_that_leaves_early_ends_the_job_for_those_who_still_need_it() -> None:
    base = programs.c12()
    job = base.jobs[0]
    early = replace(job, programs=(*job.programs[:2], ()))
    for seed in seeds(10):
        run = Simulation(replace(base, jobs=(early,)), seed).run()
        for failure in run.failures[:2]:
            assert failure is not None
            assert (failure.problem, failure.rank) == (Problem.RANK_LOST, 2)


def test_c17_a_receiver_that_never_waits_still_frees_its_port() -> None:
    all_end(programs.c17)


def test_members_of_one_group_may_have_different_numbers_of_phases() -> None:
    all_end(programs.phase_counters, seeds(6))


def test_an_asynchronous_collective_does_not_keep_its_rank_from_the_next_send() -> None:
    all_end(programs.async_then_send)


def test_eager_sends_are_stopped_by_the_deadline_that_names_the_missing_receiver() -> None:
    assert not ends_without_controller(programs.eager_sends().jobs[0])
    for seed in seeds(10):
        run = Simulation(programs.eager_sends(), seed, time_passes=True).run()
        first, second = run.failures
        assert first is not None
        assert first == second
        assert first.problem is Problem.DEADLINE
        assert first.data["ranks"] == [first.data["destination"]]
        assert f"ranks {first.data['destination']} have not arrived" in first.detail


def test_waiting_on_a_cuda_stream_only_is_stopped_by_the_deadline_that_names_who_is_missing() -> None:
    missing = {"ring1": 0, "ring0": 3, "a:2-0": 2, "b:1-3": 1}
    assert not ends_without_controller(programs.stream_wait().jobs[0])
    for seed in seeds(10):
        run = Simulation(programs.stream_wait(), seed, time_passes=True).run()
        cause = run.failures[0]
        assert cause is not None
        assert run.failures == [cause] * 4
        assert cause.problem is Problem.DEADLINE
        assert cause.data["ranks"] == [missing[str(cause.data["connection"])]]


@pytest.mark.parametrize("reshard", [True, False], ids=["reshard", "keep"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_ends_with_fsdp_inside_its_stages(schedule: str, reshard: bool) -> None:
    small = Shape(schedule, batches=2, layers=2, reshard=reshard)
    all_end(lambda: training(small), seeds(4))
    all_end(lambda: training(replace(small, ahead=True, ports=1)), seeds(4))
    all_end(lambda: training(replace(small, pp=4, layers=1)), seeds(2))


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_property_training_runs_by_chance_are_safe_and_end(first: int) -> None:
    for seed in seeds(20, first * max(1, round(SCALE))):
        all_end(lambda seed=seed: training(drawn(seed)), [seed])


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_property_programs_by_chance_are_safe_and_end(first: int) -> None:
    for seed in seeds(50, first * max(1, round(SCALE))):
        all_end(lambda seed=seed: programs.by_chance(seed), [seed])


def test_property_two_jobs_side_by_side_never_touch_each_other() -> None:
    for seed in seeds(20):
        all_end(lambda seed=seed: programs.side_by_side(seed), [seed])


def test_property_switches_that_hold_circuits_from_before_are_taken_over_safely() -> None:
    for seed in seeds(25):
        all_end(lambda seed=seed: programs.with_past(training(drawn(seed)), seed), [seed])
        all_end(lambda seed=seed: programs.with_past(programs.by_chance(seed), seed), [seed])
    all_end(programs.seeded_race, seeds(20))


def test_property_a_job_that_starts_again_is_not_touched_by_its_former_life() -> None:
    """Its requests may still arrive, its steps may still be on a device, its grants may still be stored."""
    for seed in seeds(30):
        mode = replace(Mode.drawn(seed), copies=0.5)
        shape = replace(drawn(seed), pp=2, dp=2, steps=1)
        Simulation(training(shape), seed, mode, restart=10 + 7 * (seed % 30)).run()


def test_a_stuck_run_says_who_waits_for_whom_and_how_to_see_it_again() -> None:
    with pytest.raises(ViolationError, match="stuck: nothing can happen any more") as stuck:
        Simulation(programs.eager_sends(), 3).run()
    (picture,) = stuck.value.__notes__
    assert "replay: scenario 'eager sends', seed 3, Mode(" in picture
    assert "rank 0 at operation 0 (Send to 1 on line), blocked on line:0-1[0>1]#0" in picture
    assert "line:0-1[0>1]#0 (declared): members-missing: ranks 1 have not arrived" in picture


def test_a_run_is_the_same_again_for_the_same_seed() -> None:
    first, again = (Simulation(programs.by_chance(5), 5).run() for _ in range(2))
    assert (first.events, list(first.trace), first.now) == (again.events, list(again.trace), again.now)
