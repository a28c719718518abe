"""`opus emulator switches`: the emulated switches of a fabric file in a process of their own."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opus_sdn.cli.exits import CliError
from opus_sdn.cli.files import read_fabric, write_whole
from opus_sdn.cli.output import message, print_line

if TYPE_CHECKING:
    from opus_sdn.intent.fabric import Fabric


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(switches)


def switches(
    fabric: Annotated[str, typer.Option("--fabric", metavar="FILE", help="Fabric file with the switches.")],
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="TCP port; 0 takes a free one.")] = 7001,
    witness_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="TCP port of the traffic witness; 0 takes a free one.")
    ] = 0,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the addresses to FILE, as JSON, when it listens."),
    ] = None,
) -> None:
    """Run the emulated switches of a fabric until SIGTERM or Ctrl-C, with their traffic witness.

    The switches keep their light when the controller is stopped or killed. Their option `address` tells the
    controller where this process listens. One JSON line with the addresses goes to stdout.
    """
    asyncio.run(_serve(read_fabric(fabric).build(), host, port, witness_port, ready_file))


async def _serve(fabric: Fabric, host: str, port: int, witness_port: int, ready_file: Path | None) -> None:
    from opus_sdn.drivers.base import SwitchConfigError
    from opus_sdn.drivers.emulator_server import EmulatorServer
    from opus_sdn.drivers.witness import TrafficWitness
    from opus_sdn.drivers.witness_server import WitnessServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    name = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        emulated = [switch for switch in fabric.switches if switch.driver == "emulated"]
        server = EmulatorServer(emulated, name, port)
        witness = WitnessServer(TrafficWitness(fabric, server.devices.values()), name, witness_port)
        addresses = {"address": await server.start(), "witness": await witness.start()}
    except OSError as failed:
        raise CliError(f"cannot listen: {failed}; use other ports, or 0 for free ones") from None
    except (SwitchConfigError, ValueError) as wrong:
        raise CliError(str(wrong)) from None
    print_line(json.dumps(addresses))
    message(f"emulating {', '.join(switch.name for switch in emulated) or 'no switch'}")
    if ready_file is not None:
        write_whole(ready_file, json.dumps(addresses) + "\n")
    await stop.wait()
    await server.close()
    await witness.close()
