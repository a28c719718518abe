"""Figure 4: how long the windows between communication phases are, by transition and by scale.

The published panels are of a measured run of DeepSeek-V2 236B on 256 GPUs; here the model gives them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from statistics import median

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.model import Compared, Figure, Panel, Series
from opus_sdn.whatif.figures.replays import line
from opus_sdn.whatif.windows import (
    Window,
    changes_of_stage,
    phases_of,
    windows_of,
    windows_without_experts,
)
from opus_sdn.whatif.workload import (
    Accelerator,
    Batch,
    Parallelism,
    Workload,
    accelerator,
    generate,
    model_card,
)
from opus_sdn.whatif.workload.plan import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from opus_sdn.whatif.workload.symmetric import static_outcome

DATA_PARALLEL = (16, 32, 64, 128)
STAGES, TENSOR = 4, 32
SCALE_OUT_GBPS = 50.0
PUBLISHED_MEDIAN_MS = dict(zip(DATA_PARALLEL, (187, 94, 47, 24), strict=True))
PUBLISHED_SHARE = 75.0  # of transitions in measured runs that leave a millisecond or more
PUBLISHED_CHANGES = 6.0
FREE_NS = 1e6
SHORTEST_MS = 0.01  # what is drawn of windows that are shorter, or none
STALL_AT_NS = 10e6
SCHEDULES = {
    "1F1B": (ONE_F_ONE_B, 1, False),
    "1F1B, overlap": (ONE_F_ONE_B, 1, True),
    "interleaved": (INTERLEAVED, 2, False),
    "zero-bubble": (ZERO_BUBBLE, 1, False),
}


def mixture(schedule: str = ONE_F_ONE_B, virtual_stages: int = 1, overlap_experts: bool = False) -> Workload:
    """DeepSeek-V2 236B as the profiled run had it: DP 8, PP 8, TP 4, EP 32, sequence 4096, batch 256."""
    plan = Parallelism(
        dp=8,
        pp=8,
        tp=4,
        ep=32,
        expert_placement="rails",
        sharding="full",
        schedule=schedule,
        virtual_stages=virtual_stages,
        overlap_experts=overlap_experts,
    )
    return generate(model_card("deepseek-v2-236b"), plan, Batch(256, 4096, 16))


def strong_scaling(data_parallel: int) -> tuple[Workload, Accelerator]:
    """The same batch on ever more GPUs, of which this many are alike in data parallelism."""
    plan = Parallelism(dp=data_parallel, pp=STAGES, tp=TENSOR)
    workload = generate(model_card("gpt-80b"), plan, Batch(15_360, 4096), preset="stg")
    return workload, accelerator("published-gb200")


@cache
def _traced() -> Workload:
    """The emulated Llama 3 8B on 16 GPUs: local batch 8, microbatch 4, sequence 8192."""
    plan = Parallelism(dp=2, pp=2, tp=4, sharding="full")
    return generate(model_card("llama3-8b"), plan, Batch(16, 8192, 2))


def windows(workload: Workload, gpu: Accelerator, scale_out_gbps: float | None = None) -> list[Window]:
    """Of the static step."""
    outcome = static_outcome(workload, gpu, scale_out_gbps=scale_out_gbps)
    return windows_of(workload, outcome.started_ns, outcome.ended_ns)


def run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure:  # noqa: ARG001 - it is quick
    """The figure."""
    a100 = accelerator("a100")
    found = windows(mixture(), a100)
    by_pair: dict[str, list[Window]] = {}
    for window in found:
        by_pair.setdefault(window.pair, []).append(window)
    cdf = [_cdf(f"{pair} ({len(own)})", own) for pair, own in sorted(by_pair.items())]
    medians = {
        dp: median(w.length_ns for w in windows(*strong_scaling(dp), SCALE_OUT_GBPS)) / 1e6
        for dp in DATA_PARALLEL
    }
    gpus = [float(dp * STAGES * TENSOR) for dp in DATA_PARALLEL]
    schedules = {name: windows(mixture(*choice), a100) for name, choice in SCHEDULES.items()}
    places = [float(place) for place in range(len(schedules))]
    panels = (
        Panel(
            "Windows by transition",
            "window (ms), at 0.01: none, or overlap",
            "share",
            (_cdf("all", found), *cdf),
            "cdf",
            log_x=True,
        ),
        Panel(
            "Median window, strong scaling",
            "GPUs",
            "window (ms)",
            (
                line("model", gpus, medians.values()),
                line("published", gpus, PUBLISHED_MEDIAN_MS.values()),
            ),
            log_x=True,
        ),
        Panel(
            "Windows of schedules with overlap",
            "schedule",
            "share of windows (%)",
            (
                line("phases overlap", places, [_share(own, below=0) for own in schedules.values()]),
                line("under 1 ms", places, [_share(own, below=FREE_NS) for own in schedules.values()]),
            ),
            "bars",
            ticks=tuple(schedules),
        ),
        Panel(
            "Windows in a step",
            "schedule",
            "windows",
            (line("all stages", places, [float(len(own)) for own in schedules.values()]),),
            "bars",
            ticks=tuple(schedules),
        ),
    )
    return Figure(
        "4",
        "Windows between communication phases",
        panels,
        tuple(_comparison(found, medians)),
        tuple(_notes(schedules)),
    )


def _comparison(found: list[Window], medians: dict[int, float]) -> list[Compared]:
    rows = [
        Compared(f"median window, {dp * STAGES * TENSOR} GPUs", float(wanted), medians[dp], "ms", within=0.01)
        for dp, wanted in PUBLISHED_MEDIAN_MS.items()
    ]
    note = "published of three measured runs, of which this model is one; ours by the model, on 256 A100"
    share = 100 - _share(found, below=FREE_NS)
    rows.append(Compared("windows of 1 ms and more", PUBLISHED_SHARE, share, "%", note=note))
    outcome = static_outcome(_traced(), accelerator("a100"))
    phases = phases_of(_traced(), outcome.started_ns, outcome.ended_ns)
    changes = max(changes_of_stage(own) for own in phases)
    what = "changes of dimension of a stage, Llama 3 8B, PP 2, FSDP 2, 2 microbatches"
    rows.append(Compared(what, PUBLISHED_CHANGES, changes, "per step", within=0.0, note="the last stage"))
    counted = len(windows(*strong_scaling(DATA_PARALLEL[0]), SCALE_OUT_GBPS))
    closed = float(windows_without_experts(STAGES))
    what = "windows of a step without experts, PP 4"
    rows.append(Compared(what, closed, counted, "per step", within=0.0, note="closed form: 2 PP - 1"))
    return rows


_NOTES = (
    (
        "A window is the time from the end of the last transfer of a phase on the slowest rank to"
        " the begin of the first of the next one, of the static step. Below zero the phases "
        "overlap, and a switch stalls one of them for its whole delay and for as long as they "
        "overlap."
    ),
    (
        "The medians are those of the GPT-style 80B (two matrices in the MLP) on GB200 with 50 "
        "GB/s to the rails."
    ),
)


def _notes(schedules: dict[str, list[Window]]) -> list[str]:
    notes = list(_NOTES)
    for name, found in schedules.items():
        pairs = sorted({window.pair for window in found if window.length_ns < 0})
        where = f" in {', '.join(pairs)}" if pairs else ""
        stages = len({window.stage for window in found})
        stall = sum(window.stall_ns(STALL_AT_NS) for window in found) / 1e6 / stages
        notes.append(
            f"{name}: {len(found)} windows, {_share(found, below=0):.0f} % of them overlap{where}; at "
            f"{STALL_AT_NS / 1e6:g} ms switches exceed the windows of a stage by {stall:.0f} ms in sum."
        )
    return notes


def _cdf(name: str, found: Iterable[Window]) -> Series:
    lengths = sorted(max(SHORTEST_MS, window.length_ns / 1e6) for window in found)
    return line(name, lengths, [(place + 1) / len(lengths) for place in range(len(lengths))])


def _share(found: list[Window], *, below: float) -> float:
    """Per cent of windows that are shorter."""
    return 100 * sum(window.length_ns < below for window in found) / len(found)
