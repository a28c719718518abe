"""What goes wrong for people who drive optical switches, and what a Polatis driver answers, over each door.

On the 8x8 device the port pair 1:9 is 0->0, 2:10 is 1->1 and 3:11 is 2->2.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from opus_sdn.drivers.base import (
    AmbiguousError,
    ConflictMode,
    DeviceEvent,
    DeviceEventKind,
    PairOutcome,
    Refusal,
    StaleRevisionError,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.pairs import PortId
from opus_sdn.drivers.polatis.numbering import Numbering
from opus_sdn.drivers.polatis.open import open_polatis
from opus_sdn.drivers.polatis_emulator.device import Actor, Written
from opus_sdn.drivers.polatis_emulator.emulator import PolatisEmulator
from opus_sdn.drivers.polatis_emulator.judge import Edit
from opus_sdn.drivers.polatis_emulator.spec import Group, UserSpec
from opus_sdn.intent.fabric import CrossConnect, Side
from tests.drivers.devices import pairs
from tests.polatis.worlds import (
    BEFORE,
    PASSWORD,
    PASSWORD_VARIABLE,
    SILENCE,
    PolatisWorld,
    polatis_switch,
    polatis_world,
    spec_of,
)

IN, OUT, ANY = Side.INGRESS, Side.EGRESS, Side.ANY
DOORS = pytest.mark.parametrize("door", ["restconf", "tl1"])


def requests(world: PolatisWorld, verb: str) -> list[str]:
    """What the device was asked, of one kind."""
    return [asked.request for asked in world.emulator.requests if asked.request.startswith(verb)]


@DOORS
def test_connecting_busy_ports_names_both_victims_and_disconnects_neither(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            with pytest.raises(TerminalError) as refusal:
                await world.driver.apply((), pairs((0, 1)), 1)
            assert refusal.value.displaced == pairs((0, 0), (1, 1))
            assert world.table == set(BEFORE)
            applied = await world.driver.apply((), pairs((0, 1)), 1, mode=ConflictMode.UPDATE)
            assert applied.displaced == pairs((0, 0), (1, 1))
            assert world.table == set(pairs((0, 1), (2, 2)))

    asyncio.run(main())


@DOORS
def test_a_stale_circuit_on_either_side_is_freed_and_what_is_right_is_left_alone(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, spec_of(before=pairs((0, 4), (6, 2), (3, 3)))) as world:
            wanted = pairs((0, 2), (3, 3))
            begun = world.emulator.device.clock()
            applied = await world.driver.apply((), wanted, 1, mode=ConflictMode.UPDATE)
            assert set(applied.displaced) == set(pairs((0, 4), (6, 2)))
            assert world.table == set(wanted)
            assert world.emulator.light.dark_ms(4, begun) == 0  # ingress 3, whose circuit was right
            written = len(world.emulator.requests)
            again = await world.driver.apply((), wanted, 1, mode=ConflictMode.UPDATE)
            assert again.shortfall() is None
            assert not [r for r in list(world.emulator.requests)[written:] if _writes(r.request)]

    asyncio.run(main())


def _writes(request: str) -> bool:
    return request.startswith(("PUT", "POST", "PATCH", "DELETE", "ENT-", "DLT-", "ED-", "OPR-", "RLS-"))


@DOORS
@pytest.mark.parametrize("pair", [(None, 0), (0, None), (-1, 0), (0, 8), (8, 0), (0, -1)])
def test_an_id_that_is_none_or_out_of_range_never_becomes_delete_all(
    door: str, pair: tuple[object, object]
) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.driver.describe()
            for call in (
                world.driver.apply((CrossConnect(*pair),), (), 1),  # type: ignore[arg-type]
                world.driver.apply((), (CrossConnect(*pair),), 1),  # type: ignore[arg-type]
            ):
                with pytest.raises((TerminalError, TypeError)):
                    await call
            assert world.table == set(BEFORE)
            assert not [r for r in world.emulator.requests if _writes(r.request)]

    asyncio.run(main())


@DOORS
def test_nothing_to_remove_removes_nothing(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            applied = await world.driver.apply((), (), 1)
            assert applied.shortfall() is None
            assert world.table == set(BEFORE)

    asyncio.run(main())


@DOORS
def test_a_list_with_an_unknown_port_is_refused_whole(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            with pytest.raises(TerminalError, match="76->2") as refusal:
                await world.driver.apply((), pairs((4, 4), (5, 5), (76, 2), (6, 6)), 1)
            assert refusal.value.reason is Refusal.INVALID
            assert world.table == set(BEFORE)

    asyncio.run(main())


@DOORS
def test_a_list_that_the_device_made_in_part_is_reported_pair_by_pair(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.emulator.set_faults(partial_batch=3)
            applied = await world.driver.apply((), pairs((3, 3), (4, 4), (5, 5), (6, 6)), 1)
            assert [r.outcome for r in applied.pairs] == [PairOutcome.APPLIED] * 3 + [PairOutcome.FAILED]
            assert applied.pairs[3].reason
            assert world.table == set(BEFORE) | set(pairs((3, 3), (4, 4), (5, 5)))

    asyncio.run(main())


@DOORS
def test_one_egress_twice_in_a_request_is_refused_here_and_both_are_named(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            with pytest.raises(TerminalError, match="3->4 and 5->4 both use egress 4"):
                await world.driver.apply((), pairs((3, 4), (5, 4)), 1)
            assert world.table == set(BEFORE)

    asyncio.run(main())


@DOORS
@pytest.mark.parametrize("faults", [{}, {"displace": False, "tl1_conflict": "deny"}])
def test_a_swap_leads_to_its_end_state_and_a_third_circuit_sees_no_dark_time(
    door: str, faults: dict[str, object]
) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.emulator.set_faults(**faults)
            await world.driver.describe()
            begun = world.emulator.device.clock()
            applied = await world.driver.apply(pairs((0, 0), (1, 1)), pairs((0, 1), (1, 0)), 1)
            assert applied.shortfall() is None
            assert world.table == set(pairs((0, 1), (1, 0), (2, 2)))
            dark = {port: world.emulator.light.dark_ms(port, begun) for port in (9, 10, 11)}
            assert dark[9] > 0
            assert dark[10] > 0
            assert dark[11] == 0
            if not faults:
                assert len(requests(world, "PATCH") + requests(world, "ENT-PATCH")) == 1
                assert not requests(world, "DELETE") + requests(world, "DLT-PATCH")

    asyncio.run(main())


def test_a_device_that_refuses_a_move_in_one_request_is_asked_in_two_and_that_is_noted() -> None:
    async def main() -> None:
        async with polatis_world("tl1") as world:
            await world.emulator.set_faults(tl1_conflict="deny")
            applied = await world.driver.apply(pairs((0, 0)), pairs((0, 4)), 1)
            assert world.table == set(pairs((0, 4), (1, 1), (2, 2)))
            assert applied.shortfall() is None
            assert any("removed first" in note for note in applied.notes)

    asyncio.run(main())


@DOORS
@pytest.mark.parametrize(
    ("shut", "reason"),
    [(PortId(IN, 3), "ingress 3 is disabled"), (PortId(OUT, 3), "egress 3 is disabled")],
)
def test_a_circuit_onto_a_shuttered_port_is_connected_and_dark(door: str, shut: PortId, reason: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.driver.block([shut], blocked=True)
            applied = await world.driver.apply((), pairs((3, 3), (4, 4)), 1)
            dark, lit = applied.pairs
            assert (dark.outcome, dark.reason) == (PairOutcome.CONNECTED_DARK, reason)
            assert lit.outcome is PairOutcome.APPLIED
            assert (await world.driver.read()).dark == {CrossConnect(3, 3): reason}

    asyncio.run(main())


@DOORS
def test_a_circuit_without_light_at_its_egress_is_connected_and_dark(door: str) -> None:
    """A transponder that lost its channel: the circuit is right, the light is not there."""

    async def main() -> None:
        async with polatis_world(door, light_s=0.1) as world:
            await world.emulator.set_faults(source_dbm={4: -60})
            applied = await world.driver.apply((), pairs((3, 3)), 1)
            assert applied.pairs[0].outcome is PairOutcome.CONNECTED_DARK
            assert applied.pairs[0].reason == "egress 3 reads -60.00 dBm, below -40"

    asyncio.run(main())


@pytest.mark.parametrize("where", ["before", "between", "inside"])
def test_messages_that_nobody_asked_for_are_never_taken_for_an_answer(where: str) -> None:
    async def main() -> None:
        async with polatis_world("tl1") as world:
            await world.driver.label({PortId(IN, 0): "rail0-nic0"})
            world.emulator.device.flash.labels[2] = "a;b"  # set through another door
            heard = world.driver.events()
            await world.emulator.set_faults(
                tl1_autonomous=where, segment_bytes=1, tl1_acknowledge=True, tl1_continue=True
            )
            seen = await world.driver.read()
            assert seen.matching == set(BEFORE)
            assert [state.label for state in (await world.driver.ports())[:3]] == ["rail0-nic0", "a;b", ""]
            assert (await anext(heard)).kind is not DeviceEventKind.FOREIGN_CHANGE

    asyncio.run(main())


@DOORS
def test_15_kilobyte_answers_are_read_when_they_come_one_byte_at_a_time(door: str) -> None:
    async def main() -> None:
        full = pairs(*((i, 511 - i) for i in range(512)))
        spec = spec_of("512x512", full)
        async with polatis_world(door, spec, timeout_s=60.0, verify_light=False) as world:
            await world.driver.describe()
            await world.emulator.set_faults(segment_bytes=1)
            assert (await world.driver.read()).matching == set(full)
            ports = await world.driver.ports()
            assert len(ports) == 1024
            assert all(state.in_use is not None for state in ports)

    asyncio.run(main())


def test_a_circuit_is_removed_by_one_port_as_the_pair_is_refused() -> None:
    async def main() -> None:
        async with polatis_world("tl1") as world:
            applied = await world.driver.apply(pairs((0, 0)), (), 1)
            assert applied.shortfall() is None
            assert requests(world, "DLT-PATCH") == ["DLT-PATCH 1"]
            assert world.table == set(pairs((1, 1), (2, 2)))

    asyncio.run(main())


@DOORS
def test_a_refused_removal_is_not_tried_through_another_door(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.driver.describe()
            await world.emulator.set_faults(remote_lock=True)
            with pytest.raises(TerminalError):
                await world.driver.apply(pairs((0, 0)), (), 1)
            others = [asked.door for asked in world.emulator.requests if asked.door != door]
            assert others == []
            assert len(requests(world, "DELETE") + requests(world, "DLT-PATCH")) == 1

    asyncio.run(main())


@DOORS
def test_the_password_is_in_no_message_event_or_log(
    door: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[str]:
        said: list[str] = []
        async with polatis_world(door) as world:
            heard = world.driver.events()
            await world.emulator.set_faults(remote_lock=True)
            for call in (world.driver.apply(pairs((0, 0)), (), 1), world.driver.apply((), pairs((9, 9)), 1)):
                with pytest.raises(TerminalError) as failure:
                    await call
                said.append(failure.value.detail)
            said.append(repr(vars(world.driver)))
            await world.driver.close()
            said += [event.detail async for event in heard]
        async with PolatisEmulator(spec_of(users=(UserSpec(name="opus", password="another"),))) as emulator:
            switch = polatis_switch(emulator, door)
            monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
            driver = open_polatis(switch)
            with pytest.raises(TerminalError) as failure:
                await driver.read()
            assert failure.value.reason is Refusal.UNAUTHORISED
            await driver.close()
            said += [repr(switch), failure.value.detail]
        return said

    with caplog.at_level(logging.DEBUG):
        said = asyncio.run(main())
    everything = "\n".join([*said, caplog.text, *(repr(vars(r)) for r in caplog.records)])
    assert PASSWORD not in everything


@DOORS
def test_silence_is_never_success_and_is_resolved_by_reading(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, **SILENCE) as world:
            await world.driver.describe()
            world.emulator.next_reply("request-lost")
            with pytest.raises(AmbiguousError, match="no answer"):
                await world.driver.apply((), pairs((4, 4)), 1)
            assert (await world.driver.read()).matching == set(BEFORE)
            world.emulator.next_reply("reply-lost")
            applied = await world.driver.apply((), pairs((4, 4)), 1)
            assert applied.shortfall() is None
            assert any("read back as asked for" in note for note in applied.notes)

    asyncio.run(main())


@DOORS
def test_a_change_that_is_applied_after_everybody_gave_up_is_found_by_reading(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, **SILENCE) as world:
            await world.driver.describe()
            world.emulator.next_reply("late", delay_ms=2500)
            with pytest.raises(AmbiguousError):
                await world.driver.apply((), pairs((4, 4)), 1)
            assert (await world.driver.read()).matching == set(BEFORE)
            async with asyncio.timeout(20):
                while CrossConnect(4, 4) not in (await world.driver.read()).matching:
                    await world.emulator.device.wait(20)

    asyncio.run(main())


@pytest.mark.parametrize("before", [(), BEFORE])
def test_old_firmware_that_calls_the_list_pairs_is_read_and_written(before: tuple[CrossConnect, ...]) -> None:
    async def main() -> None:
        spec = spec_of(before=before, yang_revision="2015-09-14", firmware="6.3.1.4")
        async with polatis_world("restconf", spec) as world:
            assert (await world.driver.read()).matching == set(before)
            await world.driver.apply((), pairs((4, 4)), 1)
            assert world.table == {*before, CrossConnect(4, 4)}

    asyncio.run(main())


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("empty", ["no-content", "not-found", "empty-list"])
@pytest.mark.parametrize("single", ["list", "object"])
def test_no_circuit_one_and_two_are_read_in_every_form(count: int, empty: str, single: str) -> None:
    async def main() -> None:
        async with polatis_world("restconf", spec_of(before=BEFORE[:count])) as world:
            await world.emulator.set_faults(empty_table=empty, single_entry=single, prefixed=count != 1)
            assert (await world.driver.read()).matching == set(BEFORE[:count])
            await world.driver.apply((), pairs((7, 7)), 1)
            assert world.table == {*BEFORE[:count], CrossConnect(7, 7)}

    asyncio.run(main())


@DOORS
@pytest.mark.parametrize(
    ("size", "pair", "numbers"),
    [
        ("24x24", (23, 23), (24, 48)),
        ("24x24", (0, 0), (1, 25)),
        ("16x08", (15, 7), (16, 24)),
        ("16x08", (0, 0), (1, 17)),
        ("12xCC", (4, 5), (5, 6)),
        ("12xCC", (11, 0), (1, 12)),
    ],
)
def test_first_and_last_ports_of_every_kind_of_switch_are_the_right_ones(
    door: str, size: str, pair: tuple[int, int], numbers: tuple[int, int]
) -> None:
    async def main() -> None:
        async with polatis_world(door, spec_of(size, ())) as world:
            applied = await world.driver.apply((), pairs(pair), 1)
            assert applied.shortfall() is None
            assert world.emulator.table == {numbers[0]: numbers[1]}
            there = Numbering.parse(size).pair(*numbers)
            assert (await world.driver.read()).matching == {there}
            with pytest.raises(TerminalError, match="out of range"):
                await world.driver.apply((), pairs((24, 0)), 1)

    asyncio.run(main())


@DOORS
def test_the_lower_number_goes_first_and_on_any_to_any_switches_order_means_nothing(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, spec_of("12xCC", ())) as world:
            await world.emulator.set_faults(strict_order=True)
            await world.driver.apply((), pairs((9, 1)), 1)
            assert world.emulator.table == {2: 10}
            assert (await world.driver.read()).matching == set(pairs((1, 9)))
            again = await world.driver.apply((), pairs((1, 9)), 1)
            assert again.shortfall() is None
            await world.driver.apply(pairs((9, 1)), pairs((9, 3)), 1)
            assert world.emulator.table == {4: 10}

    asyncio.run(main())


@DOORS
def test_a_protocol_that_was_disabled_under_an_open_socket_is_unresponsive_and_not_disconnected(
    door: str,
) -> None:
    async def main() -> None:
        async with polatis_world(door, **SILENCE) as world:
            await world.driver.describe()
            await world.emulator.set_faults(disabled=(door,))
            with pytest.raises(TransientError, match="connected, but no answer"):
                await world.driver.read()

    asyncio.run(main())


@DOORS
def test_a_lock_at_the_touchscreen_leaves_reading_free_and_is_called_so(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.emulator.set_faults(remote_lock=True)
            assert (await world.driver.read()).matching == set(BEFORE)
            for call in (
                world.driver.apply((), pairs((4, 4)), 1),
                world.driver.block([PortId(IN, 5)], blocked=True),
                world.driver.label({PortId(IN, 5): "x"}),
            ):
                with pytest.raises(TerminalError, match="locked at the device") as refusal:
                    await call
                assert refusal.value.reason is Refusal.LOCKED

    asyncio.run(main())


@DOORS
def test_a_model_without_monitors_works_and_no_figure_is_invented(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, spec_of("24x24", model="I-OST-24x24-LU1-DMHNS")) as world:
            assert (await world.driver.describe()).power is False
            applied = await world.driver.apply((), pairs((23, 23)), 1)
            assert applied.shortfall() is None
            assert applied.dark_ms is None
            assert {state.power_dbm for state in await world.driver.ports()} == {None}
            with pytest.raises(TerminalError, match="no power monitors") as refusal:
                await world.driver.power([PortId(OUT, 0)])
            assert refusal.value.reason is Refusal.UNSUPPORTED

    asyncio.run(main())


@DOORS
def test_a_large_switch_tells_the_power_of_all_its_ports(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, spec_of("512x512", pairs((0, 511)))) as world:
            found = await world.driver.power([PortId(OUT, i) for i in range(512)])
            assert len(found) == 512
            assert found[PortId(OUT, 511)] > -10
            assert found[PortId(OUT, 0)] == -60.0

    asyncio.run(main())


@DOORS
def test_of_two_who_claim_one_egress_at_once_the_loser_gets_a_conflict(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, spec_of(before=())) as world:
            revision = (await world.driver.read()).revision
            outcomes = await asyncio.gather(
                world.driver.apply((), pairs((0, 0)), 1, expect_revision=revision),
                world.driver.apply((), pairs((1, 0)), 1, expect_revision=revision),
                return_exceptions=True,
            )
            assert isinstance(outcomes[1], StaleRevisionError)
            assert world.table == set(pairs((0, 0)))
            with pytest.raises(TerminalError) as refusal:
                await world.driver.apply((), pairs((1, 0)), 1)
            assert refusal.value.displaced == pairs((0, 0))

    asyncio.run(main())


def test_of_two_programs_that_claim_one_egress_between_reading_and_writing_one_loses() -> None:
    """Each has its own session; the entity tag is what tells the slower one that it came too late."""

    async def main() -> None:
        async with polatis_world("restconf", spec_of(before=(), control_ms=30)) as world:
            other = open_polatis(polatis_switch(world.emulator, "restconf"))
            outcomes = await asyncio.gather(
                world.driver.apply((), pairs((0, 0)), 1),
                other.apply((), pairs((1, 0)), 1),
                return_exceptions=True,
            )
            await other.close()
            lost = [outcome for outcome in outcomes if isinstance(outcome, TerminalError)]
            assert len(lost) == 1
            assert lost[0].reason is Refusal.WOULD_DISPLACE
            assert len(world.table) == 1

    asyncio.run(main())


def test_a_circuit_that_somebody_makes_between_two_removals_stays() -> None:
    """RESTCONF removes by port, one by one: the port may hold another circuit by the time its turn comes."""

    async def main() -> None:
        async with polatis_world("restconf") as world:
            await world.driver.read()
            write, removals = world.emulator.device.write, 0

            async def interrupted(actor: Actor, edit: Edit, **more: Any) -> Written:
                nonlocal removals
                removals += 1
                if removals == 2:
                    await write(Actor("other", Group.ADMIN, "restconf"), Edit(connect=((2, 14),)))
                return await write(actor, edit, **more)

            world.emulator.device.write = interrupted  # type: ignore[method-assign]
            applied = await world.driver.apply(pairs((0, 0), (1, 1)), (), 1)
            assert world.table == set(pairs((1, 5), (2, 2)))
            assert removals == 2
            # Both are gone, one of them by somebody else; and what that one made is left alone.
            assert [result.outcome for result in applied.pairs] == [PairOutcome.APPLIED] * 2

    asyncio.run(main())


@DOORS
def test_default_credentials_raise_a_warning(door: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[DeviceEvent]:
        spec = spec_of(users=(UserSpec(name="admin", password="root"),))
        async with polatis_world(door, spec) as world:
            heard = world.driver.events()
            await world.driver.describe()
            await world.driver.close()
            return [event async for event in heard]

    with caplog.at_level(logging.WARNING):
        events = asyncio.run(main())
    assert [event.kind for event in events] == [DeviceEventKind.WARNING]
    assert "change them" in events[0].detail
    assert any("weak" in record.message for record in caplog.records)


def test_an_alarm_of_our_own_switching_is_told_from_a_real_one() -> None:
    async def main() -> None:
        async with polatis_world("tl1", spec_of(control_ms=0, switch_ms=30)) as world:
            await world.driver.describe()
            heard = world.driver.events()
            change = asyncio.create_task(world.driver.apply(pairs((0, 0)), pairs((0, 4)), 1))
            async with asyncio.timeout(20):
                while not world.driver._changing:
                    await world.emulator.device.wait(1)
            world.driver._hear("Port 9 loss of signal")
            world.driver._hear("Port 11 loss of signal")
            await change
            world.driver._hear("Port 9 loss of signal")
            seen = [await anext(heard) for _ in range(3)]
            assert [event.expected for event in seen] == [True, False, False]
            assert [event.ports for event in seen] == [
                (PortId(OUT, 0),),
                (PortId(OUT, 2),),
                (PortId(OUT, 0),),
            ]
            assert {event.kind for event in seen} == {DeviceEventKind.ALARM}

    asyncio.run(main())


@DOORS
def test_a_port_that_was_dark_before_anybody_watched_is_found_by_sampling(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door) as world:
            await world.emulator.set_faults(source_dbm={1: -60})
            observed = await world.driver.read()
            assert observed.matching == set(BEFORE)
            assert list(observed.dark) == [CrossConnect(0, 0)]

    asyncio.run(main())


@DOORS
def test_a_circuit_that_somebody_else_removes_after_our_change_is_noticed(door: str) -> None:
    async def main() -> None:
        async with polatis_world(door, settle_s=0.3) as world:
            await world.driver.read()
            heard = world.driver.events()
            applied = await world.driver.apply((), pairs((4, 4)), 1)
            assert applied.shortfall() is None
            await world.emulator.foreign(disconnect=[5])
            async with asyncio.timeout(20):
                event = await anext(heard)
            assert event.kind is DeviceEventKind.FOREIGN_CHANGE
            assert event.detail == "somebody else changed the table: gone: 4->4"
            assert event.ports == (PortId(IN, 4), PortId(OUT, 4))

    asyncio.run(main())
