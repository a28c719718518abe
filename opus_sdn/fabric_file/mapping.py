"""Small YAML files of names with values, for settings that belong to no fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FILE_BYTES_MAX = 1024 * 1024


class MappingFileError(ValueError):
    """A file that cannot be used; the message names it and says what would be right."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The top level of a file, which may be empty. Raises MappingFileError."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise MappingFileError(f"{path}: cannot be read: {failed.strerror}; name an existing file") from None
    if len(raw) > FILE_BYTES_MAX:
        raise MappingFileError(f"{path}: is larger than {FILE_BYTES_MAX} bytes")
    try:
        document = yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as wrong:
        raise MappingFileError(f"{path}: is no YAML: {str(wrong).splitlines()[0]}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise MappingFileError(f"{path}: is a {type(document).__name__}; right would be names with values")
    return document
