"""Pictures of the state: what a person or a page is shown of jobs, rails, circuits, locks and intents."""

from __future__ import annotations

import pytest

from opus_sdn.intent import fabric_views, views
from opus_sdn.intent.changes import IntentState, JobState, StepState
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Arrival, Domain, Pattern, Release, Stream
from opus_sdn.intent.reasons import Reason
from tests.intent.bench import NOON, Bench
from tests.intent.worlds import group, make_fabric, make_spec, places

RING, THERE = Stream("ring"), Stream("line:1-2", 1, 2)


@pytest.fixture
def bench() -> Bench:
    """Three ranks on four hosts of two slots and one port: the ring of 0 and 1 is held, a message waits.

    A stray circuit joins the two hosts that nobody uses, and another one a port with nothing of ours.
    """
    bench = Bench(make_fabric(5, gpus=2, ports=1, one_switch=True))
    bench.lit["ocs"] = {CrossConnect(3, 4), CrossConnect(4, 3), CrossConnect(6, 11)}
    bench.observe()
    spec = make_spec(places(3), {"pp": 3})
    bench.job(spec, group("ring", 0, 1, dimension="pp"), group("line", 1, 2, dimension="pp"), group("in", 0))
    bench.news(0, arrivals=[Arrival(RING, 0)])
    bench.now += 1
    bench.news(1, arrivals=[Arrival(RING, 0)])
    bench.play()
    bench.arrive(THERE, 0, 1, 2)
    bench.arrive(RING, 1, 1)
    bench.play()
    return bench


def test_circuits_show_whose_they_are_and_whether_they_carry_traffic(bench: Bench) -> None:
    ring, stray = fabric_views.circuits_view(bench.engine)
    assert ring == fabric_views.CircuitView(
        "h0:0:0--h1:0:0", "rail0", "ocs", "h0:0:0", "h1:0:0", "job", 0, live=True, moving=False
    )
    assert (stray.id, stray.job, stray.digit, stray.live) == ("h3:0:0--h4:0:0", None, None, False)


def test_a_rail_shows_what_is_wanted_and_what_is_there(bench: Bench) -> None:
    rail = fabric_views.rail_view(bench.engine, "rail0")
    assert (rail.name, rail.switch, rail.slots) == ("rail0", "ocs", (0,))
    assert rail.topology == {"job": "00-"}
    assert [circuit.id for circuit in rail.circuits] == ["h0:0:0--h1:0:0", "h3:0:0--h4:0:0"]
    assert rail.desired == ("h1:0:0--h2:0:0",)
    assert [tuple(pair) for pair in rail.matching] == [(0, 1), (1, 0), (3, 4), (4, 3)]
    assert rail.moving == ()
    other = fabric_views.rail_view(bench.engine, "rail1")  # positions 5 and up of the same switch
    assert (other.topology, other.circuits, other.desired) == ({}, (), ())
    assert [tuple(pair) for pair in other.matching] == [(6, 11)]


def test_moving_ports_are_shown_where_they_are(bench: Bench) -> None:
    bench.release(RING, 0, 0, 1)
    bench.pump()
    (planned,) = fabric_views.switches_view(bench.engine)[0].steps
    assert (planned.step, planned.state, planned.causes) == (2, StepState.PLANNED, ("job/1/line:1-2[1>2]#0",))
    assert planned.disturbed == ("h0:0:0--h1:0:0",)
    assert bench.start() is not None
    switch = fabric_views.switches_view(bench.engine)[0]
    assert (switch.name, switch.driver, switch.size, switch.sided) == ("ocs", "virtual", 12, True)
    assert switch.steps[0].state is StepState.STARTED
    assert fabric_views.rail_view(bench.engine, "rail0").moving == (0, 1, 2)
    assert fabric_views.rail_view(bench.engine, "rail1").moving == ()
    assert fabric_views.circuits_view(bench.engine)[0].moving
    moving = [port.port for port in fabric_views.ports_view(bench.engine) if port.moving]
    assert moving == ["h0:0:0", "h1:0:0", "h2:0:0"]


def test_ports_show_their_rank_and_what_they_are_joined_to(bench: Bench) -> None:
    ports = {port.port: port for port in fabric_views.ports_view(bench.engine)}
    assert len(ports) == 10
    first = ports["h1:0:0"]
    assert (first.rail, first.switch, first.position, first.job, first.rank) == ("rail0", "ocs", 1, "job", 1)
    assert first.circuit == "h0:0:0--h1:0:0"
    assert (ports["h2:0:0"].rank, ports["h2:0:0"].circuit) == (2, None)
    assert (ports["h4:0:0"].job, ports["h4:0:0"].circuit) == (None, "h3:0:0--h4:0:0")
    assert ports["h1:1:0"].circuit is None  # joined to a position where no port of ours is


def test_a_job_shows_its_ranks_and_their_waits(bench: Bench) -> None:
    (job,) = views.jobs_view(bench.engine)
    assert job == views.job_view(bench.engine, "job")
    assert (job.job, job.incarnation, job.state, job.failure) == ("job", 1, JobState.RUNNING, None)
    assert (job.started_at, job.topology) == (NOON, {"rail0": "00-"})
    assert (job.grants, job.topology_changes, job.device_steps, job.exposed_wait_ms) == (1, 1, 1, 0.0)
    first, second, third = job.ranks
    assert (first.rank, first.host, first.slot, first.stage) == (0, "h0", 0, 0)
    assert (first.barrier_wait_ms, second.barrier_wait_ms) == (1000.0, 0.0)
    assert [rank.grants for rank in job.ranks] == [1, 1, 0]
    assert [rank.open for rank in job.ranks] == [0, 2, 1]
    assert [rank.stage for rank in job.ranks] == [0, 1, 2]
    assert not third.stopped
    assert third.last_heard == bench.now


def test_groups_and_connections_are_shown_as_they_were_checked_in(bench: Bench) -> None:
    ring, line, alone = views.groups_view(bench.engine, "job")
    assert (ring.name, ring.domain, ring.ranks) == ("ring", Domain.SCALE_OUT, (0, 1))
    assert (line.dimension, alone.domain) == ("pp", Domain.SCALE_UP)
    assert [c.id for c in views.connections_view(bench.engine, "job")] == ["ring", "line", "line:1-2"]
    pair = views.connection_view(bench.engine, "job", "line:1-2")
    assert (pair.pattern, pair.ranks) == (Pattern.PAIR, (1, 2))


def test_locks_are_shown_oldest_first(bench: Bench) -> None:
    first, second = views.locks_view(bench.engine)
    assert (first.id, first.job, first.incarnation) == ("job.1.1.0", "job", 1)
    assert (first.connection, first.source, first.destination) == ("ring", None, None)
    assert (first.n, first.length, first.rank, first.no, first.since) == (0, 1, 0, 1, NOON + 1)
    assert first.circuits == ("h0:0:0--h1:0:0",)
    assert second.rank == 1
    bench.release(RING, 0, 0)
    assert [lock.rank for lock in views.locks_view(bench.engine)] == [1]


def test_intents_show_who_is_missing_and_why_they_wait(bench: Bench) -> None:
    message, ring = views.intents_view(bench.engine)
    assert views.intents_view(bench.engine, "job") == (message, ring)
    assert (message.id, message.connection) == ("job/1/line:1-2[1>2]#0", "line:1-2")
    assert (message.source, message.destination, message.n) == (1, 2, 0)
    assert (message.state, message.complete_at) == (IntentState.COMPLETE, NOON + 1)
    assert (message.arrived, message.missing, message.overtaken) == ((1, 2), (), 0)
    assert message.because.reason is Reason.LOCKED
    assert (ring.id, ring.state, ring.complete_at) == ("job/1/ring#1", IntentState.DECLARED, None)
    assert (ring.arrived, ring.missing) == ((1,), (0,))
    assert ring.because.reason is Reason.MEMBERS_MISSING


def test_an_intent_that_nobody_has_looked_at_yet_is_being_decided(bench: Bench) -> None:
    bench.arrive(RING, 1, 0)
    ring = views.intents_view(bench.engine)[1]
    assert (ring.state, ring.because.reason) == (IntentState.COMPLETE, Reason.COMMITTING)


def test_a_job_that_is_over_no_longer_owns_its_ports(bench: Bench) -> None:
    bench.engine.abort(bench.now, "job", 1, None, "enough")
    assert fabric_views.circuits_view(bench.engine)[0].job == "job"  # it may still transmit
    bench.engine.end_job(bench.now, "job", 1)
    ring = fabric_views.circuits_view(bench.engine)[0]
    assert (ring.job, ring.digit, ring.live) == (None, None, False)
    assert all(port.job is None for port in fabric_views.ports_view(bench.engine))
    assert views.job_view(bench.engine, "job").state is JobState.ENDED
    assert views.locks_view(bench.engine) == ()
    assert views.intents_view(bench.engine) == ()


def test_unknown_names_list_what_is_known(bench: Bench) -> None:
    with pytest.raises(CoreError, match="there is no rail 'rail7'; known rails: rail0, rail1") as refused:
        fabric_views.rail_view(bench.engine, "rail7")
    assert (refused.value.problem, refused.value.data) == (Problem.NOT_FOUND, {"rail": "rail7"})
    for look in (views.job_view, views.groups_view, views.connections_view, views.intents_view):
        with pytest.raises(CoreError, match="there is no job 'nobody'") as refused:
            look(bench.engine, "nobody")
        assert (refused.value.problem, refused.value.data) == (Problem.UNKNOWN_JOB, {"job": "nobody"})


def test_a_job_shows_its_alarms_and_a_switch_what_is_strange_about_it(bench: Bench) -> None:
    lost = bench.lit["ocs"] & {CrossConnect(0, 1), CrossConnect(1, 0)}
    bench.lit["ocs"] -= lost
    bench.now += 1
    bench.observe()
    bench.pump()
    (alarm,) = views.job_view(bench.engine, "job").alarms
    assert alarm == views.AlarmView("h0:0:0--h1:0:0", "rail0", "ocs", bench.now, (0, 1))
    bench.play()
    bench.lit["ocs"] -= lost
    bench.lit["ocs"].add(CrossConnect(0, 2))
    bench.engine.observe(bench.now, "ocs", frozenset(bench.lit["ocs"]), {CrossConnect(3, 4): "blocked"})
    bench.pump()
    switch = fabric_views.switch_view(bench.engine, "ocs")
    assert [(rival.pair, rival.times, rival.instead) for rival in switch.contended] == [
        (CrossConnect(0, 1), 2, (CrossConnect(0, 2),)),
        (CrossConnect(1, 0), 2, ()),
    ]
    assert switch.dark == (fabric_views.DarkView(CrossConnect(3, 4), "blocked"),)
    kinds = {tuple(view.pair): view.kind.value for view in switch.foreign}
    assert kinds == {(0, 2): "own-ports", (3, 4): "own-ports", (4, 3): "own-ports", (6, 11): "mixed"}
    assert {tuple(v.pair) for v in fabric_views.rail_view(bench.engine, "rail1").foreign} == {(6, 11)}


def test_a_rail_and_a_switch_say_why_they_are_held_up(bench: Bench) -> None:
    rail, other = (fabric_views.rail_view(bench.engine, name) for name in ("rail0", "rail1"))
    assert (rail.because, rail.stalled, other.because) == (None, (), None)
    bench.engine.lose_switch(bench.now, "ocs", "no route")
    for name in ("rail0", "rail1"):  # they share it
        because = fabric_views.rail_view(bench.engine, name).because
        assert because is not None
        assert because.reason is Reason.SWITCH_AWAY
    bench.news(0, releases=[Release(RING, 0)])
    bench.news(1, releases=[Release(RING, 0)])
    bench.now += 10
    bench.pump()
    bench.now += 10
    bench.engine.tick(bench.now)
    bench.pump()
    stalled = ("job/1/line:1-2[1>2]#0",)
    assert fabric_views.rail_view(bench.engine, "rail0").stalled == stalled
    assert fabric_views.rail_view(bench.engine, "rail1").stalled == ()
    assert fabric_views.switch_view(bench.engine, "ocs").stalled == stalled
    with pytest.raises(CoreError, match="there is no switch 'ocs7'; known switches: ocs"):
        fabric_views.switch_view(bench.engine, "ocs7")
