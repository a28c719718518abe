"""The published model event by event: every message, timer and link. Slow and plain; the oracle of the fast
path.

One queue holds all events, ordered by time and, at equal times, by when they were put in. A rank's own
timers for one tick are run together, at the place of the first of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from opus_sdn.whatif.peer.hang import cannot_finish
from opus_sdn.whatif.peer.ranks import Ranks
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.rings import Ring, flight_ns
from opus_sdn.whatif.scenario import Scenario

Action = Callable[[], None]
MessageKey = tuple[str, int, int, int, int]  # namespace and stream or tag, source, destination, bytes


class ExactEngine(Ranks):
    """Replays a scenario event by event."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._queue: list[tuple[int, int, Action]] = []
        self._inserted = 0
        self._timers: list[dict[int, list[Action]]] = [{} for _ in self.trace.ranks]
        self._messages = _Messages(self)
        self._started = [[0] * len(self.trace.ranks) for _ in self.trace.groups]
        self.links = _Links(self)

    def run(self) -> Result:
        """The whole step."""
        ranks = range(len(self.trace.ranks))
        self.links.install()
        for rank in ranks:
            self.schedule(rank)
        while True:
            while self._queue:
                self.now, _, action = heappop(self._queue)
                action()
            for _ in range(2):
                for rank in ranks:
                    self.schedule(rank)
            if not self._queue:
                break
        if any(self.left):
            raise cannot_finish(self)
        return self.result()

    def at(self, time: int, action: Action) -> None:
        """Put an event into the queue."""
        self._inserted += 1
        heappush(self._queue, (time, self._inserted, action))

    def timer(self, rank: int, delay: int, action: Action) -> None:
        """A timer of one rank: it runs with the rank's others of that tick."""
        timers, time = self._timers[rank], self.now + delay
        batch = timers.get(time)
        if batch is not None:
            batch.append(action)
            return
        timers[time] = [action]
        self.at(time, lambda: self._run_timers(rank, time))

    def _run_timers(self, rank: int, time: int) -> None:
        for action in self._timers[rank][time]:  # grows while it runs
            action()
        del self._timers[rank][time]

    def begin_compute(self, rank: int, position: int, duration: int) -> None:
        self.timer(rank, duration, lambda: self.complete(rank, position))

    def begin_collective(self, rank: int, position: int, group: int) -> None:
        members = self.trace.groups[group].ranks
        ring = self.ring(rank, position, len(members))
        _Part(self, rank, position, group, members, ring).begin_chunk()

    def begin_send(self, rank: int, position: int, peer: int) -> None:
        size, key = self._message(rank, position, rank, peer)
        self._messages.send(key, rank, peer, size, lambda: self.complete(rank, position))

    def begin_receive(self, rank: int, position: int, peer: int) -> None:
        _, key = self._message(rank, position, peer, rank)
        self._messages.receive(key, lambda: self.complete(rank, position))

    def begin_move(self) -> None:
        self.links.drain()

    def _message(self, rank: int, position: int, source: int, destination: int) -> tuple[int, MessageKey]:
        size = self.programs[rank].graph.operations[position].size
        return size, ("tag", self.trace.ranks[rank].tags[position], source, destination, size)

    def end_collective(self, rank: int, position: int) -> None:
        """The last chunk of a collective has ended on `rank`."""
        self.complete(rank, position)

    def next_stream(self, rank: int, group: int) -> int:
        """The number of the next chunk that `rank` starts for `group`."""
        number = self._started[group][rank] if rank < len(self._started[group]) else 0
        self._started[group][rank] = number + 1
        return group * 1_000_000 + number

    def post(self, key: MessageKey, source: int, destination: int, size: int) -> None:
        """Send a collective's message; its sender does not wait for it."""
        self._messages.send(key, source, destination, size, None)

    def expect(self, key: MessageKey, received: Action) -> None:
        """Post the receive of a collective's message."""
        self._messages.receive(key, received)


class _Part:
    """One rank's part in one collective."""

    def __init__(
        self, engine: ExactEngine, rank: int, position: int, group: int, members: tuple[int, ...], ring: Ring
    ) -> None:
        self._engine, self._rank, self._position, self._group, self._ring = (
            engine,
            rank,
            position,
            group,
            ring,
        )
        place = members.index(rank)
        self._to = members[(place + 1) % len(members)]
        self._from = members[place - 1]
        self._endpoint = engine.scenario.system.endpoint_delay_ns
        self._chunks_left = ring.chunks
        self._stream = 0
        self._sent = 0

    def begin_chunk(self) -> None:
        """The next chunk, or the end."""
        if not self._chunks_left:
            self._engine.end_collective(self._rank, self._position)
            return
        self._chunks_left -= 1
        self._stream = self._engine.next_stream(self._rank, self._group)
        self._sent = 0
        self._engine.timer(self._rank, self._endpoint, self._next)

    def _next(self) -> None:
        if self._sent == self._ring.sends:
            self.begin_chunk()
            return
        self._sent += 1
        size = self._ring.size
        self._engine.post(("ring", self._stream, self._rank, self._to, size), self._rank, self._to, size)
        self._engine.expect(("ring", self._stream, self._from, self._rank, size), self._received)

    def _received(self) -> None:
        self._engine.timer(self._rank, self._endpoint, self._taken)

    def _taken(self) -> None:
        if self._sent <= self._ring.reduced:
            self._engine.timer(self._rank, self._ring.reduction_ns, self._next)
        else:
            self._next()


class _Messages:
    """Matches the k-th send of a key with its k-th receive."""

    def __init__(self, engine: ExactEngine) -> None:
        self._engine = engine
        self._sent: dict[MessageKey, int] = {}
        self._received: dict[MessageKey, int] = {}
        self._open: dict[tuple[MessageKey, int], Action | None] = {}  # a waiting receive, or None: arrived

    def send(self, key: MessageKey, source: int, destination: int, size: int, sent: Action | None) -> None:
        """Hand a message to its link; `sent` is called when it arrives, before the receiver hears of it."""
        number = self._sent[key] = self._sent.get(key, 0) + 1
        self._engine.links.send(source, destination, size, lambda: self._arrive((key, number), sent))

    def _arrive(self, message: tuple[MessageKey, int], sent: Action | None) -> None:
        waiting = self._open.pop(message, None)
        if waiting is None:
            self._open[message] = None
        if sent is not None:
            sent()
        if waiting is not None:
            waiting()

    def receive(self, key: MessageKey, received: Action) -> None:
        """Post a receive: `received` is called on arrival, or in an event of its own if that was earlier."""
        number = self._received[key] = self._received.get(key, 0) + 1
        if (key, number) in self._open:
            del self._open[key, number]
            self._engine.at(self._engine.now, received)
        else:
            self._open[key, number] = received


class _Links:
    """A private link for every ordered pair of ranks, and the drain before a change of topology."""

    def __init__(self, engine: ExactEngine) -> None:
        self._engine = engine
        self._n = len(engine.trace.ranks)
        self._rows = engine.scenario.schedules.topologies[0]
        self._busy = bytearray(self._n * self._n)
        self._queues: dict[int, deque[tuple[int, Action]]] = {}
        self._all = self._n * (self._n - 1)
        self._drained = 0
        self._flights: dict[tuple[int, float], tuple[int, int]] = {}

    def send(self, source: int, destination: int, size: int, arrived: Action) -> None:
        """Put a message on its link: at once if that is idle and lit, else behind those that wait."""
        link = source * self._n + destination
        if self._busy[link] or self._rows[source][destination] <= 0:
            self._queues.setdefault(link, deque()).append((size, arrived))
        else:
            self._transmit(link, size, arrived)

    def _transmit(self, link: int, size: int, arrived: Action) -> None:
        self._busy[link] = 1
        bandwidth = self._rows[link // self._n][link % self._n]
        key = (size, bandwidth)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = flight_ns(size, bandwidth, self._engine.scenario.latency_ns)
        self._engine.at(self._engine.now + flight[0], arrived)
        self._engine.at(self._engine.now + flight[1], lambda: self._free(link))

    def _free(self, link: int) -> None:
        self._busy[link] = 0
        queue = self._queues.get(link)
        if queue and self._rows[link // self._n][link % self._n] > 0:
            self._transmit(link, *queue.popleft())
        elif self._engine.control.draining:
            self._drained += 1
            if self._drained == self._all:
                self.install()

    def drain(self) -> None:
        """Wait until as many links have been free as there are; then the new topology comes."""
        self._drained = self._all - self._busy.count(1)
        if self._drained == self._all:
            self.install()

    def install(self) -> None:
        """Every link is taken; one that keeps its bandwidth for 1 ns, others for the delay and 1 ns."""
        engine = self._engine
        engine.control.draining = False
        old, self._rows = self._rows, engine.scenario.schedules.topologies[engine.control.topology]
        soon = engine.now + 1
        # At the start the first topology is there without a delay.
        late = int(engine.now + engine.scenario.delay_ns + 1)
        kept: list[int] = []
        changed: list[int] = []
        for source in range(self._n):
            before, after = old[source], self._rows[source]
            for destination in range(self._n):
                if source == destination:
                    continue
                link = source * self._n + destination
                self._busy[link] = 1
                same = late == soon or before is after or before[destination] == after[destination]
                (kept if same else changed).append(link)
        # Nothing can come between events that are put in one after another.
        for time, links in ((soon, kept), (late, changed)):
            if links:
                engine.at(time, lambda links=links: self._free_all(links))  # type: ignore[misc]

    def _free_all(self, links: list[int]) -> None:
        for link in links:
            self._free(link)
