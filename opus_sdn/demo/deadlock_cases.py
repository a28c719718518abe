"""Short programs that a careless control plane turns into deadlocks: their groups and what they must return.

Each is legal natively and free of deadlock when sends are synchronous and `wait()` blocks the host, so each
must finish, on plain gloo and through a controller. The conflicts they are about need ports to be scarce: run
them with one rank per host and one port per GPU, where a pair and a ring that meet in a rank share its port.
Where a group would otherwise span the whole world, one more rank idles, as such groups may bypass the rails.
GPipe with sharded stages, the program that a barrier per phase deadlocks on, is
`shapes.schedule_run("GPipe", True)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opus_sdn.demo.shapes import Shape


@dataclass(frozen=True, slots=True)
class Case:
    """`groups` are made by every rank in this order; `expected[r]` is what rank r returns."""

    summary: str
    groups: Mapping[str, Sequence[int]]
    expected: Sequence[list[float]]

    @property
    def shape(self) -> Shape:
        """One rank per host."""
        return Shape(pp=1, dp=len(self.expected), tp=1, gpus_per_host=1)


CASES: Final[Mapping[str, Case]] = {
    "async-before-send": Case(
        "a host-blocking gate before an asynchronous operation",
        {"ring": (0, 1, 2), "pair": (0, 1)},
        ([7.0], [7.0, 7.0], [7.0], []),
    ),
    "C1": Case(
        "a receive posted before a run and waited for inside it",
        {"ring": (0, 1), "pair": (1, 2)},
        ([3.0, 30.0], [3.0, 7.0, 30.0], []),
    ),
    "C5a": Case("a fused batch against single messages", {"pair": (0, 1)}, ([6.0], [5.0], [])),
    "C5b": Case(
        "two fused batches around a ring",
        {"pair": (0, 1), "ring": (1, 2)},
        ([6.0], [5.0, 6.0], [6.0]),
    ),
    "C5c": Case(
        "fused batches in a circle, over the pair that closes it",
        {"circle": (0, 1, 2)},
        ([12.0], [10.0], [11.0], []),
    ),
    "C6": Case(
        "two communicators over the same ranks, both asynchronous",
        {"x": (0, 1), "y": (0, 1)},
        (*([float(3 * (k + 1) * factor) for k in range(8) for factor in (1, 100)],) * 2, []),
    ),
    "C17": Case("a receiver that never waits", {"pair": (0, 1), "ring": (1, 2)}, ([], [6.0, 7.0], [6.0])),
}
