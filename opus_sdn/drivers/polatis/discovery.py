"""Finding the device behind one of its doors, and making sure that it is the one that was declared."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from opus_sdn.drivers.base import DriverError, Persistence, Refusal, TerminalError, TransientError
from opus_sdn.drivers.polatis.numbering import Numbering, NumberingError
from opus_sdn.drivers.polatis.wire import Identity, Transport
from opus_sdn.intent.fabric import Switch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """What was found, and the transport that reaches it. `monitors` = ports that measure power."""

    transport: Transport
    identity: Identity
    numbering: Numbering
    persistence: Persistence
    monitors: frozenset[int]

    @property
    def monitored(self) -> bool:
        """Whether power is measured anywhere."""
        return bool(self.monitors)


async def discover(switch: Switch, doors: Sequence[Transport]) -> Device:
    """Try the doors in order; the first one behind which a device answers is kept, the others are closed.

    A device that answers and refuses us, or is not the declared one, is an error whichever doors are left:
    another protocol would only hide it.
    """
    refusals: list[DriverError] = []
    try:
        for door in doors:
            try:
                identity = await door.identify()
            except TransientError as error:
                refusals.append(error)
            except TerminalError as error:
                if error.reason is Refusal.UNAUTHORISED:
                    raise
                refusals.append(error)
            else:
                device = await _examined(switch, door, identity)
                logger.info(
                    "switch found",
                    extra={
                        "switch": switch.name,
                        "transport": door.name,
                        "model": identity.model,
                        "firmware": identity.firmware,
                        "serial": identity.serial,
                    },
                )
                doors = [other for other in doors if other is not door]
                return device
        if len(refusals) == 1:
            raise refusals[0]
        raise TransientError(f"{switch.name}: " + "; ".join(error.detail for error in refusals))
    finally:
        for door in doors:
            await door.close()


async def _examined(switch: Switch, transport: Transport, identity: Identity) -> Device:
    try:
        numbering = Numbering.parse(identity.size)
    except NumberingError as error:
        raise TerminalError(
            f"{switch.name}: {error}; nothing is done with this device", Refusal.WRONG_DEVICE
        ) from None
    if numbering.sided is not switch.sided:
        there, here = ("sided", "any_to_any") if numbering.sided else ("any_to_any", "sided")
        raise TerminalError(
            f"{switch.name}: layout is {here} in the fabric file, "
            f"but the device ({identity.model}) is {there}",
            Refusal.WRONG_DEVICE,
        )
    most = max(numbering.ingress, numbering.egress)
    if switch.size > most:
        raise TerminalError(
            f"{switch.name}: size is {switch.size} in the fabric file, but the device ({identity.model}) has "
            f"{most} positions",
            Refusal.WRONG_DEVICE,
        )
    listed = len(await transport.ports(numbering.total))
    if listed != numbering.total:
        raise TerminalError(
            f"{switch.name}: the device says that it is {identity.size}, but lists {listed} ports; "
            "nothing is done with it",
            Refusal.WRONG_DEVICE,
        )
    everything = range(1, numbering.total + 1)
    return Device(
        transport,
        identity,
        numbering,
        await transport.persistence(),
        monitors=frozenset(await transport.power(everything) or ()),
    )
