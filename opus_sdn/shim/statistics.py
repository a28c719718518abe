"""How long this rank waited for grants, by the phases between which it went. Torch-free.

A rank sees barrier wait and exposed wait as one; the controller tells them apart, in the job's status.
"""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.shim.operations import Operation

PAIRS_MAX = 256
NS_PER_MS = 1e6


@dataclass(slots=True)
class PhasePair:
    """Runs that were granted after one of another dimension, or of the same one."""

    grants: int = 0
    wait_ms: float = 0.0
    longest_ms: float = 0.0


class GrantWaits:
    """From arrival to grant, by (dimension before, dimension now), in the order of the grants."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str], PhasePair] = {}
        self._before = "start"

    def granted(self, operation: Operation, now_ns: int) -> None:
        """A run was granted that begins with this operation."""
        pair = self._before, operation.what.dimension
        self._before = operation.what.dimension
        if pair not in self.pairs and len(self.pairs) >= PAIRS_MAX:
            return
        figures = self.pairs.setdefault(pair, PhasePair())
        waited_ms = (now_ns - operation.arrived_ns) / NS_PER_MS
        figures.grants += 1
        figures.wait_ms += waited_ms
        figures.longest_ms = max(figures.longest_ms, waited_ms)

    def said(self) -> dict[str, dict[str, float]]:
        """As figures, by "before -> now"."""
        return {
            f"{before} -> {now}": {
                "grants": one.grants,
                "wait_ms": round(one.wait_ms, 3),
                "longest_ms": round(one.longest_ms, 3),
            }
            for (before, now), one in self.pairs.items()
        }
