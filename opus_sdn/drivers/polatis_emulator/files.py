"""Files for the emulator: what the switch is, and what is wrong with it. YAML, or JSON, which is YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from opus_sdn.drivers.polatis_emulator.spec import Strict

FILE_BYTES_MAX = 1024 * 1024

Document = TypeVar("Document", bound=Strict)


class EmulatorFileError(ValueError):
    """A file or a value that cannot be used: a line for each fault, with where it is and what is wrong."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The top level of a file. Raises EmulatorFileError."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise EmulatorFileError(f"{path}: cannot be read: {failed.strerror}; name an existing file") from None
    if len(raw) > FILE_BYTES_MAX:
        raise EmulatorFileError(f"{path}: is larger than {FILE_BYTES_MAX} bytes")
    try:
        document = yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as wrong:
        raise EmulatorFileError(f"{path}: is no YAML: {str(wrong).splitlines()[0]}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise EmulatorFileError(f"{path}: is a {type(document).__name__}; right would be names with values")
    return document


def check(model: type[Document], values: dict[str, Any], source: str) -> Document:
    """The values as what they are to be. Raises EmulatorFileError with a line for each fault."""
    try:
        # By way of JSON, where a list may stand for a tuple and nothing else is taken for something else.
        return model.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as wrong:
        lines = []
        for fault in wrong.errors(include_url=False):
            where = ".".join(str(part) for part in fault["loc"])
            text = fault["msg"].removeprefix("Value error, ")
            given = f" (given: {fault['input']!r:.80})" if text == fault["msg"] else ""
            lines.append(f"{source}: {where + ': ' if where else ''}{text}{given}")
        raise EmulatorFileError("\n".join(lines)) from None
