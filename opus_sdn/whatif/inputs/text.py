"""Reads a small input file: plain or xz, text or JSON or YAML, with an error that names the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from opus_sdn.whatif.errors import InputError

if TYPE_CHECKING:
    from yaml import Node

MAX_BYTES = 1 << 24


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, unpacked when its name ends in `.xz`. What fails while it is read is an InputError too."""
    try:
        if path.suffix == ".xz":
            import lzma

            with lzma.open(path) as packed:
                yield packed
        else:
            with path.open("rb") as plain:
                yield plain
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
    except Exception as error:
        if type(error).__name__ not in ("LZMAError", "EOFError"):
            raise
        raise InputError(f"no readable xz file: {error}", file=path) from None


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of the file, unpacked when its name ends in `.xz`; at most `limit` bytes."""
    with opened(path) as file:
        content = file.read(limit + 1)
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

    make_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where there is one
    try:
        loader = make_loader(read_bytes(path))
        document = loader.get_single_node()
        _refuse_twice(document, path)  # before `<<` is resolved, where a key may be said once more
        found = None if document is None else loader.construct_document(document)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"no YAML: {' '.join(str(error).split())}", file=path) from None
    if not isinstance(found, dict):
        raise InputError("it must hold a YAML mapping", file=path)
    return found


def _refuse_twice(document: Node | None, path: Path) -> None:
    """A key that stands twice in a mapping: the loader would keep the last and be silent about the others."""
    from yaml import MappingNode, ScalarNode, SequenceNode

    waiting: list[Any] = [document]
    seen: set[int] = set()  # aliases lead to the same node, also to one that holds them
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, SequenceNode):
            waiting += node.value
        elif isinstance(node, MappingNode):
            lines: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                waiting += (key, value)
                if not isinstance(key, ScalarNode):
                    continue
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    why = f"the key stands there twice, in lines {lines[name]} and {line}: one has to go"
                    raise InputError(why, file=path, field=key.value)
                lines[name] = line


def number(value: object, *, file: Path, field: str, minimum: float, maximum: float) -> float:
    """`value` as a number from `minimum` to `maximum`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not minimum <= value <= maximum:
        why = f"it must be a number from {minimum:g} to {maximum:g}"
        raise InputError(why, file=file, field=field, value=value)
    return float(value)


def integer(value: object, *, file: Path, field: str, minimum: int = 0, maximum: int | None = None) -> int:
    """`value` as an integer from `minimum` on, to `maximum` where there is one."""
    fine = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
    if not fine or (maximum is not None and value > maximum):  # type: ignore[operator]
        until = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise InputError(f"it must be an integer {until}", file=file, field=field, value=value)
    return value  # type: ignore[return-value]
