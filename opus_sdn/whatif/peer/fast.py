"""The published model with one event for each operation: rings are solved, not replayed.

Where two things happen in one nanosecond and their order cannot be told, it raises UnknownOrderError, and
the exact engine has to do.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from opus_sdn.whatif.peer.hang import cannot_finish
from opus_sdn.whatif.peer.links import UNKNOWN, LinkedRanks
from opus_sdn.whatif.peer.order import Chain, UnknownOrderError
from opus_sdn.whatif.peer.solve import Solution, Solver
from opus_sdn.whatif.peer.uses import Change, Due, Falling, Link, MessageUse, RingUse
from opus_sdn.whatif.peer.wire import LINK, NEVER, PULSE, START, Flight, Free, Root, Wire
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.rings import Ring
from opus_sdn.whatif.scenario import Scenario

_AT_ONCE: Chain = (0, None)
_NO_FREES: list[Falling] = []


class FastEngine(LinkedRanks):
    """Replays a scenario. `solver` may be shared by replays one after another."""

    def __init__(self, scenario: Scenario, solver: Solver | None = None) -> None:
        super().__init__(scenario, solver or Solver())
        if self._endpoint < 1:
            raise UnknownOrderError("without an endpoint delay everything happens at once")
        # What will happen: (order, number, rank, position, use, version of the use) at each time.
        self._agenda: dict[int, list[tuple[Any, ...]]] = {}
        self._times: list[int] = []
        self._number = 0
        self._members = [group.ranks for group in self.trace.groups]
        self._rings_begun: list[dict[int, int]] = [{} for _ in self._members]
        self._ports: list[list[Link | None]] = [[None] * len(ranks) for ranks in self._members]
        self._ring_flights: dict[tuple[int, int, int], list[Flight]] = {}
        self._open_rings: dict[tuple[int, int], RingUse] = {}
        self._part: list[tuple[RingUse, int] | None] = [None] * self._n
        self._compute_end = [0] * self._n
        self._places = [{rank: place for place, rank in enumerate(ranks)} for ranks in self._members]
        self._arrived: dict[tuple[int, ...], int] = {}
        self._posted: dict[tuple[int, ...], list[int]] = {}
        self._compute_orders: dict[int, Chain] = {}
        self._drain_known = True
        self._drained_at: int | None = None

    def run(self) -> Result:
        """The whole step. Raises UnknownOrderError where the exact engine has to be asked."""
        try:
            self._install(UNKNOWN)
            for rank in range(self._n):
                self.schedule(rank)
            while True:
                self._go_on()
                before = self._number
                self.now = max(self.now, self._last_event())
                self._all_past = True
                for _ in range(2):
                    for rank in range(self._n):
                        self.schedule(rank)
                self._all_past = False
                if self._number == before:
                    break
        except (TypeError, RecursionError) as error:
            if isinstance(error, TypeError) and "not supported between instances of" not in str(error):
                raise
            raise UnknownOrderError("two events of one nanosecond have histories of unequal depth") from error
        if any(self.left):
            raise cannot_finish(self)
        return self.result()

    def _go_on(self) -> None:
        agenda, times, computed = self._agenda, self._times, self.complete_compute
        while True:
            if self.control.draining:
                if not self._drain_known:
                    self._drained_at = self._find_drain()
                    self._drain_known = True
                drained = self._drained_at
                if drained is not None and (not times or drained <= times[0]):
                    if times and drained == times[0] and not self._drain_first(agenda[drained]):
                        raise UnknownOrderError("a drain ends in the nanosecond of another event")
                    self.now = drained
                    self._install(self._drained_by)
                    continue
            if not times:
                return
            self.now = now = heappop(times)
            due = agenda[now]
            if len(due) > 1:
                due.sort()
            for _, _, rank, position, use, ending in due:  # grows by what happens at once
                if use is None:
                    if ending is None:
                        computed(rank, position)
                    else:
                        self.complete(rank, position)
                else:
                    self._end(use, rank, position, ending)
            del agenda[now]

    def _put(
        self,
        time: int,
        order: Chain,
        number: int,
        rank: int,
        position: int,
        use: RingUse | MessageUse | None = None,
        ending: Due | None = None,
    ) -> None:
        due = self._agenda.get(time)
        entry = (order, number, rank, position, use, ending)
        if due is None:
            self._agenda[time] = [entry]
            heappush(self._times, time)
        else:
            due.append(entry)

    # What the scheduler begins.

    def begin_compute(self, rank: int, position: int, duration: int) -> None:
        order = self._compute_orders.get(duration)
        if order is None:
            if duration == 0:
                raise UnknownOrderError("a computation takes less than a nanosecond")
            order = self._compute_orders[duration] = self._solver.chains.link((-duration,), None)
        number = self._number = self._number + 1
        end = self._compute_end[rank] = self.now + duration
        entry = (order, number, rank, position, None, None)
        due = self._agenda.get(end)
        if due is None:
            self._agenda[end] = [entry]
            heappush(self._times, end)
        else:
            due.append(entry)
        part = self._part[rank]
        if part is not None:
            use, member = part
            use.computed[member].append(end)
            if use.solution is not None:
                self._refuse_shared_tick(use, use.solution, member, end)

    def begin_collective(self, rank: int, position: int, group: int) -> None:
        members = self._members[group]
        ring = self.ring(rank, position, len(members))
        self._number += 1
        if len(members) == 1:
            raise UnknownOrderError("a collective of one member has timers only")
        begun = self._rings_begun[group]
        number = begun[rank] = begun.get(rank, 0) + 1
        use = self._open_rings.get((group, number))
        if use is None:
            use = self._open_rings[group, number] = self._ring_use(ring, group, members)
        elif use.ring is not ring and use.ring != ring:
            raise UnknownOrderError("members of a group run collectives of different sizes together")
        member = self._places[group][rank]
        link = self._ports[group][member]
        if link is None:
            link = self._ports[group][member] = self._link(rank, members[(member + 1) % len(members)])
        self._take(link, use)
        use.links[member] = link
        use.starts[member], use.numbers[member], use.positions[member] = self.now, self._number, position
        frees = link.frees
        if frees:
            use.frees[member] = list(frees)
        use.busy[member] = link.busy
        use.epochs[member] = len(use.changes)
        use.computed[member] = [self._compute_end[rank]]
        if use.base > self.now:
            use.base = self.now
        use.begun += 1
        self._part[rank] = (use, member)
        self._drain_known = False
        if use.begun == len(members):
            del self._open_rings[group, number]
            self._solve(use)

    def _ring_use(self, ring: Ring, group: int, members: tuple[int, ...]) -> RingUse:
        n = len(members)
        use = RingUse(
            ring=ring,
            group=group,
            members=members,
            links=[None] * n,
            starts=[NEVER] * n,
            numbers=[0] * n,
            positions=[0] * n,
            busy=[False] * n,
            frees=[_NO_FREES] * n,
            epochs=[0] * n,
            computed=[[] for _ in range(n)],
            done=[False] * n,
            due=[None] * n,
            topologies=[self._installed],
            left=n,
        )
        self._active[use] = None
        return use

    def begin_send(self, rank: int, position: int, peer: int) -> None:
        self._number += 1
        link = self._link(rank, peer)
        size = self.programs[rank].graph.operations[position].size
        use = MessageUse(
            rank, position, peer, size, link, self.now, self._number, False, [], [self._installed]
        )
        self._take(link, use)
        use.busy, use.frees = link.busy, list(link.frees)
        self._active[use] = None
        self._drain_known = False
        self._fly(use)

    def begin_receive(self, rank: int, position: int, peer: int) -> None:
        key = self._message_key(rank, position, peer, rank)
        if self._arrived.get(key):
            self._arrived[key] -= 1
            self._number += 1
            self._put(
                self.now, _AT_ONCE, self._number, rank, position, None, (self.now, _AT_ONCE, self._number)
            )
        else:
            self._posted.setdefault(key, []).append(position)

    def begin_move(self) -> None:
        self._since = self.now
        self._fallen = []
        self._needed = self._count_busy()
        self._drain_known = False
        if not self._needed:
            if not self._all_past and any(
                free.time == self.now for link in self._links.values() for free in link.frees
            ):
                raise UnknownOrderError("a link falls free in the nanosecond of a request")
            self._install(UNKNOWN)

    def _message_key(self, rank: int, position: int, source: int, destination: int) -> tuple[int, ...]:
        size = self.programs[rank].graph.operations[position].size
        return self.trace.ranks[rank].tags[position], source, destination, size

    # Rings and messages.

    def _solve(self, use: RingUse) -> None:
        if use.alike():
            flights = self._group_flights(use)
            if flights[0] is not None and flights.count(flights[0]) == len(flights):
                solution = self._solver.solve_alike(use.ring, self._endpoint, flights[0])
                self._put_alike(use, solution)
                return
        solution = use.solution = self._solver.solve(self._puzzle(use))
        for member, rank in enumerate(use.members):
            if use.done[member]:
                continue
            place = solution.place(member)
            for end in use.computed[member]:
                self._refuse_shared_tick(use, solution, member, end)
            end = solution.ends[place]
            if end == NEVER:
                use.due[member] = None
                continue
            chain, root = solution.chains[place], solution.roots[place]
            rotating = solution.rotating
            order, number = use.order(self._solver.chains, member, chain, root, rotating=rotating)
            ending = (use.base + end, order, number)
            if ending != use.due[member]:
                use.due[member] = ending
                self._put(*ending, rank, use.positions[member], use, ending)

    def _put_alike(self, use: RingUse, solution: Solution) -> None:
        """Put the ends of a ring on the agenda whose members all end together."""
        use.solution = solution
        end = use.base + solution.ends[0]
        order = solution.chains[0]
        assert order is not None
        members = len(use.members)
        turned = solution.roots[0][1] % members
        ticks, base = solution.ticks[0], use.base
        due = self._agenda.get(end)
        if due is None:
            due = self._agenda[end] = []
            heappush(self._times, end)
        for member, rank in enumerate(use.members):
            for other in use.computed[member]:
                if other - base in ticks:
                    self._refuse_shared_tick(use, solution, member, other)
            number = use.numbers[member - turned]
            ending = use.due[member] = (end, order, number)
            due.append((order, number, rank, use.positions[member], use, ending))

    def _group_flights(self, use: RingUse) -> list[Flight]:
        """A message's flight on the link of each member, in the topology of now."""
        key = (use.group, use.ring.size, use.topologies[-1])
        found = self._ring_flights.get(key)
        if found is None:
            found = self._ring_flights[key] = [
                self._flight(use.ring.size, use.topologies[-1], link)
                for link in use.links
                if link is not None
            ]
        return found

    def _refuse_shared_tick(self, use: RingUse, solution: Solution, member: int, end: int) -> None:
        if end - use.base in solution.ticks[solution.place(member)]:
            raise UnknownOrderError("a computation ends in the nanosecond of another timer of its rank")

    def _fly(self, use: MessageUse) -> None:
        base = use.time
        frees = [
            Free(free.time - base, free.inserted - base, None, (LINK, 0, index))
            for index, free in enumerate(use.frees)
        ]
        link = use.link
        flights = tuple([self._flight(use.size, topology, link) for topology in use.topologies])
        pulses = tuple([change.pulse(link, base) for change in use.changes])
        wire = use.wire = Wire(self._solver.chains, 0, use.busy, frees, flights, pulses)
        start, flight, chain, root = wire.send(0, None, None, (START, 0, 0))
        if start == NEVER:
            use.due = None
            return
        order = self._message_order(use, self._solver.chains.link((-flight,), chain), root)
        ending = (base + start + flight, *order)
        if ending != use.due:
            use.due = ending
            self._put(*ending, use.rank, use.position, use, ending)

    def _message_order(self, use: MessageUse, chain: Chain | None, root: Root) -> tuple[Chain, int]:
        kind, _, index = root
        if kind == LINK:
            return self._solver.chains.graft(chain, use.frees[index].order), use.frees[index].number
        assert chain is not None  # an event of this use: something put it in
        if kind == PULSE:
            number = use.changes[index].event_number(use.link.source, use.link.destination)
            return chain, number
        return chain, use.number

    def _end(self, use: RingUse | MessageUse, rank: int, position: int, ending: Due | None) -> None:
        if isinstance(use, RingUse):
            part = self._part[rank]
            if part is not None and part[0] is use and use.due[part[1]] is ending:
                self._end_ring(use, part[1], rank, position)
        elif use.due is ending:
            self._end_message(use, rank, position)

    def _end_ring(self, use: RingUse, member: int, rank: int, position: int) -> None:
        solution, link, chains = use.solution, use.links[member], self._solver.chains
        assert solution is not None
        assert link is not None
        rotating = solution.rotating
        self._release_link(
            link,
            use.base,
            solution.wires[0 if rotating else member],
            lambda free: use.order(chains, member, free.chain, free.root, rotating=rotating),
        )
        self._part[rank] = None
        use.done[member] = True
        use.left -= 1
        if not use.left:
            del self._active[use]
        self.complete(rank, position)

    def _end_message(self, use: MessageUse, rank: int, position: int) -> None:
        wire = use.wire
        assert wire is not None
        wire.finish(self.now - use.time)
        self._release_link(
            use.link, use.time, wire, lambda free: self._message_order(use, free.chain, free.root)
        )
        del self._active[use]
        use.due = None
        key = self._message_key(rank, position, rank, use.peer)
        posted = self._posted.get(key)
        receiver = posted.pop(0) if posted else None
        if receiver is None:
            self._arrived[key] = self._arrived.get(key, 0) + 1
        self.complete(rank, position)
        if receiver is not None:
            self.complete(use.peer, receiver)

    def _drain_first(self, due: list[tuple[Any, ...]]) -> bool:
        """Whether the drain ends before all that is on the agenda for the same nanosecond."""
        assert self._drained_at is not None
        return all(self._drained_by[1] < self._drained_at + entry[0][0] for entry in due)

    def _install(self, put_in: tuple[int, int]) -> None:
        """The new topology comes: every link is made busy, and operations on them take another course.

        `put_in` is when the event that it comes with was put into the queue.
        """
        topologies = self.scenario.schedules.topologies
        now, old, new = self.now, self._installed, self.control.topology
        late = int(now + self.scenario.delay_ns + 1)
        self.control.draining = False
        self._untouched = 0
        self._installed = new
        change = self._change = Change(now, late, self._number + 1, topologies[old], topologies[new], put_in)
        self._number += self._n * self._n
        for source, destination in self._differences(old, new):
            key = source * self._n + destination
            if key not in self._links:
                self._links[key] = Link(source, destination)
        for link in self._links.values():
            if link.user is None:
                link.settle(now + 1)
                link.change(change)
        for use in self._active:
            use.changes.append(change)
            use.topologies.append(new)
            if isinstance(use, MessageUse):
                self._fly(use)
            elif use.begun == len(use.members):
                self._solve(use)
