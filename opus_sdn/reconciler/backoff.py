"""Growing pauses after failures, back to none after a success."""

from __future__ import annotations


class Backoff:
    """Doubles from `base_s` up to `max_s` with every failure in a row. One per switch and kind of call."""

    __slots__ = ("_base_s", "_max_s", "failures")

    def __init__(self, base_s: float, max_s: float) -> None:
        self._base_s = base_s
        self._max_s = max_s
        self.failures = 0

    def failed(self, at_least_s: float = 0.0) -> float:
        """Count one more failure; the pause before the next try in seconds, at least what was asked."""
        # The exponent is bounded because a switch may stay away for days: 2.0 ** 1100 is an error.
        pause_s = min(self._max_s, self._base_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(pause_s, at_least_s)

    def succeeded(self) -> None:
        """The next failure starts from the shortest pause again."""
        self.failures = 0
