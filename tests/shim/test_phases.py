"""What a rank may offer, learned from its own steps: closed and quiet runs, and when there are none."""

from __future__ import annotations

import pytest

from opus_sdn.shim.operations import STEP_END
from opus_sdn.shim.phases import PhaseTable, learn
from tests.shim.steps import WHATS, Clock, history


def offers(table: PhaseTable | None, name: str = "R") -> list[tuple[int, int]]:
    """(closed, quiet) of the operations of a ring."""
    assert table is not None
    return [(p.closed, p.quiet) for p in table.positions if p.track is WHATS[name].track]


STEPS = [
    # what is between two operations of the ring                     closed and quiet of each
    ("R! R! R! |", [(3, 3), (2, 2), (1, 1)]),
    ("R R R w3 w2 w1 |", [(3, 3), (2, 2), (1, 1)]),
    ("R! t! R! |", [(1, 2), (1, 1)]),  # tensor parallelism couples hosts: C2
    ("R! t R! w2 |", [(2, 2), (1, 1)]),  # as long as nobody waits for it, it does not
    ("R! m! R! |", [(1, 1), (1, 1)]),
    ("R! m R! w2 R! |", [(2, 1), (1, 2), (1, 1)]),  # issued, and waited for later
    ("m R! w2 R! |", [(1, 2), (1, 1)]),  # a receive posted before the run and waited for inside: C1
    ("R! Q R! w2 |", [(2, 1), (1, 1)]),
    ("R! m! k! R! R! k! |", [(1, 1), (2, 2), (1, 1)]),
    ("R f R f R f |", [(3, 3), (2, 2), (1, 1)]),  # futures of the ring itself
    ("t f R! R! |", [(1, 2), (1, 1)]),  # a future of another group may be waited for anywhere
]


@pytest.mark.parametrize(("step", "wanted"), STEPS)
def test_a_run_is_closed_until_a_wait_for_anything_else_and_quiet_until_an_issue_elsewhere(
    step: str, wanted: list[tuple[int, int]]
) -> None:
    assert offers(learn(history(f"{step} " * 4), 4)) == wanted


def test_a_wait_that_was_seen_once_counts_for_all_repeats() -> None:
    """What a rank offers must hold in any step, not in most."""
    quick, slow = "t R! R! |", "t R! w2 R! |"
    assert offers(learn(history(f"{quick} {slow} {quick} {quick}"), 4)) == [(1, 2), (1, 1)]


def test_an_operation_of_an_earlier_step_that_is_waited_for_in_this_one_ends_a_run() -> None:
    step = "R! w2 R! t |"  # `w2` is the newest but one: of the step before
    assert offers(learn(history("t R! R! t | " + f"{step} " * 4), 4)) == [(1, 2), (1, 1)]


def test_no_run_goes_beyond_the_end_of_a_step() -> None:
    table = learn(history("R! R! | " * 4), 4)
    assert offers(table) == [(2, 2), (1, 1)]
    assert table is not None
    assert [p.track for p in table.positions][-1] is STEP_END


def test_a_program_with_an_evaluation_before_every_third_step_repeats_itself_after_three() -> None:
    clock, found = Clock(), []
    for step in range(8):
        if step and step % 3 == 0:
            clock.run("R! R! R! m!")
        clock.run("R! R! |")
        found.append(learn(clock.history, 4))
    assert found[:6] == [None] * 6, "never four equal ones, and six are needed to see three twice"
    for table in found[6:]:
        assert table is not None
        assert len(table.positions) == 3 * len("RR|") + len("RRRm")


@pytest.mark.parametrize("repeats", [2, 4])
def test_steps_that_differ_have_no_table(repeats: int) -> None:
    assert learn(history("R! | R! R! | R! R! R! | R! R! R! R! |"), repeats) is None
    assert learn([], repeats) is None


@pytest.mark.parametrize(
    ("before", "step", "times", "found"),
    [
        ("", "R! R! m! ", 4, True),
        ("", "R! R! m! ", 3, False),
        ("Q! Q! Q! ", "R! R! m! ", 4, True),
        ("Q! m! " * 6, "R! R! m! ", 4, False),  # most of what happened is something else
        ("R! m! Q! ", "R! ", 5, False),  # the layers of a first step are no period
        ("", "R! ", 4, True),
    ],
)
def test_without_marks_a_period_is_found_in_the_operations_when_it_explains_most_of_them(
    before: str, step: str, times: int, found: bool
) -> None:
    table = learn(history(before + step * times), 4)
    assert (table is not None) == found
    assert table is None or len(table.positions) == len(step.split())
