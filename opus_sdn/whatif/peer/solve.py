"""When each member of a ring collective ends, by recurrence over its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from opus_sdn.whatif.peer.order import Chain, Chains, UnknownOrderError
from opus_sdn.whatif.peer.wire import LINK, NEVER, START, Flight, Free, Pulse, Root, Wire
from opus_sdn.whatif.rings import Ring

# A link as a member finds it: busy, and its free events as (time, when that was put in).
Found = tuple[bool, tuple[tuple[int, int], ...]]

IDLE_LINK: Found = (False, ())


class Puzzle(NamedTuple):
    """Everything that decides a collective, in times relative to its first start; equal ones are solved once.

    Per member: start (NEVER: not yet), link as found, flights between pulses, pulses since the start.
    """

    ring: Ring
    endpoint_ns: int
    starts: tuple[int, ...]
    links: tuple[Found, ...]
    flights: tuple[tuple[Flight, ...], ...]
    pulses: tuple[tuple[Pulse, ...], ...]


@dataclass(slots=True)
class Solution:
    """Per member: end (NEVER: not before something else happens), its order, its link, its timers' ticks.

    In a `rotating` one all members are alike and only one is kept. A root's member is then counted
    backwards from the member that asks.
    """

    rotating: bool
    ends: list[int]
    chains: list[Chain | None]
    roots: list[Root]
    wires: list[Wire]
    ticks: list[frozenset[int]]

    def place(self, member: int) -> int:
        """Where the lists hold what belongs to a member."""
        return 0 if self.rotating else member


class Solver:
    """Solves puzzles, each distinct one once. May be shared between replays."""

    def __init__(self) -> None:
        self.chains = Chains()
        self._solved: dict[Puzzle, Solution] = {}
        self._detailed: dict[Puzzle, Solution] = {}
        self._alike: dict[tuple[Ring, int, Flight], Solution] = {}

    @property
    def distinct(self) -> int:
        """How many different puzzles there were."""
        return len(self._solved)

    def solve_alike(self, ring: Ring, endpoint_ns: int, flight: Flight) -> Solution:
        """When the members of a ring end that all begin together, on idle links that are alike."""
        key = (ring, endpoint_ns, flight)
        found = self._alike.get(key)
        if found is None:
            n = ring.members
            puzzle = Puzzle(ring, endpoint_ns, (0,) * n, (IDLE_LINK,) * n, ((flight,),) * n, ((),) * n)
            found = self._alike[key] = self.solve(puzzle)
        return found

    def solve(self, puzzle: Puzzle) -> Solution:
        """When the members end."""
        found = self._solved.get(puzzle)
        if found is None:
            found = self._solved[puzzle] = self._work_out(puzzle, rotating=_alike(puzzle))
        return found

    def detail(self, puzzle: Puzzle) -> Solution:
        """The same with every member kept, also when some have not started."""
        found = self._detailed.get(puzzle)
        if found is None:
            found = self._detailed[puzzle] = self._work_out(puzzle, rotating=False)
        return found

    def _work_out(self, puzzle: Puzzle, *, rotating: bool) -> Solution:
        ring, endpoint = puzzle.ring, puzzle.endpoint_ns
        width = 1 if rotating else ring.members
        wires = [self._wire(puzzle, member) for member in range(width)]
        link = self.chains.link
        first = link((-endpoint,), None)
        # The event that sends the next message of each member: when, put in how long before, and its order.
        sends = [start + endpoint if start != NEVER else NEVER for start in puzzle.starts[:width]]
        gaps = [endpoint] * width
        chains: list[Chain | None] = [first] * width
        roots: list[Root] = [(START, 0 if rotating else member, 0) for member in range(width)]
        ticks: list[set[int]] = [{send} for send in sends]
        left = ring.chunks * ring.sends
        for number in range(left):
            in_chunk = number % ring.sends
            reduction = ring.reduction_ns if in_chunk < ring.reduced else 0
            new_chunk = in_chunk == ring.sends - 1 and number != left - 1
            after = (endpoint, reduction) if reduction else (endpoint,)
            if new_chunk:
                after = (*after, endpoint)
            back = tuple([-step for step in reversed(after)])
            started = [
                wire.send(send, gap, chain, root) if send != NEVER else (NEVER, 0, None, root)
                for wire, send, gap, chain, root in zip(wires, sends, gaps, chains, roots, strict=True)
            ]
            for member in range(width):
                start, flight, chain, root = started[member - 1]
                if start == NEVER or sends[member] == NEVER:
                    sends[member] = NEVER
                    continue
                time = start + flight
                if time > sends[member] or (
                    time == sends[member] and self._posted(start, time, gaps[member])
                ):
                    steps = (*back, -flight)
                    if rotating:
                        root = (root[0], root[1] + 1, root[2])
                else:  # it was there before it was waited for: an event of its own, at once
                    time, chain, root, steps = sends[member], chains[member], roots[member], (*back, 0)
                for step in after:
                    time += step
                    ticks[member].add(time)
                sends[member], gaps[member] = time, after[-1]
                chains[member], roots[member] = link(steps, chain), root
        for wire, end in zip(wires, sends, strict=True):
            wire.finish(end)
        return Solution(rotating, sends, chains, roots, wires, [frozenset(found) for found in ticks])

    def _wire(self, puzzle: Puzzle, member: int) -> Wire:
        busy, frees = puzzle.links[member]
        return Wire(
            self.chains,
            member,
            busy,
            [Free(time, inserted, None, (LINK, member, i)) for i, (time, inserted) in enumerate(frees)],
            puzzle.flights[member],
            puzzle.pulses[member],
        )

    @staticmethod
    def _posted(start: int, time: int, gap: int) -> bool:
        """Whether a receive that is posted in the nanosecond of the arrival comes before it."""
        if start == time - gap:
            raise UnknownOrderError("a message arrives in the nanosecond in which it is waited for")
        return start > time - gap


def _alike(puzzle: Puzzle) -> bool:
    """Whether all members start together, on links alike and undisturbed."""
    return (
        not any(puzzle.pulses)
        and len(set(puzzle.starts)) == 1
        and len(set(puzzle.links)) == 1
        and len(set(puzzle.flights)) == 1
    )
