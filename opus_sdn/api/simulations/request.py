"""What is asked of a simulation: files of a step, and one replay of it or a sweep.

Read twice: by the controller, which refuses what cannot be right, and by the process that replays. So nothing
of the web framework is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from opus_sdn.api.schemas import NAME_PATTERN
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.whatif.inputs.network import DEFAULT_LATENCY_NS
from opus_sdn.whatif.scenario import Mode

POINTS_MAX = 4096
VALUES_MAX = 1024  # of one range of a sweep
FILES_OF_OPTIONS = ("fabric", "job")  # options of the library that name files: here they are inputs

Number = Annotated[float, Field(ge=0, lt=1e15)]
Bandwidth = Annotated[float, Field(gt=0, lt=1e15)]
Semantics = Annotated[
    Literal["peer", "opus"], Field(description="`peer`: the published simulator's; `opus`: this controller's")
]
Options = Annotated[
    dict[Annotated[str, Field(max_length=64)], bool | int | float | Annotated[str, Field(max_length=256)]],
    Field(max_length=32, description="Of the semantics `opus`, as `ring_patience_ms`; `fabric` is an input"),
]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class InputFile(_Part):
    """A file: sent along, with its `name` and its `content` in base64 or `text`; or there, by its `path`."""

    name: Annotated[
        str | None,
        Field(pattern=NAME_PATTERN, description="Its suffix says what it is, as in `et.tar.xz`, `s.txt.xz`"),
    ] = None
    content: Annotated[str | None, Field(description="Base64")] = None
    text: Annotated[str | None, Field(description="UTF-8, for files that are text")] = None
    path: Annotated[
        str | None,
        Field(min_length=1, max_length=4096, description="Below the controller's folder `traces_dir`"),
    ] = None

    @property
    def shown(self) -> str:
        """What it is called."""
        return self.path or self.name or ""

    def check(self, field: str) -> None:
        """Raise CoreError unless it is given in exactly one way."""
        ways = [way for way in ("content", "text", "path") if getattr(self, way) is not None]
        if len(ways) != 1:
            why = f"{field} has {' and '.join(ways) or 'nothing'}: give its content, its text or its path"
            raise _refused(field, why)
        if (self.name is None) != (self.path is not None):
            why = f"{field}.name goes with content and text; a path has its name in it"
            raise _refused(f"{field}.name", why)


class SimulationInputs(_Part):
    """The files of a step, as `opus whatif` reads them."""

    et: Annotated[
        InputFile, Field(description="Chakra traces: an archive; by path also a folder, or a prefix")
    ]
    groups: Annotated[InputFile, Field(description="Communicators, JSON: group -> ranks in ring order")]
    system: Annotated[InputFile, Field(description="The machine: JSON of the published simulator")]
    schedules: Annotated[InputFile, Field(description="The topologies; may be .xz")]
    hints: Annotated[
        InputFile | None, Field(description="When ranks ask ahead, YAML; null: derived by the published rule")
    ] = None
    fabric: Annotated[InputFile | None, Field(description="Instead of the fabric that the trace implies")] = (
        None
    )
    job: Annotated[InputFile | None, Field(description="Placement on `fabric`")] = None

    def given(self) -> Iterator[tuple[str, InputFile]]:
        """The inputs that there are, by field."""
        for field in type(self).model_fields:
            file: InputFile | None = getattr(self, field)
            if file is not None:
                yield field, file


class ReplayRequest(_Part):
    """One replay."""

    delay_ms: Annotated[Number, Field(description="What re-pointing a link takes, ms")]
    latency_ns: Annotated[Number, Field(description="Of a link, ns")] = DEFAULT_LATENCY_NS
    mode: Mode = Mode.ON_DEMAND
    semantics: Semantics = "peer"
    options: Options = {}
    exact: Annotated[bool, Field(description="Event by event: slow, the oracle of the fast path")] = False


class SweepRequest(_Part):
    """A replay for every combination."""

    delays_ms: Annotated[list[Number], Field(min_length=1, max_length=VALUES_MAX)]
    modes: Annotated[list[Mode], Field(min_length=1, max_length=len(Mode))] = [Mode.ON_DEMAND]
    semantics: Annotated[list[Semantics], Field(min_length=1, max_length=2)] = ["peer"]
    bandwidths_gbps: Annotated[
        list[Bandwidth],
        Field(max_length=VALUES_MAX, description="GB/s of what can be switched; none: as the schedules say"),
    ] = []
    latencies_ns: Annotated[list[Number], Field(min_length=1, max_length=VALUES_MAX)] = [DEFAULT_LATENCY_NS]
    options: Options = {}


class SimulationRequest(_Part):
    """A step, and what to do with it: `replay` or `sweep`."""

    label: Annotated[str, Field(max_length=128, description="For whoever reads the list")] = ""
    inputs: SimulationInputs
    replay: ReplayRequest | None = None
    sweep: SweepRequest | None = None

    @property
    def points(self) -> int:
        """How many replays that is at most."""
        if self.sweep is None:
            return 1
        wanted = self.sweep
        ranges: Sequence[Sequence[object]] = (wanted.delays_ms, wanted.modes, wanted.semantics)
        return prod(map(len, ranges)) * len(wanted.latencies_ns) * max(1, len(wanted.bandwidths_gbps))

    def check(self) -> None:
        """Raise CoreError `invalid-request` for fields that do not go together."""
        if (self.replay is None) == (self.sweep is None):
            raise _refused("replay", "replay, sweep: give one of them")
        for name, file in self.inputs.given():
            file.check(f"inputs.{name}")
        if self.points > POINTS_MAX:
            raise _refused("sweep", f"sweep is {self.points} replays; at most {POINTS_MAX} are possible")
        chosen = self.replay or self.sweep
        for name in FILES_OF_OPTIONS:
            if chosen is not None and name in chosen.options:
                field = f"{'replay' if self.replay else 'sweep'}.options.{name}"
                raise _refused(field, f"{field} would name a file of the controller: use inputs.{name}")
        inputs = self.inputs
        if inputs.hints is not None and (self.replay is None or self.replay.mode is not Mode.PROVISION):
            why = f"inputs.hints go with a replay of mode {Mode.PROVISION}; a sweep derives its own"
            raise _refused("inputs.hints", why)
        if (inputs.fabric is None) != (inputs.job is None):
            missing = "job" if inputs.job is None else "fabric"
            raise _refused(f"inputs.{missing}", f"inputs.{missing} is missing: fabric and job go together")


def _refused(field: str, why: str) -> CoreError:
    return CoreError(Problem.INVALID_REQUEST, why, field=field)
