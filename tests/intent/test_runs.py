"""Runs of several operations: how long they are, whom they keep from other grants, and how one is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opus_sdn.intent.changes import RunCut, RunGranted
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.model import (
    Arrival,
    ArrivalState,
    CoreSettings,
    Cut,
    CutRequest,
    Hint,
    RankKey,
    Session,
    Stream,
    StreamMark,
)
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.views import intents_view
from tests.intent.bench import Bench
from tests.intent.restarts import Rank, restart
from tests.intent.worlds import group, make_fabric, make_spec, places

RING, FAR, LINE = Stream("ring"), Stream("far"), Stream("line:1-2", 1, 2)
BACK = Stream("line:0-1", 0, 1)


def bench_of(settings: CoreSettings | None = None, ports: int = 1) -> Bench:
    """Ring of ranks 0 and 1, ring FAR of 2 and 3, a line through all; one port joins everything."""
    bench = Bench(make_fabric(4, ports=ports), settings)
    bench.observe()
    bench.job(
        make_spec(places(4), {"dp": 4}),
        group("ring", 0, 1),
        group("far", 2, 3),
        group("three", 0, 1, 2),
        group("line", 0, 1, 2, 3),
    )
    bench.play()
    return bench


def held(bench: Bench, length: int = 4) -> Bench:
    """Ranks 0 and 1 hold a run of the ring."""
    bench.arrive(RING, 0, 0, 1, quiet=length)
    bench.play()
    assert [grant.length for grant in bench.full_grants(0)] == [length]
    return bench


def reason(bench: Bench, stream: Stream, n: int, rank: int) -> Reason:
    (status,) = bench.answer(rank, [Arrival(stream, n)]).arrivals
    assert status.because is not None
    return status.because.reason


# --- how long


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [
        ({"closed": 4, "quiet": 1}, {"closed": 4, "quiet": 1}, 4),
        ({"closed": 4, "quiet": 1}, {"closed": 2, "quiet": 1}, 2),
        ({"closed": 1, "quiet": 4}, {"closed": 1, "quiet": 3}, 3),
        ({"closed": 2, "quiet": 4}, {"closed": 3, "quiet": 3}, 3),
        ({"closed": 4, "quiet": 1}, {"closed": 1, "quiet": 4}, 1),  # the naive mix would say 4
        ({"closed": 5, "quiet": 1}, {"closed": 2, "quiet": 5}, 2),
        ({}, {"closed": 9, "quiet": 9}, 1),  # C3: one of them has no table any more
    ],
)
def test_a_run_is_as_long_as_all_offer_of_one_kind(
    first: dict[str, int], second: dict[str, int], length: int
) -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, **first)
    bench.arrive(RING, 0, 1, **second)
    bench.play()
    (grant,) = bench.full_grants(0)
    assert (grant.n, grant.length) == (0, length)
    assert [change.length for change in bench.changes if isinstance(change, RunGranted)] == [length]
    assert bench.events("intent.granted")[0].data["length"] == length


def test_messages_are_always_runs_of_one() -> None:
    bench = bench_of()
    bench.arrive(LINE, 0, 1, 2, closed=4, quiet=4)
    bench.play()
    assert [grant.length for grant in bench.full_grants(1)] == [1]


def test_a_setting_limits_the_length() -> None:
    held(bench_of(CoreSettings(run_length_max=3)), 3)
    bench = bench_of(CoreSettings(run_length_max=3))
    bench.arrive(RING, 0, 0, 1, quiet=100)
    bench.play()
    assert [grant.length for grant in bench.full_grants(0)] == [3]


def test_an_offer_can_be_made_smaller_until_it_is_granted_and_never_larger_again() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, closed=4, quiet=4)
    bench.arrive(RING, 0, 0, closed=1, quiet=2)
    bench.arrive(RING, 0, 0, closed=4, quiet=4)  # a late copy of the first request
    bench.arrive(RING, 0, 1, closed=4, quiet=4)
    bench.play()
    assert [grant.length for grant in bench.full_grants(0)] == [2]


def test_a_host_that_is_blocked_stays_so_whatever_late_copies_say() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, blocking=True)
    bench.arrive(RING, 0, 0)
    intent = bench.engine.state.jobs["job"].open[RING, 0]
    assert intent.arrived[0].arrival.blocking


def test_arrivals_that_a_run_covers_are_granted_with_it_and_the_next_one_follows_on_it() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, quiet=3)
    bench.arrive(RING, 1, 0, quiet=2)
    bench.arrive(RING, 2, 0)
    bench.arrive(RING, 3, 0)
    bench.arrive(RING, 0, 1, quiet=3)
    bench.pump()
    bench.play()
    asked = [Arrival(RING, n) for n in range(4)]
    states = [status.state for status in bench.answer(0, asked).arrivals]
    assert states == [ArrivalState.GRANTED] * 3 + [ArrivalState.OPEN]
    assert [view.n for view in intents_view(bench.engine, "job")] == [3]
    bench.arrive(RING, 1, 1)  # it had not heard of the grant yet
    bench.arrive(RING, 3, 1)
    bench.release(RING, 0, 0, 1, length=3)
    bench.play()
    assert [(g.n, g.length) for g in bench.full_grants(1)] == [(0, 3), (3, 1)]


def test_a_grant_that_is_being_written_down_is_not_answered_for_what_it_covers_either() -> None:
    bench = bench_of()
    bench.arrive(RING, 0, 0, 1, quiet=2)
    bench.play()
    bench.release(RING, 0, 0, 1, length=2)
    bench.play()
    bench.arrive(RING, 2, 0, 1, quiet=2)
    bench.pump(store=False)
    (status,) = bench.answer(0, [Arrival(RING, 3)], last_grant=1).arrivals
    assert status.state is ArrivalState.OPEN
    assert status.because is not None
    assert status.because.reason is Reason.COMMITTING


def test_hints_at_what_a_run_covers_have_had_their_time() -> None:
    bench = bench_of()
    bench.hint(RING, 1, 0)
    bench.hint(RING, 4, 1)
    held(bench)
    ranks = bench.engine.state.jobs["job"].ranks
    assert (ranks[0].hint, ranks[0].hinted) == (None, {})
    assert ranks[1].hint == Hint(RING, 4)


# --- rank exclusion


def test_members_of_a_run_get_no_other_grant_while_it_is_held_not_even_over_free_ports() -> None:
    bench = held(bench_of(ports=2))
    bench.arrive(LINE, 0, 1, 2)
    bench.arrive(FAR, 0, 2, 3)
    bench.play()
    assert bench.grants(1) == [("ring", 0)]
    assert reason(bench, LINE, 0, 1) is Reason.RUN_HELD
    (view,) = (view for view in intents_view(bench.engine, "job") if view.connection == "line:1-2")
    assert view.because.data == {"rank": 1, "connection": "ring", "n": 0, "length": 4}
    bench.release(RING, 0, 0, length=4)
    bench.play()
    assert reason(bench, LINE, 0, 1) is Reason.RUN_HELD, "rank 1 holds it still"
    bench.release(RING, 0, 1, length=4)
    bench.play()
    assert bench.grants(1) == [("ring", 0), ("line:1-2[1>2]", 0)]


def test_a_run_of_one_keeps_nobody_from_anything() -> None:
    bench = bench_of(ports=2)
    bench.arrive(RING, 0, 0, 1)
    bench.arrive(LINE, 0, 1, 2)
    bench.play()
    assert {name for name, _ in bench.grants(1)} == {"ring", "line:1-2[1>2]"}


# --- the cut


def test_a_member_that_leaves_has_all_holders_asked_and_the_run_ends_after_the_furthest() -> None:
    bench = held(bench_of())
    bench.woken.clear()
    bench.cut(RING, 0, 0, issued=1)
    bench.pump(store=False)
    assert bench.cuts(1) == (), "not before it is written down"
    bench.engine.committed(bench.engine.state.ledger.open_batch - 1)
    assert bench.cuts(0) == (), "it has said so"
    assert bench.cuts(1) == (CutRequest(RING, 0, None),)
    assert bench.engine.has_news_for("job", 1, 1, 1)
    bench.cut(RING, 0, 1, issued=2)
    bench.pump(store=False)
    assert bench.cuts(1) == (), "not before the end is written down"
    bench.woken += bench.engine.committed(bench.engine.state.ledger.open_batch - 1)
    assert bench.cuts(0) == bench.cuts(1) == (CutRequest(RING, 0, 2),)
    assert RankKey("job", 1, 0) in bench.woken
    assert [c for c in bench.changes if isinstance(c, RunCut)] == [RunCut("job", 1, RING, 0, 2)]
    assert bench.events("run.cutting")[0].data == {
        "connection": "ring",
        "n": 0,
        "length": 4,
        "rank": 0,
        "issued": 1,
    }
    assert bench.events("run.cut")[0].data == {
        "connection": "ring",
        "n": 0,
        "length": 2,
        "issued": {"0": 1, "1": 2},
    }
    bench.cut(RING, 0, 0, issued=1, length=2)
    assert bench.cuts(0) == ()
    assert not bench.engine.has_news_for("job", 1, 0, 1)
    bench.release(RING, 0, 0, 1, length=2)
    bench.arrive(RING, 2, 0, 1)
    bench.play()
    assert [(g.n, g.length) for g in bench.full_grants(1)] == [(0, 4), (2, 1)]


def test_copies_of_what_a_rank_says_about_a_run_change_nothing() -> None:
    bench = held(bench_of())
    for _ in range(2):
        bench.cut(RING, 0, 0, issued=2)
        bench.cut(RING, 0, 0, issued=1)
    bench.cut(RING, 0, 1, issued=1)
    bench.cut(RING, 0, 1, issued=1)
    bench.play()
    assert bench.cuts(1) == (CutRequest(RING, 0, 2),)
    bench.cut(RING, 0, 1, issued=2, length=2)
    bench.cut(RING, 0, 1, issued=1)
    bench.play()
    assert bench.cuts(1) == ()
    bench.release(RING, 0, 0, 1, length=2)
    bench.play()
    bench.cut(RING, 0, 1, issued=1)
    bench.cut(FAR, 0, 2, issued=1)  # of a stream that nothing was ever granted on
    bench.play()
    assert (len(bench.events("run.cutting")), len(bench.events("run.cut"))) == (1, 1)
    assert bench.engine.state.jobs["job"].cuts == {}


def test_nobody_can_be_further_than_the_end_of_the_run() -> None:
    bench = held(bench_of())
    bench.cut(RING, 0, 0, issued=1)
    bench.cut(RING, 0, 1, issued=99)
    bench.play()
    assert bench.cuts(0) == (CutRequest(RING, 0, 4),)


def test_a_member_that_has_finished_the_whole_run_answers_for_all_of_it() -> None:
    bench = held(bench_of())
    bench.cut(RING, 0, 0, issued=1)
    bench.play()
    bench.release(RING, 0, 1, length=4)  # the question had not reached it
    bench.play()
    assert bench.cuts(0) == (CutRequest(RING, 0, 4),)
    bench.release(RING, 0, 0, length=4)
    bench.play()
    assert not bench.engine.state.live


def test_a_member_that_has_arrived_behind_the_run_answers_for_all_of_it() -> None:
    bench = held(bench_of())
    bench.arrive(RING, 4, 1)
    bench.cut(RING, 0, 0, issued=1)
    bench.cut(RING, 0, 1, issued=1)  # of a client that does not count well
    bench.play()
    assert bench.cuts(0) == (CutRequest(RING, 0, 4),)


def test_a_run_that_is_cut_to_one_operation_keeps_nobody_from_anything() -> None:
    bench = held(bench_of(ports=2))
    bench.cut(RING, 0, 0, issued=1)
    bench.arrive(LINE, 0, 1, 2, blocking=True)
    bench.play()
    assert reason(bench, LINE, 0, 1) is Reason.RUN_HELD
    bench.cut(RING, 0, 1, issued=1)
    bench.play()
    assert bench.grants(1) == [("ring", 0), ("line:1-2[1>2]", 0)]


def test_only_runs_of_rings_are_cut() -> None:
    bench = held(bench_of())
    with pytest.raises(CoreError) as refused:
        bench.cut(Stream("line:0-1"), 0, 0, issued=1)
    assert refused.value.problem is Problem.RECEIVE_FROM_ANY
    with pytest.raises(CoreError) as refused:
        bench.cut(RING, 0, 2, issued=1)
    assert refused.value.problem is Problem.NOT_A_MEMBER


def test_a_job_that_is_over_cuts_nothing() -> None:
    bench = held(bench_of())
    bench.engine.abort(bench.now, "job", 1, 0, "enough")
    bench.cut(RING, 0, 0, issued=1)
    bench.play()
    assert bench.events("run.cutting") == []
    assert bench.cuts(1) == ()


def test_c4_6_a_member_that_dies_ends_the_job_for_those_who_wait_for_its_answer() -> None:
    bench = held(bench_of())
    bench.cut(RING, 0, 0, issued=1)
    bench.play()
    bench.engine.report_dead(bench.now, "job", 1, [1], "exit status 137")
    assert bench.failure(0).problem is Problem.RANK_LOST
    assert bench.cuts(0) == ()


# --- C4: who is behind a cut. A run of 4 of ranks 0 and 1, left after 2


def cut_at(bench: Bench, mine: int, peers: int) -> None:
    """Rank 0 leaves after `mine` operations, rank 1 has called `peers`."""
    bench.cut(RING, 0, 0, issued=mine)
    bench.cut(RING, 0, 1, issued=peers)
    bench.play()


def test_c4_all_members_leave_at_the_same_operation_and_block_on_messages() -> None:
    bench = held(bench_of())
    bench.arrive(LINE, 0, 1, 2, blocking=True)
    cut_at(bench, 2, 2)
    assert bench.cuts(0) == (CutRequest(RING, 0, 2),)
    bench.release(RING, 0, 0, 1, length=2)
    bench.play()
    assert bench.grants(1) == [("ring", 0), ("line:1-2[1>2]", 0)]


def test_c4_one_member_leaves_for_something_asynchronous_and_comes_back() -> None:
    bench = held(bench_of())
    bench.arrive(Stream("line:0-2", 0, 2), 0, 0, 2)
    cut_at(bench, 2, 3)
    assert bench.answer(0).failure is None, "its host is not blocked, so it may still call the third"
    bench.cut(RING, 0, 0, issued=3, length=3)
    bench.play()
    bench.release(RING, 0, 0, 1, length=3)
    bench.play()
    assert bench.grants(0) == [("ring", 0), ("line:0-2[0>2]", 0)]


def test_c4_one_member_blocks_on_a_message_over_free_ports() -> None:
    bench = held(bench_of(ports=2))
    message = Stream("line:0-3", 0, 3)
    bench.arrive(message, 0, 0, 3, blocking=True)
    cut_at(bench, 2, 3)
    assert ("line:0-3[0>3]", 0) in bench.grants(0), "the run waits for it, so it goes past the run"


def test_c4_one_member_blocks_on_a_message_that_needs_the_ports_and_its_peer_is_not_past_it() -> None:
    bench = held(bench_of())
    message = Stream("line:0-2", 0, 2)
    bench.arrive(message, 0, 0, 2, blocking=True)
    cut_at(bench, 2, 2)
    bench.release(RING, 0, 0, 1, length=2)
    bench.play()
    assert bench.grants(0) == [("ring", 0), ("line:0-2[0>2]", 0)]


def test_c4_the_same_when_a_peer_has_issued_the_next_operation_ends_the_job_and_says_why() -> None:
    bench = held(bench_of())
    message = Stream("line:0-2", 0, 2)
    bench.arrive(message, 0, 0, 2, blocking=True)
    bench.arrive(FAR, 0, 3)
    cut_at(bench, 2, 3)
    failures = [bench.failure(rank) for rank in range(4)]
    assert len(set(map(str, failures))) == 1
    assert (failures[0].problem, failures[0].rank) == (Problem.RUN_DEVIATION, 0)
    assert failures[0].data == {
        "connection": "line:0-2",
        "source": 0,
        "destination": 2,
        "n": 0,
        "run": {"connection": "ring", "n": 0, "length": 3},
        "issued": 2,
        "ahead": [1],
    }
    assert failures[0].detail.startswith(
        "rank 0 waits in operation 0 of line:0-2[0>2] after 2 operations of the run [0, 3) of ring; "
        "ranks 1 have issued 3"
    )


def test_c4_it_is_found_as_soon_as_the_host_blocks_whether_the_message_is_complete_or_not() -> None:
    for complete in (True, False):
        bench = held(bench_of())
        message = Stream("line:0-2", 0, 2)
        bench.arrive(message, 0, *((0, 2) if complete else (0,)))
        cut_at(bench, 2, 3)
        assert bench.answer(0).failure is None
        bench.arrive(message, 0, 0, blocking=True)
        assert bench.failure(0).problem is Problem.RUN_DEVIATION


def test_c4_it_is_found_where_a_host_waits_for_the_run_through_an_earlier_operation_or_another_rank() -> None:
    message, late = Stream("line:0-2", 0, 2), Stream("line:2-3", 3, 2)
    bench = held(bench_of())
    bench.arrive(message, 0, 0, 2)
    bench.arrive(message, 1, 0, blocking=True)
    cut_at(bench, 2, 3)
    assert bench.failure(0).data["n"] == 1, "the first message has to go first"
    bench = held(bench_of(ports=2))
    apart = Stream("line:0-3", 0, 3)
    bench.arrive(apart, 0, 0, blocking=True)
    cut_at(bench, 2, 3)
    assert bench.answer(0).failure is None, "rank 3 may come"
    bench.arrive(late, 0, 3, blocking=True)
    bench.play()
    assert bench.answer(0).failure is None, "rank 2 may come"
    bench.arrive(Stream("line:1-2", 1, 2), 0, 2, blocking=True)
    assert bench.failure(0).problem is Problem.RUN_DEVIATION, "rank 2 waits for rank 1, which holds the run"


def test_c4_a_member_that_catches_up_is_behind_no_longer() -> None:
    bench = held(bench_of())
    message = Stream("line:0-2", 0, 2)
    bench.arrive(message, 0, 2)
    cut_at(bench, 2, 3)
    arrival, cut = Arrival(message, 0, blocking=True), Cut(RING, 0, 3, 3)
    bench.news(0, arrivals=[arrival], cuts=[cut])
    bench.play()
    assert bench.answer(0).failure is None
    bench.release(RING, 0, 0, 1, length=3)
    bench.play()
    assert bench.grants(0) == [("ring", 0), ("line:0-2[0>2]", 0)]


def test_what_is_shared_with_a_member_ahead_cannot_be_issued_there_before_the_run() -> None:
    """Its ports are free, but on a device that executes in order the run's operation is before it."""
    bench = held(bench_of(ports=2))
    bench.arrive(Stream("line:0-1", 1, 0), 0, 0, 1, blocking=True)
    cut_at(bench, 2, 3)
    assert bench.failure(0).problem is Problem.RUN_DEVIATION


def test_two_members_behind_that_wait_for_each_other_go_past_the_run_once_both_are_blocked() -> None:
    ring, back = Stream("three"), Stream("line:0-1", 1, 0)  # over a circuit of the ring
    bench = Bench(make_fabric(3, ports=2))
    bench.observe()
    bench.job(make_spec(places(3), {"dp": 3}), group("three", 0, 1, 2), group("line", 0, 1, 2))
    bench.arrive(ring, 0, 0, 1, 2, quiet=4)
    bench.play()
    bench.arrive(back, 0, 0, blocking=True)
    for rank, issued in ((0, 2), (1, 2), (2, 3)):
        bench.cut(ring, 0, rank, issued=issued)
    bench.arrive(back, 0, 1)
    bench.play()
    assert bench.grants(0) == [("three", 0)], "rank 1 may still issue the run's next one first"
    assert bench.answer(0).failure is None
    bench.arrive(back, 0, 1, blocking=True)
    bench.play()
    assert bench.grants(0) == [("three", 0), ("line:0-1[1>0]", 0)]


# --- restarts


class World:
    """As in the tests of restarts: ranks that remember what they were told."""

    def __init__(self) -> None:
        self.bench = bench_of(ports=2)
        self.ranks = [Rank(rank) for rank in range(4)]

    def hold(self, length: int = 4, hearing: tuple[int, ...] = (0, 1)) -> None:
        for rank in (0, 1):
            self.ranks[rank].arrive(self.bench, RING, 0, quiet=length)
        self.hear(*hearing)

    def hear(self, *ranks: int) -> None:
        self.bench.play()
        for rank in ranks:
            self.ranks[rank].hear(self.bench)

    def cut(self, rank: int, issued: int) -> None:
        self.ranks[rank].cut(self.bench, RING, 0, issued)

    def restart(self, lost: type | None = None, intact: bool = False) -> None:
        """`lost`: the oldest batch with this change, and all after it, have not reached the disk."""
        batches = self.bench.batches
        first = next((i for i, b in enumerate(batches) if lost and any(isinstance(c, lost) for c in b)), None)
        self.bench = restart(self.bench, lost=0 if first is None else len(batches) - first, intact=intact)

    def reassert(self, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank].reassert(self.bench)
        self.bench.play()

    def release(self, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank].release(self.bench, RING, 0)
        self.bench.play()

    def goes_on(self, n: int) -> None:
        """Both release, and the next operation of the ring is this one."""
        self.hear(0, 1)
        assert [self.ranks[r].held[RING, 0].length for r in (0, 1) if self.ranks[r].held] in ([], [n], [n, n])
        self.release(*(r for r in (0, 1) if self.ranks[r].held))
        assert not self.bench.engine.state.jobs["job"].streams[RING].held
        assert self.bench.engine.state.jobs["job"].cuts == {}
        for rank in (0, 1):
            self.ranks[rank].arrive(self.bench, RING, n)
        self.hear(0, 1)
        assert self.ranks[0].order[-1] == self.ranks[1].order[-1] == f"ring#{n}"


ALL = (0, 1, 2, 3)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
@pytest.mark.parametrize("lost", [None, RunGranted])
def test_a_held_run_keeps_its_length_and_its_members_over_a_restart(
    order: tuple[int, ...], lost: type | None
) -> None:
    world = World()
    world.hold()
    world.restart(lost)
    world.reassert(*order)
    world.ranks[1].arrive(world.bench, LINE, 0)
    world.ranks[2].arrive(world.bench, LINE, 0)
    world.bench.play()
    assert reason(world.bench, LINE, 0, 1) is Reason.RUN_HELD
    world.goes_on(4)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_a_run_that_one_member_has_finished_and_the_other_holds_is_one_run(order: tuple[int, ...]) -> None:
    """Rank 0 knows only that it was granted four operations; rank 1 says that they are one run."""
    world = World()
    world.hold()
    world.release(0)
    world.restart(RunGranted)
    world.reassert(*order)
    assert len(world.bench.engine.state.jobs["job"].streams[RING].held) == 1
    assert [c.length for c in world.bench.changes if isinstance(c, RunGranted)] == [4]
    world.goes_on(4)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_a_rank_that_lost_its_grant_is_told_of_the_whole_run(order: tuple[int, ...]) -> None:
    world = World()
    world.hold(hearing=(1,))
    world.restart(RunGranted)
    world.reassert(*order)
    world.hear(0)
    assert world.ranks[0].held[RING, 0].length == 4
    world.goes_on(4)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
@pytest.mark.parametrize("intact", [True, False])
def test_a_cut_that_was_asked_about_goes_on_after_a_restart(order: tuple[int, ...], intact: bool) -> None:
    world = World()
    world.hold()
    world.cut(0, 2)
    world.bench.play()
    world.restart(intact=intact)
    world.reassert(*order)
    assert world.bench.cuts(1)[:1] == (CutRequest(RING, 0, None),)
    world.cut(1, 3)
    world.goes_on(3)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
@pytest.mark.parametrize("lost", [None, RunCut, RunGranted])
@pytest.mark.parametrize("knows", [(), (0,), (1,), (0, 1)])
def test_a_cut_that_was_decided_holds_after_a_restart_whoever_was_told(
    order: tuple[int, ...], lost: type | None, knows: tuple[int, ...]
) -> None:
    world = World()
    world.hold()
    world.cut(0, 2)
    world.cut(1, 2)
    world.bench.play()
    for rank in knows:
        world.ranks[rank].hear(world.bench)
    world.restart(lost)
    world.reassert(*order)
    assert world.bench.answer(0).failure is None
    world.goes_on(2)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
@pytest.mark.parametrize("lost", [None, RunCut, RunGranted])
def test_a_member_that_has_released_a_cut_run_tells_by_its_mark_where_it_ends(
    order: tuple[int, ...], lost: type | None
) -> None:
    world = World()
    world.hold()
    world.cut(0, 2)
    world.cut(1, 1)
    world.hear(0)
    world.release(0)
    world.restart(lost)
    late = world.ranks[1].session()
    world.reassert(*order)
    world.bench.news(1, session=late, last_grant=world.ranks[1].last_grant)  # a copy, from before it was told
    world.goes_on(2)


def test_a_decision_that_changed_nothing_is_told_again_after_a_restart() -> None:
    world = World()
    world.hold()
    world.cut(0, 2)
    world.cut(1, 4)
    world.hear(1)
    world.restart()
    world.reassert(*ALL)
    assert world.bench.cuts(0) == (CutRequest(RING, 0, 4),)
    world.goes_on(4)


def test_a_rank_that_has_gone_on_behind_a_run_that_another_says_was_cut_has_diverged() -> None:
    world = World()
    world.hold()
    world.ranks[1].arrive(world.bench, RING, 4)
    world.restart()
    world.ranks[1].reassert(world.bench)
    cut = replace(world.ranks[0].held[RING, 0], length=2)
    session = Session(1, (cut,), (), (StreamMark(RING, 2, 0),))
    world.bench.news(0, session=session, last_grant=1)
    assert world.bench.failure(0).problem is Problem.DIVERGED


def test_a_rank_that_says_another_end_than_the_others_were_told_has_diverged() -> None:
    bench = held(bench_of())
    bench.arrive(RING, 4, 1)
    bench.cut(RING, 0, 0, issued=1, length=2)
    assert bench.failure(0).problem is Problem.DIVERGED


def test_a_rank_is_asked_about_a_run_only_once_it_can_know_of_its_grant() -> None:
    world = World()
    world.hold(hearing=(1,))
    world.cut(1, 2)
    world.bench.play()
    world.restart(RunGranted)
    world.reassert(0, 1, 2)
    assert world.bench.cuts(0) == (), "it has no number for the grant"
    world.ranks[3].reassert(world.bench)
    world.bench.pump(store=False)
    assert world.bench.cuts(0) == (), "the number is not stored"
    world.bench.engine.committed(world.bench.engine.state.ledger.open_batch - 1)
    world.ranks[0].hear(world.bench)
    assert world.bench.cuts(0) == (CutRequest(RING, 0, None),)
    world.cut(0, 1)
    world.goes_on(2)
