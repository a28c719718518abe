"""The work of a replay grows with the number of operations, and no faster: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.growth import ENGINES, fit, measure, plot
from benchmarks.traces import Shape

SHAPES = {
    "ranks": [Shape(dp=2, pp=4, tp=tp, layers=3) for tp in (2, 4, 8)],
    "layers": [Shape(dp=2, pp=2, tp=2, layers=layers) for layers in (4, 8, 16)],
    "microbatches": [Shape(dp=2, pp=2, tp=2, layers=4, microbatches=count) for count in (2, 4, 8)],
}


def calls(work: Callable[[], object]) -> float:
    """How many functions are called."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_work_grows_no_faster_than_the_number_of_operations(tmp_path: Path) -> None:
    growth = measure(tmp_path, calls, SHAPES)
    assert sorted(growth) == sorted(ENGINES)
    for things in growth.values():
        assert sorted(things) == sorted(SHAPES)
        for what, grown in things.items():
            assert grown["exponent"] <= 1.05, what
    drawn = plot(growth)
    assert drawn.startswith("<svg")
    for what in SHAPES:
        assert f"{what} (exponent {growth['peer, fast'][what]['exponent']:.2f})" in drawn


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(exponent: float) -> None:
    assert fit((x, 3.0 * x**exponent) for x in (10.0, 30.0, 90.0)) == pytest.approx(exponent)
