"""Figure 13: a GPT-style model of 80B parameters on 512 GB200, over switch delay and bandwidth."""

from __future__ import annotations

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.latency import HEADLINE_MS, MODES, measure, notes_of, panels_of
from opus_sdn.whatif.figures.model import Compared, Figure
from opus_sdn.whatif.figures.replays import NAMES, OPUS, PEER, Case
from opus_sdn.whatif.workload import Batch, Parallelism, accelerator, generate, model_card

BANDWIDTHS = (25.0, 50.0, 100.0, 200.0, 400.0)


def case() -> Case:
    """The step."""
    plan, batch = Parallelism(dp=4, pp=4, tp=32), Batch(256, 4096)
    workload = generate(model_card("gpt-80b"), plan, batch, preset="stg")
    return Case(workload, accelerator("published-gb200"))


def run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure:
    """The figure; `quick`: three delays and no bandwidths."""
    found = measure(case(), BANDWIDTHS, quick=quick, jobs=jobs, done=done)
    rows = []
    for semantics in (PEER, OPUS):
        for mode in MODES:
            ours = found.overhead(mode, semantics)
            name = f"overhead at {HEADLINE_MS:g} ms, {NAMES[mode]}, over static ({semantics})"
            rows.append(Compared(name, None, ours, "%", note="no value is given for this figure"))
    title = "GPT-style 80B on 512 GB200 (DP 4, PP 4, TP 32)"
    return Figure("13", title, tuple(panels_of(found, ())), tuple(rows), tuple(notes_of(found)))
