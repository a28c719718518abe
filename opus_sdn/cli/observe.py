"""`opus observe`: reads a switch now, for whoever has just changed something or wants to know."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from opus_sdn.cli.controller import DEFAULT_CONTROLLER as HERE
from opus_sdn.cli.controller import (
    CaFileOption,
    Controller,
    ControllerOption,
    CurlOption,
    TokenFileOption,
)
from opus_sdn.cli.get import FormatOption
from opus_sdn.cli.kinds import KINDS
from opus_sdn.cli.output import Format, print_json, print_line, print_table


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(observe)


def observe(
    switch: Annotated[str, typer.Argument(metavar="SWITCH", help="Name of the switch.")],
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Have a switch read now, and show what it holds; `opus describe switch` shows all of it."""
    path = f"/switches/{quote(switch, safe='')}/observe"
    with Controller(controller, token_file, ca_file) as asked:
        if curl:
            print_line(asked.curl(path, method="POST"))
            return
        shown = asked.post(path).body
        if form is Format.JSON:
            print_json(shown)
        else:
            print_table([shown], KINDS["switches"].columns)
