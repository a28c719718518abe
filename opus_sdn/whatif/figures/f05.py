"""Figure 5: how busy GPUs are over the delay of the switch, at 2,048 to 16,384 of them."""

from __future__ import annotations

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.f04 import DATA_PARALLEL, SCALE_OUT_GBPS, STAGES, TENSOR, strong_scaling
from opus_sdn.whatif.figures.model import Compared, Figure, Panel
from opus_sdn.whatif.figures.replays import line
from opus_sdn.whatif.windows import exposed_communication_ns, utilisation, windows_of
from opus_sdn.whatif.workload.symmetric import static_outcome

DELAYS_MS = (0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0)


_NOTES = (
    (
        "Utilisation = compute / (compute + communication that is not hidden + stalls); a stall "
        "is what of a switch does not fit into its window. The mean of the stages; waiting for "
        "other stages is in none of these."
    ),
    ("Windows halve when GPUs double, the batch being the same, so that the same delay costs more at scale."),
)


def run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure:  # noqa: ARG001 - it is quick
    """The figure."""
    lines, relative, rows = [], [], []
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
        if done is not None:
            done(count + 1, len(DATA_PARALLEL))
    panels = (
        Panel("Utilisation over switch delay", "switch delay (ms)", "utilisation (%)", tuple(lines)),
        Panel("Of that without delay", "switch delay (ms)", "utilisation kept (%)", tuple(relative)),
    )
    return Figure("5", "GPU utilisation, 2,048 to 16,384 GPUs", panels, tuple(rows), _NOTES)
