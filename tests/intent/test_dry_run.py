"""Looking at a change: what it would do, and that looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opus_sdn.intent.directives import Operator
from opus_sdn.intent.dry_run import (
    AdmitJob,
    Change,
    ChangeFabric,
    DrainPort,
    DropCircuit,
    KeepCircuit,
    StepMade,
    UndrainPort,
)
from opus_sdn.intent.errors import Problem
from opus_sdn.intent.fabric import Fabric
from opus_sdn.intent.reasons import Reason
from tests.intent.bench import Bench
from tests.intent.rows import AB, pairs, row
from tests.intent.test_refit import FIVE, moved, with_rail, without_host
from tests.intent.worlds import make_fabric, make_spec, places

ANN = Operator("ann")
FORCE = Operator("ann", force=True)
A, B, C, D = (f"h{host}:0:0" for host in range(4))


def lit(*ends: tuple[int, int], hosts: int = 4) -> Bench:
    """No job, and these circuits."""
    bench = Bench(make_fabric(hosts, ports=1))
    bench.lit["ocs0"] = pairs(*ends)
    bench.observe()
    bench.play()
    return bench


def held() -> Bench:
    """Ranks 0 and 1 hold ab."""
    bench = row()
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    return bench


@pytest.mark.parametrize(
    ("change", "do"),
    [
        (DrainPort(A), lambda bench: bench.engine.drain_port(bench.now, A, ANN)),
        (KeepCircuit(B, C), lambda bench: bench.engine.want_circuit(bench.now, B, C, ANN)),
        (
            AdmitJob(make_spec(places(4), {"pp": 4}, initial_topology="0000")),
            lambda bench: bench.engine.put_job(
                bench.now, make_spec(places(4), {"pp": 4}, initial_topology="0000")
            ),
        ),
    ],
    ids=["drain", "circuit", "job"],
)
def test_what_is_shown_is_what_is_done(change: Change, do: Callable[[Bench], object]) -> None:
    bench = Bench(make_fabric(4, ports=2))
    bench.lit["ocs0"] = pairs((0, 3), (2, 5))
    bench.observe()
    bench.play()
    seen = bench.engine.look(bench.now, change, ANN)
    assert bench.pump() == (), "looking changes nothing"
    before = len(bench.batches)
    bench.engine.look(bench.now, change, ANN)
    bench.pump()
    assert len(bench.batches) == before
    do(bench)
    bench.play()
    (step,) = bench.steps
    assert [(made.switch, set(made.remove), set(made.add)) for made in seen.steps] == [
        (step.switch, set(step.remove), set(step.add))
    ]
    assert set(seen.disturbed) == set(step.disturbed)
    assert (seen.generations, seen.refusal) == ({"ocs0": 1}, None)


def test_a_drain_names_the_circuits_that_it_disturbs() -> None:
    bench = lit((0, 1), (2, 3))
    seen = bench.engine.look(bench.now, DrainPort(A), ANN)
    assert seen.disturbed == (f"{A}--{B}",)


def test_a_refusal_is_shown_with_its_data_and_a_forced_change_is_not_refused() -> None:
    bench = held()
    refused = bench.engine.look(bench.now, DrainPort(A), ANN)
    assert refused.refusal is not None
    assert refused.refusal.problem is Problem.LOCKED
    assert (refused.steps, refused.generations) == (
        (),
        {"ocs0": bench.engine.state.switches["ocs0"].generation},
    )
    forced = bench.engine.look(bench.now, DrainPort(A), FORCE)
    assert (forced.disturbed, forced.refusal) == ((f"{A}--{B}",), None)


def test_what_would_stay_blocked_is_shown_with_its_reason() -> None:
    bench = row()
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    assert bench.start() is not None
    seen = bench.engine.look(bench.now, KeepCircuit(B, C), FORCE)
    assert [blocked.because.reason for blocked in seen.blocked] == [Reason.MOVING]


def test_taking_something_back_needs_no_step() -> None:
    bench = lit((2, 3))
    bench.engine.drain_port(bench.now, A, ANN)
    bench.engine.want_circuit(bench.now, C, D, ANN)
    bench.play()
    generations = {"ocs0": bench.engine.state.switches["ocs0"].generation}
    for change in (UndrainPort(A), DropCircuit(f"{C}--{D}")):
        seen = bench.engine.look(bench.now, change, ANN)
        assert (seen.steps, seen.generations, seen.refusal) == ((), generations, None)
    missing = bench.engine.look(bench.now, DropCircuit("x--y"), ANN)
    assert missing.refusal is not None
    assert (missing.refusal.problem, missing.generations) == (Problem.NOT_FOUND, {})
    nowhere = bench.engine.look(bench.now, KeepCircuit("x", C), ANN)
    assert nowhere.generations == generations


def test_a_job_without_an_initial_topology_moves_nothing_at_once() -> None:
    bench = lit((0, 1))
    seen = bench.engine.look(bench.now, AdmitJob(make_spec(places(2), {"dp": 2})), ANN)
    assert (seen.steps, seen.blocked, seen.refusal) == ((), (), None)


def test_a_job_that_cannot_have_its_ports_is_refused_or_waits_as_it_asked() -> None:
    bench = row()
    spec = make_spec(places(2), {"dp": 2}, name="other")
    refused = bench.engine.look(bench.now, AdmitJob(spec), ANN)
    assert refused.refusal is not None
    assert refused.refusal.problem is Problem.PORTS_OVERLAP
    waits = bench.engine.look(bench.now, AdmitJob(spec, queue=True), ANN)
    assert [blocked.because.reason for blocked in waits.blocked] == [Reason.PORTS_TAKEN]
    assert set(waits.generations) == {"ocs0"}


@pytest.mark.parametrize(
    ("fabric", "disturbed"),
    [
        (with_rail(FIVE), ()),
        (without_host(FIVE, "h4"), (f"{D}--h4:0:0",)),
        (moved(FIVE, "h0"), (f"{A}--{B}",)),
    ],
    ids=["a rail more", "a host less", "a host moved"],
)
def test_another_fabric_moves_nothing_and_names_the_circuits_that_it_leaves(
    fabric: Fabric, disturbed: tuple[str, ...]
) -> None:
    bench = Bench(FIVE)
    bench.lit["ocs0"] = {*pairs((0, 1), (3, 4)), next(iter(pairs((2, 6))))}
    bench.observe()
    bench.play()
    seen = bench.engine.look(bench.now, ChangeFabric(fabric), ANN)
    assert (seen.steps, seen.disturbed, seen.refusal) == ((), disturbed, None)
    assert seen.generations == {"ocs0": 1}


def test_a_fabric_that_changes_a_port_in_use_is_refused_on_paper_too() -> None:
    bench = Bench(FIVE)
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}))
    seen = bench.engine.look(bench.now, ChangeFabric(without_host(FIVE, "h0")), ANN)
    assert seen.refusal is not None
    assert seen.refusal.problem is Problem.PORT_IN_USE


def test_steps_are_compared_by_what_they_do() -> None:
    bench = lit()
    first = bench.engine.look(bench.now, KeepCircuit(A, B), ANN)
    assert first.steps == (StepMade("ocs0", (), tuple(sorted(pairs((0, 1))))),)
    assert first == bench.engine.look(bench.now, KeepCircuit(B, A), ANN)
