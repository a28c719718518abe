"""Writes results where people asked for them."""

from __future__ import annotations

from pathlib import Path

from opus_sdn.whatif.errors import InputError


def write_text(file: Path, text: str) -> None:
    """Write the file, with the folders that lead to it. Raises InputError where that is not possible."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=file) from None
