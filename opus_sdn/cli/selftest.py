"""`opus selftest`: the controller-only preflight, step by step on stderr, its result on stdout."""

from __future__ import annotations

from typing import Annotated

import typer

from opus_sdn.cli.exits import CliError
from opus_sdn.cli.interrupts import terminated_like_interrupted
from opus_sdn.cli.output import Format, columns, message, print_json, print_table
from opus_sdn.selftest import SelftestError, run_selftest

FormatOption = Annotated[Format, typer.Option("-o", "--output", help="How to write the result.")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(selftest)


def selftest(form: FormatOption = Format.TABLE) -> None:
    """Check this installation: a controller, an emulated switch and four ranks. No torch, no GPU, seconds."""
    with terminated_like_interrupted():
        try:
            report = run_selftest(message)
        except SelftestError as failed:
            raise CliError(f"self-test: {failed}") from failed
    if form is Format.JSON:
        print_json(report.as_json())
    else:
        rows = [
            {"check": c.name, "result": "pass" if c.ok else "FAIL", "seen": c.seen} for c in report.checks
        ]
        print_table(rows, columns(check="check", result="result", seen="seen"))
    failed_checks = [check.name for check in report.checks if not check.ok]
    if failed_checks:
        raise CliError(f"self-test: {len(failed_checks)} of {len(report.checks)} checks failed")
    message(f"self-test passed in {report.seconds:.1f} s")
