"""Figure 12: a Llama-style model of 80B parameters on 128 H200, over switch delay and bandwidth."""

from __future__ import annotations

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.latency import (
    HEADLINE_MS,
    MODES,
    Sweep,
    measure,
    notes_of,
    panels_of,
    sensitivity,
)
from opus_sdn.whatif.figures.model import Compared, Figure
from opus_sdn.whatif.figures.replays import DELAYS_MS, NAMES, OPUS, PEER, Case, at, line, percent
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.workload import Batch, Parallelism, accelerator, generate, model_card

BANDWIDTHS = (12.5, 25.0, 50.0, 100.0, 200.0)
PUBLISHED_S = {
    Mode.ON_DEMAND: (12.193, 12.259, 12.630, 13.130, 14.630, 17.130, 19.630, 22.130),
    Mode.PROVISION: (12.193, 12.223, 12.343, 12.565, 13.465, 14.965, 16.465, 17.965),
}
PUBLISHED_STATIC_S, PUBLISHED_IDEAL_S = 11.931, 12.172
# At 10 ms: bandwidth -> static, ideal, on demand, provisioned.
PUBLISHED_AT_S = {12.5: (12.904, 12.250, 13.233, 13.196), 200.0: (11.875, 11.894, 12.016, 11.979)}
PUBLISHED_HEADLINE = 5.31
WITHIN = 0.005


def case() -> Case:
    """The step."""
    plan, batch = Parallelism(dp=4, pp=4, tp=8), Batch(256, 4096)
    workload = generate(model_card("llama-80b"), plan, batch, preset="stg")
    return Case(workload, accelerator("published-h200"))


def run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure:
    """The figure; `quick`: three delays, no bandwidths and no sensitivity."""
    found = measure(case(), BANDWIDTHS, quick=quick, jobs=jobs, done=done)
    published = [
        line(f"published {NAMES[mode]}", found.delays_ms, [values[delay] for delay in found.delays_ms])
        for mode in MODES
        for values in [dict(zip(DELAYS_MS, PUBLISHED_S[mode], strict=True))]
    ]
    wide = [
        line(f"published {name}", PUBLISHED_AT_S, [values[place] for values in PUBLISHED_AT_S.values()])
        for place, name in enumerate(("static", "ideal", "on demand", "provisioned"))
    ]
    panels = panels_of(found, published, wide)
    if not quick:
        panels.append(sensitivity(case(), jobs))
    title = "Llama-style 80B on 128 H200 (DP 4, PP 4, TP 8)"
    return Figure("12", title, tuple(panels), tuple(_comparison(found)), tuple(notes_of(found)))


def _comparison(found: Sweep) -> list[Compared]:
    rows = [
        Compared("static", PUBLISHED_STATIC_S, found.static_s, "s", WITHIN),
        Compared("ideal", PUBLISHED_IDEAL_S, found.ideal_s[50.0], "s", WITHIN),
    ]
    for mode in MODES:
        for delay, wanted in zip(DELAYS_MS, PUBLISHED_S[mode], strict=True):
            if delay in found.delays_ms:
                ours = found.times[at(delay, mode, PEER)]
                rows.append(Compared(f"{NAMES[mode]}, {delay:g} ms (peer)", wanted, ours, "s", WITHIN))
    for gbps, (static, ideal, *published) in PUBLISHED_AT_S.items():
        if gbps in found.bandwidths:
            rows.append(Compared(f"static, {gbps:g} GB/s", static, found.static_at(gbps), "s", WITHIN))
            rows.append(Compared(f"ideal, {gbps:g} GB/s", ideal, found.ideal_s[gbps], "s", WITHIN))
            for mode, wanted in zip(MODES, published, strict=True):
                ours = found.at_bandwidth(gbps, mode, PEER)
                name = f"{NAMES[mode]}, {gbps:g} GB/s, 10 ms (peer)"
                rows.append(Compared(name, wanted, ours, "s", WITHIN))
    headline = f"overhead at {HEADLINE_MS:g} ms, provisioned, over"
    peer = found.overhead(Mode.PROVISION, PEER)
    rows.append(Compared(f"{headline} static (peer)", PUBLISHED_HEADLINE, peer, "%", WITHIN))
    rows.append(
        Compared(
            f"{headline} static (opus)",
            None,
            found.overhead(Mode.PROVISION, OPUS),
            "%",
            note="our own controller on the same step",
        )
    )
    others = {"peer-0ms": found.times[at(0, Mode.ON_DEMAND, PEER)], "ideal": found.ideal_s[50.0]}
    for name, reference in others.items():
        if reference is not None:
            ours = percent(found.times[at(HEADLINE_MS, Mode.PROVISION, PEER)], reference)
            rows.append(Compared(f"{headline} {name} (peer)", None, ours, "%", note="another reference"))
    return rows
