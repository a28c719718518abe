"""Whether a run is what its mode promises, in words that name what is not."""

from __future__ import annotations

from collections.abc import Sequence

from opus_sdn.experiment.cases import Mode
from opus_sdn.experiment.results import RunResult


def faults(run: RunResult, expected_ranks: int | None = None) -> list[str]:
    """What is wrong with one run; empty when all is well. `expected_ranks`: None takes the case's."""
    wanted = run.ranks if expected_ranks is None else expected_ranks
    found = []
    if run.finished_ranks != wanted:
        found.append(f"{run.finished_ranks} of {wanted} ranks reached step {run.steps}")
    found += [f"failed: {text}" for text in run.failures[:3]]
    if len(run.failures) > 3:
        found.append(f"failed: {len(run.failures) - 3} more ranks")
    if run.time_outs:
        found.append(f"{run.time_outs} grant time-outs, wanted none")
    if run.mode == Mode.NATIVE:
        if run.jobs or run.grants or run.arrivals_seen:
            found.append(f"the controller saw {run.jobs} jobs and {run.grants} grants of a native run")
    elif not run.grants:
        found.append("no grants: the ranks did not go through the controller")
    elif not run.topology_changes:
        found.append("no topology changes: nothing was switched")
    return found


def differing_losses(runs: Sequence[RunResult]) -> list[str]:
    """Runs of one case and length whose losses are not those of the first, in all their digits."""
    first: dict[tuple[str, int], RunResult] = {}
    found = []
    for run in runs:
        if run.failures or len(run.losses) != run.steps:
            continue
        other = first.setdefault((run.case, run.steps), run)
        if other.losses != run.losses:
            step = next(k for k, (a, b) in enumerate(zip(other.losses, run.losses, strict=True)) if a != b)
            found.append(
                f"{run.run}: loss {run.losses[step]} in step {step + 1}, "
                f"where {other.run} has {other.losses[step]}"
            )
    return found
