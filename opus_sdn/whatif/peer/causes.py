"""Which reconfigurations the end of a step hangs on: its causal chain, walked backwards.

The last node to end was begun in a scheduling pass, the pass was caused by the end of another node of that
rank, and so on. A collective ends when it does because its last member began, a receive because of its
send. Where a message or a collective on switched links took longer than it takes on links that are up and
idle, it waited for the newest reconfiguration that was asked for before.
"""

from __future__ import annotations

from bisect import bisect_right

from opus_sdn.whatif.peer.ranks import Ranks
from opus_sdn.whatif.peer.solve import IDLE_LINK, Puzzle, Solver
from opus_sdn.whatif.result import Exposure
from opus_sdn.whatif.rings import flight_ns
from opus_sdn.whatif.trace.model import COLLECTIVE, RECEIVE, SEND

Node = tuple[int, int]  # rank, position

_NOTICEABLE_NS = 10_000  # a link's tail and the nanosecond of a change add up to less


class Causes:
    """The causal chain of a replay that has ended."""

    def __init__(self, ranks: Ranks, solver: Solver) -> None:
        self._ranks, self._solver = ranks, solver
        self._by_end: dict[int, tuple[list[int], list[int]]] = {}
        self._rounds: dict[Node, list[int]] = {}
        self._seen: set[Node] = set()

    def exposures(self) -> list[Exposure]:
        """The waits on the chain, first one first."""
        finish = self._ranks.finish
        rank = finish.index(max(finish))
        at = self._ended(rank, finish[rank])
        found: list[Exposure] = []
        while at is not None:
            self._seen.add(at)  # what takes no time begins when it ends: no node is its own cause
            decisive = self._decisive(at)
            self._seen.add(decisive)
            waited = self._waited(at, decisive)
            if waited is not None:
                found.append(waited)
            rank, position = decisive
            start = self._ranks.started[rank][position]
            at = self._cause(rank, start) if start else None
        return found[::-1]

    def _cause(self, rank: int, time: int) -> Node | None:
        """The node whose end made `rank` look around at `time`; where it was none of its own, the newest."""
        at = self._ended(rank, time)
        if at is not None and self._ranks.ended[at[0]][at[1]] == time:
            return at
        return max(
            (node for other in range(len(self._ranks.finish)) if (node := self._ended(other, time - 1))),
            key=lambda node: self._ranks.ended[node[0]][node[1]],
            default=None,
        )

    def _ended(self, rank: int, time: int) -> Node | None:
        """The last node of a rank that ended at or before `time` and is not on the chain yet."""
        known = self._by_end.get(rank)
        if known is None:
            ended = self._ranks.ended[rank]
            order = sorted(range(len(ended)), key=ended.__getitem__)
            known = self._by_end[rank] = ([ended[position] for position in order], order)
        place = bisect_right(known[0], time)
        while place and (rank, known[1][place - 1]) in self._seen:
            place -= 1
        return (rank, known[1][place - 1]) if place else None

    def _decisive(self, node: Node) -> Node:
        """The node whose start decided when `node` ended."""
        rank, position = node
        ranks = self._ranks
        kind, partner = ranks.programs[rank].kinds[position], ranks.partners[rank][position]
        if kind == COLLECTIVE:
            number = self._round(rank, partner).index(position)
            members = ranks.trace.groups[partner].ranks
            parts = [(member, self._round(member, partner)[number]) for member in members]
            return max(parts, key=lambda part: ranks.started[part[0]][part[1]])
        if kind == RECEIVE:
            send = self._send_of(node)
            return node if send is None else max(node, send, key=lambda n: ranks.started[n[0]][n[1]])
        return node

    def _round(self, rank: int, group: int) -> list[int]:
        """The collectives of a rank on a group in the order of their starts."""
        known = self._rounds.get((rank, group))
        if known is None:
            ranks = self._ranks
            known = self._rounds[rank, group] = sorted(
                [
                    position
                    for position, partner in enumerate(ranks.partners[rank])
                    if partner == group and ranks.programs[rank].kinds[position] == COLLECTIVE
                ],
                key=ranks.started[rank].__getitem__,
            )
        return known

    def _send_of(self, receive: Node) -> Node | None:
        """The send that a receive ended with: of the same tag, to this rank, and ended at the same time."""
        rank, position = receive
        ranks = self._ranks
        peer = ranks.partners[rank][position]
        for candidate, partner in enumerate(ranks.partners[peer]):
            if (
                partner == rank
                and ranks.programs[peer].kinds[candidate] == SEND
                and ranks.trace.ranks[peer].tags[candidate] == ranks.trace.ranks[rank].tags[position]
                and ranks.ended[peer][candidate] <= ranks.ended[rank][position]
            ):
                return peer, candidate
        return None

    def _waited(self, node: Node, decisive: Node) -> Exposure | None:
        """What an operation on switched links lost to the newest reconfiguration before its end."""
        ranks = self._ranks
        rank, position = decisive
        kind, partner = ranks.programs[rank].kinds[position], ranks.partners[rank][position]
        if kind not in (COLLECTIVE, SEND) or (kind == COLLECTIVE and not ranks.switched[partner]):
            return None
        end = ranks.ended[node[0]][node[1]]
        start = ranks.started[rank][position]
        before = [found for found in ranks.reconfigurations if found[0] < end]
        time, topology = before[-1]
        waited = end - start - self._undisturbed(rank, position, partner)
        if time == 0 or waited < _NOTICEABLE_NS:
            return None
        name = ranks.programs[rank].graph.operations[position].name
        return Exposure(time, topology, waited, rank, name)

    def _undisturbed(self, rank: int, position: int, partner: int) -> int:
        """How long the operation takes when all members begin together, on links that are up and idle."""
        ranks = self._ranks
        latency = ranks.scenario.latency_ns
        topologies = ranks.scenario.schedules.topologies
        if ranks.programs[rank].kinds[position] == SEND:
            size = ranks.programs[rank].graph.operations[position].size
            return flight_ns(size, max(rows[rank][partner] for rows in topologies), latency)[0]
        members = ranks.trace.groups[partner].ranks
        n = len(members)
        ring = ranks.ring(rank, position, n)
        flights = []
        for place, member in enumerate(members):
            after = members[(place + 1) % n]
            fastest = max(rows[member][after] for rows in topologies)
            flights.append((flight_ns(ring.size, fastest, latency),))
        endpoint = ranks.scenario.system.endpoint_delay_ns
        puzzle = Puzzle(ring, endpoint, (0,) * n, (IDLE_LINK,) * n, tuple(flights), ((),) * n)
        return max(self._solver.solve(puzzle).ends)
