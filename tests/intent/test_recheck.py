"""Starting a step checks again all that may have changed since it was planned."""

from __future__ import annotations

import pytest

from opus_sdn.intent.changes import IntentState, StepMoved, StepState
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Stream
from opus_sdn.intent.reasons import Reason
from tests.intent.bench import Bench
from tests.intent.rows import AB, BC, CD, GROUPS, pairs, plan_ab_over_bc, row, why
from tests.intent.worlds import group, make_fabric, make_spec, places


@pytest.fixture
def bench() -> Bench:
    """Four ranks in a row."""
    return row()


def test_a_step_is_dropped_when_what_it_removes_carries_traffic_by_then(bench: Bench) -> None:
    """C9: the initial topology would take down a ring that is up, and the ring is granted meanwhile."""
    bench = Bench(make_fabric(4, ports=1))
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}, initial_topology="00"), group("ab", 0, 1))
    bench.pump()
    assert len(bench.planned) == 1
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    assert bench.grants(0) == [("ab", 0)]
    assert bench.start() is None
    bench.pump()
    assert bench.events("step.dropped")[0].data["step"] == 1
    assert bench.lit["ocs0"] == pairs((0, 1))


def objection(bench: Bench) -> object:
    """Start the planned step, which is dropped, and hear why."""
    assert bench.start() is None
    bench.pump()
    moved = [c for c in bench.changes if isinstance(c, StepMoved) and c.state is StepState.DROPPED]
    assert [e.data["detail"] for e in bench.events("step.dropped")] == [c.detail for c in moved]
    return moved[-1].detail


def test_a_step_is_dropped_when_what_it_removes_is_gone(bench: Bench) -> None:
    plan_ab_over_bc(bench)
    bench.lit["ocs0"] = set()
    bench.observe()
    assert objection(bench) == "2->1 is no longer there"
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_a_step_is_dropped_when_its_port_was_taken_meanwhile(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    bench.lit["ocs0"] = pairs((1, 3))
    bench.observe()
    assert objection(bench) == "position 1 has been taken by 3->1"
    assert why(bench, 0)[0] is Reason.SWITCHING
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_a_step_is_dropped_when_a_lock_has_come_upon_what_it_removes(bench: Bench) -> None:
    plan_ab_over_bc(bench)
    bench.engine.state.hold(bench.engine.state.jobs["job"].connection("bc").circuits)
    assert objection(bench) == "2->1 carries traffic now"


def test_a_step_is_dropped_when_its_ports_move(bench: Bench) -> None:
    plan_ab_over_bc(bench)
    switch = bench.engine.state.switches["ocs0"]
    switch.moving[switch.switch.terminals_of(CrossConnect(0, 1))[0]] = 99
    assert objection(bench) == "position 0 is moving"


def test_a_step_is_dropped_when_someone_ordered_before_needs_what_it_removes(bench: Bench) -> None:
    plan_ab_over_bc(bench)
    bench.arrive(BC, 0, 1, 2)
    bench.engine.state.jobs["job"].complete[(BC, 0)].state = IntentState.INSTALLING
    bench.engine.state.jobs["job"].complete[(BC, 0)].age = 0  # it has waited longer than ab
    assert objection(bench) == "2->1 is needed by bc#0, which goes first"


def test_a_step_for_several_removes_nothing_that_goes_before_the_one_who_removes_it() -> None:
    """Order ab, de, cd: ab may go first, but what cd removes is up for de."""
    bench = Bench(make_fabric(5, ports=1))
    bench.lit["ocs0"] = pairs((3, 4))
    bench.observe()
    bench.job(make_spec(places(5), {"dp": 5}), *GROUPS, group("de", 3, 4))
    bench.arrive(AB, 0, 0, 1)
    bench.arrive(CD, 0, 2, 3)
    bench.pump()
    assert len(bench.planned) == 1
    bench.arrive(Stream("de"), 0, 3, 4)
    complete = bench.engine.state.jobs["job"].complete
    complete[(Stream("de"), 0)].state = IntentState.INSTALLING
    complete[(Stream("de"), 0)].age, complete[(CD, 0)].age = 2, 3
    assert objection(bench) == "4->3 is needed by de#0, which goes first"


def test_someone_ordered_behind_does_not_keep_a_step_from_starting(bench: Bench) -> None:
    plan_ab_over_bc(bench)
    bench.arrive(BC, 0, 1, 2)
    bench.arrive(CD, 0, 2, 3)
    step = bench.start()
    assert step is not None
    bench.settle(step)
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_someone_ordered_before_who_needs_other_circuits_does_not_keep_a_step_from_starting(
    bench: Bench,
) -> None:
    plan_ab_over_bc(bench)
    bench.arrive(CD, 0, 2, 3)
    bench.engine.state.jobs["job"].complete[(CD, 0)].state = IntentState.INSTALLING
    bench.engine.state.jobs["job"].complete[(CD, 0)].age = 0
    assert bench.start() is not None
