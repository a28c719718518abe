"""Writes results where people asked for them."""

from __future__ import annotations

import os
from pathlib import Path

from opus_sdn.whatif.errors import InputError


def require_folder(folder: Path) -> None:
    """Before long work whose results go into `folder`, which need not exist yet. Raises InputError."""
    try:
        place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=folder) from None
    if not place.is_dir():
        raise InputError(f"cannot be written: {place} is no folder", file=folder)
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"cannot be written: nothing may be written into {place}", file=folder)


def write_text(file: Path, text: str) -> None:
    """Write the file, with the folders that lead to it. Raises InputError where that is not possible."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=file) from None
