"""Figure 5: how busy GPUs are over the delay of the switch, at 2,048 to 16,384 of them."""

from __future__ import annotations

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.f04 import DATA_PARALLEL, SCALE_OUT_GBPS, STAGES, TENSOR, strong_scaling
from opus_sdn.whatif.figures.latency import DELAY
from opus_sdn.whatif.figures.model import Compared, Figure, Panel
from opus_sdn.whatif.figures.replays import OPUS, STATIC, Case, at, line, percent
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.windows import exposed_communication_ns, utilisation, windows_of
from opus_sdn.whatif.workload import Accelerator, Workload
from opus_sdn.whatif.workload.symmetric import static_outcome

SIMULATED_MS = (10.0, 100.0, 1000.0)
DELAYS_MS = (0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0)


_NOTES = (
    (
        "Utilisation = compute / (compute + communication that is not hidden + stalls); a stall "
        "is what of a switch does not fit into its window. The mean of the stages; waiting for "
        "other stages is in none of these."
    ),
    ("Windows halve when GPUs double, the batch being the same, so that the same delay costs more at scale."),
)


def run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure:
    """The figure; `quick`: by the formula alone, without replays."""
    lines, relative, simulated, rows = [], [], [], []
    for count, data_parallel in enumerate(DATA_PARALLEL):
        workload, gpu = strong_scaling(data_parallel)
        outcome = static_outcome(workload, gpu, scale_out_gbps=SCALE_OUT_GBPS)
        windows = windows_of(workload, outcome.started_ns, outcome.ended_ns)
        compute_ns = workload.compute_ns(gpu)
        exposed_ns = exposed_communication_ns(workload, outcome.started_ns, outcome.ended_ns)
        busy = [100 * utilisation(compute_ns, exposed_ns, windows, delay * 1e6) for delay in DELAYS_MS]
        name = f"{data_parallel * STAGES * TENSOR} GPUs"
        lines.append(line(name, DELAYS_MS, busy))
        relative.append(line(name, DELAYS_MS, [100 * value / busy[0] for value in busy]))
        for delay in (10.0, 100.0, 1000.0):
            ours = 100 * busy[DELAYS_MS.index(delay)] / busy[0]
            what = f"{name}, {delay:g} ms: utilisation kept"
            rows.append(Compared(what, None, ours, "%", note="no value is given for this figure"))
        if not quick:
            simulated.append(line(name, SIMULATED_MS, _simulated(workload, gpu, jobs)))
        if done is not None:
            done(count + 1, len(DATA_PARALLEL))
    panels = [
        Panel("Utilisation over switch delay", DELAY, "utilisation (%)", tuple(lines)),
        Panel("Of that without delay", DELAY, "utilisation kept (%)", tuple(relative)),
    ]
    if simulated:
        title = "Replayed on our own controller, provisioned"
        panels.append(Panel(title, DELAY, "over the static step (%)", tuple(simulated), log_x=True))
    return Figure("5", "GPU utilisation, 2,048 to 16,384 GPUs", tuple(panels), tuple(rows), _NOTES)


def _simulated(workload: Workload, gpu: Accelerator, jobs: int | None) -> list[float | None]:
    """What the step takes longer than with every link up, in per cent: one rail for all."""
    points = [at(delay, Mode.PROVISION, OPUS) for delay in SIMULATED_MS]
    times = Case(workload, gpu).with_scale_out(SCALE_OUT_GBPS).times_s([STATIC, *points], jobs)
    static = times[STATIC]
    assert static is not None
    return [percent(times[point], static) for point in points]
