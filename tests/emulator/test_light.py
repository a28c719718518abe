"""When each port is dark, exactly, on a clock of the test's own; and what the detectors read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from opus_sdn.drivers.polatis_emulator import EmulatorSpec, Faults
from opus_sdn.drivers.polatis_emulator.alarms import AlarmSetting
from opus_sdn.drivers.polatis_emulator.device import Actor, Device
from opus_sdn.drivers.polatis_emulator.flash import Flash
from opus_sdn.drivers.polatis_emulator.judge import Edit
from opus_sdn.drivers.polatis_emulator.optics import Attenuation
from opus_sdn.drivers.polatis_emulator.spec import Group
from tests.drivers.virtual_time import now, run_virtual

ADMIN = Actor("admin", Group.ADMIN, "test")


def device(size: str = "8x8", **more: Any) -> Device:
    """A switch on the running loop's virtual clock; its optics take 25 ms."""
    spec = EmulatorSpec.model_validate({"size": size, "loss_spread_db": 0.0} | more)
    return Device(spec, Flash(spec), clock=now)


def test_a_swap_leaves_a_third_circuit_lit_for_every_instant() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9), (2, 10), (3, 11)))
        await asyncio.sleep(1.0)
        since = now()
        await ocs.write(ADMIN, Edit(((1, 10), (2, 9))))
        await asyncio.sleep(1.0)
        dark = {port: ocs.optics.log.dark_ms(port, since) for port in (1, 2, 3, 9, 10, 11)}
        assert dark == pytest.approx({1: 25.0, 2: 25.0, 9: 25.0, 10: 25.0, 3: 0.0, 11: 0.0})
        assert dark[3] == dark[11] == 0.0

    run_virtual(main)


def test_256_circuits_of_512_are_re_pointed_in_one_transaction_of_one_switching_time() -> None:
    async def main() -> None:
        before = tuple((port, 512 + port) for port in range(1, 513))
        ocs = device("512x512", initial=before)
        await asyncio.sleep(1.0)
        since, seen = now(), len(ocs.activities)
        # The first 256 ingress ports trade their egress ports; the other 256 are nobody's business.
        moved = tuple((port, 512 + port % 256 + 1) for port in range(1, 257))
        await ocs.write(ADMIN, Edit(moved))
        assert now() - since == pytest.approx(0.025)
        assert len(ocs.activities) == seen + 1
        assert ocs.table == dict(moved) | dict(before[256:])
        log = ocs.optics.log
        assert all(log.dark_ms(port, since) == pytest.approx(25.0) for pair in moved for port in pair)
        assert all(log.dark(port, since) == () for pair in before[256:] for port in pair)

    run_virtual(main)


def test_writing_what_is_there_already_moves_nothing() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9),))
        revision = ocs.changed_at
        written = await ocs.write(ADMIN, Edit(((1, 9),)))
        assert (written.removed, written.added) == ((), ())
        assert ocs.optics.log.dark(1, since=1e-9) == ()
        assert ocs.changed_at == revision
        assert not ocs.activities

    run_virtual(main)


def test_control_time_comes_before_the_light_goes_and_is_spent_in_turn() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9), (2, 10)), control_ms=1000.0)
        await asyncio.gather(ocs.write(ADMIN, Edit(disconnect=(1,))), ocs.write(ADMIN, Edit(disconnect=(2,))))
        assert [ocs.optics.log.dark(port, since=0.1)[0].begin for port in (1, 2)] == pytest.approx([1.0, 2.0])
        assert now() == pytest.approx(2.025)

    run_virtual(main)


def test_a_port_that_tunes_slowly_holds_up_its_own_circuit_only() -> None:
    async def main() -> None:
        ocs = device()
        ocs.set_faults(Faults(tuning_ms={2: 400.0}))
        write = asyncio.ensure_future(ocs.write(ADMIN, Edit(((1, 9), (2, 10)))))
        await asyncio.sleep(0.1)
        assert ocs.optics.is_lit(9)
        assert not ocs.optics.is_lit(10)
        assert not write.done()
        await write
        assert now() == pytest.approx(0.4)
        assert ocs.optics.is_lit(10)

    run_virtual(main)


def test_a_port_that_is_re_pointed_while_it_moves_stays_dark_until_the_second_motion_ends() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9),))
        await asyncio.sleep(1.0)
        first = asyncio.ensure_future(ocs.write(ADMIN, Edit(((1, 10),))))
        await asyncio.sleep(0.010)
        await ocs.write(ADMIN, Edit(((1, 9),)))
        await first
        assert ocs.optics.log.dark_ms(9, 1.0) == pytest.approx(35.0)
        assert ocs.table == {1: 9}
        assert not ocs.optics.is_lit(10)

    run_virtual(main)


@pytest.mark.parametrize("shut", [1, 9])
def test_a_shut_port_stays_connected_and_is_dark_at_both_ends(shut: int) -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9), (2, 10)))
        await ocs.set_ports(ADMIN, disable=(shut,))
        assert ocs.table == {1: 9, 2: 10}
        assert [ocs.optics.is_lit(port) for port in (1, 9, 2, 10)] == [False, False, True, True]
        assert ocs.status(shut) == "DISABLED"
        assert ocs.optics.power_dbm(9) == -60.0
        await ocs.set_ports(ADMIN, enable=(shut,))
        assert ocs.optics.is_lit(9)

    run_virtual(main)


def test_a_detector_reads_what_comes_out() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9), (2, 10)), monitors="all", source_dbm=3.0, loss_db=1.5)
        optics = ocs.optics
        assert optics.power_dbm(9) == 1.5
        assert optics.power_dbm(1) == 3.0  # light going in
        assert optics.power_dbm(11) == -60.0
        optics.attenuation[9] = Attenuation("ABSOLUTE", -5.0)
        assert optics.power_dbm(9) == -5.0
        optics.attenuation[9] = Attenuation("RELATIVE", -7.0)
        assert optics.power_dbm(9) == -4.0
        optics.attenuation[9] = Attenuation("FIXED", 2.0)
        assert optics.power_dbm(9) == -0.5
        optics.offset_db[10] = 0.25
        assert optics.power_dbm(10) == 1.75
        ocs.set_faults(Faults(source_dbm={2: -60.0}, extra_loss_db={1: 4.0}))
        assert optics.power_dbm(9) == -4.5
        assert optics.power_dbm(10) < -50

    run_virtual(main)


def test_losses_differ_from_path_to_path_within_the_spread_and_stay() -> None:
    async def main() -> None:
        pairs = tuple((port, 32 + port) for port in range(1, 33))
        readings = []
        for _ in range(2):
            ocs = device("32x32", initial=pairs, loss_db=1.0, loss_spread_db=0.5)
            readings.append([ocs.optics.power_dbm(32 + port) for port in range(1, 33)])
        assert readings[0] == readings[1]
        assert len(set(readings[0])) > 10
        assert all(-1.5 <= reading <= -0.5 for reading in readings[0])

    run_virtual(main)


def armed(*, single: bool = False) -> AlarmSetting:
    return AlarmSetting(enabled=True, single=single, low_dbm=-20.0)


def test_an_alarm_fires_on_the_crossing_and_clears_when_light_is_back() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9),))
        ocs.alarms.arm(9, armed())
        await ocs.set_ports(ADMIN, disable=(1,))
        await asyncio.sleep(1.0)
        assert list(ocs.alarms.active) == [9]
        await ocs.set_ports(ADMIN, enable=(1,))
        await asyncio.sleep(1.0)
        assert not ocs.alarms.active
        assert [alarm.kind for alarm in ocs.alarms.history] == ["NOTIF_PORT_POWER", "NOTIF_PORT_POWER_CLEAR"]

    run_virtual(main)


def test_light_that_gets_too_faint_is_a_crossing_too() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9),))
        ocs.alarms.arm(9, armed())
        ocs.set_faults(Faults(extra_loss_db={1: 18.0}))
        await asyncio.sleep(1.0)
        assert not ocs.alarms.active
        ocs.set_faults(Faults(extra_loss_db={1: 20.0}))
        await asyncio.sleep(1.0)
        assert list(ocs.alarms.active) == [9]

    run_virtual(main)


def test_a_port_that_is_armed_when_already_dark_raises_no_alarm() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9),))
        await ocs.set_ports(ADMIN, disable=(1,))
        ocs.alarms.arm(9, armed())
        await asyncio.sleep(60.0)
        assert not ocs.alarms.history

    run_virtual(main)


def test_a_single_alarm_disarms_itself() -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9),))
        ocs.alarms.arm(9, armed(single=True))
        for _ in range(2):
            await ocs.set_ports(ADMIN, disable=(1,))
            await asyncio.sleep(1.0)
            await ocs.set_ports(ADMIN, enable=(1,))
            await asyncio.sleep(1.0)
        assert [alarm.kind for alarm in ocs.alarms.history].count("NOTIF_PORT_POWER") == 1

    run_virtual(main)


@pytest.mark.parametrize(("averaging", "alarms"), [(1, 1), (2, 1), (4, 0), (8, 0)])
def test_a_switching_time_of_25_ms_is_an_alarm_only_for_detectors_that_average_over_less(
    averaging: int, alarms: int
) -> None:
    async def main() -> None:
        ocs = device(initial=((1, 9), (2, 10)))
        ocs.alarms.arm(9, armed())
        ocs.alarms.averaging[9] = averaging
        await ocs.write(ADMIN, Edit(((2, 9), (1, 10))))
        await asyncio.sleep(5.0)
        raised = [alarm for alarm in ocs.alarms.history if alarm.kind == "NOTIF_PORT_POWER"]
        assert len(raised) == alarms

    run_virtual(main)
