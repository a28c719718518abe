"""What every driver offers beside changes of the table, shown on the emulated switch."""

from __future__ import annotations

import asyncio

import pytest

from opus_sdn.drivers.base import (
    Applied,
    ConflictMode,
    DeviceEvent,
    DeviceEventKind,
    PairOutcome,
    PairResult,
    Refusal,
    StaleRevisionError,
    TerminalError,
)
from opus_sdn.drivers.emulated import EmulatedDriver
from opus_sdn.drivers.event_stream import EVENTS_KEPT, EventStream
from opus_sdn.drivers.faults import Fault, FaultKind, FaultyDriver
from opus_sdn.drivers.pairs import PortId
from opus_sdn.intent.fabric import CrossConnect, Side, Terminal
from tests.drivers.devices import Pairs, device, pairs

IN, OUT = Side.INGRESS, Side.EGRESS


@pytest.mark.parametrize(
    ("mode", "remove", "add", "left", "displaced"),
    [
        (ConflictMode.SAFE, pairs((0, 0)), pairs((0, 2)), pairs((0, 2), (1, 1)), ()),
        (ConflictMode.UPDATE, (), pairs((0, 1)), pairs((0, 1)), pairs((0, 0), (1, 1))),
        (ConflictMode.UPDATE, pairs((0, 0)), pairs((0, 1)), pairs((0, 1)), pairs((1, 1))),
        (ConflictMode.UPDATE, (), pairs((2, 2)), pairs((0, 0), (1, 1), (2, 2)), ()),
        (ConflictMode.OVERWRITE, (), pairs((0, 0), (2, 2)), pairs((0, 0), (2, 2)), pairs((1, 1))),
        (ConflictMode.OVERWRITE, (), (), (), pairs((0, 0), (1, 1))),
    ],
)
def test_a_mode_says_what_becomes_of_circuits_in_the_way(
    mode: ConflictMode, remove: Pairs, add: Pairs, left: Pairs, displaced: Pairs
) -> None:
    async def main() -> None:
        driver = EmulatedDriver(device((0, 0), (1, 1)))
        applied = await driver.apply(remove, add, 1, mode=mode)
        assert (await driver.read()).matching == set(left)
        assert applied.displaced == displaced
        assert applied.shortfall() is None
        assert applied.revision == (await driver.read()).revision

    asyncio.run(main())


def test_a_refused_displacement_names_the_circuits_in_the_way() -> None:
    async def main() -> None:
        with pytest.raises(TerminalError) as refusal:
            await EmulatedDriver(device((0, 0), (1, 1))).apply((), pairs((0, 1)), 1)
        assert refusal.value.reason is Refusal.WOULD_DISPLACE
        assert refusal.value.displaced == pairs((0, 0), (1, 1))

    asyncio.run(main())


def test_a_change_of_a_table_that_somebody_else_has_changed_is_not_made() -> None:
    async def main() -> None:
        ocs = device((0, 0))
        ours, theirs = EmulatedDriver(ocs), EmulatedDriver(ocs)
        revision = (await ours.read()).revision
        await theirs.apply((), pairs((1, 1)), 1)
        with pytest.raises(StaleRevisionError):
            await ours.apply(pairs((0, 0)), (), 1, expect_revision=revision)
        assert ocs.table == set(pairs((0, 0), (1, 1)))
        await ours.apply(pairs((0, 0)), (), 1, expect_revision=(await ours.read()).revision)
        assert ocs.table == set(pairs((1, 1)))

    asyncio.run(main())


def test_a_blocked_port_keeps_its_circuit_and_passes_no_light() -> None:
    async def main() -> None:
        ocs = device((0, 0), (1, 1))
        driver = EmulatedDriver(ocs)
        await driver.block([PortId(OUT, 0)], blocked=True)
        observed = await driver.read()
        assert observed.matching == set(pairs((0, 0), (1, 1)))
        assert observed.dark == {CrossConnect(0, 0): "egress 0 is blocked"}
        assert not ocs.is_lit(CrossConnect(0, 0))
        await driver.block([PortId(OUT, 0)], blocked=False)
        assert (await driver.read()).dark == {}
        assert ocs.is_lit(CrossConnect(0, 0))

    asyncio.run(main())


def test_a_circuit_onto_a_failed_port_is_connected_and_dark() -> None:
    async def main() -> None:
        ocs = device()
        ocs.fail([Terminal("ocs", IN, 3)])
        applied = await EmulatedDriver(ocs).apply((), pairs((3, 3), (4, 4)), 1)
        assert applied.pairs == (
            PairResult(CrossConnect(3, 3), PairOutcome.CONNECTED_DARK, reason="ingress 3 has failed"),
            PairResult(CrossConnect(4, 4), PairOutcome.APPLIED),
        )
        assert applied.shortfall() == "add 3->3: connected-dark (ingress 3 has failed)"

    asyncio.run(main())


def test_ports_are_listed_with_their_state() -> None:
    async def main() -> None:
        ocs = device((0, 1), size=2)
        ocs.fail([Terminal("ocs", OUT, 0)])
        driver = EmulatedDriver(ocs)
        await driver.block([PortId(IN, 1)], blocked=True)
        await driver.label({PortId(OUT, 1): "gpu0"})
        found = {state.port: state for state in await driver.ports()}
        assert list(found) == [PortId(IN, 0), PortId(IN, 1), PortId(OUT, 0), PortId(OUT, 1)]
        assert found[PortId(IN, 0)].in_use == found[PortId(OUT, 1)].in_use == CrossConnect(0, 1)
        assert [state.enabled for state in found.values()] == [True, False, True, True]
        assert [state.failed for state in found.values()] == [False, False, True, False]
        assert [state.label for state in found.values()] == ["", "", "", "gpu0"]
        assert [state.power_dbm for state in found.values()] == [None] * 4

    asyncio.run(main())


def test_a_switch_without_power_monitors_says_so_and_invents_no_figure() -> None:
    async def main() -> None:
        with pytest.raises(TerminalError, match="no power monitors") as refusal:
            await EmulatedDriver(device()).power([PortId(OUT, 0)])
        assert refusal.value.reason is Refusal.UNSUPPORTED

    asyncio.run(main())


@pytest.mark.parametrize("port", [PortId(IN, 8), PortId(OUT, -1), PortId(Side.ANY, 0)])
def test_a_port_that_the_switch_has_not_is_refused(port: PortId) -> None:
    async def main() -> None:
        driver = EmulatedDriver(device())
        for call in (driver.block([port], blocked=True), driver.label({port: "x"})):
            with pytest.raises(TerminalError, match="is unknown") as refusal:
                await call
            assert refusal.value.reason is Refusal.INVALID

    asyncio.run(main())


def test_a_restart_forgets_what_was_under_way() -> None:
    async def main() -> None:
        ocs = device((0, 0), delay_ms=5)
        driver = EmulatedDriver(ocs)
        change = asyncio.create_task(driver.apply(pairs((0, 0)), pairs((0, 1)), 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ocs.restart(pairs((2, 2)))
        applied = await change
        assert ocs.table == set(pairs((2, 2)))
        assert applied.shortfall() == "add 0->1: failed (not there)"
        assert ocs.inflight == 0

    asyncio.run(main())


def test_events_reach_everybody_who_listens_and_end_with_the_session() -> None:
    async def main() -> None:
        driver = EmulatedDriver(device())
        first, second = driver.events(), driver.events()
        await driver.block([PortId(IN, 0)], blocked=True)
        await driver.close()
        wanted = [DeviceEvent(DeviceEventKind.PORT, "ingress 0 is blocked", (PortId(IN, 0),), True)]
        assert [event async for event in first] == wanted
        assert [event async for event in second] == wanted
        assert [event async for event in driver.events()] == []

    asyncio.run(main())


def test_events_that_nobody_reads_are_bounded_and_their_loss_is_told() -> None:
    async def main() -> None:
        stream = EventStream()
        reader = stream.subscribe()
        for number in range(EVENTS_KEPT + 3):
            stream.put(DeviceEvent(DeviceEventKind.OTHER, str(number)))
        stream.close()
        seen = [event.detail async for event in reader]
        assert seen == [
            "3 events were lost: nobody read them in time",
            *map(str, range(3, EVENTS_KEPT + 3)),
        ]

    asyncio.run(main())


def test_a_shortfall_names_the_first_pairs_and_counts_the_others() -> None:
    failed = [PairResult(CrossConnect(i, i), PairOutcome.UNKNOWN, removed=i == 0) for i in range(10)]
    said = Applied(pairs=tuple(failed)).shortfall()
    assert said is not None
    assert said.startswith("remove 0->0: unknown; add 1->1: unknown")
    assert said.endswith("add 7->7: unknown and 2 more")


def test_a_switch_that_lies_says_done_and_changes_nothing() -> None:
    async def main() -> None:
        driver = FaultyDriver(EmulatedDriver(device()), [Fault(FaultKind.LIE)])
        assert (await driver.apply((), pairs((0, 0)), 1)).shortfall() is None
        assert (await driver.read()).matching == set()

    asyncio.run(main())


def test_a_locked_switch_says_that_it_is_locked() -> None:
    async def main() -> None:
        driver = FaultyDriver(EmulatedDriver(device()), [Fault(FaultKind.LOCKED)])
        with pytest.raises(TerminalError) as refusal:
            await driver.apply((), pairs((0, 0)), 1)
        assert refusal.value.reason is Refusal.LOCKED

    asyncio.run(main())
