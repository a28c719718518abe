"""What going from one dimension to another costs: what was hidden behind other work, and what was not."""

from __future__ import annotations

import pytest

from opus_sdn.intent.job import PAIRS_MAX, Transition
from opus_sdn.intent.model import CoreSettings, Stream
from opus_sdn.intent.switches import Step
from opus_sdn.intent.views import TransitionView, job_view
from tests.intent.bench import Bench
from tests.intent.worlds import group, make_fabric, make_spec, places

PP, DP, ELSE = Stream("pp:0-1", 0, 1), Stream("dp"), Stream("else")
DELAY_S = 0.05


@pytest.fixture
def bench() -> Bench:
    """One port each: the pair of ranks 0 and 1, and the ring of 1 and 2, exclude each other."""
    bench = Bench(make_fabric(3, ports=1), CoreSettings(overtake_s=1e9))
    bench.observe()
    bench.job(
        make_spec(places(3), {"x": 3}),
        group("pp", 0, 1, dimension="pp"),
        group("dp", 1, 2, dimension="dp"),
        group("else", 0, 2, dimension="ep"),
    )
    bench.play()
    return bench


def seen(bench: Bench) -> dict[tuple[str, str], TransitionView]:
    return {(view.before, view.after): view for view in job_view(bench.engine, "job").transitions}


def begin(bench: Bench) -> Step:
    bench.pump()
    step = bench.start()
    assert step is not None
    return step


def end(bench: Bench, step: Step, after_s: float = DELAY_S, works: bool = True) -> None:
    bench.now += after_s
    bench.settle(step, ok=works, works=works)
    bench.pump()


def message(bench: Bench) -> None:
    """The first need: its change is exposed whole."""
    bench.arrive(PP, 0, 0, 1)
    end(bench, begin(bench))
    bench.release(PP, 0, 0, 1)
    bench.play()


def test_a_change_that_begins_when_all_have_arrived_is_exposed_whole(bench: Bench) -> None:
    message(bench)
    bench.arrive(DP, 0, 1, 2)
    end(bench, begin(bench))
    assert seen(bench) == {
        ("-", "pp"): TransitionView("-", "pp", 1, 1, 0, 50.0, 50.0, 0.0),
        ("pp", "dp"): TransitionView("pp", "dp", 1, 1, 0, 50.0, 50.0, 0.0),
    }


@pytest.mark.parametrize(("work_s", "hidden_ms", "exposed_ms"), [(0.03, 30.0, 20.0), (0.1, 50.0, 0.0)])
def test_a_change_on_hints_is_hidden_as_far_as_the_ranks_work_meanwhile(
    bench: Bench, work_s: float, hidden_ms: float, exposed_ms: float
) -> None:
    message(bench)
    bench.hint(DP, 0, 1, 2)
    bench.hint(ELSE, 0, 0)
    step = begin(bench)
    if work_s > DELAY_S:
        end(bench, step)
        bench.now += work_s - DELAY_S
        bench.arrive(DP, 0, 1, 2)
        bench.play()
    else:
        bench.now += work_s
        bench.arrive(DP, 0, 1, 2)
        bench.pump()
        end(bench, step, DELAY_S - work_s)
    view = seen(bench)["pp", "dp"]
    assert (view.changes, view.hits) == (1, 1)
    assert (view.hidden_change_ms, view.exposed_change_ms) == (hidden_ms, exposed_ms)


def test_what_is_up_already_needs_no_change_and_still_waits_for_locks(bench: Bench) -> None:
    message(bench)
    bench.arrive(PP, 1, 0, 1)
    bench.play()
    bench.release(PP, 1, 0, 1)
    bench.arrive(PP, 2, 0, 1)
    bench.play()
    view = seen(bench)["pp", "pp"]
    assert (view.grants, view.changes, view.hits) == (2, 0, 0)
    assert (view.exposed_wait_ms, view.exposed_change_ms) == (0.0, 0.0)


def test_a_change_counts_from_the_step_that_made_it_and_not_from_one_that_failed(bench: Bench) -> None:
    message(bench)
    bench.hint(DP, 0, 1, 2)
    bench.hint(ELSE, 0, 0)
    end(bench, begin(bench), works=False)
    bench.arrive(DP, 0, 1, 2)
    bench.pause()
    end(bench, begin(bench))
    view = seen(bench)["pp", "dp"]
    assert (view.changes, view.hits, view.hidden_change_ms) == (1, 0, 0.0)


def test_a_circuit_that_is_taken_down_unused_was_no_change_for_anybody(bench: Bench) -> None:
    message(bench)
    bench.hint(DP, 0, 1, 2)
    bench.hint(ELSE, 0, 0)
    end(bench, begin(bench))
    assert len(bench.engine.state.made) == 1
    bench.arrive(PP, 1, 0, 1)
    end(bench, begin(bench))
    assert bench.engine.state.made == {}
    assert seen(bench)["pp", "pp"].changes == 1


def test_pairs_of_dimensions_are_counted_up_to_a_limit_and_the_rest_together(bench: Bench) -> None:
    job = bench.engine.state.jobs["job"]
    job.transitions = {(str(number), "x"): Transition() for number in range(PAIRS_MAX)}
    message(bench)
    bench.arrive(DP, 0, 1, 2)
    end(bench, begin(bench))
    assert len(job.transitions) == PAIRS_MAX + 1
    assert job.transitions["others", "others"].grants == 2


def test_a_connection_over_two_rails_is_one_change() -> None:
    bench = Bench(make_fabric(2, gpus=2))
    bench.observe()
    bench.job(make_spec(places(4, 2), {"x": 4}), group("dp", 0, 2, 1, 3))
    bench.arrive(DP, 0, 0, 1, 2, 3)
    bench.play()
    assert len(bench.steps) == 2
    view = seen(bench)["-", "dp"]
    assert (view.grants, view.changes) == (1, 1)
