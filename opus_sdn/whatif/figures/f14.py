"""Figure 14: expert parallelism on 256 and 512 GPUs, on one rail and over all, at every switch delay."""

from __future__ import annotations

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.latency import DELAY, MODES, STEP_S
from opus_sdn.whatif.figures.model import Compared, Figure, Panel
from opus_sdn.whatif.figures.replays import DELAYS_MS, NAMES, OPUS, STATIC, Case, at, line, percent, slope
from opus_sdn.whatif.sweeps import Point
from opus_sdn.whatif.windows import windows_of
from opus_sdn.whatif.workload import Batch, Experts, Model, Parallelism, accelerator, generate
from opus_sdn.whatif.workload.symmetric import static_outcome

STAGES, TENSOR, MICROBATCHES = 4, 8, 4
SIZES = (256, 512)
# Experts, widths, heads, sequence and batch are published; layers, stages and microbatches are chosen.
MODEL = Model(
    "experts-256",
    layers=16,
    hidden=7168,
    heads=128,
    ffn=18_432,
    vocab=129_280,
    experts=Experts(256, 8, 2048),
)
PLACES = {"one rail": "rail", "all rails": "rails"}
QUICK_DELAYS_MS = (0.0, 10.0, 100.0)


def case(gpus: int, placement: str, *, overlap: bool = False) -> Case:
    """The step: experts of a layer over all data-parallel ranks of a rail, or over those of all rails."""
    data_parallel = gpus // (STAGES * TENSOR)
    spread = data_parallel if placement == "rail" else data_parallel * TENSOR
    plan = Parallelism(
        dp=data_parallel,
        pp=STAGES,
        tp=TENSOR,
        ep=spread,
        expert_placement=placement,
        overlap_experts=overlap,
    )
    workload = generate(MODEL, plan, Batch(256, 4096, MICROBATCHES))
    return Case(workload, accelerator("published-h200"))


def run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure:
    """The figure; `quick`: three delays."""
    delays = QUICK_DELAYS_MS if quick else DELAYS_MS
    points = [STATIC, *(at(delay, mode, OPUS) for mode in MODES for delay in delays)]
    cases = [(gpus, name) for gpus in SIZES for name in PLACES]
    panels, rows, notes = [], [], [_HOW]
    for count, (gpus, name) in enumerate(cases):
        own = case(gpus, PLACES[name])
        before = count * len(points)

        def count_on(finished: int, _all: int, before: int = before) -> None:
            if done is not None:
                done(before + finished, len(points) * len(cases))

        times = own.times_s(points, jobs, count_on)
        title = f"{gpus} GPUs, experts on {name}"
        panels.append(_panel(title, delays, times))
        rows += _rows(title, delays, times)
        notes += _notes(title, own, delays, times)
    return Figure("14", "Expert parallelism", tuple(panels), tuple(rows), tuple(notes))


_HOW = (
    "256 experts, 8 of them active, width 7168, expert width 2048, 128 heads, sequence 4096, batch 256. "
    "Every point is replayed on our own controller. Chosen by us, because it is not published: 16 layers, "
    "PP 4, TP 8, four microbatches, 1F1B. An all-to-all over hosts goes around the ring of its ranks."
)


def _panel(title: str, delays: tuple[float, ...], times: dict[Point, float | None]) -> Panel:
    lines = [line("static: every link up", delays, [times[STATIC]] * len(delays))]
    lines += [line(NAMES[mode], delays, [times[at(d, mode, OPUS)] for d in delays]) for mode in MODES]
    return Panel(title, DELAY, STEP_S, tuple(lines))


def _rows(title: str, delays: tuple[float, ...], times: dict[Point, float | None]) -> list[Compared]:
    static = times[STATIC]
    assert static is not None
    return [
        Compared(
            f"{title}, {NAMES[mode]}, {delay:g} ms: over static",
            None,
            percent(times[at(delay, mode, OPUS)], static),
            "%",
            note="no value is given for this figure",
        )
        for mode in MODES
        for delay in delays
        if delay in (10.0, 100.0)
    ]


def _notes(title: str, own: Case, delays: tuple[float, ...], times: dict[Point, float | None]) -> list[str]:
    """How many switches are exposed for each delay, and whether phases overlap."""
    outcome = static_outcome(own.workload, own.accelerator)
    found = windows_of(own.workload, outcome.started_ns, outcome.ended_ns)
    overlapping = sum(window.length_ns < 0 for window in found)
    rises = []
    for mode in MODES:
        rise = slope([times[at(delay, mode, OPUS)] for delay in delays], delays)
        if rise is not None:
            rises.append(f"{NAMES[mode]} {rise:.1f}")
    note = f"{title}: {len(found)} windows in all stages, {overlapping} of them below zero (phases overlap)"
    if rises:
        note += f"; delays exposed in a step at the largest delays: {', '.join(rises)}"
    return [f"{note}."]
