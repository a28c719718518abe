"""What is offered, covered, cut and hinted while a program runs, as a rank's job asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from opus_sdn.intent.model import Grant, Stream
from opus_sdn.shim.held_run import Fate
from opus_sdn.shim.operations import Operation
from opus_sdn.shim.phase_tracker import PhaseTracker
from opus_sdn.shim.program import Program
from tests.shim.steps import WHATS, Clock

RING, PAIR = WHATS["R"].track, WHATS["m"].track
assert isinstance(RING, Stream)
assert isinstance(PAIR, Stream)
STEP = "R! R! R! R! m! |"


class World:
    """A program that has made enough steps for a table, and what it told the controller."""

    def __init__(self, step: str = STEP, hints: bool = False) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.clock = Clock()
        self.program: Program[str] = Program(PhaseTracker(5), self, hints)
        self.numbers: dict[Stream, int] = {}
        self.no = 0
        for _ in range(5):
            for word in step.split():
                for operation in self.clock.run(word):
                    if operation.what.connection is None:
                        self.program.turn(operation)
                        continue
                    stream, n, _ = self.call(operation)
                    self.grant(stream, n)
                    self.program.finished(stream, n)
        assert self.program.tracker.is_following

    def offer(self, stream: Stream, n: int, closed: int, quiet: int) -> None:
        self.said.append(("offer", str(stream), n, closed, quiet))

    def cut(self, stream: Stream, n: int, issued: int) -> None:
        self.said.append(("cut", str(stream), n, issued))

    def call(self, operation: Operation) -> tuple[Stream, int, Any]:
        stream = operation.what.track
        assert isinstance(stream, Stream)
        n = self.numbers.get(stream, 0)
        self.numbers[stream] = n + 1
        return stream, n, self.program.call(operation, stream, n, f"{stream}#{n}")

    def does(self, word: str) -> Any:
        (operation,) = self.clock.run(word)
        return self.call(operation)[2]

    def grant(self, stream: Stream, n: int, length: int = 1, called: int = 1) -> Any:
        self.no += 1
        return self.program.granted(Grant(self.no, stream, n, length), called)

    def offers(self, word: str = "R!") -> tuple[int, int]:
        called = self.does(word)
        assert called.fate is Fate.ARRIVE
        return called.closed, called.quiet


FIRST = 20  # number of the ring's first operation after five steps of four


def test_a_rank_offers_what_its_table_says_and_nothing_for_messages() -> None:
    world = World()
    assert [world.offers() for _ in range(4)] == [(4, 4), (3, 3), (2, 2), (1, 1)]
    assert world.offers("m!") == (1, 1)


def test_with_something_unfinished_elsewhere_no_run_is_quiet() -> None:
    world = World("R! R! m R! w2 R! |")
    assert world.offers() == (3, 2), "quiet to the message, closed to the wait for it"
    world.does("R!")
    world.does("m")
    assert world.offers() == (1, 1), "the message is unfinished, else it were quiet for two"


def test_with_groups_that_were_never_seen_no_run_is_closed() -> None:
    world = World()
    world.program.has_group((0, 5), 0)
    assert world.offers() == (1, 4)
    world.program.uses_group((0, 5), 0)
    assert world.offers() == (3, 3)
    world.program.is_bypassed = True
    assert world.offers() == (1, 2)


def test_a_held_run_covers_its_operations_and_is_released_as_one() -> None:
    world = World()
    world.offers()
    world.grant(RING, FIRST, length=4)
    assert [world.does("R!").fate for _ in range(3)] == [Fate.ISSUE] * 3
    assert [world.program.finished(RING, FIRST + k) for k in range(4)] == [None, None, None, FIRST]
    assert not world.program.holds_runs
    assert world.said == []
    assert (world.program.longer_runs, world.program.operations_in_longer_runs) == (1, 4)


def test_what_comes_instead_of_an_operation_of_the_run_cuts_it_first() -> None:
    world = World()
    world.offers()
    world.grant(RING, FIRST, length=4)
    world.does("R!")
    world.does("m!")
    assert world.said == [("cut", "dp-0", FIRST, 2)]
    assert world.does("R!").fate is Fate.KEEP
    assert world.does("R!").fate is Fate.KEEP
    told = world.program.told(RING, FIRST, 3)
    assert told is not None
    assert told[1:] == ([f"dp-0#{FIRST + 2}"], [f"dp-0#{FIRST + 3}"])
    assert world.said[1:] == [("cut", "dp-0", FIRST, 3)], "it is one further now"
    assert [world.program.finished(RING, FIRST + k) for k in range(3)] == [None, None, FIRST]
    assert world.offers() == (1, 1), "there is no table any more"


def test_a_deviation_before_the_grant_takes_the_offer_back_and_after_a_grant_that_crosses_it_cuts() -> None:
    world = World()
    world.offers()
    world.does("m!")
    assert world.said == [("offer", "dp-0", FIRST, 1, 1)]
    world.grant(RING, FIRST, length=4)
    assert world.said[1:] == [("cut", "dp-0", FIRST, 1)]


def test_a_run_that_is_called_whole_needs_no_cut_when_the_program_turns_elsewhere() -> None:
    world = World()
    world.offers()
    world.grant(RING, FIRST, length=2)
    world.does("R!")
    world.does("m!")
    assert world.said == []
    assert world.program.asked(RING, FIRST) is not None
    assert world.said == [("cut", "dp-0", FIRST, 2)], "it answers when it is asked"


@pytest.mark.parametrize(("length", "cut"), [(3, True), (4, False)])
def test_a_wait_outside_cuts_a_run_only_where_it_was_offered_as_closed(length: int, cut: bool) -> None:
    """Closed to the third operation and quiet to the fourth: a fourth one is there by quiet offers."""
    world = World("R! R! R! t! R! m! |")
    world.offers()
    world.grant(RING, FIRST, length=length)
    assert world.program.wait(WHATS["t"].group) == cut
    assert (world.said != []) == cut
    assert world.program.tracker.is_following != cut


def test_the_next_need_is_hinted_once_and_only_of_streams_that_were_used() -> None:
    world = World(hints=True)
    assert world.program.hint({}) is None
    assert world.program.hint(world.numbers) == (RING, FIRST)
    assert world.program.hint(world.numbers) is None
    for _ in range(4):
        world.does("R!")
    assert world.program.hint(world.numbers) == (PAIR, 5)
    assert World(hints=False).program.hint(world.numbers) is None
