"""Figure 15: from DP 2 to DP 16 on H200 and GB200 at 10 ms, and what the fabrics cost and draw."""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.costs import cost_panels
from opus_sdn.whatif.figures.latency import MODES
from opus_sdn.whatif.figures.model import Compared, Figure, Panel
from opus_sdn.whatif.figures.replays import NAMES, OPUS, PEER, STATIC, Case, at, line, percent
from opus_sdn.whatif.workload import Batch, Parallelism, accelerator, generate, model_card

DATA_PARALLEL = (2, 4, 8, 16)
DELAY_MS = 10.0
PEER_RANKS_MAX = 512  # beyond, the published rules take minutes for a point
TOKENS = 256 * 4096


@dataclass(frozen=True)
class _System:
    name: str
    model: str
    gpu: str
    tensor: int
    stages: int = 4

    def case(self, data_parallel: int) -> Case:
        plan = Parallelism(dp=data_parallel, pp=self.stages, tp=self.tensor)
        workload = generate(model_card(self.model), plan, Batch(256, 4096), preset="stg")
        return Case(workload, accelerator(self.gpu))

    def gpus(self, data_parallel: int) -> int:
        return data_parallel * self.stages * self.tensor


SYSTEMS = (
    _System("H200", "llama-80b", "published-h200", 8),
    _System("GB200", "gpt-80b", "published-gb200", 32),
)


_NOTES = (
    (
        "The batch stays at 256 sequences of 4096 tokens while data parallelism grows, PP 4 "
        "throughout: TP 8 with the Llama-style 80B on H200, TP 32 with the GPT-style 80B on "
        "GB200."
    ),
    (f"The published rules are replayed up to {PEER_RANKS_MAX} ranks, our own controller at every size."),
)


def run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure:
    """The figure; `quick`: without the published rules."""
    panels, rows = [], []
    total = len(SYSTEMS) * len(DATA_PARALLEL)
    for system in SYSTEMS:
        times: dict[str, list[float | None]] = {}
        for data_parallel in DATA_PARALLEL:
            found = _times(system, data_parallel, jobs, published=not quick)
            for name, value in found.items():
                times.setdefault(name, []).append(value)
            static = found[_STATIC]
            assert static is not None
            for name, value in found.items():
                if name not in (_STATIC, _IDEAL) and value is not None:
                    what = f"{system.gpus(data_parallel)} {system.name}, {name}: over static"
                    rows.append(
                        Compared(what, None, percent(value, static), "%", note="no value is given for it")
                    )
            if done is not None:
                done(SYSTEMS.index(system) * len(DATA_PARALLEL) + len(times[_STATIC]), total)
        gpus = [float(system.gpus(dp)) for dp in DATA_PARALLEL]
        lines = tuple(
            line(name, gpus, [None if value is None else TOKENS / value / 1e3 for value in values])
            for name, values in times.items()
        )
        title = f"{system.name}: DP 2 to 16 at {DELAY_MS:g} ms"
        panels.append(Panel(title, "GPUs", "tokens a second (thousands)", lines, log_x=True))
    costs, priced = cost_panels()
    title = "Performance, cost and power scaling"
    return Figure("15", title, (*panels, *costs), (*rows, *priced), _NOTES)


_STATIC, _IDEAL = "static: every link up", "ideal: one topology, balanced"


def _times(
    system: _System, data_parallel: int, jobs: int | None, *, published: bool
) -> dict[str, float | None]:
    case = system.case(data_parallel)
    small = system.gpus(data_parallel) <= PEER_RANKS_MAX
    kinds = [(semantics, mode) for semantics in (OPUS, PEER) for mode in MODES]
    wanted = {
        f"{NAMES[mode]} ({semantics})": at(DELAY_MS, mode, semantics)
        for semantics, mode in kinds
        if semantics == OPUS or (published and small)
    }
    times = case.times_s([STATIC, *wanted.values()], jobs)
    found: dict[str, float | None] = {_STATIC: times[STATIC]}
    found[_IDEAL] = case.ideal_s() if small else None
    for semantics, mode in kinds:
        name = f"{NAMES[mode]} ({semantics})"
        if semantics == OPUS or published:
            found[name] = times[wanted[name]] if name in wanted else None
    return found
