"""What the figures of step times have in common: a generated step, replayed at many points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opus_sdn.whatif.engine import make_scenario, replay
from opus_sdn.whatif.figures.model import Series
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.sweeps import Point, sweep
from opus_sdn.whatif.workload.accelerators import Accelerator
from opus_sdn.whatif.workload.generate import Workload

PEER, OPUS = "peer", "opus"
DELAYS_MS: Final = (0.0, 10.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0)
NAMES: Final = {Mode.ON_DEMAND: "on demand", Mode.PROVISION: "provisioned"}

STEEP_MS: Final = 500.0  # below it some of a delay is hidden, and a slope says little

STATIC = Point(0.0, Mode.STATIC, OPUS)


def at(delay_ms: float, mode: Mode, semantics: str, gbps: float | None = None) -> Point:
    """A point of a step. The static step tells what is lost, so that no bound need be computed besides."""
    options = (("lower_bound", False),) if semantics == OPUS and mode is not Mode.STATIC else ()
    return Point(delay_ms, mode, semantics, gbps, options=options)


@dataclass(frozen=True)
class Case:
    """A step on a GPU, and its links in GB/s of 2^30 bytes."""

    workload: Workload
    accelerator: Accelerator

    def times_s(
        self,
        points: Sequence[Point],
        jobs: int | None,
        done: Callable[[int, int], None] | None = None,
    ) -> dict[Point, float | None]:
        """How long the step is at each point; None where it cannot finish.

        With our own semantics one rail is replayed, as all rails do the same; with the published ones, all.
        """
        found: dict[Point, float | None] = {}
        gpu, workload = self.accelerator, self.workload
        links = gpu.scale_out_gbps, gpu.scale_up_gbps
        for semantics in (OPUS, PEER):
            wanted = [point for point in dict.fromkeys(points) if point.semantics == semantics]
            if not wanted:
                continue
            if semantics == OPUS:
                step, schedules = workload.rail_step(gpu), workload.rail_schedules(*links)
            else:
                step, schedules = workload.step(gpu), workload.schedules(*links)
            before = len(found)

            def count(finished: int, _all: int, before: int = before) -> None:
                if done is not None:
                    done(before + finished, len(set(points)))

            documents = sweep(step, schedules, wanted, jobs=jobs, done=count)
            for point, document in zip(wanted, documents, strict=True):
                finish = document["finish_ns"]
                found[point] = None if finish is None else finish / 1e9
        return found

    def ideal_s(self, scale_out_gbps: float | None = None) -> float:
        """The step with the same total bandwidth in one topology, spread by the square root of traffic."""
        gpu = self.accelerator
        outward = gpu.scale_out_gbps if scale_out_gbps is None else scale_out_gbps
        schedules = self.workload.balanced(outward, gpu.scale_up_gbps)
        scenario = make_scenario(self.workload.step(gpu), schedules, mode=Mode.IDEAL)
        return replay(scenario, semantics=OPUS).finish_ns / 1e9

    def with_scale_out(self, gbps: float) -> Case:
        """The same with other links to the rails."""
        return replace(self, accelerator=replace(self.accelerator, scale_out_gbps=gbps))


def line(name: str, x: Iterable[float], y: Iterable[float | None]) -> Series:
    """A series of points."""
    return Series(name, tuple(x), tuple(y))


def percent(value: float | None, reference: float) -> float | None:
    """How much longer than the reference, in per cent."""
    return None if value is None else (value / reference - 1) * 100


def slope(times: Sequence[float | None], delays_ms: Sequence[float]) -> float | None:
    """Delays that the step is longer for each delay, between the two largest; None where these are small."""
    if delays_ms[-1] < STEEP_MS or times[-1] is None or times[-2] is None:
        return None
    return (times[-1] - times[-2]) * 1e3 / (delays_ms[-1] - delays_ms[-2])
