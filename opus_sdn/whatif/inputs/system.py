"""The machine that ranks run on, as the published simulator's system file describes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.text import integer, number, read_json
from opus_sdn.whatif.trace.model import Operation

# Beyond these there is no machine, and doubles no longer hold what a step takes on it.
_SLOWEST, _FASTEST = 1e-6, 1e9  # GB/s, TFLOP/s
_MAX_ENDPOINT_DELAY_NS = 10**9
_MAX_SPLITS = 1024

_RING_FIELDS = (
    "all-reduce-implementation",
    "all-gather-implementation",
    "reduce-scatter-implementation",
    "all-to-all-implementation",
)


@dataclass(frozen=True, slots=True)
class System:
    """Memory bandwidth in GB/s (1e9 bytes), peak in TFLOP/s, endpoint delay in ns, chunks per collective.

    With `roofline` a compute node takes as long as its operations or its memory traffic need, whichever is
    more; without it, or for nodes that name neither, it takes the duration recorded in the trace.
    """

    memory_gbps: float
    peak_tflops: float
    endpoint_delay_ns: int = 10
    splits: int = 4
    roofline: bool = True

    def compute_ns(self, operation: Operation) -> int:
        """How long a compute node runs, in whole ns, rounded down."""
        if not self.roofline or (operation.size == 0 and operation.ops == 0):
            return operation.recorded_ns
        if operation.size == 0:
            return 0
        memory = self.memory_gbps * 1e9
        if operation.ops == 0:
            return int(operation.size / memory * 1e9)
        performance = min(memory * (operation.ops / operation.size), self.peak_tflops * 1e12)
        return int(operation.ops / performance * 1e9)

    def reduction_ns(self, size: int) -> int:
        """What adding a received message of `size` bytes takes: one write, two reads, each rounded down."""
        return 3 * int(size / (self.memory_gbps * 1e9) * 1e9)


def read_system(path: Path | str) -> System:
    """The system file. Fields that change no time are ignored, ones that select another model refused."""
    file = Path(path)
    found = read_json(file)
    for field in _RING_FIELDS:
        if found.get(field, ["ring"]) != ["ring"]:
            raise InputError('only ["ring"] is modelled', file=file, field=field, value=found[field])
    for field in ("local-mem-bw", "peak-perf"):
        if field not in found:
            raise InputError("the field is missing", file=file, field=field)
    if found.get("active-chunks-per-dimension", 1) != 1:
        field = "active-chunks-per-dimension"
        raise InputError("only 1 is modelled", file=file, field=field, value=found[field])
    return System(
        memory_gbps=_rate(found, "local-mem-bw", file),
        peak_tflops=_rate(found, "peak-perf", file),
        endpoint_delay_ns=integer(
            found.get("endpoint-delay", 10), file=file, field="endpoint-delay", maximum=_MAX_ENDPOINT_DELAY_NS
        ),
        splits=integer(
            found.get("preferred-dataset-splits", 4),
            file=file,
            field="preferred-dataset-splits",
            minimum=1,
            maximum=_MAX_SPLITS,
        ),
        roofline=bool(
            integer(found.get("roofline-enabled", 0), file=file, field="roofline-enabled", maximum=1)
        ),
    )


def _rate(found: dict[str, Any], field: str, file: Path) -> float:
    return number(found[field], file=file, field=field, minimum=_SLOWEST, maximum=_FASTEST)
