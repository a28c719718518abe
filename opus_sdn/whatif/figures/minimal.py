"""The minimal example of the published artifact: 8 ranks, on demand and provisioned at 1, 10 and 50 ms."""

from __future__ import annotations

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.latency import DELAY, MODES, STEP_S
from opus_sdn.whatif.figures.model import Compared, Figure, Panel
from opus_sdn.whatif.figures.replays import NAMES, OPUS, PEER, STATIC, Case, at, line
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.workload import Batch, Parallelism, accelerator, generate, model_card

DELAYS_MS = (0.0, 1.0, 10.0, 50.0)
PUBLISHED_S = {
    Mode.ON_DEMAND: {0.0: 62.2416, 1.0: 62.2436, 10.0: 62.2616, 50.0: 62.3416},
    Mode.PROVISION: {1.0: 62.2415, 10.0: 62.2505, 50.0: 62.2905},
}
WITHIN = 0.001


def case() -> Case:
    """The step."""
    workload = generate(model_card("gpt-80b"), Parallelism(dp=2, pp=2, tp=2), Batch(256, 4096), preset="stg")
    return Case(workload, accelerator("published-h200"))


def run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure:  # noqa: ARG001 - it is quick
    """The figure."""
    wanted = [
        at(delay, mode, semantics) for semantics in (PEER, OPUS) for mode in MODES for delay in DELAYS_MS
    ]
    times = case().times_s([STATIC, *wanted], jobs, done)
    series = [
        line(f"{NAMES[mode]} ({name})", DELAYS_MS, [times[at(delay, mode, name)] for delay in DELAYS_MS])
        for name in (PEER, OPUS)
        for mode in MODES
    ]
    series.append(line("static: every link up", DELAYS_MS, [times[STATIC]] * len(DELAYS_MS)))
    series += [
        line(f"published {NAMES[mode]}", values, values.values()) for mode, values in PUBLISHED_S.items()
    ]
    rows = [
        Compared(f"{NAMES[mode]}, {delay:g} ms (peer)", value, times[at(delay, mode, PEER)], "s", WITHIN)
        for mode, values in PUBLISHED_S.items()
        for delay, value in values.items()
    ]
    title = "The minimal example: 8 H200 (DP 2, PP 2, TP 2)"
    panel = Panel("Step time over switch delay", DELAY, STEP_S, tuple(series))
    note = (
        "The published EPS of 62.2416 s is the published rules at zero delay; with every link up and no "
        "control the step is 0.59 s shorter, which those rules lose to missing wake-ups."
    )
    return Figure("minimal", title, (panel,), tuple(rows), (note,))
