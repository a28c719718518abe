"""What the operation graphs alone say of a step: the expected order of communication, and what leads on.

No times and no run are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from opus_sdn.whatif.trace.model import COLLECTIVE, COMPUTE, METADATA, RECEIVE, SEND, Graph, RankTrace, Trace


def expected_orders(trace: Trace) -> list[list[int]]:
    """For each rank the positions of its sends, receives and collectives, in expected order.

    All operations of all ranks are taken in waves, each as soon as what it depends on has been taken; a
    receive depends on its send. A rank that watches one step learns as much, as far as the program fixes it.
    """
    missing = [list(rank.graph.indegree) for rank in trace.ranks]
    kinds = {id(graph): [operation.kind for operation in graph.operations] for graph in trace.graphs}
    receives = _receives(trace)
    for ends in receives.values():
        for rank, position in ends:
            missing[rank][position] += 1
    ready = deque(
        (rank, position)
        for rank, counts in enumerate(missing)
        for position, count in enumerate(counts)
        if not count
    )
    found: list[list[int]] = [[] for _ in trace.ranks]
    while ready:
        rank, position = ready.popleft()
        own = trace.ranks[rank]
        kind = kinds[id(own.graph)][position]
        if kind not in (COMPUTE, METADATA):
            found[rank].append(position)
        follow = [(rank, child) for child in own.graph.children[position]]
        if kind == SEND:
            follow.append(receives[rank, own.partners[position], own.tags[position]].popleft())
        for other, child in follow:
            missing[other][child] -= 1
            if not missing[other][child]:
                ready.append((other, child))
    return found


def _receives(trace: Trace) -> dict[tuple[int, int, int], deque[tuple[int, int]]]:
    """Receives by source, destination and tag, in order of position."""
    found: dict[tuple[int, int, int], deque[tuple[int, int]]] = {}
    for rank in trace.ranks:
        for position, operation in enumerate(rank.graph.operations):
            if operation.kind == RECEIVE:
                message = (rank.partners[position], rank.rank, rank.tags[position])
                found.setdefault(message, deque()).append((rank.rank, position))
    return found


def leads_on(graph: Graph) -> list[bool]:
    """For each node whether a send or a collective waits for it, directly or not.

    A program cannot go on without these; the rest (as reduced gradients) it needs by the end of the step.
    """
    missing = list(graph.indegree)
    order = [position for position, count in enumerate(missing) if not count]
    for position in order:
        for child in graph.children[position]:
            missing[child] -= 1
            if not missing[child]:
                order.append(child)
    found = [False] * len(graph)
    for position in reversed(order):
        found[position] = any(
            found[child] or graph.operations[child].kind in (SEND, COLLECTIVE)
            for child in graph.children[position]
        )
    return found


def deferred(trace: Trace, is_scale_up: Callable[[tuple[int, ...]], bool]) -> Trace:
    """The same step with every collective that nothing needs before the end after its rank's last message.

    A change of the program, not of the controller: what it would bring to reorder the reduction of gradients.
    Collectives inside a host stay where they are.
    """
    graphs: dict[tuple[int, tuple[int, ...]], Graph] = {}
    ranks: list[RankTrace] = []
    for rank in trace.ranks:
        needed = leads_on(rank.graph)
        late = tuple(
            position
            for position, operation in enumerate(rank.graph.operations)
            if operation.kind == COLLECTIVE
            and not needed[position]
            and not is_scale_up(trace.groups[rank.partners[position]].ranks)
        )
        key = (id(rank.graph), late)
        if key not in graphs:
            graphs[key] = _after_messages(rank.graph, late)
        ranks.append(replace(rank, graph=graphs[key]))
    return replace(trace, ranks=tuple(ranks), graphs=tuple(graphs.values()))


def _after_messages(graph: Graph, late: tuple[int, ...]) -> Graph:
    messages = [p for p, operation in enumerate(graph.operations) if operation.kind in (SEND, RECEIVE)]
    children = [list(found) for found in graph.children]
    indegree = list(graph.indegree)
    for message in messages:
        for position in late:
            if position not in graph.children[message]:
                children[message].append(position)
                indegree[position] += 1
    return replace(graph, indegree=tuple(indegree), children=tuple(tuple(found) for found in children))
