"""What is left after the management card restarts, after power is lost, after the emulator has ended."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest

from opus_sdn.drivers.polatis_emulator import (
    EmulatorFailedError,
    EmulatorProcess,
    Kept,
    PolatisEmulator,
    StartupMode,
)
from opus_sdn.drivers.polatis_emulator.flash import FlashError
from tests.emulator.clients import (
    TABLE,
    Restconf,
    asynchronous,
    open_tl1,
    pair_list,
    spec,
    switch,
    until,
)

PORTS = ("--restconf-port", "0", "--tl1-port", "0", "--page-port", "0")


@asynchronous
async def test_light_survives_the_restart_of_the_management_card_and_sessions_do_not() -> None:
    async with switch(initial=((1, 9),)) as (emulator, restconf, tl1):
        await restconf.ask("GET", TABLE)
        since = emulator.device.clock()
        restarting = asyncio.ensure_future(emulator.reboot(Kept.LIGHT, ms=50.0))
        with pytest.raises((EOFError, ConnectionError)):
            await tl1.message()
        with pytest.raises(ConnectionRefusedError):
            await open_tl1(emulator)
        await restarting
        assert emulator.light.dark(9, since) == ()
        again = await open_tl1(emulator)
        assert await again.lines("RTRV-PATCH:::1:;") == ["1,9"]
        assert (await Restconf(emulator).ask("GET", TABLE)).status_code == 200
        await again.close()


@pytest.mark.parametrize(
    ("mode", "kept", "wanted"),
    [
        ("preserve", Kept.SAVED, {1: 10, 2: 9}),
        ("volatile", Kept.SAVED, {}),
        ("preserve", Kept.OLD, {1: 9, 2: 10}),
        ("preserve", Kept.NOTHING, {}),
    ],
)
@asynchronous
async def test_power_that_is_lost_leaves_what_the_mode_says(
    mode: str, kept: Kept, wanted: dict[int, int]
) -> None:
    async with switch(startup_mode=mode) as (emulator, restconf, _):
        await restconf.patch((1, 9), (2, 10))
        await restconf.patch((1, 10), (2, 9))
        restarting = asyncio.ensure_future(emulator.reboot(kept, ms=50.0))
        await until(lambda: emulator.table == {})
        assert not emulator.device.optics.is_lit(9)
        await restarting
        assert emulator.table == wanted
        assert emulator.device.optics.is_lit(9) is bool(wanted)


@asynchronous
async def test_the_mode_is_set_over_both_doors() -> None:
    async with switch() as (emulator, restconf, tl1):
        await restconf.patch((1, 9))
        await tl1.lines("ED-EQPT::BOOT:1:::MODE=DARK;")
        shown = await restconf.ask("GET", "/api/data/system-config/polatis-switch:startup-mode")
        assert shown.json() == {"polatis-switch:startup-mode": "MODE_VOLATILE"}
        mode = {"polatis-switch:startup-mode": "MODE_PRESERVE"}
        assert (await restconf.ask("PATCH", "/api/data/system-config", mode)).status_code == 204
        assert await tl1.lines("RTRV-EQPT::BOOT:1:::PARAMETER=MODE;") == ["BOOT:MODE=RESTORE"]
        # What was made while nothing was kept is kept from now on.
        await emulator.reboot(Kept.SAVED, ms=0.0)
        assert emulator.table == {1: 9}


@asynchronous
async def test_a_restart_that_was_asked_for_cuts_the_session_and_can_be_taken_back() -> None:
    async with switch(reboot_ms=10.0, initial=((1, 9),)) as (emulator, restconf, tl1):
        later = {"input": {"seconds": 3600}}
        path = "/api/operations/optical-switch:system-restart"
        assert (await restconf.ask("POST", path, later)).status_code == 204
        assert (await restconf.ask("POST", f"{path}-cancel", {"input": {}})).status_code == 204
        await tl1.send("INIT-SYS::SYSTEM:28::10;")
        with contextlib.suppress(EOFError, ConnectionError):
            while True:  # an answer may still come, and then the session ends
                await tl1.message()
        await until(lambda: emulator._listeners["tl1"].listening)
        assert emulator.table == {1: 9}


@asynchronous
async def test_a_restart_at_once_is_never_answered() -> None:
    async with switch(reboot_ms=10.0, initial=((1, 9),)) as (emulator, restconf, _):
        path = "/api/operations/optical-switch:system-restart"
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await restconf.ask("POST", path, {"input": {"seconds": 0}})
        await until(lambda: emulator._listeners["restconf"].listening)
        assert (await restconf.ask("GET", TABLE)).status_code == 200


@asynchronous
async def test_shut_ports_and_labels_survive_the_loss_of_power() -> None:
    async with switch() as (emulator, _, tl1):
        await tl1.lines("OPR-PORT-SHUTTER::3:1:;")
        await tl1.lines("ED-PORT-LABEL::3:1:::LABEL=rail0;")
        await emulator.reboot(Kept.SAVED, ms=0.0)
        again = await open_tl1(emulator)
        assert await again.lines("RTRV-PORT-SHUTTER::3:1:;") == ["3:CLOSED"]
        assert await again.lines("RTRV-PORT-LABEL::3:1:;") == ["3:rail0"]
        await again.close()


@asynchronous
async def test_a_state_file_carries_the_table_to_the_next_life(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with PolatisEmulator(spec(), state_file=file) as emulator:
        await emulator.foreign(connect=[(1, 9), (2, 10)])
    async with PolatisEmulator(spec(), state_file=file) as emulator:
        assert emulator.table == {1: 9, 2: 10}
        assert emulator.device.optics.is_lit(10)
    async with PolatisEmulator(spec(startup_mode="volatile"), state_file=file) as emulator:
        assert emulator.table == {1: 9, 2: 10}  # the mode is kept in the file too
        emulator.device.flash.startup_mode = StartupMode.VOLATILE
        await emulator.foreign(connect=[(3, 11)])
    async with PolatisEmulator(spec(), state_file=file) as emulator:
        assert emulator.table == {}
    with pytest.raises(FlashError, match="of a switch of size 8x8, this one is 16x16"):
        PolatisEmulator(spec("16x16"), state_file=file)
    file.write_text("{")
    with pytest.raises(FlashError, match="name a file that the emulator wrote"):
        PolatisEmulator(spec(), state_file=file)


def test_a_killed_process_finds_its_table_again(tmp_path: Path) -> None:
    state = ("--size", "8x8", "--switch-ms", "0", "--state", str(tmp_path / "state.json"), *PORTS)
    with EmulatorProcess(tmp_path, *state) as first:
        first.ask("POST", "/emulator/circuits", {"connect": [[1, 9]]})
        first.kill()
    with EmulatorProcess(tmp_path, *state) as second:
        assert second.ask("GET", "/emulator")["circuits"] == [{"ingress": 1, "egress": 9, "lit": True}]
        assert second.stop() == 0


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    faults = tmp_path / "faults.yaml"
    faults.write_text("remote_lok: true\ntl1_batch: half\n")
    with pytest.raises(EmulatorFailedError) as failed:
        EmulatorProcess(tmp_path, "--size", "8x8", "--faults", str(faults), *PORTS)
    assert "remote_lok: Extra inputs are not permitted" in str(failed.value)
    assert "tl1_batch: Input should be 'atomic' or 'prefix'" in str(failed.value)


def test_a_process_starts_with_the_faults_and_users_of_its_files(tmp_path: Path) -> None:
    faults, config = tmp_path / "faults.yaml", tmp_path / "switch.yaml"
    faults.write_text("remote_lock: true\ntuning_ms: {9: 500.0}\n")
    config.write_text("size: 16x08\nusers:\n- {name: operator, password: secret-word, group: user}\n")
    with EmulatorProcess(tmp_path, "--config", str(config), "--faults", str(faults), *PORTS) as process:
        shown = process.ask("GET", "/emulator")
        assert shown["size"] == "16x08"
        assert shown["faults"] == {"remote_lock": True, "tuning_ms": {"9": 500.0}}
        assert "secret-word" not in process.log.read_text() + str(shown)


@asynchronous
async def test_a_transaction_in_flight_goes_on_when_its_client_is_gone() -> None:
    async with switch(control_ms=200.0) as (emulator, restconf, _):
        asking = asyncio.ensure_future(restconf.ask("PATCH", TABLE, pair_list((1, 9))))
        await until(emulator.device._control.locked)
        asking.cancel()
        await until(lambda: emulator.table == {1: 9})
