"""How the command line ends: exit codes that scripts can rely on, and the one error that people see."""

from __future__ import annotations

from enum import IntEnum

import typer

from opus_sdn.cli import INTERRUPTED


class ExitCode(IntEnum):
    """What a command's exit code says."""

    OK = 0
    REFUSED = 1  # asked and refused, looked and found wrong, checked and failed
    USAGE = 2  # a flag, an argument or a setting that cannot be used; nothing was asked
    UNAVAILABLE = 3  # nobody answers at the controller's address, or it is no controller
    INTERRUPTED = INTERRUPTED  # Ctrl-C


EXIT_CODES_HELP = (
    "Exit codes: 0 done; 1 refused, or checked and found wrong; 2 a flag, argument or setting that cannot be "
    "used; 3 no controller answered; 130 interrupted. Data goes to stdout, everything else to stderr."
)


class CliError(typer.TyperException):
    """Ends the command: `message` on stderr (a line for each fault), `code` as exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.REFUSED) -> None:
        super().__init__(message)
        self.exit_code = int(code)
