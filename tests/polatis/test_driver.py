"""The Polatis driver beside faults: finding the device, large changes, overwriting, rights, TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme

from opus_sdn.drivers.base import (
    AmbiguousError,
    ConflictMode,
    Description,
    DriverError,
    PairOutcome,
    Persistence,
    Refusal,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.pairs import PortId
from opus_sdn.drivers.polatis.open import open_polatis
from opus_sdn.drivers.polatis.restconf import RestconfTransport
from opus_sdn.drivers.polatis.wire import WirePort
from opus_sdn.drivers.polatis_emulator.emulator import PolatisEmulator
from opus_sdn.drivers.polatis_emulator.spec import Group, SubSwitchSpec, UserSpec
from opus_sdn.intent.fabric import CrossConnect, Side, Switch
from tests.drivers.devices import pairs
from tests.polatis.worlds import BEFORE, PASSWORD, SILENCE, polatis_switch, polatis_world, spec_of

IN, OUT = Side.INGRESS, Side.EGRESS
DOORS = pytest.mark.parametrize("door", ["restconf", "tl1"])


@DOORS
@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ("8x8", Description("N-OST-8x8-LA1-DMHNS", 8, True, 1, egress_size=8, starts=(1, 9))),
        ("16x08", Description("N-OST-16x08-LA1-DMHNS", 16, True, 1, egress_size=8, starts=(1, 17))),
        ("12xCC", Description("N-OST-12xCC-LA1-DMHNS", 12, False, 1, egress_size=None, starts=(1, 1))),
    ],
)
def test_a_device_is_described_as_it_is(door: str, size: str, wanted: Description) -> None:
    async def main() -> None:
        async with polatis_world(door, spec_of(size, ())) as world:
            found = await world.driver.describe()
            assert (found.model, found.size, found.sided) == (wanted.model, wanted.size, wanted.sided)
            assert (found.egress_size, found.starts) == (wanted.egress_size, wanted.starts)
            assert (found.power, found.shutter, found.labels, found.bulk) == (True, True, True, True)
            assert found.persistence is Persistence.PRESERVED
            assert found.max_inflight == 1

    asyncio.run(main())


@DOORS
def test_256_circuits_of_a_large_switch_are_re_pointed_in_one_transaction(door: str) -> None:
    async def main() -> None:
        old = pairs(*((i, i) for i in range(300)))
        new = pairs(*((i, 255 - i) for i in range(256)))
        async with polatis_world(door, spec_of("512x512", old), timeout_s=20.0) as world:
            await world.driver.describe()
            begun = world.emulator.device.clock()
            asked = len(world.emulator.requests)
            applied = await world.driver.apply(old[:256], new, 1)
            assert applied.shortfall() is None
            assert len(applied.pairs) == 512
            assert world.table == {*new, *old[256:]}
            writes = [
                r.request
                for r in list(world.emulator.requests)[asked:]
                if r.request.startswith(("P", "D", "ENT"))
            ]
            assert len(writes) == 1, writes
            assert all(world.emulator.light.dark_ms(513 + i, begun) == 0 for i in range(256, 300))

    asyncio.run(main())


@DOORS
def test_an_overwrite_leaves_what_was_asked_for_and_keeps_the_light_of_what_stays(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.driver.describe()
            begun = world.emulator.device.clock()
            applied = await world.driver.apply((), pairs((1, 1), (0, 5)), 1, mode=ConflictMode.OVERWRITE)
            assert world.table == set(pairs((1, 1), (0, 5)))
            assert set(applied.displaced) == set(pairs((0, 0), (2, 2)))
            assert world.emulator.light.dark_ms(10, begun) == 0
            applied = await world.driver.apply((), (), 1, mode=ConflictMode.OVERWRITE)
            assert world.table == set()
            assert applied.shortfall() is None

    asyncio.run(main())


@DOORS
def test_ports_are_listed_with_state_label_power_and_circuit(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.driver.block([PortId(IN, 7)], blocked=True)
            await world.driver.label({PortId(OUT, 1): "rail0-nic1"})
            found = {state.port: state for state in await world.driver.ports()}
            assert len(found) == 16
            assert found[PortId(OUT, 1)].label == "rail0-nic1"
            assert found[PortId(OUT, 1)].in_use == found[PortId(IN, 1)].in_use == CrossConnect(1, 1)
            assert found[PortId(OUT, 1)].power_dbm is not None
            assert found[PortId(OUT, 1)].power_dbm > -3
            assert found[PortId(OUT, 7)].power_dbm == -60.0
            assert found[PortId(IN, 1)].power_dbm is None
            assert [state.enabled for state in found.values()].count(False) == 1
            assert not found[PortId(IN, 7)].enabled
            await world.driver.block([PortId(IN, 7)], blocked=False)
            await world.driver.label({PortId(OUT, 1): ""})
            assert (await world.driver.ports())[9].label == ""

    asyncio.run(main())


@DOORS
def test_a_port_that_the_device_has_not_is_refused_before_it_is_asked(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.driver.describe()
            asked = len(world.emulator.requests)
            for port in (PortId(IN, 8), PortId(OUT, -1), PortId(Side.ANY, 0)):
                for call in (
                    world.driver.block([port], blocked=True),
                    world.driver.label({port: "x"}),
                    world.driver.power([port]),
                ):
                    with pytest.raises(TerminalError, match="is unknown") as refusal:
                        await call
                    assert refusal.value.reason is Refusal.INVALID
            assert len(world.emulator.requests) == asked

    asyncio.run(main())


def test_auto_takes_restconf_where_it_is_and_stays_with_it() -> None:
    async def main() -> None:
        async with polatis_world("auto", **SILENCE) as world:
            await world.driver.read()
            assert {asked.door for asked in world.emulator.requests} == {"restconf"}
            await world.emulator.set_faults(disabled=("restconf",))
            with pytest.raises(TransientError, match="RESTCONF"):
                await world.driver.read()
            assert {asked.door for asked in world.emulator.requests} == {"restconf"}

    asyncio.run(main())


def test_auto_goes_over_tl1_where_restconf_is_shut() -> None:
    async def main() -> None:
        async with polatis_world("auto") as world:
            await world.emulator.set_faults(disabled=("restconf",))
            assert (await world.driver.read()).matching == set(BEFORE)
            await world.driver.apply((), pairs((4, 4)), 1)
            assert {asked.door for asked in world.emulator.requests} == {"tl1"}

    asyncio.run(main())


def test_auto_does_not_try_a_wrong_password_at_the_next_door() -> None:
    async def main() -> None:
        async with PolatisEmulator(spec_of()) as emulator:
            driver = open_polatis(polatis_switch(emulator, "auto", user="nobody"))
            with pytest.raises(TerminalError, match="user or password is wrong") as refusal:
                await driver.read()
            assert refusal.value.reason is Refusal.UNAUTHORISED
            assert "tl1" not in {asked.door for asked in emulator.requests}
            await driver.close()

    asyncio.run(main())


def test_a_device_that_is_not_there_is_waited_for_and_both_doors_are_named() -> None:
    async def main() -> None:
        async with PolatisEmulator(spec_of()) as emulator:
            driver = open_polatis(polatis_switch(emulator, "auto"))
        with pytest.raises(TransientError, match=r"RESTCONF: cannot connect.*; TL1: cannot connect"):
            await driver.read()
        await driver.close()

    asyncio.run(main())


@DOORS
@pytest.mark.parametrize(
    ("size", "change", "says"),
    [
        ("8x8", {"size": 9}, "size is 9 in the fabric file, but the device (N-OST-8x8-LA1-DMHNS) has 8"),
        ("8x8", {"sided": False}, "layout is any_to_any in the fabric file"),
        ("12xCC", {"sided": True}, "layout is sided in the fabric file"),
    ],
)
def test_another_device_than_the_declared_one_is_left_alone(
    door: str, size: str, change: dict[str, object], says: str
) -> None:
    async def main() -> None:
        async with PolatisEmulator(spec_of(size, ())) as emulator:
            declared = polatis_switch(emulator, door)
            given = {name: getattr(declared, name) for name in ("name", "driver", "size", "sided", "options")}
            driver = open_polatis(Switch(**(given | change)))
            with pytest.raises(TerminalError) as refusal:
                await driver.apply((), pairs((0, 1)), 1)
            assert says in refusal.value.detail
            assert refusal.value.reason is Refusal.WRONG_DEVICE
            assert emulator.table == {}
            await driver.close()

    asyncio.run(main())


@DOORS
def test_a_user_who_may_only_look_is_told_so(door: str) -> None:
    async def main() -> None:
        spec = spec_of(users=(UserSpec(name="looker", password=PASSWORD, group=Group.VIEW),))
        async with polatis_world(door, spec) as world:
            assert (await world.driver.read()).matching == set(BEFORE)
            with pytest.raises(TerminalError, match="may not do this") as refusal:
                await world.driver.apply((), pairs((4, 4)), 1)
            assert refusal.value.reason is Refusal.UNAUTHORISED
            assert world.table == set(BEFORE)

    asyncio.run(main())


@DOORS
def test_a_pair_of_somebody_elses_part_of_the_switch_refuses_the_whole_change(door: str) -> None:
    async def main() -> None:
        spec = spec_of(
            users=(UserSpec(name="opus", password=PASSWORD), UserSpec(name="other", password="x")),
            subswitches=(SubSwitchSpec(name="theirs", ports=(5, 13), users=("other",)),),
        )
        async with polatis_world(door, spec) as world:
            with pytest.raises(DriverError) as refusal:
                await world.driver.apply((), pairs((3, 3), (4, 4)), 1)
            assert isinstance(refusal.value, TerminalError)
            assert world.table == set(BEFORE)

    asyncio.run(main())


def test_labels_that_were_set_in_part_are_never_reported_as_nothing_changed() -> None:
    async def main() -> None:
        spec = spec_of(
            users=(UserSpec(name="opus", password=PASSWORD), UserSpec(name="other", password="x")),
            subswitches=(SubSwitchSpec(name="theirs", ports=(5,), users=("other",)),),
        )
        async with polatis_world("restconf", spec) as world:
            ours, theirs = PortId(IN, 3), PortId(IN, 4)
            with pytest.raises(TerminalError, match="may not do this"):
                await world.driver.label({theirs: "b"})
            with pytest.raises(AmbiguousError, match="1 of 2 labels read back as asked for"):
                await world.driver.label({ours: "a", theirs: "b"})
            assert world.label(ours) == "a"

    asyncio.run(main())


def test_a_change_over_tl1_does_not_wait_for_labels() -> None:
    """Every request may take a second, and somebody else's labels are no part of a change."""

    async def main() -> None:
        async with polatis_world("tl1") as world:
            assert (await world.driver.apply((), pairs((3, 3)), 1)).shortfall() is None
            assert not [r for r in world.emulator.requests if r.request.startswith("RTRV-PORT-LABEL")]

    asyncio.run(main())


@DOORS
def test_a_monitor_that_falls_silent_is_not_taken_for_light(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, light_s=0.1) as world:
            await world.driver.describe()
            await world.emulator.set_faults(no_monitors=True)
            applied = await world.driver.apply((), pairs((3, 3)), 1)
            reason = "egress 3 has a monitor that tells nothing any more"
            assert [(r.outcome, r.reason) for r in applied.pairs] == [(PairOutcome.CONNECTED_DARK, reason)]
            assert applied.dark_ms is None

    asyncio.run(main())


def test_ports_that_the_device_lists_no_more_are_not_taken_for_open(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = RestconfTransport.ports

    async def some(self: RestconfTransport, total: int, *, labels: bool = False) -> Mapping[int, WirePort]:
        return {number: port for number, port in (await whole(self, total)).items() if number != 12}

    async def main() -> None:
        async with polatis_world("restconf") as world:
            await world.driver.describe()
            monkeypatch.setattr(RestconfTransport, "ports", some)
            applied = await world.driver.apply((), pairs((3, 3)), 1)
            reason = "egress 3 is not listed by the device any more"
            assert [(r.outcome, r.reason) for r in applied.pairs] == [(PairOutcome.CONNECTED_DARK, reason)]
            with pytest.raises(TransientError, match="lists 15 of 16 ports; egress 3 is missing"):
                await world.driver.ports()

    asyncio.run(main())


@DOORS
def test_a_closed_driver_says_so_and_the_circuits_stay(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.driver.read()
            await world.driver.close()
            with pytest.raises(TerminalError, match="session is closed") as refusal:
                await world.driver.read()
            assert refusal.value.reason is Refusal.CLOSED
            assert world.table == set(BEFORE)

    asyncio.run(main())


@DOORS
def test_a_change_that_is_given_up_half_way_leaves_a_device_that_can_be_read(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, spec_of(control_ms=50), timeout_s=10.0) as world:
            await world.driver.describe()
            change = asyncio.create_task(world.driver.apply((), pairs((4, 4)), 1))
            async with asyncio.timeout(20):
                while not world.driver._changing:
                    await world.emulator.device.wait(1)
            change.cancel()
            await asyncio.wait({change})
            assert change.cancelled()
            heard = world.driver.events()
            assert (await world.driver.read()).matching == world.table
            await world.driver.close()
            assert [event async for event in heard] == []  # nobody else has done it

    asyncio.run(main())


@DOORS
def test_light_that_cannot_be_looked_for_leaves_the_pair_unknown(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.driver.describe()
            light = world.driver._light(await world.driver._ready())

            async def fail(_: object) -> dict[CrossConnect, str]:
                raise TransientError("no answer")

            light.awaited = fail  # type: ignore[method-assign]
            world.driver._light = lambda _: light  # type: ignore[method-assign]
            applied = await world.driver.apply((), pairs((4, 4)), 1)
            assert applied.pairs[0].outcome is PairOutcome.UNKNOWN
            assert applied.shortfall() == "add 4->4: unknown (light not seen: no answer)"

    asyncio.run(main())


def test_only_a_device_that_proves_who_it_is_gets_the_password(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def main() -> None:
        async with PolatisEmulator(spec_of(), tls=context) as emulator:
            for file, fine in (("ca.pem", True), ("other.pem", False)):
                options = {"tls": True, "ca_file": str(tmp_path / file)}
                driver = open_polatis(polatis_switch(emulator, "restconf", **options))
                before = len(emulator.requests)
                if fine:
                    assert (await driver.read()).matching == set(BEFORE)
                else:
                    with pytest.raises(TransientError, match=r"(?i)certificate"):
                        await driver.read()
                    assert len(emulator.requests) == before
                await driver.close()

    asyncio.run(main())


def test_whoever_breaks_tls_is_not_handed_the_password_over_tl1() -> None:
    """`auto` goes on to TL1 where RESTCONF cannot be reached, but TL1 has no TLS."""

    async def main() -> None:
        async with PolatisEmulator(spec_of()) as emulator:  # speaks no TLS, as somebody on the way might not
            driver = open_polatis(polatis_switch(emulator, "auto", tls=True))
            with pytest.raises(TransientError, match="RESTCONF: cannot connect"):
                await driver.read()
            await driver.close()
            assert not [asked for asked in emulator.requests if asked.request.startswith("ACT-USER")]

    asyncio.run(main())
