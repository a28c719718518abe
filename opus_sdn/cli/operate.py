"""`opus drain`, `undrain`, `circuit`, `release`, `withdraw`: what operators tell, with their name on it."""

from __future__ import annotations

import getpass
import json
from typing import Annotated, Any

import typer

from opus_sdn.cli.controller import DEFAULT_CONTROLLER as HERE
from opus_sdn.cli.controller import (
    CaFileOption,
    Controller,
    ControllerOption,
    CurlOption,
    Params,
    TokenFileOption,
    segment,
)
from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.get import FormatOption
from opus_sdn.cli.kinds import KINDS
from opus_sdn.cli.output import Format, columns, message, print_json, print_line, print_table

PortArgument = Annotated[str, typer.Argument(metavar="PORT", help="Port, as host:slot:index.")]
ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who asks for it; else the name of the user.")
]
DetailOption = Annotated[
    str, typer.Option("-m", "--message", metavar="TEXT", help="Why; kept in the events.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Go before locks and running jobs: traffic may be cut.")
]

circuit_app = typer.Typer(help="Circuits that operators keep up, in nobody's job.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(drain)
    app.command()(undrain)
    app.add_typer(circuit_app, name="circuit")
    app.command()(release)
    app.command()(withdraw)


def user() -> str:
    """The name of whoever runs this, or a word that says that he has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unnamed"


def drain(
    port: PortArgument,
    detail: DetailOption = "",
    by: ByOption = None,
    force: ForceOption = False,
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """No circuit for a port from now on; what is idle on it is taken down. Lasts until `opus undrain`."""
    body = {"by": by or user(), "detail": detail, "force": force}
    with Controller(controller, token_file, ca_file) as asked:
        answer = _post(asked, f"/ports/{segment(port)}/drain", body, curl)
    if answer is not None:
        _show(answer, form)


def undrain(
    port: PortArgument,
    detail: DetailOption = "",
    by: ByOption = None,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """A port may be used again; whatever waited for it goes on."""
    with Controller(controller, token_file, ca_file) as asked:
        body = {"by": by or user(), "detail": detail}
        if _post(asked, f"/ports/{segment(port)}/undrain", body, curl) is not None:
            message(f"port {port} may be used")


@circuit_app.command()
def keep(
    a: Annotated[str, typer.Argument(metavar="A", help="One port, as host:slot:index.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other port, on the same rail.")],
    detail: DetailOption = "",
    by: ByOption = None,
    force: ForceOption = False,
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Keep a circuit between two ports up; jobs that need one of them are not admitted."""
    body = {"a": a, "b": b, "by": by or user(), "detail": detail, "force": force}
    with Controller(controller, token_file, ca_file) as asked:
        answer = _post(asked, "/circuits", body, curl)
    if answer is not None:
        _show(answer, form)


@circuit_app.command()
def drop(
    circuit: Annotated[str, typer.Argument(metavar="CIRCUIT", help="As `opus get directives` names it.")],
    detail: DetailOption = "",
    by: ByOption = None,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Keep a circuit up no longer; it stays until something else needs its ports."""
    with Controller(controller, token_file, ca_file) as asked:
        params: Params = {"by": by or user(), "detail": detail or None}
        if _delete(asked, f"/circuits/{segment(circuit)}", params, curl) is not None:
            message(f"circuit {circuit} is nobody's now")


def release(
    lock: Annotated[
        str | None, typer.Argument(metavar="[LOCK]", help="As `opus get locks` names it.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="All locks of this job.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only of this rank of the job.")] = None,
    detail: DetailOption = "",
    by: ByOption = None,
    force: ForceOption = False,
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Take locks away. Without --force this only says why not: their ranks may still transmit."""
    if (lock is None) == (job is None) or (rank is not None and job is None):
        raise CliError("LOCK or --job: give one of them, and --rank with --job only", ExitCode.USAGE)
    params: dict[str, str | int | None] = {
        "by": by or user(),
        "detail": detail or None,
        "force": "true" if force else None,
    }
    with Controller(controller, token_file, ca_file) as asked:
        path = f"/locks/{segment(lock)}" if lock is not None else ""
        if job is not None:
            path = f"/jobs/{segment(job)}/locks"
            params |= {"incarnation": asked.get(f"/jobs/{segment(job)}").body["incarnation"], "rank": rank}
        answer = _delete(asked, path, params, curl)
    if answer is None:
        return
    if form is Format.JSON:
        print_json(answer)
    else:
        shape = columns(job="job", rank="rank", connection="connection", n="n", grant="no")
        print_table(answer["released"], shape)


def withdraw(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A queued job.")],
    by: ByOption = None,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Take a job out of the queue; whoever waited behind it moves up."""
    with Controller(controller, token_file, ca_file) as asked:
        if _delete(asked, f"/queue/{segment(job)}", {"by": by or user()}, curl) is not None:
            message(f"job {job} waits no longer")


def _post(asked: Controller, path: str, body: dict[str, Any], curl: bool) -> dict[str, Any] | None:
    """The answer; None when the curl line was wanted instead."""
    content = json.dumps(body).encode()
    if curl:
        print_line(asked.curl(path, method="POST", body=content))
        return None
    return asked.post(path, content).body


def _delete(asked: Controller, path: str, params: Params, curl: bool) -> dict[str, Any] | None:
    if curl:
        print_line(asked.curl(path, params, method="DELETE"))
        return None
    return asked.delete(path, params).body


def _show(directive: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        print_json(directive)
    else:
        print_table([directive], KINDS["directives"].columns)
