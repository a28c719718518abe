"""Ports that the switch says are shut or broken: who needs one waits alone, and goes on when it is back."""

from __future__ import annotations

import pytest

from opus_sdn.intent.changes import IntentState
from opus_sdn.intent.fabric import Side, Terminal
from opus_sdn.intent.fabric_views import ports_view
from opus_sdn.intent.reasons import Reason
from tests.intent.bench import Bench
from tests.intent.rows import AB, BC, pairs, row, why

DETAIL = "port h1:0:0: ingress 1 has failed"


@pytest.fixture
def bench() -> Bench:
    """Four ranks in a row."""
    return row()


def shut(bench: Bench, *positions: int) -> None:
    """The switch is read, and says that these of its ports have failed."""
    ports = {Terminal("ocs0", Side.INGRESS, at): f"ingress {at} has failed" for at in positions}
    bench.engine.observe(bench.now, "ocs0", frozenset(bench.lit["ocs0"]), {}, ports)


def stall(bench: Bench) -> None:
    """As much time passes as a need may wait for light, in which all ranks are heard."""
    bench.now += bench.engine.state.settings.light_s
    for rank in range(4):
        bench.news(rank)
    bench.engine.tick(bench.now)


def test_what_needs_a_broken_port_is_not_made_and_says_why(bench: Bench) -> None:
    shut(bench, 1)
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert (bench.steps, why(bench, 0)) == ([], (Reason.PORT_FAILED, DETAIL))
    (event,) = bench.events("port.failed")
    assert (event.switch, event.data) == ("ocs0", {"ports": [["h1:0:0", DETAIL]], "count": 1})
    assert [view.failed for view in ports_view(bench.engine)] == [None, DETAIL, None, None]


def test_it_holds_up_nobody_else(bench: Bench) -> None:
    shut(bench, 0)
    bench.arrive(AB, 0, 0, 1)
    bench.arrive(BC, 0, 1, 2)
    bench.play()
    assert [bench.grants(rank) for rank in range(3)] == [[], [("bc", 0)], [("bc", 0)]]


def test_it_goes_on_when_the_port_is_back(bench: Bench) -> None:
    shut(bench, 1, 3)
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    shut(bench, 3)
    bench.play()
    assert bench.grants(0) == [("ab", 0)]
    (event,) = bench.events("port.back")
    assert [port for port, _ in event.data["ports"]] == ["h1:0:0"]


def test_a_need_that_waits_for_a_port_for_long_is_stalled_and_goes_on_all_the_same(bench: Bench) -> None:
    shut(bench, 1)
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    stall(bench)
    bench.play()
    (intent,) = bench.engine.state.jobs["job"].waiting
    assert (intent.state, why(bench, 0)) == (IntentState.STALLED, (Reason.PORT_FAILED, DETAIL))
    shut(bench)
    bench.play()
    assert bench.grants(0) == [("ab", 0)]


def test_a_circuit_that_is_connected_to_a_broken_port_is_granted_to_nobody(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((0, 1))
    shut(bench, 1)
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert (bench.grants(0), why(bench, 0)) == ([], (Reason.PORT_FAILED, DETAIL))
    assert bench.lit["ocs0"] == pairs((0, 1))


def test_a_port_that_breaks_under_a_lock_is_an_alarm_until_it_is_back(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    shut(bench, 1)
    bench.play()
    (lost,) = bench.events("circuit.lost")
    assert lost.data["ranks"] == [0, 1]
    shut(bench)
    bench.play()
    assert len(bench.events("circuit.restored")) == 1


def test_a_planned_step_is_not_started_when_a_port_of_it_has_broken(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    (step,) = bench.pump()
    shut(bench, 0)
    assert bench.engine.start_step(bench.now, step) is None


def test_a_reading_without_ports_leaves_them_as_they_were_and_the_same_again_is_no_news(bench: Bench) -> None:
    shut(bench, 1)
    bench.observe()
    shut(bench, 1)
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    assert why(bench, 0)[0] is Reason.PORT_FAILED
    assert len(bench.events("port.failed")) == 1


def test_positions_that_are_no_ports_of_the_fabric_are_nobodys_matter(bench: Bench) -> None:
    shut(bench, 9)
    bench.pump()
    assert bench.events("port.failed") == []
    assert bench.engine.state.shut == {}
