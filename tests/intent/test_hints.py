"""Hints move circuits before anybody arrives; they lock nothing, block nobody, and move each circuit once."""

from __future__ import annotations

import pytest

from opus_sdn.intent import hints, stepping
from opus_sdn.intent.checker import Violation
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Arrival, CoreSettings, Hint, Stream
from tests.intent.bench import Bench
from tests.intent.rows import AB, BC, CD, GROUPS, pairs, plan_ab_over_bc, row
from tests.intent.worlds import group, make_fabric, make_spec, places

LINE = group("line", 0, 1, 2, 3, dimension="pp")


@pytest.fixture
def bench() -> Bench:
    """Four ranks in a row, one port each; nothing is up."""
    return row()


def with_bc_up() -> Bench:
    """The same, with the circuit of bc up."""
    bench = row()
    bench.lit["ocs0"] = pairs((1, 2))
    bench.observe()
    bench.play()
    return bench


def lit(bench: Bench) -> set[CrossConnect]:
    """What the switch holds once everything that can happen has happened."""
    bench.play()
    return bench.lit["ocs0"]


# --- when circuits move


def test_a_circuit_moves_once_both_its_ends_have_hinted(bench: Bench) -> None:
    bench.hint(AB, 0, 0)
    assert lit(bench) == set()
    bench.hint(AB, 0, 1)
    assert lit(bench) == pairs((0, 1))
    assert bench.steps[0].causes == ("job/1/hints",)
    assert [circuit.id for circuit in bench.steps[0].hinted] == ["h0:0:0--h1:0:0"]


def test_a_hint_and_an_arrival_are_as_good_as_two_hints(bench: Bench) -> None:
    bench.arrive(AB, 0, 1)
    assert lit(bench) == set()
    bench.hint(AB, 0, 0)
    assert lit(bench) == pairs((0, 1))


def test_what_was_hinted_is_granted_at_once_and_without_a_device_operation(bench: Bench) -> None:
    bench.hint(AB, 0, 0, 1)
    bench.play()
    writes = len(bench.steps)
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    assert bench.grants(0) == [("ab", 0)]
    assert len(bench.steps) == writes == 1


def test_a_hint_locks_nothing(bench: Bench) -> None:
    bench.hint(AB, 0, 0, 1)
    bench.play()
    bench.arrive(BC, 0, 1, 2)
    assert lit(bench) == pairs((1, 2))
    assert bench.grants(1) == [("bc", 0)]


def test_no_circuit_under_traffic_moves_for_hints() -> None:
    bench = with_bc_up()
    bench.arrive(BC, 0, 1, 2)
    bench.hint(AB, 0, 0, 1)
    bench.hint(CD, 0, 2)
    assert lit(bench) == pairs((1, 2))
    bench.release(BC, 0, 1, 2)
    assert lit(bench) == pairs((0, 1))


def test_a_circuit_stays_while_a_rank_at_its_end_may_need_it_next() -> None:
    bench = with_bc_up()
    bench.hint(BC, 0, 2)
    bench.hint(AB, 0, 0, 1)
    assert lit(bench) == pairs((1, 2))  # rank 2 expects to need it
    bench.hint(CD, 0, 2)
    assert lit(bench) == pairs((0, 1))


def test_a_circuit_stays_when_nothing_is_known_of_a_rank_at_its_end() -> None:
    bench = with_bc_up()
    bench.hint(AB, 0, 0, 1)
    assert lit(bench) == pairs((1, 2))


def test_a_rank_that_waits_elsewhere_does_not_keep_a_circuit() -> None:
    bench = with_bc_up()
    bench.arrive(CD, 0, 2)
    bench.hint(AB, 0, 0, 1)
    assert lit(bench) == pairs((0, 1))


def test_a_rank_that_waits_at_it_keeps_a_circuit() -> None:
    bench = with_bc_up()
    bench.arrive(BC, 0, 2)
    bench.arrive(AB, 0, 1)
    bench.hint(AB, 0, 0)
    assert lit(bench) == pairs((1, 2))


def test_an_early_receive_keeps_nothing_from_a_sender_that_goes_elsewhere_first() -> None:
    """Rank 2 has posted its receive from rank 1, which says that it needs ab before it sends."""
    bench = with_bc_up()
    bench.arrive(BC, 0, 2)
    bench.hint(AB, 0, 0, 1)
    assert lit(bench) == pairs((0, 1))


def test_a_rank_that_has_left_keeps_no_circuit() -> None:
    bench = with_bc_up()
    bench.hint(BC, 0, 2)
    bench.news(2, leave=True)
    bench.hint(AB, 0, 0, 1)
    assert lit(bench) == pairs((0, 1))


def test_circuits_of_nobody_are_in_nobodys_interest() -> None:
    """A pair of positions that is no circuit of ours and joins none of our ranks is moved out of the way."""
    bench = Bench(make_fabric(4, gpus=2, ports=1, one_switch=True))
    bench.lit["ocs"] = {CrossConnect(0, 5)}
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.play()
    bench.hint(AB, 0, 0, 1)
    bench.play()
    assert bench.lit["ocs"] == pairs((0, 1))


def test_a_ring_moves_circuit_by_circuit_as_its_members_come_near() -> None:
    bench = Bench(make_fabric(4))
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), group("ring", 0, 1, 2, 3))
    bench.play()
    ring = Stream("ring")
    bench.hint(ring, 0, 0, 1)
    assert lit(bench) == pairs((1, 2))  # right of rank 0, left of rank 1
    bench.hint(ring, 0, 2)
    assert lit(bench) == pairs((1, 2), (3, 4))
    bench.arrive(ring, 0, 3)
    assert lit(bench) == pairs((1, 2), (3, 4), (5, 6), (7, 0))


def test_the_topology_id_follows_what_hints_have_moved() -> None:
    bench = Bench(make_fabric(4, ports=1))
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}), group("dp", 0, 1), LINE)
    bench.play()
    bench.hint(Stream("dp"), 0, 0, 1)
    bench.play()
    assert bench.engine.state.jobs["job"].topology == {"rail0": "1-"}


# --- a hint is used once, and yields


def test_hints_repeated_without_end_move_mirrors_once_each() -> None:
    """C8: three ranks with one port each, and copies of the same wrong hints, again and again, in turns."""
    bench = Bench(make_fabric(3, ports=1))
    bench.observe()
    ca = Stream("ca")
    bench.job(make_spec(places(3), {"dp": 3}), group("ab", 0, 1), group("bc", 1, 2), group("ca", 2, 0))
    bench.play()
    for _ in range(20):
        bench.hint(ca, 0, 2)
        bench.hint(AB, 0, 0, 1)
        bench.play()
        bench.hint(ca, 0, 0)
        bench.hint(BC, 0, 1, 2)
        bench.play()
    assert [step.hinted[0].id for step in bench.steps] == ["h0:0:0--h1:0:0", "h1:0:0--h2:0:0"]


def test_a_hint_whose_operation_has_arrived_says_nothing() -> None:
    bench = with_bc_up()
    bench.arrive(AB, 0, 0, 1)
    bench.play()
    bench.release(AB, 0, 0, 1)
    bench.arrive(BC, 0, 1, 2)
    bench.play()
    bench.release(BC, 0, 1, 2)
    bench.hint(AB, 0, 0, 1)  # late copies
    bench.hint(CD, 0, 2)
    assert lit(bench) == pairs((1, 2))


def test_only_so_many_hints_of_a_rank_are_remembered() -> None:
    bench = Bench(make_fabric(4, ports=1), CoreSettings(hints_max=2))
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    for n in (5, 6, 7):
        bench.hint(AB, n, 0)
    rank = bench.engine.state.jobs["job"].ranks[0]
    assert (rank.hint, list(rank.hinted)) == (Hint(AB, 6), [Hint(AB, 5), Hint(AB, 6)])


def test_a_hint_yields_to_a_complete_intent(bench: Bench) -> None:
    bench.arrive(BC, 0, 1, 2)
    bench.hint(AB, 0, 0, 1)
    bench.hint(CD, 0, 2, 3)
    bench.pump()
    (step,) = [bench.start() for _ in range(len(bench.planned))]
    assert step is not None
    assert (step.causes, step.hinted) == (("job/1/bc#0",), ())


def test_what_is_needed_and_hinted_moves_in_one_step() -> None:
    bench = row()
    bench.arrive(AB, 0, 0, 1)
    bench.hint(CD, 0, 2, 3)
    bench.pump()
    step = bench.start()
    assert step is not None
    assert step.causes == ("job/1/ab#0", "job/1/hints")
    assert [circuit.id for circuit in step.hinted] == ["h2:0:0--h3:0:0"]


def test_a_step_for_hints_is_dropped_when_a_rank_changes_its_mind(bench: Bench) -> None:
    bench.hint(AB, 0, 0, 1)
    bench.pump()
    bench.hint(BC, 0, 1)
    assert bench.start() is None
    bench.pump()
    (dropped,) = bench.events("step.dropped")
    assert dropped.data["detail"] == "no rank expects to need h0:0:0--h1:0:0 next any more"


def test_a_step_for_hints_takes_nothing_from_a_complete_intent() -> None:
    """Rule 9: what has become complete since the plan was made is protected from hints."""
    bench = with_bc_up()
    bench.hint(CD, 0, 2)
    bench.hint(AB, 0, 0, 1)
    bench.pump()
    bench.arrive(BC, 0, 1, 2)
    assert bench.start() is None
    bench.pump()
    assert bench.grants(1) == [("bc", 0)]


def test_hints_for_what_is_complete_move_nothing_of_their_own() -> None:
    """The next operation of a connection is hinted while the one before it waits."""
    bench = with_bc_up()
    bench.arrive(BC, 0, 1, 2)
    bench.pump()
    bench.arrive(AB, 0, 0, 1)
    bench.hint(AB, 1, 0, 1)
    bench.pump()
    moves = hints.hinted_moves(bench.engine.state, bench.engine.state.jobs["job"], "ocs0")
    assert moves.circuits == ()


def test_a_failed_step_for_hints_is_not_tried_again(bench: Bench) -> None:
    bench.hint(AB, 0, 0, 1)
    bench.pump()
    step = bench.start()
    assert step is not None
    bench.settle(step, ok=False, works=False, detail="no")
    bench.play()
    assert len(bench.steps) == 1


def test_hints_that_the_checker_refuses_are_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "check_step", lambda *_: (Violation("I1", "planted"),))
    bench.hint(AB, 0, 0, 1)
    bench.play()
    job = bench.engine.state.jobs["job"]
    assert [rank.hint for rank in job.ranks] == [None] * 4
    assert bench.steps == []


# --- what may be hinted


def test_a_hint_for_a_stranger_connection_is_refused(bench: Bench) -> None:
    with pytest.raises(CoreError, match="takes no part") as refused:
        bench.hint(CD, 0, 0)
    assert refused.value.problem is Problem.NOT_A_MEMBER


def test_messages_are_hinted_by_their_ends() -> None:
    bench = Bench(make_fabric(4))
    bench.observe()
    bench.job(make_spec(places(4), {"pp": 4}), LINE)
    bench.play()
    message = Stream("line:1-2", 1, 2)
    bench.news(2, arrivals=[Arrival(message, 0, tag=3)])
    bench.hint(message, 0, 1)
    assert lit(bench) == pairs((3, 4))  # right of rank 1, left of rank 2


def test_a_job_that_fails_expects_nothing(bench: Bench) -> None:
    bench.hint(AB, 0, 0)
    bench.engine.abort(bench.now, "job", 1, 0, "enough")
    job = bench.engine.state.jobs["job"]
    assert (job.hinting, job.ranks[0].hint, job.ranks[0].hinted) == ({}, None, {})


def test_planning_for_others_goes_on_beside_hints() -> None:
    bench = row()
    plan_ab_over_bc(bench)
    bench.hint(CD, 0, 2, 3)
    assert lit(bench) == pairs((0, 1), (2, 3))
