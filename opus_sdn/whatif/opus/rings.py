"""When the members of a ring collective end, on links of their own: exact recurrences in integer nanoseconds.

The chunks of a collective follow one another on each rank. Every step sends one message to the next member
and waits for one from the previous member. All ends lie after the last member's start, so a collective is
solved once, when its last member starts; what repeats is looked up by relative times.
"""

from __future__ import annotations

from collections.abc import Sequence

from opus_sdn.whatif.rings import Ring

Flight = tuple[int, int]  # after how many ns a message has arrived, and its link is free again


class RingSolver:
    """Ends of ring collectives from their members' starts and from when their links to the next are free."""

    def __init__(self, endpoint_ns: int) -> None:
        self._endpoint_ns = endpoint_ns
        self._known: dict[object, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def solve(
        self, ring: Ring, flights: tuple[Flight, ...], starts: Sequence[int], frees: Sequence[int]
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """A base time and, relative to it, each member's end and when its link is free again.

        Members are in ring order; `flights[i]` and `frees[i]` belong to the link from member i to the next.
        """
        base = min(starts)
        begun = tuple([start - base for start in starts])
        # A link that is free before the first send is as good as one that always was.
        tails = tuple(
            [
                0 if free <= start + self._endpoint_ns else free - base
                for free, start in zip(frees, starts, strict=True)
            ]
        )
        key = (ring, flights, begun, tails)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._solve(ring, flights, begun, tails)
        return base, *known

    def _solve(
        self, ring: Ring, flights: tuple[Flight, ...], starts: tuple[int, ...], tails: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        members = range(len(starts))
        ready, free = list(starts), list(tails)
        arrived = [0] * len(starts)
        delay = self._endpoint_ns
        for _ in range(ring.chunks):
            issued = [at + delay for at in ready]
            for step in range(ring.sends):
                work = delay + (ring.reduction_ns if step < ring.reduced else 0)
                for i in members:
                    sent = issued[i] if issued[i] > free[i] else free[i]
                    transit_ns, busy_ns = flights[i]
                    free[i] = sent + busy_ns
                    arrived[i] = sent + transit_ns
                # Member i receives from i - 1; its own receive was posted with its send.
                issued = [(a if (a := arrived[i - 1]) > issued[i] else issued[i]) + work for i in members]
            ready = issued
        return tuple(ready), tuple(free)
