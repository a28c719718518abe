"""Where ranks sit in a job: hosts, coordinates in the parallelism dimensions, pipeline stages, digits.

Ranks are laid out row-major over the declared dimensions, the first one outermost, as device meshes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.model import Dimension, JobSpec

PIPELINE_NAMES = frozenset({"pp", "pipeline"})
DATA_PARALLEL_NAMES = frozenset({"dp", "dp_shard", "dp_replicate", "fsdp", "data", "replicate", "shard"})
LEGACY_EXPERT_DIGIT = 3  # the published topology ids leave 2 unused and give experts 3
EXPERT_NAMES = frozenset({"ep", "expert"})


def check_dimensions(spec: JobSpec) -> None:
    """Declared dimensions must multiply to the world size; no dimensions means nothing is known."""
    world = len(spec.placement)
    names = [dimension.name for dimension in spec.dimensions]
    twice = next((name for name in names if names.count(name) > 1), None)
    pipelines = [name for name in names if name in PIPELINE_NAMES]
    if twice is not None or len(pipelines) > 1:
        wrong = f"{twice!r} twice" if twice is not None else f"two pipelines, {' and '.join(pipelines)}"
        raise CoreError(
            Problem.INVALID_REQUEST,
            f"dimensions name {wrong}; each dimension is named once, the pipeline among them",
            field="dimensions",
        )
    if spec.dimensions and prod(d.size for d in spec.dimensions) != world:
        product = " x ".join(f"{d.name}={d.size}" for d in spec.dimensions)
        raise CoreError(
            Problem.INVALID_REQUEST,
            f"dimensions {product} multiply to {prod(d.size for d in spec.dimensions)}, "
            f"but the job has {world} ranks; they must be equal",
            field="dimensions",
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Coordinates of every rank, by the declared dimensions. `stages` = pipeline size, at least 1."""

    dimensions: tuple[Dimension, ...]
    world: int
    stages: int = field(init=False)
    stage_of: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        stages, inner = 1, self.world
        before = 1
        for dimension in self.dimensions:
            before *= dimension.size
            if dimension.name in PIPELINE_NAMES:
                stages, inner = dimension.size, self.world // before
                break
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "stage_of", tuple(rank // inner % stages for rank in range(self.world)))

    def lines(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The groups of one declared dimension: ranks that differ in that coordinate alone."""
        inner = self.world
        for dimension in self.dimensions:
            inner //= dimension.size
            if dimension.name == name:
                step, size = inner, dimension.size
                return tuple(
                    tuple(first + k * step for k in range(size))
                    for first in range(self.world)
                    if first // step % size == 0
                )
        return ()

    def dimension_of(self, ranks: Sequence[int]) -> str | None:
        """The declared dimension of which these ranks are one group, if any."""
        inner = self.world
        for dimension in self.dimensions:
            inner //= dimension.size
            if dimension.size != len(ranks) or ranks[0] // inner % dimension.size:
                continue
            if all(rank == ranks[0] + k * inner for k, rank in enumerate(ranks)):
                return dimension.name
        return None


def digit_map(dimensions: Sequence[Dimension], legacy: bool = False) -> dict[str, int]:
    """Topology digit of each declared dimension: 0 pipeline, 1 the first data-parallel one, then 2, 3, ...

    With `legacy` the expert dimension is 3, as the published ids have it.
    """
    digits: dict[str, int] = {}
    further = 2
    for dimension in dimensions:
        if dimension.name in PIPELINE_NAMES:
            digits[dimension.name] = 0
        elif dimension.name in DATA_PARALLEL_NAMES and 1 not in digits.values():
            digits[dimension.name] = 1
        elif legacy and dimension.name in EXPERT_NAMES:
            digits[dimension.name] = LEGACY_EXPERT_DIGIT
        else:
            further += legacy and further == LEGACY_EXPERT_DIGIT
            digits[dimension.name] = further
            further += 1
    return digits


def digit_of(name: str, digits: dict[str, int]) -> int | None:
    """Digit of a group's dimension label; labels that were not declared fall back to the usual names."""
    if name in digits:
        return digits[name]
    if name in PIPELINE_NAMES:
        return 0
    return 1 if name in DATA_PARALLEL_NAMES else None
