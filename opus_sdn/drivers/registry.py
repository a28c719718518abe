"""From the driver name in the fabric file to a driver. New drivers are added to the one table here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from opus_sdn.drivers.base import Driver, SwitchConfigError
from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch
from opus_sdn.drivers.emulated_options import EmulatedOptions
from opus_sdn.drivers.emulated_remote import RemoteEmulatedDriver, address_of
from opus_sdn.intent.fabric import Switch


def _emulated(switch: Switch) -> Driver:
    address = address_of(switch)
    if address is not None:
        EmulatedOptions.of(switch)  # the emulator has them from the same file
        return RemoteEmulatedDriver(switch, *address)
    return EmulatedDriver(EmulatedSwitch(switch))


def _polatis(switch: Switch) -> Driver:
    from opus_sdn.drivers.polatis.open import open_polatis  # brings an HTTP client, which others do not need

    return open_polatis(switch)


DRIVERS: Mapping[str, Callable[[Switch], Driver]] = MappingProxyType(
    {"emulated": _emulated, "polatis": _polatis}
)


def open_driver(switch: Switch) -> Driver:
    """A driver for this switch, its options checked; nothing is sent to the device yet.

    Every call makes a new session. For the emulated switch also a new device, which starts with its option
    `initial`, unless its option `address` names the process in which it lives. Raises SwitchConfigError for
    an unknown driver or a wrong option.
    """
    make = DRIVERS.get(switch.driver)
    if make is None:
        near = difflib.get_close_matches(switch.driver, DRIVERS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise SwitchConfigError(
            f"switch {switch.name}: driver is {switch.driver!r}, which is unknown{hint}; "
            f"known: {', '.join(sorted(DRIVERS))}"
        )
    return make(switch)
