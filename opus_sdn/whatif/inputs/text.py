"""Reads a small input file: plain or xz, text or JSON or YAML, with an error that names the file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from opus_sdn.whatif.errors import InputError

MAX_BYTES = 1 << 24
MAX_SCHEDULE_BYTES = 1 << 30


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of the file, unpacked when its name ends in `.xz`; at most `limit` bytes."""
    try:
        if path.suffix == ".xz":
            import lzma

            with lzma.open(path) as packed:
                content = packed.read(limit + 1)
        else:
            with path.open("rb") as plain:
                content = plain.read(limit + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
    except Exception as error:
        if type(error).__name__ not in ("LZMAError", "EOFError"):
            raise
        raise InputError(f"no readable xz file: {error}", file=path) from None
    if len(content) > limit:
        raise InputError(f"at most {limit} bytes are read", file=path)
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file."""
    try:
        found = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON: {error}", file=path) from None
    if not isinstance(found, dict):
        raise InputError("it must hold a JSON object", file=path)
    return found


def read_yaml(path: Path) -> dict[Any, Any]:
    """The YAML mapping in the file."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        found = yaml.load(read_bytes(path), loader)  # noqa: S506 - a safe loader, in C where there is one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"no YAML: {' '.join(str(error).split())}", file=path) from None
    if not isinstance(found, dict):
        raise InputError("it must hold a YAML mapping", file=path)
    return found


def number(value: object, *, file: Path, field: str, minimum: float = 0.0, exclusive: bool = False) -> float:
    """`value` as a finite number not below `minimum` (above it, when `exclusive`)."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value < minimum or (exclusive and value == minimum):  # type: ignore[operator]
        why = f"it must be a number {'above' if exclusive else 'of at least'} {minimum:g}"
        raise InputError(why, file=file, field=field, value=value)
    return float(value)  # type: ignore[arg-type]


def integer(value: object, *, file: Path, field: str, minimum: int = 0) -> int:
    """`value` as an integer not below `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise InputError(f"it must be an integer of at least {minimum}", file=file, field=field, value=value)
    return value
