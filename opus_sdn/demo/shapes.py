"""What a training run looks like, said without torch: mesh sizes, model sizes, schedule, and who sits where.

Rank = (pp * dp_size + dp) * tp_size + tp, hosts are filled in rank order: tensor parallelism stays inside a
host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SINGLE_STAGE_SCHEDULES: Final = ("GPipe", "1F1B")
TWO_STAGE_SCHEDULES: Final = ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS")
V_SCHEDULES: Final = ("ZBVZeroBubble", "DualPipeV")
ALIASES: Final = {"ZBV": "ZBVZeroBubble"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the parallelism dimensions (1 = absent) and how many GPUs a virtual host has."""

    pp: int
    dp: int
    tp: int
    gpus_per_host: int

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.pp * self.dp * self.tp

    @property
    def hosts(self) -> int:
        """Virtual hosts in all."""
        return -(-self.world_size // self.gpus_per_host)

    @property
    def dimensions(self) -> tuple[tuple[str, int], ...]:
        """Name and size of every dimension above 1, outermost first: the axes of the device mesh."""
        sizes = (("pp", self.pp), ("dp", self.dp), ("tp", self.tp))
        return tuple((name, size) for name, size in sizes if size > 1)

    def host(self, rank: int) -> str:
        """Name of the virtual host of a rank."""
        return f"host{rank // self.gpus_per_host}"

    def slot(self, rank: int) -> int:
        """GPU slot of a rank inside its host."""
        return rank % self.gpus_per_host

    def environment(self, rank: int) -> dict[str, str]:
        """What the rank's environment says about its place, as a cluster's launcher would."""
        return {
            "OPUS_HOST": self.host(rank),
            "LOCAL_RANK": str(self.slot(rank)),
            "LOCAL_WORLD_SIZE": str(self.gpus_per_host),
            "GROUP_RANK": str(rank // self.gpus_per_host),
        }


TWO_RANKS: Final = Shape(pp=1, dp=2, tp=1, gpus_per_host=2)
"""Two data-parallel ranks on one host."""
PROTOTYPE8: Final = Shape(pp=2, dp=2, tp=2, gpus_per_host=2)
"""The hardware prototype: 4 hosts x 2 GPUs, tensor parallelism inside a host."""
PP4_DP2: Final = Shape(pp=4, dp=2, tp=1, gpus_per_host=1)
"""Eight hosts with one GPU each; deep enough for the pipeline schedules to differ."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Kill `rank` in the middle of a step: at micro-batch `forward` of step `step` (both from 0).

    The first step runs the model once more to learn shapes; name a later one.
    """

    rank: int
    step: int
    forward: int = 1


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One training run. Two runs of the same configuration on the same machine agree in every bit.

    `batch` counts sequences per data-parallel rank. `experts`: routed experts per layer beside a shared one,
    spread over the tensor-parallel ranks, of which each token uses `active_experts`; 0 makes the layers
    dense. `after_step` names a "module:function" that is called as
    function(record, **after_step_args) in every rank after every step.
    """

    shape: Shape
    schedule: str = "1F1B"
    reshard_after_forward: bool = False
    steps: int = 10
    microbatches: int = 4
    layers: int = 4
    width: int = 64
    heads: int = 4
    hidden: int = 128
    vocabulary: int = 128
    sequence: int = 32
    batch: int = 8
    sequence_parallel: bool = False
    experts: int = 0
    active_experts: int = 2
    learning_rate: float = 3e-3
    seed: int = 20_240_607
    timeout_s: float = 60.0
    after_step: str | None = None
    after_step_args: Mapping[str, Any] = field(default_factory=dict)
    crash: Crash | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot run. Raises ValueError naming the field."""
        known = (*SINGLE_STAGE_SCHEDULES, *TWO_STAGE_SCHEDULES, *V_SCHEDULES, *ALIASES)
        if self.schedule not in known:
            raise ValueError(f"schedule: {self.schedule!r}; wanted one of {', '.join(known)}")
        if self.shape.pp < 2:
            raise ValueError(
                f"shape.pp: {self.shape.pp}; wanted at least 2, as every schedule is a pipeline's"
            )
        for name, value, divisor, why in (
            ("layers", self.layers, self.stages, "the number of pipeline stages"),
            ("batch", self.batch, self.microbatches, "microbatches"),
            ("heads", self.heads, self.shape.tp, "shape.tp"),
            ("hidden", self.hidden, self.shape.tp, "shape.tp"),
            ("width", self.width, self.heads * 2, "2 x heads"),
            ("sequence", self.sequence, self.shape.tp, "shape.tp"),
            ("experts", self.experts, self.shape.tp, "shape.tp"),
        ):
            if value % divisor:
                raise ValueError(f"{name}: {value}; wanted a multiple of {why}, {divisor}")
        if self.experts and not 1 <= self.active_experts <= self.experts:
            raise ValueError(f"active_experts: {self.active_experts}; wanted 1 to experts, {self.experts}")
        if self.experts and self.sequence_parallel:
            raise ValueError(
                "sequence_parallel: True; wanted False with experts: routing needs whole activations"
            )

    @property
    def schedule_class(self) -> str:
        """The schedule's name in `torch.distributed.pipelining`."""
        return ALIASES.get(self.schedule, self.schedule)

    @property
    def stages(self) -> int:
        """Pipeline stages in all: one per pipeline rank, or two."""
        return self.shape.pp * (1 if self.schedule in SINGLE_STAGE_SCHEDULES else 2)

    def stages_of(self, pp_rank: int) -> tuple[int, ...]:
        """Which stages a pipeline rank holds: its own; a loop (r, r + pp); or a V (r, last - r)."""
        if self.schedule_class in SINGLE_STAGE_SCHEDULES:
            return (pp_rank,)
        if self.schedule_class in V_SCHEDULES:
            return (pp_rank, self.stages - 1 - pp_rank)
        return (pp_rank, pp_rank + self.shape.pp)


def schedule_run(schedule: str, reshard_after_forward: bool, steps: int = 10) -> TrainConfig:
    """A run on four pipeline stages of two replicas; 8 layers, so that every schedule cuts the same model."""
    return TrainConfig(PP4_DP2, schedule, reshard_after_forward, steps, layers=8)
