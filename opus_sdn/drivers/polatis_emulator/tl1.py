"""The TL1 door: sessions and their commands, autonomous messages, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from opus_sdn.drivers.polatis_emulator import tl1_circuits as circuits
from opus_sdn.drivers.polatis_emulator import tl1_system as system
from opus_sdn.drivers.polatis_emulator.alarms import Alarm
from opus_sdn.drivers.polatis_emulator.device import Device
from opus_sdn.drivers.polatis_emulator.faults import Door, ReplyFault, ReplyKind, ReplyScript
from opus_sdn.drivers.polatis_emulator.listener import Connection
from opus_sdn.drivers.polatis_emulator.refusals import RefusalError, Why
from opus_sdn.drivers.polatis_emulator.restconf import Asked
from opus_sdn.drivers.polatis_emulator.sessions import Sessions
from opus_sdn.drivers.polatis_emulator.tl1_session import Shared, Tl1Session
from opus_sdn.drivers.polatis_emulator.tl1_text import (
    Command,
    CommandReader,
    DenialError,
    ParseError,
    autonomous,
    completed,
    denied,
    header,
    parse_command,
)

READ_BYTES = 65_536
GARBAGE = "\x00\x1b[?1;2c ERR ~~;;> \r\n"
INSERTED = ("Fan 1 speed nominal",)

Handler = Callable[[Tl1Session, Command], Awaitable[list[str]]]

COMMANDS: Mapping[str, Handler] = MappingProxyType(
    {
        "ACT-USER": system.login,
        "CANC-USER": system.logout,
        "ENT-PATCH": circuits.enter_patch,
        "DLT-PATCH": circuits.delete_patch,
        "RTRV-PATCH": circuits.retrieve_patch,
        "RTRV-PORT-SHUTTER": circuits.retrieve_shutter,
        "OPR-PORT-SHUTTER": circuits.close_shutter,
        "RLS-PORT-SHUTTER": circuits.open_shutter,
        "RTRV-PORT-POWER": circuits.retrieve_power,
        "RTRV-PORT-PMON": circuits.retrieve_monitor,
        "RTRV-PORT-LABEL": circuits.retrieve_label,
        "ED-PORT-LABEL": circuits.edit_label,
        "DLT-PORT-LABEL": circuits.delete_label,
        "SET-PORT-ATTEN": circuits.set_attenuation,
        "RTRV-PORT-ATTEN": circuits.retrieve_attenuation,
        "RTRV-HDR": system.retrieve_header,
        "RTRV-NETYPE": system.retrieve_type,
        "RTRV-INV": system.retrieve_inventory,
        "RTRV-EQPT": system.retrieve_equipment,
        "ED-EQPT": system.edit_equipment,
        "INIT-SYS": system.initialise,
        "RTRV-ALM-ALL": system.retrieve_alarms,
        "RTRV-ALM-EQPT": system.retrieve_alarms,
        "RTRV-ALM-ENV": system.retrieve_alarms,
        "OPR-ARC-EQPT": system.mute,
        "RLS-ARC-EQPT": system.unmute,
        "RTRV-ARC-EQPT": system.retrieve_mute,
        "SET-SID": system.set_sid,
        "ED-DAT": system.edit_date,
        "RTRV-TOD": system.retrieve_time,
        "RTRV-IP": system.retrieve_network,
        "RTRV-IPPORT": system.retrieve_network,
        "RTRV-MAC": system.retrieve_network,
        "ENT-USER-SECU": system.enter_user,
        "DLT-USER-SECU": system.delete_user,
        "RTRV-USER-SECU": system.retrieve_user_security,
        "ED-SECU-PID": system.edit_password,
        "RTRV-USER": system.retrieve_users,
    }
)
BEFORE_LOGIN = frozenset({"ACT-USER"})
OF_THE_SESSION = frozenset({"ACT-USER", "CANC-USER", "OPR-ARC-EQPT", "RLS-ARC-EQPT", "RTRV-ARC-EQPT"})
WRITES = ("ENT-", "DLT-", "OPR-", "RLS-", "ED-", "SET-", "INIT-")


class Tl1Door:
    """Answers TL1. `log` keeps what was asked, by verb and ports."""

    def __init__(
        self,
        device: Device,
        sessions: Sessions,
        script: ReplyScript,
        *,
        restart: Callable[[float], None],
        log: deque[Asked],
    ) -> None:
        self._device = device
        self._sessions = sessions
        self._script = script
        self._shared = Shared(device, sessions, restart)
        self._log = log
        self._open: dict[Connection, Tl1Session] = {}
        self._atags = itertools.count(1)
        device.announce = self._announce
        device.alarms.listen = self._alarm

    async def serve(self, connection: Connection) -> None:
        """One session, until it ends. Beyond the limit of sessions it ends at once."""
        limit = self._device.faults.session_limit
        limit = self._device.spec.sessions_max if limit is None else limit
        if self._sessions.count(Door.TL1) >= limit:
            return
        record = self._sessions.open(Door.TL1, 3082, connection.peer, connection.reset)
        session = Tl1Session(self._shared, record)
        self._open[connection] = session
        reader = CommandReader()
        try:
            while data := await connection.reader.read(READ_BYTES):
                if Door.TL1 in self._device.faults.disabled:
                    continue
                for command in reader.feed(data):
                    if connection.gone:
                        return
                    await self._answer(connection, session, command)
        finally:
            del self._open[connection]
            self._sessions.close(record)

    async def _answer(self, connection: Connection, session: Tl1Session, text: str | None) -> None:
        """One command, with whatever is to befall it."""
        try:
            command = parse_command(text) if text is not None else None
        except ParseError as wrong:
            await self._say(connection, [denied(self._head(), wrong.ctag, wrong)])
            return
        if command is None:
            await self._say(connection, [denied(self._head(), "0", DenialError("IICM", "Command too long"))])
            return
        fault = self._script.meet(Door.TL1, _kind(command.verb))
        if fault is None:
            await self._say(connection, await self._process(session, command))
        else:
            await self._spoil(fault, connection, session, command)

    async def _spoil(
        self, fault: ReplyFault, connection: Connection, session: Tl1Session, command: Command
    ) -> None:
        """The command as it goes with this fault."""
        match fault.kind:
            case ReplyKind.REQUEST_LOST:
                return
            case ReplyKind.RESET_BEFORE:
                connection.reset()
                return
            case ReplyKind.UNAVAILABLE:
                busy = DenialError("SARB", "Resources busy")
                await self._say(connection, [denied(self._head(), command.ctag, busy)])
                return
            case ReplyKind.LATE:
                self._device.spawn(self._later(fault.delay_ms, session, command))
                return
        blocks = await self._process(session, command)
        match fault.kind:
            case ReplyKind.REPLY_LOST:
                return
            case ReplyKind.RESET_AFTER:
                connection.reset()
            case ReplyKind.TRUNCATED:
                whole = "".join(blocks).encode("latin-1", "replace")
                await connection.send(whole[: len(whole) // 2], self._device.faults.segment_bytes)
                await connection.close()
            case ReplyKind.GARBAGE:
                await self._say(connection, [GARBAGE])
            case ReplyKind.WRONG if _kind(command.verb) == "read":
                await self._say(connection, completed(self._head(), f"{command.ctag}9", []))
            case ReplyKind.WRONG:
                failed = DenialError("SSTP", "Internal error")
                await self._say(connection, [denied(self._head(), command.ctag, failed)])
            case _:
                await self._device.wait(fault.delay_ms)
                await self._say(connection, blocks)

    async def _later(self, delay_ms: float, session: Tl1Session, command: Command) -> None:
        await self._device.wait(delay_ms)
        await self._process(session, command)

    async def _process(self, session: Tl1Session, command: Command) -> list[str]:
        """Do what is asked; the answer's blocks."""
        try:
            lines = await self._run(session, command)
        except RefusalError as refusal:
            answer, said = [denied(self._head(), command.ctag, as_denial(refusal))], "DENY"
        except DenialError as denial:
            answer, said = [denied(self._head(), command.ctag, denial)], "DENY"
        else:
            said = "COMPLD"
            answer = completed(self._head(), command.ctag, lines, blocks=self._device.faults.tl1_continue)
        user = session.session.user
        self._log.append(
            Asked(self._device.wall(), Door.TL1, user, f"{command.verb} {command.aid}".rstrip(), said)
        )
        return answer

    async def _run(self, session: Tl1Session, command: Command) -> list[str]:
        if command.tid and command.tid != self._device.sid:
            raise DenialError("IITA", "Mismatched TID")
        handler = COMMANDS.get(command.verb)
        if handler is None:
            raise DenialError("IICM", "Unknown command")
        if command.verb not in BEFORE_LOGIN:
            _ = session.actor  # refuses when nobody is logged in
            if handler not in (circuits.enter_patch, circuits.delete_patch):  # these spend it themselves
                await self._device.spend_control()
        return await handler(session, command)

    async def _say(self, connection: Connection, blocks: Sequence[str]) -> None:
        """Send an answer, with what may come before, between and inside its blocks."""
        faults = self._device.faults
        parts = list(blocks)
        match faults.tl1_autonomous:
            case "before":
                parts.insert(0, self._message())
            case "between":
                parts = [part for block in parts for part in (block, self._message())]
            case "inside":
                parts = [_with_inside(block, self._message()) for block in parts]
        if faults.tl1_acknowledge and (ctag := _ctag_of(blocks)):
            parts.insert(0, f"\r\nIP {ctag}\r\n<")
        await connection.send("".join(parts).encode("latin-1", "replace"), faults.segment_bytes)

    def _head(self) -> str:
        return header(self._device.sid, self._shared.now())

    def _message(self) -> str:
        return autonomous(self._head(), next(self._atags), INSERTED)

    def _announce(self, text: str) -> None:
        self._report(autonomous(self._head(), next(self._atags), [text]))

    def _alarm(self, alarm: Alarm) -> None:
        raised = not alarm.kind.endswith("CLEAR")
        self._report(autonomous(self._head(), next(self._atags), [alarm.message], alarm=raised))

    def _report(self, message: str) -> None:
        """Send an autonomous message to every session that wants them, after what is being answered now."""
        for connection, session in self._open.items():
            if session.logged_in and not session.muted and Door.TL1 not in self._device.faults.disabled:
                self._device.spawn(_send_later(connection, message, self._device.faults.segment_bytes))


async def _send_later(connection: Connection, message: str, segment: int | None) -> None:
    await asyncio.sleep(0)
    await connection.send(message.encode("latin-1", "replace"), segment)


def _kind(verb: str) -> Literal["read", "write", "session"]:
    if verb in OF_THE_SESSION:
        return "session"
    return "write" if verb.startswith(WRITES) else "read"


def _ctag_of(blocks: Sequence[str]) -> str:
    """The ctag of an answer; empty when it is none."""
    first = blocks[0].lstrip().splitlines() if blocks else []
    words = first[1].split() if len(first) > 1 else []
    return words[1] if len(words) > 2 and words[0] == "M" else ""


def _with_inside(block: str, message: str) -> str:
    """The answer with another message after its first lines."""
    lines = block.split("\r\n")
    middle = max(4, len(lines) // 2)
    return "\r\n".join(lines[:middle]) + message + "\r\n" + "\r\n".join(lines[middle:])


def as_denial(refusal: RefusalError) -> DenialError:
    """How TL1 says what the device refused."""
    code = {
        Why.BAD_PORT: "IDNV",
        Why.SAME_SIDE: "IDNV",
        Why.DUPLICATE: "IDNV",
        Why.IN_USE: "SRCN",
        Why.EXISTS: "SRCN",
        Why.FORBIDDEN: "PICC",
        Why.LOCKED: "SRCN",
        Why.MODULE: "SSTP",
        Why.MODIFIED: "SRCN",
    }[refusal.why]
    text = {Why.IN_USE: "Port in use", Why.FORBIDDEN: "Permission denied"}.get(refusal.why, refusal.detail)
    return DenialError(code, text)
