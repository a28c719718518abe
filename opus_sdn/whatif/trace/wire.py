"""One node message of a Chakra execution trace, scanned by hand.

The messages are protocol buffers of a handful of fields, and a trace repeats nearly all of them byte for
byte, so a scanner that is called once per distinct message is faster than any library would be to import.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.trace.model import (
    ALL_GATHER,
    COLLECTIVE,
    COLLECTIVE_NAMES,
    COMPUTE,
    METADATA,
    RECEIVE,
    SEND,
    Operation,
)

# Field numbers of Node and AttributeProto.
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 4, 5, 7, 10
_ATTR_NAME = 1
_PLAIN_INTEGERS = frozenset((7, 9, 11, 13, 27))  # int32, int64, uint32, uint64, bool
_ZIGZAG_INTEGERS = frozenset((15, 17))
_FIXED = {19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_STRING = 29
_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5

# How an attribute of ours begins: its name comes first in every writer known.
_OURS = tuple(
    bytes((_ATTR_NAME << 3 | _LENGTH, len(name))) + name
    for name in (
        b"num_ops",
        b"tensor_size",
        b"comm_type",
        b"comm_size",
        b"comm_src",
        b"comm_dst",
        b"comm_tag",
        b"pg_name",
    )
)

_MAX_VARINT_BYTES = 10
_MAX_DEPENDENCIES = 100_000
_MAX_SIZE = 1 << 56  # bytes or operations: beyond it a double no longer counts exactly what a step could move
_MAX_TAG = 1 << 62
_MIN_GATHER = 4  # a shard is gathered in four chunks

Value = int | str
Field = tuple[int, int, "int | bytes"]


class Parsed(NamedTuple):
    """A node: id, the ids it waits for, what it does, and the rank's own: group name or peer, and tag."""

    id: int
    dependencies: tuple[int, ...]
    operation: Operation
    partner: str | int | None
    tag: int


class _MalformedError(ValueError):
    """The bytes are no protocol buffer message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned varint at `at` and the position behind it; IndexError when the data ends inside it."""
    first, second = data[at], data[at + 1] if data[at] >= 0x80 else 0
    if second < 0x80:  # nearly all
        return (first & 0x7F) | second << 7, at + (2 if first >= 0x80 else 1)
    value = shift = 0
    for position in range(at, at + _MAX_VARINT_BYTES):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + 1
        shift += 7
    raise _MalformedError("a varint of more than ten bytes")


def _fields(data: bytes) -> list[Field]:
    """Number, wire type and value of each field; most keys and lengths are single bytes."""
    found: list[Field] = []
    at, end = 0, len(data)
    try:
        while at < end:
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = varint(data, at - 1)
            wire = key & 7
            value: int | bytes
            if wire == _LENGTH:
                length = data[at]
                at += 1
                if length >= 0x80:
                    length, at = varint(data, at - 1)
                value = data[at : at + length]
                at += length
            elif wire == _VARINT:
                value = data[at]
                at += 1
                if value >= 0x80:
                    value, at = varint(data, at - 1)
            elif wire == _I64:
                value = data[at : at + 8]
                at += 8
            elif wire == _I32:
                value = data[at : at + 4]
                at += 4
            else:
                raise _MalformedError(f"wire type {wire} of field {key >> 3}")
            if key < 8 or at > end:
                raise _MalformedError(f"field {key >> 3} does not end inside its message")
            found.append((key >> 3, wire, value))
    except IndexError:
        raise _MalformedError("the message ends inside a number") from None
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _attribute(data: bytes) -> tuple[str, Value | None]:
    """Name and value; None for a value that is neither an integer nor a string."""
    name = ""
    value: Value | None = None
    for number, wire, raw in _fields(data):
        if number == _ATTR_NAME and isinstance(raw, bytes):
            name = raw.decode("utf-8", "replace")
        elif number in _PLAIN_INTEGERS and isinstance(raw, int):
            value = _signed(raw)
        elif number in _ZIGZAG_INTEGERS and isinstance(raw, int):
            value = (raw >> 1) ^ -(raw & 1)
        elif number in _FIXED and isinstance(raw, bytes) and wire == (_I64 if number in (21, 25) else _I32):
            value = struct.unpack(_FIXED[number], raw)[0]
        elif number == _STRING and isinstance(raw, bytes):
            value = raw.decode("utf-8", "replace")
    return name, value


def _dependencies(wire: int, raw: int | bytes) -> list[int]:
    """Packed or single: both are legal for a repeated number."""
    if isinstance(raw, int):
        return [raw]
    if wire != _LENGTH:
        raise _MalformedError("a dependency that is no varint")
    found, at = [], 0
    try:
        while at < len(raw):
            value, at = varint(raw, at)
            found.append(value)
    except IndexError:
        raise _MalformedError("a list of dependencies ends inside a number") from None
    return found


def parse_node(message: bytes, file: str, index: int) -> Parsed:
    """The node in `message`, number `index` of `file`. Raises InputError with what is wrong in it."""
    number_of_node: int | None = None
    name, kind, micros = "", 0, 0
    dependencies: list[int] = []
    attributes: dict[str, Value | None] = {}
    try:
        for number, wire, raw in _fields(message):
            if number == _ID and isinstance(raw, int):
                number_of_node = raw
            elif number == _NAME and isinstance(raw, bytes):
                name = raw.decode("utf-8", "replace")
            elif number == _TYPE and isinstance(raw, int):
                kind = raw
            elif number in (_CTRL_DEPS, _DATA_DEPS):
                dependencies += _dependencies(wire, raw)
            elif number == _DURATION and isinstance(raw, int):
                micros = raw
            elif number == _ATTR and isinstance(raw, bytes) and raw.startswith(_OURS):
                # The others may be long, and hold nothing that takes time.
                key, value = _attribute(raw)
                attributes[key] = value
    except _MalformedError as error:
        raise InputError(f"no Chakra node: {error}", file=file, field=f"message {index}") from None
    node = number_of_node or 0  # proto3 leaves out what is zero
    if len(dependencies) > _MAX_DEPENDENCIES:
        why = f"at most {_MAX_DEPENDENCIES} dependencies are read"
        raise InputError(why, file=file, node=node, field="data_deps", value=len(dependencies))
    operation, partner, tag = _Attributes(file, node, attributes).operation(kind, name, micros)
    return Parsed(node, tuple(sorted(set(dependencies))), operation, partner, tag)


class _Attributes:
    """The attributes of one node, read with a message for each that is missing or impossible."""

    def __init__(self, file: str, node: int, found: dict[str, Value | None]) -> None:
        self._file, self._node, self._found = file, node, found

    def operation(self, kind: int, name: str, micros: int) -> tuple[Operation, str | int | None, int]:
        if kind == COMPUTE:
            size, ops = self._integer("tensor_size", 0), self._integer("num_ops", 0)
            if micros > _MAX_SIZE:
                raise self._error("duration_micros", micros, f"it must be at most {_MAX_SIZE}")
            return Operation(COMPUTE, name, -1, size, ops, micros * 1000), None, 0
        if kind == COLLECTIVE:
            which = self._integer("comm_type", 0)
            if which not in COLLECTIVE_NAMES:
                known = ", ".join(f"{number} {text}" for number, text in COLLECTIVE_NAMES.items())
                raise self._error("comm_type", which, f"the collectives with a ring schedule are {known}")
            smallest = _MIN_GATHER if which == ALL_GATHER else 1
            size = self._integer("comm_size", minimum=smallest)
            return Operation(COLLECTIVE, name, which, size, 0, 0), self._group_name(), 0
        if kind in (SEND, RECEIVE):
            size = self._integer("comm_size", minimum=1)
            peer = self._integer("comm_dst" if kind == SEND else "comm_src")
            tag = self._integer("comm_tag", 0, maximum=_MAX_TAG)
            return Operation(kind, name, -1, size, 0, 0), peer, tag
        if kind == METADATA:
            return Operation(METADATA, name, -1, 0, 0, 0), None, 0
        why = "nodes are 1 metadata, 4 compute, 5 send, 6 receive or 7 collective"
        raise self._error("type", kind, why)

    def _error(self, field: str, value: object, why: str) -> InputError:
        return InputError(why, file=self._file, node=self._node, field=field, value=value)

    def _integer(
        self, name: str, default: int | None = None, *, minimum: int = 0, maximum: int = _MAX_SIZE
    ) -> int:
        if name not in self._found:
            if default is None:
                raise self._error(name, None, "the attribute is missing")
            return default
        value = self._found[name]
        if not isinstance(value, int):
            raise self._error(name, value, "it must be an integer")
        if not minimum <= value <= maximum:
            raise self._error(name, value, f"it must lie between {minimum} and {maximum}")
        return value

    def _group_name(self) -> str:
        value = self._found.get("pg_name")
        if value is None or value == "":
            raise self._error("pg_name", value, "a collective must name its group")
        return str(value)
