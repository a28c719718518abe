"""Which of two events at one time comes first, without replaying what led to them.

The published simulator runs events of one time in the order in which they were put into its queue: by when
they were put in, then by when the event that did so was put in, and so on, back to events that the fast
engine knows the order of. An event's `Chain` holds these times as differences, newest first: `(-d1, -d2,
..., earlier)`, where `earlier` is the rest as a tuple of the same form, or None where the chain reaches an
event with a number of its own. Equal histories share one tuple, so comparing them takes no time.

Where two chains of equal times end at different depths Python cannot order an integer against a tuple or
None and says so: the order is then unknown, and the caller must fall back to the exact engine.
"""

from __future__ import annotations

from typing import Any

Chain = tuple[Any, ...]


class UnknownOrderError(Exception):
    """Two things happen in the same nanosecond and the fast path cannot tell which comes first."""


class Chains:
    """Makes chains so that equal ones are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], int], Chain] = {}
        self._grafts: dict[tuple[int, int], tuple[Chain | None, Chain]] = {}

    def link(self, steps: tuple[int, ...], earlier: Chain | None) -> Chain:
        """The chain that goes back `steps` and then on with `earlier`."""
        key = (steps, id(earlier))  # what it names is kept alive by the chain that is stored
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (*steps, earlier)
        return known

    def graft(self, chain: Chain | None, earlier: Chain) -> Chain:
        """The chain that goes on with `earlier` where `chain` ends."""
        key = (id(chain), id(earlier))
        known = self._grafts.get(key)
        if known is None:
            steps: list[tuple[int, ...]] = []
            at = chain
            while at is not None:
                steps.append(at[:-1])
                at = at[-1]
            grown = earlier
            for step in reversed(steps):
                grown = self.link(step, grown)
            known = self._grafts[key] = (chain, grown)
        return known[1]
