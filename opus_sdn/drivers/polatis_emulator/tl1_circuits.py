"""TL1 commands on circuits and ports."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opus_sdn.drivers.polatis_emulator.alarms import AVERAGING_DEFAULT
from opus_sdn.drivers.polatis_emulator.judge import Busy, Edit
from opus_sdn.drivers.polatis_emulator.optics import Attenuation
from opus_sdn.drivers.polatis_emulator.tl1_session import Tl1Session
from opus_sdn.drivers.polatis_emulator.tl1_text import Command, DenialError, parse_ports, ports_or_all

LABEL = re.compile(r"[A-Za-z0-9_.-]{1,25}")
ATTENUATIONS = ("NONE", "ABSOLUTE", "RELATIVE", "CONVERGED")

Lines = list[str]


async def enter_patch(session: Tl1Session, command: Command) -> Lines:
    """ENT-PATCH::<list>,<list>: join the ports of the two lists, one by one."""
    device = session.device
    left, comma, right = command.aid.partition(",")
    if not left.strip() and not right.strip():
        raise DenialError("IIAC", "Empty parameters")
    if not comma:
        raise DenialError("IIAC", "Too few parameters (1/2)")
    batch_by_prefix = device.faults.tl1_batch == "prefix"
    first, second, wrong = _two_lists(session, left, right, keep_good=batch_by_prefix)
    busy = Busy.REFUSE if device.faults.tl1_conflict == "deny" else Busy.DISPLACE
    pairs = tuple(zip(first, second, strict=False))
    await device.write(session.actor, Edit(pairs, busy=busy), prefix=batch_by_prefix)
    if wrong is not None:
        raise wrong
    return []


def _two_lists(
    session: Tl1Session, left: str, right: str, *, keep_good: bool
) -> tuple[list[int], list[int], DenialError | None]:
    """The ports of both lists. `keep_good`: those before the first bad one, and what is wrong with it."""
    ports = session.device.layout.ports
    if not keep_good:
        first, second = parse_ports(left, ports), parse_ports(right, ports)
        if len(first) != len(second):
            raise DenialError("IIAC", f"Different number of parameters ({len(first)}/{len(second)})")
        return first, second, None
    (first, wrong_left), (second, wrong_right) = _good(left, ports), _good(right, ports)
    return first, second, wrong_left or wrong_right


def _good(text: str, ports: range) -> tuple[list[int], DenialError | None]:
    found: list[int] = []
    for item in re.split(r"(?<!&)&(?!&)", text):
        try:
            found += parse_ports(item, ports)
        except DenialError as wrong:
            return found, wrong
    return found, None


async def delete_patch(session: Tl1Session, command: Command) -> Lines:
    """DLT-PATCH::<list>|ALL: free these ports; one that is free already is no mistake."""
    ports = session.device.layout.ports
    everything = command.aid.upper() in ("", "ALL")
    if everything:
        await session.device.write(session.actor, Edit(clear=True))
    else:
        wanted = tuple(parse_ports(command.aid, ports))
        await session.device.write(session.actor, Edit(disconnect=wanted))
    return []


async def retrieve_patch(session: Tl1Session, command: Command) -> Lines:
    """RTRV-PATCH::<list>|ALL: one line for each circuit that ends on one of these ports."""
    wanted = set(_asked(session, command))
    return [
        f"{ingress},{egress}"
        for ingress, egress in session.device.seen_table().items()
        if ingress in wanted or egress in wanted
    ]


async def retrieve_shutter(session: Tl1Session, command: Command) -> Lines:
    """RTRV-PORT-SHUTTER::<list>."""
    shut = session.device.optics.disabled
    return [f"{port}:{'CLOSED' if port in shut else 'OPEN'}" for port in _asked(session, command)]


async def close_shutter(session: Tl1Session, command: Command) -> Lines:
    """OPR-PORT-SHUTTER::<list>: no light passes; circuits stay."""
    await session.device.set_ports(
        session.actor, disable=parse_ports(command.aid, session.device.layout.ports)
    )
    return []


async def open_shutter(session: Tl1Session, command: Command) -> Lines:
    """RLS-PORT-SHUTTER::<list>."""
    await session.device.set_ports(
        session.actor, enable=parse_ports(command.aid, session.device.layout.ports)
    )
    return []


async def retrieve_power(session: Tl1Session, command: Command) -> Lines:
    """RTRV-PORT-POWER::<list>: ports without a detector have no line."""
    optics = session.device.optics
    return [f"{port}:{optics.power_dbm(port):.2f}" for port in _measured(session, command)]


async def retrieve_monitor(session: Tl1Session, command: Command) -> Lines:
    """RTRV-PORT-PMON::<list>: wavelength, offset, averaging."""
    optics, alarms = session.device.optics, session.device.alarms
    found = (
        (port, optics.offset_db.get(port, 0.0), alarms.averaging.get(port, AVERAGING_DEFAULT))
        for port in _measured(session, command)
    )
    return [f"{port}:1550.00,{offset:.2f},{averaging}" for port, offset, averaging in found]


async def retrieve_label(session: Tl1Session, command: Command) -> Lines:
    """RTRV-PORT-LABEL::<list>."""
    labels = session.device.flash.labels
    return [f"{port}:{labels.get(port, '')}" for port in _asked(session, command)]


async def edit_label(session: Tl1Session, command: Command) -> Lines:
    """ED-PORT-LABEL::<list>: ... :LABEL=<label>&<label>: as many labels as ports."""
    ports = parse_ports(command.aid, session.device.layout.ports)
    labels = command.values(2).get("LABEL", "").split("&")
    if len(labels) != len(ports):
        raise DenialError("IIAC", f"Different number of parameters ({len(ports)}/{len(labels)})")
    if not all(LABEL.fullmatch(label) for label in labels):
        raise DenialError("IPNV")
    for port, label in zip(ports, labels, strict=True):
        session.device.name_port(session.actor, port, label=label)
    return []


async def delete_label(session: Tl1Session, command: Command) -> Lines:
    """DLT-PORT-LABEL::<list>."""
    for port in parse_ports(command.aid, session.device.layout.ports):
        session.device.name_port(session.actor, port, label="")
    return []


async def set_attenuation(session: Tl1Session, command: Command) -> Lines:
    """SET-PORT-ATTEN::<list>: ... :MODE=ABSOLUTE,LEVEL=-5."""
    values = command.values(2)
    mode = values.get("MODE", "").upper()
    if mode not in ATTENUATIONS:
        raise DenialError("IDNV", f"Invalid value {values.get('MODE', '')}")
    try:
        level, reference = float(values.get("LEVEL", "0")), int(values.get("REFS", "0"))
    except ValueError:
        raise DenialError("IPNV", "Parameter not valid") from None
    if not -100 <= level <= 100:
        raise DenialError("IPNV", "Parameter not valid")
    ports = parse_ports(command.aid, session.device.layout.ports)
    session.device.permit(session.actor, ports)
    for port in ports:
        session.device.optics.attenuation[port] = Attenuation(mode, level, reference)
    return []


async def retrieve_attenuation(session: Tl1Session, command: Command) -> Lines:
    """RTRV-PORT-ATTEN::<list>."""
    set_to = session.device.optics.attenuation
    found = ((port, set_to.get(port, Attenuation())) for port in _measured(session, command))
    return [f"{port}:MODE={voa.mode},LEVEL={voa.level:.2f}" for port, voa in found]


def _asked(session: Tl1Session, command: Command) -> list[int]:
    return ports_or_all(command.aid, session.device.layout.ports)


def _measured(session: Tl1Session, command: Command) -> Iterable[int]:
    """The ports asked for that have a detector. Raises DenialError when the switch has none at all."""
    device = session.device
    if not any(device.measures(port) for port in device.layout.ports):
        raise DenialError("ENEQ", "No power monitors")
    return [port for port in _asked(session, command) if device.measures(port)]
