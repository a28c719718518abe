"""`opus emulator`: switches that nobody has to buy, on real sockets."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opus_sdn.cli import emulator_switches
from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.files import read_fabric, write_whole
from opus_sdn.cli.output import message, print_line
from opus_sdn.fabric_file.mapping import MappingFileError, read_mapping

if TYPE_CHECKING:
    from opus_sdn.drivers.polatis_emulator import EmulatorSpec, Faults, PolatisEmulator
    from opus_sdn.intent.fabric import Fabric

app = typer.Typer(help="Run emulated switches as processes of their own.", no_args_is_help=True)
emulator_switches.add_to(app)


def add_to(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="emulator")


@app.callback()
def emulator() -> None:
    """Options of every emulator."""


@app.command()
def polatis(
    size: Annotated[
        str | None, typer.Option(help="32x32, 16x08, or 32xCC for any port to any other.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name, as N-OST-48x48-HA1-DMHEV-050.")] = None,
    firmware: Annotated[str | None, typer.Option(help="Firmware version that it shows.")] = None,
    switch_ms: Annotated[
        float | None, typer.Option(help="What the optics take, milliseconds; 25 by default.")
    ] = None,
    control_ms: Annotated[
        float | None, typer.Option(help="What the management card takes for each request before that.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file of all that the switch is: users, groups..."),
    ] = None,
    faults: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file of what is wrong with it from the start.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep circuits and labels in FILE over restarts.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    restconf_port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 8008,
    tl1_port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 3082,
    page_port: Annotated[
        int,
        typer.Option(min=0, max=65_535, help="Port of the page and of the side door; 0 takes a free one."),
    ] = 8009,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate: RESTCONF over HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    fabric: Annotated[
        str | None, typer.Option(metavar="FILE", help="Fabric file: watch the traffic that its ranks report.")
    ] = None,
    switch: Annotated[str, typer.Option(help="Which switch of that fabric this is.")] = "",
    nics: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Have that fabric's NICs: their links as files in DIR.")
    ] = None,
    link_up_ms: Annotated[
        float | None, typer.Option(help="What a NIC takes from light to link, milliseconds; 0 by default.")
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the addresses to FILE, as JSON, when it listens."),
    ] = None,
) -> None:
    """Emulate a Polatis switch until SIGTERM or Ctrl-C: RESTCONF, TL1, and a page to watch it on.

    One JSON line with the addresses goes to stdout. Passwords are those of --config, else admin and root.
    """
    from opus_sdn.drivers.polatis_emulator import EmulatorSpec, Faults, PolatisEmulator
    from opus_sdn.drivers.polatis_emulator.files import EmulatorFileError, check
    from opus_sdn.drivers.polatis_emulator.flash import FlashError

    given = {
        "size": size,
        "model": model,
        "firmware": firmware,
        "switch_ms": switch_ms,
        "control_ms": control_ms,
        "link_up_ms": link_up_ms,
    }
    try:
        declared = read_mapping(config) if config is not None else {}
        flags = {name: value for name, value in given.items() if value is not None}
        spec: EmulatorSpec = check(EmulatorSpec, declared | flags, str(config or "flags"))
        ill: Faults = check(Faults, read_mapping(faults), str(faults)) if faults is not None else Faults()
        device = PolatisEmulator(
            spec,
            host=host.removeprefix("[").removesuffix("]"),
            restconf_port=restconf_port,
            tl1_port=tl1_port,
            page_port=page_port,
            tls=_tls(tls_cert, tls_key),
            state_file=state,
        )
    except (EmulatorFileError, FlashError, MappingFileError) as wrong:
        raise CliError(str(wrong), ExitCode.USAGE) from None
    if nics is not None and fabric is None:
        raise CliError("--nics needs --fabric, which says which NIC is where", ExitCode.USAGE)
    cabling = read_fabric(fabric).build() if fabric is not None else None
    asyncio.run(_serve(device, ill, cabling, switch, nics, ready_file))


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise CliError("--tls-cert and --tls-key belong together; give both or none", ExitCode.USAGE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except OSError as failed:  # ssl.SSLError is one
        raise CliError(
            f"--tls-cert {cert}, --tls-key {key}: cannot be used: {failed}", ExitCode.USAGE
        ) from None
    return context


async def _serve(
    device: PolatisEmulator,
    faults: Faults,
    fabric: Fabric | None,
    switch: str,
    nics: Path | None,
    ready_file: Path | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await device.start()
        await device.set_faults(faults)
        if fabric is not None:
            await device.watch_traffic(fabric, switch)
        if fabric is not None and nics is not None:
            device.plug_nics(fabric, nics, switch)
    except OSError as failed:
        await device.stop()
        raise CliError(f"cannot listen, or not write: {failed}; ports of 0 take free ones") from None
    except ValueError as wrong:
        await device.stop()
        raise CliError(f"--switch: {wrong}", ExitCode.USAGE) from None
    addresses: dict[str, Any] = {
        "restconf": device.restconf_url,
        "tl1": device.tl1_address,
        "page": device.page_url,
        "witness": device.witness_address,
    }
    print_line(json.dumps(addresses))
    message(f"{device.spec.model_name}: watch it on {device.page_url}")
    if ready_file is not None:
        write_whole(ready_file, json.dumps(addresses))
    await stop.wait()
    await device.stop()
