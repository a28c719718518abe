"""The windows of a studied step between phases on the rails, by transition, and where phases overlap."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from opus_sdn.whatif.engine import make_scenario, replay
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.study.prepare import Prepared
from opus_sdn.whatif.study.runs import OPUS, Setting
from opus_sdn.whatif.windows import Window, windows_of


@dataclass(frozen=True, slots=True)
class Transition:
    """All windows of one kind in a step whose links are all up; lengths in ms, below 0 where phases overlap.

    `stall_ms` is what of the switches does not fit into them, if every one of them takes a switch.
    """

    pair: str
    count: int
    overlapping: int
    smallest_ms: float
    median_ms: float
    largest_ms: float
    stall_ms: float
    lengths_ms: tuple[float, ...]


def transitions(prepared: Prepared, setting: Setting) -> list[Transition]:
    """The kinds of transitions, the one with the smallest window first."""
    step, schedules = prepared.rail
    scenario = make_scenario(step, schedules, mode=Mode.STATIC, latency_ns=setting.latency_ns)
    result = replay(scenario, semantics=OPUS)
    by_pair: dict[str, list[Window]] = {}
    for window in windows_of(prepared.workload, result.started_ns, result.ended_ns):
        by_pair.setdefault(window.pair, []).append(window)
    switch_ns = (setting.delay_ms + setting.control_ms) * 1e6
    found = [_transition(pair, windows, switch_ns) for pair, windows in by_pair.items()]
    return sorted(found, key=lambda each: each.smallest_ms)


def overlapping(prepared: Prepared, setting: Setting) -> int:
    """How many windows there are that are none: phases overlap."""
    return sum(each.overlapping for each in transitions(prepared, setting))


def _transition(pair: str, windows: list[Window], switch_ns: float) -> Transition:
    lengths = sorted(window.length_ns / 1e6 for window in windows)
    return Transition(
        pair,
        len(windows),
        sum(length < 0 for length in lengths),
        lengths[0],
        median(lengths),
        lengths[-1],
        sum(window.stall_ns(switch_ns) for window in windows) / 1e6,
        tuple(lengths),
    )
