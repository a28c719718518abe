"""Another fabric while jobs run: what may change, what may not, and what becomes of everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from opus_sdn.intent.changes import StepMoved, StepState
from opus_sdn.intent.directives import Operator
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Attachment, CircuitKind, DriftPolicy, Fabric, Port, Rail, Switch
from opus_sdn.intent.fabric_views import directives_view
from tests.intent.bench import Bench
from tests.intent.rows import AB, CD, GROUPS, pairs
from tests.intent.worlds import group, make_fabric, make_spec, places

ANN = Operator("ann")
FIVE = make_fabric(5, ports=1)  # the job of four ranks leaves h4 free


def make_bench(fabric: Fabric = FIVE) -> Bench:
    bench = Bench(fabric)
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.play()
    return bench


def with_rail(fabric: Fabric) -> Fabric:
    """One GPU slot more on every host, on a rail and a switch of its own."""
    ports = [Port(host, 1, 0) for host in fabric.hosts]
    return replace(
        fabric,
        gpus_per_host=2,
        switches=(*fabric.switches, Switch("ocs9", "virtual", 8, sided=True)),
        rails=(*fabric.rails, Rail("rail9", 1, "ocs9", (1,))),
        attachments=(
            *fabric.attachments,
            *(Attachment(port, "rail9", "ocs9", at) for at, port in enumerate(ports)),
        ),
    )


def without_host(fabric: Fabric, host: str) -> Fabric:
    return replace(
        fabric,
        hosts=tuple(name for name in fabric.hosts if name != host),
        attachments=tuple(at for at in fabric.attachments if at.port.host != host),
    )


def moved(fabric: Fabric, host: str) -> Fabric:
    return replace(
        fabric,
        attachments=tuple(
            replace(at, position=6) if at.port.host == host else at for at in fabric.attachments
        ),
    )


def changed(bench: Bench, fabric: Fabric) -> None:
    """The new fabric comes into force as its keeper does it."""
    assert bench.engine.why_not_fabric(fabric) is None
    bench.engine.change_fabric(fabric, {})
    bench.lit = {switch.name: bench.lit.get(switch.name, set()) for switch in fabric.switches}
    bench.observe()
    bench.play()


@pytest.mark.parametrize(
    "change",
    [
        with_rail,
        lambda fabric: without_host(fabric, "h4"),
        lambda fabric: moved(fabric, "h4"),
        lambda fabric: replace(
            fabric, rails=tuple(replace(rail, drift=DriftPolicy.OBSERVE) for rail in fabric.rails)
        ),
    ],
    ids=["a rail more", "a free host less", "a free port moved", "another policy"],
)
def test_what_nobody_uses_may_change_while_others_hold_circuits(change: Callable[[Fabric], Fabric]) -> None:
    bench = make_bench()
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    changed(bench, change(FIVE))
    assert bench.lit["ocs0"] == pairs((0, 1))
    bench.release(AB, 0, 0, 1)
    bench.arrive(CD, 0, 2, 3)
    bench.arrive(AB, 1, 0, 1)
    bench.play()
    assert bench.grants(2) == [("cd", 0)]
    assert bench.grants(0, last_grant=1) == [("ab", 1)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fabric: without_host(fabric, "h3"), "port h3:0:0, which would be gone"),
        (
            lambda fabric: moved(fabric, "h1"),
            "port h1:0:0, which would move from rail rail0, ocs0:1 to rail rail0, ocs0:6",
        ),
        (
            lambda fabric: replace(fabric, circuit_kind=CircuitKind.DIRECTED),
            "port h0:0:0, whose circuits would be of another kind",
        ),
        (
            lambda fabric: replace(
                fabric, switches=tuple(replace(switch, size=99) for switch in fabric.switches)
            ),
            "port h0:0:0, whose switch ocs0 would be declared otherwise",
        ),
    ],
)
def test_a_port_in_use_stays_as_it_is_and_the_refusal_names_its_job(
    change: Callable[[Fabric], Fabric], said: str
) -> None:
    bench = make_bench()
    refusal = bench.engine.why_not_fabric(change(FIVE))
    assert refusal is not None
    assert (refusal.problem, refusal.data["job"]) == (Problem.PORT_IN_USE, "job")
    assert said in refusal.detail
    bench.engine.end_job(bench.now, "job", 1)
    assert bench.engine.why_not_fabric(change(FIVE)) is None


def test_ports_of_an_operators_circuit_are_in_use_too() -> None:
    bench = Bench(FIVE)
    bench.engine.want_circuit(bench.now, "h2:0:0", "h4:0:0", ANN)
    refusal = bench.engine.why_not_fabric(without_host(FIVE, "h4"))
    assert refusal is not None
    assert (refusal.problem, refusal.data) == (
        Problem.PORT_IN_USE,
        {"circuit": "h2:0:0--h4:0:0", "port": "h4:0:0"},
    )
    observed = replace(FIVE, rails=tuple(replace(rail, drift=DriftPolicy.OBSERVE) for rail in FIVE.rails))
    changed(bench, observed)
    assert bench.engine.state.manual["h2:0:0--h4:0:0"].once


def test_drains_go_with_their_ports() -> None:
    bench = make_bench()
    bench.engine.drain_port(bench.now, "h4:0:0", ANN)
    changed(bench, moved(FIVE, "h4"))
    drain = bench.engine.state.drains[Port("h4", 0, 0)]
    assert {terminal.position for terminal in drain.terminals} == {6}
    assert drain.terminals[0] in bench.engine.state.barred
    changed(bench, without_host(FIVE, "h4"))
    assert bench.engine.state.drains == {}
    (event,) = bench.events("directive.dropped")
    assert (event.data["directive"], event.data["name"]) == ("drain", "h4:0:0")


def test_a_switch_that_is_another_one_now_is_read_anew_and_its_planned_steps_are_given_up() -> None:
    two = with_rail(FIVE)
    bench = make_bench(two)
    bench.lit["ocs9"] = pairs((0, 1))
    bench.observe()
    bench.play()
    bench.engine.drain_port(bench.now, "h0:1:0", ANN)
    (step,) = bench.pump()
    larger = replace(
        two, switches=tuple(replace(s, size=16) if s.name == "ocs9" else s for s in two.switches)
    )
    assert bench.engine.change_fabric(larger, {"ocs9": 40}) == ()
    bench.planned.clear()
    assert bench.engine.state.switches["ocs9"].generation == 40
    bench.pump()
    assert [c.state for c in bench.changes if isinstance(c, StepMoved) and c.step == step] == [
        StepState.DROPPED
    ]
    bench.observe()
    bench.play()
    assert bench.lit["ocs9"] == set()


def test_settled_jobs_are_handed_over_and_forgotten_and_running_ones_are_not() -> None:
    bench = make_bench()
    bench.job(make_spec(places(1, first_host=4), {"dp": 1}, name="short"), group("one", 0))
    bench.engine.end_job(bench.now, "short", 1)
    settled = bench.engine.change_fabric(with_rail(FIVE), {})
    assert [job.spec.name for job in settled] == ["short"]
    assert set(bench.engine.state.jobs) == {"job"}


def test_a_queued_job_that_waits_for_a_new_host_is_looked_at_again() -> None:
    bench = make_bench()
    bench.engine.put_job(bench.now, make_spec(places(1), {"dp": 1}, name="later"), queue=True)
    bench.play()
    changed(bench, with_rail(FIVE))
    assert list(bench.engine.state.queue) == ["later"]


def test_directives_are_shown_with_what_became_of_them() -> None:
    bench = make_bench(with_rail(FIVE))
    bench.engine.drain_port(bench.now, "h0:0:0", ANN)
    bench.engine.want_circuit(bench.now, "h0:1:0", "h1:1:0", ANN)
    drain, circuit = directives_view(bench.engine)
    assert (drain.kind.value, drain.name, drain.rail, drain.done) == ("drain", "h0:0:0", "rail0", True)
    assert (circuit.kind.value, circuit.rail, circuit.switch, circuit.done) == (
        "circuit",
        "rail9",
        "ocs9",
        False,
    )
    bench.engine.lose_switch(bench.now, "ocs9", "no answer")
    away = directives_view(bench.engine)[1].because
    assert away is not None
    assert away.reason.value == "switch-away"
    bench.observe()
    bench.play()
    assert directives_view(bench.engine)[1].done


def test_a_forced_circuit_is_refused_on_unknown_ports_of_a_new_fabric() -> None:
    bench = make_bench()
    with pytest.raises(CoreError):
        bench.engine.want_circuit(bench.now, "h0:1:0", "h1:1:0", ANN)
    changed(bench, with_rail(FIVE))
    bench.engine.want_circuit(bench.now, "h0:1:0", "h1:1:0", ANN)
    bench.play()
    assert bench.lit["ocs9"] == pairs((0, 1))
