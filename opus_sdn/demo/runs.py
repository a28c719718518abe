"""What the demonstrations share: progress, one training run of the prototype's shape, and how they end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.report import RunReport, StepTime
from opus_sdn.demo.shapes import PROTOTYPE8, Shape, TrainConfig

STEPS: Final = 10
DEADLINE_S: Final = 180.0

console = Console(stderr=True)


class Steps:
    """Shows progress while ranks report their steps, and remembers when rank 0 ended each."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)
        self.times: list[StepTime] = []

    def __call__(self, rank: int, value: Any) -> None:
        if rank == 0:
            ended_at, seconds = (
                (value["ended_at"], value["seconds"])
                if isinstance(value, Mapping)
                else (value.ended_at, value.seconds)
            )
            self.times.append(StepTime(ended_at, seconds))
            self._progress.advance(self._task)


def progress_bars() -> Progress:
    """One line for each run, on stderr."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def train(
    zygote: Zygote, backend: str, on_step: Steps, environment: Mapping[str, str], steps: int = STEPS
) -> list[str]:
    """One training run of the prototype's shape; the loss of every step."""
    results = zygote.run(
        "opus_sdn.demo.train:run",
        PROTOTYPE8.world_size,
        args=(TrainConfig(PROTOTYPE8, steps=steps), backend),
        environment=environment,
        rank_environment=PROTOTYPE8.environment,
        on_message=on_step,
        deadline_s=DEADLINE_S,
    )
    return list(next(result.losses for result in results if result.losses))


def dimensions(shape: Shape) -> str:
    """The shape as `OPUS_DIMENSIONS` wants it."""
    return ",".join(f"{name}={size}" for name, size in shape.dimensions)


def common_faults(report: RunReport) -> list[str]:
    """What is not as it must be in any run, in words."""
    found = []
    if not report.same:
        found.append(f"{report.job}: results {report.results} differ from plain gloo's {report.results_gloo}")
    if report.witness_violations:
        found.append(f"{report.job}: {report.witness_violations} violations seen by the traffic witness")
    if "tp" in report.grants_by_dimension:
        found.append(f"{report.job}: tensor-parallel groups asked for grants")
    return found


def topology_faults(report: RunReport) -> list[str]:
    """What is not as it must be in the topology ids of the prototype's shape, in words."""
    found = []
    for rail in ("rail0", "rail1"):
        ids = set(report.topology_history.get(rail, ()))
        if not {"00", "11"} <= ids or set("".join(ids)) - set("01x-"):
            found.append(
                f"{report.job}: topology ids on {rail} went {sorted(ids)}, wanted 00 and 11 among them"
            )
    return found


def run_to_the_end(main: Callable[[], int]) -> NoReturn:
    """Run a demonstration and exit with its status; controllers and ranks are stopped on every way out."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_in_order)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        console.print("interrupted; controllers and ranks were stopped")
        sys.exit(130)


def _end_in_order(*_: object) -> None:
    raise KeyboardInterrupt
