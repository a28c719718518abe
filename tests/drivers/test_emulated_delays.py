"""What a change of the emulated switch costs, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from opus_sdn.drivers.base import TerminalError, TransientError
from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch
from opus_sdn.intent.fabric import CrossConnect
from tests.drivers.devices import Pairs, device, pairs
from tests.drivers.light import LightLog
from tests.drivers.virtual_time import now, run_virtual


def slow_device() -> EmulatedSwitch:
    """Command path 3 ms, optics 50 ms."""
    return device((0, 0), (1, 1), (2, 2), delay_ms=50, control_ms=3)


@pytest.mark.parametrize(
    ("remove", "add", "cost_ms"),
    [
        (pairs((0, 0)), pairs((0, 3)), 53),
        (pairs((0, 0)), (), 53),
        ((), pairs((3, 3)), 53),
        (pairs((0, 0), (1, 1)), pairs((0, 1), (1, 0)), 53),
        ((), (), 0),
    ],
)
def test_a_change_costs_the_command_path_and_the_optics_once(
    remove: Pairs, add: Pairs, cost_ms: float
) -> None:
    async def main() -> None:
        driver = EmulatedDriver(slow_device())
        applied = await driver.apply(remove, add, 1)
        assert now() * 1000 == pytest.approx(cost_ms)
        assert applied.dark_ms == (50 if cost_ms else 0)

    run_virtual(main)


def test_a_change_of_nothing_does_not_reach_the_device() -> None:
    async def main() -> None:
        ocs = slow_device()
        await EmulatedDriver(ocs).apply((), (), 1)
        assert (len(ocs.operations), ocs.counters.applies, ocs.revision) == (0, 0, slow_device().revision)

    run_virtual(main)


def test_disjoint_changes_run_in_parallel() -> None:
    async def main() -> None:
        driver = EmulatedDriver(slow_device())
        await asyncio.gather(
            driver.apply(pairs((0, 0)), pairs((0, 3)), 1), driver.apply(pairs((1, 1)), pairs((1, 4)), 1)
        )
        assert now() * 1000 == pytest.approx(53)
        assert (await driver.read()).matching == set(pairs((0, 3), (1, 4), (2, 2)))

    run_virtual(main)


def test_each_of_two_overlapping_changes_waits_for_its_own_end() -> None:
    async def main() -> None:
        driver = EmulatedDriver(slow_device())
        ends: list[float] = []

        async def at(start_s: float, remove: Pairs, add: Pairs) -> None:
            await asyncio.sleep(start_s)
            await driver.apply(remove, add, 1)
            ends.append(now() * 1000)

        await asyncio.gather(at(0.02, pairs((1, 1)), ()), at(0, pairs((0, 0)), pairs((0, 3))))
        assert ends == pytest.approx([53, 73])

    run_virtual(main)


def test_removed_pairs_go_dark_when_the_optics_start_and_added_ones_carry_light_at_the_end() -> None:
    async def main() -> None:
        ocs = slow_device()
        log = LightLog(ocs)
        await EmulatedDriver(ocs).apply(pairs((0, 0), (1, 1)), pairs((0, 1), (1, 0)), 1)
        for pair in pairs((0, 0), (1, 1)):
            ((at, lit),) = log.moments[pair]
            assert at == pytest.approx(0.003)
            assert not lit
        for pair in pairs((0, 1), (1, 0)):
            ((at, lit),) = log.moments[pair]
            assert at == pytest.approx(0.053)
            assert lit

    run_virtual(main)


def test_third_circuits_see_no_dark_time() -> None:
    async def main() -> None:
        ocs = slow_device()
        log = LightLog(ocs)
        driver = EmulatedDriver(ocs)
        await asyncio.gather(
            driver.apply(pairs((0, 0)), pairs((0, 5)), 1), driver.apply(pairs((1, 1)), pairs((5, 1)), 1)
        )
        await driver.apply(pairs((0, 5), (5, 1)), pairs((0, 1), (1, 0)), 1)
        assert set(log.moments) == set(pairs((0, 0), (0, 5), (1, 1), (5, 1), (0, 1), (1, 0)))
        assert ocs.is_lit(pairs((2, 2))[0])

    run_virtual(main)


def test_a_reader_sees_the_table_as_it_is_at_that_moment() -> None:
    async def main() -> None:
        driver = EmulatedDriver(slow_device())
        change = asyncio.ensure_future(driver.apply(pairs((0, 0)), pairs((0, 3)), 1))
        seen: list[frozenset[CrossConnect]] = []
        for _ in range(3):
            await asyncio.sleep(0.002 if not seen else 0.026)
            seen.append((await driver.read()).matching - set(pairs((1, 1), (2, 2))))
        await change
        assert seen == [set(pairs((0, 0))), set(), set(pairs((0, 3)))]

    run_virtual(main)


@pytest.mark.parametrize(
    ("remove", "add", "error"),
    [((), pairs((0, 4)), TerminalError), (pairs((2, 2)), pairs((2, 1)), TransientError)],
)
def test_a_refusal_costs_nothing(remove: Pairs, add: Pairs, error: type[Exception]) -> None:
    async def main() -> None:
        driver = EmulatedDriver(slow_device())
        change = asyncio.ensure_future(driver.apply(pairs((1, 1)), (), 1))
        await asyncio.sleep(0.01)
        with pytest.raises(error):
            await driver.apply(remove, add, 1)
        assert now() == pytest.approx(0.01)
        await change

    run_virtual(main)


def test_the_device_ends_a_change_that_nobody_waits_for_any_more() -> None:
    async def main() -> None:
        ocs = slow_device()
        driver = EmulatedDriver(ocs)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(driver.apply(pairs((0, 0)), pairs((0, 3)), 1), 0.01)
        assert ocs.inflight == 1
        await driver.close()
        await asyncio.sleep(0.05)
        assert ocs.inflight == 0
        assert ocs.table == set(pairs((0, 3), (1, 1), (2, 2)))

    run_virtual(main)


def test_two_programs_that_want_one_port_do_not_both_get_it() -> None:
    async def main() -> None:
        ocs = slow_device()
        answers = await asyncio.gather(
            EmulatedDriver(ocs).apply((), pairs((3, 4)), 1),
            EmulatedDriver(ocs).apply((), pairs((5, 4)), 1),
            return_exceptions=True,
        )
        assert [isinstance(answer, TransientError) for answer in answers] == [False, True]
        assert pairs((3, 4))[0] in ocs.table
        assert pairs((5, 4))[0] not in ocs.table

    run_virtual(main)


def test_time_is_spent_by_the_sleep_that_was_given() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def main() -> None:
        await EmulatedDriver(slow_device(), sleep=sleep).apply((), pairs((3, 3)), 1)
        await EmulatedDriver(device(), sleep=sleep).apply((), pairs((3, 3)), 1)

    asyncio.run(main())
    assert slept == [0.003, 0.05]
