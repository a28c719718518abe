"""What a reading shows that no step of ours explains: foreign circuits, lost circuits, and rivals."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from opus_sdn.intent import drift
from opus_sdn.intent.changes import CircuitsObserved
from opus_sdn.intent.fabric import CrossConnect, DriftPolicy, Fabric
from opus_sdn.intent.model import Alarm, Arrival, CoreSettings, Stream
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.switches import ForeignKind
from tests.intent.bench import NOON, Bench
from tests.intent.rows import AB, BC, CD, GROUPS, pairs, row, why
from tests.intent.worlds import group, make_fabric, make_spec, places


@pytest.fixture
def bench() -> Bench:
    """Four ranks in a row."""
    return row()


def only_observed(fabric: Fabric) -> Fabric:
    """The same fabric, whose rails report and never repair."""
    rails = tuple(dataclasses.replace(rail, drift=DriftPolicy.OBSERVE) for rail in fabric.rails)
    return dataclasses.replace(fabric, rails=rails)


def observed_row() -> Bench:
    """Four ranks in a row on a rail that is only observed."""
    bench = Bench(only_observed(make_fabric(4, ports=1)))
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.play()
    return bench


def facts(bench: Bench, kind: str) -> dict[str, object]:
    """The data of the newest event of a kind."""
    bench.pump()
    return bench.events(kind)[-1].data


def hold_ab(bench: Bench) -> None:
    """The ring of ranks 0 and 1 is granted and held."""
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def go_on(bench: Bench, seconds: float) -> None:
    """Time passes, and the core is told."""
    bench.now += seconds
    for rank in range(4):
        bench.news(rank)
    bench.engine.tick(bench.now)


# --- adoption


def test_the_first_reading_names_what_is_there_and_what_we_did_not_make() -> None:
    bench = Bench(make_fabric(4, ports=1))
    bench.lit["ocs0"] = pairs((0, 1)) | {CrossConnect(4, 5), CrossConnect(2, 4)}
    bench.observe()
    told = facts(bench, "switch.adopted")
    assert told == {
        "cross_connects": 4,
        "foreign": [[0, 1, "own-ports"], [1, 0, "own-ports"], [2, 4, "mixed"], [4, 5, "outside"]],
        "foreign_count": 4,
        "dark": [],
    }
    (observed,) = [c for c in bench.changes if isinstance(c, CircuitsObserved)]
    assert observed.foreign == observed.matching


def test_what_an_earlier_start_knew_is_compared_with_what_is_there() -> None:
    bench = Bench(make_fabric(4, ports=1))
    bench.engine.remember("ocs0", pairs((0, 1)) | pairs((2, 3)), [CrossConnect(2, 3), CrossConnect(3, 2)])
    bench.engine.remember("a switch that was taken away since", pairs((0, 1)))
    assert not bench.engine.state.switches["ocs0"].matching, "what is remembered is up for nobody"
    bench.lit["ocs0"] = {CrossConnect(0, 1), CrossConnect(2, 3), CrossConnect(3, 2), CrossConnect(1, 4)}
    bench.observe()
    told = facts(bench, "switch.adopted")
    assert (told["appeared"], told["vanished"]) == ([[1, 4]], [[1, 0]])
    assert told["foreign"] == [[1, 4, "mixed"], [2, 3, "own-ports"], [3, 2, "own-ports"]]
    assert bench.events("switch.drifted") == []


def test_where_nothing_differs_the_first_reading_says_so_and_nothing_is_done() -> None:
    bench = Bench(make_fabric(4, ports=1))
    bench.engine.remember("ocs0", pairs((0, 1)))
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.play()
    told = facts(bench, "switch.adopted")
    assert (told["appeared"], told["vanished"], told["foreign_count"]) == ([], [], 0)
    assert bench.steps == []


def test_nothing_is_planned_on_a_switch_that_was_never_read() -> None:
    bench = Bench(make_fabric(4, ports=1))
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.arrive(AB, 0, 0, 1)
    assert bench.pump() == ()
    assert why(bench, 0) == (Reason.SWITCH_AWAY, "switch ocs0 has not been read yet")
    bench.observe()
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


# --- foreign circuits


def test_what_somebody_else_changes_is_told_once_and_left_alone_while_nobody_needs_its_ports(
    bench: Bench,
) -> None:
    bench.lit["ocs0"] = pairs((0, 3)) | {CrossConnect(4, 5)}
    bench.observe()
    told = facts(bench, "switch.drifted")
    assert told["appeared"] == [[0, 3], [3, 0], [4, 5]]
    assert told["foreign"] == [[0, 3, "own-ports"], [3, 0, "own-ports"], [4, 5, "outside"]]
    bench.observe()
    bench.play()
    assert len(bench.events("switch.drifted")) == 1
    assert bench.steps == []


def test_our_own_steps_are_no_drift_and_make_no_foreign_circuits(bench: Bench) -> None:
    hold_ab(bench)
    assert bench.events("switch.drifted") == []
    state = bench.engine.state.switches["ocs0"]
    assert (state.foreign, state.made) == ({}, pairs((0, 1)))


def test_a_strange_pair_that_comes_up_with_our_step_is_told(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.lit["ocs0"] |= {CrossConnect(4, 5)}
    bench.settle(step)
    assert facts(bench, "switch.drifted")["appeared"] == [[4, 5]]


def test_a_foreign_circuit_on_our_ports_goes_when_it_is_in_the_way(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((1, 3))
    bench.observe()
    hold_ab(bench)
    assert bench.lit["ocs0"] == pairs((0, 1))


def test_a_foreign_circuit_is_never_removed_where_the_rail_is_only_observed() -> None:
    bench = observed_row()
    bench.lit["ocs0"] = pairs((1, 3))
    bench.observe()
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert bench.steps == []
    reason, detail = why(bench, 0)
    assert reason is Reason.FOREIGN
    assert detail == (
        "3->1 of ocs0 is in the way, somebody else made it, and the rail's drift policy is observe: "
        "whoever made it has to remove it, or the policy has to become auto"
    )
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_leftovers_of_somebody_else_stay_where_the_rail_is_only_observed() -> None:
    bench = Bench(only_observed(make_fabric(4)))
    bench.lit["ocs0"] = pairs((3, 4))
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}, initial_topology="00"))
    bench.play()
    assert bench.lit["ocs0"] >= pairs((3, 4))


def test_a_foreign_circuit_that_a_rank_uses_is_ours_from_then_on(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    hold_ab(bench)
    assert bench.steps == []
    assert bench.engine.state.switches["ocs0"].foreign == {}


def test_on_an_observed_rail_it_stays_somebody_elses() -> None:
    bench = observed_row()
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    hold_ab(bench)
    foreign = bench.engine.state.switches["ocs0"].foreign
    assert {pair: f.kind for pair, f in foreign.items()} == dict.fromkeys(
        pairs((0, 1)), ForeignKind.OWN_PORTS
    )
    bench.release(AB, 0, 0, 1)
    bench.arrive(BC, 0, 1, 2)
    bench.play()
    assert why(bench, 2)[0] is Reason.FOREIGN


def test_a_planned_step_is_dropped_when_what_it_removes_has_become_somebody_elses() -> None:
    bench = observed_row()
    hold_ab(bench)
    bench.release(AB, 0, 0, 1)
    bench.arrive(BC, 0, 1, 2)
    bench.pump()
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    assert bench.start() is None
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1))
    assert why(bench, 2)[0] is Reason.FOREIGN


# --- circuits lost under a lock


def test_a_circuit_that_vanishes_under_a_lock_is_an_alarm_and_is_made_again(bench: Bench) -> None:
    hold_ab(bench)
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.pump()
    (lost,) = bench.events("circuit.lost")
    assert (lost.job, lost.incarnation, lost.rail, lost.switch) == ("job", 1, "rail0", "ocs0")
    assert lost.data == {"circuit": "h0:0:0--h1:0:0", "ranks": [0, 1]}
    job = bench.engine.state.jobs["job"]
    assert [lost.circuit.id for lost in drift.losses(bench.engine.state, job)] == ["h0:0:0--h1:0:0"]
    assert job.running, "an alarm is no failure"
    bench.now += 2.5
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1))
    assert facts(bench, "circuit.restored")["dark_s"] == 2.5
    assert drift.losses(bench.engine.state, job) == ()
    assert len(bench.events("circuit.lost")) == 1


def test_the_ranks_that_hold_it_are_told_at_once_and_nobody_else(bench: Bench) -> None:
    hold_ab(bench)
    bench.arrive(CD, 0, 2, 3)
    bench.play()
    bench.woken.clear()
    bench.lit["ocs0"] = pairs((2, 3))
    bench.observe()
    bench.pump()
    alarm = Alarm("h0:0:0--h1:0:0", "ocs0", bench.now)
    assert [bench.answer(rank).alarms for rank in range(4)] == [(alarm,), (alarm,), (), ()]
    assert [key.rank for key in bench.woken] == [0, 1]
    bench.play()
    assert bench.answer(0).alarms == ()


def test_a_rank_is_told_so_many_alarms_and_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "ALARMS_MAX", 0)
    hold_ab(bench)
    bench.lit["ocs0"] = set()
    bench.observe()
    assert bench.answer(0).alarms == ()


def test_a_repair_that_fails_is_tried_again_after_a_pause(bench: Bench) -> None:
    hold_ab(bench)
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.settle(step, ok=False, works=False, detail="no light")
    assert bench.pump() == ()
    bench.pause()
    bench.play()
    assert bench.now == pytest.approx(NOON + 0.05)
    assert bench.lit["ocs0"] == pairs((0, 1))


def test_half_a_circuit_is_enough_for_an_alarm_and_half_is_made_again(bench: Bench) -> None:
    hold_ab(bench)
    bench.lit["ocs0"] = {CrossConnect(0, 1)}
    bench.observe()
    bench.play()
    assert bench.steps[-1].add == (CrossConnect(1, 0),)
    assert bench.steps[-1].remove == ()


def test_what_somebody_has_put_over_a_live_circuit_is_taken_away_for_it(bench: Bench) -> None:
    hold_ab(bench)
    bench.arrive(CD, 0, 2, 3)
    bench.play()
    bench.lit["ocs0"] = pairs((0, 3), (1, 2))  # both live circuits are gone
    bench.observe()
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1), (2, 3))
    assert len(bench.events("circuit.restored")) == 2


def test_what_cannot_be_taken_away_for_a_live_circuit_stays_and_so_does_the_alarm(bench: Bench) -> None:
    hold_ab(bench)
    bench.lit["ocs0"] = {CrossConnect(0, 4), CrossConnect(1, 0)}
    bench.observe()
    bench.play()
    bench.lit["ocs0"].add(CrossConnect(2, 5))
    bench.observe()
    bench.play()
    assert len(bench.steps) == 1
    assert len(drift.losses(bench.engine.state, bench.engine.state.jobs["job"])) == 1
    assert len(bench.events("circuit.lost")) == 1


def test_a_lost_circuit_is_not_made_again_where_the_rail_is_only_observed() -> None:
    bench = observed_row()
    hold_ab(bench)
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.play()
    assert len(bench.events("circuit.lost")) == 1
    assert bench.lit["ocs0"] == set()
    bench.arrive(AB, 1, 0, 1)
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1)), "a new need of the ranks is no repair"
    assert bench.grants(0) == [("ab", 0), ("ab", 1)]


def test_a_circuit_on_the_ports_of_one_that_was_lost_under_a_lock_is_granted_to_nobody(bench: Bench) -> None:
    """Somebody else joins ranks 1 and 2 while ranks 0 and 1 still hold their ring."""
    hold_ab(bench)
    bench.arrive(BC, 0, 1, 2)
    bench.pump()
    bench.lit["ocs0"] = pairs((1, 2))
    bench.observe()
    bench.pump()
    assert bench.grants(2) == []
    assert why(bench, 2) == (
        Reason.LOCKED,
        (
            "position 1 of ocs0 carries traffic of h0:0:0--h1:0:0, which somebody else has taken down; "
            "operation 0 of ab is held by ranks 0, 1"
        ),
    )
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1)), "the repair goes first"
    bench.release(AB, 0, 0, 1)
    bench.play()
    assert bench.grants(2) == [("bc", 0)]


def test_an_alarm_ends_when_nobody_holds_the_circuit_any_more(bench: Bench) -> None:
    hold_ab(bench)
    bench.lit["ocs0"] = {CrossConnect(0, 4)}  # in the way of the repair
    bench.observe()
    bench.play()
    bench.release(AB, 0, 0, 1)
    assert drift.losses(bench.engine.state, bench.engine.state.jobs["job"]) == ()
    bench.play()
    assert bench.events("circuit.restored") == []


def test_a_failed_job_whose_ranks_have_not_stopped_gets_no_repair(bench: Bench) -> None:
    hold_ab(bench)
    bench.engine.abort(bench.now, "job", 1, 0, "enough")
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.play()
    assert len(bench.events("circuit.lost")) == 1
    assert bench.lit["ocs0"] == set()


def test_a_neighbours_loss_is_no_alarm_of_ours() -> None:
    bench = Bench(make_fabric(4, ports=1))
    bench.observe()
    for name, first in (("one", 0), ("two", 2)):
        spec = dataclasses.replace(make_spec(places(2, first_host=first), {"dp": 2}), name=name)
        bench.job(spec, group("ab", 0, 1))
        for rank in (0, 1):
            bench.news(rank, arrivals=[Arrival(AB, 0)], job=name)
    bench.play()
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.play()
    assert [event.job for event in bench.events("circuit.lost")] == ["two"]


# --- no light


def test_a_circuit_that_is_connected_and_passes_no_light_is_granted_to_nobody_and_not_made_again(
    bench: Bench,
) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.lit["ocs0"] = set(pairs((0, 1)))
    shut = {CrossConnect(1, 0): "port 1 is blocked"}
    bench.engine.settle_step(bench.now, step.id, True, None, frozenset(bench.lit["ocs0"]), dark=shut)
    bench.play()
    assert len(bench.steps) == 1
    assert len(bench.events("step.done")) == 1
    said = "1->0 of ocs0 is connected, but passes no light: port 1 is blocked"
    assert why(bench, 0) == (Reason.DARK, said)
    assert facts(bench, "switch.drifted")["dark"] == [[1, 0, "port 1 is blocked"]]
    bench.engine.observe(bench.now, "ocs0", frozenset(bench.lit["ocs0"]), shut)
    bench.play()
    assert len(bench.events("switch.drifted")) == 1
    bench.observe()
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_a_circuit_that_goes_dark_under_a_lock_is_an_alarm(bench: Bench) -> None:
    hold_ab(bench)
    bench.engine.observe(
        bench.now, "ocs0", frozenset(bench.lit["ocs0"]), {CrossConnect(0, 1): "port 0 is blocked"}
    )
    bench.play()
    assert len(bench.events("circuit.lost")) == 1
    assert len(bench.steps) == 1
    bench.observe()
    bench.pump()
    assert len(bench.events("circuit.restored")) == 1


# --- somebody who keeps undoing


def test_somebody_who_keeps_taking_our_circuit_down_is_named_and_gets_growing_pauses(bench: Bench) -> None:
    """A second controller wants positions 0 and 3 joined, and says so whenever it looks."""
    hold_ab(bench)
    tries = [bench.now]
    for _ in range(200):
        bench.lit["ocs0"] = pairs((0, 3))
        bench.observe()
        bench.play()
        if bench.lit["ocs0"] == pairs((0, 1)):
            tries.append(bench.now)
        else:
            assert not bench.planned
        go_on(bench, 0.5)
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(tries[1:])]
    assert gaps == sorted(gaps)
    assert gaps[:5] == [1.5, 2.5, 4.5, 8.5, 16.5]
    assert len(bench.steps) < 12
    told = [e.data for e in bench.events("switch.contended") if e.data["pairs"] == [[0, 1]]]
    assert [data["times"] for data in told][:3] == [2, 3, 4]
    assert told[0]["since"] == NOON
    assert told[0]["instead"] == [[0, 3], [3, 0]] or told[0]["instead"] == [[0, 3]]
    assert [data["pause_s"] for data in told][:4] == [1.0, 2.0, 4.0, 8.0]


def test_a_need_that_somebody_keeps_undoing_says_who_and_how_often(bench: Bench) -> None:
    hold_ab(bench)
    bench.release(AB, 0, 0, 1)
    for _ in range(2):
        bench.arrive(AB, bench.engine.state.jobs["job"].streams[AB].granted, 0, 1)
        bench.lit["ocs0"] = set()
        bench.observe()
        if bench.engine.state.switches["ocs0"].rivals[CrossConnect(0, 1)].times < 2:
            bench.play()
            n = bench.engine.state.jobs["job"].streams[AB].granted - 1
            bench.release(AB, n, 0, 1)
    bench.pump()
    assert why(bench, 0) == (
        Reason.CONTENDED,
        "somebody else has taken 0->1 of ocs0 down 2 times since we made it; made again after a pause of 1 s",
    )
    because = bench.answer(0).arrivals[0].because
    assert because is not None
    assert because.data == {
        "switch": "ocs0",
        "pairs": [[0, 1]],
        "times": 2,
        "since": NOON,
        "retry_at": NOON + 1.0,
    }
    assert bench.engine.next_deadline() == NOON + 1.0
    bench.pause()
    bench.play()
    assert bench.grants(0)[-1] == ("ab", 2)


def test_after_a_long_quiet_the_next_accident_counts_as_the_first() -> None:
    bench = Bench(make_fabric(4, ports=1), CoreSettings(lease_s=1e9, fence_s=1, abort_s=1))
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}, deadline_s=1e9), *GROUPS)
    hold_ab(bench)
    for pause in (0.0, 700.0, 700.0):
        bench.now += pause
        bench.lit["ocs0"] = set()
        bench.observe()
        bench.play()
    assert bench.events("switch.contended") == []
    assert len(bench.steps) == 4


def test_no_more_rivals_are_remembered_than_the_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "RIVALS_MAX", 1)
    hold_ab(bench)
    bench.lit["ocs0"] = set()
    bench.observe()
    assert list(bench.engine.state.switches["ocs0"].rivals) == [CrossConnect(1, 0)]


# --- a switch that does not answer


def test_a_switch_that_is_away_is_left_alone_and_goes_on_when_it_is_back(bench: Bench) -> None:
    bench.engine.lose_switch(bench.now, "ocs0", "no route to host")
    bench.engine.lose_switch(bench.now + 1, "ocs0", "connection refused")
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert bench.steps == []
    assert why(bench, 0) == (Reason.SWITCH_AWAY, "switch ocs0 does not answer: no route to host")
    assert [event.data for event in bench.events("switch.away")] == [{"detail": "no route to host"}]
    bench.now += 4
    bench.observe()
    bench.play()
    assert bench.events("switch.back")[0].data == {"away_s": 4.0}
    assert bench.grants(0) == [("ab", 0)]


def test_grants_that_need_no_step_go_on_while_the_switch_is_away(bench: Bench) -> None:
    hold_ab(bench)
    bench.engine.lose_switch(bench.now, "ocs0", "no route to host")
    bench.release(AB, 0, 0, 1)
    bench.arrive(AB, 1, 0, 1)
    bench.play()
    assert bench.grants(0)[-1] == ("ab", 1)


def test_a_planned_step_is_not_started_on_a_switch_that_is_away(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    bench.engine.lose_switch(bench.now, "ocs0", "no route to host")
    assert bench.start() is None
    assert facts(bench, "step.dropped")["detail"] == "switch ocs0 does not answer: no route to host"
    bench.observe()
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_who_waits_for_nothing_on_a_switch_does_not_hear_of_its_absence() -> None:
    bench = Bench(make_fabric(2, gpus=2))
    bench.observe()
    spec = make_spec(places(4, gpus=2), {"dp": 2, "tp": 2})
    bench.job(spec, group("even", 0, 2), group("odd", 1, 3))
    bench.engine.lose_switch(bench.now, "ocs1", "gone")
    bench.arrive(Stream("even"), 0, 0, 2)
    bench.play()
    assert bench.grants(0) == [("even", 0)]


def test_who_waits_for_one_switch_does_not_blame_another_whose_circuits_are_up() -> None:
    """A ring over two switches: its circuits on ocs0 are up, those on ocs1 are being made."""
    bench = Bench(make_fabric(2, gpus=2))
    bench.observe()
    bench.job(make_spec(places(4, gpus=2), {"dp": 4}), group("ring", 0, 1, 2, 3))
    for rank in range(4):
        bench.news(rank, arrivals=[Arrival(Stream("ring"), 0)])
    bench.pump()
    steps = [bench.start(), bench.start()]
    for step in steps:
        assert step is not None
        if step.switch == "ocs0":
            bench.settle(step)
    bench.engine.lose_switch(bench.now, "ocs0", "gone")
    bench.pump()
    assert why(bench, 0) == (Reason.MOVING, "position 1 of ocs1 is moving")


def test_what_waits_for_a_lock_says_so_of_an_absent_switch_as_well(bench: Bench) -> None:
    hold_ab(bench)
    bench.arrive(BC, 0, 1, 2)
    bench.engine.lose_switch(bench.now, "ocs0", "gone")
    bench.play()
    assert why(bench, 2)[0] is Reason.SWITCH_AWAY
    bench.observe()
    bench.play()
    assert why(bench, 2)[0] is Reason.LOCKED
