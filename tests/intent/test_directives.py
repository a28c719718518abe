"""What operators tell: drained ports, circuits of their own, locks that they take away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from opus_sdn.intent import stepping
from opus_sdn.intent.changes import Change, DirectiveGiven, DirectiveKind, DirectiveWithdrawn
from opus_sdn.intent.directives import Operator
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import DriftPolicy, Fabric, Port
from opus_sdn.intent.model import CoreSettings, Hint
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.switches import FailureKind
from tests.intent.bench import Bench
from tests.intent.rows import AB, BC, CD, GROUPS, pairs, plan_ab_over_bc, row, why
from tests.intent.worlds import group, make_fabric, make_spec, places

ANN = Operator("ann", "cleaning the connector")
FORCE = Operator("ann", "the fibre is on fire", force=True)
A, B, C, D = (f"h{host}:0:0" for host in range(4))
MANUAL = f"{C}--{D}"


@pytest.fixture
def bench() -> Bench:
    """Four ranks in a row."""
    return row()


def empty(hosts: int = 4, drift: DriftPolicy = DriftPolicy.AUTO) -> Bench:
    """No job."""
    bench = Bench(with_drift(make_fabric(hosts, ports=1), drift))
    bench.observe()
    bench.play()
    return bench


def with_drift(fabric: Fabric, drift: DriftPolicy) -> Fabric:
    return replace(fabric, rails=tuple(replace(rail, drift=drift) for rail in fabric.rails))


def refused(act: Callable[[], object]) -> CoreError:
    with pytest.raises(CoreError) as caught:
        act()
    return caught.value


def given(bench: Bench) -> list[Change]:
    """What has to outlive the controller."""
    return [c for c in bench.durable if isinstance(c, DirectiveGiven | DirectiveWithdrawn)]


def hold(bench: Bench) -> None:
    """Ranks 0 and 1 hold ab."""
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def restarted(bench: Bench, fabric: Fabric | None = None) -> Bench:
    """Another start, that knows what the first one has stored of its directives."""
    held: dict[tuple[DirectiveKind, str], DirectiveGiven] = {}
    for change in bench.changes:
        if isinstance(change, DirectiveGiven):
            held[change.kind, change.name] = change
        elif isinstance(change, DirectiveWithdrawn):
            del held[change.kind, change.name]
    after = Bench(fabric or bench.engine.state.fabric, start=8)
    after.engine.recover(after.now, (), (), sorted(held.values(), key=lambda change: change.number))
    after.lit = {name: set(bench.lit.get(name, ())) for name in after.lit}
    after.observe()
    return after


# --- drains


def test_a_drained_port_gets_no_circuit_and_everybody_is_told_the_same_reason(bench: Bench) -> None:
    bench.engine.drain_port(bench.now, B, ANN)
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert bench.steps == []
    assert why(bench, 0) == (Reason.DRAINED, "port h1:0:0 is drained, by ann")
    (waits,) = bench.events("intent.complete")
    assert waits.data["reason"] == "drained"


def test_an_intent_on_a_drained_port_holds_up_nobody_else(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.arrive(BC, 0, 1, 2)
    bench.arrive(CD, 0, 2, 3)
    bench.engine.drain_port(bench.now, B, ANN)
    bench.play()
    assert [bench.grants(rank) for rank in range(4)] == [[], [], [("cd", 0)], [("cd", 0)]]


def test_an_undrained_port_is_used_again_at_once(bench: Bench) -> None:
    bench.engine.drain_port(bench.now, B, ANN)
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    bench.engine.undrain_port(bench.now, B, ANN)
    bench.engine.undrain_port(bench.now, B, ANN)
    bench.play()
    assert bench.grants(0) == [("ab", 0)]
    (event,) = bench.events("port.undrained")
    assert event.data["before"] == {"drained": True, "by": "ann", "since": bench.now}
    assert [type(change) for change in given(bench)] == [DirectiveGiven, DirectiveWithdrawn]


def test_idle_circuits_on_a_drained_port_are_taken_down_whole(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((0, 1), (2, 3))
    bench.observe()
    bench.play()
    bench.engine.drain_port(bench.now, A, ANN)
    bench.play()
    assert bench.lit["ocs0"] == pairs((2, 3))
    assert bench.steps[-1].causes == ("directive/drain/h0:0:0",)
    assert bench.engine.state.drains[Port("h0", 0, 0)].because is None


def test_a_grant_of_a_circuit_that_is_still_up_is_not_given_on_a_drained_port(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.play()
    bench.engine.drain_port(bench.now, A, ANN)
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    assert bench.grants(0) == []
    bench.play()
    assert (bench.lit["ocs0"], bench.grants(0)) == (set(), [])


def test_a_drain_is_refused_while_somebody_holds_the_port_and_says_who(bench: Bench) -> None:
    hold(bench)
    error = refused(lambda: bench.engine.drain_port(bench.now, A, ANN))
    assert error.problem is Problem.LOCKED
    assert "held by rank 0 of job job (ab#0), rank 1 of job job (ab#0)" in error.detail
    held = {"job": "job", "connection": "ab", "n": 0, "no": 1}
    assert error.data == {"holders": [{**held, "rank": 0}, {**held, "rank": 1}]}
    assert bench.lit["ocs0"] == pairs((0, 1))
    assert given(bench) == []


def test_only_a_forced_drain_takes_a_live_circuit_down_and_it_is_on_record(bench: Bench) -> None:
    hold(bench)
    bench.engine.drain_port(bench.now, A, FORCE)
    bench.play()
    assert bench.lit["ocs0"] == set()
    (event,) = bench.events("port.drained")
    assert (event.data["by"], event.data["detail"], event.data["force"]) == (
        "ann",
        "the fibre is on fire",
        True,
    )
    before = event.data["before"]
    assert isinstance(before, dict)
    assert [holder["rank"] for holder in before["holders"]] == [0, 1]
    assert bench.events("circuit.lost")
    bench.play()
    assert bench.lit["ocs0"] == set(), "nobody repairs what an operator wants dark"


def test_a_forced_drain_stops_at_a_moving_port_and_a_later_force_raises_an_earlier_drain(
    bench: Bench,
) -> None:
    bench.engine.drain_port(bench.now, A, ANN)
    assert bench.engine.drain_port(bench.now, A, ANN).told.force is False
    assert bench.engine.drain_port(bench.now, A, FORCE).told.force is True
    assert bench.engine.drain_port(bench.now, A, ANN).told.force is True
    bench.pump()
    assert [change.name for change in given(bench) if isinstance(change, DirectiveGiven)] == [A, A]


def test_a_step_that_was_planned_before_the_drain_is_not_started_after_it(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    bench.engine.drain_port(bench.now, A, ANN)
    assert bench.start() is None
    bench.play()
    assert "port h0:0:0 is drained, by ann" in str(bench.events("step.dropped")[0].data["detail"])


def test_a_drain_that_was_taken_back_before_its_step_started_moves_nothing(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.play()
    bench.engine.drain_port(bench.now, A, ANN)
    bench.pump()
    bench.engine.undrain_port(bench.now, A, ANN)
    assert bench.start() is None
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1))


def test_a_drained_circuit_needed_by_a_waiting_intent_goes_all_the_same(bench: Bench) -> None:
    """It is up for a complete intent, which cannot have it any more."""
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.play()
    bench.engine.drain_port(bench.now, B, ANN)
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert bench.lit["ocs0"] == set()


def test_what_is_in_flight_on_a_drained_port_is_taken_down_when_it_has_ended(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.lit["ocs0"] = pairs((0, 1))
    bench.engine.drain_port(bench.now, A, ANN)
    bench.pump()
    bench.settle(step)
    bench.play()
    assert bench.lit["ocs0"] == set()
    assert bench.grants(0) == []


def test_somebody_elses_circuit_that_comes_after_the_drain_is_reported_and_not_fought_over() -> None:
    bench = empty()
    bench.engine.drain_port(bench.now, A, ANN)
    bench.now += 1
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1))
    assert bench.events("switch.drifted")


def test_a_drain_says_why_something_is_left_on_the_port() -> None:
    bench = empty(drift=DriftPolicy.OBSERVE)
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.engine.drain_port(bench.now, A, ANN)
    bench.play()
    because = bench.engine.state.drains[Port("h0", 0, 0)].because
    assert because is not None
    assert because.reason is Reason.FOREIGN


def test_a_half_of_a_circuit_and_a_pair_that_is_none_are_taken_down_too() -> None:
    bench = Bench(make_fabric(4, gpus=2, ports=1, one_switch=True))
    bench.lit["ocs"] = {next(iter(pairs((0, 5))))}
    bench.observe()
    bench.engine.drain_port(bench.now, A, ANN)
    bench.engine.drain_port(bench.now, "h1:1:0", ANN)
    bench.play()
    assert bench.lit["ocs"] == set()


def test_unknown_ports_are_refused() -> None:
    bench = empty()
    for name in ("h9:0:0", "h0", "h0:0:x"):
        assert refused(lambda name=name: bench.engine.drain_port(bench.now, name, ANN)).problem is (
            Problem.NOT_FOUND
        )
        assert refused(lambda name=name: bench.engine.undrain_port(bench.now, name, ANN)).data == {
            "port": name
        }


def test_a_plan_of_an_operator_that_would_break_an_invariant_is_refused_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = empty()
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.play()
    monkeypatch.setattr(stepping, "check_step", lambda *_: (stepping.Violation("I2", "a bug"),))
    bench.engine.drain_port(bench.now, A, ANN)
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1))
    assert bench.events("plan.refused")
    because = bench.engine.state.drains[Port("h0", 0, 0)].because
    assert because is not None
    assert because.reason is Reason.PLAN_REFUSED


# --- manual circuits


def test_an_operators_circuit_is_made_and_kept_up() -> None:
    bench = empty()
    bench.engine.want_circuit(bench.now, D, C, ANN)
    bench.play()
    assert bench.lit["ocs0"] == pairs((2, 3))
    assert (bench.steps[0].causes, bench.steps[0].job) == ((f"directive/circuit/{MANUAL}",), None)
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.play()
    assert bench.lit["ocs0"] == pairs((2, 3)), "drift is repaired"
    assert bench.engine.want_circuit(bench.now, C, D, ANN) is bench.engine.state.manual[MANUAL]
    assert len(bench.events("circuit.wanted")) == 1


def test_on_a_rail_that_is_only_observed_it_is_made_once() -> None:
    bench = empty(drift=DriftPolicy.OBSERVE)
    bench.engine.want_circuit(bench.now, C, D, ANN)
    bench.play()
    assert bench.lit["ocs0"] == pairs((2, 3))
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.play()
    assert bench.lit["ocs0"] == set()


def test_a_dropped_circuit_stays_until_its_ports_are_needed() -> None:
    bench = empty()
    bench.engine.want_circuit(bench.now, C, D, ANN)
    bench.play()
    bench.engine.drop_circuit(bench.now, MANUAL, ANN)
    bench.play()
    assert bench.lit["ocs0"] == pairs((2, 3))
    bench.lit["ocs0"] = set()
    bench.observe()
    bench.play()
    assert bench.lit["ocs0"] == set(), "nobody keeps it up any more"
    error = refused(lambda: bench.engine.drop_circuit(bench.now, MANUAL, ANN))
    assert (error.problem, error.detail) == (
        Problem.NOT_FOUND,
        f"no operator keeps a circuit '{MANUAL}' up; kept up: none",
    )


@pytest.mark.parametrize(
    ("ends", "problem"),
    [
        ((A, A), Problem.INVALID_REQUEST),
        ((A, "h9:0:0"), Problem.NOT_FOUND),
        ((A, "h0:1:0"), Problem.UNROUTABLE),
    ],
)
def test_a_circuit_joins_two_ports_of_one_rail(ends: tuple[str, str], problem: Problem) -> None:
    bench = Bench(make_fabric(4, gpus=2, ports=1))
    assert refused(lambda: bench.engine.want_circuit(bench.now, *ends, ANN)).problem is problem


def test_a_circuit_on_a_drained_port_or_on_another_operators_is_refused_even_with_force() -> None:
    bench = empty()
    bench.engine.drain_port(bench.now, A, ANN)
    error = refused(lambda: bench.engine.want_circuit(bench.now, A, B, FORCE))
    assert (error.problem, error.data) == (Problem.PORT_DRAINED, {"port": A})
    bench.engine.want_circuit(bench.now, B, C, ANN)
    error = refused(lambda: bench.engine.want_circuit(bench.now, C, D, FORCE))
    assert (error.problem, error.data) == (Problem.PORT_IN_USE, {"circuit": f"{B}--{C}"})


def test_a_circuit_on_ports_of_a_job_needs_force_and_then_the_job_waits(bench: Bench) -> None:
    error = refused(lambda: bench.engine.want_circuit(bench.now, C, D, ANN))
    assert (error.problem, error.data) == (Problem.PORT_IN_USE, {"circuit": MANUAL, "job": "job"})
    bench.engine.want_circuit(bench.now, C, D, FORCE)
    bench.arrive(BC, 0, 1, 2)
    bench.arrive(CD, 0, 2, 3)
    bench.play()
    assert bench.lit["ocs0"] == pairs((2, 3))
    assert why(bench, 1)[0] is Reason.MANUAL
    assert bench.grants(2) == [("cd", 0)], "the same circuit is as good for the job"
    steps = len(bench.steps)
    bench.observe()
    bench.play()
    assert len(bench.steps) == steps, "nobody fights for the ports"
    bench.release(CD, 0, 2, 3)
    bench.engine.drop_circuit(bench.now, MANUAL, ANN)
    bench.play()
    assert bench.grants(1) == [("bc", 0)]


def test_a_circuit_over_a_lock_names_the_holders_and_takes_its_port_by_force_only(bench: Bench) -> None:
    hold(bench)
    error = refused(lambda: bench.engine.want_circuit(bench.now, B, C, ANN))
    assert error.problem is Problem.LOCKED
    assert bench.engine.want_circuit(bench.now, B, C, FORCE).told.force
    bench.play()
    assert bench.lit["ocs0"] == pairs((1, 2))
    (event,) = bench.events("circuit.wanted")
    before = event.data["before"]
    assert isinstance(before, dict)
    assert (before["jobs"], len(before["holders"])) == (["job"], 2)


def test_a_circuit_that_the_switch_refuses_pauses_as_any_need_does_and_says_so() -> None:
    bench = empty()
    bench.engine.want_circuit(bench.now, C, D, ANN)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.settle(step, ok=False, works=False, detail="port 3 is broken", kind=FailureKind.TERMINAL)
    bench.pump()
    assert bench.planned == []
    bench.pause()
    bench.pump()
    assert len(bench.planned) == 1


def test_a_drain_where_an_operator_keeps_a_circuit_up_needs_force_and_ends_it() -> None:
    bench = empty()
    bench.engine.want_circuit(bench.now, C, D, ANN)
    bench.play()
    error = refused(lambda: bench.engine.drain_port(bench.now, D, ANN))
    assert (error.problem, error.data) == (Problem.PORT_IN_USE, {"port": D, "circuit": MANUAL})
    bench.engine.drain_port(bench.now, D, FORCE)
    bench.play()
    assert (bench.lit["ocs0"], bench.engine.state.manual) == (set(), {})
    (event,) = bench.events("port.drained")
    before = event.data["before"]
    assert isinstance(before, dict)
    assert before["circuit"] == MANUAL


def test_a_drain_that_is_forced_beside_one_that_is_not_takes_down_what_both_end_on(bench: Bench) -> None:
    bench.engine.drain_port(bench.now, D, ANN)
    hold(bench)
    bench.engine.drain_port(bench.now, A, FORCE)
    bench.play()
    assert bench.lit["ocs0"] == set()


# --- locks


def test_a_lock_is_not_taken_from_a_rank_that_may_still_transmit_without_force(bench: Bench) -> None:
    hold(bench)
    bench.now += 2.5
    error = refused(lambda: bench.engine.release_locks(bench.now, ANN, "job", 1, rank=0))
    assert error.problem is Problem.LOCKED
    assert "rank 0 of job job was heard 2.5 s ago" in error.detail
    assert "silent for 30 s" in error.detail
    assert bench.engine.state.live_circuit


@pytest.mark.parametrize(
    ("which", "left"), [({"no": 1, "rank": 0}, [1]), ({"rank": 1}, [0]), ({}, [])], ids=str
)
def test_force_takes_one_lock_or_a_ranks_or_a_jobs_and_is_on_record(
    bench: Bench, which: dict[str, int], left: list[int]
) -> None:
    hold(bench)
    taken = bench.engine.release_locks(bench.now, FORCE, "job", 1, **which)
    bench.play()
    stream = bench.engine.state.jobs["job"].streams[AB]
    assert sorted(r for run in stream.held.values() for r in run.holders) == left
    (event,) = bench.events("locks.forced")
    assert event.data["before"] == [holder.data() for holder in taken]
    assert (event.job, event.data["by"], event.data["after"]) == ("job", "ann", [])
    assert bool(bench.engine.state.live_circuit) is bool(left)


def test_whoever_lost_a_lock_by_force_may_still_release_it_and_go_on(bench: Bench) -> None:
    hold(bench)
    bench.engine.release_locks(bench.now, FORCE, "job", 1)
    bench.release(AB, 0, 0, 1)
    bench.arrive(AB, 1, 0, 1)
    bench.play()
    assert bench.grants(0, last_grant=1) == [("ab", 1)]


@pytest.mark.parametrize(
    ("job", "incarnation", "which", "said"),
    [
        ("gone", 1, {}, "no lock is held by job gone at incarnation 1"),
        ("job", 2, {}, "no lock is held by job job at incarnation 2"),
        ("job", 1, {"rank": 3, "no": 5}, "no lock is held by job job at incarnation 1, rank 3, grant 5"),
    ],
)
def test_a_lock_that_nobody_holds_is_not_found(
    bench: Bench, job: str, incarnation: int, which: dict[str, int], said: str
) -> None:
    hold(bench)
    error = refused(lambda: bench.engine.release_locks(bench.now, FORCE, job, incarnation, **which))
    assert (error.problem, error.detail) == (Problem.NOT_FOUND, said)


# --- restarts


def test_directives_outlive_a_restart() -> None:
    bench = empty()
    bench.engine.drain_port(bench.now, A, ANN)
    bench.engine.want_circuit(bench.now, C, D, FORCE)
    bench.play()
    after = restarted(bench)
    after.play()
    assert after.steps == []
    (drain,) = after.engine.state.drains.values()
    (manual,) = after.engine.state.manual.values()
    assert (str(drain.port), drain.told.by, drain.told.detail, drain.told.force) == (
        A,
        "ann",
        "cleaning the connector",
        False,
    )
    assert (manual.circuit.id, manual.told.force, manual.told.at) == (MANUAL, True, bench.now)
    after.lit["ocs0"] = set()
    after.observe()
    after.play()
    assert after.lit["ocs0"] == pairs((2, 3))
    assert after.engine.drain_port(after.now, B, ANN).told.number == 3


def test_what_does_not_fit_the_fabric_any_more_is_withdrawn_and_told() -> None:
    bench = empty()
    bench.engine.drain_port(bench.now, D, ANN)
    bench.play()
    after = restarted(bench, make_fabric(3, ports=1))
    after.play()
    assert after.engine.state.drains == {}
    (event,) = after.events("directive.dropped")
    assert (event.data["directive"], event.data["name"]) == ("drain", D)
    assert DirectiveWithdrawn(DirectiveKind.DRAIN, D) in after.changes


def test_a_drain_without_force_waits_for_a_lock_that_only_its_holders_knew_of(bench: Bench) -> None:
    """After a restart a run may be proven by its ranks on a port that is drained."""
    hold(bench)
    data: dict[str, object] = {"by": "ann", "detail": "", "force": False}
    bench.engine.recover(bench.now, (), (), [DirectiveGiven(DirectiveKind.DRAIN, A, 1, bench.now, data)])
    bench.play()
    assert bench.lit["ocs0"] == pairs((0, 1))
    because = bench.engine.state.drains[Port("h0", 0, 0)].because
    assert because is not None
    assert because.reason is Reason.LOCKED
    bench.release(AB, 0, 0, 1)
    bench.play()
    assert bench.lit["ocs0"] == set()


def test_plans_of_an_earlier_start_are_no_business_of_the_core() -> None:
    bench = empty()
    kept = DirectiveGiven(DirectiveKind.PLAN, "1", 5, 1.0, {})
    bench.engine.recover(bench.now, (), (), [kept])
    assert bench.engine.drain_port(bench.now, A, ANN).told.number == 6


def test_a_hint_does_not_move_a_circuit_onto_a_drained_port(bench: Bench) -> None:
    bench.engine.drain_port(bench.now, B, ANN)
    bench.hint(AB, 0, 0, 1)
    bench.play()
    assert bench.steps == []
    assert Hint(AB, 0) in bench.engine.state.jobs["job"].ranks[0].hinted


def test_a_job_is_planned_around_an_operator_in_one_pass() -> None:
    bench = row()
    plan_ab_over_bc(bench)
    bench.engine.drain_port(bench.now, D, ANN)
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_directives_say_nothing_to_jobs_elsewhere() -> None:
    bench = Bench(make_fabric(8, ports=1), CoreSettings())
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.job(make_spec(places(2, first_host=4), {"dp": 2}, name="other"), group("ef", 0, 1))
    bench.engine.drain_port(bench.now, "h7:0:0", ANN)
    hold(bench)
