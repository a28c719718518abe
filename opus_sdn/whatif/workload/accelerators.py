"""What it is trained on: public figures of GPUs, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.schedules import GIGABYTE
from opus_sdn.whatif.inputs.system import System
from opus_sdn.whatif.workload.models import STUDY

# Wider than any GPU by far; beyond them the nanoseconds of a step no longer fit a float.
LEAST, MOST = 1e-7, 1e10


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU. `tflops`: dense bf16, in 1e12; `memory_gbps` in 1e9 bytes; both links one way, in GB/s of 2^30
    bytes as schedules have them. `domain`: GPUs that share a scale-up fabric.
    """

    name: str
    tflops: float
    memory_gbps: float
    memory_gb: float
    scale_up_gbps: float
    scale_out_gbps: float
    domain: int
    source: str

    def __post_init__(self) -> None:
        for name in ("tflops", "memory_gbps", "memory_gb", "scale_up_gbps", "scale_out_gbps"):
            value = getattr(self, name)
            if not LEAST <= value <= MOST:
                why = f"it must lie between {LEAST:g} and {MOST:g}"
                raise InputError(why, file=STUDY, field=f"accelerator.{name}", value=value)
        if self.domain < 1:
            why = "the GPUs that share a scale-up fabric: at least 1"
            raise InputError(why, file=STUDY, field="accelerator.domain", value=self.domain)

    def system(self, efficiency: float = 1.0) -> System:
        """The machine as replays know it, of whose peak `efficiency` is reached. Raises InputError."""
        if not 0 < efficiency <= 1:
            why = "the part of the peak that matrix products reach: above 0, at most 1"
            raise InputError(why, file=STUDY, field="efficiency", value=efficiency)
        return System(self.memory_gbps, self.tflops * efficiency)


def _binary(gbps: float) -> float:
    """From GB/s of 1e9 bytes, as data sheets have it, to GB/s of 2^30 bytes."""
    return gbps * 1e9 / GIGABYTE


def _sheet(
    name: str,
    tflops: float,
    memory: tuple[float, float],
    links: tuple[float, float],
    domain: int,
    source: str,
) -> Accelerator:
    return Accelerator(name, tflops, *memory, _binary(links[0]), _binary(links[1]), domain, source)


_TABLE: Final = (
    _sheet("a100", 312, (2039, 80), (300, 25), 8, "NVIDIA A100 80GB SXM data sheet; HDR 200 Gb/s NIC"),
    _sheet("h100", 989, (3350, 80), (450, 50), 8, "NVIDIA H100 SXM data sheet; NDR 400 Gb/s NIC"),
    _sheet("h200", 989, (4800, 141), (450, 50), 8, "NVIDIA H200 SXM data sheet; NDR 400 Gb/s NIC"),
    _sheet("b200", 2250, (8000, 180), (900, 50), 8, "NVIDIA DGX B200 data sheet, an eighth; 400 Gb/s NIC"),
    _sheet("gb200", 2500, (8000, 186), (900, 100), 72, "NVIDIA GB200 NVL72 data sheet, a 72nd; 800 Gb/s NIC"),
    # Bandwidths as the published simulations enter them: GB/s of 2^30 bytes.
    Accelerator("published-h200", 989, 4800, 141, 450, 50, 8, "inputs of the published H200 simulations"),
    Accelerator(
        "published-gb200", 1250, 8000, 186, 1800, 100, 32, "inputs of the published GB200 simulations"
    ),
)
ACCELERATORS: Final[Mapping[str, Accelerator]] = MappingProxyType({gpu.name: gpu for gpu in _TABLE})


def accelerator(name: str) -> Accelerator:
    """The GPU of this name. Raises InputError that lists those known."""
    if name not in ACCELERATORS:
        known = ", ".join(ACCELERATORS)
        raise InputError(f"known accelerators are {known}", file=STUDY, field="accelerator", value=name)
    return ACCELERATORS[name]
