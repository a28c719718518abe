"""`opus plan`: looks at a change before it is made, and with --apply makes it if nothing moved meanwhile."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from opus_sdn.cli.controller import DEFAULT_CONTROLLER as HERE
from opus_sdn.cli.controller import (
    CaFileOption,
    Controller,
    ControllerOption,
    CurlOption,
    TokenFileOption,
    segment,
)
from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.files import read_fabric
from opus_sdn.cli.get import FormatOption
from opus_sdn.cli.kinds import pairs_text, reason_text
from opus_sdn.cli.operate import ByOption, DetailOption, ForceOption, user
from opus_sdn.cli.output import Format, columns, message, print_facts, print_json, print_line, print_section

ApplyOption = Annotated[bool, typer.Option("--apply", help="Make the change, if it is still what was shown.")]
WhatArgument = Annotated[
    str,
    typer.Argument(metavar="CHANGE", help="One of drain, undrain, circuit, drop-circuit, fabric, apply."),
]
NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Its port, its two ports, circuit, fabric file, or plan."),
]
SHAPES = {
    "drain": ("port",),
    "undrain": ("port",),
    "circuit": ("a", "b"),
    "drop-circuit": ("circuit",),
    "fabric": ("file",),
    "apply": ("plan",),
}


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(plan)


def plan(
    what: WhatArgument,
    names: NamesArgument = None,
    apply: ApplyOption = False,
    detail: DetailOption = "",
    by: ByOption = None,
    force: ForceOption = False,
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show what a change would do: its device steps, the circuits that they disturb, what stays blocked."""
    fields = _fields(what, names or [])
    with Controller(controller, token_file, ca_file) as asked:
        if what == "apply":
            path = f"/plans/{segment(fields['plan'])}/apply"
            if curl:
                print_line(asked.curl(path, method="POST"))
                return
            made = asked.post(path).body
        else:
            change: dict[str, Any] = {"kind": what, **fields}
            if what == "fabric":
                change = {"kind": what, "fabric": read_fabric(fields["file"]).model_dump(mode="json")}
            body = {"by": by or user(), "detail": detail, "force": force, "change": change}
            content = json.dumps(body).encode()
            if curl:
                print_line(asked.curl("/plans", method="POST", body=content))
                return
            made = asked.post("/plans", content).body
            if apply and made["refusal"] is None:
                made = asked.post(f"/plans/{made['id']}/apply").body
    _show(made, form)
    if made["refusal"] is not None:
        raise CliError(f"it would be refused: {made['refusal']['detail']}")


def _fields(what: str, names: list[str]) -> dict[str, str]:
    shape = SHAPES.get(what)
    if shape is None:
        raise CliError(f"CHANGE: is {what!r}; known: {', '.join(SHAPES)}", ExitCode.USAGE)
    if len(names) != len(shape):
        raise CliError(f"NAME: {len(names)} given; {what} takes {', '.join(shape)}", ExitCode.USAGE)
    return dict(zip(shape, names, strict=True))


def _show(made: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        print_json(made)
        return
    print_facts({name: made[name] for name in ("id", "by", "made_at", "expires_at")})
    steps = columns(
        switch="switch",
        remove=lambda step: pairs_text(step.get("remove")),
        add=lambda step: pairs_text(step.get("add")),
    )
    print_section("Steps", made["steps"], steps)
    print_section("Disturbed", [{"id": name} for name in made["disturbed"]], columns(circuit="id"))
    print_section("Blocked", made["blocked"], columns(what="what", why=reason_text))
    if made["applied_at"] is not None:
        message(f"plan {made['id']} was applied")
    elif made["refusal"] is None:
        message(f"nothing was changed; `opus plan apply {made['id']}` does this")
