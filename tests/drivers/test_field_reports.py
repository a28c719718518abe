"""What goes wrong for people who drive optical switches, and what ours answers.

Positions count from 0 per side: the port pair 1:9 of an 8x8 switch is 0->0 here, 2:10 is 1->1, 3:11 is 2->2.
"""

from __future__ import annotations

import asyncio

import pytest

from opus_sdn.drivers.base import AmbiguousError, TerminalError
from opus_sdn.drivers.emulated import EmulatedDriver
from opus_sdn.drivers.faults import Fault, FaultKind, FaultyDriver
from tests.drivers.devices import device, pairs
from tests.drivers.light import LightLog
from tests.drivers.virtual_time import now, run_virtual


def test_connecting_busy_ports_names_both_victims_and_disconnects_neither() -> None:
    async def main() -> None:
        ocs = device((0, 0), (1, 1))
        with pytest.raises(TerminalError) as refusal:
            await EmulatedDriver(ocs).apply((), pairs((0, 1)), 1)
        assert "ingress 0 is held by 0->0" in refusal.value.detail
        assert "egress 1 is held by 1->1" in refusal.value.detail
        assert ocs.table == set(pairs((0, 0), (1, 1)))

    asyncio.run(main())


def test_a_list_with_an_unknown_port_is_refused_whole() -> None:
    async def main() -> None:
        ocs = device()
        with pytest.raises(TerminalError, match="76->2 is out of range"):
            await EmulatedDriver(ocs).apply((), pairs((0, 0), (1, 1), (76, 2), (3, 3)), 1)
        assert ocs.table == set()

    asyncio.run(main())


def test_a_list_that_stopped_half_way_is_told_apart_by_reading() -> None:
    async def main() -> None:
        wanted = pairs((0, 0), (1, 1), (2, 2), (3, 3))
        driver = FaultyDriver(EmulatedDriver(device()), [Fault(FaultKind.PARTIAL, pairs=3)])
        with pytest.raises(AmbiguousError, match="3 of 4"):
            await driver.apply((), wanted, 1)
        there = (await driver.read()).matching
        assert [pair in there for pair in wanted] == [True, True, True, False]

    asyncio.run(main())


def test_one_egress_twice_in_a_request_is_refused_and_both_are_named() -> None:
    async def main() -> None:
        ocs = device()
        with pytest.raises(TerminalError, match="1->1 and 2->1 both use egress 1"):
            await EmulatedDriver(ocs).apply((), pairs((1, 1), (2, 1)), 1)
        assert ocs.table == set()

    asyncio.run(main())


def test_a_swap_is_one_transaction_and_a_third_circuit_sees_no_dark_time() -> None:
    async def main() -> None:
        ocs = device((0, 0), (1, 1), (2, 2), delay_ms=25)
        log = LightLog(ocs)
        await EmulatedDriver(ocs).apply(pairs((0, 0), (1, 1)), pairs((0, 1), (1, 0)), 1)
        assert ocs.table == set(pairs((0, 1), (1, 0), (2, 2)))
        assert now() == pytest.approx(0.025)
        assert ocs.counters.applies == 1
        assert set(log.moments) == set(pairs((0, 0), (1, 1), (0, 1), (1, 0)))

    run_virtual(main)
