"""`opus get`: the controller's resources, as tables for people or exactly as the API gives them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from opus_sdn.cli.controller import DEFAULT_CONTROLLER as HERE
from opus_sdn.cli.controller import (
    PAGE_ITEMS,
    CaFileOption,
    Controller,
    ControllerOption,
    CurlOption,
    Params,
    TokenFileOption,
    segment,
)
from opus_sdn.cli.events import answers
from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.kinds import KNOWN, Kind, kind_named
from opus_sdn.cli.output import Format, columns, print_json, print_line, print_table

EVENTS = "events"

KindArgument = Annotated[str, typer.Argument(metavar="KIND", help=f"One of: {', '.join(KNOWN)}.")]
JobOption = Annotated[
    str | None, typer.Option("--job", metavar="JOB", help="Of this job only; groups and connections need it.")
]
FormatOption = Annotated[Format, typer.Option("-o", "--output", help="Table, or JSON as the API gives it.")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(get)


def get(
    kind: KindArgument,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them only.")] = None,
    job: JobOption = None,
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """List the things of a kind, or show one of them."""
    wanted = kind_named(kind)
    with Controller(controller, token_file, ca_file) as asked:
        if wanted is None:
            _get_fabric(asked, name, form, curl)
            return
        path, params = route_of(wanted, name, job)
        if curl:
            whole = wanted.single and name is not None
            print_line(asked.curl(path, params if whole else {**params, "limit": PAGE_ITEMS}))
        elif name is not None:
            item = one(asked, wanted, name, job)
            _show([item], item, wanted, form)
        else:
            document = everything(asked, wanted, path, params)
            _show(document[wanted.name], document, wanted, form)


def route_of(kind: Kind, name: str | None, job: str | None) -> tuple[str, Params]:
    """The path and the parameters that ask for a kind, or for one of it where there is a route for that."""
    if kind.name == EVENTS and name is not None:
        raise CliError(
            f"NAME: is {name!r}, but events have numbers; use `opus events --since`", ExitCode.USAGE
        )
    if kind.of_job and job is None:
        raise CliError(
            f"--job: is not given; {kind.name} belong to a job, name it with --job", ExitCode.USAGE
        )
    if job is not None and not (kind.of_job or kind.by_job):
        raise CliError(
            f"--job: is {job!r}, but {kind.name} are not listed by job; leave it out", ExitCode.USAGE
        )
    if kind.name == "groups":
        assert job is not None
        return f"/jobs/{segment(job)}/groups", {}
    params: Params = {} if job is None else {"job": job}
    if kind.single and name is not None:
        return f"/{kind.name}/{segment(name)}", params
    return f"/{kind.name}", params


def everything(asked: Controller, kind: Kind, path: str, params: Params) -> dict[str, Any]:
    """The whole list: as its last page, with the items of all pages in it."""
    items: list[Any] = []
    document: dict[str, Any] = {}
    for document in answers(asked, None, params) if kind.name == EVENTS else asked.pages(path, params):
        found = document.get(kind.name)
        if not isinstance(found, list):
            raise CliError(
                f"{path}: the answer has no list {kind.name!r}; is the controller of another version?",
                ExitCode.UNAVAILABLE,
            )
        items += found
    return {**document, kind.name: items}


def one(asked: Controller, kind: Kind, name: str, job: str | None) -> dict[str, Any]:
    """One item by name. CliError when there is none, with the names that there are."""
    path, params = route_of(kind, name, job)
    if kind.single:
        return asked.get(path, params).body
    items = everything(asked, kind, path, params)[kind.name]
    for item in items:
        if str(item.get(kind.key)) == name:
            return dict(item)
    known = ", ".join(str(item.get(kind.key)) for item in items[:8]) or "none at all"
    more = f" and {len(items) - 8} more" if len(items) > 8 else ""
    raise CliError(f"there is no {kind.one} {name!r}; there are: {known}{more}")


def _show(items: list[dict[str, Any]], document: dict[str, Any], kind: Kind, form: Format) -> None:
    if form is Format.JSON:
        print_json(document)
    else:
        print_table(items, kind.columns, f"no {kind.name}")


def _get_fabric(asked: Controller, name: str | None, form: Format, curl: bool) -> None:
    if name is not None:
        raise CliError(f"NAME: is {name!r}, but there is one fabric only; leave it out", ExitCode.USAGE)
    if curl:
        print_line(asked.curl("/fabric"))
        return
    fabric = asked.get("/fabric").body
    if form is Format.JSON:
        print_json(fabric)
        return
    shape = columns(
        hosts="hosts",
        gpus_per_host="gpus_per_host",
        ports_per_gpu="ports_per_gpu",
        circuit="circuit",
        switches=lambda item: [switch["name"] for switch in item.get("switches") or ()],
        rails=lambda item: [rail["name"] for rail in item.get("rails") or ()],
    )
    print_table([fabric], shape)
