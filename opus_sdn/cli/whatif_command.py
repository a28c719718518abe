"""Lists `opus whatif` among the commands; what it does, and its own options, are in `cli.whatif`."""

from __future__ import annotations

from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings)(whatif)


def whatif(
    arguments: Annotated[list[str] | None, typer.Argument(help="See `opus whatif --help`.")] = None,
) -> None:
    """Replay a training step offline: how long it takes on a fabric."""
    from opus_sdn.cli.whatif import run

    raise typer.Exit(run(["whatif", *(arguments or [])]))
