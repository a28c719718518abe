"""A collective that no host waits for leaves its ports to messages for a while, if the settings say so."""

from __future__ import annotations

import pytest

from opus_sdn.intent.model import Arrival, CoreSettings, Hint, Stream
from opus_sdn.intent.reasons import Reason
from tests.intent.bench import Bench
from tests.intent.rows import pairs, why
from tests.intent.worlds import group, make_fabric, make_spec, places

RING, MESSAGE = Stream("ring"), Stream("line:1-2", 1, 2)
PATIENT = CoreSettings(ring_patience_s=0.125)


def bench_of(settings: CoreSettings) -> Bench:
    """Four ranks with one port each: a ring of 0 and 1, messages from 1 to 2, whose circuit is up."""
    bench = Bench(make_fabric(4, ports=1), settings)
    bench.lit["ocs0"] = pairs((1, 2))
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 4}), group("ring", 0, 1), group("line", 0, 1, 2, 3, dimension="pp"))
    bench.play()
    return bench


@pytest.fixture
def bench() -> Bench:
    """With an eighth of a second of patience."""
    return bench_of(PATIENT)


def tick(bench: Bench, seconds: float) -> None:
    """Time goes by."""
    bench.now += seconds
    bench.engine.tick(bench.now)
    bench.play()


def test_without_patience_a_ring_moves_at_once() -> None:
    bench = bench_of(CoreSettings())
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("ring", 0)]


def test_a_patient_ring_moves_when_its_time_has_come(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == []
    assert why(bench, 0)[0] is Reason.YIELDING
    assert bench.engine.next_deadline() == bench.now + 0.125
    tick(bench, 0.1)
    assert bench.grants(0) == []
    tick(bench, 0.025)
    assert bench.grants(0) == [("ring", 0)]


def test_messages_go_before_a_patient_ring_and_do_not_count_as_overtaking(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    for n in range(20):
        bench.arrive(MESSAGE, n, 1, 2)
        bench.play()
        bench.release(MESSAGE, n, 1, 2)
    assert len(bench.steps) == 0
    tick(bench, 0.125)
    assert bench.grants(0) == [("ring", 0)]


def test_patience_ends_when_a_host_waits(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.news(1, arrivals=[Arrival(RING, 0, blocking=True)])
    bench.play()
    assert bench.grants(0) == [("ring", 0)]


def test_who_waits_for_a_later_operation_of_a_ring_waits_for_those_before_it_too(bench: Bench) -> None:
    bench.arrive(RING, 0, 0, 1)
    bench.arrive(RING, 1, 0)
    bench.play()
    assert bench.grants(0) == []
    bench.news(0, arrivals=[Arrival(RING, 1, blocking=True)])
    bench.play()
    assert bench.grants(0) == [("ring", 0)]


def test_a_ring_that_a_host_waits_for_from_the_beginning_is_not_patient(bench: Bench) -> None:
    bench.arrive(RING, 0, 0)
    bench.news(1, arrivals=[Arrival(RING, 0, blocking=True)])
    bench.play()
    assert bench.grants(0) == [("ring", 0)]


def test_a_ring_whose_circuits_are_up_has_nothing_to_be_patient_for() -> None:
    bench = bench_of(PATIENT)
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("ring", 0)]


def test_messages_are_never_patient(bench: Bench) -> None:
    bench.lit["ocs0"] = pairs((0, 1))
    bench.observe()
    bench.arrive(MESSAGE, 0, 1, 2)
    bench.play()
    assert bench.grants(2) == [("line:1-2[1>2]", 0)]


def test_patience_is_no_longer_than_the_bound_on_overtaking() -> None:
    bench = bench_of(CoreSettings(ring_patience_s=9.0, overtake_s=0.25))
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    assert bench.engine.next_deadline() == bench.now + 0.25
    tick(bench, 0.25)
    assert bench.grants(0) == [("ring", 0)]


def test_the_first_to_lose_patience_decides_when_to_look_again(bench: Bench) -> None:
    other = Stream("other")
    bench.engine.check_in(bench.now, "job", 1, [group("other", 2, 3)])
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.now += 0.0625
    bench.arrive(other, 0, 2, 3)
    bench.play()
    assert bench.engine.next_deadline() == bench.now + 0.0625


def microbatches(bench: Bench, receives: int) -> None:
    """Rank 2 has posted receives from rank 1, which says that the ring comes first; the ring is complete."""
    for n in range(receives):
        bench.arrive(MESSAGE, n, 2)
    bench.news(1, hints=[Hint(RING, 0)])
    bench.arrive(RING, 0, 0, 1)
    bench.play()


def send(bench: Bench, n: int) -> None:
    """A message is sent, and is over."""
    bench.arrive(MESSAGE, n, 1)
    bench.play()
    bench.release(MESSAGE, n, 1, 2)
    bench.play()


def test_a_ring_leaves_its_ports_to_microbatches_that_are_on_their_way() -> None:
    bench = bench_of(CoreSettings())
    microbatches(bench, 3)
    assert why(bench, 0)[0] is Reason.YIELDING
    for n in range(3):
        assert bench.grants(0) == []
        send(bench, n)
    assert bench.grants(0) == [("ring", 0)]
    assert len(bench.steps) == 1


def test_it_does_so_no_longer_than_the_bound_on_overtaking() -> None:
    bench = bench_of(CoreSettings(overtake_s=0.25))
    microbatches(bench, 2)
    assert bench.engine.next_deadline() == bench.now + 0.25
    tick(bench, 0.25)
    assert bench.grants(0) == [("ring", 0)]


def test_it_does_not_when_a_host_waits() -> None:
    bench = bench_of(CoreSettings())
    microbatches(bench, 2)
    bench.news(0, arrivals=[Arrival(RING, 0, blocking=True)])
    bench.play()
    assert bench.grants(0) == [("ring", 0)]


def test_a_single_message_is_not_waited_for() -> None:
    bench = bench_of(CoreSettings())
    microbatches(bench, 1)
    assert bench.grants(0) == [("ring", 0)]


def test_ranks_that_never_hint_may_not_say_that_their_hosts_wait() -> None:
    bench = bench_of(CoreSettings())
    for n in range(3):
        bench.arrive(MESSAGE, n, 2)
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("ring", 0)]


def test_microbatches_that_need_the_circuits_of_the_ring_are_not_in_its_way() -> None:
    """Two ranks, and one circuit for their ring and their messages."""
    messages = Stream("line:0-1", 0, 1)
    bench = Bench(make_fabric(2, ports=1), CoreSettings())
    bench.observe()
    bench.job(make_spec(places(2), {"pp": 2}), group("ring", 0, 1), group("line", 0, 1, dimension="pp"))
    for n in range(3):
        bench.arrive(messages, n, 1)
    bench.news(0, hints=[Hint(RING, 0)])
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    assert bench.grants(0) == [("ring", 0)]
