"""The links of the fast engine: who uses each, how many are busy, and when a drain ends.

A link without a user knows when it falls free; one in use is as its operation's solution says.
"""

from __future__ import annotations

from collections.abc import Iterator

from opus_sdn.whatif.peer.order import UnknownOrderError
from opus_sdn.whatif.peer.ranks import Ranks
from opus_sdn.whatif.peer.solve import Puzzle, Solver
from opus_sdn.whatif.peer.uses import Change, Link, MessageUse, OrderOf, RingUse
from opus_sdn.whatif.peer.wire import NEVER, Flight, Wire
from opus_sdn.whatif.rings import flight_ns
from opus_sdn.whatif.scenario import Scenario

UNKNOWN = (-NEVER, NEVER)  # when an event was put into the queue, where that is not told


class LinkedRanks(Ranks):
    """Ranks and the links between them. What is not here yet has never been used."""

    def __init__(self, scenario: Scenario, solver: Solver) -> None:
        super().__init__(scenario)
        self._solver = solver
        self._endpoint = scenario.system.endpoint_delay_ns
        self._n = len(self.trace.ranks)
        self._links: dict[int, Link] = {}
        self._active: dict[RingUse | MessageUse, None] = {}
        self._flights: dict[tuple[int, float], tuple[int, int]] = {}
        self._installed = 0
        self._change: Change | None = None
        self._changed: dict[tuple[int, int], list[tuple[int, int]]] = {}
        # While a drain lasts: how many links must fall free, since when, and which have.
        self._needed = 0
        self._since = 0
        self._fallen: list[int] = []
        self._untouched = 0  # links that nobody has used, and that are busy for the nanosecond after a change
        self._drained_by = UNKNOWN
        self._all_past = False  # nothing is on the agenda: what happens in this nanosecond has happened

    def _link(self, source: int, destination: int) -> Link:
        key = source * self._n + destination
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(source, destination)
            if self._change is not None and self.now + self._all_past <= self._change.time + 1:
                link.change(self._change)
                if self._untouched:
                    self._untouched -= 1
        return link

    def _take(self, link: Link, use: RingUse | MessageUse) -> None:
        if link.user is not None:
            raise UnknownOrderError("two operations use one link")
        past = link.settle(self.now + self._all_past)
        if self.control.draining:
            self._fallen += [time for time in past if time > self._since]
        link.user = use

    def _release_link(self, link: Link, base: int, wire: Wire, order_of: OrderOf) -> None:
        link.leave(base, wire, order_of)
        if self.control.draining:
            self._fallen += [base + time for time in wire.idles if base + time > self._since]

    def _flight(self, size: int, topology: int, link: Link) -> Flight:
        bandwidth = self.scenario.schedules.topologies[topology][link.source][link.destination]
        if bandwidth <= 0:
            return None
        key = (size, bandwidth)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = flight_ns(size, bandwidth, self.scenario.latency_ns)
        return flight

    def _count_busy(self) -> int:
        """How many of all links are busy now."""
        now = self.now
        count = 0
        for link in self._links.values():
            if link.user is None:
                link.settle(now + self._all_past)
                if link.frees and link.frees[0].time == now:
                    raise UnknownOrderError("a link falls free in the nanosecond of a request")
                count += link.busy
        for link, base, wire, at_first in self._wires():
            if base == now and isinstance(link.user, MessageUse) and wire.marks[-1:] == [0]:
                count += 1  # sent in this very nanosecond, and before this request: it is known already
            else:
                count += wire.busy_at(now - base, at_first, all_past=self._all_past)
        self._untouched = 0
        change = self._change
        if change is not None and now + self._all_past <= change.time + 1:
            if now > change.time:
                raise UnknownOrderError("links fall free in the nanosecond of a request")
            self._untouched = self._n * (self._n - 1) - len(self._links)
        return count + self._untouched

    def _wires(self) -> Iterator[tuple[Link, int, Wire, bool]]:
        """Each link in use, with the time its wire counts from, and whether it was busy when it was taken."""
        for use in self._active:
            if isinstance(use, MessageUse):
                assert use.wire is not None
                use.wire.finish(NEVER)
                yield use.link, use.time, use.wire, use.busy
                continue
            detail = self._solver.detail(self._puzzle(use))
            for member, link in enumerate(use.links):
                if link is not None and not use.done[member]:
                    yield link, use.base, detail.wires[member], use.busy[member]

    def _find_drain(self) -> int | None:
        """When as many links have fallen free as were busy; None: not before something else happens."""
        since = self._since
        fallen = list(self._fallen)
        where = [
            (link, [free.time for free in link.frees if free.time > since])
            for link in self._links.values()
            if link.user is None
        ]
        where += [
            (link, [base + time for time in wire.fallen_after(since - base)])
            for link, base, wire, _ in self._wires()
        ]
        for _, times in where:
            fallen += times
        if self._untouched:
            assert self._change is not None
            fallen += [self._change.time + 1] * self._untouched
        fallen.sort()
        if len(fallen) < self._needed:
            return None
        end = fallen[self._needed - 1]
        if len(fallen) > self._needed and fallen[self._needed] == end:
            # More fall free in that nanosecond, and those after the last counted see the new topology. Where
            # that is the old one for them, falling free a nanosecond early is no difference.
            before = self.scenario.schedules.topologies[self._installed]
            after = self.scenario.schedules.topologies[self.control.topology]
            for link, times in where:
                a, b = link.source, link.destination
                if end in times and before[a][b] != after[a][b]:
                    raise UnknownOrderError("a drain ends while more links fall free in one nanosecond")
        put_in = [
            free.inserted
            for link in self._links.values()
            if link.user is None
            for free in link.frees
            if free.time == end
        ]
        put_in += [base + time for _, base, wire, _ in self._wires() for time in wire.put_in(end - base)]
        if self._untouched and self._change is not None and self._change.time + 1 == end:
            put_in.append(self._change.time)
        self._drained_by = (min(put_in), max(put_in))
        return end

    def _puzzle(self, use: RingUse) -> Puzzle:
        flights = {}
        for member, link in enumerate(use.links):
            if link is not None:
                seen = use.topologies[use.epochs[member] :]
                flights[member] = [self._flight(use.ring.size, topology, link) for topology in seen]
        return use.puzzle(self._endpoint, flights)

    def _differences(self, old: int, new: int) -> list[tuple[int, int]]:
        """The links whose bandwidth differs between two topologies."""
        found = self._changed.get((old, new))
        if found is None:
            before, after = self.scenario.schedules.topologies[old], self.scenario.schedules.topologies[new]
            found = self._changed[old, new] = [
                (source, destination)
                for source, (a, b) in enumerate(zip(before, after, strict=True))
                if a is not b
                for destination in range(self._n)
                if a[destination] != b[destination] and source != destination
            ]
        return found

    def _last_event(self) -> int:
        """When the last thing happens that is known of, links falling free included."""
        times = [free.time for link in self._links.values() if link.user is None for free in link.frees]
        if self._change is not None:
            times.append(self._change.time + 1)
        times += [base + wire.last_event() for _, base, wire, _ in self._wires()]
        for use in self._active:
            if isinstance(use, RingUse):
                detail = self._solver.detail(self._puzzle(use))
                times += [use.base + max(t for t in (*found, 0) if t != NEVER) for found in detail.ticks]
        return max(times)
