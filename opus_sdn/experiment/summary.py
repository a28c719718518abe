"""Figures of several runs: mean step times as a tab-separated list, medians with their spread as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opus_sdn.experiment.results import RunResult, spread

COLUMNS = (
    "run",
    "case",
    "mode",
    "delay_ms",
    "ranks",
    "steps",
    "last",
    "mean_step_s",
    "grants",
    "topology_changes",
)
TABLE = (
    "case",
    "mode",
    "switch, ms",
    "runs",
    "step, s: median (smallest to largest)",
    "over native",
    "changes a step",
    "grants a step",
    "exposed ms a step",
    "changes on hints",
)
ABSENT = "-"


def summary_lines(runs: Sequence[RunResult], last: int) -> Iterator[str]:
    """A heading and a line for each run, tab separated; a run with fewer than `last` steps has no mean."""
    yield "\t".join(COLUMNS)
    for run in runs:
        mean = run.mean_step_s(last)
        yield "\t".join(
            (
                run.run,
                run.case,
                run.mode,
                f"{run.delay_ms:g}",
                f"{run.finished_ranks}/{run.ranks}",
                str(len(run.step_seconds())),
                str(last),
                ABSENT if mean is None else f"{mean:.4f}",
                str(run.grants),
                str(run.topology_changes),
            )
        )


def table_lines(runs: Sequence[RunResult]) -> Iterator[str]:
    """A Markdown table: per case, mode and delay the median over its runs of each run's median step, their
    range, and what was switched.
    """
    yield "| " + " | ".join(TABLE) + " |"
    yield "|---" * len(TABLE) + "|"
    groups: dict[tuple[str, str, float], list[RunResult]] = {}
    for run in runs:
        if run.median_step_s() is not None:
            groups.setdefault((run.case, run.mode, run.delay_ms), []).append(run)
    for (case, mode, delay_ms), members in groups.items():
        middle, smallest, largest = spread(_medians(members))
        native = groups.get((case, "native", 0.0))
        over = f"{middle - spread(_medians(native))[0]:+.3f} s" if native and mode != "native" else ABSENT
        yield (
            "| "
            + " | ".join(
                (
                    case,
                    mode,
                    ABSENT if mode == "native" else f"{delay_ms:g}",
                    str(len(members)),
                    f"{middle:.3f} ({smallest:.3f} to {largest:.3f})",
                    over,
                    _per_step(members, [run.topology_changes for run in members]),
                    _per_step(members, [run.grants for run in members]),
                    _exposed(members),
                    _on_hints(members),
                )
            )
            + " |"
        )


def _medians(runs: Sequence[RunResult]) -> list[float]:
    return [step for run in runs if (step := run.median_step_s()) is not None]


def _per_step(runs: Sequence[RunResult], counts: Sequence[int]) -> str:
    if not any(counts):
        return ABSENT
    middle, _, _ = spread([count / run.steps for run, count in zip(runs, counts, strict=True)])
    return f"{middle:.1f}"


def _exposed(runs: Sequence[RunResult]) -> str:
    waits = [wait for run in runs for wait in run.exposed_ms[1:]]
    return f"{spread(waits)[0]:.0f}" if waits else ABSENT


def _on_hints(runs: Sequence[RunResult]) -> str:
    """Of the grants that needed a change, the share whose change had begun or ended when all had arrived."""
    transitions = [each for run in runs for each in run.status.get("transitions", ())]
    changes = sum(each["changes"] for each in transitions)
    return f"{sum(each['hits'] for each in transitions) / changes:.0%}" if changes else ABSENT
