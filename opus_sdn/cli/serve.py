"""`opus serve`: runs the controller until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opus_sdn.cli.admin import ConfigOption, DatabaseOption, settings_of
from opus_sdn.cli.exits import CliError


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(serve)


def serve(
    fabric: Annotated[
        Path | None,
        typer.Option(
            "--fabric", "--fabric-file", metavar="FILE", help="Fabric to load when the database has none yet."
        ),
    ] = None,
    database: DatabaseOption = None,
    host: Annotated[str | None, typer.Option(help="Loopback address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port to listen on; 0 takes a free one.")] = None,
    runs_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the per-job logs and event streams.")
    ] = None,
    witness: Annotated[
        bool | None,
        typer.Option("--witness/--no-witness", help="Watch the traffic over emulated switches."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the address to FILE, as JSON, when the controller grants."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Run the controller until SIGTERM or Ctrl-C.

    When it grants, its URL goes to stdout. Flags beat OPUS_SDN_* variables, these beat the file of --config,
    that beats the defaults.
    """
    settings = settings_of(
        config,
        fabric_file=fabric,
        database=database,
        host=host,
        port=port,
        runs_dir=runs_dir,
        witness=witness,
        log_level=log_level,
    )
    from opus_sdn.api.controller import StartError
    from opus_sdn.api.server import serve as serve_until_stopped

    try:
        serve_until_stopped(settings, ready_file=ready_file)
    except StartError as failed:
        raise CliError(str(failed)) from failed
