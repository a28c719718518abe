"""Offline what-if: replays a training step on a fabric that need not exist.

    step = load_step(Path("et"), Path("workload.json"), Path("system.json"))
    schedules = read_schedules(Path("schedules.txt"))
    result = replay(make_scenario(step, schedules, delay_ns=10e6), semantics="peer")
    documents = sweep(step, schedules, points([0, 10, 50], [Mode.ON_DEMAND, Mode.PROVISION]))

Nothing heavy is imported here or below at import time: a replay of eight ranks takes less time than starting
a web framework does, so these names are looked up when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opus_sdn.whatif.engine import Step, load_step, make_scenario, replay
    from opus_sdn.whatif.errors import CannotFinishError, InputError
    from opus_sdn.whatif.inputs.schedules import read_schedules
    from opus_sdn.whatif.report import document
    from opus_sdn.whatif.result import Result
    from opus_sdn.whatif.scenario import Mode, Scenario
    from opus_sdn.whatif.sweeps import Point, points, sweep

_HOMES = {
    "CannotFinishError": "errors",
    "InputError": "errors",
    "Mode": "scenario",
    "Point": "sweeps",
    "Result": "result",
    "Scenario": "scenario",
    "Step": "engine",
    "document": "report",
    "load_step": "engine",
    "make_scenario": "engine",
    "points": "sweeps",
    "read_schedules": "inputs.schedules",
    "replay": "engine",
    "sweep": "sweeps",
}

__all__ = [
    "CannotFinishError",
    "InputError",
    "Mode",
    "Point",
    "Result",
    "Scenario",
    "Step",
    "document",
    "load_step",
    "make_scenario",
    "points",
    "read_schedules",
    "replay",
    "sweep",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"opus_sdn.whatif.{_HOMES[name]}"), name)
