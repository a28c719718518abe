"""`opus events`: the controller's history, so far or as it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from opus_sdn.cli.controller import DEFAULT_CONTROLLER as HERE
from opus_sdn.cli.controller import (
    PAGE_ITEMS,
    REQUEST_S,
    CaFileOption,
    Controller,
    ControllerOption,
    CurlOption,
    Params,
    TokenFileOption,
)
from opus_sdn.cli.kinds import KINDS
from opus_sdn.cli.output import Format, Rows, message, print_json_line, print_line

WAIT_S = 20.0  # of one long poll while following; less than what proxies cut

FormatOption = Annotated[Format, typer.Option("-o", "--output", help="Table, or one JSON object a line.")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(events)


def events(
    since: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only events after number N.")] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Only of this job.")] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only of this kind, as intent or intent.granted.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with events as they happen.")] = False,
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Print the history, oldest first; with --follow go on until Ctrl-C."""
    which: Params = {"job": job, "kind": kind}
    with Controller(controller, token_file, ca_file) as asked:
        if curl:
            options = ("-N", "-H", "'Accept: text/event-stream'") if follow else ()
            params = which if follow else {**which, "limit": PAGE_ITEMS}
            print_line(asked.curl("/events", {"since": since, **params}, options=options))
            return
        table = Rows(KINDS["events"].columns, widths=(8, 27, 22, 16))
        shown = 0
        for page in answers(asked, since, which, follow=follow):
            for event in page["events"]:
                shown += 1
                if form is Format.JSON:
                    print_json_line(event)
                else:
                    table.print(event)
        if not shown and form is Format.TABLE:
            message("no events")


def answers(
    asked: Controller, since: int | None, which: Params, *, follow: bool = False
) -> Iterator[dict[str, Any]]:
    """Answers with events, from number `since` on, to the newest; with `follow` without end."""
    while True:
        params = {**which, "since": since, "limit": PAGE_ITEMS, "wait_s": int(WAIT_S) if follow else None}
        answer = asked.get("/events", params, timeout_s=REQUEST_S + WAIT_S).body
        yield answer
        since = int(answer["newest"])
        if not follow and len(answer["events"]) < PAGE_ITEMS:
            return
