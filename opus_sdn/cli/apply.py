"""`opus apply`: declares the fabric of a file, on condition that nobody else changed it meanwhile."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from opus_sdn.cli.controller import DEFAULT_CONTROLLER as HERE
from opus_sdn.cli.controller import (
    CaFileOption,
    Controller,
    ControllerOption,
    CurlOption,
    RefusedError,
    TokenFileOption,
)
from opus_sdn.cli.exits import CliError
from opus_sdn.cli.files import read_fabric
from opus_sdn.cli.output import Format, columns, message, print_json, print_line, print_table
from opus_sdn.intent.errors import STATUS, Problem

PATH = "/fabric"

FormatOption = Annotated[Format, typer.Option("-o", "--output", help="How to write the answer.")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(apply)


def apply(
    file: Annotated[str, typer.Option("-f", "--file", metavar="FILE", help="Fabric file; - reads stdin.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")] = False,
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Declare the fabric of a file. The same file again changes nothing."""
    spec = read_fabric(file)
    body = spec.model_dump_json().encode()
    params = {"dry_run": "true" if dry_run else None}
    with Controller(controller, token_file, ca_file) as asked:
        if curl:
            # Without a fabric there is no tag, and curl leaves out a header that has no value.
            tag = asked.curl(PATH, options=("-o", "/dev/null", "-w", "'%header{etag}'")).replace(
                "--fail-with-body ", ""
            )
            print_line(f"etag=$({tag})")
            print_line(asked.curl(PATH, params, method="PUT", options=("-H", '"If-Match: $etag"'), body=body))
            return
        etag = _etag(asked)
        condition = {} if etag is None else {"If-Match": etag}
        try:
            answer = asked.put(PATH, body, condition, params).body
        except RefusedError as refused:
            if refused.kind == Problem.PRECONDITION_FAILED:
                raise CliError(
                    f"the fabric was changed by somebody else meanwhile ({refused}); look at it with "
                    "`opus get fabric`, then apply again"
                ) from None
            raise
    _show(answer, form)


def _etag(asked: Controller) -> str | None:
    """The tag of the fabric in force; None when there is none."""
    try:
        return asked.get(PATH).etag
    except RefusedError as refused:
        if refused.status == STATUS[Problem.NOT_FOUND]:
            return None
        raise


def _show(answer: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        print_json(answer)
    else:
        shape = columns(
            changed="changed",
            applied="applied",
            generation="generation",
            hosts="hosts",
            ports="ports",
            rails="rails",
            switches="switches",
        )
        print_table([answer], shape)
    if answer.get("dry_run"):
        text = (
            "would change; nothing was changed by this dry run"
            if answer.get("changed")
            else "would stay as it is"
        )
    else:
        text = "is in force now" if answer.get("applied") else "was in force already; nothing was changed"
    message(f"the fabric {text}")
