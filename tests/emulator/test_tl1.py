"""TL1 sessions: logins, idle times, users, and messages in one stream, however it is cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.drivers.polatis_emulator.tl1 import COMMANDS
from opus_sdn.drivers.polatis_emulator.tl1_text import (
    COMMAND_MAX_BYTES,
    CommandReader,
    DenialError,
    parse_command,
    parse_ports,
)
from tests.emulator.clients import Tl1, asynchronous, open_tl1, switch

FUZZ_ROUNDS = 10_000


@asynchronous
async def test_each_class_of_users_has_its_own_idle_time() -> None:
    async with switch() as (emulator, _, tl1):
        ops = await open_tl1(emulator, "ops", "ops-word")
        await tl1.lines("ED-EQPT::TIMEOUT:1:::USER=1;")
        later = emulator.device.clock() + 61.0
        emulator.device.clock = lambda: later
        assert await ops.denied("RTRV-PATCH:::1:;") == ("", "Not logged in")
        assert await tl1.lines("RTRV-PATCH:::1:;") == []
        assert await ops.lines("ACT-USER::ops:2::ops-word;") == []
        await ops.close()


@asynchronous
async def test_whoever_logs_out_is_out_and_the_connection_stays() -> None:
    async with switch() as (_, _restconf, tl1):
        await tl1.lines("CANC-USER::admin:2:;")
        assert await tl1.denied("RTRV-HDR:::3:;") == ("", "Not logged in")
        await tl1.lines("ACT-USER::admin:4::root;")
        assert await tl1.lines("RTRV-USER:::5:;") == ["admin:TL1"]


@asynchronous
async def test_users_are_made_changed_and_removed_for_both_doors() -> None:
    async with switch() as (emulator, restconf, tl1):
        await tl1.lines("ENT-USER-SECU::new:1::first-word,,USER;")
        assert await tl1.lines("RTRV-USER-SECU::new:2:;") == ["new:,USER"]
        await tl1.lines("ED-SECU-PID::new:3::first-word,second-word;")
        new = await open_tl1(emulator, "new", "second-word")
        assert await new.denied("ED-SECU-PID::new:4::wrong,third;") == ("PICC", "")
        users = (await restconf.ask("GET", "/api/data/system-config/user")).json()["optical-switch:user"]
        assert {"name": "new", "polatis-switch:group": "user"} in users
        await tl1.lines("DLT-USER-SECU::new:5:;")
        assert (await tl1.denied("RTRV-USER-SECU::new:6:;"))[1] == "User does not exist"
        assert "word" not in "".join(entry.request for entry in emulator.requests)
        await new.close()


@asynchronous
async def test_a_user_of_the_group_view_reads_and_writes_nothing() -> None:
    async with switch(initial=((1, 9),)) as (emulator, _, _tl1):
        eye = await open_tl1(emulator, "eye", "eye-word")
        assert await eye.lines("RTRV-PATCH:::1:;") == ["1,9"]
        writes = [
            "ENT-PATCH::2,10:1:;",
            "DLT-PATCH::1:1:;",
            "DLT-PATCH::ALL:1:;",
            "OPR-PORT-SHUTTER::1:1:;",
            "ED-PORT-LABEL::1:1:::LABEL=x;",
            "SET-PORT-ATTEN::9:1:::MODE=NONE;",
            "ED-EQPT::BOOT:1:::MODE=DARK;",
            "INIT-SYS::SYSTEM:1::1;",
            "INIT-SYS::SYSTEM:1::10;",
            "SET-SID:::1::X;",
            "ED-DAT:::1::26-01-01;",
        ]
        for command in writes:
            assert (await eye.denied(command))[0] == "PICC", command
        assert emulator.table == {1: 9}
        await eye.close()


@asynchronous
async def test_everybody_who_is_logged_in_and_listens_hears_of_a_shut_port() -> None:
    async with switch() as (emulator, _, tl1):
        muted, stranger = await open_tl1(emulator), await open_tl1(emulator, user="")
        await muted.lines("OPR-ARC-EQPT::REPMGR:1::IND;")
        await tl1.lines("OPR-PORT-SHUTTER::1&2:2:;")
        assert ["Port 1 disabled" in await tl1.message(), "Port 2 disabled" in await tl1.message()] == [
            True,
            True,
        ]
        for silent in (muted, stranger):
            with pytest.raises(TimeoutError):
                await silent.message(0.05)
            await silent.close()


@asynchronous
async def test_an_alarm_is_reported_with_its_severity() -> None:
    async with switch(initial=((1, 9),)) as (emulator, restconf, tl1):
        path = "/api/data/optical-switch:opm-alarm-config/port=9"
        armed = {"port": {"alarm-mode": "POWER_ALARM_ENABLED", "low-power-threshold": "-20.00"}}
        assert (await restconf.ask("PATCH", path, armed)).status_code == 204
        fast = {"port": {"averaging-time-select": 1}}
        await restconf.ask("PATCH", "/api/data/optical-switch:opm-config/port=9", fast)
        await emulator.set_faults(failed_ports=(1,))
        report = await tl1.message()
        assert re.search(
            r'^\*C \d+ REPT ALM EQPT\r\n   "Loss of light on port 9"\r\n;$', report, re.MULTILINE
        )
        assert await tl1.lines("RTRV-ALM-ALL::ALL:1:;") == ["9,EQPT:CR,LOS,SA"]
        alarms = await restconf.ask("GET", "/api/data/polatis-switch:system-alarms/alarm")
        assert alarms.json()["polatis-switch:alarm"][0]["alarm-type"] == "NOTIF_PORT_POWER"
        await tl1.lines("INIT-SYS::ALARM:2::1;")
        assert await tl1.lines("RTRV-ALM-ALL::ALL:3:;") == []


@asynchronous
async def test_a_deleted_pair_is_named_by_one_port_never_by_two() -> None:
    async with switch(initial=((1, 9),)) as (emulator, _, tl1):
        assert (await tl1.denied("DLT-PATCH::1,9:5:;"))[0] == "IDNV"
        assert emulator.table == {1: 9}


@asynchronous
async def test_an_answer_of_1024_ports_comes_whole() -> None:
    async with switch("512x512") as (_, _restconf, tl1):
        lines = await tl1.lines("RTRV-PORT-SHUTTER::ALL:1:;")
        assert lines == [f"{port}:OPEN" for port in range(1, 1025)]


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("1", [1]),
        ("1&2&5", [1, 2, 5]),
        ("1&&4", [1, 2, 3, 4]),
        ("1&3&&5&9", [1, 3, 4, 5, 9]),
        (" 1 & 2 ", [1, 2]),
        ("007", [7]),
    ],
)
def test_a_list_of_ports(text: str, ports: list[int]) -> None:
    assert parse_ports(text, range(1, 17)) == ports


@pytest.mark.parametrize("text", ["", "0", "17", "1&", "&1", "1&&", "1&&&2", "4&&1", "1.5", "\u0661", "1e1"])
def test_what_is_no_list_of_ports(text: str) -> None:
    with pytest.raises(DenialError) as denied:
        parse_ports(text, range(1, 17))
    assert denied.value.code == "IDNV"


@given(
    st.lists(
        st.one_of(
            st.text(st.characters(codec="latin-1", exclude_characters=';"'), max_size=20),
            st.text(st.characters(codec="latin-1", exclude_characters='"'), max_size=20).map(
                lambda t: f'a"{t}"b'
            ),
        ),
        max_size=6,
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
def test_commands_are_the_same_however_the_stream_is_cut(commands: list[str], cuts: list[int]) -> None:
    stream = "".join(f"{command};" for command in commands).encode("latin-1")
    reader, found, begin, turn = CommandReader(), [], 0, 0
    while begin < len(stream):
        size = cuts[turn % len(cuts)]
        found += reader.feed(stream[begin : begin + size])
        begin, turn = begin + size, turn + 1
    assert found == [command.strip() for command in commands]


def test_a_semicolon_between_quotes_ends_no_command() -> None:
    assert CommandReader().feed(b'ED-PORT-LABEL::1:1:::LABEL="a;b";RTRV-HDR:::2:;') == [
        'ED-PORT-LABEL::1:1:::LABEL="a;b"',
        "RTRV-HDR:::2:",
    ]


def test_a_command_that_never_ends_is_given_up_and_the_next_one_understood() -> None:
    reader = CommandReader()
    assert reader.feed(b'ENT-PATCH::"' + b"x" * (2 * COMMAND_MAX_BYTES) + b";") == [None]
    assert reader.feed(b"RTRV-HDR:::1:;") == ["RTRV-HDR:::1:"]


WHOLE = [
    "ENT-PATCH::1&7&15,49&55&63:4:;",
    "DLT-PATCH::1&&7:5:;",
    "RTRV-PATCH::ALL:6:;",
    "ED-PORT-LABEL::1&2:18:::LABEL=src1&src2;",
    "ED-EQPT::TIMEOUT:25:::ADMIN=60;",
    'RTRV-HDR:"Lab-1"::1:;',
    "INIT-SYS::ALARM:24::1;",
    "SET-PORT-ATTEN::49:19:::MODE=ABSOLUTE,LEVEL=-5;",
    "ENT-USER-SECU::a:1::b,,USER;",
    "SET-SID:::27::NAME;",
    "ED-DAT:::123::16-13-16;",
    "CANC-USER::admin:1:;",
    "ED-SECU-PID::admin:1::root,root;",
    "OPR-ARC-EQPT::REPMGR:20::IND;",
]
PIECES = [
    *COMMANDS,
    *';:&,="-@# \r\n',
    "&&",
    "::",
    "1",
    "99999999999",
    "ALL",
    "LABEL=",
    "\x00",
    "\xff",
    "\u00b2",
]


def garbage(rng: random.Random) -> bytes:
    """A command cut, with bytes changed, made of pieces, or of chance alone."""
    match rng.randrange(4):
        case 0:
            whole = rng.choice(WHOLE)
            return whole[: rng.randrange(len(whole) + 1)].encode()
        case 1:
            spoiled = bytearray(rng.choice(WHOLE).encode())
            for _ in range(rng.randrange(1, 6)):
                spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
            return bytes(spoiled)
        case 2:
            return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 24))).encode("latin-1")
    return rng.randbytes(rng.randrange(1, 64))


def test_no_command_however_broken_is_answered_with_anything_but_a_denial() -> None:
    rng = random.Random(20_250)
    for _ in range(FUZZ_ROUNDS):
        for text in CommandReader().feed(garbage(rng) + b";"):
            with contextlib.suppress(DenialError):
                command = parse_command(text or "")
                assert command.ctag
                command.values(2)
                assert all(port in range(1, 97) for port in parse_ports(command.aid, range(1, 97)))


@asynchronous
async def test_a_session_outlives_any_garbage_and_the_switch_with_it() -> None:
    async with switch("48x48", initial=((9, 57),)) as (emulator, _, tl1):
        # Restarts are what they are asked for; all else must leave the session able to answer.
        rng = random.Random(4_100)
        for turn in range(FUZZ_ROUNDS // 10):
            burst = b";".join(garbage(rng) for _ in range(10)).replace(b"SYSTEM", b"system1")
            if turn % 4:  # else a quote that is opened here swallows what comes until the next one
                burst = burst.replace(b'"', b"") + b";" + rng.choice(WHOLE).encode()
            begin = 0
            while begin < len(burst):
                size = rng.randrange(1, 40)
                tl1.writer.write(burst[begin : begin + size])
                begin += size
            if turn % 20 == 19:
                emulator.device.users.change("admin", "root")
                await settle(tl1, f"ping{turn}")
        held = [port for pair in emulator.table.items() for port in pair]
        assert len(set(held)) == len(held)
        assert all(a in range(1, 49) and b in range(49, 97) for a, b in emulator.table.items())
        # Not all of it bounced off: commands were understood, and carried out.
        assert sum(entry.answer == "COMPLD" for entry in emulator.requests) > 200
        assert len(emulator.device.activities) > 10


async def settle(tl1: Tl1, ctag: str) -> None:
    """Wait until all that was sent has been answered; whatever quote is open is closed on the way."""
    # One of the two closes an open quote, whichever is open; the other opens and closes an empty command.
    tl1.writer.write(f';";RTRV-HDR:::{ctag}a:;";RTRV-HDR:::{ctag}b:;ACT-USER::admin:1::root;'.encode())
    await tl1.writer.drain()
    seen = b""
    async with asyncio.timeout(60):
        while not re.search(rb"M  %b[ab] " % ctag.encode(), seen):
            data = await tl1.reader.read(65_536)
            assert data, "the session has ended"
            seen = seen[-200:] + data
