"""Steps that fail: who is to blame, who is tried again when, and what is stalled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from opus_sdn.intent.changes import IntentState
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Arrival, CoreSettings, Stream
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.switches import FailureKind, Step
from tests.intent.bench import NOON, Bench
from tests.intent.rows import AB, BC, CD, GROUPS, pairs, why
from tests.intent.worlds import PATIENT, group, make_fabric, make_spec, places

RINGS = 8
STEPS_MAX = 50


@pytest.fixture
def bench() -> Bench:
    """Four ranks in a row, who may be silent for ever."""
    bench = Bench(make_fabric(4, ports=1), PATIENT)
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    return bench


def many(settings: CoreSettings = PATIENT) -> Bench:
    """Sixteen ranks in eight rings of two that share no port; ring k is on positions 2k and 2k + 1."""
    bench = Bench(make_fabric(2 * RINGS, ports=1), settings)
    bench.observe()
    groups = [group(f"r{k}", 2 * k, 2 * k + 1) for k in range(RINGS)]
    bench.job(make_spec(places(2 * RINGS), {"dp": 2 * RINGS}, deadline_s=1e9), *groups)
    for k in range(RINGS):
        bench.arrive(Stream(f"r{k}"), 0, 2 * k, 2 * k + 1)
    return bench


Works = Callable[[Step], bool]


def carry_out(bench: Bench, works: Works) -> list[Step]:
    """Carry out what is planned without time going on; a step does nothing and fails unless it works."""
    given: list[Step] = []
    bench.pump()
    while bench.planned:
        while bench.planned:
            step = bench.start()
            if step is not None:
                given.append(step)
                done = works(step)
                bench.settle(step, ok=done, works=done, detail=None if done else "no light")
        assert len(given) < STEPS_MAX, "the device is asked again and again"
        bench.pump()
    return given


def without_port_7(step: Step) -> bool:
    """Whether the step does without position 7, which is broken."""
    return not any(7 in pair for pair in step.add)


def without_ab(step: Step) -> bool:
    """Whether the step does without the circuit of the ring ab, which cannot be made."""
    return CrossConnect(0, 1) not in step.add


def nothing(step: Step) -> bool:
    """No step works."""
    return False


def granted(bench: Bench) -> list[int]:
    """Which rings have been granted."""
    return [k for k in range(RINGS) if bench.grants(2 * k)]


def test_one_bad_port_does_not_fail_the_bulk_step_of_the_others_again_and_again() -> None:
    bench = many()
    steps = carry_out(bench, without_port_7)
    assert granted(bench) == [0, 1, 2, 4, 5, 6, 7]
    assert [len(step.causes) for step in steps] == [8, 4, 4, 2, 2, 1, 1]
    assert bench.now == NOON, "the innocent ones do not wait for the guilty one's pauses"


def test_the_one_that_cannot_be_made_gets_pauses_that_double_up_to_a_limit() -> None:
    bench = many()
    carry_out(bench, without_port_7)
    at = [bench.now - NOON]
    while len(at) < 14:
        bench.pause()
        if carry_out(bench, without_port_7):
            at.append(bench.now - NOON)
    gaps = [round(later - earlier, 6) for earlier, later in pairwise(at)]
    assert gaps == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]


def test_what_a_pausing_need_has_half_made_is_kept_for_it_and_nobody_plans_against_that() -> None:
    bench = Bench(make_fabric(4, ports=1), replace(PATIENT, overtake_s=0.01))
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.lit["ocs0"] = {CrossConnect(0, 1)}
    bench.settle(step, ok=False, works=False, detail="port 1 is stuck")
    bench.now += 0.02  # overdue by now: it goes first, and pauses for longer
    bench.arrive(BC, 0, 1, 2)
    assert carry_out(bench, nothing) == []
    assert bench.events("step.dropped") == []
    assert why(bench, 2)[0] is Reason.RESERVED
    bench.pause()
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_pairs_that_the_device_names_are_planned_apart_at_once() -> None:
    bench = many()
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.engine.settle_step(
        bench.now, step.id, False, "2 pairs failed", frozenset(), failed={CrossConnect(6, 7): "port 7 failed"}
    )
    bench.pump()
    assert len(bench.planned) == 1
    again = bench.start()
    assert again is not None
    assert len(again.causes) == RINGS - 1
    assert "job/1/r3#0" not in again.causes


def test_what_was_made_of_a_bulk_step_counts_and_only_the_rest_is_tried_again() -> None:
    bench = many()
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.lit["ocs0"] = set(pairs((0, 1), (2, 3), (4, 5)))
    bench.settle(step, ok=False, works=False, detail="stopped after 6 of 16")
    bench.pump()
    assert granted(bench) == [0, 1, 2]
    assert len(bench.planned) == 2
    bench.play()
    assert granted(bench) == list(range(RINGS))


@pytest.mark.parametrize("kind", [FailureKind.TRANSIENT, FailureKind.AMBIGUOUS])
def test_when_it_was_the_switchs_own_matter_nobody_is_blamed(kind: FailureKind) -> None:
    bench = many()
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.engine.settle_step(bench.now, step.id, False, "busy", frozenset(), kind=kind)
    bench.pump()
    assert bench.engine.state.switches["ocs0"].setbacks == {}
    assert len(bench.planned) == 1
    bench.play()
    assert granted(bench) == list(range(RINGS))


def test_a_lost_answer_after_which_a_part_is_there_blames_those_that_are_not(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.arrive(CD, 0, 2, 3)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.lit["ocs0"] = set(pairs((0, 1)))
    bench.engine.settle_step(
        bench.now, step.id, False, "answer lost", frozenset(bench.lit["ocs0"]), kind=FailureKind.AMBIGUOUS
    )
    assert list(bench.engine.state.switches["ocs0"].setbacks) == ["job/1/cd#0"]


def test_a_new_need_starts_without_the_pause_of_the_one_before(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    fail_until(bench, NOON + 3)
    bench.lit["ocs0"] = set(pairs((0, 1)))
    bench.observe()
    bench.pump()
    bench.release(AB, 0, 0, 1)
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.arrive(AB, 1, 0, 1)
    bench.pump()
    assert len(bench.planned) == 1
    assert bench.engine.state.switches["ocs0"].setbacks == {}


def test_after_a_success_nothing_is_held_against_anybody() -> None:
    bench = many()
    carry_out(bench, without_port_7)
    bench.pause()
    bench.play()
    assert granted(bench) == list(range(RINGS))
    assert bench.engine.state.switches["ocs0"].setbacks == {}
    assert bench.engine.next_deadline() is not None  # the leases
    assert bench.engine.state.switches["ocs0"].retry_at is None


# --- stalled


def fail_until(bench: Bench, moment: float) -> None:
    """No step works until then."""
    carry_out(bench, nothing)
    while bench.now < moment:
        bench.pause()
        carry_out(bench, nothing)


def test_a_need_that_a_device_does_not_serve_is_stalled_and_goes_on_when_it_does(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    fail_until(bench, NOON + 10)
    (intent,) = bench.engine.state.jobs["job"].waiting
    assert intent.state is IntentState.STALLED
    (stalled,) = bench.events("intent.stalled")
    assert stalled.data["reason"] == "switch-failed"
    assert "no light; made again after a pause of" in str(stalled.data["detail"])
    fail_until(bench, NOON + 100)
    assert len(bench.events("intent.stalled")) == 1
    bench.pause()
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_a_stalled_need_holds_up_nobody_whom_the_device_serves(bench: Bench) -> None:
    """AB cannot be made; BC shares a port with it, and is younger."""
    bench.arrive(AB, 0, 0, 1)
    fail_until(bench, NOON + 10)
    bench.arrive(BC, 0, 1, 2)
    carry_out(bench, without_ab)
    assert bench.grants(2) == [("bc", 0)]


def test_half_a_circuit_of_a_stalled_need_may_be_taken_down_for_others(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    fail_until(bench, NOON + 10)
    bench.lit["ocs0"] = {CrossConnect(1, 0)}
    bench.observe()
    bench.arrive(BC, 0, 1, 2)
    carry_out(bench, without_ab)
    assert bench.grants(2) == [("bc", 0)]


def test_half_a_circuit_of_a_stalled_need_may_be_taken_down_for_another_stalled_one(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.arrive(BC, 0, 1, 2)
    fail_until(bench, NOON + 20)
    states = {intent.key: intent.state for intent in bench.engine.state.jobs["job"].waiting}
    assert states["ab#0"] is IntentState.STALLED
    bench.lit["ocs0"] = {CrossConnect(1, 0)}
    bench.observe()
    bench.pause()
    carry_out(bench, without_ab)
    for _ in range(12):
        if not bench.grants(2):
            bench.pause()
            carry_out(bench, without_ab)
    assert bench.grants(2) == [("bc", 0)]


def test_what_waits_for_traffic_is_not_stalled_however_long_it_waits() -> None:
    bench = Bench(make_fabric(4, ports=1), PATIENT)
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}, deadline_s=1e9), group("ab", 0, 1), group("bc", 1, 2))
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    bench.arrive(BC, 0, 1, 2)
    bench.play()
    bench.now += 1000
    bench.engine.tick(bench.now)
    bench.pump()
    assert bench.events("intent.stalled") == []
    assert why(bench, 2)[0] is Reason.LOCKED


def test_a_stalled_need_that_comes_to_wait_for_traffic_is_stalled_no_more(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    fail_until(bench, NOON + 10)
    bench.arrive(BC, 0, 1, 2)
    carry_out(bench, without_ab)
    bench.pause()
    carry_out(bench, without_ab)
    (intent,) = bench.engine.state.jobs["job"].waiting
    assert (intent.state, why(bench, 0)[0]) == (IntentState.COMPLETE, Reason.LOCKED)
    bench.release(BC, 0, 1, 2)
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_a_need_on_a_switch_that_is_away_is_stalled_at_its_limit_with_that_reason(bench: Bench) -> None:
    bench.engine.lose_switch(bench.now, "ocs0", "no route to host")
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    assert bench.engine.next_deadline() == NOON + 10
    bench.pause()
    bench.pump()
    assert bench.events("intent.stalled")[0].data["reason"] == "switch-away"


def test_a_job_that_ends_leaves_nothing_stalled(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    bench.engine.abort(bench.now, "job", 1, 0, "enough")
    bench.now += 20
    bench.engine.tick(bench.now)
    bench.pump()
    assert bench.events("intent.stalled") == []


def test_a_stalled_need_of_a_job_that_fails_has_failed(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    fail_until(bench, NOON + 10)
    bench.engine.abort(bench.now, "job", 1, 0, "enough")
    bench.pump()
    assert [e.kind for e in bench.events() if e.kind.startswith("intent.")][-1] == "intent.failed"


def test_the_next_arrivals_of_a_stalled_need_change_nothing(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    fail_until(bench, NOON + 10)
    bench.news(0, arrivals=[Arrival(AB, 0, blocking=True)])
    bench.pump()
    assert len(bench.events("intent.stalled")) == 1
