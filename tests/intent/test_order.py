"""Who is served first, who stands in whose way, and how often one may be overtaken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opus_sdn.intent.changes import IntentState, RunGranted
from opus_sdn.intent.fabric import Circuit, CircuitKind, Port
from opus_sdn.intent.model import Arrival, Connection, CoreSettings, Pattern, Stream
from opus_sdn.intent.order import Reservations, conflict, count_overtaking, in_order, overdue
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.streams import Intent
from tests.intent import programs
from tests.intent.modes import Mode
from tests.intent.simulator import Simulation
from tests.intent.test_barrier import bench_of
from tests.intent.worlds import group, make_fabric

FABRIC = make_fabric(6)
SETTINGS = CoreSettings(overtake_max=2, overtake_s=1.0)


def port(text: str) -> Port:
    """`1L` and `1R` are the left and right port of host 1."""
    return Port(f"h{text[0]}", 0, "LR".index(text[1]))


def circuit(text: str, kind: CircuitKind = CircuitKind.DUPLEX) -> Circuit:
    """`0R-1L` joins two ports."""
    fabric = FABRIC if kind is CircuitKind.DUPLEX else make_fabric(6, kind=kind)
    return fabric.circuit(*(port(end) for end in text.split("-")))


def intent(
    name: str, pattern: Pattern, *circuits: str, age: int, state: str = "complete", **more: object
) -> Intent:
    """A complete intent of that age over these circuits."""
    connection = Connection(name, name, pattern, "dp", (0, 1), tuple(map(circuit, circuits)))
    found = Intent(Stream(name), connection, 0, 0.0, state=IntentState(state), age=age)
    for key, value in more.items():
        setattr(found, key, value)
    return found


def names(intents: list[Intent]) -> list[str]:
    """Connections of intents."""
    return [one.connection.id for one in intents]


def test_messages_go_before_rings_then_what_is_up_then_the_oldest() -> None:
    up = {circuit("0R-1L"), circuit("2R-3L")}
    waiting = [
        intent("ring", Pattern.RING, "4R-5L", age=1),
        intent("ring-up", Pattern.RING, "0R-1L", age=4),
        intent("pair", Pattern.PAIR, "4R-5L", age=3),
        intent("older-pair", Pattern.PAIR, "4R-5L", age=2),
        intent("pair-up", Pattern.PAIR, "2R-3L", age=5),
        intent("half-up", Pattern.PAIR, "2R-3L", "1R-2L", age=6),
    ]
    ordered = in_order(waiting, 0.0, SETTINGS, up.__contains__)
    assert names(ordered) == ["pair-up", "older-pair", "pair", "half-up", "ring-up", "ring"]


def test_who_was_overtaken_enough_goes_first_then_whose_step_has_begun() -> None:
    waiting = [
        intent("pair", Pattern.PAIR, "0R-1L", age=1, complete_at=9.5),
        intent("often", Pattern.RING, "0R-1L", age=5, overtaken=2, complete_at=9.5),
        intent("long", Pattern.RING, "0R-1L", age=4, complete_at=9.0),
        intent("begun", Pattern.RING, "0R-1L", age=7, state="installing", complete_at=9.5),
        intent("begun-before", Pattern.RING, "0R-1L", age=6, state="installing", complete_at=9.5),
    ]
    ordered = in_order(waiting, 10.0, SETTINGS, lambda _: True)
    assert names(ordered) == ["long", "often", "begun-before", "begun", "pair"]


@pytest.mark.parametrize(
    ("overtaken", "waited", "wanted"), [(0, 0.0, False), (1, 0.99, False), (2, 0.0, True), (0, 1.0, True)]
)
def test_overdue_is_a_matter_of_count_or_time(overtaken: int, waited: float, wanted: bool) -> None:
    one = intent("x", Pattern.RING, age=1, overtaken=overtaken, complete_at=5.0)
    assert overdue(one, 5.0 + waited, SETTINGS) is wanted


CONFLICTS = [
    (["0R-1L"], ["0R-1L"], False),  # the same circuit
    (["0R-1L"], ["0R-2L"], True),
    (["0R-1L"], ["2R-1L"], True),
    (["0R-1L"], ["0L-1R"], False),
    (["0R-1L", "1R-2L"], ["2L-3R"], True),
    (["0R-1L", "1R-2L"], ["1R-2L", "2R-3L"], False),
    ([], ["0R-1L"], False),
]


@pytest.mark.parametrize(("some", "others", "wanted"), CONFLICTS)
def test_circuits_conflict_when_they_share_a_port_and_are_not_the_same(
    some: list[str], others: list[str], wanted: bool
) -> None:
    a, b = [circuit(text) for text in some], [circuit(text) for text in others]
    assert conflict(a, b) is wanted
    assert conflict(b, a) is wanted


def test_directed_circuits_conflict_only_on_the_same_side() -> None:
    directed = CircuitKind.DIRECTED
    there, back = circuit("0R-1L", directed), circuit("1L-0R", directed)
    assert not conflict([there], [back])
    assert conflict([there], [circuit("0R-2L", directed)])
    assert conflict([there], [circuit("2R-1L", directed)])
    assert not conflict([there], [circuit("1L-2R", directed)])


def test_who_waits_keeps_its_ports_from_others_but_not_from_the_same_circuit() -> None:
    first = intent("first", Pattern.RING, "0R-1L", "1R-2L", age=1)
    second = intent("second", Pattern.RING, "0R-2L", age=2)
    reserved = Reservations()
    assert reserved.against([circuit("0R-1L")]) is None
    reserved.add(first)
    reserved.add(second)
    assert reserved.against([circuit("0R-1L")]) is None
    assert reserved.against([circuit("3R-4L")]) is None
    assert reserved.against([circuit("3R-4L"), circuit("0R-3L")]) is first  # the earliest on that port
    assert reserved.against([circuit("2L-3R")]) is first


def test_only_older_ones_in_the_way_are_overtaken() -> None:
    granted = intent("granted", Pattern.PAIR, "0R-1L", age=5)
    older = intent("older", Pattern.RING, "0R-2L", age=3)
    elsewhere = intent("elsewhere", Pattern.RING, "3R-4L", age=2)
    younger = intent("younger", Pattern.RING, "0R-2L", age=6)
    count_overtaking(granted, [older, elsewhere, younger])
    assert [one.overtaken for one in (older, elsewhere, younger)] == [1, 0, 0]


def test_a_ring_is_overtaken_by_as_many_messages_as_the_settings_allow() -> None:
    """Nine messages over a pair that is up, and a ring that wants one of its ports: two may go before."""
    bench = bench_of(
        group("line", 0, 1), group("ring", 1, 2), settings=CoreSettings(overtake_max=2, overtake_s=1e9)
    )
    pair, ring = Stream("line:0-1", 0, 1), Stream("ring")
    bench.arrive(pair, 0, 0, 1)
    bench.play()
    bench.arrive(ring, 0, 1, 2)
    for rank in (0, 1):
        bench.news(rank, arrivals=[Arrival(pair, n) for n in range(1, 9)])
    bench.play()
    assert bench.grants(0) == [("line:0-1[0>1]", n) for n in range(3)]
    because = bench.answer(0).arrivals[0].because
    assert because is not None
    assert (because.reason, because.data) == (Reason.RESERVED, {"for": "ring#0"})
    for n in range(3):
        bench.release(pair, n, 0, 1)
    bench.play()
    assert bench.grants(2) == [("ring", 0)]
    bench.release(ring, 0, 1, 2)
    bench.play()
    order = [(c.stream.connection, c.n) for c in bench.changes if isinstance(c, RunGranted)]
    assert order == [("line:0-1", n) for n in range(3)] + [("ring", 0)] + [
        ("line:0-1", n) for n in range(3, 9)
    ]


def test_a_ring_that_has_waited_long_enough_is_next() -> None:
    bench = bench_of(
        group("line", 0, 1), group("ring", 1, 2), settings=CoreSettings(overtake_max=99, overtake_s=0.25)
    )
    pair, ring = Stream("line:0-1", 0, 1), Stream("ring")
    bench.arrive(pair, 0, 0, 1)
    bench.play()
    bench.arrive(ring, 0, 1, 2)
    bench.play()
    bench.now += 0.24
    bench.arrive(pair, 1, 0, 1)
    bench.play()
    bench.now += 0.01
    bench.arrive(pair, 2, 0, 1)
    bench.play()
    assert bench.grants(0) == [("line:0-1[0>1]", 0), ("line:0-1[0>1]", 1)]


def test_without_a_limit_every_message_would_overtake_the_ring() -> None:
    """What the bound is for: every message over a pair that is up could go before the ring."""
    messages = 6
    endless = Mode(overtake_max=10**6, overtake_s=1e9)
    most = max(
        max(Simulation(programs.busy_pair(messages), seed, endless).run().watch.overtaken.values(), default=0)
        for seed in range(60)
    )
    assert most == messages
    bounded = replace(endless, overtake_max=1)
    for seed in range(60):
        run = Simulation(programs.busy_pair(messages), seed, bounded).run()
        assert max(run.watch.overtaken.values(), default=0) <= 1


def test_an_incomplete_intent_keeps_nothing_from_anybody() -> None:
    bench = bench_of()
    bench.arrive(Stream("ring"), 0, 0)
    bench.arrive(Stream("other:1-2", 1, 2), 0, 1, 2)
    bench.play()
    assert bench.grants(2) == [("other:1-2[1>2]", 0)]
