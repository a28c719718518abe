"""Small steps on our own controller: free where nothing has to move, safe always, clear when they hang."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from opus_sdn.drivers.emulated import EmulatedSwitch
from opus_sdn.fabric_file.generate import generate_fabric
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import PortChoice
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import Intent, StreamState
from opus_sdn.intent.switches import SwitchState
from opus_sdn.whatif.errors import CannotFinishError, InputError
from opus_sdn.whatif.opus.control import Controller, InvariantError
from opus_sdn.whatif.opus.layout import cluster_of, derive_cluster
from opus_sdn.whatif.opus.order import deferred, expected_orders, leads_on
from opus_sdn.whatif.opus.run import new_memo, replay
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.trace.model import COLLECTIVE, RECEIVE, SEND, Trace
from tests.whatif.programs import MB, Program, grid, pipeline_step, scenario_of, trace_of

SWITCHED = (Mode.ON_DEMAND, Mode.PROVISION)


def finish(trace: Trace, schedules: object, mode: Mode, delay_ms: float = 0, **options: object) -> Result:
    return replay(scenario_of(trace, schedules, mode, delay_ms, **options))


# --- steps that finish


@pytest.mark.parametrize("mode", SWITCHED)
@pytest.mark.parametrize("seed", range(12))
def test_without_delay_random_pipelines_take_as_long_as_static_ones(seed: int, mode: Mode) -> None:
    """One microbatch: the order of operations is the same, so is the time, to the microsecond."""
    rng = random.Random(seed)
    trace, schedules = pipeline_step(rng.choice((2, 3, 4)), rng.choice((2, 3, 4)), 1, rng=rng)
    static = finish(trace, schedules, Mode.STATIC).finish_ns
    assert abs(finish(trace, schedules, mode).finish_ns - static) <= 1000


@pytest.mark.parametrize("seed", range(12))
def test_random_pipelines_finish_with_every_delay_mode_and_setting(seed: int) -> None:
    """The invariants are asserted on the way."""
    rng = random.Random(seed)
    trace, schedules = pipeline_step(rng.choice((2, 3)), rng.choice((2, 3)), rng.choice((1, 2, 4)), rng=rng)
    for mode in SWITCHED:
        found = finish(
            trace,
            schedules,
            mode,
            rng.choice((0, 0.01, 1, 20, 400)),
            hold=rng.random() < 0.3,
            ring_patience_ms=rng.choice((0, 5, 200)),
            overtake_max=rng.choice((1, 8)),
            control_ms=rng.choice((0, 0.5)),
            inflight=rng.choice((1, 4)),
            start_topology=rng.choice((None, "0" * int(len(schedules.topologies).bit_length() - 1))),
        )
        assert min(found.finish_ns_per_rank) > 0


def test_a_single_exposed_switch_costs_exactly_the_delay() -> None:
    """Two stages of one rank each, a message, and nothing up before it."""
    _, schedules = grid(2, 1)
    ranks = [Program(0), Program(1)]
    ranks[0].send(1, 7, MB, ranks[0].compute(1000))
    ranks[1].compute(500, ranks[1].receive(0, 7, MB))
    trace = trace_of(ranks, [])
    static = finish(trace, schedules, Mode.STATIC).finish_ns
    found = finish(trace, schedules, Mode.ON_DEMAND, 3)
    assert found.finish_ns == static + 3_000_000
    (exposure,) = found.exposures
    assert (exposure.time_ns, exposure.waited_ns, exposure.operation) == (1000, 3_000_000, "send 7")
    hidden = finish(trace, schedules, Mode.PROVISION, 0.001)
    assert hidden.finish_ns == static
    assert hidden.exposures == []


def test_what_the_compute_before_it_hides_is_not_exposed() -> None:
    _, schedules = grid(2, 1)
    ranks = [Program(0), Program(1)]
    ranks[0].send(1, 7, MB, ranks[0].compute(2_000_000))
    ranks[1].receive(0, 7, MB)
    trace = trace_of(ranks, [])
    (exposure,) = finish(trace, schedules, Mode.PROVISION, 3).exposures
    assert exposure.waited_ns == 1_000_000


def test_ranks_of_one_host_need_no_circuits() -> None:
    groups, schedules = grid(2, 1, 2)
    ranks = [Program(rank) for rank in range(4)]
    for rank in ranks:
        rank.reduce(groups.index([0, 1]) if rank.rank < 2 else groups.index([2, 3]), MB, rank.compute(1000))
    found = finish(trace_of(ranks, groups), schedules, Mode.ON_DEMAND, 100)
    assert (found.details["grants"], found.details["device_steps"], found.details["hosts"]) == (0, 0, 2)


def test_a_memo_changes_nothing() -> None:
    trace, schedules = pipeline_step(3, 2, 2)
    memo = new_memo()
    for mode in (*SWITCHED, *SWITCHED):
        scenario = scenario_of(trace, schedules, mode, 5)
        assert replay(scenario, memo=memo).finish_ns == replay(scenario, exact=True, memo=memo).finish_ns


def test_the_result_tells_when_every_node_began_and_ended() -> None:
    trace, schedules = pipeline_step(2, 2, 1)
    found = replay(scenario_of(trace, schedules, Mode.ON_DEMAND, 1))
    for rank, (started, ended) in enumerate(zip(found.started_ns, found.ended_ns, strict=True)):
        assert len(started) == len(ended) == len(trace.ranks[rank].graph)
        assert all(0 <= start <= end for start, end in zip(started, ended, strict=True))
        assert max(ended) == found.finish_ns_per_rank[rank]


def test_the_latency_of_links_never_makes_a_static_step_shorter() -> None:
    trace, schedules = pipeline_step(3, 3, 1)
    scenario = scenario_of(trace, schedules, Mode.STATIC)
    found = [
        replay(replace(scenario, latency_ns=latency)).finish_ns for latency in (0, 500, 936.25, 5000, 1e6)
    ]
    assert found == sorted(found)


def test_a_placement_of_ones_own_is_taken_as_it_is() -> None:
    trace, schedules = pipeline_step(2, 2, 1)
    cluster = derive_cluster(trace, schedules.everywhere, switch_options={"delay_ms": 2.0})
    own = cluster_of(trace, cluster.fabric, replace(cluster.job, port_choice=PortChoice.SPREAD))
    scenario = scenario_of(trace, schedules, Mode.PROVISION, 999)  # the fabric says 2 ms
    spread = replay(scenario_of(trace, schedules, Mode.PROVISION, 2, port_choice="spread"))
    assert replay(scenario, cluster=own).finish_ns == spread.finish_ns


def files(tmp_path: Path, placement: list[dict[str, object]], **more: object) -> dict[str, object]:
    """A fabric of four hosts with two GPUs on emulated switches, and a job on it."""
    fabric, job = tmp_path / "fabric.yaml", tmp_path / "job.yaml"
    fabric.write_text(generate_fabric(hosts=4, gpus_per_host=2, delay_ms=77, control_ms=1))
    dimensions = [{"name": "pp", "size": 2}, {"name": "dp", "size": 2}]
    job.write_text(yaml.safe_dump({"placement": placement, "dimensions": dimensions, **more}))
    return {"fabric": str(fabric), "job": str(job)}


def placed(*places: tuple[str, int]) -> list[dict[str, object]]:
    return [{"rank": rank, "host": host, "slot": slot} for rank, (host, slot) in enumerate(places)]


def test_a_fabric_file_and_a_job_file_take_the_place_of_what_the_trace_implies(tmp_path: Path) -> None:
    """The delay is the scenario's; the control time is the file's."""
    trace, schedules = pipeline_step(2, 2, 1)
    apart = placed(("host0", 1), ("host1", 1), ("host2", 1), ("host3", 1))
    found = finish(trace, schedules, Mode.ON_DEMAND, 3, **files(tmp_path, apart))
    derived = finish(trace, schedules, Mode.ON_DEMAND, 3, control_ms=1.0)
    assert found.finish_ns == derived.finish_ns
    assert list(found.details["topology"]) == ["rail1"]


def test_ranks_placed_on_one_host_need_no_switch(tmp_path: Path) -> None:
    trace, schedules = pipeline_step(2, 2, 1)
    together = placed(("host0", 0), ("host1", 0), ("host0", 1), ("host1", 1))
    found = finish(trace, schedules.collapsed(), Mode.ON_DEMAND, 3, **files(tmp_path, together))
    assert {exposure.details["intent"][0] for exposure in found.exposures} <= {"g"}  # rings alone
    assert found.details["grants"] == 4 * 2 / 2


@pytest.mark.parametrize(
    ("places", "more", "what"),
    [
        ([("host0", 0)], {}, "the job has 1 ranks, the trace 4|multiply to 4"),
        ([("host0", 0)] * 3 + [("host9", 0)], {}, "no GPU at host 'host9' slot 0"),
        ([("host0", 0)] * 4, {"color": "red"}, "color"),
        ([("host0", 0)] * 4, {"dimensions": [{"name": "pp", "size": 3}]}, "multiply to 3"),
        ([("host0", 0)] * 4, {"placement": [{"rank": 1, "host": "host0", "slot": 0}]}, "every rank from 0"),
    ],
)
def test_files_that_do_not_go_together_are_refused(
    tmp_path: Path, places: list[tuple[str, int]], more: dict[str, object], what: str
) -> None:
    trace, schedules = pipeline_step(2, 2, 1)
    given = files(tmp_path, **({"placement": placed(*places)} | more))
    with pytest.raises(InputError, match=what):
        finish(trace, schedules, Mode.ON_DEMAND, 3, **given)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    trace, schedules = pipeline_step(2, 2, 1)
    given = files(tmp_path, placed(("host0", 0)))
    for name in ("fabric", "job"):
        with pytest.raises(InputError, match=r"nowhere\.yaml"):
            finish(trace, schedules, Mode.ON_DEMAND, 3, **{**given, name: str(tmp_path / "nowhere.yaml")})


# --- what the graphs say


def test_expected_order_is_that_of_the_program_and_waits_for_senders() -> None:
    trace, _ = pipeline_step(2, 1, 2, layers=1)
    names = [
        [trace.ranks[rank].graph.operations[position].name for position in order]
        for rank, order in enumerate(expected_orders(trace))
    ]
    assert names[0][:2] == ["send 0", "send 2"]
    assert names[1][:2] == ["receive 0", "receive 2"]
    assert names[0].index("receive 1") < names[0].index("reduce")


def test_gradients_lead_nowhere_and_messages_lead_on() -> None:
    trace, _ = pipeline_step(2, 2, 1, layers=1)
    graph = trace.ranks[2].graph
    found = dict(zip([operation.name for operation in graph.operations], leads_on(graph), strict=True))
    assert (found["receive 0"], found["reduce"], found["send 1"]) == (True, False, False)


def test_deferred_reductions_come_after_the_last_message_and_nothing_else_changes() -> None:
    trace, schedules = pipeline_step(2, 2, 2)
    later = deferred(trace, schedules.everywhere)
    for before, after in zip(trace.ranks, later.ranks, strict=True):
        kinds = [operation.kind for operation in after.graph.operations]
        added = {
            (parent, child)
            for parent, children in enumerate(after.graph.children)
            for child in children
            if child not in before.graph.children[parent]
        }
        assert {(kinds[parent] in (SEND, RECEIVE), kinds[child]) for parent, child in added} == {
            (True, COLLECTIVE)
        }
        assert sum(after.graph.indegree) - sum(before.graph.indegree) == len(added)
    assert all(found.finish_ns > 0 for found in (finish(later, schedules, mode, 1) for mode in SWITCHED))


# --- steps that cannot finish


def crossed() -> tuple[Trace, object]:
    """Each of two ranks sends only what it has received from the other."""
    _, schedules = grid(2, 1)
    ranks = [Program(0), Program(1)]
    for rank, other in ((0, 1), (1, 0)):
        came = ranks[rank].receive(other, other, MB)
        ranks[rank].send(other, rank, MB, ranks[rank].compute(10, came))
    return trace_of(ranks, []), schedules


@pytest.mark.parametrize("mode", [Mode.STATIC, *SWITCHED])
def test_a_circle_of_messages_is_named(mode: Mode) -> None:
    trace, schedules = crossed()
    with pytest.raises(CannotFinishError) as caught:
        finish(trace, schedules, mode)
    assert caught.value.unfinished == 2
    assert [(wait.rank, wait.waits_for) for wait in caught.value.cycle] in (
        [(0, 1), (1, 0)],
        [(1, 0), (0, 1)],
    )
    assert all(wait.operation.startswith("receive") for wait in caught.value.cycle)


def test_a_circle_of_collectives_is_named_with_its_connections() -> None:
    """Two rings over the same two ranks, entered in different orders while the slot is held."""
    _, schedules = grid(1, 2)
    schedules = type(schedules)(
        (*schedules.topologies[:1], tuple(tuple(0.0 for _ in row) for row in schedules.topologies[0]))
    )
    ranks = [Program(0), Program(1)]
    ranks[0].reduce(1, MB, ranks[0].reduce(0, MB))
    ranks[1].reduce(0, MB, ranks[1].reduce(1, MB))
    trace = trace_of(ranks, [[0, 1], [0, 1]])
    with pytest.raises(CannotFinishError) as caught:
        finish(trace, schedules, Mode.ON_DEMAND)
    assert {wait.connection for wait in caught.value.cycle} == {"g0", "g1"}
    assert "have not arrived at operation 0" in str(caught.value)
    with pytest.raises(CannotFinishError) as caught:
        finish(trace, schedules, Mode.STATIC)
    assert {wait.connection for wait in caught.value.cycle} == {"group 0", "group 1"}


def test_a_circle_through_hosts_and_rails_names_both() -> None:
    """Two ranks enter the host's collective first, two the rail's: each waits for one that has not come."""
    groups, schedules = grid(1, 2, 2)
    data, tensor = {0: 0, 1: 0, 2: 1, 3: 1}, {0: 2, 2: 2, 1: 3, 3: 3}
    ranks = [Program(rank) for rank in range(4)]
    for rank, program in enumerate(ranks):
        first, second = (tensor, data) if rank in (0, 3) else (data, tensor)
        program.reduce(second[rank], MB, program.reduce(first[rank], MB))
    with pytest.raises(CannotFinishError) as caught:
        finish(trace_of(ranks, groups), schedules, Mode.ON_DEMAND)
    assert sorted((wait.rank, wait.waits_for) for wait in caught.value.cycle) == [
        (0, 2),
        (1, 0),
        (2, 3),
        (3, 1),
    ]
    assert {wait.connection for wait in caught.value.cycle} == {"group 2", "group 3", "g0", "g1"}


def test_a_granted_operation_without_a_slot_is_said_to_be_one() -> None:
    """The host's collective has taken the slot while the rail's waited for its grant, on both hosts."""
    groups, schedules = grid(1, 2, 2)
    ranks = [Program(rank) for rank in range(4)]
    for early, group, host in ((0, 0, 2), (3, 1, 3)):
        ranks[early].reduce(group, MB)
        ranks[early].reduce(host, MB, ranks[early].compute(10))
    for late, group, host in ((1, 0, 3), (2, 1, 2)):
        ranks[late].reduce(host, MB, ranks[late].reduce(group, MB, ranks[late].compute(20)))
    with pytest.raises(CannotFinishError) as caught:
        finish(trace_of(ranks, groups), schedules, Mode.ON_DEMAND)
    assert sorted((wait.rank, wait.waits_for) for wait in caught.value.cycle) == [
        (0, 2),
        (1, 0),
        (2, 3),
        (3, 1),
    ]


def test_messages_out_of_order_are_refused_as_in_training() -> None:
    _, schedules = grid(2, 1)
    ranks = [Program(0), Program(1)]
    ranks[0].send(1, 2, MB, ranks[0].send(1, 1, MB))
    ranks[1].receive(0, 2, MB)
    ranks[1].receive(0, 1, MB)
    with pytest.raises(CannotFinishError, match="the two ends name different tags"):
        finish(trace_of(ranks, []), schedules, Mode.ON_DEMAND)


# --- inputs that will not do


def test_one_topology_alone_says_nothing_about_switches() -> None:
    trace, schedules = pipeline_step(2, 2, 1)
    with pytest.raises(InputError, match="nothing is known of what is switched"):
        finish(trace, schedules.collapsed(), Mode.ON_DEMAND)
    with pytest.raises(InputError, match="nothing is known of what is switched"):
        finish(trace, schedules.collapsed(), Mode.STATIC, defer_reductions=True)


def test_ranks_that_no_topology_joins_cannot_talk() -> None:
    _, schedules = grid(4, 1)
    ranks = [Program(rank) for rank in range(4)]
    ranks[0].send(2, 1, MB)
    ranks[1].compute(1)
    ranks[3].compute(1)
    ranks[2].receive(0, 1, MB)
    trace = trace_of(ranks, [])
    with pytest.raises(InputError, match="no topology joins them"):
        finish(trace, schedules, Mode.STATIC)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"patience": 1}, "no such option; known: control_ms"),
        ({"control_ms": "1"}, "must be of type float"),
        ({"hold": 1}, "must be of type bool"),
        ({"overtake_max": True}, "must be of type int"),
        ({"control_ms": -1.0}, "between 0 and 600000"),
        ({"inflight": 65_537}, "between 0 and 65536"),
        ({"overtake_ms": -1.0}, "between 0 and 1e"),
        ({"port_choice": "left"}, "one of standard, spread"),
        ({"circuit": "wire"}, "one of duplex, bidirectional, directed"),
        ({"ports_per_gpu": 3}, "1, 2 or 4 ports"),
        ({"inflight": 0}, "at least 1 change"),
        ({"fabric": "fabric.yaml"}, "go together"),
    ],
)
def test_options_are_checked(options: dict[str, object], what: str) -> None:
    trace, schedules = pipeline_step(2, 2, 1)
    with pytest.raises(InputError, match=what):
        finish(trace, schedules, Mode.ON_DEMAND, **options)


# --- bugs planted into the core are caught by the replay's own books


def caught(monkeypatch: pytest.MonkeyPatch, what: type[Exception], match: str) -> None:
    trace, schedules = pipeline_step(3, 2, 2)
    with pytest.raises(what, match=match):
        finish(trace, schedules, Mode.PROVISION, 0.2)


def test_a_grant_before_all_have_arrived_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(self: StreamState) -> Intent | None:
        return self.intents.get(self.granted)

    monkeypatch.setattr(StreamState, "complete", complete)
    caught(monkeypatch, InvariantError, "I5")


def test_a_grant_on_circuits_that_are_dark_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SwitchState, "is_up", lambda self, circuit: True)
    caught(monkeypatch, InvariantError, "I4")


def test_a_step_under_traffic_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoreState, "hold", lambda self, circuits: None)
    monkeypatch.setattr(CoreState, "unhold", lambda self, circuits: None)
    caught(monkeypatch, InvariantError, "I1")


def test_skipped_grant_numbers_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    number = JobCore.number

    def skipping(self: JobCore, intent: Intent, *given: int) -> dict[int, int]:
        self.ranks[intent.connection.ranks[0]].issued += 1
        return number(self, intent, *given)

    monkeypatch.setattr(JobCore, "number", skipping)
    caught(monkeypatch, InvariantError, "gets grant 2 after 0")


def test_the_device_refuses_what_is_no_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2 is judged by the device itself: here somebody has taken a port behind the controller's back."""
    begin = Controller._start

    def meddle(self: Controller, device: object, step: object) -> None:
        emulated: EmulatedSwitch = device.device
        emulated.restart([*(pair for pair in emulated.table if pair not in step.remove), step.add[0]])
        begin(self, device, step)

    monkeypatch.setattr(Controller, "_start", meddle)
    caught(monkeypatch, Exception, "not there|is held by")
