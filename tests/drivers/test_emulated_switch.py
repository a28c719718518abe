"""What the emulated switch holds, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

from opus_sdn.drivers.base import Description, DriverError, TerminalError, TransientError
from opus_sdn.drivers.emulated import OPERATIONS_KEPT, EmulatedDriver
from tests.drivers.devices import Pairs, change, device, pairs

NOTHING: Pairs = ()

# remove, add, words of the refusal; the device holds 0->0, 1->1 and 2->5 with sides, else 0-1 and 2-5.
REFUSED_WITH_SIDES = [
    (NOTHING, pairs((8, 3)), ["8->3 is out of range", "0 to 7"]),
    (NOTHING, pairs((3, 8)), ["3->8 is out of range"]),
    (NOTHING, pairs((-1, 3)), ["-1->3 is out of range"]),
    (pairs((0, 9)), NOTHING, ["remove", "0->9 is out of range"]),
    (NOTHING, pairs((3, 3), (3, 4)), ["3->3 and 3->4 both use ingress 3"]),
    (NOTHING, pairs((3, 3), (4, 3)), ["3->3 and 4->3 both use egress 3"]),
    (NOTHING, pairs((3, 3), (3, 3)), ["3->3 and 3->3 both use ingress 3"]),
    (pairs((0, 0), (0, 0)), NOTHING, ["remove", "0->0 and 0->0 both use ingress 0"]),
    (NOTHING, pairs((0, 4)), ["add 0->4", "ingress 0 is held by 0->0"]),
    (NOTHING, pairs((4, 0)), ["add 4->0", "egress 0 is held by 0->0"]),
    (NOTHING, pairs((0, 0)), ["add 0->0", "ingress 0 is held by 0->0"]),
    (pairs((1, 1)), pairs((1, 0)), ["add 1->0", "egress 0 is held by 0->0"]),
    (pairs((3, 3)), NOTHING, ["not there: 3->3"]),
    (pairs((0, 1)), NOTHING, ["not there: 0->1"]),
    (pairs((5, 2)), NOTHING, ["not there: 5->2"]),
    (pairs((0, 0)), pairs((0, 0)), ["0->0 in remove and in add"]),
]
REFUSED_WITHOUT_SIDES = [
    (NOTHING, pairs((3, 3)), ["3->3 joins position 3 to itself"]),
    (NOTHING, pairs((3, 4), (4, 6)), ["3->4 and 4->6 both use position 4"]),
    (NOTHING, pairs((3, 4), (4, 3)), ["both use position 3"]),
    (NOTHING, pairs((3, 1)), ["add 1->3", "position 1 is held by 0->1"]),
    (pairs((0, 2)), NOTHING, ["not there: 0->2"]),
]


def refusals() -> list[object]:
    with_sides = [pytest.param(True, *case, id=f"sides: {case[2][-1]}") for case in REFUSED_WITH_SIDES]
    without = [pytest.param(False, *case, id=f"no sides: {case[2][-1]}") for case in REFUSED_WITHOUT_SIDES]
    return [*with_sides, *without]


@pytest.mark.parametrize(("sided", "remove", "add", "words"), refusals())
def test_what_cannot_be_is_refused_for_good_and_changes_nothing(
    sided: bool, remove: Pairs, add: Pairs, words: list[str]
) -> None:
    initial = [(0, 0), (1, 1), (2, 5)] if sided else [(0, 1), (2, 5)]
    ocs = device(*initial, sided=sided)
    before, revision = ocs.table, ocs.revision
    with pytest.raises(TerminalError) as refusal:
        ocs.accept(remove, add, 1)
    for word in words:
        assert word in refusal.value.detail
    assert (ocs.table, ocs.revision, ocs.moving, ocs.inflight) == (before, revision, frozenset(), 0)
    assert (ocs.counters.applies, ocs.counters.refused) == (0, 1)


def test_one_wrong_pair_spoils_the_whole_request() -> None:
    ocs = device((0, 0), (1, 1))
    with pytest.raises(TerminalError):
        ocs.accept(pairs((0, 0)), pairs((0, 2), (3, 1)), 1)
    assert ocs.table == set(pairs((0, 0), (1, 1)))


def test_a_switch_with_sides_can_loop_a_position_onto_itself() -> None:
    ocs = device()
    change(ocs, add=pairs((3, 3)))
    assert ocs.table == set(pairs((3, 3)))


def test_without_sides_the_order_of_the_two_positions_does_not_matter() -> None:
    ocs = device((5, 2), sided=False)
    assert ocs.table == set(pairs((2, 5)))
    assert ocs.is_lit(pairs((5, 2))[0])
    change(ocs, pairs((5, 2)), pairs((7, 2), (5, 0)))
    assert ocs.table == set(pairs((2, 7), (0, 5)))


def test_a_pair_being_made_is_not_listed_until_it_is_done() -> None:
    ocs = device((0, 0))
    transition = ocs.accept(pairs((0, 0)), pairs((0, 1)), 1)
    assert ocs.table == set(pairs((0, 0)))
    ocs.start(transition)
    assert ocs.table == set()
    assert not ocs.is_lit(pairs((0, 1))[0])
    ocs.finish(transition)
    assert ocs.table == set(pairs((0, 1)))


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("remove", "add"),
    [
        (NOTHING, pairs((4, 1))),
        (NOTHING, pairs((0, 4))),
        (NOTHING, pairs((4, 0))),
        (pairs((0, 0)), NOTHING),
        (pairs((0, 1)), NOTHING),
        (pairs((2, 2)), pairs((2, 1))),
    ],
)
def test_what_touches_a_moving_terminal_may_be_asked_again_later(
    started: bool, remove: Pairs, add: Pairs
) -> None:
    ocs = device((0, 0), (2, 2), delay_ms=40, control_ms=10)
    transition = ocs.accept(pairs((0, 0)), pairs((0, 1)), 1)
    if started:
        ocs.start(transition)
    before = ocs.table
    with pytest.raises(TransientError, match="still moving") as refusal:
        ocs.accept(remove, add, 1)
    assert refusal.value.retry_after_s == pytest.approx(0.05)
    assert ocs.table == before
    assert ocs.inflight == 1


def test_a_switch_without_delays_still_advises_some_wait() -> None:
    ocs = device()
    ocs.accept((), pairs((0, 1)), 1)
    with pytest.raises(TransientError) as refusal:
        ocs.accept((), pairs((0, 2)), 1)
    assert refusal.value.retry_after_s > 0


def test_a_terminal_can_be_changed_again_when_its_optics_stand() -> None:
    ocs = device((0, 0))
    change(ocs, pairs((0, 0)), pairs((0, 1)))
    change(ocs, pairs((0, 1)), pairs((0, 0)))
    assert ocs.table == set(pairs((0, 0)))
    assert ocs.moving == set()


def test_the_device_takes_as_many_changes_at_once_as_it_says() -> None:
    ocs = device(max_inflight=2)
    first = ocs.accept((), pairs((0, 0)), 1)
    ocs.start(first)
    ocs.accept((), pairs((1, 1)), 1)
    with pytest.raises(TransientError, match="2 changes in progress; max_inflight is 2"):
        ocs.accept((), pairs((2, 2)), 1)
    ocs.finish(first)
    assert ocs.accept((), pairs((2, 2)), 1).number == 3


def test_the_log_keeps_every_request_with_its_epoch() -> None:
    ocs = device((0, 0))
    change(ocs, pairs((0, 0)), pairs((0, 1)), epoch=7)
    with pytest.raises(TerminalError):
        ocs.accept((), pairs((0, 2)), 8)
    done, refused = ocs.operations
    assert (done.epoch, done.remove, done.add, done.refused) == (7, pairs((0, 0)), pairs((0, 1)), None)
    assert refused.epoch == 8
    assert refused.refused is not None
    assert "ingress 0 is held by 0->1" in refused.refused
    assert (ocs.counters.applies, ocs.counters.removed, ocs.counters.added) == (1, 1, 1)


def test_the_log_is_bounded() -> None:
    ocs = device((0, 0))
    for turn in range(OPERATIONS_KEPT):
        change(ocs, pairs((0, turn % 2)), pairs((0, 1 - turn % 2)), epoch=turn)
    change(ocs, pairs((0, 0)), epoch=OPERATIONS_KEPT)
    assert len(ocs.operations) == OPERATIONS_KEPT
    assert ocs.operations[0].epoch == 1
    assert ocs.counters.applies == OPERATIONS_KEPT + 1


def test_the_revision_changes_whenever_the_table_does() -> None:
    ocs = device((0, 0))
    seen = [ocs.revision]
    transition = ocs.accept(pairs((0, 0)), pairs((0, 1)), 1)
    assert ocs.revision == seen[0]
    ocs.start(transition)
    seen.append(ocs.revision)
    ocs.finish(transition)
    seen.append(ocs.revision)
    assert len(set(seen)) == 3


def test_a_driver_says_what_its_device_is() -> None:
    driver = EmulatedDriver(device(size=16, sided=False, max_inflight=3))
    assert asyncio.run(driver.describe()) == Description(
        "emulated", 16, sided=False, max_inflight=3, shutter=True, labels=True
    )


def test_an_ended_session_is_refused_and_the_circuits_stay() -> None:
    ocs = device((0, 1))
    driver = EmulatedDriver(ocs)

    async def main() -> None:
        await driver.close()
        for call in (driver.read(), driver.describe(), driver.apply((), pairs((2, 2)), 1)):
            with pytest.raises(DriverError, match="session is closed"):
                await call
        assert (await EmulatedDriver(ocs).read()).matching == set(pairs((0, 1)))

    asyncio.run(main())
