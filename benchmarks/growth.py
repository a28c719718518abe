"""How the time of a replay grows with ranks, layers and microbatches, beside the number of operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Any

from benchmarks.traces import Shape, make_step
from opus_sdn.whatif import Mode, Scenario, load_step, make_scenario, read_schedules, replay
from opus_sdn.whatif.figures.model import Panel, Series
from opus_sdn.whatif.page.plots import draw
from opus_sdn.whatif.peer.fast import FastEngine

SHAPES: dict[str, list[Shape]] = {
    "ranks": [Shape(dp=4, pp=4, tp=tp, layers=6) for tp in (2, 4, 8, 16, 32)],
    "layers": [Shape(dp=4, pp=4, tp=4, layers=layers) for layers in (4, 8, 16, 32)],
    "microbatches": [Shape(dp=4, pp=4, tp=4, layers=4, microbatches=count) for count in (1, 2, 4, 8)],
}
DELAY_NS = 1e5


def replay_fast(scenario: Scenario) -> object:
    """With the published semantics."""
    return FastEngine(scenario).run()


def replay_ours(scenario: Scenario) -> object:
    """On our own controller, told what comes next."""
    return replay(scenario, semantics="opus")


ENGINES: dict[str, tuple[Callable[[Scenario], object], Mode]] = {
    "peer, fast": (replay_fast, Mode.ON_DEMAND),
    "opus, provisioned": (replay_ours, Mode.PROVISION),
}


def scenario_of(shape: Shape, folder: Path, mode: Mode) -> Scenario:
    """A generated step, written to a folder and read again."""
    made = make_step(shape, folder)
    step = load_step(made / "et", made / "workload.json", made / "system.json")
    return make_scenario(step, read_schedules(made / "schedules.txt"), mode=mode, delay_ns=DELAY_NS)


def measure(
    folder: Path,
    cost: Callable[[Callable[[], object]], float],
    shapes: Mapping[str, Sequence[Shape]] = SHAPES,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """For each engine, and each thing that grows: rows of size, operations and cost, and their exponent."""
    found: dict[str, Any] = {}
    for engine, (run, mode) in ENGINES.items():
        found[engine] = {}
        for what, sizes in shapes.items():
            rows = []
            for shape in sizes:
                place = folder / f"{mode}-{what}-{len(rows)}"
                scenario = scenario_of(shape, place, mode)
                operations = scenario.trace.nodes
                took = cost(lambda run=run, scenario=scenario: run(scenario))  # type: ignore[misc]
                rows.append(
                    {
                        "size": getattr(shape, what),
                        "operations": operations,
                        "cost": took,
                        "per_operation": took / operations,
                    }
                )
                tell(f"  {engine}, {what}: {rows[-1]}")
            exponent = fit((row["operations"], row["cost"]) for row in rows)
            found[engine][what] = {"rows": rows, "exponent": round(exponent, 3)}
            tell(f"  {engine}, {what}: exponent {exponent:.2f}")
    return found


def fit(points: Iterable[tuple[float, float]]) -> float:
    """The exponent b of cost = a * operations ** b, by least squares of the logarithms."""
    logarithms = [(math.log(x), math.log(y)) for x, y in points]
    slope, _ = linear_regression(*zip(*logarithms, strict=True))
    return slope


def plot(growth: Mapping[str, Any]) -> str:
    """A panel for each engine as SVG: seconds over operations, and what linear growth would be."""
    panels = []
    for engine, things in growth.items():
        series = [
            Series(
                f"{what} (exponent {grown['exponent']:.2f})",
                tuple(row["operations"] for row in grown["rows"]),
                tuple(row["cost"] for row in grown["rows"]),
            )
            for what, grown in things.items()
        ]
        first = min((series.x[0], series.y[0]) for series in series)
        last = max(series.x[-1] for series in series)
        linear = (first[1], first[1] * last / first[0]) if first[1] is not None else (None, None)
        series.append(Series("linear", (first[0], last), linear))
        panels.append(Panel(engine, "operations", "CPU, s", tuple(series), log_x=True, log_y=True))
    return draw(panels)
