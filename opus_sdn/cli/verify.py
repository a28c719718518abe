"""`opus fabric verify`: connects the ports of every rail in turn, and looks for light and links."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.files import read_fabric
from opus_sdn.cli.output import Format, columns, message, print_json, print_table
from opus_sdn.drivers.base import Driver, SwitchConfigError
from opus_sdn.drivers.cabling import Checked, Planned, SwitchCheck, Verdict, by_switch, plan_rail
from opus_sdn.drivers.link_probe import CommandProbe, ProbeError
from opus_sdn.drivers.registry import open_driver
from opus_sdn.fabric_file.mapping import MappingFileError, read_mapping
from opus_sdn.intent.fabric import Fabric

LINK_S = 60.0


def verify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Fabric file; - reads stdin.")],
    rail: Annotated[list[str] | None, typer.Option(help="Only this rail; may be given again.")] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Prints a port's carrier: 'ssh {host} cat /sys/class/net/{nic}/carrier'. "
            "Fields: {host} {slot} {index} {rail} {nic}.",
        ),
    ] = None,
    nics: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML of {nic} by port, as host0:0:1: eth3.")
    ] = None,
    link_s: Annotated[
        float, typer.Option(min=0, max=3600, help="How long a NIC may take for its link, seconds.")
    ] = LINK_S,
    form: Annotated[Format, typer.Option("-o", "--output", help="How to write the result.")] = Format.TABLE,
) -> None:
    """Check the cabling of a fabric that no controller drives: light and, with --probe, the NICs' links.

    Connects two free ports at a time, looks, and disconnects them; circuits that exist are left alone.
    Switches are checked at the same time, the pairs of one switch one after the other.
    """
    fabric = read_fabric(file).build()
    known = [entry.name for entry in fabric.rails]
    for name in rail or ():
        if name not in known:
            raise CliError(f"--rail is {name!r}; the fabric has {', '.join(known)}", ExitCode.USAGE)
    planned = [p for entry in fabric.rails if entry.name in (rail or known) for p in plan_rail(fabric, entry)]
    if not planned:
        raise CliError(f"{file}: no rail has two ports that could be connected", ExitCode.USAGE)
    asker = _probe(probe, fabric, nics)
    results = asyncio.run(_check(fabric, planned, asker, link_s))
    order = {pair: number for number, pair in enumerate(planned)}
    results.sort(key=lambda result: order[result.planned])
    _show(file, results, form)
    if asker is not None and asker.complaints:
        port, why = next(iter(asker.complaints.items()))
        message(f"--probe: {len(asker.complaints)} ports could not be asked; {port}: {why}")
    bad = [result for result in results if result.verdict is not Verdict.OK]
    if bad:
        raise CliError(f"{file}: {len(bad)} of {len(results)} pairs are not as they must be")
    message(f"{file}: all {len(results)} pairs are as they must be")


def _probe(command: str | None, fabric: Fabric, nics: Path | None) -> CommandProbe | None:
    if command is None:
        if nics is not None:
            raise CliError("--nics is for --probe, which is not given", ExitCode.USAGE)
        return None
    try:
        named = {str(port): str(nic) for port, nic in read_mapping(nics).items()} if nics is not None else {}
        return CommandProbe(command, fabric, named)
    except MappingFileError as wrong:
        raise CliError(f"--nics: {wrong}", ExitCode.USAGE) from None
    except ProbeError as wrong:
        raise CliError(f"--probe: {wrong}", ExitCode.USAGE) from None


async def _check(
    fabric: Fabric, planned: list[Planned], probe: CommandProbe | None, link_s: float
) -> list[Checked]:
    """All pairs. An interrupt takes down what is connected for the check before it ends the command."""
    drivers: dict[str, Driver] = {}
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        for name in by_switch(planned):
            drivers[name] = open_driver(fabric.switch(name))
        with _progress() as progress:
            bar = progress.add_task("pairs", total=len(planned))

            def tell(result: Checked) -> None:
                progress.advance(bar)
                if result.verdict is not Verdict.OK:
                    ends = f"{result.planned.a} - {result.planned.b}"
                    progress.console.print(f"{result.verdict}: {ends}: {result.detail}", markup=False)

            checks = [
                SwitchCheck(fabric, name, drivers[name], probe, link_s).run(pairs, tell)
                for name, pairs in by_switch(planned).items()
            ]
            return [result for results in await asyncio.gather(*checks) for result in results]
    except SwitchConfigError as wrong:
        raise CliError(str(wrong)) from None
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for driver in drivers.values():
            await driver.close()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False, soft_wrap=True),
        transient=True,
    )


def _show(file: str, results: list[Checked], form: Format) -> None:
    if form is Format.JSON:
        counted = Counter(result.verdict.value for result in results)
        ok = all(result.verdict is Verdict.OK for result in results)
        print_json({"file": file, "ok": ok, "verdicts": dict(counted), "pairs": list(map(_as_json, results))})
        return
    rows = [
        {
            "rail": result.planned.rail,
            "a": str(result.planned.a),
            "b": str(result.planned.b),
            "verdict": result.verdict.value,
            "light": ", ".join(f"{dbm:.2f}" for _, dbm in sorted(result.power_dbm.items())),
            "links": ", ".join(_LINK[up] for _, up in sorted(result.links.items())),
            "detail": result.detail,
        }
        for result in results
    ]
    shape = columns(
        rail="rail", port="a", other="b", verdict="verdict", light_dbm="light", links="links", detail="detail"
    )
    print_table(rows, shape)


_LINK = {True: "up", False: "down", None: "?"}


def _as_json(result: Checked) -> dict[str, Any]:
    planned = result.planned
    return {
        "rail": planned.rail,
        "switch": planned.switch,
        "ports": [str(planned.a), str(planned.b)],
        "cross_connects": [list(pair) for pair in planned.pairs],
        "verdict": result.verdict.value,
        "detail": result.detail or None,
        "light_dbm": {str(port): dbm for port, dbm in sorted(result.power_dbm.items())},
        "links": {str(port): up for port, up in sorted(result.links.items())},
    }
