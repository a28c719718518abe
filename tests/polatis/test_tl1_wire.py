"""What the client says and understands over TL1: literals asserted against or sent to real devices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from opus_sdn.drivers.base import (
    AmbiguousError,
    DriverError,
    Persistence,
    Refusal,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.polatis.tl1 import Tl1Transport
from opus_sdn.drivers.polatis.tl1_parser import Answer, Tl1Parser
from opus_sdn.drivers.polatis.tl1_session import refusal
from opus_sdn.drivers.polatis.wire import Identity, PortBusyError, WirePort, WireTable
from tests.emulator.test_wire_examples import NOT_AN_ADMIN, QA_DENIALS
from tests.polatis.scripted_tl1 import PASSWORD, Connection, ScriptedTl1, answer, tl1_to, unasked

Ask = Callable[[Tl1Transport], Awaitable[Any]]
EMPTY = WireTable(())


def run(device: ScriptedTl1, ask: Ask, **more: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(30), tl1_to(device, **more) as transport:
            return await ask(transport)

    return asyncio.run(main())


# What is sent, with N for the tag: commands of published clients and suites that real devices took.
COMMANDS: dict[str, tuple[Ask, list[str]]] = {
    "one circuit": (lambda t: t.merge([(1, 49)], EMPTY), ["ENT-PATCH::1,49:N:;"]),
    "several circuits": (
        lambda t: t.merge([(1, 49), (7, 55), (15, 63)], EMPTY),
        ["ENT-PATCH::1&7&15,49&55&63:N:;"],
    ),
    "a removal by one port": (lambda t: t.delete([1], EMPTY), ["DLT-PATCH::1:N:;"]),
    "several removals": (lambda t: t.delete([1, 7, 15], EMPTY), ["DLT-PATCH::1&7&15:N:;"]),
    "a range of removals": (lambda t: t.delete([1, 2, 3, 4, 5, 6, 7], EMPTY), ["DLT-PATCH::1&&7:N:;"]),
    "shutters closed": (lambda t: t.shutter([1], closed=True), ["OPR-PORT-SHUTTER::1:N:;"]),
    "shutters opened": (lambda t: t.shutter([1], closed=False), ["RLS-PORT-SHUTTER::1:N:;"]),
    "labels": (
        lambda t: t.label({1: "src1", 2: "src2", 9: ""}),
        ["ED-PORT-LABEL::1&2:N:::LABEL=src1&src2;", "DLT-PORT-LABEL::9:N:;"],
    ),
    "an overwrite": (
        lambda t: t.replace([(1, 49), (2, 51)], WireTable(((1, 49), (2, 50), (3, 51)))),
        ["DLT-PATCH::2&3:N:;", "ENT-PATCH::2,51:N:;"],
    ),
    "an overwrite with nothing": (
        lambda t: t.replace([], WireTable(((1, 49), (2, 50)))),
        ["DLT-PATCH::1&2:N:;"],
    ),
    "nothing to make": (lambda t: t.merge([], EMPTY), []),
    "nothing to remove": (lambda t: t.delete([], EMPTY), []),
    "no shutters": (lambda t: t.shutter([], closed=True), []),
    "no labels": (lambda t: t.label({}), []),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_written_as_the_device_knows_it(name: str) -> None:
    ask, wanted = COMMANDS[name]
    device = ScriptedTl1()
    run(device, ask)
    assert device.without_login() == wanted


def test_every_command_has_a_tag_of_its_own_and_the_login_comes_first() -> None:
    device = ScriptedTl1(RTRV_PATCH=("1,49",))

    async def ask(t: Tl1Transport) -> None:
        for _ in range(3):
            assert await t.table() == WireTable(((1, 49),))

    run(device, ask)
    assert device.heard == [
        f"ACT-USER::opus:1::{PASSWORD};",
        "RTRV-PATCH:::2:;",
        "RTRV-PATCH:::3:;",
        "RTRV-PATCH:::4:;",
    ]
    assert device.connections == 1


def test_an_identity_is_put_together_from_three_answers() -> None:
    device = ScriptedTl1(
        RTRV_EQPT=("SYSTEM:SIZE=48x48",),
        RTRV_NETYPE=("Polatis,N-OST-48x48-HA1-DMHEV-050,OCS,6.5.1.7",),
        RTRV_INV=("OCS:MODEL=x,SN=1532001,REV=1",),
    )
    assert run(device, lambda t: t.identify()) == Identity(
        "N-OST-48x48-HA1-DMHEV-050", "48x48", "6.5.1.7", "1532001"
    )
    assert device.without_login() == [
        "RTRV-EQPT::SYSTEM:N:::PARAMETER=SIZE;",
        "RTRV-NETYPE:::N:;",
        "RTRV-INV::OCS:N:;",
    ]


def test_a_firmware_that_tells_its_size_only_is_known_by_it() -> None:
    device = ScriptedTl1(RTRV_EQPT=("SYSTEM:SIZE=32xCC",))
    assert run(device, lambda t: t.identify()) == Identity("32xCC", "32xCC", "", "")


@pytest.mark.parametrize(
    ("lines", "persistence"),
    [
        (("BOOT:MODE=RESTORE",), Persistence.PRESERVED),
        (("BOOT:MODE=DARK",), Persistence.VOLATILE),
        (("BOOT:MODE=GREEN",), Persistence.UNKNOWN),
    ],
)
def test_the_boot_mode_says_what_survives(lines: tuple[str, ...], persistence: Persistence) -> None:
    device = ScriptedTl1(RTRV_EQPT=lines)
    assert run(device, lambda t: t.persistence()) is persistence
    assert device.without_login() == ["RTRV-EQPT::BOOT:N:::PARAMETER=MODE;"]


def test_tables_ports_and_power_are_read() -> None:
    device = ScriptedTl1(
        RTRV_PATCH=("1,49", "50,7"),
        RTRV_PORT_SHUTTER=("1:OPEN", "2:CLOSED"),
        RTRV_PORT_LABEL=("1:a;b", "2:"),
        RTRV_PORT_POWER=("49:-12.34", "50:-60.00"),
    )

    async def ask(t: Tl1Transport) -> None:
        assert await t.table() == WireTable(((1, 49), (7, 50)))
        assert await t.ports(96, labels=True) == {1: WirePort(True, label="a;b"), 2: WirePort(False)}
        assert await t.power([49, 50]) == {49: -12.34, 50: -60.0}

    run(device, ask)
    assert device.without_login() == [
        "RTRV-PATCH:::N:;",
        "RTRV-PORT-SHUTTER::1&&96:N:;",
        "RTRV-PORT-LABEL::1&&96:N:;",
        "RTRV-PORT-POWER::49&50:N:;",
    ]


def test_ports_without_a_circuit_have_no_line() -> None:
    assert run(ScriptedTl1(), lambda t: t.table()) == EMPTY


@pytest.mark.parametrize("line", ["1-49", "1,49,50", "a,b", "", "1,49\x00"])
def test_a_table_line_that_makes_no_sense_is_not_passed_over(line: str) -> None:
    with pytest.raises(TransientError, match="not understood"):
        run(ScriptedTl1(RTRV_PATCH=("1,49", line)), lambda t: t.table())


def test_a_table_whose_lines_are_not_in_quotes_is_not_taken_for_an_empty_one() -> None:
    async def table(tag: str, _: Connection) -> bytes:
        return answer(tag, "COMPLD").replace(b";", b"   1,49\r\n   2,50\r\n;")

    with pytest.raises(TransientError, match="RTRV-PATCH not understood: 1,49 outside quotes"):
        run(ScriptedTl1(RTRV_PATCH=table), lambda t: t.table())


def test_a_port_in_two_circuits_makes_no_sense() -> None:
    with pytest.raises(TransientError, match="two circuits"):
        run(ScriptedTl1(RTRV_PATCH=("1,49", "2,49")), lambda t: t.table())


def deny(code: str, *text: str) -> Callable[[str, Connection], Awaitable[bytes]]:
    async def say(tag: str, _: Connection) -> bytes:
        return answer(tag, "DENY", *text, code=code)

    return say


@pytest.mark.parametrize(
    ("code", "text", "kind", "reason"),
    [
        ("IDNV", "Invalid OXC port: 100", TerminalError, Refusal.INVALID),
        ("IIAC", "Empty parameters", TerminalError, Refusal.INVALID),
        ("IPMS", "Too few parameters (0/1) in block 1", TerminalError, Refusal.INVALID),
        ("IICT", "Parse error at offset 17 in command", TerminalError, Refusal.INVALID),
        ("IITA", "Mismatched TID", TerminalError, Refusal.INVALID),
        ("IPNV", "Parameter not valid", TerminalError, Refusal.INVALID),
        ("PICC", "Permission denied", TerminalError, Refusal.UNAUTHORISED),
        ("SRCN", "User not in the admin group", TerminalError, Refusal.UNAUTHORISED),
        ("SRCN", "Port in use", PortBusyError, Refusal.WOULD_DISPLACE),
        ("SRCN", "Locked by the touchscreen", TerminalError, Refusal.LOCKED),
        ("SROF", "Try later", TransientError, None),
        ("SRCN", "", TerminalError, Refusal.REFUSED),
        ("ABCD", "never heard of", TerminalError, Refusal.REFUSED),
        ("", "", TerminalError, Refusal.REFUSED),
    ],
)
def test_a_deny_becomes_the_failure_that_it_means(
    code: str, text: str, kind: type[DriverError], reason: Refusal | None
) -> None:
    lines = (text,) if text else ()
    with pytest.raises(kind) as failure:
        run(ScriptedTl1(ENT_PATCH=deny(code, *lines)), lambda t: t.merge([(1, 49)], EMPTY))
    assert "ENT-PATCH" in failure.value.detail
    if isinstance(failure.value, TerminalError):
        assert failure.value.reason is reason


REFUSED_COMMANDS = [row for row in (*QA_DENIALS, *NOT_AN_ADMIN) if row[1] and row[2] is not ...]


@pytest.mark.parametrize(("command", "code", "text"), REFUSED_COMMANDS, ids=[r[0] for r in REFUSED_COMMANDS])
def test_every_denial_that_a_real_switch_gave_is_understood(command: str, code: str, text: str) -> None:
    """The literals with which the emulator answers, read by the client."""
    wanted = {"PICC": Refusal.UNAUTHORISED, "SRCN": Refusal.UNAUTHORISED, "SSTP": Refusal.REFUSED}
    said = answer("123", "DENY", *([text] if text else []), code=code)
    (block,) = Tl1Parser().feed(said)
    assert isinstance(block, Answer)
    failure = refusal(block, command.partition(":")[0])
    assert isinstance(failure, TerminalError)
    assert failure.reason is wanted.get(code, Refusal.INVALID)
    assert code in failure.detail
    assert text in failure.detail


@pytest.mark.parametrize("number", [0, -1, None, True, "1", 1.0])
def test_a_number_that_is_none_never_reaches_the_device(number: Any) -> None:
    """A removal without a port would remove every circuit of the switch."""
    device = ScriptedTl1()
    for ask in (
        lambda t: t.delete([number], EMPTY),
        lambda t: t.merge([(number, 49)], EMPTY),
        lambda t: t.shutter([number], closed=True),
        lambda t: t.power([number]),
        lambda t: t.label({number: "x"}),
    ):
        with pytest.raises(ValueError, match="whole number from 1"):
            run(device, ask)
    assert device.heard == []


@pytest.mark.parametrize("text", ["x" * 21, "@#$", "a b", "a;b", "größe"])
def test_a_label_that_tl1_cannot_carry_is_refused_here(text: str) -> None:
    device = ScriptedTl1()
    with pytest.raises(TerminalError, match="at most 20 letters"):
        run(device, lambda t: t.label({1: "fine", 2: text}))
    assert device.heard == []


# --- power


def test_power_of_a_large_switch_is_asked_in_portions_of_256() -> None:
    device = ScriptedTl1(RTRV_PORT_POWER=("513:-1.00",))
    run(device, lambda t: t.power(list(range(513, 1025))))
    assert device.without_login() == ["RTRV-PORT-POWER::513&&768:N:;", "RTRV-PORT-POWER::769&&1024:N:;"]


def test_a_device_without_monitors_has_no_power_instead_of_zero() -> None:
    assert run(ScriptedTl1(RTRV_PORT_POWER=deny("IIAC")), lambda t: t.power([49])) is None
    assert run(ScriptedTl1(), lambda t: t.power([49])) is None


def test_any_other_refusal_of_power_is_a_failure_and_not_hidden() -> None:
    with pytest.raises(TerminalError, match="Permission denied"):
        run(ScriptedTl1(RTRV_PORT_POWER=deny("PICC", "Permission denied")), lambda t: t.power([49]))
    with pytest.raises(TransientError, match="not understood"):
        run(ScriptedTl1(RTRV_PORT_POWER=("49:dark",)), lambda t: t.power([49]))


# --- sessions


def test_a_session_that_was_logged_out_is_logged_in_again_and_the_command_sent_once_more() -> None:
    device = ScriptedTl1()
    idle = True

    async def table(tag: str, _: Connection) -> bytes:
        nonlocal idle
        if idle:
            idle = False
            return answer(tag, "DENY", "Not logged in", code="PICC")
        return answer(tag, "COMPLD", "1,49")

    device.answers["RTRV-PATCH"] = table
    assert run(device, lambda t: t.table()) == WireTable(((1, 49),))
    assert [command.partition(":")[0] for command in device.heard] == [
        "ACT-USER",
        "RTRV-PATCH",
        "ACT-USER",
        "RTRV-PATCH",
    ]


def test_a_bare_line_that_says_not_logged_in_is_as_good_as_a_refusal() -> None:
    device = ScriptedTl1()
    idle = True

    async def table(tag: str, _: Connection) -> bytes:
        nonlocal idle
        was, idle = idle, False
        return b"\r\nNot logged in\r\n;" if was else answer(tag, "COMPLD", "1,49")

    device.answers["RTRV-PATCH"] = table
    assert run(device, lambda t: t.table()) == WireTable(((1, 49),))
    assert device.connections == 2


def test_a_session_that_is_logged_in_already_is_as_good() -> None:
    device = ScriptedTl1(ACT_USER=deny("SARB", "Already logged in"), RTRV_PATCH=("1,49",))
    assert run(device, lambda t: t.table()) == WireTable(((1, 49),))


def test_a_wrong_password_is_terminal_and_never_repeated_in_the_message() -> None:
    with pytest.raises(TerminalError, match="login refused") as failure:
        run(ScriptedTl1(ACT_USER=deny("PICC", f"no such password {PASSWORD}"[:14])), lambda t: t.table())
    assert failure.value.reason is Refusal.UNAUTHORISED
    assert PASSWORD not in failure.value.detail


def test_a_device_with_all_its_sessions_taken_is_tried_again_later() -> None:
    with pytest.raises(TransientError, match="no session"):
        run(ScriptedTl1(ACT_USER=deny("SRCN", "Too many sessions")), lambda t: t.table())


def test_a_password_that_would_end_the_command_is_quoted_or_refused() -> None:
    device = ScriptedTl1()
    run(device, lambda t: t.table(), password="a:b,c")
    assert device.heard[0] == 'ACT-USER::opus:1::"a:b,c";'
    with pytest.raises(TerminalError, match="quotes"):
        run(ScriptedTl1(), lambda t: t.table(), password='a"b')


@pytest.mark.parametrize(("writing", "kind"), [(True, AmbiguousError), (False, TransientError)])
def test_no_answer_is_ambiguous_for_a_write_and_the_session_is_left(
    writing: bool, kind: type[DriverError]
) -> None:
    async def nothing(_: str, __: Connection) -> None:
        return None

    device = ScriptedTl1(ENT_PATCH=nothing, RTRV_PATCH=nothing)

    async def ask(t: Tl1Transport) -> None:
        with pytest.raises(kind, match="no answer"):
            await (t.merge([(1, 49)], EMPTY) if writing else t.table())
        device.answers["RTRV-PATCH"] = ("1,49",)
        assert await t.table() == WireTable(((1, 49),))

    run(device, ask, timeout_s=0.2)
    assert device.connections == 2


def test_a_late_answer_is_never_taken_for_the_next_one() -> None:
    async def both(tag: str, _: Connection) -> bytes:
        late = answer(str(int(tag) - 1), "COMPLD", "9,99")
        return late + answer(tag, "COMPLD", "1,49")

    assert run(ScriptedTl1(RTRV_PATCH=both), lambda t: t.table()) == WireTable(((1, 49),))


def test_a_password_that_the_device_repeats_is_not_passed_on() -> None:
    echo = f"ACT-USER::opus:1::{PASSWORD}"

    async def refused(tag: str, _: Connection) -> bytes:
        return answer(tag, "DENY", f"cannot do {echo}", code="PICC")

    async def told(tag: str, _: Connection) -> bytes:
        return unasked(f"activity: {echo}") + answer(tag, "COMPLD", echo)

    heard: list[str] = []
    for device in (ScriptedTl1(ACT_USER=refused), ScriptedTl1(RTRV_PATCH=told)):
        with pytest.raises(DriverError, match=r"ACT-USER::opus:1::\.\.\.") as failure:
            run(device, lambda t: t.table(), told=heard)
        assert PASSWORD not in failure.value.detail
    assert heard == ["activity: ACT-USER::opus:1::..."]


def test_a_session_that_breaks_while_an_answer_is_awaited_says_so() -> None:
    async def hang_up(_: str, connection: Connection) -> None:
        connection.writer.transport.abort()

    with pytest.raises(AmbiguousError, match="ENT-PATCH"):
        run(ScriptedTl1(ENT_PATCH=hang_up), lambda t: t.merge([(1, 49)], EMPTY))


def test_nobody_at_the_door_is_transient() -> None:
    async def main() -> None:
        async with tl1_to(ScriptedTl1()) as transport:
            pass
        with pytest.raises(TransientError, match="cannot connect"):
            await transport.merge([(1, 49)], EMPTY)

    asyncio.run(main())


def test_logging_out_is_said_to_the_device() -> None:
    device = ScriptedTl1()

    async def ask(t: Tl1Transport) -> None:
        await t.table()
        await t.close()

    run(device, ask)
    assert device.without_login()[-1] == "CANC-USER::opus:N:;"


# --- messages that nobody asked for


def test_messages_in_between_and_in_the_middle_go_to_the_event_stream() -> None:
    told: list[str] = []

    async def table(tag: str, connection: Connection) -> None:
        whole = answer(tag, "COMPLD", "1,49", "2,50")
        cut = whole.index(b'   "2,50"')
        pieces = unasked("Port 1 disabled") + whole[:cut] + unasked("Port 2 disabled") + whole[cut:]
        for byte in pieces:
            connection.writer.write(bytes([byte]))
            await connection.writer.drain()

    device = ScriptedTl1(RTRV_PATCH=table)
    assert run(device, lambda t: t.table(), told=told) == WireTable(((1, 49), (2, 50)))
    assert told == ["Port 1 disabled", "Port 2 disabled"]


def test_acknowledgements_prompts_and_continued_answers_are_put_up_with() -> None:
    async def table(tag: str, _: Connection) -> bytes:
        first = answer(tag, "COMPLD", "1,49")[:-1] + b">"
        return f"IP {tag}\r\n<".encode() + first + answer(tag, "COMPLD", "2,50") + b"> "

    assert run(ScriptedTl1(RTRV_PATCH=table), lambda t: t.table()) == WireTable(((1, 49), (2, 50)))
