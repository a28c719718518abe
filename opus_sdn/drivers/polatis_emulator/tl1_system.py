"""TL1 commands on the system: equipment, alarms, clock and users."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from opus_sdn.drivers.polatis_emulator.judge import Edit
from opus_sdn.drivers.polatis_emulator.spec import Group, StartupMode
from opus_sdn.drivers.polatis_emulator.tl1_session import Tl1Session
from opus_sdn.drivers.polatis_emulator.tl1_text import Command, DenialError

MINUTES_MAX = 60
# A clock of seconds in 32 bits ends in January of this year.
YEAR_MAX = 2037
BOOT = {"RESTORE": StartupMode.PRESERVE, "DARK": StartupMode.VOLATILE}
ALARM_CODES = ("1", "2", "3")

_SID = re.compile(r'[A-Za-z0-9"][A-Za-z0-9 _."-]{0,19}')

Lines = list[str]


async def login(session: Tl1Session, command: Command) -> Lines:
    """ACT-USER::<name>:<ctag>::<password>."""
    if not command.aid:
        raise DenialError("IIAC", "Too few parameters (0/1)")
    if not command.block(1):
        raise DenialError("IPMS", "Too few parameters (0/1) in block 1")
    session.login(command.aid, command.block(1))
    return []


async def logout(session: Tl1Session, command: Command) -> Lines:
    """CANC-USER::<name>: oneself; an administrator others too, whose sessions end."""
    actor = session.actor
    if command.aid in ("", actor.user):
        session.logout()
        return []
    if actor.group is not Group.ADMIN:
        raise DenialError("PICC", "Permission denied")
    for other in session.shared.sessions:
        if other.user == command.aid:
            other.cut()
    return []


async def retrieve_header(_session: Tl1Session, _command: Command) -> Lines:
    """RTRV-HDR: whether anybody is there."""
    return []


async def retrieve_type(session: Tl1Session, _command: Command) -> Lines:
    """RTRV-NETYPE."""
    spec = session.device.spec
    return [f"Polatis,{spec.model_name},OCS,{spec.firmware}"]


async def retrieve_inventory(session: Tl1Session, command: Command) -> Lines:
    """RTRV-INV::OCS."""
    if command.aid.upper() not in ("", "ALL", "OCS"):
        raise DenialError("IIAC")
    return [f"OCS:MODEL={session.device.spec.model_name},SN={session.device.spec.serial}"]


async def retrieve_equipment(session: Tl1Session, command: Command) -> Lines:
    """RTRV-EQPT::SYSTEM|TIMEOUT|BOOT|PMON: ... :PARAMETER=<name>."""
    aid, device = command.aid.upper(), session.device
    if aid not in ("SYSTEM", "TIMEOUT", "BOOT", "PMON"):
        raise DenialError("IIAC")
    wanted = command.values(2).get("PARAMETER", "").upper()
    match aid, wanted:
        case "SYSTEM", "SIZE":
            return [f"SYSTEM:SIZE={device.spec.size_text}"]
        case "TIMEOUT", ("ADMIN" | "USER"):
            return [f"TIMEOUT:{wanted}={session.shared.timeout_min[wanted]}"]
        case "BOOT", "MODE":
            mode = next(text for text, mode in BOOT.items() if mode is device.flash.startup_mode)
            return [f"BOOT:MODE={mode}"]
        case "PMON", "CONFIG":
            outside = device.layout.egress_ports
            return [
                f"PMON::PORT={port},MODE={'OUTPUT' if port in outside else 'INPUT'}"
                for port in device.layout.ports
                if device.measures(port)
            ]
    raise DenialError("IPNV")


async def edit_equipment(session: Tl1Session, command: Command) -> Lines:
    """ED-EQPT::TIMEOUT: ... :ADMIN=<minutes>, or ED-EQPT::BOOT: ... :MODE=DARK|RESTORE."""
    session.device.permit(session.actor, system=True)
    match command.aid.upper():
        case "TIMEOUT":
            _edit_timeouts(session, command.values(2))
        case "BOOT":
            _edit_boot(session, command.values(2))
        case _:
            raise DenialError("IIAC")
    return []


def _edit_timeouts(session: Tl1Session, values: dict[str, str]) -> None:
    for name in values:
        if name.upper() not in session.shared.timeout_min:
            raise DenialError("IPNV", f"Unexpected parameter {name} in block 2")
    for name, value in values.items():
        if not (value.isascii() and value.isdecimal() and int(value) <= MINUTES_MAX):
            raise DenialError("IPNV", "Parameter not valid")
        session.shared.timeout_min[name.upper()] = int(value)


def _edit_boot(session: Tl1Session, values: dict[str, str]) -> None:
    mode = values.get("MODE", "")
    if mode.upper() not in BOOT:
        if mode.isdecimal():
            raise DenialError("IPNV", "Parameter not valid")
        raise DenialError("IDNV", f"Invalid value {mode}")
    session.device.flash.startup_mode = BOOT[mode.upper()]
    session.device.flash.save()


async def initialise(session: Tl1Session, command: Command) -> Lines:
    """INIT-SYS::SYSTEM: ... :0 nothing lost, 1 circuits cleared and ports enabled, 10 the card restarts.

    INIT-SYS::ALARM: ... :1|2|3 clears alarms.
    """
    device, what = session.device, command.block(1)
    session.device.permit(session.actor, system=True)
    match command.aid.upper():
        case "ALARM":
            if what not in ALARM_CODES:
                raise DenialError("IPNV")
            device.alarms.clear()
        case "SYSTEM":
            if what not in ("0", "1", "10"):
                raise DenialError("IPNV")
            if what == "1":
                await device.write(session.actor, Edit(clear=True))
                await device.set_ports(session.actor, enable=sorted(device.optics.disabled))
            if what == "10":
                session.shared.restart(0.0)
        case _:
            raise DenialError("IIAC")
    return []


async def retrieve_alarms(session: Tl1Session, command: Command) -> Lines:
    """RTRV-ALM-ALL|EQPT|ENV."""
    if command.aid.upper() not in ("", "ALL"):
        raise DenialError("IIAC")
    if command.verb == "RTRV-ALM-ENV":
        return []
    return [f"{alarm.port},EQPT:CR,LOS,SA" for alarm in session.device.alarms.active.values()]


async def mute(session: Tl1Session, command: Command) -> Lines:
    """OPR-ARC-EQPT::REPMGR: ... :IND: no autonomous messages on this session."""
    _require_reports(command)
    session.muted = True
    return []


async def unmute(session: Tl1Session, command: Command) -> Lines:
    """RLS-ARC-EQPT::REPMGR."""
    _require_reports(command)
    session.muted = False
    return []


async def retrieve_mute(session: Tl1Session, command: Command) -> Lines:
    """RTRV-ARC-EQPT::ALL."""
    if command.aid.upper() not in ("", "ALL", "REPMGR"):
        raise DenialError("IIAC")
    return [f"REPMGR:{'IND' if session.muted else 'RLS'},,"]


def _require_reports(command: Command) -> None:
    if command.aid.upper() != "REPMGR":
        raise DenialError("IIAC")


async def set_sid(session: Tl1Session, command: Command) -> Lines:
    """SET-SID::: ... :<name>, at most 20 characters."""
    session.device.permit(session.actor, system=True)
    name = command.block(1)
    if _SID.fullmatch(name) is None:
        raise DenialError("IDNV")
    session.device.sid = name.strip('"')
    return []


async def edit_date(session: Tl1Session, command: Command) -> Lines:
    """ED-DAT::: ... :YY-MM-DD or YYYY-MM-DD."""
    session.device.permit(session.actor, system=True)
    found = re.fullmatch(r"(\d{2}|\d{4})-(\d{1,2})-(\d{1,2})", command.block(1))
    if found is None:
        raise DenialError("IDNV", "Bad parameter value")
    year, month, day = (int(part) for part in found.groups())
    now = datetime.fromtimestamp(session.shared.now(), UTC)
    try:
        wanted = now.replace(year=year + 2000 if year < 100 else year, month=month, day=day)
    except ValueError:
        raise DenialError("IDNV", "Bad parameter value") from None
    if wanted.year > YEAR_MAX:
        raise DenialError("SSTP")
    session.shared.date_offset_s += (wanted - now).total_seconds()
    return []


async def retrieve_time(session: Tl1Session, _command: Command) -> Lines:
    """RTRV-TOD."""
    return [datetime.fromtimestamp(session.shared.now(), UTC).strftime("%Y,%m,%d,%H,%M,%S,UTC")]


async def retrieve_network(_session: Tl1Session, command: Command) -> Lines:
    """RTRV-IP|IPPORT|MAC::eth0: what a switch without a network card of its own can say."""
    if command.aid.lower() not in ("", "eth0"):
        raise DenialError("IIAC")
    return {
        "RTRV-IP": ["eth0:IP=127.0.0.1,MASK=255.0.0.0,GATEWAY=0.0.0.0"],
        "RTRV-IPPORT": ["TL1:3082"],
        "RTRV-MAC": ["eth0:MAC=02-00-00-00-00-01"],
    }[command.verb]


async def enter_user(session: Tl1Session, command: Command) -> Lines:
    """ENT-USER-SECU::<name>: ... :<password>,,<group>."""
    if session.actor.group is not Group.ADMIN:
        raise DenialError("PICC", "Permission denied")
    password, _, group = (command.block(1) + ",,").split(",")[:3]
    if not command.aid or not password:
        raise DenialError("IPMS", "Too few parameters (0/1) in block 1")
    if group.lower() not in list(Group):
        raise DenialError("IPNV", "Invalid user access privilege")
    if not session.device.users.add(command.aid, password, Group(group.lower())):
        raise DenialError("IDNV", "User exists")
    return []


async def delete_user(session: Tl1Session, command: Command) -> Lines:
    """DLT-USER-SECU::<name>."""
    if session.actor.group is not Group.ADMIN:
        raise DenialError("PICC", "User not in the admin group")
    if not session.device.users.remove(command.aid):
        raise DenialError("IDNV", "User does not exist")
    return []


async def retrieve_user_security(session: Tl1Session, command: Command) -> Lines:
    """RTRV-USER-SECU::<name>."""
    if session.actor.group is not Group.ADMIN:
        raise DenialError("SRCN", "User not in the admin group")
    users = session.device.users
    wanted = list(users) if command.aid.upper() in ("", "ALL") else [command.aid]
    if any(name not in users for name in wanted):
        raise DenialError("IDNV", "User does not exist")
    return [f"{name}:,{users.group(name).upper()}" for name in wanted]


async def edit_password(session: Tl1Session, command: Command) -> Lines:
    """ED-SECU-PID::<name>: ... :<old>,<new>: one's own, or as an administrator anybody's."""
    actor, users = session.actor, session.device.users
    old, comma, new = command.block(1).partition(",")
    if not comma or not new:
        raise DenialError("IPMS", "Too few parameters (1/2) in block 1")
    own = command.aid == actor.user
    if not own and actor.group is not Group.ADMIN:
        raise DenialError("PICC", "Permission denied")
    if command.aid not in users:
        raise DenialError("IDNV", "User does not exist")
    if own and users.login(actor.user, old) is None:
        raise DenialError("PICC")
    users.change(command.aid, new)
    return []


async def retrieve_users(session: Tl1Session, _command: Command) -> Lines:
    """RTRV-USER: who is logged in."""
    return [f"{other.user}:{other.protocol.upper()}" for other in session.shared.sessions if other.user]
