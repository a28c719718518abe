"""How far a rank's clock is from the controller's, and how exactly that is known: by question and answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Offset(NamedTuple):
    """What to add to a rank's times, in ns, and by how much that may be wrong."""

    ns: int
    error_ns: int


def offset(questions: Sequence[tuple[int, int, int]], resolution_ns: int = 1000) -> Offset | None:
    """From (asked, answered, said): this clock before and after, the other one in between, in ns.

    Each answer was given somewhere between the two moments, so each bounds the offset on both sides, and all
    together do so best. Where clocks drift apart or were set, no offset fits all: then the quickest answer
    counts alone. None without a question.
    """
    if not questions:
        return None
    lowest = max(said - answered for _, answered, said in questions)
    highest = min(said + resolution_ns - asked for asked, _, said in questions)
    if lowest > highest:
        asked, answered, said = min(questions, key=lambda one: one[1] - one[0])
        lowest, highest = said - answered, said + resolution_ns - asked
    return Offset((lowest + highest) // 2, (highest - lowest + 1) // 2)
