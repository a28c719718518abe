"""How the command line ends: exit codes that scripts can rely on, and the one error that people see."""

from __future__ import annotations

import typer

from opus_sdn.cli.codes import ExitCode

__all__ = ["EXIT_CODES_HELP", "CliError", "ExitCode"]


EXIT_CODES_HELP = (
    "Exit codes: 0 done; 1 refused, or checked and found wrong; 2 a flag, argument or setting that cannot be "
    "used; 3 no controller answered, or the replayed step hangs; 130 interrupted. Data goes to stdout, "
    "everything else to stderr."
)


class CliError(typer.TyperException):
    """Ends the command: `message` on stderr (a line for each fault), `code` as exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.REFUSED) -> None:
        super().__init__(message)
        self.exit_code = int(code)
