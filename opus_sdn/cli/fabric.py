"""`opus fabric`: writing a fabric file to start from, and checking one without a controller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.files import fabric_text
from opus_sdn.cli.output import Format, columns, message, print_json, print_table
from opus_sdn.cli.verify import verify
from opus_sdn.drivers.base import SwitchConfigError
from opus_sdn.drivers.registry import open_driver
from opus_sdn.fabric_file import FabricFileError, Fault, generate_fabric, parse_fabric
from opus_sdn.fabric_file.generate import SWITCH_CHOICES
from opus_sdn.intent.fabric import CircuitKind, Fabric

app = typer.Typer(help="Write and check fabric files.", no_args_is_help=True)
app.command()(verify)


def add_to(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="fabric")


@app.command()
def generate(
    hosts: Annotated[int, typer.Option(help="Hosts.")] = 4,
    gpus_per_host: Annotated[int, typer.Option(help="GPUs in each host.")] = 2,
    ports_per_gpu: Annotated[int, typer.Option(help="NIC ports of each GPU: 1, 2 or 4.")] = 2,
    rails: Annotated[int | None, typer.Option(help="Rails; by default one for each GPU slot.")] = None,
    switches: Annotated[
        str, typer.Option(help=f"A switch for each rail, or one for all: {' or '.join(SWITCH_CHOICES)}.")
    ] = SWITCH_CHOICES[0],
    driver: Annotated[str, typer.Option(help="Driver that speaks to the switches.")] = "emulated",
    delay_ms: Annotated[
        float, typer.Option(help="What the optics of an emulated switch take for a change, milliseconds.")
    ] = 50,
    control_ms: Annotated[float, typer.Option(help="What its control takes before, milliseconds.")] = 0,
    circuit: Annotated[
        str, typer.Option(help=f"Kind of every circuit: {', '.join(CircuitKind)}.")
    ] = CircuitKind.DUPLEX.value,
    size: Annotated[
        int | None, typer.Option(help="Positions of a switch; by default just as many as needed.")
    ] = None,
    host_prefix: Annotated[str, typer.Option(help="What host names begin with.")] = "host",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE instead of stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write the fabric file of a regular cluster, on stdout or to a file."""
    try:
        text = generate_fabric(
            hosts=hosts,
            gpus_per_host=gpus_per_host,
            ports_per_gpu=ports_per_gpu,
            rails=rails,
            switches=switches,
            driver=driver,
            delay_ms=delay_ms,
            control_ms=control_ms,
            circuit=circuit,
            size=size,
            host_prefix=host_prefix,
        )
    except ValueError as wrong:
        # It names the argument first, unless the whole fabric does not fit together.
        text = str(wrong)
        raise CliError(text if ": " in text else f"--{text}", ExitCode.USAGE) from None
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CliError(
            f"--output: {output} exists; name another file, or replace it with --force", ExitCode.USAGE
        ) from None
    except OSError as failed:
        raise CliError(
            f"--output: {output} cannot be written: {failed.strerror}; name a file in an existing folder",
            ExitCode.USAGE,
        ) from None
    message(f"{output}: {hosts} hosts with {gpus_per_host} GPUs written")


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Fabric file; - reads stdin.")],
    form: Annotated[Format, typer.Option("-o", "--output", help="How to write the result.")] = Format.TABLE,
) -> None:
    """Check a fabric file: every fault with its line, or what the fabric consists of."""
    text, source = fabric_text(file)
    try:
        fabric = parse_fabric(text, source).build()
        _check_options(fabric, source)
    except FabricFileError as wrong:
        if form is Format.JSON:
            faults = [
                {"line": f.line or None, "where": f.where or None, "message": f.message} for f in wrong.faults
            ]
            print_json({"file": source, "ok": False, "faults": faults})
        raise CliError(str(wrong)) from None
    rails = [
        {
            "name": rail.name,
            "switch": rail.switch,
            "slots": list(rail.slots),
            "ports": sum(at.rail == rail.name for at in fabric.attachments),
        }
        for rail in fabric.rails
    ]
    if form is Format.JSON:
        print_json(
            {
                "file": source,
                "ok": True,
                "hosts": len(fabric.hosts),
                "gpus_per_host": fabric.gpus_per_host,
                "ports_per_gpu": fabric.ports_per_gpu,
                "circuit": fabric.circuit_kind,
                "switches": [{"name": s.name, "driver": s.driver, "size": s.size} for s in fabric.switches],
                "rails": rails,
            }
        )
        return
    print_table(rails, columns(rail="name", switch="switch", gpu_slots="slots", ports="ports"))
    message(
        f"{source}: in order; {len(fabric.hosts)} hosts, {len(fabric.attachments)} ports, "
        f"{len(fabric.switches)} switches, {fabric.circuit_kind} circuits"
    )


def _check_options(fabric: Fabric, source: str) -> None:
    """The options of every switch, which only its driver knows. Nothing is sent to any device."""
    faults = []
    for switch in fabric.switches:
        try:
            open_driver(switch)
        except SwitchConfigError as wrong:
            faults.append(Fault(0, "", str(wrong)))
    if faults:
        raise FabricFileError(source, faults)
