"""The program of one pipeline stage, run by all its ranks: an operation graph whose partners are roles."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from opus_sdn.whatif.trace.model import COLLECTIVE, COMPUTE, RECEIVE, SEND, Graph, Operation

Key = Hashable


class Role(NamedTuple):
    """Whom a communication is with: the rank's group in a dimension, or the same rank of another stage."""

    dimension: str | None
    stage: int
    tag: int


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """`roles[p]` belongs to the node at position p of the graph; None for what is no communication."""

    graph: Graph
    roles: tuple[Role | None, ...]


class Builder:
    """Collects nodes by key. What is added first has the smaller id, and is tried first when both are ready.

    Dependencies are keys, also of nodes that are added later.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[Operation, Role | None, tuple[Key, ...]]] = []
        self._positions: dict[Key, int] = {}

    def compute(self, key: Key, name: str, size: int, ops: int, deps: Iterable[Key]) -> Key:
        """Operations on `size` bytes of memory traffic."""
        return self._add(key, self._operation(COMPUTE, name, -1, size, ops), None, deps)

    def collective(
        self, key: Key, name: str, which: int, dimension: str, size: int, deps: Iterable[Key]
    ) -> Key:
        """A collective of the rank's group in a dimension; `size` as Chakra's comm_size."""
        return self._add(key, self._operation(COLLECTIVE, name, which, size, 0), Role(dimension, -1, 0), deps)

    def send(self, key: Key, name: str, size: int, stage: int, tag: int, deps: Iterable[Key]) -> Key:
        """A message to the same rank of another stage."""
        return self._add(key, self._operation(SEND, name, -1, size, 0), Role(None, stage, tag), deps)

    def receive(self, key: Key, name: str, size: int, stage: int, tag: int, deps: Iterable[Key] = ()) -> Key:
        """A message from there."""
        return self._add(key, self._operation(RECEIVE, name, -1, size, 0), Role(None, stage, tag), deps)

    def __contains__(self, key: Key) -> bool:
        return key in self._positions

    def _operation(self, kind: int, name: str, which: int, size: int, ops: int) -> Operation:
        return Operation(kind, name, which, max(1, size), ops, 0)

    def _add(self, key: Key, operation: Operation, role: Role | None, deps: Iterable[Key]) -> Key:
        assert key not in self._positions, key
        self._positions[key] = len(self._nodes)
        self._nodes.append((operation, role, tuple(dict.fromkeys(deps))))
        return key

    def program(self) -> Program:
        """All of it."""
        children: list[list[int]] = [[] for _ in self._nodes]
        for position, (_, _, deps) in enumerate(self._nodes):
            for key in deps:
                children[self._positions[key]].append(position)
        graph = Graph(
            ids=tuple(range(1, len(self._nodes) + 1)),
            operations=tuple([operation for operation, _, _ in self._nodes]),
            indegree=tuple([len(deps) for _, _, deps in self._nodes]),
            children=tuple([tuple(found) for found in children]),
        )
        return Program(graph, tuple([role for _, role, _ in self._nodes]))
