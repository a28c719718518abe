"""Recognises a rank's file that says the same as one read before, but for groups, peers and tags.

Between two communications such files are equal byte for byte, so they are compared run by run instead of
being taken apart node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opus_sdn.whatif.trace.model import Graph
from opus_sdn.whatif.trace.wire import varint

Node = tuple[int, "str | int | None", int]  # number of the shape, partner, tag
Communications = tuple[
    tuple[int, int, int], ...
]  # place in the file, position in the graph, kind; in file order


class Likeness:
    """A file that was read, for others to be compared with. `places`: where its communications are in it."""

    def __init__(
        self,
        content: bytes,
        places: Sequence[int],
        nodes: Sequence[Node],
        graph: Graph,
        communications: Communications,
    ) -> None:
        self.graph, self.communications = graph, communications
        # Before each communication the bytes that are equal; then its place in the file and its shape.
        self._runs: list[tuple[bytes, int, int]] = []
        at = begin = 0
        wanted = set(places)
        for place in range(-1, len(nodes)):  # the first message is the file's metadata
            length, behind = varint(content, at)
            if place in wanted:
                self._runs.append((content[begin:at], place, nodes[place][0]))
                begin = behind + length
            at = behind + length
        self._rest = content[begin:]

    def match(self, content: bytes, node: Callable[[bytes, int], Node]) -> list[Node] | None:
        """The communications of a file that is alike, in file order; None for one that is not.

        `node` looks a message up, by the message and its number in the file.
        """
        own: list[Node] = []
        at = 0
        try:
            for run, place, shape in self._runs:
                if not content.startswith(run, at):
                    return None
                at += len(run)
                length = content[at]
                at += 1
                if length >= 0x80:
                    length, at = varint(content, at - 1)
                message = content[at : at + length]
                at += length
                found = node(message, place + 1)
                if found[0] != shape or len(message) != length:
                    return None
                own.append(found)
        except (IndexError, ValueError):
            return None
        return own if content[at:] == self._rest else None
