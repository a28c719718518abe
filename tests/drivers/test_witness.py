"""What the traffic witness sees, and what it does not take for a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opus_sdn.drivers import witness as witness_module
from opus_sdn.drivers.base import DriverError
from opus_sdn.drivers.emulated import EmulatedSwitch
from opus_sdn.drivers.witness import (
    CIRCUITS_IN_USE_MAX,
    NAMES_KEPT,
    OPERATIONS_MAX,
    VIOLATIONS_KEPT,
    TrafficWitness,
    Violation,
    ViolationKind,
    WitnessError,
)
from opus_sdn.intent.fabric import CircuitKind, CrossConnect, Rail
from tests.drivers.devices import Pairs, change, device, fabric, pairs

MISSING = ViolationKind.TRAFFIC_OVER_MISSING_CIRCUIT
CHANGED = ViolationKind.CHANGE_UNDER_TRAFFIC

# Port k of host i sits on position 2 i + k, and a duplex circuit is two cross-connects.
FIRST = "h0:0:1--h1:0:0"
FIRST_PAIRS = pairs((1, 2), (2, 1))
SECOND = "h2:0:1--h3:0:0"
SECOND_PAIRS = pairs((5, 6), (6, 5))
AT = 1_700_000_000.25  # 2023-11-14T22:13:20.250Z


def watched(*lit: Pairs, kind: CircuitKind = CircuitKind.DUPLEX) -> tuple[EmulatedSwitch, TrafficWitness]:
    ocs = device(*(pair for some in lit for pair in some), sided=kind is not CircuitKind.BIDIRECTIONAL)
    return ocs, TrafficWitness(fabric(kind=kind), [ocs], clock=lambda: AT)


def seen(
    witness: TrafficWitness,
) -> list[tuple[ViolationKind, tuple[str, ...], tuple[int, ...], tuple[str, ...]]]:
    return [(v.kind, v.operations, v.ranks, v.circuits) for v in witness.violations]


def test_traffic_over_light_that_stays_is_no_violation() -> None:
    ocs, witness = watched(FIRST_PAIRS, SECOND_PAIRS)
    witness.begin("a", [FIRST], rank=0)
    witness.begin("b", [FIRST, SECOND], rank=1)
    witness.end("a")
    witness.end("b")
    change(ocs, FIRST_PAIRS + SECOND_PAIRS)
    assert witness.violations == ()
    assert (witness.operations, witness.active) == (2, 0)


def test_removing_a_circuit_under_traffic_names_all_that_used_it() -> None:
    ocs, witness = watched(FIRST_PAIRS, SECOND_PAIRS)
    witness.begin("a", [FIRST], rank=4)
    witness.begin("b", [SECOND, FIRST], rank=7)
    witness.begin("c", [SECOND], rank=9)
    change(ocs, FIRST_PAIRS, epoch=3)
    (violation,) = witness.violations
    assert violation == Violation(
        CHANGED,
        AT,
        ("a", "b"),
        (4, 7),
        (FIRST,),
        "switch ocs began to remove 1->2, 2->1 and add nothing, epoch 3",
    )


@pytest.mark.parametrize("direction", FIRST_PAIRS)
def test_removing_one_direction_of_a_duplex_circuit_under_traffic_is_seen(
    direction: tuple[int, int],
) -> None:
    ocs, witness = watched(FIRST_PAIRS)
    witness.begin("a", [FIRST], rank=0)
    change(ocs, pairs(direction))
    assert seen(witness) == [(CHANGED, ("a",), (0,), (FIRST,))]


def test_moving_a_circuit_under_traffic_is_seen() -> None:
    ocs, witness = watched(FIRST_PAIRS)
    witness.begin("a", [FIRST], rank=0)
    change(ocs, FIRST_PAIRS, pairs((1, 4), (4, 1)))
    assert seen(witness) == [(CHANGED, ("a",), (0,), (FIRST,))]


@pytest.mark.parametrize("lit", [(), FIRST_PAIRS[:1], FIRST_PAIRS[1:], pairs((1, 4), (4, 1))])
def test_traffic_over_a_missing_circuit_or_one_with_one_direction_is_seen(lit: Pairs) -> None:
    _, witness = watched(lit, SECOND_PAIRS)
    witness.begin("a", [SECOND, FIRST], rank=5)
    assert seen(witness) == [(MISSING, ("a",), (5,), (FIRST,))]
    for pair in set(FIRST_PAIRS) - set(lit):
        assert f"{pair.ingress}->{pair.egress} of switch ocs" in witness.violations[0].detail


def test_traffic_over_a_circuit_that_is_still_being_made_is_seen() -> None:
    ocs, witness = watched()
    transition = ocs.accept((), FIRST_PAIRS, 1)
    ocs.start(transition)
    witness.begin("a", [FIRST], rank=0)
    ocs.finish(transition)
    witness.begin("b", [FIRST], rank=1)
    assert seen(witness) == [(MISSING, ("a",), (0,), (FIRST,))]


def test_traffic_begun_while_its_circuit_is_dark_is_seen() -> None:
    ocs, witness = watched(FIRST_PAIRS)
    transition = ocs.accept(FIRST_PAIRS, pairs((1, 4), (4, 1)), 1)
    ocs.start(transition)
    witness.begin("a", [FIRST], rank=0)
    ocs.finish(transition)
    assert seen(witness) == [(MISSING, ("a",), (0,), (FIRST,))]


def test_traffic_begun_between_the_request_and_the_optics_is_seen() -> None:
    ocs, witness = watched(FIRST_PAIRS)
    transition = ocs.accept(FIRST_PAIRS, (), 1)
    witness.begin("a", [FIRST], rank=0)
    assert witness.violations == ()
    ocs.start(transition)
    assert seen(witness) == [(CHANGED, ("a",), (0,), (FIRST,))]


def test_traffic_that_ends_before_the_optics_move_was_never_disturbed() -> None:
    ocs, witness = watched(FIRST_PAIRS)
    witness.begin("a", [FIRST], rank=0)
    transition = ocs.accept(FIRST_PAIRS, (), 1)
    witness.end("a")
    ocs.start(transition)
    ocs.finish(transition)
    assert witness.violations == ()


def test_a_refused_change_disturbs_nobody() -> None:
    ocs, witness = watched(FIRST_PAIRS)
    witness.begin("a", [FIRST], rank=0)
    with pytest.raises(DriverError):
        ocs.accept((), pairs((1, 4)), 1)
    assert witness.violations == ()


def test_changes_of_other_terminals_raise_no_alarm() -> None:
    ocs, witness = watched(FIRST_PAIRS, SECOND_PAIRS)
    witness.begin("a", [FIRST], rank=0)
    change(ocs, SECOND_PAIRS, pairs((5, 0), (0, 5)))
    change(ocs, (), pairs((3, 3)))
    assert witness.violations == ()


@pytest.mark.parametrize(
    ("kind", "circuit", "needs", "not_needed"),
    [
        (CircuitKind.DUPLEX, "h0:0:1--h1:0:0", pairs((1, 2), (2, 1)), pairs((3, 4))),
        (CircuitKind.BIDIRECTIONAL, "h0:0:1--h1:0:0", pairs((1, 2)), pairs((3, 4))),
        (CircuitKind.DIRECTED, "h0:0:1->h1:0:0", pairs((1, 2)), pairs((2, 1))),
        (CircuitKind.DIRECTED, "h1:0:0->h0:0:1", pairs((2, 1)), pairs((1, 2))),
    ],
)
def test_each_kind_of_circuit_needs_its_own_cross_connects(
    kind: CircuitKind, circuit: str, needs: Pairs, not_needed: Pairs
) -> None:
    ocs, witness = watched(needs, not_needed, kind=kind)
    witness.begin("a", [circuit], rank=0)
    change(ocs, not_needed)
    assert witness.violations == ()
    change(ocs, needs[-1:])
    assert seen(witness) == [(CHANGED, ("a",), (0,), (circuit,))]


def test_every_circuit_of_the_fabric_is_known_by_the_id_that_the_core_gives_it() -> None:
    for kind in CircuitKind:
        whole = fabric(kind=kind)
        ports = [attachment.port for attachment in whole.attachments]
        for a in ports:
            for b in ports:
                if a != b:
                    circuit = whole.circuit(a, b)
                    ocs = device(*circuit.cross_connects, sided=kind is not CircuitKind.BIDIRECTIONAL)
                    witness = TrafficWitness(whole, [ocs])
                    witness.begin("a", [circuit.id], rank=0)
                    assert witness.violations == (), circuit.id


@pytest.mark.parametrize(
    "circuit",
    ["", "--", "h0:0:1", "h0:0:1->h1:0:0", "h0:0:1--h9:0:0", "h0:0:1--h0:0:1", "h0:x:1--h1:0:0", "h0--h1"],
)
def test_an_unknown_circuit_is_refused_and_not_counted(circuit: str) -> None:
    _, witness = watched(FIRST_PAIRS)
    with pytest.raises(WitnessError, match=r"is unknown.*host:slot:index--host:slot:index"):
        witness.begin("a", [FIRST, circuit], rank=0)
    assert (witness.operations, witness.active, witness.violations) == (0, 0, ())


def test_a_circuit_on_a_switch_without_witness_is_refused() -> None:
    witness = TrafficWitness(fabric(), [device(name="other")])
    with pytest.raises(WitnessError, match="switch ocs, which is not watched"):
        witness.begin("a", [FIRST], rank=0)


def test_a_circuit_across_two_rails_is_refused_even_inside_one_switch() -> None:
    one = fabric()
    two = replace(
        one,
        rails=(one.rails[0], Rail("rail1", 1, "ocs", (1,))),
        attachments=tuple(replace(a, rail="rail1" if a.position > 3 else "rail0") for a in one.attachments),
    )
    witness = TrafficWitness(two, [device(*pairs((1, 4), (4, 1)))])
    with pytest.raises(WitnessError, match="joins ports of two rails"):
        witness.begin("a", ["h0:0:1--h2:0:0"], rank=0)


def test_an_operation_begins_once_and_ends_once() -> None:
    _, witness = watched(FIRST_PAIRS)
    witness.begin("a", [FIRST, FIRST], rank=0)
    with pytest.raises(WitnessError, match="'a' is active already"):
        witness.begin("a", [FIRST], rank=0)
    witness.end("a")
    with pytest.raises(WitnessError, match="'a' is not active"):
        witness.end("a")
    witness.begin("a", [FIRST], rank=0)
    assert witness.operations == 2


def test_a_vanished_rank_disturbs_no_later_change_and_is_counted() -> None:
    ocs, witness = watched(FIRST_PAIRS)
    witness.begin("a", [FIRST], rank=0)
    witness.abandon("a")
    change(ocs, FIRST_PAIRS)
    assert (witness.violations, witness.abandoned, witness.active) == ((), 1, 0)


def test_violations_are_kept_up_to_a_number_and_counted_beyond() -> None:
    _, witness = watched()
    for number in range(VIOLATIONS_KEPT + 2):
        witness.begin(f"{number}", [FIRST], rank=0)
    assert witness.violations_total == VIOLATIONS_KEPT + 2
    assert len(witness.violations) == VIOLATIONS_KEPT
    assert witness.violations[0].operations == ("0",)


def test_one_violation_names_a_bounded_number_of_operations() -> None:
    ocs, witness = watched(FIRST_PAIRS)
    for number in range(NAMES_KEPT + 5):
        witness.begin(f"{number:03}", [FIRST], rank=number)
    change(ocs, FIRST_PAIRS)
    (violation,) = witness.violations
    assert violation.ranks == tuple(range(NAMES_KEPT))
    assert violation.operations[-1] == f"{NAMES_KEPT - 1:03}"


def test_active_operations_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (OPERATIONS_MAX, CIRCUITS_IN_USE_MAX) == (65_536, 262_144)
    monkeypatch.setattr(witness_module, "OPERATIONS_MAX", 2)
    monkeypatch.setattr(witness_module, "CIRCUITS_IN_USE_MAX", 3)
    _, witness = watched(FIRST_PAIRS, SECOND_PAIRS)
    witness.begin("a", [FIRST, SECOND], rank=0)
    with pytest.raises(WitnessError, match="2 entries with 2 in use; the most is 3"):
        witness.begin("b", [FIRST, SECOND], rank=0)
    witness.begin("b", [FIRST], rank=0)
    with pytest.raises(WitnessError, match="2 operations are active, which is the most"):
        witness.begin("c", [], rank=0)
    witness.end("a")
    witness.begin("c", [FIRST, SECOND], rank=0)


def test_the_report_says_it_all_in_plain_values() -> None:
    _, witness = watched()
    witness.begin("a", [FIRST], rank=3)
    assert witness.report() == {
        "violations": [
            {
                "kind": "traffic-over-missing-circuit",
                "at": "2023-11-14T22:13:20.250Z",
                "operations": ["a"],
                "ranks": [3],
                "circuits": [FIRST],
                "detail": "rank 3 began without light on 1->2 of switch ocs, 2->1 of switch ocs",
            }
        ],
        "violations_total": 1,
        "operations": 1,
        "active": 1,
        "abandoned": 0,
    }


# Disjoint circuits, each up or down; every act is about one of them.
CIRCUITS = ((FIRST, FIRST_PAIRS), (SECOND, SECOND_PAIRS), ("h0:0:0--h3:0:1", pairs((0, 7), (7, 0))))
acts = st.lists(
    st.tuples(st.sampled_from(["begin", "end", "toggle", "half"]), st.integers(0, len(CIRCUITS) - 1)),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(acts)
def test_the_witness_agrees_with_a_plain_account_of_light_and_traffic(story: list[tuple[str, int]]) -> None:
    ocs, witness = watched(FIRST_PAIRS, SECOND_PAIRS)
    up = [set(CIRCUITS[i][1]) if i < 2 else set() for i in range(len(CIRCUITS))]
    users: list[list[str]] = [[] for _ in CIRCUITS]
    wanted: list[tuple[ViolationKind, tuple[str, ...], tuple[int, ...], tuple[str, ...]]] = []

    def turn(index: int, direction: Callable[[set[CrossConnect]], Pairs]) -> None:
        circuit, whole = CIRCUITS[index]
        removed = direction(set(up[index]))
        added = tuple(pair for pair in whole if pair not in up[index]) if not removed else ()
        change(ocs, removed, added)
        up[index] = up[index] - set(removed) | set(added)
        if users[index]:
            wanted.append((CHANGED, tuple(sorted(users[index])), (index,), (circuit,)))

    for step, (act, index) in enumerate(story):
        circuit, whole = CIRCUITS[index]
        if act == "begin":
            witness.begin(f"{step:02}", [circuit], rank=index)
            users[index].append(f"{step:02}")
            if up[index] != set(whole):
                wanted.append((MISSING, (f"{step:02}",), (index,), (circuit,)))
        elif act == "end" and users[index]:
            witness.end(users[index].pop())
        elif act == "toggle":
            turn(index, lambda lit: tuple(sorted(lit)))
        elif act == "half":
            turn(index, lambda lit: tuple(sorted(lit))[:1])
    assert seen(witness) == wanted
