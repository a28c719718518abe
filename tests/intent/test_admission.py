"""Which jobs are admitted, which wait for their ports, and in which order."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from opus_sdn.intent.changes import DirectiveGiven, DirectiveKind, DirectiveWithdrawn
from opus_sdn.intent.directives import Operator
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.model import CoreSettings, JobSpec, PortChoice, RetryBudget
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.views import queue_view
from tests.intent.bench import Bench
from tests.intent.worlds import make_fabric, make_spec, places

ANN = Operator("ann")


def make_bench(**settings: int) -> Bench:
    """Eight hosts, one port each."""
    bench = Bench(make_fabric(8, ports=1), replace(CoreSettings(), **settings))
    bench.observe()
    bench.play()
    return bench


def spec(name: str, first: int, count: int, nonce: str = "first", **more: object) -> JobSpec:
    return make_spec(places(count, first_host=first), {"dp": count}, name=name, nonce=nonce, **more)


def put(bench: Bench, name: str, first: int, count: int, *, queue: bool = True, nonce: str = "first") -> int:
    incarnation, _ = bench.engine.put_job(bench.now, spec(name, first, count, nonce), queue=queue)
    bench.play()
    return incarnation


def end(bench: Bench, name: str) -> None:
    bench.engine.end_job(bench.now, name, bench.engine.state.jobs[name].incarnation)
    bench.play()


def queue(bench: Bench) -> dict[str, Reason]:
    return {name: queued.because.reason for name, queued in bench.engine.state.queue.items()}


def running(bench: Bench) -> set[str]:
    return set(bench.engine.state.active)


def test_a_job_whose_ports_are_free_does_not_queue() -> None:
    bench = make_bench()
    assert put(bench, "a", 0, 4) == 1
    assert queue(bench) == {}


def test_a_job_that_does_not_ask_for_the_queue_is_refused_as_ever() -> None:
    bench = make_bench()
    put(bench, "a", 0, 4)
    with pytest.raises(CoreError) as refused:
        put(bench, "b", 3, 2, queue=False)
    assert refused.value.problem is Problem.PORTS_OVERLAP
    assert queue(bench) == {}


def test_a_queued_job_is_admitted_when_its_ports_get_free_and_says_why_it_waits_until_then() -> None:
    bench = make_bench()
    put(bench, "a", 0, 4)
    assert put(bench, "b", 3, 2) == 0
    because = bench.engine.state.queue["b"].because
    assert (because.reason, because.data) == (
        Reason.PORTS_TAKEN,
        {"rank": 0, "host": "h3", "slot": 0, "job": "a"},
    )
    assert put(bench, "b", 3, 2) == 0, "asking again changes nothing"
    assert len(bench.events("job.queued")) == 1
    end(bench, "a")
    assert running(bench) == {"b"}
    assert put(bench, "b", 3, 2) == 1
    assert DirectiveWithdrawn(DirectiveKind.QUEUED, "b") in bench.durable


def test_nobody_overtakes_a_job_that_was_queued_before_for_the_same_ports() -> None:
    bench = make_bench()
    put(bench, "a", 0, 2)
    put(bench, "wide", 0, 4)
    assert put(bench, "late", 2, 2) == 0, "its ports are free, but wide was there first"
    with pytest.raises(CoreError) as refused:
        put(bench, "pushy", 3, 1, queue=False)
    assert "whose ports job wide was queued for, before" in refused.value.detail
    assert put(bench, "elsewhere", 4, 2) == 1
    shown = [(view.job, view.position, view.world_size) for view in queue_view(bench.engine)]
    assert shown == [("wide", 0, 4), ("late", 1, 2)]
    end(bench, "a")
    assert running(bench) == {"wide", "elsewhere"}
    assert queue(bench) == {"late": Reason.PORTS_TAKEN}
    end(bench, "wide")
    assert running(bench) == {"late", "elsewhere"}


def test_a_job_that_leaves_the_queue_lets_those_behind_it_go() -> None:
    bench = make_bench()
    put(bench, "a", 0, 2)
    put(bench, "wide", 0, 4)
    put(bench, "late", 2, 2)
    assert bench.engine.withdraw_job(bench.now, "wide", "ann").spec.name == "wide"
    bench.play()
    assert running(bench) == {"a", "late"}
    assert bench.events("job.unqueued")[0].data == {"name": "wide", "why": "was withdrawn", "by": "ann"}
    with pytest.raises(CoreError) as refused:
        bench.engine.withdraw_job(bench.now, "wide", "ann")
    assert refused.value.problem is Problem.UNKNOWN_JOB


def test_drained_ports_and_operators_circuits_are_waited_for_too() -> None:
    bench = make_bench()
    bench.engine.drain_port(bench.now, "h0:0:0", ANN)
    bench.engine.want_circuit(bench.now, "h4:0:0", "h5:0:0", ANN)
    for name, first, problem in (("a", 0, Problem.PORT_DRAINED), ("b", 4, Problem.PORT_IN_USE)):
        with pytest.raises(CoreError) as refused:
            put(bench, name, first, 2, queue=False)
        assert refused.value.problem is problem
        assert put(bench, name, first, 2) == 0
    assert put(bench, "c", 2, 2) == 1, "free ports beside closed ones"
    assert queue(bench) == {"a": Reason.DRAINED, "b": Reason.MANUAL}
    bench.engine.undrain_port(bench.now, "h0:0:0", ANN)
    bench.engine.drop_circuit(bench.now, "h4:0:0--h5:0:0", ANN)
    bench.play()
    assert running(bench) == {"a", "b", "c"}


def test_more_jobs_than_may_run_wait_in_order() -> None:
    bench = make_bench(jobs_max=1)
    put(bench, "a", 0, 1)
    assert [put(bench, name, at, 1) for at, name in enumerate("bc", 1)] == [0, 0]
    assert queue(bench) == {"b": Reason.CAPACITY, "c": Reason.CAPACITY}
    with pytest.raises(CoreError) as refused:
        put(bench, "d", 5, 1, queue=False)
    assert refused.value.problem is Problem.LIMIT_EXCEEDED
    end(bench, "a")
    assert (running(bench), set(queue(bench))) == ({"b"}, {"c"})


def test_the_queue_has_a_limit() -> None:
    bench = make_bench(queue_max=1)
    put(bench, "a", 0, 4)
    put(bench, "b", 0, 1)
    with pytest.raises(CoreError) as refused:
        put(bench, "c", 1, 1)
    assert (refused.value.problem, refused.value.data) == (Problem.LIMIT_EXCEEDED, {"limit": 1})


def test_a_queued_job_declared_anew_keeps_its_place_and_its_name_is_its_owners() -> None:
    bench = make_bench()
    put(bench, "a", 0, 4)
    put(bench, "b", 0, 2)
    put(bench, "c", 0, 2)
    assert put(bench, "b", 1, 2, nonce="second") == 0
    assert list(queue(bench)) == ["b", "c"]
    with pytest.raises(CoreError) as refused:
        bench.engine.put_job(bench.now, replace(spec("b", 0, 2), owner="eve"), queue=True)
    assert (refused.value.problem, refused.value.data["field"]) == (Problem.JOB_CONFLICT, "owner")
    end(bench, "a")
    assert running(bench) == {"b"}
    assert bench.engine.state.jobs["b"].spec.nonce == "second"


def test_a_new_life_of_a_running_job_waits_until_its_other_ports_are_free_and_then_takes_over() -> None:
    bench = make_bench()
    put(bench, "a", 0, 2)
    put(bench, "b", 2, 2)
    assert put(bench, "a", 0, 4, nonce="second") == 0
    assert bench.engine.state.jobs["a"].running
    end(bench, "b")
    assert (bench.engine.state.jobs["a"].incarnation, bench.engine.state.jobs["a"].spec.nonce) == (
        2,
        "second",
    )


def test_a_queued_job_outlives_a_restart_as_it_was_declared() -> None:
    bench = make_bench()
    declared = spec(
        "b", 0, 4, port_choice=PortChoice.SPREAD, deadline_s=12.5, retry_budget=RetryBudget(18, 7)
    )
    put(bench, "a", 0, 4)
    bench.engine.put_job(bench.now, declared, queue=True)
    bench.play()
    (given,) = [change for change in bench.durable if isinstance(change, DirectiveGiven)]
    stored = replace(given, data=json.loads(json.dumps(given.data)))
    after = Bench(make_fabric(8, ports=1), start=8)
    after.engine.recover(after.now, (), (), [stored])
    assert after.engine.state.queue["b"].spec == declared
    after.observe()
    after.play()
    assert running(after) == {"b"}, "nobody uses its ports any more"
    smaller = Bench(make_fabric(3, ports=1), start=8)
    smaller.engine.recover(smaller.now, (), (), [stored])
    smaller.play()
    assert smaller.events("directive.dropped")[0].data["name"] == "b"


def test_a_queued_job_whose_topology_cannot_be_is_refused_before_it_waits() -> None:
    bench = make_bench()
    put(bench, "a", 0, 4)
    with pytest.raises(CoreError) as refused:
        bench.engine.put_job(bench.now, spec("b", 0, 4, initial_topology="77"), queue=True)
    assert refused.value.problem is Problem.INVALID_REQUEST
    assert queue(bench) == {}


def test_a_queued_job_whose_hosts_are_gone_does_not_keep_the_others_waiting() -> None:
    bench = make_bench()
    put(bench, "a", 0, 8)
    put(bench, "b", 4, 4)
    put(bench, "c", 4, 1)
    bench.engine.state.fabric = make_fabric(6, ports=1)
    end(bench, "a")
    assert running(bench) == {"c"}
    (event,) = bench.events("job.unqueued")
    assert event.data["name"] == "b"
    assert "rank 2 is placed on host 'h6'" in str(event.data["detail"])
