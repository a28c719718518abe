"""Plans of one switch: what is removed, what is added, what stays blocked and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.intent.checker import check_step
from opus_sdn.intent.fabric import Circuit, CircuitKind, CrossConnect, Terminal
from opus_sdn.intent.planner import Plan, SwitchFacts, Want, is_up, plan
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.standing import Bar
from tests.intent.worlds import make_fabric

PORTS = 8
FABRICS = {kind: make_fabric(PORTS, ports=1, kind=kind) for kind in CircuitKind}


@dataclass(frozen=True)
class Facts:
    """A switch with eight ports at positions 0 to 7; everything is named by circuits `1-2`."""

    up: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()
    graced: tuple[str, ...] = ()
    extra: tuple[tuple[int, int], ...] = ()  # cross-connects that are no whole circuit
    kind: CircuitKind = CircuitKind.DUPLEX

    def build(self) -> SwitchFacts:
        """The planner's form."""
        switch = FABRICS[self.kind].switches[0]
        pairs = [p for text in self.up for p in circuit(text, self.kind).cross_connects]
        pairs += [CrossConnect(*pair) for pair in self.extra]
        return SwitchFacts(
            switch,
            5,
            {t: p for p in pairs for t in switch.terminals_of(p)},
            {t for text in self.moving for t in circuit(text, self.kind).terminals},
            {t: c for text in self.live for c in [circuit(text, self.kind)] for t in c.terminals},
            FABRICS[self.kind].positions("ocs0"),
            {t for text in self.graced for t in circuit(text, self.kind).terminals},
        )


@pytest.mark.parametrize(
    ("facts", "first", "reason"),
    [
        (Facts(up=("1-2",)), (), None),
        (Facts(up=("1-2",), moving=("2-3",)), (), Reason.MOVING),
        (Facts(up=("1-2",), live=("1-2",)), (), Reason.LOCKED),
        (Facts(up=("1-2",)), ("1-2",), Reason.RESERVED),
        (Facts(up=("1-2",), graced=("1-2",)), (), Reason.GRACE),
        (Facts(extra=((1, 8), (8, 1))), (), Reason.FOREIGN),
    ],
)
def test_what_is_to_be_cleared_goes_unless_there_is_a_reason_against_it(
    facts: Facts, first: tuple[str, ...], reason: Reason | None
) -> None:
    built = facts.build()
    pairs = tuple(pair for pair in built.holder.values() if 1 in pair)
    wants = [Want("first", tuple(map(circuit, first))), Want("clear", (), pairs)]
    made = plan(built, wants)
    assert {blocked.because.reason for blocked in made.blocked} == ({reason} if reason else set())
    assert set(made.remove) == (set() if reason else set(pairs))


def circuit(text: str, kind: CircuitKind = CircuitKind.DUPLEX) -> Circuit:
    """`1-2` joins the ports at positions 1 and 2."""
    fabric = FABRICS[kind]
    a, b = (fabric.port_at("ocs0", int(end)) for end in text.split("-"))
    assert a is not None
    assert b is not None
    return fabric.circuit(a, b)


def made(facts: Facts, *wants: str) -> Plan:
    """A plan for wants `name: 1-2 3-4`, in order."""
    parsed = [want.split(": ") for want in wants]
    return plan(
        facts.build(), [Want(k, tuple(circuit(c, facts.kind) for c in rest.split())) for k, rest in parsed]
    )


def flat(pairs: tuple[CrossConnect, ...]) -> set[tuple[int, int]]:
    """Pairs without their order."""
    return {tuple(pair) for pair in pairs}


def both(*texts: str) -> set[tuple[int, int]]:
    """Both directions of circuits."""
    return {tuple(pair) for text in texts for pair in circuit(text).cross_connects}


# facts, wants -> removed, added, causes
PLANS = [
    (Facts(), ["a: 1-2"], set(), both("1-2"), ["a"]),
    (Facts(up=("1-2",)), ["a: 1-2"], set(), set(), []),  # what is up needs nothing
    (Facts(up=("1-3", "5-6")), ["a: 1-2"], both("1-3"), both("1-2"), ["a"]),  # 5-6 is in nobody's way
    (Facts(up=("1-3", "2-4")), ["a: 1-2"], both("1-3", "2-4"), both("1-2"), ["a"]),
    (Facts(), ["a: 1-2 3-4"], set(), both("1-2", "3-4"), ["a"]),
    (Facts(up=("1-2",)), ["a: 1-2 3-4"], set(), both("3-4"), ["a"]),
    (Facts(), ["a: 1-2", "b: 3-4"], set(), both("1-2", "3-4"), ["a", "b"]),
    (Facts(), ["a: 1-2", "b: 1-2"], set(), both("1-2"), ["a", "b"]),  # one circuit for two
    (Facts(), ["a: 1-2", "b: 2-3"], set(), both("1-2"), ["a"]),
    # Two wants may take the two ends of one circuit apart in the same step.
    (Facts(up=("1-2",)), ["a: 1-3", "b: 2-4"], both("1-2"), both("1-3", "2-4"), ["a", "b"]),
    # A half of a circuit is completed, and a half of another one goes with what is left of it.
    (Facts(extra=((1, 2),)), ["a: 1-2"], set(), {(2, 1)}, ["a"]),
    (Facts(extra=((1, 3), (4, 2))), ["a: 1-2"], {(1, 3), (4, 2)}, both("1-2"), ["a"]),
    (Facts(live=("1-3",), up=("1-3",)), ["a: 1-2", "b: 4-5"], set(), both("4-5"), ["b"]),
    (Facts(), [], set(), set(), []),
]


@pytest.mark.parametrize(("facts", "wants", "removed", "added", "causes"), PLANS)
def test_only_what_is_in_the_way_is_removed_and_only_what_is_missing_is_added(
    facts: Facts,
    wants: list[str],
    removed: set[tuple[int, int]],
    added: set[tuple[int, int]],
    causes: list[str],
) -> None:
    found = made(facts, *wants)
    assert (flat(found.remove), flat(found.add), list(found.causes)) == (removed, added, causes)
    assert (found.switch, found.generation) == ("ocs0", 5)


# facts, wants -> (want, circuit, reason, data) of what stays blocked
BLOCKED = [
    (
        Facts(up=("1-3",), live=("1-3",)),
        ["a: 1-2"],
        [("a", "1-2", Reason.LOCKED, {"switch": "ocs0", "position": 1})],
    ),
    (Facts(moving=("2-3",)), ["a: 1-2"], [("a", "1-2", Reason.MOVING, {"switch": "ocs0", "position": 2})]),
    (
        Facts(up=("1-3",), moving=("3-4",)),
        ["a: 1-2"],
        [("a", "1-2", Reason.MOVING, {"switch": "ocs0", "position": 3})],
    ),
    (
        Facts(up=("1-2",), moving=("1-2",)),
        ["a: 1-2"],
        [("a", "1-2", Reason.MOVING, {"switch": "ocs0", "position": 1})],
    ),
    # Something that ends outside of our ports is in the way: it is not ours to remove.
    (
        Facts(extra=((1, 9),)),
        ["a: 1-2"],
        [("a", "1-2", Reason.FOREIGN, {"switch": "ocs0", "position": 9})],
    ),
    (Facts(), ["a: 1-2", "b: 2-3"], [("b", "2-3", Reason.RESERVED, {"for": "a"})]),
    # Who waits for traffic to end keeps its ports all the same, idle ones included.
    (
        Facts(up=("1-3",), live=("1-3",)),
        ["a: 1-2", "b: 2-4"],
        [
            ("a", "1-2", Reason.LOCKED, {"switch": "ocs0", "position": 1}),
            ("b", "2-4", Reason.RESERVED, {"for": "a"}),
        ],
    ),
    # So does one that is up already and waits for its other circuit.
    (
        Facts(up=("1-2", "5-6"), live=("5-6",)),
        ["a: 1-2 5-7", "b: 2-3"],
        [
            ("a", "5-7", Reason.LOCKED, {"switch": "ocs0", "position": 5}),
            ("b", "2-3", Reason.RESERVED, {"for": "a"}),
        ],
    ),
]


@pytest.mark.parametrize(("facts", "wants", "blocked"), BLOCKED)
def test_what_cannot_be_made_says_why(
    facts: Facts, wants: list[str], blocked: list[tuple[str, str, Reason, dict[str, object]]]
) -> None:
    found = made(facts, *wants)
    seen = [(b.key, b.circuit, b.because.reason, b.because.data) for b in found.blocked]
    assert seen == [(key, circuit(text).id, reason, data) for key, text, reason, data in blocked]


def test_one_that_yields_and_cannot_be_made_whole_takes_nothing_from_others() -> None:
    facts = Facts(up=("1-5",), extra=((3, 9),)).build()  # nobody of ours is on position 9
    circuits = (circuit("1-2"), circuit("3-4"), circuit("6-7"))
    made_of_it = plan(facts, [Want("a", circuits, yields=True)])
    assert (flat(made_of_it.remove), flat(made_of_it.add)) == (set(), both("6-7"))
    assert [(blocked.circuit, blocked.because.reason) for blocked in made_of_it.blocked] == [
        (circuit("1-2").id, Reason.FOREIGN),
        (circuit("3-4").id, Reason.FOREIGN),
    ]
    impatient = plan(facts, [Want("a", circuits)])
    assert (flat(impatient.remove), flat(impatient.add)) == (both("1-5"), both("1-2", "6-7"))


def test_one_that_yields_and_needs_a_broken_port_takes_nothing_from_others() -> None:
    broken = Bar(Because(Reason.PORT_FAILED, "broken", {}))
    closed = dict.fromkeys(circuit("3-4").terminals[:1], broken)
    facts = replace(Facts(up=("1-5",)).build(), barred=closed)
    circuits = (circuit("1-2"), circuit("3-4"), circuit("6-7"))
    made_of_it = plan(facts, [Want("a", circuits, yields=True)])
    assert (flat(made_of_it.remove), flat(made_of_it.add)) == (set(), both("6-7"))
    assert {blocked.because.reason for blocked in made_of_it.blocked} == {Reason.PORT_FAILED}


def test_bidirectional_and_directed_circuits_are_made_of_one_cross_connect() -> None:
    assert flat(made(Facts(kind=CircuitKind.BIDIRECTIONAL, up=("1-3",)), "a: 2-1").remove) == {(1, 3)}
    assert flat(made(Facts(kind=CircuitKind.BIDIRECTIONAL), "a: 2-1").add) == {(1, 2)}
    directed = made(Facts(kind=CircuitKind.DIRECTED, up=("1-3", "2-1")), "a: 1-2")
    assert (flat(directed.remove), flat(directed.add)) == ({(1, 3)}, {(1, 2)})  # 2 to 1 is another side


def test_a_circuit_is_up_when_all_of_it_is_there_and_nothing_of_it_moves() -> None:
    assert is_up(Facts(up=("1-2",)).build(), circuit("1-2"))
    assert not is_up(Facts(extra=((1, 2),)).build(), circuit("1-2"))
    assert not is_up(Facts(up=("1-2",), moving=("2-3",)).build(), circuit("1-2"))
    assert not is_up(Facts().build(), circuit("1-2"))


ENDS = st.integers(0, PORTS - 1)
CIRCUITS = st.tuples(ENDS, ENDS).filter(lambda ends: ends[0] != ends[1]).map(lambda e: f"{e[0]}-{e[1]}")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Facts, list[str]]:
    """A switch that holds some circuits, some of them live or moving, and wants in some order."""
    kind = draw(st.sampled_from(CircuitKind))
    up: list[str] = []
    taken: set[Terminal] = set()
    for text in draw(st.lists(CIRCUITS, max_size=6)):
        if not taken & set(circuit(text, kind).terminals):
            taken |= set(circuit(text, kind).terminals)
            up.append(text)
    live = [text for text in up if draw(st.booleans())]
    moving = [text for text in draw(st.lists(CIRCUITS, max_size=2)) if text not in live]
    wants = [" ".join(one) for one in draw(st.lists(st.lists(CIRCUITS, min_size=1, max_size=3), max_size=5))]
    return Facts(tuple(up), tuple(live), tuple(moving), kind=kind), [
        f"w{n}: {w}" for n, w in enumerate(wants)
    ]


@given(worlds())
def test_the_checker_agrees_with_every_plan_of_the_planner(world: tuple[Facts, list[str]]) -> None:
    facts, wants = world
    built, found = facts.build(), made(facts, *wants)
    # Two circuits of one want may share a port only if the want contradicts itself: no connection does.
    if any(_contradicts_itself(want, facts.kind) for want in wants):
        return
    observed = set(built.holder.values())
    violations = check_step(
        built.switch, observed, found.remove, found.add, built.live, built.moving, built.owned, lambda _: True
    )
    assert violations == ()
    assert bool(found.add) == bool(found.causes)
    assert not found.remove or found.add


def _contradicts_itself(want: str, kind: CircuitKind) -> bool:
    circuits = {circuit(text, kind).id: circuit(text, kind) for text in want.split(": ")[1].split()}
    terminals = [t for one in circuits.values() for t in one.terminals]
    return len(set(terminals)) < len(terminals)


@given(worlds())
def test_after_a_plan_every_cause_is_nearer_and_everything_else_stays(world: tuple[Facts, list[str]]) -> None:
    facts, wants = world
    built, found = facts.build(), made(facts, *wants)
    before = set(built.holder.values())
    needed = {t for pair in found.add for t in built.switch.terminals_of(pair)}
    for pair in found.remove:
        assert needed & set(built.switch.terminals_of(pair))
    assert not set(found.add) & before
    assert set(found.remove) <= before
