"""The largest delay at which a step stays under an overhead, found by bisection over simulated steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.study.phases import Change, limiting_changes
from opus_sdn.whatif.study.runs import Runs, Setting

FIRST_MS = 1.0  # the delay that is tried first; then four times as much, until it is too much
GROWTH = 4.0
FINE = 0.02  # bisection ends when what fits and what does not are this near to one another
FINEST_MS = 0.05


@dataclass(frozen=True, slots=True)
class Limit:
    """Up to `largest_ms` of optics and link-up together the overhead stays under `overhead_percent`.

    `over_ms` is the smallest delay that was seen to be too much; None: none up to the largest tried.
    `largest_ms` None: even no delay is too much. Every figure is of a simulated step; between tried delays
    the overhead may go up and down a little, so another delay below `largest_ms` is no proof.
    """

    mode: str
    overhead_percent: float
    largest_ms: float | None
    over_ms: float | None
    at_zero_percent: float | None
    changes: tuple[Change, ...]
    steps: int

    def switch_ms(self, setting: Setting) -> float | None:
        """The largest switching time of the optics, with the setting's link-up."""
        return None if self.largest_ms is None else max(0.0, self.largest_ms - setting.link_up_ms)

    def link_up_ms(self, setting: Setting) -> float | None:
        """The largest link-up time, with the setting's optics."""
        return None if self.largest_ms is None else max(0.0, self.largest_ms - setting.switch_ms)


def find_limit(runs: Runs, setting: Setting, mode: Mode, percent: float, largest_ms: float) -> Limit:
    """The limit of this mode on our own controller; `largest_ms` is the largest delay that is tried."""
    before = runs.count

    def overhead(delay_ms: float) -> float | None:
        at = replace(setting, switch_ms=delay_ms, link_up_ms=0.0)
        return runs.step(at, mode).overhead_percent

    fits, over = bracket(lambda delay: _under(overhead(delay), percent), largest_ms)
    worst = over if over is not None else fits
    at = replace(setting, switch_ms=worst or 0.0, link_up_ms=0.0)
    changes = changes_of(runs, at, mode)
    return Limit(mode.value, percent, fits, over, overhead(0.0), tuple(changes), runs.count - before)


def changes_of(runs: Runs, setting: Setting, mode: Mode) -> list[Change]:
    """The changes that a step hangs on, the costliest first."""
    step, plan = runs.step(setting, mode), runs.prepared.job.parallelism
    return limiting_changes(step.document, replace(plan, tp=1) if step.one_rail else plan)


def _under(found: float | None, percent: float) -> bool:
    return found is not None and found <= percent


def bracket(fits: Callable[[float], bool], largest: float) -> tuple[float | None, float | None]:
    """The largest value that was seen to fit and the smallest that was not, near to one another.

    (None, 0): not even zero fits; (largest, None): everything does.
    """
    if not fits(0.0):
        return None, 0.0
    low, high = 0.0, min(FIRST_MS, largest)
    while fits(high):
        if high >= largest:
            return largest, None
        low, high = high, min(high * GROWTH, largest)
    while high - low > max(FINEST_MS, FINE * high):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high
