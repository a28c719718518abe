"""Reads a trace set. A node message is parsed once however often it occurs, and ranks of one shape share a
graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.trace.files import RankFile, rank_files
from opus_sdn.whatif.trace.likeness import Communications, Likeness, Node
from opus_sdn.whatif.trace.model import (
    COLLECTIVE,
    NO_PARTNER,
    SEND,
    Graph,
    Group,
    Operation,
    RankTrace,
    Trace,
)
from opus_sdn.whatif.trace.wire import Parsed, parse_node, varint

MAX_NODES = 1 << 25  # of all ranks
MAX_NODES_OF_RANK = 1 << 21
MAX_DISTINCT_BYTES = 1 << 29  # of messages that are kept because they are unlike all before
MAX_LIKENESSES = 16  # files that others are compared with
_MAX_MESSAGE = 1 << 24

_Shape = tuple[int, tuple[int, ...], Operation]


def load_trace(where: Path | str, groups: Sequence[Group]) -> Trace:
    """The step in the `.et` files at `where`: a folder, an archive or a prefix. Raises InputError.

    Every message is matched by its counterpart and every member of a group has the same number of
    collectives on it; the order of files, or of nodes within one, means nothing.
    """
    return build_trace(rank_files(Path(where)), groups)


def build_trace(files: Iterable[RankFile], groups: Sequence[Group]) -> Trace:
    """The step in `files`: rank, name for messages, content."""
    loader = _Loader(groups)
    ranks = {rank: loader.rank(rank, name, content) for rank, name, content in files}
    names = {rank: name for rank, (name, _) in ranks.items()}
    in_order = tuple(ranks[rank][1] for rank in sorted(ranks))
    for group in groups:
        if max(group.ranks) >= len(in_order):
            why = f"the group has rank {max(group.ranks)}, the trace ranks 0 to {len(in_order) - 1}"
            raise InputError(why, file=names[0], field="pg_name", value=group.name)
    _match_messages(in_order, names)
    _match_collectives(in_order, groups, names)
    graphs = tuple(dict.fromkeys(rank.graph for rank in in_order))
    return Trace(in_order, tuple(groups), graphs, sum(len(rank.graph) for rank in in_order))


class _Loader:
    """What the files of one set have in common: messages, shapes and graphs seen so far."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = {group.name: (index, frozenset(group.ranks)) for index, group in enumerate(groups)}
        self._messages: dict[bytes, Node] = {}
        self._distinct_bytes = 0
        self._shape_numbers: dict[_Shape, int] = {}
        self._shapes: list[_Shape] = []
        self._operations: dict[Operation, Operation] = {}
        self._graphs: dict[tuple[int, ...], tuple[Graph, Communications]] = {}
        self._likenesses: list[Likeness] = []
        self._nodes = 0

    def rank(self, rank: int, file: str, content: bytes) -> tuple[str, RankTrace]:
        """The file's name, and what it holds for its rank."""
        for likeness in self._likenesses:
            own = likeness.match(content, lambda message, index: self._node(message, file, index))
            if own is not None:
                self._count(len(likeness.graph), file)
                return file, self._rank_trace(rank, file, likeness.graph, likeness.communications, own)
        nodes = self._scan(file, content)
        self._count(len(nodes), file)
        key = tuple([node[0] for node in nodes])
        known = self._graphs.get(key)
        if known is None:
            known = self._graphs[key] = self._graph(file, key)
        graph, communications = known
        if len(self._likenesses) < MAX_LIKENESSES:
            places = [in_file for in_file, _, _ in communications]
            self._likenesses.append(Likeness(content, places, nodes, graph, communications))
        own = [nodes[in_file] for in_file, _, _ in communications]
        return file, self._rank_trace(rank, file, graph, communications, own)

    def _count(self, nodes: int, file: str) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise InputError(f"at most {MAX_NODES} nodes are read, of all ranks", file=file)

    def _rank_trace(
        self, rank: int, file: str, graph: Graph, communications: Communications, own: Sequence[Node]
    ) -> RankTrace:
        """The rank, from its `own` communications in file order."""
        partners = [NO_PARTNER] * len(graph)
        tags = [0] * len(graph)
        for (_, position, kind), (_, partner, tag) in zip(communications, own, strict=True):
            if kind == COLLECTIVE:
                partners[position] = self._group(rank, file, graph.ids[position], str(partner))
            else:
                partners[position] = int(partner or 0)
                tags[position] = tag
        return RankTrace(rank, graph, tuple(partners), tuple(tags))

    def _node(self, message: bytes, file: str, index: int) -> Node:
        return self._messages.get(message) or self._new(message, file, index)

    def _scan(self, file: str, content: bytes) -> list[Node]:
        """The nodes in file order. The first message is metadata, which holds nothing that we need."""
        found: list[Node] = []
        add, known = found.append, self._messages.get
        at, end = self._skip_metadata(file, content), len(content)
        try:
            while at < end:
                length = content[at]
                at += 1
                if length >= 0x80:
                    length, at = varint(content, at - 1)
                stop = at + length
                if stop > end:
                    break
                message = content[at:stop]
                at = stop
                add(known(message) or self._new(message, file, len(found) + 1))
                if len(found) > MAX_NODES_OF_RANK:
                    raise InputError(f"at most {MAX_NODES_OF_RANK} nodes of a rank are read", file=file)
        except (IndexError, ValueError):
            at = end + 1
        if at < end or at > end:
            raise InputError(f"the file ends inside message {len(found) + 1}", file=file)
        if not found:
            raise InputError("the trace has no nodes", file=file)
        return found

    @staticmethod
    def _skip_metadata(file: str, content: bytes) -> int:
        try:
            length, at = varint(content, 0)
        except (IndexError, ValueError):
            length, at = len(content), 1
        if at + length > len(content):
            raise InputError("no Chakra trace: its first message does not end inside the file", file=file)
        return at + length

    def _new(self, message: bytes, file: str, index: int) -> Node:
        self._distinct_bytes += len(message)
        if len(message) > _MAX_MESSAGE or self._distinct_bytes > MAX_DISTINCT_BYTES:
            why = f"a message may have {_MAX_MESSAGE} bytes, distinct ones {MAX_DISTINCT_BYTES} together"
            raise InputError(why, file=file, field=f"message {index}")
        parsed: Parsed = parse_node(message, file, index)
        operation = self._operations.setdefault(parsed.operation, parsed.operation)
        shape = (parsed.id, parsed.dependencies, operation)
        number = self._shape_numbers.setdefault(shape, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(shape)
        node = self._messages[message] = (number, parsed.partner, parsed.tag)
        return node

    def _graph(self, file: str, key: tuple[int, ...]) -> tuple[Graph, Communications]:
        """The graph of nodes with these shapes; of each communication: place in file, position, kind."""
        shapes = [self._shapes[number] for number in key]
        order = sorted(range(len(shapes)), key=lambda i: shapes[i][0])
        position_of = {shapes[in_file][0]: position for position, in_file in enumerate(order)}
        if len(position_of) != len(shapes):
            ids = sorted(shape[0] for shape in shapes)
            twice = next(a for a, b in pairwise(ids) if a == b)
            raise InputError("two nodes have this id", file=file, node=twice, field="id", value=twice)
        children: list[list[int]] = [[] for _ in order]
        for position, in_file in enumerate(order):
            node, dependencies, _ = shapes[in_file]
            for dependency in dependencies:
                if dependency not in position_of:
                    why = "no node of this rank has that id"
                    raise InputError(why, file=file, node=node, field="data_deps", value=dependency)
                children[position_of[dependency]].append(position)
        graph = Graph(
            ids=tuple([shapes[in_file][0] for in_file in order]),
            operations=tuple([shapes[in_file][2] for in_file in order]),
            indegree=tuple([len(shapes[in_file][1]) for in_file in order]),
            children=tuple([tuple(found) for found in children]),
        )
        _refuse_cycles(graph, file)
        communications = tuple(
            sorted(
                (order[position], position, graph.operations[position].kind)
                for position in graph.communications
            )
        )
        return graph, communications

    def _group(self, rank: int, file: str, node: int, name: str) -> int:
        if name not in self._groups:
            why = "the groups file has no such group"
            raise InputError(why, file=file, node=node, field="pg_name", value=name)
        index, members = self._groups[name]
        if rank not in members:
            why = f"rank {rank} is no member of that group"
            raise InputError(why, file=file, node=node, field="pg_name", value=name)
        return index


def _refuse_cycles(graph: Graph, file: str) -> None:
    waiting = list(graph.indegree)
    free = [position for position, count in enumerate(waiting) if count == 0]
    done = 0
    while free:
        position = free.pop()
        done += 1
        for child in graph.children[position]:
            waiting[child] -= 1
            if waiting[child] == 0:
                free.append(child)
    if done == len(graph):
        return
    # Walk backwards among nodes that still wait: the first one met twice lies on a cycle.
    parents: dict[int, int] = {}
    for position, found in enumerate(graph.children):
        if waiting[position]:
            parents.update((child, position) for child in found if waiting[child])
    at = next(iter(parents))
    met: list[int] = []
    while at not in met:
        met.append(at)
        at = parents[at]
    cycle = [graph.ids[position] for position in [*met[met.index(at) :], at]]
    why = "these nodes wait for one another: " + " <- ".join(str(node) for node in cycle[:9])
    raise InputError(why, file=file, node=graph.ids[at], field="data_deps")


_Message = tuple[int, int, int, int]  # source, destination, tag, bytes


def _match_messages(ranks: Sequence[RankTrace], names: dict[int, str]) -> None:
    open_sends: dict[_Message, list[tuple[int, int]]] = {}
    open_receives: dict[_Message, list[tuple[int, int]]] = {}
    for rank in ranks:
        for position in rank.graph.communications:
            operation = rank.graph.operations[position]
            if operation.kind == COLLECTIVE:
                continue
            peer, node = rank.partners[position], rank.graph.ids[position]
            field = "comm_dst" if operation.kind == SEND else "comm_src"
            if peer >= len(ranks) or peer == rank.rank:
                why = f"the peer must be another rank, 0 to {len(ranks) - 1}"
                raise InputError(why, file=names[rank.rank], node=node, field=field, value=peer)
            ends = (rank.rank, peer) if operation.kind == SEND else (peer, rank.rank)
            key = (*ends, rank.tags[position], operation.size)
            mine, other = (
                (open_sends, open_receives) if operation.kind == SEND else (open_receives, open_sends)
            )
            if other.get(key):
                other[key].pop()
            else:
                mine.setdefault(key, []).append((rank.rank, node))
    for what, left in (("receive", open_sends), ("send", open_receives)):
        for (source, destination, tag, size), ends_left in left.items():
            if ends_left:
                owner, node = ends_left[0]
                why = f"no {what} matches the {size} bytes from rank {source} to {destination} with this tag"
                raise InputError(why, file=names[owner], node=node, field="comm_tag", value=tag)


def _match_collectives(ranks: Sequence[RankTrace], groups: Sequence[Group], names: dict[int, str]) -> None:
    counts: dict[tuple[int, int], int] = {}
    for rank in ranks:
        for position in rank.graph.communications:
            if rank.graph.operations[position].kind == COLLECTIVE:
                key = (rank.rank, rank.partners[position])
                counts[key] = counts.get(key, 0) + 1
    for (rank_number, index), count in counts.items():
        for member in groups[index].ranks:
            other = counts.get((member, index), 0)
            if other != count:
                why = (
                    f"rank {rank_number} has {count} collectives on this group and rank {member} has {other}"
                )
                raise InputError(why, file=names[member], field="pg_name", value=groups[index].name)
