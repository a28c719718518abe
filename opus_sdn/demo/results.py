"""What the programs return and report: readable by a launcher that never imports torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as one rank saw it. `loss` is the mean over the data-parallel ranks; only the ranks that hold
    the last pipeline stage know it."""

    step: int
    loss: float | None
    grad_norm: float
    seconds: float
    ended_at: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a rank returns. `checksum` is the SHA-256 of the rank's own parts of all parameters."""

    rank: int
    records: tuple[StepRecord, ...]
    checksum: str

    @property
    def losses(self) -> tuple[str, ...]:
        """Losses with all their digits, empty on ranks that do not know them."""
        return tuple(repr(one.loss) for one in self.records if one.loss is not None)

    @property
    def grad_norms(self) -> tuple[str, ...]:
        """Gradient norms with all their digits; the same on every rank."""
        return tuple(repr(one.grad_norm) for one in self.records)


@dataclass(frozen=True, slots=True)
class TwoRanksResult:
    """What one rank saw: the first element of every reduced tensor, and the seconds each call took."""

    rank: int
    values: tuple[float, ...]
    seconds: tuple[float, ...]


def expected_values(operations: int, world_size: int = 2) -> tuple[float, ...]:
    """The closed form: operation k sums (rank + 1) * (k + 1) over all ranks."""
    ranks = world_size * (world_size + 1) // 2
    return tuple(float(ranks * (k + 1)) for k in range(operations))
