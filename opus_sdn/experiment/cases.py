"""The five published workloads: their parallelism and hosts as published, their models tiny.

What the control plane sees of a step (groups, order of operations, phases) is that of the full model; sizes
are not, so steps take as long as one machine's processors need, and say nothing about GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from opus_sdn.demo.shapes import PROTOTYPE8, Shape, TrainConfig

STEPS_DEFAULT: Final = 10
STEPS_MAX: Final = 10_000
DELAY_MS_MAX: Final = 60_000.0
SWEEP_MS: Final = (0.0, 10.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0)
MICROBATCHES: Final = 2
"""As published: a batch of 8 per data-parallel rank in micro-batches of 4. A pipeline needs one per stage."""


class Mode(StrEnum):
    """Who carries a step's operations: gloo alone, or Opus; `eps` is Opus on demand with a switch of 0 ms."""

    NATIVE = "native"
    EPS = "eps"
    ON_DEMAND = "on-demand"
    PROVISION = "provision"

    @property
    def backend(self) -> str:
        """What `init_process_group` gets."""
        return "gloo" if self is Mode.NATIVE else "opus"

    @property
    def shim(self) -> str:
        """The rank's `OPUS_MODE`."""
        return "on-demand" if self is Mode.EPS else self.value


@dataclass(frozen=True, slots=True)
class Case:
    """One workload. `experts` and `active` are 0 for dense models; `timeout_s` is the process groups'."""

    name: str
    title: str
    shape: Shape
    layers: int = 4
    batch: int = 8
    experts: int = 0
    active: int = 0
    timeout_s: float = 120.0

    def config(self, steps: int) -> TrainConfig:
        """The training run in each rank."""
        return TrainConfig(
            self.shape,
            steps=steps,
            microbatches=max(MICROBATCHES, self.shape.pp),
            layers=self.layers,
            batch=self.batch,
            experts=self.experts,
            active_experts=self.active or 2,
            timeout_s=self.timeout_s,
        )


def _by_name(*cases: Case) -> Mapping[str, Case]:
    return {case.name: case for case in cases}


CASES: Final = _by_name(
    Case("prototype8", "Llama-style; data 2, pipeline 2, tensor 2; 4 hosts x 2", PROTOTYPE8),
    Case("llama16", "Llama-style; data 2, pipeline 2, tensor 4; 4 hosts x 4", Shape(2, 2, 4, 4)),
    Case(
        "llama64",
        "Llama-style; data 8, pipeline 2, tensor 4; 16 hosts x 4",
        Shape(2, 8, 4, 4),
        batch=2,
        timeout_s=600.0,
    ),
    Case(
        "deepseek2d",
        "mixture of experts; pipeline 4, tensor 4; 4 hosts x 4",
        Shape(4, 1, 4, 4),
        experts=8,
        active=2,
    ),
    Case(
        "deepseek3d",
        "mixture of experts; data 2, pipeline 2, tensor 4; 4 hosts x 4",
        Shape(2, 2, 4, 4),
        experts=8,
        active=2,
    ),
)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run to make. `delay_ms` is the switch's; it is 0 with `eps` and means nothing with `native`.

    `trace`: each rank logs its operations.
    """

    case: str
    mode: Mode
    delay_ms: float = 0.0
    steps: int = STEPS_DEFAULT
    trace: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot run. Raises ValueError naming the field."""
        if self.case not in CASES:
            raise ValueError(f"case: {self.case!r}; wanted one of {', '.join(CASES)}")
        if not 1 <= self.steps <= STEPS_MAX:
            raise ValueError(f"steps: {self.steps}; wanted 1 to {STEPS_MAX}")
        if not 0 <= self.delay_ms <= DELAY_MS_MAX:
            raise ValueError(f"delay_ms: {self.delay_ms:g}; wanted 0 to {DELAY_MS_MAX:g}")
        if self.mode in (Mode.NATIVE, Mode.EPS) and self.delay_ms:
            raise ValueError(
                f"delay_ms: {self.delay_ms:g} with mode {self.mode}, which has no switch that takes time; "
                "leave it out, or use on-demand or provision"
            )

    @property
    def name(self) -> str:
        """What files and jobs are called by."""
        delay = f"-{self.delay_ms:g}ms" if self.mode in (Mode.ON_DEMAND, Mode.PROVISION) else ""
        return f"{self.case}-{self.mode}{delay}"
