"""Assembles the commands, and turns whatever ends one into an exit code and at most a few plain lines."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Annotated

import typer

from opus_sdn.cli.exits import EXIT_CODES_HELP, CliError, ExitCode

DEBUG = "--debug"

# Which module adds each command. Only that of the command that is run is imported.
MODULES = {
    "serve": "serve",
    "selftest": "selftest",
    "fabric": "fabric",
    "get": "get",
    "describe": "describe",
    "apply": "apply",
    "observe": "observe",
    "plan": "plan",
    "drain": "operate",
    "undrain": "operate",
    "circuit": "operate",
    "release": "operate",
    "withdraw": "operate",
    "events": "events",
    "whatif": "whatif_command",
    "agent": "agent",
    "experiment": "experiment",
    "trace": "trace",
    "emulator": "emulator",
    "db": "admin",
    "config": "admin",
    "openapi": "admin",
    "version": "admin",
}


def _show_version(wanted: bool) -> None:
    if wanted:
        from opus_sdn import __version__

        sys.stdout.write(f"{__version__}\n")
        raise typer.Exit


def opus(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show the traceback of an error; may stand anywhere.")
    ] = False,
) -> None:
    """Options of every command."""


def _app_for(arguments: list[str]) -> typer.Typer:
    """The command line, with the command that is run, or with all when none of them is."""
    app = typer.Typer(
        name="opus",
        help="Opus SDN: the control plane for optical circuit switches in GPU training fabrics.",
        epilog=EXIT_CODES_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(opus)
    named = next((argument for argument in arguments if not argument.startswith("-")), "")
    for module in [MODULES[named]] if named in MODULES else dict.fromkeys(MODULES.values()):
        importlib.import_module(f"opus_sdn.cli.{module}").add_to(app)
    return app


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit code. Errors are lines on stderr, with `--debug` a traceback too."""
    debug = DEBUG in arguments
    try:
        command = typer.main.get_command(_app_for(arguments))
        code = command.main(
            [argument for argument in arguments if argument != DEBUG],
            prog_name="opus",
            standalone_mode=False,
        )
        sys.stdout.flush()
        return int(code or ExitCode.OK)
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.REFUSED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except CliError as error:
        return _end(error, str(error), error.exit_code, debug)
    except typer.TyperException as error:
        if not error.format_message():  # no command was named, and typer has printed the help
            return error.exit_code
        return _end(error, _usage(error), error.exit_code, debug)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug is a line too, not a page
        text = f"{type(error).__name__}: {error} (a bug; {DEBUG} shows where)"
        return _end(error, text, ExitCode.REFUSED, debug)


def _end(error: Exception, text: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    from opus_sdn.cli.output import message

    for line in text.splitlines():
        message(line, error=True)
    return code


def _usage(error: typer.TyperException) -> str:
    """A usage error in one line, with the command whose --help says more."""
    text = " ".join(error.format_message().split())
    from pydantic import ValidationError  # the settings have loaded it already, if it is to blame

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        # What typer makes of it names the flag, but not the value.
        found = cause.errors(include_url=False)[0]
        named = text.partition(": ")[0].removeprefix("Invalid value for ")
        text = f"{named} is {found['input']!r}: {found['msg'].removeprefix('Value error, ')}"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "opus"
    return f"{text.rstrip('.')}; `{path} --help` lists what is possible"
