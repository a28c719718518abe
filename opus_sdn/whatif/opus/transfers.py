"""Data on links: when ring collectives and messages end, given when their ends have begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from opus_sdn.whatif.inputs.system import System
from opus_sdn.whatif.opus.network import Network
from opus_sdn.whatif.opus.outcome import node_of, position_of, rank_of
from opus_sdn.whatif.opus.rings import Flight, RingSolver
from opus_sdn.whatif.rings import Ring, flight_ns, ring_of
from opus_sdn.whatif.trace.model import Operation, Trace

End = tuple[int, int, int, int]  # time, rank, position, and the node that decided it


class Transfers:
    """All links between ranks. A link stays busy for a while after what it carried has arrived."""

    def __init__(
        self, trace: Trace, system: System, network: Network, latency_ns: float, solver: RingSolver
    ) -> None:
        self._trace, self._system, self._network, self._latency_ns = trace, system, network, latency_ns
        self._solver = solver
        self._rings: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # (rank, position, start) so far
        self._counts: dict[tuple[int, int], int] = {}
        self._plans: dict[tuple[int, Operation], tuple[Ring, tuple[Flight, ...]]] = {}
        self._messages: dict[tuple[int, int, int], deque[tuple[int, int]]] = {}  # what one end has done
        self._free: dict[tuple[int, int], int] = {}
        self._flights: dict[tuple[int, int, int], Flight] = {}

    def join_ring(self, rank: int, position: int, now: int) -> Sequence[End]:
        """A member begins its part of its group's next collective; the last one to do so decides all ends."""
        own = self._trace.ranks[rank]
        group = own.partners[position]
        members = self._trace.groups[group].ranks
        count = self._counts.get((group, rank), 0)
        self._counts[group, rank] = count + 1
        joined = self._rings.setdefault((group, count), [])
        joined.append((rank, position, now))
        if len(joined) < len(members):
            return ()
        del self._rings[group, count]
        ring, flights = self._plan(group, own.graph.operations[position])
        at = {r: (p, start) for r, p, start in joined}
        pairs = list(zip(members, members[1:] + members[:1], strict=True))
        base, ends, frees = self._solver.solve(
            ring, flights, [at[r][1] for r in members], [self._free.get(pair, 0) for pair in pairs]
        )
        self._free.update(zip(pairs, [base + free for free in frees], strict=True))
        node = node_of(rank, position)
        return [(base + end, r, at[r][0], node) for r, end in zip(members, ends, strict=True)]

    def missing(self, rank: int, position: int) -> list[int]:
        """Members that have not joined the collective which this rank has begun."""
        group = self._trace.ranks[rank].partners[position]
        for (which, _), joined in self._rings.items():
            if which == group and any((r, p) == (rank, position) for r, p, _ in joined):
                there = {r for r, _, _ in joined}
                return [r for r in self._trace.groups[group].ranks if r not in there]
        return []

    def send(self, rank: int, position: int, now: int) -> Sequence[End]:
        """A message sets out: its own end, and the receive's if that is posted."""
        own = self._trace.ranks[rank]
        peer = own.partners[position]
        transit_ns, busy_ns = self._flight(rank, peer, own.graph.operations[position].size)
        sent = max(now, self._free.get((rank, peer), 0))
        self._free[rank, peer] = sent + busy_ns
        arrival = sent + transit_ns
        node = node_of(rank, position)
        end = (arrival, rank, position, node)
        return (end, *self._match((rank, peer, own.tags[position]), arrival, node))

    def post(self, rank: int, position: int, now: int) -> Sequence[End]:
        """A receive is posted: its end, if the message is on its way."""
        own = self._trace.ranks[rank]
        return self._match((own.partners[position], rank, own.tags[position]), now, node_of(rank, position))

    def _flight(self, source: int, destination: int, size: int) -> Flight:
        key = (source, destination, size)
        known = self._flights.get(key)
        if known is None:
            bandwidth = self._network.bandwidth(source, destination)
            known = self._flights[key] = flight_ns(size, bandwidth, self._latency_ns)
        return known

    def _plan(self, group: int, operation: Operation) -> tuple[Ring, tuple[Flight, ...]]:
        known = self._plans.get((group, operation))
        if known is None:
            members = self._trace.groups[group].ranks
            ring = ring_of(operation, self._trace.groups[group].members, self._system)
            following = members[1:] + members[:1]
            # A ring of one sends nothing, and has no link.
            flights = tuple(
                self._flight(a, b, ring.size) for a, b in zip(members, following, strict=True) if ring.sends
            )
            known = self._plans[group, operation] = (ring, flights)
        return known

    def _match(self, message: tuple[int, int, int], when: int, node: int) -> Sequence[End]:
        """Join the two ends of a message: it is received when it has arrived and the receive is posted."""
        receives = rank_of(node) == message[1]
        waiting = self._messages.get(message)
        if not waiting or rank_of(waiting[0][1]) == rank_of(node):
            self._messages.setdefault(message, deque()).append((when, node))
            return ()
        other_when, other = waiting.popleft()
        if not waiting:
            del self._messages[message]
        received, sent = (node, other) if receives else (other, node)
        return ((max(when, other_when), rank_of(received), position_of(received), sent),)
