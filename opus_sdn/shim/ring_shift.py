"""Which way an all-to-all takes over circuits: inside hosts to the right rail, then around the ring there.

A rail joins its members in a ring, in rank-list order; inside a host everybody reaches everybody. Where the
group is a grid of hosts and rails, a chunk first goes to the member of its own host that shares a rail with
its destination, and then from neighbour to neighbour. Members are named by their place in the rank list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opus_sdn.shim.errors import OpusRefusedError

_CIRCUIT = re.compile(r"(.+:\d+):\d+(?:--|->)(.+:\d+):\d+")  # host:slot:port to host:slot:port


@dataclass(frozen=True, slots=True)
class Shifts:
    """The way for all members. `rings[m]`: m's rail in ring order. `hosts[m]`: who reaches m without it."""

    rings: tuple[tuple[int, ...], ...]
    hosts: tuple[tuple[int, ...], ...]

    def neighbours(self, member: int) -> tuple[int, int]:
        """The previous and the next member on the rail."""
        ring = self.rings[member]
        at = ring.index(member)
        return ring[at - 1], ring[(at + 1) % len(ring)]

    def train(self, member: int, first: int) -> list[int]:
        """Destinations of what `member` put on its rail, nearest first, from the distance `first` on."""
        ring = self.rings[member]
        at = ring.index(member)
        return [ring[(at + distance) % len(ring)] for distance in range(first, len(ring))]


def plan_shifts(ranks: Sequence[int], places: Sequence[tuple[str, int]], circuits: Sequence[str]) -> Shifts:
    """Plan for members `ranks`, where `places[m]` is the host and slot of member m, over these circuits.

    Raises OpusRefusedError `not-supported` where hosts and rails do not form a grid.
    """
    members = range(len(ranks))
    at = {f"{host}:{slot}": member for member, (host, slot) in zip(members, places, strict=True)}
    joined = {frozenset(ends) for circuit in circuits if (ends := _members(circuit, at)) is not None}
    rails = _components(len(ranks), joined)
    for ring in rails:
        for a, b in zip(ring, (*ring[1:], ring[0]), strict=True):
            if a != b and frozenset((a, b)) not in joined:
                raise _refused(ranks, f"no circuit joins ranks {ranks[a]} and {ranks[b]}")
    ring_of = {member: ring for ring in rails for member in ring}
    if len(rails) == 1:
        return Shifts((rails[0],) * len(ranks), tuple((member,) for member in members))
    locals_of: dict[str, tuple[int, ...]] = {}
    for member in members:
        host = places[member][0]
        locals_of[host] = (*locals_of.get(host, ()), member)
    for host, there in locals_of.items():
        if len(there) != len(rails) or len({ring_of[member] for member in there}) != len(rails):
            raise _refused(
                ranks,
                f"host {host} has {len(there)} of its ranks on {len({ring_of[m] for m in there})} of the "
                f"group's {len(rails)} rails; every host needs one rank on each rail",
            )
    return Shifts(
        tuple(ring_of[member] for member in members),
        tuple(locals_of[places[member][0]] for member in members),
    )


def _members(circuit: str, at: dict[str, int]) -> tuple[int, int] | None:
    ends = _CIRCUIT.fullmatch(circuit)
    if ends is None or ends[1] not in at or ends[2] not in at:
        return None
    return at[ends[1]], at[ends[2]]


def _components(size: int, joined: set[frozenset[int]]) -> list[tuple[int, ...]]:
    """Members that circuits join, each set in rank-list order: the order of a ring on a rail."""
    component = list(range(size))
    for ends in joined:
        low, high = sorted(component[end] for end in (min(ends), max(ends)))
        component = [low if name == high else name for name in component]
    return [tuple(m for m in range(size) if component[m] == name) for name in sorted(set(component))]


def _refused(ranks: Sequence[int], why: str) -> OpusRefusedError:
    return OpusRefusedError(
        "not-supported",
        f"all-to-all on ranks {list(ranks)}, which are on several hosts: {why}; place the ranks so that they "
        "form a grid of hosts and GPU slots, or keep the group on one host",
    )
