"""The study file. The parts that describe the job have the fields of the workload generator's own types."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, Discriminator, Field, Tag, create_model

from opus_sdn.whatif.inputs.checked import FIELDS, NAME, Part, read_checked
from opus_sdn.whatif.inputs.network import DEFAULT_LATENCY_NS, MAX_DELAY_NS, MAX_LATENCY_NS
from opus_sdn.whatif.workload import Accelerator, Batch, Model, Parallelism

MAX_VALUES = 64  # of one swept input
MAX_MS = MAX_DELAY_NS / 1e6

Milliseconds = Annotated[float, Field(ge=0, le=MAX_MS)]
# Below these a step takes ages, and its nanoseconds no longer fit a float.
MIN_GBPS = 1e-6
MIN_EFFICIENCY = 1e-6
Gbps = Annotated[float, Field(ge=MIN_GBPS, le=1e9)]
SEMANTICS = Literal["opus", "peer"]
REFERENCES = Literal["static", "peer-0ms", "ideal"]


def part_of(kind: type[Any]) -> type[BaseModel]:
    """The mapping of a file that stands for a dataclass: the same fields, types and defaults, strictly."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for field in fields(kind):
        needed = field.default is MISSING
        found[field.name] = (_wire_type(hints[field.name]), ... if needed else field.default)
    return create_model(kind.__name__, __base__=Part, **found)


def _wire_type(hint: Any) -> Any:
    if isinstance(hint, UnionType):
        parts = [_wire_type(part) for part in get_args(hint)]
        found = parts[0]
        for part in parts[1:]:
            found |= part
        return found
    return part_of(hint) if isinstance(hint, type) and is_dataclass(hint) else hint


def made(kind: type[Any], part: BaseModel) -> Any:
    """The dataclass that such a mapping stands for."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            inner = [kind for kind in (hints[name], *get_args(hints[name])) if is_dataclass(kind)]
            value = made(inner[0], value)  # type: ignore[arg-type]
        values[name] = value
    return kind(**values)


ModelPart = part_of(Model)
AcceleratorPart = part_of(Accelerator)
ParallelismPart = part_of(Parallelism)
BatchPart = part_of(Batch)


class Fabric(Part):
    """What joins the hosts. A circuit that is moved carries traffic again after control, optics and link-up.

    Bandwidths are GB/s of 2^30 bytes in each direction, by default the accelerator's.
    """

    scale_out_gbps: Gbps | None = None
    scale_up_gbps: Gbps | None = None
    switch_ms: Milliseconds = 25.0
    control_ms: Milliseconds = 1.0
    link_up_ms: Milliseconds = 0.0
    latency_ns: Annotated[float, Field(ge=0, le=MAX_LATENCY_NS)] = DEFAULT_LATENCY_NS


Values = Annotated[list[Milliseconds], Field(max_length=MAX_VALUES, default_factory=list)]


Counts = Annotated[
    list[Annotated[int, Field(ge=1, le=1 << 20)]], Field(max_length=MAX_VALUES, default_factory=list)
]


class Sweep(Part):
    """Values of one input each, tried while all others stay as they are in the study.

    `dp` and `microbatches` are of other jobs: the same batch on more GPUs, or in more parts.
    """

    switch_ms: Values
    control_ms: Values
    link_up_ms: Values
    scale_out_gbps: Annotated[list[Gbps], Field(max_length=MAX_VALUES, default_factory=list)]
    dp: Counts
    microbatches: Counts


class Advice(Part):
    """What is to be found out beyond the sweep: where the overhead passes this, and what would change it."""

    overhead_percent: Annotated[float, Field(gt=0, le=1000)] = 5.0
    largest_ms: Annotated[float, Field(gt=0, le=MAX_MS)] = 20_000.0
    alternatives: bool = True
    sensitivity: bool = True


class Cost(Part):
    """Whose prices the network is priced with; `prices` is a price file beside the study."""

    system: Literal["h200", "gb200"]
    prices: str | None = None


ModeName = Literal["on-demand", "provision"]


def _both_modes() -> list[ModeName]:
    return ["on-demand", "provision"]


def _named_or_said(value: object) -> str:
    return NAME if isinstance(value, str) else FIELDS


def _or_name(part: type[BaseModel]) -> Any:
    """The name of a known thing, or its fields."""
    said = Annotated[part, Tag(FIELDS)]  # type: ignore[valid-type]
    return Annotated[Annotated[str, Tag(NAME)] | said, Discriminator(_named_or_said)]


ModelOrName = _or_name(ModelPart)
AcceleratorOrName = _or_name(AcceleratorPart)


class Study(Part):
    """A study file. Only the model, the accelerator, the parallelism and the batch have to be said.

    `hosts` and `gpus_per_host`, where they are said, have to be what the parallelism fills.
    """

    title: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    model: ModelOrName  # type: ignore[valid-type]
    accelerator: AcceleratorOrName  # type: ignore[valid-type]
    hosts: Annotated[int, Field(ge=1)] | None = None
    gpus_per_host: Annotated[int, Field(ge=1)] | None = None
    parallelism: ParallelismPart  # type: ignore[valid-type]
    batch: BatchPart  # type: ignore[valid-type]
    preset: str = "physical"
    efficiency: Annotated[float, Field(ge=MIN_EFFICIENCY, le=1)] | None = None
    fabric: Fabric = Fabric()
    semantics: SEMANTICS = "opus"
    modes: Annotated[list[ModeName], Field(min_length=1, max_length=2, default_factory=_both_modes)]
    reference: REFERENCES = "static"
    options: Annotated[dict[str, bool | int | float | str], Field(default_factory=dict)]
    sweep: Annotated[Sweep, Field(default_factory=lambda: Sweep.model_validate({}))]
    advice: Advice | None = Advice()
    cost: Cost | None = None


def read_study(file: Path) -> Study:
    """The study in this file. Raises InputError with the field, what stands there, and what would fit."""
    return read_checked(file, Study)
