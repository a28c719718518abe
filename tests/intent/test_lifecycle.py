"""What may follow what. The tables are written here once more, from the design, and compared cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from itertools import product

import pytest

from opus_sdn.intent.changes import IntentState, JobState, StepState
from opus_sdn.intent.errors import STATUS, Problem
from opus_sdn.intent.lifecycle import IllegalTransitionError, advance_intent, advance_job, advance_step

INTENT = {
    ("declared", "complete"),
    ("declared", "failed"),
    ("complete", "installing"),
    ("complete", "granted"),
    ("complete", "failed"),
    ("installing", "complete"),
    ("installing", "granted"),
    ("installing", "failed"),
    ("complete", "stalled"),
    ("installing", "stalled"),
    ("stalled", "complete"),
    ("stalled", "granted"),
    ("stalled", "failed"),
    ("granted", "released"),
}
STEP = {("planned", "started"), ("planned", "dropped"), ("started", "done"), ("started", "failed")}
JOB = {("running", "ended"), ("running", "failed"), ("failed", "ended")}

CELLS = [
    (advance, allowed, before, after)
    for advance, allowed, states in (
        (advance_intent, INTENT, IntentState),
        (advance_step, STEP, StepState),
        (advance_job, JOB, JobState),
    )
    for before, after in product(states, repeat=2)
]


@pytest.mark.parametrize(("advance", "allowed", "before", "after"), CELLS)
def test_a_state_changes_only_as_the_table_says(
    advance: Callable[[StrEnum, StrEnum], StrEnum],
    allowed: set[tuple[str, str]],
    before: StrEnum,
    after: StrEnum,
) -> None:
    if (before.value, after.value) in allowed:
        assert advance(before, after) is after
    else:
        with pytest.raises(IllegalTransitionError, match=f"from {before} to {after}"):
            advance(before, after)


def test_every_problem_has_a_status() -> None:
    assert set(STATUS) == set(Problem)
    assert STATUS[Problem.NOT_LEADER] == 307, "whoever asks is sent on to the leader"
    assert all(400 <= status < 600 for problem, status in STATUS.items() if problem is not Problem.NOT_LEADER)
