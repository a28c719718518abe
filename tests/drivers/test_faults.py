"""A driver that fails as told: each fault leaves the device as its name says."""

from __future__ import annotations

import asyncio

import pytest

from opus_sdn.drivers.base import AmbiguousError, TerminalError, TransientError
from opus_sdn.drivers.emulated import EmulatedDriver
from opus_sdn.drivers.faults import Fault, FaultKind, FaultyDriver
from tests.drivers.devices import Pairs, device, pairs
from tests.drivers.virtual_time import now, run_virtual

REMOVE = pairs((0, 0), (1, 1))
ADD = pairs((0, 1), (1, 0))
AS_BEFORE = pairs((0, 0), (1, 1))


@pytest.mark.parametrize(
    ("fault", "error", "left"),
    [
        (Fault(FaultKind.TRANSIENT, seconds=2.5), TransientError, AS_BEFORE),
        (Fault(FaultKind.TERMINAL), TerminalError, AS_BEFORE),
        (Fault(FaultKind.ANSWER_LOST), AmbiguousError, ADD),
        (Fault(FaultKind.REQUEST_LOST), AmbiguousError, AS_BEFORE),
        (Fault(FaultKind.LATE, seconds=1), AmbiguousError, AS_BEFORE),
        (Fault(FaultKind.PARTIAL, pairs=0), AmbiguousError, AS_BEFORE),
        (Fault(FaultKind.PARTIAL, pairs=1), AmbiguousError, pairs((1, 1))),
        (Fault(FaultKind.PARTIAL, pairs=2), AmbiguousError, ()),
        (Fault(FaultKind.PARTIAL, pairs=3), AmbiguousError, pairs((0, 1))),
    ],
)
def test_a_fault_raises_its_kind_and_leaves_what_it_says(
    fault: Fault, error: type[Exception], left: Pairs
) -> None:
    async def main() -> None:
        driver = FaultyDriver(EmulatedDriver(device(*AS_BEFORE, delay_ms=25)), [fault])
        with pytest.raises(error) as raised:
            await driver.apply(REMOVE, ADD, 1)
        if isinstance(raised.value, TransientError):
            assert raised.value.retry_after_s == 2.5
        assert (await driver.read()).matching == set(left)
        assert driver.faults_left == 0

    run_virtual(main)


def test_a_late_request_lands_after_the_table_was_read_as_unchanged() -> None:
    async def main() -> None:
        driver = FaultyDriver(EmulatedDriver(device(*AS_BEFORE)), [Fault(FaultKind.LATE, seconds=1)])
        with pytest.raises(AmbiguousError):
            await driver.apply(REMOVE, ADD, 1)
        assert (await driver.read()).matching == set(AS_BEFORE)
        await asyncio.sleep(1.5)
        assert (await driver.read()).matching == set(ADD)

    run_virtual(main)


def test_a_late_request_that_no_longer_fits_is_refused_by_the_device() -> None:
    async def main() -> None:
        ocs = device(*AS_BEFORE)
        driver = FaultyDriver(EmulatedDriver(ocs), [Fault(FaultKind.LATE, seconds=1)])
        with pytest.raises(AmbiguousError):
            await driver.apply(REMOVE, ADD, 1)
        await driver.apply(pairs((0, 0)), (), 2)
        await asyncio.sleep(1.5)
        assert (await driver.read()).matching == set(pairs((1, 1)))
        assert ocs.counters.refused == 1

    run_virtual(main)


def test_a_slow_switch_works_after_a_while() -> None:
    async def main() -> None:
        inner = EmulatedDriver(device(*AS_BEFORE, delay_ms=25))
        driver = FaultyDriver(inner, [Fault(FaultKind.SLOW, seconds=4)], [Fault(FaultKind.SLOW, seconds=3)])
        await driver.apply(REMOVE, ADD, 1)
        assert now() == pytest.approx(4.025)
        assert (await driver.read()).matching == set(ADD)
        assert now() == pytest.approx(7.025)

    run_virtual(main)


def test_faults_meet_calls_in_the_order_of_the_script() -> None:
    async def main() -> None:
        lost = Fault(FaultKind.REQUEST_LOST)
        driver = FaultyDriver(
            EmulatedDriver(device()),
            applies=[None, lost, None],
            reads=[Fault(FaultKind.TERMINAL), None, Fault(FaultKind.TRANSIENT)],
        )
        await driver.apply((), pairs((0, 0)), 1)
        with pytest.raises(TerminalError):
            await driver.read()
        with pytest.raises(AmbiguousError):
            await driver.apply((), pairs((1, 1)), 1)
        assert (await driver.read()).matching == set(pairs((0, 0)))
        await driver.apply((), pairs((1, 1)), 1)
        with pytest.raises(TransientError):
            await driver.read()
        assert driver.faults_left == 0
        await driver.apply((), pairs((2, 2)), 1)
        assert (await driver.read()).matching == set(pairs((0, 0), (1, 1), (2, 2)))

    asyncio.run(main())


def test_other_calls_pass_through() -> None:
    async def main() -> None:
        inner = EmulatedDriver(device())
        driver = FaultyDriver(inner)
        assert await driver.describe() == await inner.describe()
        await driver.close()
        with pytest.raises(TerminalError, match="closed"):
            await inner.read()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [FaultKind.ANSWER_LOST, FaultKind.PARTIAL, FaultKind.LATE])
def test_a_read_cannot_meet_a_fault_of_changes(kind: FaultKind) -> None:
    with pytest.raises(ValueError, match=f"{kind.value}.*slow, terminal, transient"):
        FaultyDriver(EmulatedDriver(device()), reads=[Fault(kind)])
