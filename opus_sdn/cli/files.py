"""Reading a fabric file that was named on the command line, `-` being stdin; writing one whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.fabric_file import FabricFileError, FabricSpec, parse_fabric
from opus_sdn.fabric_file.read import FILE_BYTES_MAX

STDIN = "-"


def fabric_text(name: str) -> tuple[str, str]:
    """The text, and what messages call its source. CliError `usage` when it cannot be read."""
    source = "stdin" if name == STDIN else name
    try:
        if name == STDIN:
            raw = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise CliError(
            f"{source}: cannot be read: {failed.strerror}; `opus fabric generate` writes a fabric file",
            ExitCode.USAGE,
        ) from None
    if len(raw) > FILE_BYTES_MAX:
        raise CliError(
            f"{source}: is larger than {FILE_BYTES_MAX} bytes; use ranges of hosts, and first_port",
            ExitCode.USAGE,
        )
    try:
        return raw.decode("utf-8"), source
    except UnicodeDecodeError:
        raise CliError(f"{source}: is not UTF-8 text; save it as UTF-8", ExitCode.USAGE) from None


def read_fabric(name: str) -> FabricSpec:
    """The fabric that a file declares. CliError with a line for every fault."""
    text, source = fabric_text(name)
    try:
        return parse_fabric(text, source)
    except FabricFileError as wrong:
        raise CliError(str(wrong)) from None


def write_whole(path: Path, text: str) -> None:
    """Write a file that readers see complete or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
