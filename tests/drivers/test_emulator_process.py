"""Emulated switches that live in a process of their own: the same device, over a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from opus_sdn.drivers.base import (
    AmbiguousError,
    ConflictMode,
    DeviceEventKind,
    Driver,
    Refusal,
    StaleRevisionError,
    SwitchConfigError,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.emulator_server import EmulatorServer
from opus_sdn.drivers.pairs import PortId
from opus_sdn.drivers.registry import open_driver
from opus_sdn.intent.fabric import Side
from tests.drivers.devices import pairs, switch


def with_emulator(test: Callable[[Driver, EmulatorServer, str], Awaitable[None]], **options: object) -> None:
    """Run a test with a driver of switch `ocs`, the emulator that it lives in, and its address."""

    async def main() -> None:
        server = EmulatorServer([switch(**options)])
        address = await server.start()
        driver = open_driver(switch(address=address, **options))
        try:
            await test(driver, server, address)
        finally:
            await driver.close()
            await server.close()

    asyncio.run(main())


def test_it_does_what_the_device_in_the_controller_s_process_does() -> None:
    async def test(driver: Driver, server: EmulatorServer, address: str) -> None:
        assert (await driver.describe()).max_inflight == 7
        applied = await driver.apply(pairs((0, 0)), pairs((0, 1), (1, 0)), 5)
        assert applied.shortfall() is None
        seen = await driver.read()
        assert seen.matching == set(pairs((0, 1), (1, 0)))
        assert seen.revision == applied.revision
        assert (await driver.apply((), pairs((0, 2)), 5, mode=ConflictMode.UPDATE)).displaced == pairs((0, 1))
        await driver.label({PortId(Side.INGRESS, 3): "h3"})
        await driver.block([PortId(Side.INGRESS, 3)], blocked=True)
        ports = {state.port: state for state in await driver.ports()}
        assert len(ports) == 16
        assert (ports[PortId(Side.INGRESS, 3)].label, ports[PortId(Side.INGRESS, 3)].enabled) == ("h3", False)
        assert ports[PortId(Side.INGRESS, 0)].in_use == pairs((0, 2))[0]
        with pytest.raises(TerminalError) as refused:
            await driver.power([])
        assert refused.value.reason is Refusal.UNSUPPORTED

    with_emulator(test, initial=((0, 0),), max_inflight=7)


def test_its_refusals_keep_their_kind_and_data() -> None:
    async def test(driver: Driver, server: EmulatorServer, address: str) -> None:
        with pytest.raises(TerminalError) as busy:
            await driver.apply((), pairs((0, 1)), 1)
        assert (busy.value.reason, busy.value.displaced) == (Refusal.WOULD_DISPLACE, pairs((0, 0)))
        with pytest.raises(StaleRevisionError, match="and 99 was expected"):
            await driver.apply((), pairs((1, 1)), 1, expect_revision="99")
        slow = asyncio.ensure_future(driver.apply((), pairs((1, 1)), 1))
        while not server.devices["ocs"].inflight:  # noqa: ASYNC110 - the device tells nobody
            await asyncio.sleep(0.001)
        with pytest.raises(TransientError, match="still moving") as moving:
            await driver.apply((), pairs((1, 2)), 1)
        assert moving.value.retry_after_s > 0
        await slow

    with_emulator(test, initial=((0, 0),), delay_ms=100)


def test_its_light_and_log_outlive_sessions() -> None:
    async def test(driver: Driver, server: EmulatorServer, address: str) -> None:
        await driver.apply((), pairs((2, 3)), 4)
        await driver.close()
        with pytest.raises(TerminalError) as closed:
            await driver.read()
        assert closed.value.reason is Refusal.CLOSED
        with pytest.raises(TerminalError):
            await driver.power([])
        after = open_driver(switch(address=address))
        assert (await after.read()).matching == set(pairs((2, 3)))
        reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
        writer.write(json.dumps({"id": 1, "op": "operations", "switch": "ocs"}).encode() + b"\n")
        ((_, epoch, remove, add, refused),) = json.loads(await reader.readline())["operations"]
        assert (epoch, remove, add, refused) == (4, [], [[2, 3]], None)
        writer.close()
        await after.close()

    with_emulator(test)


def test_what_was_accepted_is_carried_out_although_nobody_listens_any_more() -> None:
    async def test(driver: Driver, server: EmulatorServer, address: str) -> None:
        doomed = asyncio.ensure_future(driver.apply((), pairs((1, 1)), 1))
        while not server.devices["ocs"].inflight:  # noqa: ASYNC110 - the device tells nobody
            await asyncio.sleep(0.001)
        await driver.close()
        with pytest.raises(AmbiguousError, match="hung up"):
            await doomed
        while not server.devices["ocs"].table:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    with_emulator(test, delay_ms=50)


def test_an_emulator_that_is_away_is_tried_again() -> None:
    async def test(driver: Driver, server: EmulatorServer, address: str) -> None:
        await driver.read()
        await server.close()
        for _ in range(2):  # the connection breaks, then there is none
            with pytest.raises(TransientError):
                await driver.read()
        again = EmulatorServer([switch()], port=int(address.rpartition(":")[2]))
        await again.start()
        assert (await driver.read()).matching == set()
        await again.close()

    with_emulator(test)


def test_ports_that_a_session_blocks_are_told_to_it() -> None:
    async def test(driver: Driver, server: EmulatorServer, address: str) -> None:
        told = driver.events()
        await driver.block([PortId(Side.INGRESS, 0)], blocked=True)
        event = await anext(told)
        assert (event.kind, event.expected) == (DeviceEventKind.PORT, True)

    with_emulator(test)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"id": 7, "op": "read", "switch": "other"}, "it has: ocs"),
        ({"id": 7, "op": "read"}, "switch"),
        ({"id": 7, "op": "melt", "switch": "ocs"}, "op"),
    ],
)
def test_requests_that_cannot_be_are_refused_with_what_would_be_right(
    line: dict[str, Any], says: str
) -> None:
    async def test(driver: Driver, server: EmulatorServer, address: str) -> None:
        reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
        writer.write(json.dumps(line).encode() + b"\n")
        answer = json.loads(await reader.readline())
        assert answer["failed"] == "terminal"
        assert says in answer["detail"]
        writer.close()

    with_emulator(test)


@pytest.mark.parametrize("address", ["7001", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", ":7001"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(SwitchConfigError, match=r"as 127\.0\.0\.1:7001"):
        open_driver(switch(address=address))


def test_it_listens_on_loopback_only() -> None:
    with pytest.raises(ValueError, match="loopback"):
        EmulatorServer([switch()], "0.0.0.0")
