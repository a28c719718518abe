"""What a rank expects to need next, said as the hints of provision mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from opus_sdn.intent.model import Hint, Stream

Conflict = Callable[[Stream, Stream], bool]


class Expectation:
    """One rank's gated operations in expected order: `order`, with their `streams` by position."""

    def __init__(
        self,
        order: Sequence[int],
        streams: Mapping[int, Stream],
        counts: Mapping[Stream, int],
        conflict: Conflict,
    ) -> None:
        self._order = [position for position in order if position in streams]
        self._streams, self._counts, self._conflict = streams, counts, conflict
        self._at = 0  # everything before has finished
        self._arrived: set[int] = set()
        self._finished: set[int] = set()
        self._said: Hint | None = None

    def arrive(self, position: int) -> None:
        """The rank is at this operation."""
        self._arrived.add(position)

    def finish(self, position: int) -> None:
        """The rank is through with it."""
        self._finished.add(position)
        while self._at < len(self._order) and self._order[self._at] in self._finished:
            self._at += 1

    def news(self) -> tuple[Hint, ...]:
        """The next operation that the rank has not arrived at, once what comes before it is over; said once.

        Two may be hinted at once: the next one of a connection that the rank is at, and a message whose ports
        nothing before it needs, because receives are posted long before they are served.
        """
        before: dict[Stream, None] = {}
        for position in self._order[self._at :]:
            stream = self._streams[position]
            if position in self._finished:
                continue
            if position in self._arrived:
                before[stream] = None
                continue
            hint = Hint(stream, self._counts.get(stream, 0))
            if hint == self._said or not all(self._may_overlap(stream, other) for other in before):
                break
            self._said = hint
            return (hint,)
        return ()

    def _may_overlap(self, stream: Stream, other: Stream) -> bool:
        return stream == other or (stream.source is not None and not self._conflict(stream, other))
