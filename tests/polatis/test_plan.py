"""One transaction: what is written, what is in the way, what came of it; against a model of the device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.drivers.base import ConflictMode, PairOutcome, Refusal, TerminalError
from opus_sdn.drivers.pairs import displaced_by, ports_of
from opus_sdn.drivers.polatis.numbering import Numbering
from opus_sdn.drivers.polatis.plan import make_plan, results_of
from opus_sdn.intent.fabric import CrossConnect
from tests.drivers.devices import Pairs, pairs

SIZES = ("8x8", "6x03", "8xCC")


@st.composite
def matchings(draw: st.DrawFn, numbering: Numbering) -> frozenset[CrossConnect]:
    """Any partial matching of the device's ports."""
    if numbering.sided:
        egresses = draw(st.permutations(range(numbering.egress)))
        ingresses = draw(st.permutations(range(numbering.ingress)))
        chosen = zip(ingresses, egresses, strict=False)
    else:
        ports = draw(st.permutations(range(numbering.ingress)))
        chosen = zip(ports[::2], ports[1::2], strict=False)
    found = [CrossConnect(*sorted(p)) if not numbering.sided else CrossConnect(*p) for p in chosen]
    return frozenset(found[: draw(st.integers(0, len(found)))])


def carried_out(
    numbering: Numbering, before: frozenset[CrossConnect], plan: object
) -> frozenset[CrossConnect]:
    """What a device makes of the writes, that refuses a port in two circuits. Keys are ingress numbers."""
    table = dict(numbering.wire(pair) for pair in before)
    for ingress in plan.delete:  # type: ignore[attr-defined]
        del table[ingress]
    table.update(plan.merge)  # type: ignore[attr-defined]
    held = [number for pair in table.items() for number in pair]
    assert len(set(held)) == len(held), "the device would have had to displace something"
    return frozenset(numbering.pair(a, b) for a, b in table.items())


@given(st.sampled_from(SIZES), st.data())
def test_the_writes_of_a_change_lead_to_its_end_state_and_to_nothing_else(
    size: str, data: st.DataObject
) -> None:
    numbering = Numbering.parse(size)
    before, wanted = data.draw(matchings(numbering)), data.draw(matchings(numbering))
    remove, add = tuple(before - wanted), tuple(wanted - before)
    plan = make_plan(numbering, before, remove, add, ConflictMode.SAFE)
    after = carried_out(numbering, before, plan)
    assert after == wanted
    assert plan.reached(after)
    assert plan.empty is (before == wanted)
    assert {r.outcome for r in results_of(plan, before, after, {})} <= {PairOutcome.APPLIED}
    deleted = {p for p in before if numbering.wire(p)[0] in plan.delete}
    overwritten = {p for p in before if numbering.wire(p)[0] in {a for a, _ in plan.merge}}
    assert deleted | overwritten == set(remove), "only true removals are deleted, the rest is overwritten"
    assert not deleted & overwritten


@given(st.sampled_from(SIZES), st.data())
def test_nothing_is_displaced_that_was_not_named_before(size: str, data: st.DataObject) -> None:
    numbering = Numbering.parse(size)
    before, add = data.draw(matchings(numbering)), tuple(data.draw(matchings(numbering)))
    victims = displaced_by(before, (), add, sided=numbering.sided)
    assert set(victims) == {
        p
        for p in before - set(add)
        if any(set(ports_of(p, sided=numbering.sided)) & set(ports_of(q, sided=numbering.sided)) for q in add)
    }
    if victims:
        with pytest.raises(TerminalError) as refusal:
            make_plan(numbering, before, (), add, ConflictMode.SAFE)
        assert refusal.value.reason is Refusal.WOULD_DISPLACE
        assert refusal.value.displaced == victims
    plan = make_plan(numbering, before, (), add, ConflictMode.UPDATE)
    after = carried_out(numbering, before, plan)
    assert after == (before - set(victims)) | set(add)
    assert {r.pair for r in results_of(plan, before, after, {}) if r.outcome is PairOutcome.DISPLACED} == set(
        victims
    )


@pytest.mark.parametrize(
    ("remove", "add", "reason", "says"),
    [
        (
            (),
            pairs((0, 0), (1, 1), (76, 2), (3, 3)),
            Refusal.INVALID,
            "add: 76->2: ingress 76 is out of range",
        ),
        ((), pairs((3, 8)), Refusal.INVALID, "egress 8 is out of range; positions are 0 to 7"),
        ((), pairs((-1, 3)), Refusal.INVALID, "ingress -1"),
        ((), pairs((2, 4), (3, 4)), Refusal.INVALID, "add: 2->4 and 3->4 both use egress 4"),
        ((), pairs((2, 4), (2, 5)), Refusal.INVALID, "2->4 and 2->5 both use ingress 2"),
        (pairs((0, 0), (0, 0)), (), Refusal.INVALID, "both use"),
        (pairs((0, 0)), pairs((0, 0)), Refusal.INVALID, "0->0 in remove and in add"),
        (pairs((5, 5)), (), Refusal.ABSENT, "not there: 5->5"),
        (
            (),
            pairs((0, 1)),
            Refusal.WOULD_DISPLACE,
            "ingress 0 is held by 0->0; add 0->1: egress 1 is held by 1->1",
        ),
    ],
)
def test_a_request_that_cannot_be_is_refused_whole_and_before_anything_is_sent(
    remove: Pairs, add: Pairs, reason: Refusal, says: str
) -> None:
    before = frozenset(pairs((0, 0), (1, 1)))
    with pytest.raises(TerminalError) as refusal:
        make_plan(Numbering.parse("8x8"), before, remove, add, ConflictMode.SAFE)
    assert refusal.value.reason is reason
    assert says in refusal.value.detail


def test_an_overwrite_removes_everything_else_and_reports_it() -> None:
    before = frozenset(pairs((0, 0), (1, 1), (2, 2)))
    plan = make_plan(
        Numbering.parse("8x8"), before, pairs((2, 2)), pairs((1, 1), (0, 3)), ConflictMode.OVERWRITE
    )
    assert plan.overwrite == ((1, 12), (2, 10))
    after = frozenset(pairs((1, 1), (0, 3)))
    results = {r.pair: r.outcome for r in results_of(plan, before, after, {})}
    assert results == {
        (0, 0): PairOutcome.DISPLACED,
        (2, 2): PairOutcome.APPLIED,
        (0, 3): PairOutcome.APPLIED,
        (1, 1): PairOutcome.APPLIED,
    }


def test_what_is_there_already_is_not_written_again() -> None:
    plan = make_plan(Numbering.parse("8x8"), frozenset(pairs((0, 0))), (), pairs((0, 0)), ConflictMode.SAFE)
    assert plan.empty


def test_every_pair_of_a_change_that_went_half_way_is_told_apart() -> None:
    before = frozenset(pairs((0, 0), (1, 1), (5, 5)))
    plan = make_plan(
        Numbering.parse("8x8"),
        before,
        pairs((0, 0), (1, 1)),
        pairs((2, 2), (3, 3), (4, 4)),
        ConflictMode.SAFE,
    )
    after = frozenset(pairs((1, 1), (2, 2), (3, 3)))
    results = list(results_of(plan, before, after, {CrossConnect(3, 3): "egress 3 is disabled"}, why="DENY"))
    assert [(r.pair, r.outcome, r.removed, r.reason) for r in results] == [
        ((0, 0), PairOutcome.APPLIED, True, None),
        ((1, 1), PairOutcome.FAILED, True, "DENY"),
        ((2, 2), PairOutcome.APPLIED, False, None),
        ((3, 3), PairOutcome.CONNECTED_DARK, False, "egress 3 is disabled"),
        ((4, 4), PairOutcome.FAILED, False, "DENY"),
        ((5, 5), PairOutcome.DISPLACED, True, "gone at the same time, and nobody here asked for it"),
    ]
