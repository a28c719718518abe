"""A rank follows its table operation by operation, and drops it at the first one that differs."""

from __future__ import annotations

from opus_sdn.shim.operations import STEP_END
from opus_sdn.shim.phase_tracker import DIMENSION, PhaseTracker
from opus_sdn.shim.phases import PhaseTable, Position
from tests.shim.steps import WHATS, Clock

STEP = "R! R! m! |"


def run(tracker: PhaseTracker, clock: Clock, program: str) -> list[Position | None]:
    return [tracker.follow(operation) for word in program.split() for operation in clock.run(word)]


def test_the_first_step_is_skipped_and_a_table_is_there_after_the_others() -> None:
    tracker, clock = PhaseTracker(5), Clock()
    run(tracker, clock, f"Q! Q! {STEP}")
    for _ in range(3):
        assert run(tracker, clock, STEP) == [None] * 4
    assert not tracker.is_following
    run(tracker, clock, STEP)
    assert tracker.is_following
    found = run(tracker, clock, STEP)
    assert [(p.closed, p.quiet) for p in found if p is not None] == [(2, 2), (1, 1), (1, 1), (1, 1)]
    assert (tracker.learned, tracker.dropped) == (1, 0)


def test_an_operation_that_differs_drops_the_table_and_it_is_learned_anew() -> None:
    tracker, clock = PhaseTracker(5), Clock()
    run(tracker, clock, f"{STEP} " * 5)
    assert run(tracker, clock, "R! m! m! |") == [ring_of(2), None, None, None]
    assert (tracker.is_following, tracker.dropped) == (False, 1)
    run(tracker, clock, f"{STEP} " * 3)
    assert not tracker.is_following
    run(tracker, clock, STEP)
    assert (tracker.is_following, tracker.learned) == (True, 2)


def ring_of(length: int) -> Position:
    return Position(WHATS["R"].track, length, length)


def test_a_longer_and_a_shorter_step_both_differ() -> None:
    for other in ("R! R! m! m! |", "R! R! |"):
        tracker, clock = PhaseTracker(5), Clock()
        run(tracker, clock, f"{STEP} " * 5)
        run(tracker, clock, other)
        assert tracker.dropped == 1


def test_what_comes_next_is_the_next_operation_that_needs_circuits() -> None:
    tracker, clock = PhaseTracker(5), Clock()
    run(tracker, clock, "t! R! m! k! | " * 5)
    assert tracker.next_need() == WHATS["R"].track, "what stays inside the host needs none"
    for word, following in [("t!", "R"), ("R!", "m"), ("m!", "k"), ("k!", "R"), ("|", "R")]:
        run(tracker, clock, word)
        assert tracker.next_need() == WHATS[following].track
    run(tracker, clock, "m!")
    assert tracker.next_need() is None, "the table was dropped"


def test_without_an_optimizer_the_period_is_found_in_the_operations() -> None:
    tracker, clock = PhaseTracker(5), Clock()
    run(tracker, clock, "R! R! m! " * 40)
    assert tracker.is_following
    assert tracker.table is not None
    assert len(tracker.table.positions) == 3
    run(tracker, clock, "|")
    assert not tracker.is_following, "from the first mark on, steps count"


def test_a_tracker_of_no_steps_learns_nothing() -> None:
    tracker, clock = PhaseTracker(0), Clock()
    run(tracker, clock, f"{STEP} " * 30)
    assert (tracker.learned, tracker.table) == (0, None)


def test_a_loaded_table_is_followed_from_the_second_step_on() -> None:
    ring, end = Position(WHATS["R"].track, 2, 2), Position(STEP_END)
    tracker, clock = PhaseTracker(5, PhaseTable((ring, ring, end))), Clock()
    assert run(tracker, clock, "R! R! Q! |") == [None] * 4
    assert run(tracker, clock, "R! R! |") == [ring, ring, end]


def test_a_coarse_table_names_dimensions_and_says_nothing_of_what_stays_in_the_host() -> None:
    first, second = Position(f"{DIMENSION}dp", 1, 2), Position(f"{DIMENSION}pp")
    tracker, clock = PhaseTracker(5, PhaseTable((first, second), coarse=True)), Clock()
    assert run(tracker, clock, "t! R! t! m! t! R! m!") == [None, first, None, second, None, first, second]
    assert tracker.next_need() == WHATS["R"].track, "the first round has filled it in"
    assert run(tracker, clock, "Q!") == [None]
    assert not tracker.is_following
