"""Device steps from plan to read-back, and everything that may change between planning and starting."""

from __future__ import annotations

import pytest

from opus_sdn.intent import stepping
from opus_sdn.intent.changes import CircuitsObserved, StepPlanned
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Arrival, Stream
from opus_sdn.intent.planner import Plan
from opus_sdn.intent.reasons import Reason
from tests.intent.bench import Bench
from tests.intent.rows import AB, BC, CD, GROUPS, pairs, plan_ab_over_bc, row, why
from tests.intent.worlds import group, make_fabric, make_spec, places


@pytest.fixture
def bench() -> Bench:
    """Four ranks in a row."""
    return row()


def test_a_step_is_written_down_before_it_starts_and_says_whom_it_disturbs() -> None:
    """Both rails of the shared switch are ours, but a pair from one to the other is no circuit of ours."""
    bench = Bench(make_fabric(4, gpus=2, ports=1, one_switch=True))
    bench.lit["ocs"] = pairs((1, 2)) | {CrossConnect(0, 5)}
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.play()
    bench.arrive(AB, 0, 0, 1)
    effects = bench.engine.pump(bench.now)
    assert effects.batch is not None
    assert effects.batch.durable
    (planned,) = [c for c in effects.batch.changes if isinstance(c, StepPlanned)]
    assert (planned.step, planned.switch, planned.generation) == (1, "ocs", 1)
    assert set(planned.remove) == pairs((1, 2)) | {CrossConnect(0, 5)}
    assert set(planned.add) == pairs((0, 1))
    assert planned.causes == ("job/1/ab#0",)
    assert set(planned.disturbed) == {"h1:0:0--h2:0:0", "ocs 0->5"}
    assert effects.steps == (1,)
    assert why(bench, 0) == (Reason.SWITCHING, "step 1 makes its circuits")


def test_step_numbers_go_on_from_what_the_store_remembers() -> None:
    bench = Bench(make_fabric(4, ports=1))
    bench.engine.state.next_step = 100
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.arrive(AB, 0, 0, 1)
    assert bench.pump() == (100,)


def test_nothing_is_granted_before_the_device_has_shown_it(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.pump()
    assert bench.grants(0) == []
    bench.settle(step)
    bench.pump()
    assert bench.grants(0) == [("ab", 0)]


def test_a_device_that_says_done_and_shows_otherwise_has_failed(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((1, 2))
    bench.observe()
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.settle(step, ok=True, works=False)
    bench.pump()
    assert bench.grants(0) == []
    failed = bench.events("step.failed")[0]
    assert "the device says done but shows otherwise: missing [CrossConnect(ingress=0, egress=1)" in str(
        failed.data["detail"]
    )
    assert "still there [CrossConnect(ingress=2, egress=1)" in str(failed.data["detail"])
    assert bench.planned == []
    bench.pause()
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_a_device_that_fails_and_shows_it_done_all_the_same_is_believed_by_what_it_shows(
    bench: Bench,
) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.settle(step, ok=False, works=True, detail="answer lost")
    bench.pump()
    assert bench.grants(0) == [("ab", 0)]
    assert bench.planned == []
    kinds = [e.kind for e in bench.events() if e.kind.startswith(("step.", "intent."))]
    assert kinds == [
        "intent.complete",
        "step.planned",
        "intent.installing",
        "step.started",
        "step.failed",
        "intent.complete",
        "intent.granted",
    ]


def test_a_failed_step_leaves_its_reason_until_it_is_planned_anew(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.settle(step, ok=False, works=False, detail="no light")
    said = "step 1 failed: no light; made again after a pause of 0.05 s"
    assert why(bench, 0) == (Reason.SWITCH_FAILED, said)
    bench.pause()
    bench.pump()
    said = "step 1 failed: no light; tried again as step 2"
    assert why(bench, 0) == (Reason.SWITCH_FAILED, said)


def test_ports_of_a_step_on_the_device_are_up_for_nobody(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.arrive(BC, 0, 1, 2)  # takes 0-1 down
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    assert bench.grants(0) == []
    assert why(bench, 0) == (Reason.MOVING, "position 0 of ocs0 is moving")
    bench.settle(step)
    bench.pump()
    assert bench.grants(2) == [("bc", 0)]


def test_one_step_serves_everything_that_can_go(bench: Bench) -> None:
    """Two rings that take the two ends of an idle circuit apart: one step, not one after the other."""
    bench.lit["ocs0"] = pairs((1, 2))
    bench.observe()
    bench.arrive(AB, 0, 0, 1)
    bench.arrive(CD, 0, 2, 3)
    bench.play()
    assert len(bench.steps) == 1
    assert bench.grants(0) + bench.grants(3) == [("ab", 0), ("cd", 0)]


def test_steps_of_different_ports_are_in_flight_together(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    first = bench.start()
    bench.arrive(CD, 0, 2, 3)
    bench.pump()
    second = bench.start()
    assert first is not None
    assert second is not None
    bench.settle(second)  # its reading says nothing of the first one's ports
    bench.pump()
    assert (bench.grants(0), bench.grants(3)) == ([], [("cd", 0)])
    bench.settle(first)
    bench.pump()
    assert bench.grants(0) == [("ab", 0)]


def test_a_reading_says_nothing_about_ports_that_move(bench: Bench) -> None:
    plan_ab_over_bc(bench)
    step = bench.start()
    assert step is not None
    state = bench.engine.state.switches["ocs0"]
    before, generation = set(state.matching), state.generation
    bench.engine.observe(bench.now, "ocs0", frozenset(pairs((0, 1))))
    assert (state.matching, state.generation) == (before, generation)


def test_the_same_reading_again_is_no_news(bench: Bench) -> None:
    generation = bench.engine.state.switches["ocs0"].generation
    bench.observe()
    bench.pump()
    assert bench.engine.state.switches["ocs0"].generation == generation
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.pump()
    seen = [c for c in bench.changes if isinstance(c, CircuitsObserved)]
    assert [(c.generation, c.matching) for c in seen][-1] == (
        generation + 1,
        (CrossConnect(0, 1), CrossConnect(1, 0)),
    )


def test_a_circuit_that_comes_up_by_itself_serves_who_waits_for_it(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.play()
    assert bench.grants(0) == [("ab", 0)]
    assert bench.steps == []
    assert bench.events("step.dropped")[0].data["detail"] == "what it was planned for no longer waits"


def test_an_unknown_step_neither_starts_nor_ends(bench: Bench) -> None:
    assert bench.engine.start_step(bench.now, 77) is None
    bench.engine.settle_step(bench.now, 77, True, None, frozenset())
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    assert bench.engine.start_step(bench.now, step.id) is None  # it has started already


def test_a_plan_that_breaks_an_invariant_is_refused_and_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.lit["ocs0"] = pairs((1, 2))
    bench.observe()

    def careless(facts: object, wants: object, chosen: object) -> Plan:
        return Plan("ocs0", 1, (), (CrossConnect(0, 1),), ("job/1/ab#0",), ())

    monkeypatch.setattr(stepping, "plan", careless)
    bench.arrive(AB, 0, 0, 1)
    assert bench.pump() == ()
    refused = bench.events("plan.refused")
    assert [(e.switch, e.data["violations"]) for e in refused] == [
        ("ocs0", ["I2: position 1 (out) is used twice"])
    ]
    bench.pump()
    assert len(bench.events("plan.refused")) == 1  # not again and again


def test_a_ring_over_two_switches_is_granted_when_both_are_ready() -> None:
    bench = Bench(make_fabric(2, gpus=2))
    bench.observe()
    bench.job(make_spec(places(4, gpus=2), {"dp": 4}), group("ring", 0, 1, 2, 3))
    for rank in range(4):
        bench.news(rank, arrivals=[Arrival(Stream("ring"), 0)])
    bench.pump()
    first, second = bench.start(), bench.start()
    assert first is not None
    assert second is not None
    assert {first.switch, second.switch} == {"ocs0", "ocs1"}
    bench.settle(first)
    bench.pump()
    assert bench.grants(0) == []
    bench.settle(second)
    bench.pump()
    assert bench.grants(3) == [("ring", 0)]
    assert bench.engine.state.jobs["job"].topology == {"rail0": "1", "rail1": "1"}


def test_a_switch_without_ports_of_a_job_never_changes_its_topology() -> None:
    bench = Bench(make_fabric(2, gpus=2))
    bench.observe()
    bench.job(make_spec(places(2), {"dp": 2}))
    bench.engine.observe(bench.now, "ocs1", frozenset(pairs((0, 1))))
    assert bench.engine.state.jobs["job"].topology == {"rail0": "-"}


def test_a_seed_that_is_blocked_waits_and_says_nothing() -> None:
    """The neighbour's stray circuit is live on a port of the new job: the initial topology has to wait."""
    bench = Bench(make_fabric(3, ports=1))
    bench.lit["ocs0"] = pairs((0, 2))
    bench.observe()
    fabric = bench.engine.state.fabric
    stray = fabric.circuit_of("ocs0", CrossConnect(0, 2))
    assert stray is not None
    bench.engine.state.hold([stray])
    bench.job(make_spec(places(2), {"dp": 2}, initial_topology="1"))
    bench.play()
    assert bench.steps == []
    bench.engine.state.unhold([stray])
    bench.observe()
    bench.engine.state.dirty_switches["ocs0"] = None
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1))


def test_a_ring_is_completed_around_what_is_up_of_it() -> None:
    bench = Bench(make_fabric(3))
    bench.lit["ocs0"] = pairs((1, 2))
    bench.observe()
    bench.job(make_spec(places(3), {"dp": 3}), group("ring", 0, 1, 2))
    for rank in range(3):
        bench.news(rank, arrivals=[Arrival(Stream("ring"), 0)])
    bench.play()
    (step,) = bench.steps
    assert (set(step.remove), set(step.add)) == (set(), pairs((3, 4), (5, 0)))
    assert bench.grants(2) == [("ring", 0)]


def test_each_switch_is_planned_for_those_who_need_it() -> None:
    bench = Bench(make_fabric(2, gpus=2))
    bench.observe()
    spec = make_spec(places(4, gpus=2), {"dp": 2, "tp": 2})
    bench.job(spec, group("even", 0, 2), group("odd", 1, 3))
    bench.arrive(Stream("even"), 0, 0, 2)
    bench.arrive(Stream("odd"), 0, 1, 3)
    bench.play()
    assert {(step.switch, step.causes) for step in bench.steps} == {
        ("ocs0", ("job/1/even#0",)),
        ("ocs1", ("job/1/odd#0",)),
    }


def test_an_intent_whose_steps_fail_on_two_switches_goes_back_once() -> None:
    bench = Bench(make_fabric(2, gpus=2))
    bench.observe()
    bench.job(make_spec(places(4, gpus=2), {"dp": 4}), group("ring", 0, 1, 2, 3))
    for rank in range(4):
        bench.news(rank, arrivals=[Arrival(Stream("ring"), 0)])
    bench.pump()
    for step in (bench.start(), bench.start()):
        assert step is not None
        bench.settle(step, ok=False, works=False, detail="no light")
    bench.pause()
    bench.pump()
    kinds = [e.kind for e in bench.events() if e.kind.startswith(("step.f", "intent."))]
    assert kinds == [
        "intent.complete",
        "intent.installing",
        "step.failed",
        "intent.complete",
        "step.failed",
        "intent.installing",
    ]
