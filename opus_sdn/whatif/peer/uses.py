"""Who uses which link: links between uses, rings, messages, and changes of topology as all of them see
those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from opus_sdn.whatif.inputs.schedules import Row
from opus_sdn.whatif.peer.order import Chain, Chains, UnknownOrderError
from opus_sdn.whatif.peer.solve import Found, Puzzle, Solution
from opus_sdn.whatif.peer.wire import LINK, NEVER, PULSE, Free, Pulse, Root, Wire
from opus_sdn.whatif.rings import Ring


class Falling(NamedTuple):
    """A link falls free at `time`, by an event put into the queue at `inserted`; `order`, `number`: its
    place there.
    """

    time: int
    inserted: int
    order: Chain
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A change of topology at `time`: every link is free again 1 ns later, a changed one after the delay."""

    time: int
    late: int
    number: int  # of the event that frees link 0 -> 0; the others follow in order
    before: tuple[Row, ...]
    after: tuple[Row, ...]
    put_in: tuple[int, int]  # the event that it comes with: into the queue not before and not after

    def pulse(self, link: Link, base: int) -> Pulse:
        """The change as one link sees it, in times relative to `base`."""
        first, last = self.put_in
        time = self.time - base
        return Pulse(time, self.free(link.source, link.destination) - base, first - base, last - base)

    def free(self, source: int, destination: int) -> int:
        """When a link is free again."""
        same = self.before[source][destination] == self.after[source][destination]
        return self.time + 1 if same else self.late

    def event_number(self, source: int, destination: int) -> int:
        """The number of the event that frees a link."""
        return self.number + source * len(self.before) + destination


class Link:
    """A link that was used or has changed. `user` has it now; without one, `busy` and `frees` hold."""

    __slots__ = ("_frees", "_left", "busy", "destination", "source", "user")

    def __init__(self, source: int, destination: int) -> None:
        self.source, self.destination = source, destination
        self.busy = False
        self._frees: list[Falling] = []
        self._left: tuple[int, Wire, OrderOf] | None = None
        self.user: RingUse | MessageUse | None = None

    def leave(self, base: int, wire: Wire, order_of: OrderOf) -> None:
        """Its user is done. How its free events are ordered is worked out when somebody comes so soon."""
        self.user = None
        self.busy = wire.busy
        self._frees = []
        self._left = (base, wire, order_of) if wire.frees else None

    @property
    def frees(self) -> list[Falling]:
        """When it falls free."""
        if self._left is not None:
            base, wire, order_of = self._left
            self._left = None
            self._frees = [
                Falling(base + free.time, base + free.inserted, *order_of(free)) for free in wire.frees
            ]
        return self._frees

    def settle(self, now: int) -> list[int]:
        """Take in the frees before `now`, and return their times."""
        if self._left is not None:
            base, wire, _ = self._left
            if base + wire.frees[-1].time < now:
                self._left = None
                self.busy = False
                return [base + free.time for free in wire.frees]
        frees = self.frees
        if not frees or frees[0].time >= now:
            return []
        times = [free.time for free in frees if free.time < now]
        del frees[: len(times)]
        self.busy = False
        return times

    def change(self, change: Change) -> None:
        """The link is made busy and will be free again."""
        self.busy = True
        time = change.free(self.source, self.destination)
        frees = self.frees
        if any(free.time == time for free in frees):
            raise UnknownOrderError("a link falls free twice in one nanosecond")
        number = change.event_number(self.source, self.destination)
        frees.append(Falling(time, change.time, (change.time - time, None), number))
        frees.sort()


# An end on the agenda: time, order, number. What is there and no longer its use's `due` has been put off.
Due = tuple[int, Chain, int]

# The order of a free event, as its chain and number.
OrderOf = Callable[[Free], tuple[Chain, int]]


@dataclass(slots=True, eq=False)
class RingUse:
    """A collective: the n-th of its group, between all its members. Lists have an entry for each member."""

    ring: Ring
    group: int
    members: tuple[int, ...]
    links: list[Link | None]
    starts: list[int]
    numbers: list[int]
    positions: list[int]
    busy: list[bool]
    frees: list[list[Falling]]
    epochs: list[int]  # how many changes had come before the member's start
    computed: list[list[int]]  # when computations beside it end, which share the rank's timers
    done: list[bool]
    due: list[Due | None]  # when and in which order each member ends, as put on the agenda last
    topologies: list[int]  # which holds between the changes
    changes: list[Change] = field(default_factory=list)
    begun: int = 0
    left: int = 0
    base: int = NEVER
    solution: Solution | None = None

    def alike(self) -> bool:
        """Whether all members began together, on idle links, and nothing has changed since."""
        return (
            not self.changes
            and self.starts.count(self.base) == len(self.members)
            and not any(self.busy)
            and not any(self.frees)
        )

    def order(
        self, chains: Chains, member: int, chain: Chain | None, root: Root, *, rotating: bool
    ) -> tuple[Chain, int]:
        """The order of an event from its chain and root in the solution."""
        kind, place, index = root
        if rotating:
            place = (member - place) % len(self.members)
        if kind == LINK:
            free = self.frees[place][index]
            return chains.graft(chain, free.order), free.number
        assert chain is not None  # an event of this use: something put it in
        if kind == PULSE:
            link = self.links[place]
            assert link is not None
            change = self.changes[self.epochs[place] + index]
            return chain, change.event_number(link.source, link.destination)
        return chain, self.numbers[place]

    def puzzle(self, endpoint_ns: int, flights: dict[int, list[tuple[int, int] | None]]) -> Puzzle:
        """What decides the ends; `flights[member]` holds between the changes since its start."""
        base = self.base
        links: list[Found] = []
        pulses: list[tuple[Pulse, ...]] = []
        for member, link in enumerate(self.links):
            falling = self.frees[member]
            links.append(
                (self.busy[member], tuple([(free.time - base, free.inserted - base) for free in falling]))
            )
            seen = self.changes[self.epochs[member] :] if link is not None else []
            pulses.append(tuple(change.pulse(link, base) for change in seen if link is not None))
        return Puzzle(
            self.ring,
            endpoint_ns,
            tuple([start - base if start != NEVER else NEVER for start in self.starts]),
            tuple(links),
            tuple([tuple(flights.get(member, ())) for member in range(len(self.members))]),
            tuple(pulses),
        )


@dataclass(slots=True, eq=False)
class MessageUse:
    """A message from one rank to another."""

    rank: int
    position: int
    peer: int
    size: int
    link: Link
    time: int
    number: int
    busy: bool
    frees: list[Falling]
    topologies: list[int]
    changes: list[Change] = field(default_factory=list)
    due: Due | None = None
    wire: Wire | None = None
