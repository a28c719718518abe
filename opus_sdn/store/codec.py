"""How values of the core are written into text columns, and read back exactly.

JSON here has one form only (sorted keys, no spaces, no NaN), so that equal values are equal text. Reading is
strict: text that the writing side would not have produced is refused, as guessing would hide a broken
database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import JobSpec, Stream
from opus_sdn.store.base import StoreError

# Keys of tables cannot be NULL: a ring has no source and no destination, and is written with this instead.
NO_RANK = -1

T = TypeVar("T")

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_SPEC = TypeAdapter(JobSpec)
_NUMBERS = TypeAdapter(tuple[int, ...])
_TEXTS = TypeAdapter(tuple[str, ...])
_PAIRS = TypeAdapter(tuple[tuple[int, int], ...])


def to_json(value: object, what: str) -> str:
    """The one JSON text of `value`; StoreError naming `what` when it is not JSON (a set, NaN, mixed keys)."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as refused:
        raise StoreError(
            f"{what} is {value!r:.200}, which is not JSON ({refused}): use text keys, text, finite numbers, "
            "booleans, null, lists and objects of these"
        ) from refused


def text(value: str | None) -> str | None:
    """Text for people as every database can hold it: without the NUL character, which PostgreSQL refuses."""
    return None if value is None else value.replace("\0", "\ufffd")


def data_from_json(text: str, what: str) -> dict[str, object]:
    """Read an object written by `to_json`."""
    try:
        value = json.loads(text)
    except ValueError as refused:
        raise _unreadable(what, text, str(refused)) from refused
    if not isinstance(value, dict):
        raise _unreadable(what, text, "an object is expected")
    return value


def spec_to_json(spec: JobSpec) -> str:
    """A job's declaration as text."""
    fields = _SPEC.dump_python(spec, mode="json")
    if spec.retry_budget is None:  # as databases have it that are older than this field
        del fields["retry_budget"]
    return to_json(fields, f"spec of job {spec.name!r}")


def spec_from_json(text: str, job: str) -> JobSpec:
    """Read a job's declaration; missing, unknown or mistyped fields are refused."""
    what = f"spec of job {job!r}"
    spec = _read(_SPEC, text, what)
    if spec_to_json(spec) != text:
        raise _unreadable(what, text, "fields are missing, unknown or not in the written form")
    return spec


def numbers_to_json(numbers: Iterable[int]) -> str:
    """Ranks and the like."""
    return to_json(list(numbers), "numbers")


def numbers_from_json(text: str, what: str) -> tuple[int, ...]:
    """Read what `numbers_to_json` wrote."""
    return _read(_NUMBERS, text, what)


def texts_to_json(texts: Iterable[str]) -> str:
    """Names in their order."""
    return to_json(list(texts), "texts")


def texts_from_json(text: str, what: str) -> tuple[str, ...]:
    """Read what `texts_to_json` wrote."""
    return _read(_TEXTS, text, what)


def pairs_to_json(pairs: Iterable[CrossConnect]) -> str:
    """Cross-connects in their order, as [[ingress, egress], ...]."""
    return to_json([list(pair) for pair in pairs], "cross-connects")


def pairs_from_json(text: str, what: str) -> tuple[CrossConnect, ...]:
    """Read what `pairs_to_json` wrote."""
    return tuple(CrossConnect(*pair) for pair in _read(_PAIRS, text, what))


def stream_key(stream: Stream) -> tuple[str, int, int]:
    """A stream as the columns connection, source, destination."""
    source = NO_RANK if stream.source is None else stream.source
    destination = NO_RANK if stream.destination is None else stream.destination
    return stream.connection, source, destination


def stream_of(connection: str, source: int, destination: int) -> Stream:
    """The stream that `stream_key` wrote."""
    if source == NO_RANK and destination == NO_RANK:
        return Stream(connection)
    return Stream(connection, source, destination)


def _read(adapter: TypeAdapter[T], text: str, what: str) -> T:
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as refused:
        first = refused.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        raise _unreadable(what, text, f"{where}: {first['msg']}") from refused


def _unreadable(what: str, text: str, why: str) -> StoreError:
    return StoreError(
        f"{what} is stored as {text[:200]!r}, which cannot be read: {why}; "
        "the database was changed by something else: restore it from a copy"
    )
