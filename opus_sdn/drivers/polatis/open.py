"""From a switch of the fabric file to its driver."""

from __future__ import annotations

import ssl

import httpx

from opus_sdn.drivers.base import SwitchConfigError
from opus_sdn.drivers.polatis.driver import OpenTransport, PolatisDriver
from opus_sdn.drivers.polatis.options import PolatisOptions, credentials_of
from opus_sdn.drivers.polatis.restconf import RestconfTransport, base_url
from opus_sdn.drivers.polatis.tl1 import Tl1Transport
from opus_sdn.drivers.polatis.wire import Tell, Transport
from opus_sdn.intent.fabric import Switch


def open_polatis(switch: Switch) -> PolatisDriver:
    """A driver for this switch, options and secret checked; nothing is sent yet. Raises SwitchConfigError."""
    options = PolatisOptions.of(switch)
    credentials = credentials_of(switch.name, options)
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        base_url(options)
    except OSError as error:
        raise SwitchConfigError(
            f"switch {switch.name}: option ca_file is {options.ca_file!r}, which holds no certificates: "
            f"{error}"
        ) from None
    except httpx.InvalidURL as error:
        raise SwitchConfigError(f"switch {switch.name}: option host is {options.host!r}: {error}") from None

    def restconf(_: Tell) -> Transport:
        return RestconfTransport(options, credentials, context=context)

    def tl1(tell: Tell) -> Transport:
        return Tl1Transport(options, credentials, tell)

    # TL1 carries the password in clear: who breaks a TLS connection must not be handed it at the next door.
    auto: list[OpenTransport] = [restconf] if options.tls else [restconf, tl1]
    doors: dict[str, list[OpenTransport]] = {"auto": auto, "restconf": [restconf], "tl1": [tl1]}
    return PolatisDriver(switch, options, credentials, doors[options.transport])
