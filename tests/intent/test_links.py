"""Grants that wait for the links of NIC ports: light through the switch is not yet a link."""

from __future__ import annotations

import dataclasses

import pytest

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CircuitKind, Fabric
from opus_sdn.intent.model import CoreSettings, RetryBudget
from opus_sdn.intent.reasons import Phase, Reason
from opus_sdn.intent.state import LinkUp
from tests.intent.bench import Bench
from tests.intent.rows import AB, BC, GROUPS, pairs, why
from tests.intent.worlds import make_fabric, make_spec, places

SETTINGS = CoreSettings(install_s=10.0, light_s=5.0, carrier_s=60.0, carrier_drop_s=0.5, lease_s=1e9)


def waiting_for_carrier(fabric: Fabric) -> Fabric:
    """The same fabric, whose grants wait for the links."""
    rails = tuple(dataclasses.replace(rail, carrier=True) for rail in fabric.rails)
    return dataclasses.replace(fabric, rails=rails)


def bench_of(*, carrier: bool = True, kind: CircuitKind = CircuitKind.DUPLEX) -> Bench:
    """Four ranks in a row, one port each."""
    fabric = make_fabric(4, ports=1, kind=kind)
    bench = Bench(waiting_for_carrier(fabric) if carrier else fabric, SETTINGS)
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.play()
    return bench


@pytest.fixture
def bench() -> Bench:
    return bench_of()


def link(bench: Bench, rank: int, up: bool, detail: str = "nic has no carrier") -> None:
    """The rank's host says so of its port."""
    bench.engine.report_links(bench.now, "job", 1, rank, {0: (up, detail)})
    bench.pump()


def later(bench: Bench, seconds: float) -> None:
    bench.now += seconds
    bench.engine.tick(bench.now)
    bench.pump()


def connect_ab(bench: Bench) -> None:
    """Ranks 0 and 1 arrive, and the switch makes their circuit."""
    bench.arrive(AB, 0, 0, 1)
    bench.play()


def test_a_grant_waits_for_the_links_of_both_ports_and_says_which_are_missing(bench: Bench) -> None:
    connect_ab(bench)
    assert bench.grants(0) == []
    reason, detail = why(bench, 0)
    assert reason is Reason.CARRIER
    assert "h0:0:0: nothing was reported; set OPUS_LINKS on its rank" in detail
    assert "h1:0:0" in detail
    link(bench, 0, up=False, detail="eth2 has no carrier")
    assert "h0:0:0: eth2 has no carrier" in why(bench, 0)[1]
    later(bench, 3.0)
    link(bench, 0, up=True)
    assert bench.grants(0) == []
    assert "h0:0:0" not in why(bench, 0)[1]
    later(bench, 4.0)
    link(bench, 1, up=True)
    assert bench.grants(0) == bench.grants(1) == [("ab", 0)]
    granted = bench.events("intent.granted")[-1].data
    assert granted["phases_ms"] == {"carrier": 7000.0}


def test_without_the_rails_word_nobody_waits_for_links() -> None:
    bench = bench_of(carrier=False)
    link(bench, 0, up=False)
    connect_ab(bench)
    assert bench.grants(0) == [("ab", 0)]


def test_a_link_that_was_up_before_the_light_counts_once_it_would_have_been_reported_down(
    bench: Bench,
) -> None:
    """A NIC may not notice a dark time of milliseconds, or may not have noticed yet."""
    link(bench, 0, up=True)
    link(bench, 1, up=True)
    later(bench, 1.0)
    connect_ab(bench)
    assert "up since before the light" in why(bench, 0)[1]
    assert bench.engine.next_deadline() == bench.now + 0.5
    bench.pause()
    bench.pump()
    assert bench.grants(0) == [("ab", 0)]


def test_a_link_that_goes_after_the_light_is_waited_for(bench: Bench) -> None:
    link(bench, 0, up=True)
    link(bench, 1, up=True)
    later(bench, 1.0)
    connect_ab(bench)
    later(bench, 0.1)
    link(bench, 1, up=False)
    later(bench, 1.0)
    assert bench.grants(0) == []
    link(bench, 1, up=True)
    assert bench.grants(0) == [("ab", 0)]


def test_saying_the_same_again_is_no_new_link(bench: Bench) -> None:
    link(bench, 0, up=True)
    link(bench, 1, up=True)
    later(bench, 1.0)
    connect_ab(bench)
    for rank in (0, 1):
        link(bench, rank, up=True)
    assert bench.grants(0) == []


def test_a_circuit_that_is_up_with_its_links_is_granted_at_once_the_next_time(bench: Bench) -> None:
    connect_ab(bench)
    for rank in (0, 1):
        link(bench, rank, up=True)
    for rank in (0, 1):
        bench.news(rank, last_grant=1)
    bench.release(AB, 0, 0, 1)
    later(bench, 2.0)
    bench.arrive(AB, 1, 0, 1)
    bench.pump()
    assert bench.grants(0)[-1] == ("ab", 1)


def test_each_phase_has_its_own_limit_and_the_one_that_failed_is_named(bench: Bench) -> None:
    connect_ab(bench)
    assert bench.engine.next_deadline() == bench.now + SETTINGS.carrier_s
    later(bench, SETTINGS.install_s + 1)
    assert bench.answer(0).arrivals[0].because is not None
    assert not bench.events("intent.stalled")
    later(bench, SETTINGS.carrier_s)
    stalled = bench.events("intent.stalled")[-1].data
    assert (stalled["phase"], stalled["reason"]) == (Phase.CARRIER, Reason.CARRIER)
    later(bench, 1.0)
    link(bench, 0, up=True)
    link(bench, 1, up=True)
    assert bench.grants(0) == [("ab", 0)]


def test_light_that_does_not_come_stalls_after_its_own_time_and_goes_on_when_it_does(bench: Bench) -> None:
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    dark = dict.fromkeys(step.add, "egress 1 is disabled")
    bench.lit["ocs0"] |= set(step.add)
    matching = frozenset(bench.lit["ocs0"])
    bench.engine.settle_step(bench.now, step.id, True, None, matching, dark=dark)
    bench.pump()
    assert why(bench, 0)[0] is Reason.DARK
    later(bench, SETTINGS.light_s)
    assert bench.events("intent.stalled")[-1].data["phase"] == Phase.LIGHT
    bench.engine.observe(bench.now, "ocs0", matching, {})
    bench.pump()
    assert why(bench, 0)[0] is Reason.CARRIER
    assert bench.events("intent.complete")[-1].data["reason"] == Reason.CARRIER
    for rank in (0, 1):
        link(bench, rank, up=True)
    assert bench.grants(0) == [("ab", 0)]


def test_waiting_for_a_link_holds_the_ports_against_later_needs(bench: Bench) -> None:
    connect_ab(bench)
    bench.arrive(BC, 0, 1, 2)
    bench.play()
    assert why(bench, 2)[0] is Reason.RESERVED


@pytest.mark.parametrize("kind", [CircuitKind.DUPLEX, CircuitKind.BIDIRECTIONAL])
@pytest.mark.parametrize("carrier", [True, False])
def test_how_long_links_take_is_measured_on_every_rail(carrier: bool, kind: CircuitKind) -> None:
    bench = bench_of(carrier=carrier, kind=kind)
    connect_ab(bench)
    later(bench, 2.0)
    link(bench, 0, up=True)
    assert bench.engine.state.link_up == {}
    later(bench, 5.0)
    link(bench, 1, up=True)
    assert bench.engine.state.link_up == {"rail0": LinkUp(1, 7.0, 7.0)}
    link(bench, 1, up=False)
    later(bench, 1.0)
    link(bench, 1, up=True)
    measured = bench.engine.state.link_up["rail0"]
    assert (measured.times, measured.last_s, measured.worst_s) == (2, 8.0, 8.0)


def test_a_link_without_a_circuit_measures_nothing(bench: Bench) -> None:
    link(bench, 3, up=True)
    bench.lit["ocs0"] = {next(iter(pairs((2, 3))))}  # half a circuit
    bench.observe()
    link(bench, 2, up=True)
    bench.lit["ocs0"] = {next(iter(pairs((2, 5))))}  # a position that is no port
    bench.observe()
    link(bench, 2, up=False)
    link(bench, 2, up=True)
    assert bench.engine.state.link_up == {}


def test_links_that_were_up_before_the_light_measure_nothing(bench: Bench) -> None:
    link(bench, 0, up=True)
    connect_ab(bench)
    link(bench, 1, up=True)  # at the very moment of the light
    assert bench.engine.state.link_up == {}


@pytest.mark.parametrize(
    ("timeout", "retry", "seconds"), [(14, 7, 0.537), (18, 7, 8.59), (20, 7, 34.4), (1, 0, 8.2e-6)]
)
def test_the_retry_budget_is_that_of_infiniband(timeout: int, retry: int, seconds: float) -> None:
    assert RetryBudget(timeout, retry).seconds == pytest.approx(seconds, rel=5e-3)


def test_a_timeout_of_zero_waits_for_ever() -> None:
    assert RetryBudget(0, 7).seconds == float("inf")


def budgeted(bench: Bench, timeout: int) -> None:
    bench.engine.put_job(
        bench.now,
        make_spec(places(4), {"dp": 4}, nonce=f"n{timeout}", retry_budget=RetryBudget(timeout, 7)),
    )
    bench.pump()


def test_a_transport_that_gives_up_before_the_links_are_up_is_refused_where_nobody_waits_for_them() -> None:
    bench = bench_of(carrier=False)
    bench.engine.state.link_up["rail0"] = LinkUp(1, 7.0, 7.0)
    with pytest.raises(CoreError, match=r"outlast a dark path of 0\.537 s.*up to 7 s") as refused:
        budgeted(bench, 14)
    assert refused.value.problem is Problem.RETRY_BUDGET
    assert refused.value.data == {"rail": "rail0", "retry_budget_s": 0.537, "link_up_s": 7.0}
    budgeted(bench, 18)
    assert not bench.events("job.retry-budget")


def test_where_grants_wait_for_links_it_is_a_warning(bench: Bench) -> None:
    budgeted(bench, 14)
    assert not bench.events("job.retry-budget")  # nothing was measured yet
    bench.engine.state.link_up["rail0"] = LinkUp(1, 7.0, 7.0)
    budgeted(bench, 13)
    warned = bench.events("job.retry-budget")[-1]
    assert warned.rail == "rail0"
    assert warned.data == {"retry_budget_s": 0.268, "link_up_s": 7.0}


def test_a_port_that_the_gpu_has_not_is_refused_and_nothing_is_taken(bench: Bench) -> None:
    with pytest.raises(
        CoreError, match="index 1 of rank 0; a GPU of this fabric has ports 0 to 0"
    ) as refused:
        bench.engine.report_links(bench.now, "job", 1, 0, {0: (True, ""), 1: (True, "")})
    assert refused.value.problem is Problem.INVALID_REQUEST
    assert bench.engine.state.links == {}


def test_a_stalled_need_holds_up_nobody() -> None:
    bench = bench_of()
    connect_ab(bench)
    later(bench, SETTINGS.carrier_s)
    assert bench.events("intent.stalled")
    bench.arrive(BC, 0, 1, 2)
    bench.play()
    for rank in (1, 2):
        link(bench, rank, up=True)
    assert bench.grants(2) == [("bc", 0)]


def test_two_needs_whose_links_never_come_take_turns() -> None:
    bench = bench_of()
    connect_ab(bench)
    bench.arrive(BC, 0, 1, 2)
    for there in (pairs((1, 2)), pairs((0, 1)), pairs((1, 2))):
        later(bench, SETTINGS.carrier_s)
        bench.play()
        assert bench.lit["ocs0"] == there
