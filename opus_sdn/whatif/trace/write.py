"""Writes a step as Chakra execution traces, a file for each rank, as published tools read them too.

A node that is the same on all ranks of one shape is encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opus_sdn.whatif.trace.model import (
    COLLECTIVE,
    COMPUTE,
    METADATA,
    RECEIVE,
    SEND,
    Graph,
    Group,
    Operation,
    RankTrace,
    Trace,
)

# Field numbers of GlobalMetadata, Node and AttributeProto, and their wire types.
_VERSION, _ID, _NAME, _TYPE, _DATA_DEPS, _DURATION, _ATTR = 1, 1, 2, 3, 5, 7, 10
_ATTR_NAME, _INT32, _INT64, _UINT64, _BOOL, _STRING = 1, 7, 9, 13, 27, 29
_VARINT, _LENGTH = 0, 2

VERSION = b"0.0.4"


def write_trace(trace: Trace, prefix: Path) -> None:
    """`<prefix>.<rank>.et` for every rank. Raises OSError."""
    encoder = Encoder(trace.groups)
    for rank in trace.ranks:
        prefix.with_name(f"{prefix.name}.{rank.rank}.et").write_bytes(encoder.rank(rank))


class Encoder:
    """Encodes the ranks of one step, of which many share a graph."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._graphs: dict[int, tuple[Graph, list[bytes]]] = {}
        self._metadata = _delimited(_text(_VERSION, VERSION))

    def rank(self, rank: RankTrace) -> bytes:
        """The content of the rank's file."""
        heads = self._heads(rank.graph)
        parts = [self._metadata]
        for position, (head, operation) in enumerate(zip(heads, rank.graph.operations, strict=True)):
            if operation.kind in (COMPUTE, METADATA):
                parts.append(head)
            else:
                own = self._partner(operation, rank.partners[position], rank.tags[position])
                parts.append(_delimited(head + own))
        return b"".join(parts)

    def _heads(self, graph: Graph) -> list[bytes]:
        """What nodes are on every rank of the shape; whole messages where that is all."""
        known = self._graphs.get(id(graph))
        if known is None:
            parents: list[list[int]] = [[] for _ in graph.ids]
            for position, children in enumerate(graph.children):
                for child in children:
                    parents[child].append(graph.ids[position])
            heads = [
                encode_head(node, operation, sorted(deps))
                for node, operation, deps in zip(graph.ids, graph.operations, parents, strict=True)
            ]
            whole = [
                _delimited(head) if operation.kind in (COMPUTE, METADATA) else head
                for head, operation in zip(heads, graph.operations, strict=True)
            ]
            known = self._graphs[id(graph)] = (graph, whole)
        return known[1]

    def _partner(self, operation: Operation, partner: int, tag: int) -> bytes:
        if operation.kind == COLLECTIVE:
            return _attribute(b"pg_name", _text(_STRING, self._groups[partner].name.encode()))
        whom = b"comm_dst" if operation.kind == SEND else b"comm_src"
        return _attribute(b"comm_tag", _number(_INT64, tag)) + _attribute(whom, _number(_INT32, partner))


def encode_head(node: int, operation: Operation, dependencies: Sequence[int]) -> bytes:
    """A node without what differs between ranks of one shape: the group, or the peer and tag."""
    parts = [_number(_ID, node), _text(_NAME, operation.name.encode()), _number(_TYPE, operation.kind)]
    if dependencies:
        parts.append(_text(_DATA_DEPS, b"".join(map(_varint, dependencies))))
    if operation.recorded_ns:
        parts.append(_number(_DURATION, operation.recorded_ns // 1000))
    if operation.kind == COMPUTE:
        parts.append(_attribute(b"num_ops", _number(_INT64, operation.ops)))
        parts.append(_attribute(b"tensor_size", _number(_UINT64, operation.size)))
    elif operation.kind in (SEND, RECEIVE, COLLECTIVE):
        parts.append(_attribute(b"comm_size", _number(_INT64, operation.size)))
        parts.append(_attribute(b"is_cpu_op", _number(_BOOL, 0)))
        if operation.kind == COLLECTIVE:
            parts.append(_attribute(b"comm_type", _number(_INT64, operation.collective)))
    return b"".join(parts)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(value)) + value


def _attribute(name: bytes, value: bytes) -> bytes:
    return _text(_ATTR, _text(_ATTR_NAME, name) + value)


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message
