"""A case over the published delays, in both modes: step latency and what the control plane costs.

The two figures are those of the published Figures 10 and 11. A run that is there is not made again, so that
a sweep that was interrupted goes on.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from opus_sdn.experiment.cases import Mode, RunSpec
from opus_sdn.experiment.results import RunResult

COLUMNS = (
    "case",
    "mode",
    "delay_ms",
    "repeat",
    "mean_step_s",
    "overhead_s",
    "overhead_percent",
    "grants",
    "topology_changes",
)


def sweep_specs(
    case: str, delays_ms: Sequence[float], modes: Sequence[Mode], steps: int
) -> Iterator[RunSpec]:
    """The runs of a sweep: native once, then every mode at every delay."""
    yield RunSpec(case, Mode.NATIVE, steps=steps)
    for mode in modes:
        for delay_ms in delays_ms:
            yield RunSpec(case, mode, delay_ms, steps=steps)


def sweep_csv(runs: Sequence[tuple[int, RunResult]], last: int) -> str:
    """A line for each run with its mean over the last steps, and how much that is above native's."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    native = _native(runs, last)
    for repeat, run in runs:
        mean = run.mean_step_s(last)
        over = mean - native if mean is not None and native is not None else None
        writer.writerow(
            (
                run.case,
                run.mode,
                f"{run.delay_ms:g}",
                repeat,
                "" if mean is None else f"{mean:.6f}",
                "" if over is None else f"{over:.6f}",
                "" if over is None or not native else f"{100 * over / native:.3f}",
                run.grants,
                run.topology_changes,
            )
        )
    return out.getvalue()


def plot(runs: Sequence[tuple[int, RunResult]], last: int, path: Path) -> None:
    """Step latency over the delay, and the control plane's overhead, side by side. Needs matplotlib."""
    from matplotlib.figure import Figure

    native = _native(runs, last)
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    latency, overhead = figure.subplots(1, 2)
    for mode in (Mode.ON_DEMAND, Mode.PROVISION):
        points = _points(runs, mode, last)
        if not points:
            continue
        delays = list(points)
        latency.plot(delays, list(points.values()), marker="o", label=mode.value)
        if native:
            overhead.plot(
                delays,
                [100 * (step - native) / native for step in points.values()],
                marker="o",
                label=mode.value,
            )
    if native is not None:
        latency.axhline(native, color="grey", linestyle="--", label="native")
        overhead.axhline(0.0, color="grey", linestyle="--")
    for axes, title, unit in (
        (latency, "Step latency", "seconds"),
        (overhead, "Over native", "per cent of a native step"),
    ):
        axes.set_title(title)
        axes.set_xlabel("delay of the switch, ms")
        axes.set_ylabel(unit)
        axes.grid(visible=True, alpha=0.3)
    latency.legend()
    figure.suptitle(runs[0][1].case if runs else "")
    figure.savefig(path, dpi=150)


def _native(runs: Sequence[tuple[int, RunResult]], last: int) -> float | None:
    means = [run.mean_step_s(last) for _, run in runs if run.mode == Mode.NATIVE]
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if known else None


def _points(runs: Sequence[tuple[int, RunResult]], mode: Mode, last: int) -> dict[float, float]:
    """Mean step by delay, over the repeats."""
    found: dict[float, list[float]] = {}
    for _, run in runs:
        mean = run.mean_step_s(last)
        if run.mode == mode and mean is not None:
            found.setdefault(run.delay_ms, []).append(mean)
    return {delay: sum(means) / len(means) for delay, means in sorted(found.items())}
