"""The published cases: where their inputs are, and scenarios of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from opus_sdn.whatif.engine import Step, load_step, make_scenario
from opus_sdn.whatif.inputs.hints import Hints, read_hints
from opus_sdn.whatif.inputs.schedules import Schedules, read_schedules
from opus_sdn.whatif.scenario import Mode, Scenario

DATA = Path(__file__).with_name("data")

EIGHT = "dp2pp2tp2"
LLAMA = "dp4pp4tp8_llama"
MICROBATCHES = "dp4pp4tp2_8layers_4microbatches"

EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))["cases"]


@cache
def step(case: str) -> Step:
    folder = DATA / case
    return load_step(folder / "workload_et.tar.xz", folder / "workload.json", folder / "system.json")


@cache
def schedules(case: str, name: str = "schedules") -> Schedules:
    return read_schedules(DATA / case / f"{name}.txt.xz")


def published_hints(case: str, delay_ms: int) -> Hints | None:
    """The hints that the published tool drew, or None where they are to be derived."""
    path = DATA / case / f"rank_comm_groups_{delay_ms}ms.yaml"
    return read_hints(path, len(step(case).trace.ranks)) if path.exists() else None


def scenario(
    case: str, mode: Mode, delay_ms: float = 0, hints: Hints | None = None, name: str = "schedules"
) -> Scenario:
    return make_scenario(step(case), schedules(case, name), mode=mode, delay_ns=delay_ms * 1e6, hints=hints)
