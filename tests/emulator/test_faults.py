"""Every state that can be wrong with the switch does what it says, and nothing of it when it is not set."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from opus_sdn.drivers.polatis_emulator import Faults, ForeignWriter, PolatisEmulator, ReplyKind
from opus_sdn.fabric_file import parse_fabric
from opus_sdn.intent.fabric import Fabric
from tests.emulator.clients import (
    PAIRS,
    SILENCE_S,
    TABLE,
    Restconf,
    Tl1,
    asynchronous,
    open_tl1,
    pair_list,
    switch,
    until,
)

Check = Callable[[PolatisEmulator, Restconf, Tl1], Awaitable[None]]

CHECKS: dict[str, Check] = {}
OPM = "/api/data/optical-switch:opm-power"


def check(test: Check) -> Check:
    """Register the test of the fault of this name. The switch is 8x8 and holds 1:9, 2:10 and 3:11."""
    CHECKS[test.__name__] = test
    return test


def test_every_fault_has_its_test() -> None:
    assert set(CHECKS) == set(Faults.model_fields)


@pytest.mark.parametrize("fault", sorted(Faults.model_fields))
@asynchronous
async def test_a_fault_does_what_it_says(fault: str) -> None:
    async with switch(initial=((1, 9), (2, 10), (3, 11))) as (emulator, restconf, tl1):
        await CHECKS[fault](emulator, restconf, tl1)


async def names_of(restconf: Restconf, path: str) -> list[str]:
    return list((await restconf.ask("GET", path)).json())


@check
async def displace(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(displace=False)
    assert await restconf.patch((4, 9)) == 409
    answer = await restconf.ask("PUT", f"{PAIRS}=4", pair_list((4, 9)))
    assert answer.status_code == 409
    assert emulator.table == {1: 9, 2: 10, 3: 11}
    assert await restconf.patch((1, 12)) == 204  # an ingress may still move
    assert await restconf.patch((2, 11), (3, 10)) == 204  # and trade
    await emulator.set_faults(displace=True)
    assert await restconf.patch((2, 10)) == 204
    assert emulator.table == {1: 12, 2: 10}
    assert emulator.device.activities[-1].displaced == ((3, 10),)


@check
async def tl1_conflict(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    assert await tl1.lines("ENT-PATCH::1,10:5:;") == []
    assert emulator.table == {1: 10, 3: 11}
    await emulator.set_faults(tl1_conflict="deny")
    assert await tl1.denied("ENT-PATCH::4,10:5:;") == ("SRCN", "Port in use")
    assert await tl1.lines("ENT-PATCH::1,10:6:;") == []  # the same circuit is none
    assert emulator.table == {1: 10, 3: 11}


@check
async def tl1_batch(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    command = "ENT-PATCH::4&5&77&6,12&13&14&15:5:;"
    assert await tl1.denied(command) == ("IDNV", "Invalid OXC port: 77")
    assert emulator.table == {1: 9, 2: 10, 3: 11}
    await emulator.set_faults(tl1_batch="prefix")
    assert await tl1.denied(command) == ("IDNV", "Invalid OXC port: 77")
    assert emulator.table == {1: 9, 2: 10, 3: 11, 4: 12, 5: 13}
    await emulator.set_faults(tl1_conflict="deny")
    assert (await tl1.denied("ENT-PATCH::6&7,14&13:5:;"))[0] == "SRCN"
    assert emulator.table == {1: 9, 2: 10, 3: 11, 4: 12, 5: 13, 6: 14}


@check
async def partial_batch(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(partial_batch=3)
    assert await restconf.patch((4, 12), (5, 13), (6, 14)) == 204
    assert await restconf.patch((4, 13), (5, 12), (6, 15), (7, 16)) == 500
    assert emulator.table == {1: 9, 2: 10, 3: 11, 4: 13, 5: 12, 6: 15}
    assert (await tl1.denied("DLT-PATCH::1&&4:9:;"))[0] == "SSTP"
    assert emulator.table == {4: 13, 5: 12, 6: 15}


@check
async def duplicate_egress(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    assert await restconf.patch((4, 12), (5, 12)) == 400
    assert 4 not in emulator.table
    await emulator.set_faults(duplicate_egress="last")
    assert await restconf.patch((4, 12), (5, 12)) == 204
    assert emulator.table == {1: 9, 2: 10, 3: 11, 5: 12}


@check
async def strict_order(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await tl1.lines("ENT-PATCH::12,4:5:;")
    assert emulator.table[4] == 12
    await emulator.set_faults(strict_order=True)
    assert await tl1.denied("ENT-PATCH::13,5:5:;") == ("IDNV", "Invalid OXC port: 13")
    assert 5 not in emulator.table


@check
async def if_match(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    seen = (await restconf.ask("GET", TABLE)).headers["etag"]
    await emulator.foreign(disconnect=[3])
    answer = await restconf.ask("PATCH", PAIRS, pair_list((4, 12)), if_match=seen)
    assert answer.status_code == 412
    assert emulator.table == {1: 9, 2: 10}
    await emulator.set_faults(if_match=False)
    answer = await restconf.ask("PATCH", PAIRS, pair_list((4, 12)), if_match=seen)
    assert answer.status_code == 204
    assert emulator.table == {1: 9, 2: 10, 4: 12}


@check
async def empty_table(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.foreign(disconnect=(1, 2, 3))
    assert (await restconf.ask("GET", TABLE)).status_code == 204
    await emulator.set_faults(empty_table="not-found")
    assert (await restconf.ask("GET", TABLE)).status_code == 404
    await emulator.set_faults(empty_table="empty-list")
    assert (await restconf.ask("GET", TABLE)).json() == {"optical-switch:cross-connects": {"pair": []}}
    assert (await restconf.ask("GET", PAIRS)).json() == {"optical-switch:pair": []}


@check
async def absent_entry(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    assert (await restconf.ask("GET", f"{PAIRS}=4")).status_code == 404
    await emulator.set_faults(absent_entry="no-content")
    answer = await restconf.ask("GET", f"{PAIRS}=4")
    assert (answer.status_code, answer.content) == (204, b"")


@check
async def single_entry(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    entry = {"ingress": 1, "egress": 9}
    assert (await restconf.ask("GET", f"{PAIRS}=1")).json() == {"optical-switch:pair": [entry]}
    await emulator.set_faults(single_entry="object")
    assert (await restconf.ask("GET", f"{PAIRS}=1")).json() == {"optical-switch:pair": entry}


@check
async def errors(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    seen = {}
    for style in ("ietf", "confd", "xml", "html", "empty"):
        await emulator.set_faults(errors=style)
        answer = await restconf.ask("GET", f"{PAIRS}=4")
        assert answer.status_code == 404
        seen[style] = answer.text
    assert seen["ietf"].startswith('{"ietf-restconf:errors"')
    assert seen["confd"].startswith('{"errors"')
    assert "error-urlpath" in seen["confd"]
    assert seen["xml"].startswith("<errors ")
    assert seen["html"].startswith("<html>")
    assert seen["empty"] == ""


@check
async def prefixed(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    assert await names_of(restconf, PAIRS) == ["optical-switch:pair"]
    await emulator.set_faults(prefixed=False)
    assert await names_of(restconf, PAIRS) == ["pair"]


@check
async def decimals(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(decimals="number")
    answer = await restconf.ask("GET", f"{OPM}/port=9/power")
    assert answer.json() == {"optical-switch:power": -1.0}


@check
async def keep_alive(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    assert "connection" not in (await restconf.ask("GET", TABLE)).headers
    await emulator.set_faults(keep_alive=False)
    assert (await restconf.ask("GET", TABLE)).headers["connection"] == "close"
    assert (await restconf.ask("GET", TABLE)).status_code == 200


@check
async def control_ms(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(control_ms=60.0)
    for ask in (restconf.ask("GET", TABLE), restconf.patch((1, 12)), tl1.ask("RTRV-PATCH:::1:;")):
        begin = emulator.device.clock()
        await ask
        assert emulator.device.clock() - begin > 0.05


@check
async def switch_ms(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(switch_ms=60.0)
    since = emulator.device.clock()
    assert await restconf.patch((1, 12)) == 204
    assert emulator.light.dark_ms(12, since) > 50.0
    assert emulator.light.dark(2, since) == ()


@check
async def tuning_ms(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(tuning_ms={12: 60.0})
    since = emulator.device.clock()
    assert await restconf.patch((1, 12), (4, 9)) == 204
    assert emulator.light.dark_ms(12, since) > 50.0 > emulator.light.dark_ms(9, since)


@check
async def early_reply(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(early_reply=True, switch_ms=60_000.0)
    assert await restconf.patch((4, 12)) == 204
    assert emulator.table[4] == 12
    answer = await restconf.ask("GET", f"{OPM}/port=12/power")
    assert answer.json() == {"optical-switch:power": "-60.00"}


@check
async def stale_read_ms(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(stale_read_ms=600_000.0)
    await restconf.patch((1, 12))
    before = pair_list((1, 9), (2, 10), (3, 11))
    assert (await restconf.ask("GET", PAIRS)).json() == before
    assert await tl1.lines("RTRV-PATCH::1:1:;") == ["1,9"]
    await emulator.set_faults(stale_read_ms=0.0)
    assert await tl1.lines("RTRV-PATCH::1:1:;") == ["1,12"]


@check
async def failed_ports(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(failed_ports=(1, 12))
    answer = await restconf.ask("GET", "/api/data/optical-switch:port-config/port=1/status")
    assert answer.json() == {"optical-switch:status": "FAILED"}
    assert await restconf.patch((4, 12)) == 204  # connected all the same, without light
    assert await tl1.lines("RTRV-PORT-POWER::9&10&12:1:;") == ["9:-60.00", "10:-1.00", "12:-60.00"]
    await emulator.set_faults(failed_ports=())
    assert emulator.device.optics.is_lit(9)


@check
async def module_failure(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(module_failure=True)
    assert await restconf.patch((4, 12)) == 500
    assert (await tl1.denied("ENT-PATCH::4,12:1:;"))[0] == "SSTP"
    assert emulator.table == {1: 9, 2: 10, 3: 11}


@check
async def source_dbm(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(source_dbm={1: -60.0})
    assert await tl1.lines("RTRV-PORT-POWER::9&10:1:;") == ["9:-60.00", "10:-1.00"]


@check
async def extra_loss_db(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(extra_loss_db={9: 2.5})
    assert await tl1.lines("RTRV-PORT-POWER::9&10:1:;") == ["9:-3.50", "10:-1.00"]


@check
async def no_monitors(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(no_monitors=True)
    assert (await restconf.ask("GET", OPM)).status_code == 204
    assert (await restconf.ask("GET", f"{OPM}/port=9")).status_code == 404
    assert await tl1.denied("RTRV-PORT-POWER::9:1:;") == ("ENEQ", "No power monitors")


def two_hosts() -> Fabric:
    """Two hosts with one NIC port each, on positions 0 and 1."""
    return parse_fabric(
        """
{version: 1, hosts: [h0, h1], gpus_per_host: 1, ports_per_gpu: 1, circuit: duplex,
 switches: [{name: ocs, driver: emulated, size: 8, layout: sided}],
 rails: [{name: rail0, slots: [0], switch: ocs, first_port: 0}]}""",
        "test",
    ).build()


async def link_of(host: str, folder: Path, *, up: bool) -> None:
    """Wait until this NIC's link is as wanted."""
    file = folder / host / "class/net/nic0p0/carrier"
    await until(lambda: file.read_text() == ("1\n" if up else "0\n"))


@check
async def link_up_ms(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await emulator.set_faults(link_up_ms=60_000.0)
        emulator.plug_nics(two_hosts(), Path(folder))
        await asyncio.sleep(SILENCE_S)
        await link_of("h0", Path(folder), up=False)
        await emulator.set_faults(link_up_ms=None)
        await link_of("h0", Path(folder), up=True)


@check
async def dead_links(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    with tempfile.TemporaryDirectory() as folder:
        emulator.plug_nics(two_hosts(), Path(folder))
        await link_of("h1", Path(folder), up=True)
        await emulator.set_faults(dead_links=("h1:0:0",))
        await link_of("h1", Path(folder), up=False)
        await link_of("h0", Path(folder), up=True)


@check
async def remote_lock(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(remote_lock=True)
    assert await restconf.patch((4, 12)) == 403
    assert (await restconf.ask("DELETE", f"{PAIRS}=1")).status_code == 403
    label = {"port": {"label": "x"}}
    assert (await restconf.ask("PATCH", "/api/data/port-config/port=1", label)).status_code == 403
    for command in ("ENT-PATCH::4,12:1:;", "DLT-PATCH::1:1:;", "OPR-PORT-SHUTTER::1:1:;"):
        assert (await tl1.denied(command))[0] == "SRCN"
    assert emulator.table == {1: 9, 2: 10, 3: 11}
    assert len((await restconf.ask("GET", PAIRS)).json()["optical-switch:pair"]) == 3
    assert len(await tl1.lines("RTRV-PATCH:::1:;")) == 3


@check
async def disabled(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await restconf.ask("GET", TABLE)
    await emulator.set_faults(disabled=("tl1", "restconf"))
    # The open sockets stay open and are ignored; new ones are refused.
    await tl1.send("ENT-PATCH::4,12:1:;")
    with pytest.raises(TimeoutError):
        await tl1.message(SILENCE_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SILENCE_S):
            await restconf.patch((5, 13))
    with pytest.raises(ConnectionRefusedError):
        await open_tl1(emulator)
    with pytest.raises(httpx.ConnectError):
        await Restconf(emulator).ask("GET", TABLE)
    assert emulator.table == {1: 9, 2: 10, 3: 11}
    await emulator.set_faults(disabled=())
    assert await tl1.lines("RTRV-HDR:::2:;") == []
    assert await restconf.patch((5, 13)) == 204


@check
async def session_limit(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await restconf.ask("GET", TABLE)
    await emulator.set_faults(session_limit=1)
    with pytest.raises((EOFError, OSError)):
        await open_tl1(emulator)
    second = Restconf(emulator)
    answer = await second.ask("GET", TABLE)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert await tl1.lines("RTRV-HDR:::2:;") == []  # who is in stays in
    await tl1.close()
    await until(lambda: not list(emulator.sessions))
    again = await open_tl1(emulator)
    assert await again.lines("RTRV-HDR:::2:;") == []
    await second.close()
    await again.close()


@check
async def idle_logout_s(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(idle_logout_s=0.02)
    await asyncio.sleep(0.05)
    assert await tl1.denied("RTRV-PATCH:::1:;") == ("", "Not logged in")
    assert await tl1.lines("ACT-USER::admin:2::root;") == []
    assert await tl1.lines("RTRV-PATCH::1:3:;") == ["1,9"]


@check
async def foreign_writer(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(foreign_writer=ForeignWriter(every_s=0.01, ports=(1, 4)))
    await until(lambda: emulator.table == {2: 10, 3: 11})
    await restconf.patch((4, 12))
    await until(lambda: emulator.table == {2: 10, 3: 11})
    await emulator.set_faults(foreign_writer=ForeignWriter(every_s=0.01))
    await until(lambda: emulator.table == {})
    await emulator.set_faults(foreign_writer=None)
    await restconf.patch((4, 12))
    await asyncio.sleep(0.05)
    assert emulator.table == {4: 12}
    assert {activity.actor.user for activity in emulator.device.activities} == {"foreign", "admin"}


@check
async def segment_bytes(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(segment_bytes=1)
    assert (await restconf.ask("GET", PAIRS)).json() == pair_list((1, 9), (2, 10), (3, 11))
    assert await tl1.lines("RTRV-PATCH:::1:;") == ["1,9", "2,10", "3,11"]
    await tl1.send("RTRV-HDR:::2:;")
    assert len(await tl1.reader.read(65_536)) < 20


@check
async def tl1_autonomous(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    wanted = {
        "before": r"\s*.*\r\nA  \d+ REPT EVT[^;]*;\s*.*\r\nM  7 COMPLD[^;]*;",
        "between": r"\s*.*\r\nM  7 COMPLD[^;]*;\s*.*\r\nA  \d+ REPT EVT[^;]*;",
        "inside": r'\s*.*\r\nM  7 COMPLD\r\n\s*.*\r\nA  \d+ REPT EVT[^;]*;\r\n   "1,9"[^;]*;',
    }
    for place, form in wanted.items():
        await emulator.set_faults(tl1_autonomous=place)
        await tl1.send("RTRV-PATCH:::7:;")
        text = await tl1.message() + await tl1.message()
        assert re.fullmatch(form, text), (place, text)


@check
async def tl1_acknowledge(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(tl1_acknowledge=True)
    await tl1.send("RTRV-PATCH::1:7:;")
    assert (await tl1.message()).startswith("\r\nIP 7\r\n<")


@check
async def tl1_continue(emulator: PolatisEmulator, restconf: Restconf, tl1: Tl1) -> None:
    await emulator.set_faults(tl1_continue=True)
    await tl1.send("RTRV-PORT-SHUTTER::1&&8&1&&8&1&&8&1&&8&1&&8:7:;")
    first, second = await tl1.message(), await tl1.message()
    assert first.endswith(">")
    assert second.endswith(";")
    assert first.count("OPEN") == 32
    assert second.count("OPEN") == 8
    assert "M  7 COMPLD" in second


# What becomes of a write, and what the client sees, by kind of reply fault.
REPLIES = {
    ReplyKind.REQUEST_LOST: (False, "silence"),
    ReplyKind.REPLY_LOST: (True, "silence"),
    ReplyKind.RESET_BEFORE: (False, "reset"),
    ReplyKind.RESET_AFTER: (True, "reset"),
    ReplyKind.LATE: (True, "silence"),
    ReplyKind.SLOW: (True, "done"),
    ReplyKind.TRUNCATED: (True, "cut"),
    ReplyKind.GARBAGE: (True, "nonsense"),
    ReplyKind.WRONG: (True, "refused"),
    ReplyKind.UNAVAILABLE: (False, "busy"),
}


def test_every_reply_fault_is_known_here() -> None:
    assert set(REPLIES) == set(ReplyKind)


async def seen_over_restconf(restconf: Restconf) -> str:
    try:
        async with asyncio.timeout(SILENCE_S * 2):
            status = await restconf.patch((4, 12))
    except TimeoutError:
        return "silence"
    except httpx.RemoteProtocolError as error:
        return "nonsense" if "illegal" in str(error).lower() else "cut"
    except (httpx.ReadError, httpx.WriteError):
        return "reset"
    return {204: "done", 500: "refused", 503: "busy"}[status]


@pytest.mark.parametrize("kind", list(ReplyKind))
@asynchronous
async def test_a_reply_fault_over_restconf_befalls_one_write(kind: ReplyKind) -> None:
    applied, seen = REPLIES[kind]
    async with switch() as (emulator, restconf, _):
        emulator.next_reply(kind, door="restconf", delay_ms=20.0)
        assert (await restconf.ask("GET", TABLE)).status_code == 204  # a read is not a write
        assert await seen_over_restconf(restconf) == seen
        await emulator.device.wait(1.0)
        if applied:
            await until(lambda: emulator.table == {4: 12})
        assert emulator.table == ({4: 12} if applied else {})
        assert emulator.script.due == ()
        assert await restconf.patch((4, 12)) == 204


async def seen_over_tl1(tl1: Tl1) -> str:
    await tl1.send("ENT-PATCH::4,12:7:;")
    try:
        answer = await tl1.message(SILENCE_S * 2)
    except TimeoutError:
        return "silence"
    except EOFError:
        return "cut"
    except ConnectionError:
        return "reset"
    if "SARB" in answer:
        return "busy"
    if "M  7 DENY" in answer:
        return "refused"
    return "done" if "M  7 COMPLD" in answer else "nonsense"


@pytest.mark.parametrize("kind", list(ReplyKind))
@asynchronous
async def test_a_reply_fault_over_tl1_befalls_one_write(kind: ReplyKind) -> None:
    applied, seen = REPLIES[kind]
    async with switch() as (emulator, _, tl1):
        emulator.next_reply(kind, door="tl1", delay_ms=20.0)
        assert await tl1.lines("RTRV-PATCH:::1:;") == []
        assert await seen_over_tl1(tl1) == seen
        if applied:
            await until(lambda: emulator.table == {4: 12})
        assert emulator.table == ({4: 12} if applied else {})
        assert emulator.script.due == ()


@asynchronous
async def test_nothing_is_done_of_what_was_sent_behind_a_command_that_ended_the_connection() -> None:
    async with switch() as (emulator, _, tl1):
        emulator.next_reply("reset-after", door="tl1")
        await tl1.send("ENT-PATCH::4,12:1:;ENT-PATCH::5,13:2:;")
        await until(lambda: not list(emulator.sessions))
        assert emulator.table == {4: 12}


@asynchronous
async def test_a_wrong_answer_to_a_read_is_of_something_else() -> None:
    async with switch(initial=((1, 9),)) as (emulator, restconf, tl1):
        emulator.next_reply("wrong", on="read", times=2)
        answer = await restconf.ask("GET", TABLE)
        assert answer.json() == {"optical-switch:product-information": {"model-name": 7}}
        assert "M  79 COMPLD" in await tl1.ask("RTRV-PATCH:::7:;")
        assert await tl1.lines("RTRV-PATCH:::7:;") == ["1,9"]


@asynchronous
async def test_reply_faults_come_in_their_order_and_keep_to_their_door() -> None:
    async with switch() as (emulator, restconf, tl1):
        emulator.next_reply("unavailable", door="restconf", times=2)
        emulator.next_reply("wrong", door="restconf")
        assert await tl1.lines("ENT-PATCH::4,12:7:;") == []
        assert [await restconf.patch((5, 13)) for _ in range(4)] == [503, 503, 500, 204]
