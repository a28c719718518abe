"""Step times over the switch's delay and over the bandwidth of its links, of a step on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opus_sdn.whatif.figures import Done
from opus_sdn.whatif.figures.model import Panel, Series
from opus_sdn.whatif.figures.replays import (
    DELAYS_MS,
    NAMES,
    OPUS,
    PEER,
    STATIC,
    Case,
    at,
    line,
    percent,
    slope,
)
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.sweeps import Point
from opus_sdn.whatif.workload.generate import Workload, generate

MODES = (Mode.ON_DEMAND, Mode.PROVISION)
DELAY, STEP_S = "switch delay (ms)", "step (s)"
BANDWIDTH_AT_MS = 10.0
HEADLINE_MS = 100.0
QUICK_DELAYS_MS = (0.0, 10.0, 100.0)
REFERENCES = (
    "References: static (every link of every topology up, no control), peer-0ms (the published rules at zero "
    "delay, longer than static because of missing wake-ups), ideal (one topology with as much bandwidth in "
    "all, spread by the square root of traffic), and one topology with half of the ports for each dimension."
)


@dataclass(frozen=True)
class Sweep:
    """The step times of a case in seconds, by point, and its references."""

    case: Case
    delays_ms: tuple[float, ...]
    bandwidths: tuple[float, ...]
    times: dict[Point, float | None]
    ideal_s: dict[float, float]

    @property
    def static_s(self) -> float:
        """Every link up."""
        found = self.times[STATIC]
        assert found is not None
        return found

    @property
    def split_s(self) -> float | None:
        """One topology for the whole job: half of the ports for rings and half for pipelines."""
        return self.times[self._split]

    @property
    def _split(self) -> Point:
        return at(0.0, Mode.STATIC, OPUS, self.case.accelerator.scale_out_gbps / 2)

    def over_delays(self, mode: Mode, semantics: str) -> list[float | None]:
        """Step times at all delays."""
        return [self.times[at(delay, mode, semantics)] for delay in self.delays_ms]

    def at_bandwidth(self, gbps: float, mode: Mode, semantics: str) -> float | None:
        """The step time at 10 ms with these links."""
        return self.times[at(BANDWIDTH_AT_MS, mode, semantics, gbps)]

    def static_at(self, gbps: float) -> float | None:
        """With every link up, and these links."""
        return self.times[at(0.0, Mode.STATIC, OPUS, gbps)]

    def overhead(self, mode: Mode, semantics: str, delay_ms: float = HEADLINE_MS) -> float | None:
        """Per cent over the static step."""
        return percent(self.times[at(delay_ms, mode, semantics)], self.static_s)


def measure(
    case: Case, bandwidths: Sequence[float], *, quick: bool, jobs: int | None, done: Done | None
) -> Sweep:
    """Replay the case at all points."""
    delays = QUICK_DELAYS_MS if quick else DELAYS_MS
    wider = () if quick else tuple(bandwidths)
    points = [STATIC, at(0.0, Mode.STATIC, OPUS, case.accelerator.scale_out_gbps / 2)]
    for semantics in (PEER, OPUS):
        points += [at(delay, mode, semantics) for delay in delays for mode in MODES]
        points += [at(BANDWIDTH_AT_MS, mode, semantics, gbps) for gbps in wider for mode in MODES]
    points += [at(0.0, Mode.STATIC, OPUS, gbps) for gbps in wider]
    times = case.times_s(points, jobs, done)
    own = case.accelerator.scale_out_gbps
    ideal = {gbps: case.ideal_s(gbps) for gbps in dict.fromkeys((own, *wider))}
    return Sweep(case, delays, wider, times, ideal)


def panels_of(found: Sweep, published: Sequence[Series], wide: Sequence[Series] = ()) -> list[Panel]:
    """Step time and overhead over the delay and, where there are bandwidths, step time over these."""
    delays, static = found.delays_ms, found.static_s
    own = found.case.accelerator.scale_out_gbps
    lines = [
        line("static: every link up", delays, [static] * len(delays)),
        line("ideal: one topology, balanced", delays, [found.ideal_s[own]] * len(delays)),
        line("one topology, ports halved", delays, [found.split_s] * len(delays)),
    ]
    rows = [
        (f"{NAMES[mode]} ({semantics})", found.over_delays(mode, semantics))
        for semantics in (PEER, OPUS)
        for mode in MODES
    ]
    lines += [line(name, delays, times) for name, times in rows]
    over = [line(name, delays, [percent(t, static) for t in times]) for name, times in rows]
    panels = [
        Panel("Step time over switch delay", DELAY, STEP_S, (*lines, *published)),
        Panel("Over the static step", DELAY, "overhead (%)", tuple(over)),
    ]
    if found.bandwidths:
        gbps = found.bandwidths
        own_lines = [
            line("static: every link up", gbps, [found.static_at(each) for each in gbps]),
            line("ideal: one topology, balanced", gbps, [found.ideal_s[each] for each in gbps]),
        ]
        own_lines += [
            line(
                f"{NAMES[mode]} ({semantics})",
                gbps,
                [found.at_bandwidth(each, mode, semantics) for each in gbps],
            )
            for semantics in (PEER, OPUS)
            for mode in MODES
        ]
        title = f"Step time over bandwidth, at {BANDWIDTH_AT_MS:g} ms"
        label = "scale-out bandwidth (GB/s)"
        panels.append(Panel(title, label, STEP_S, (*own_lines, *wide), log_x=True))
    return panels


def sensitivity(case: Case, jobs: int | None) -> Panel:
    """How the headline, the provisioned overhead at 100 ms, changes with each input."""
    gpu, workload = case.accelerator, case.workload
    batch = workload.batch

    def regenerated(size: int, microbatches: int = 1) -> Workload:
        changed = replace(batch, size=size, microbatches=microbatches)
        return generate(workload.model, workload.parallelism, changed, preset=workload.preset)

    varied = {
        "as published": case,
        "peak x 0.7": replace(case, accelerator=replace(gpu, tflops=gpu.tflops * 0.7)),
        "peak x 1.4": replace(case, accelerator=replace(gpu, tflops=gpu.tflops * 1.4)),
        "scale-up x 0.5": replace(case, accelerator=replace(gpu, scale_up_gbps=gpu.scale_up_gbps / 2)),
        "scale-up x 2": replace(case, accelerator=replace(gpu, scale_up_gbps=gpu.scale_up_gbps * 2)),
        "scale-out x 0.5": case.with_scale_out(gpu.scale_out_gbps / 2),
        "scale-out x 2": case.with_scale_out(gpu.scale_out_gbps * 2),
        "batch x 0.5": replace(case, workload=regenerated(batch.size // 2)),
        "batch x 2": replace(case, workload=regenerated(batch.size * 2)),
    }
    overheads: dict[str, list[float | None]] = {PEER: [], OPUS: []}
    for one in varied.values():
        wanted = [at(HEADLINE_MS, Mode.PROVISION, semantics) for semantics in overheads]
        times = one.times_s([STATIC, *wanted], jobs)
        static = times[STATIC]
        assert static is not None
        for semantics, point in zip(overheads, wanted, strict=True):
            overheads[semantics].append(percent(times[point], static))
    places = [float(place) for place in range(len(varied))]
    return Panel(
        f"What the provisioned overhead at {HEADLINE_MS:g} ms hangs on",
        "changed input",
        "overhead (%)",
        tuple(line(f"provisioned ({name})", places, values) for name, values in overheads.items()),
        kind="bars",
        ticks=tuple(varied),
    )


def notes_of(found: Sweep) -> list[str]:
    """What the lines say: slopes, and where one topology for the whole job is as good."""
    notes = [REFERENCES]
    for semantics in (PEER, OPUS):
        for mode in MODES:
            name = f"{NAMES[mode]} ({semantics})"
            times = found.over_delays(mode, semantics)
            rise = slope(times, found.delays_ms)
            if rise is not None:
                notes.append(f"{name}: {rise:.1f} delays a step are exposed at the largest delays.")
            if semantics == OPUS and found.split_s is not None:
                notes.append(_crossing(found.delays_ms, name, times, found.split_s))
    return notes


def _crossing(delays_ms: Sequence[float], name: str, times: Sequence[float | None], split_s: float) -> str:
    """From which delay on one topology for the whole job is faster than one for each phase."""
    split = f"one topology for the whole job with its ports halved ({split_s:.3f} s)"
    for delay, time in zip(delays_ms, times, strict=True):
        if time is not None and time > split_s:
            return f"{name}: {split} is faster from {delay:g} ms on."
    return f"{name}: faster than {split} at every delay."
