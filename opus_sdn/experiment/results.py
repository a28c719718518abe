"""What is kept of a run: `result.json` in its folder, beside the ranks' logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

FILE: Final = "result.json"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class RunFileError(ValueError):
    """A result that cannot be read: which file, what is wrong, what makes one."""


@dataclass(slots=True)
class RunResult:
    """One run. Ranks are indices of the lists; times are seconds and delays milliseconds.

    `seconds[r][k]` is step k as rank r saw it. `failures` say of ranks that did not return how they ended,
    `losses` are in all digits. `jobs`: how many jobs the controller has seen, none with plain gloo; `status`
    is the job as the controller shows it at the end. `exposed_ms` is, per step, that of the rank which waited
    most.
    """

    run: str
    case: str
    mode: str
    delay_ms: float
    ranks: int
    hosts: int
    gpus_per_host: int
    steps: int
    command: str
    seconds: list[list[float]] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    jobs: int = 0
    arrivals_seen: bool = False
    grants: int = 0
    topology_changes: int = 0
    device_operations: int = 0
    time_outs: int = 0
    exposed_ms: list[float] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def finished_ranks(self) -> int:
        """Ranks that reached the last step."""
        return sum(len(steps) == self.steps for steps in self.seconds)

    def step_seconds(self) -> list[float]:
        """Per step the mean over the first rank of every host, as far as all of them have come."""
        leaders = self.seconds[:: self.gpus_per_host]
        reached = min((len(steps) for steps in leaders), default=0)
        return [fmean(steps[k] for steps in leaders) for k in range(reached)]

    def mean_step_s(self, last: int) -> float | None:
        """Mean of the last so many steps; None when fewer were made."""
        steps = self.step_seconds()
        return fmean(steps[-last:]) if len(steps) >= last else None

    def median_step_s(self, skip: int = 1) -> float | None:
        """Median without the first steps, in which torch still makes its buffers; None when none is left."""
        steps = self.step_seconds()[skip:]
        return median(steps) if steps else None

    def save(self, folder: Path) -> None:
        """Write it, whole or not at all."""
        partial = folder / f"{FILE}.part"
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        partial.replace(folder / FILE)


_READER: Final = TypeAdapter(RunResult)


def load(where: Path) -> RunResult:
    """The result in a run's folder, or in the file itself. Raises RunFileError."""
    path = where / FILE if where.is_dir() else where
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise RunFileError(
            f"{path}: cannot be read: {failed.strerror}; `opus experiment run` makes a folder with one"
        ) from None
    if len(raw) > FILE_BYTES_MAX:
        raise RunFileError(f"{path}: is larger than {FILE_BYTES_MAX} bytes; it is no result of a run")
    try:
        return _READER.validate_json(raw)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False)[0]
        where_in = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RunFileError(f"{path}: is no result of a run: {where_in}: {first['msg']}") from None


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, smallest and largest of at least one value."""
    return median(values), min(values), max(values)
