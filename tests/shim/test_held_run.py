"""A run of several operations on one rank: what it covers, how it is left, and when it is over."""

from __future__ import annotations

import pytest

from opus_sdn.intent.model import Stream
from opus_sdn.shim.held_run import Fate, HeldRun

RING = Stream("dp-0")


def run_of(length: int, called: int = 1, closed: int = 1) -> HeldRun[str]:
    return HeldRun(RING, n=10, length=length, closed=closed, called=called)


def test_a_run_covers_its_operations_and_is_over_when_all_have_finished() -> None:
    run = run_of(3)
    assert [run.call(n, "") for n in (11, 12, 13)] == [Fate.ISSUE, Fate.ISSUE, Fate.ARRIVE]
    assert run.is_complete
    assert [run.finish() for _ in range(3)] == [False, False, True]


def test_a_run_that_was_left_keeps_calls_back_until_its_end_is_told() -> None:
    run = run_of(5, called=2)
    assert run.leave()
    assert not run.leave(), "it is said once"
    assert [run.call(n, f"op{n}") for n in (12, 13, 14)] == [Fate.KEEP] * 3
    assert run.called == 2
    assert run.end_at(3) == (["op12"], ["op13", "op14"])
    assert run.called == 3
    assert run.call(15, "") is Fate.ARRIVE
    assert [run.finish() for _ in range(3)] == [False, False, True]


def test_a_rank_behind_the_end_of_a_cut_run_goes_on_up_to_it() -> None:
    run = run_of(5)
    run.leave()
    assert run.end_at(3) == ([], [])
    assert [run.call(n, "") for n in (11, 12, 13)] == [Fate.ISSUE, Fate.ISSUE, Fate.ARRIVE]


def test_a_cut_run_is_not_over_before_its_end_is_known() -> None:
    run = run_of(3)
    run.leave()
    assert not run.finish()
    run.end_at(1)
    assert run.is_over


def test_a_whole_run_that_is_asked_about_ends_where_it_would_have() -> None:
    run = run_of(2, called=2)
    run.leave()
    assert [run.finish(), run.finish()] == [False, False]
    run.end_at(2)
    assert run.is_over


@pytest.mark.parametrize(
    ("closed", "called", "connection", "left"),
    [
        (4, 2, "pp-0:0-1", True),
        (4, 2, "dp-0", False),  # its own operations
        (3, 2, "pp-0:0-1", False),  # granted by quiet offers: this wait was expected
        (4, 4, "pp-0:0-1", False),  # everything is on its way already
    ],
)
def test_a_wait_for_anything_else_leaves_a_run_that_was_offered_as_closed(
    closed: int, called: int, connection: str, left: bool
) -> None:
    run = run_of(4, called, closed)
    assert run.is_left_by_waiting(connection) == left
    run.leave()
    assert not run.is_left_by_waiting(connection)
