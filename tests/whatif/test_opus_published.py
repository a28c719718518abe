"""On the published traces our own controller reaches what its rules allow, and says what it cost."""

from __future__ import annotations

from functools import cache

import pytest

from opus_sdn.whatif.engine import make_scenario, replay
from opus_sdn.whatif.opus.run import Memo, new_memo
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.scenario import Mode
from tests.whatif.cases import EIGHT, EXPECTED, LLAMA, MICROBATCHES, schedules, step

MEMOS: dict[str, Memo] = {}


@cache
def run(case: str, mode: Mode, delay_ms: float = 0, **options: object) -> Result:
    scenario = make_scenario(
        step(case), schedules(case), mode=mode, delay_ns=delay_ms * 1e6, options=dict(options)
    )
    return replay(scenario, semantics="opus", memo=MEMOS.setdefault(case, new_memo()))


@pytest.mark.parametrize(
    ("case", "finish_ns"), [(EIGHT, 61_647_147_923), (LLAMA, 11_931_082_455), (MICROBATCHES, 525_390_633)]
)
def test_a_static_step_is_exact(case: str, finish_ns: int) -> None:
    assert run(case, Mode.STATIC).finish_ns == finish_ns


def test_the_static_figures_are_the_published_ones() -> None:
    assert EXPECTED[EIGHT]["static"] == run(EIGHT, Mode.STATIC).finish_ns


@pytest.mark.parametrize("mode", [Mode.ON_DEMAND, Mode.PROVISION])
@pytest.mark.parametrize("case", [EIGHT, LLAMA])
def test_without_delay_a_step_is_as_long_as_a_static_one(case: str, mode: Mode) -> None:
    found = run(case, mode)
    assert abs(found.finish_ns - found.details["static_ns"]) <= 1000
    assert found.exposed_delay_ns == 0


# case, mode, delay, at most (ms): the goals that were set before this was built.
GOALS = [
    (LLAMA, Mode.ON_DEMAND, 10, 11_990.3),
    (LLAMA, Mode.ON_DEMAND, 50, 12_237.6),
    (LLAMA, Mode.ON_DEMAND, 100, 12_529.1),
    (LLAMA, Mode.ON_DEMAND, 1000, 17_920.7),
    (LLAMA, Mode.PROVISION, 10, 11_945.5),
    (LLAMA, Mode.PROVISION, 50, 12_065.5),
    (LLAMA, Mode.PROVISION, 100, 12_214.7),
    (LLAMA, Mode.PROVISION, 1000, 14_904.1),
    (EIGHT, Mode.ON_DEMAND, 50, 61_750.8),
    (EIGHT, Mode.PROVISION, 1, 61_647.148),
    (EIGHT, Mode.PROVISION, 10, 61_647.148),
    (EIGHT, Mode.PROVISION, 50, 61_647.148),
    (EIGHT, Mode.PROVISION, 1000, 62_594.1),
    (MICROBATCHES, Mode.PROVISION, 10, 545),
    (MICROBATCHES, Mode.PROVISION, 50, 705),
]
LIFTED = {"overtake_max": 10**9, "overtake_ms": 1e9}


@pytest.mark.parametrize(("case", "mode", "delay_ms", "most_ms"), GOALS)
def test_the_goals_are_reached_with_the_default_settings(
    case: str, mode: Mode, delay_ms: float, most_ms: float
) -> None:
    assert run(case, mode, delay_ms).finish_ns / 1e6 <= most_ms


@pytest.mark.parametrize("delay_ms", [10, 50, 100])
def test_between_microbatches_rings_that_nobody_waits_for_stay_out_of_the_way(delay_ms: float) -> None:
    """Provisioned, at most three switches show, not ten, and the bounds on overtaking cost nothing."""
    found = run(MICROBATCHES, Mode.PROVISION, delay_ms)
    assert found.finish_ns == run(MICROBATCHES, Mode.PROVISION, delay_ms, **LIFTED).finish_ns
    assert len(found.exposures) <= 3


@pytest.mark.parametrize("delay_ms", [10, 50])
def test_on_demand_patience_lets_the_messages_of_microbatches_pass(delay_ms: float) -> None:
    impatient = run(MICROBATCHES, Mode.ON_DEMAND, delay_ms)
    patient = run(MICROBATCHES, Mode.ON_DEMAND, delay_ms, ring_patience_ms=200)
    assert patient.finish_ns < 0.9 * impatient.finish_ns


@pytest.mark.parametrize("delay_ms", [0, 1, 10, 50, 100, 250, 1000])
@pytest.mark.parametrize("patience_ms", [0, 200])
def test_microbatches_finish_at_every_delay(delay_ms: float, patience_ms: float) -> None:
    """Provisioned never later than on demand, from 10 ms on."""
    finish = {
        mode: run(MICROBATCHES, mode, delay_ms, ring_patience_ms=patience_ms).finish_ns
        for mode in (Mode.ON_DEMAND, Mode.PROVISION)
    }
    if delay_ms >= 10:
        assert finish[Mode.PROVISION] <= finish[Mode.ON_DEMAND]


@pytest.mark.parametrize("delay_ms", [10, 250])
@pytest.mark.parametrize("case", [EIGHT, LLAMA])
def test_provisioned_is_not_later_than_on_demand(case: str, delay_ms: float) -> None:
    assert run(case, Mode.PROVISION, delay_ms).finish_ns <= run(case, Mode.ON_DEMAND, delay_ms).finish_ns


@pytest.mark.parametrize(
    ("case", "delay_ms", "bound_ms"),
    [(EIGHT, 50, 61_647.148), (EIGHT, 100, 61_694.100), (LLAMA, 10, 11_945.477), (LLAMA, 50, 12_065.477)],
)
def test_provisioned_steps_reach_the_lower_bound(case: str, delay_ms: float, bound_ms: float) -> None:
    found = run(case, Mode.PROVISION, delay_ms)
    assert round(found.details["lower_bound_ns"] / 1e6, 3) == bound_ms
    assert abs(found.finish_ns - found.details["lower_bound_ns"]) <= 1000


def test_there_is_no_bound_for_microbatches() -> None:
    assert run(MICROBATCHES, Mode.PROVISION, 10).details["lower_bound_ns"] is None


def test_the_exposed_delay_names_who_waited_and_for_which_circuits() -> None:
    """Provisioned, only the three sends of gradients wait, each for the delay less 5.202 ms."""
    found = run(LLAMA, Mode.PROVISION, 50)
    assert [exposure.waited_ns for exposure in found.exposures] == [44_798_328] * 3
    assert found.exposed_delay_ns == found.details["lost_to_switching_ns"] == 134_394_984
    first = found.exposures[0].details
    assert (first["lock_ns"], first["hinted"]) == (0, True)
    assert len(first["ranks"]) == 2
    assert len(first["circuits"]) == 4
    assert [len(exposed) for exposed in (run(LLAMA, Mode.ON_DEMAND, 10).exposures,)] == [6]


def test_the_history_of_topology_ids_is_told_in_digits_for_each_rail() -> None:
    found = run(EIGHT, Mode.ON_DEMAND, 10)
    assert found.reconfigurations[:2] == [(0, "11"), (10_626_448_486, "00")]
    assert {len(str(topology)) for _, topology in found.reconfigurations} == {2}
    assert sorted(found.details["topology"]) == ["rail0", "rail1"]


def test_waiting_with_the_slot_costs_what_it_is_known_to_cost() -> None:
    """`hold`: on demand at 10 ms nine switches are exposed instead of six."""
    assert run(LLAMA, Mode.ON_DEMAND, 10, hold=True).finish_ns == 12_021_082_455


def test_control_time_is_added_to_what_is_exposed() -> None:
    """2 ms of control at each of six exposed switches."""
    plain = run(LLAMA, Mode.ON_DEMAND, 10).finish_ns
    assert abs(run(LLAMA, Mode.ON_DEMAND, 10, control_ms=2.0).finish_ns - plain - 12_000_000) <= 50_000


def test_lifting_the_bounds_on_overtaking_shows_what_they_cost() -> None:
    """Nothing, except with microbatches on demand, where rings come between the messages."""
    for delay_ms in (10, 1000):
        for mode in (Mode.ON_DEMAND, Mode.PROVISION):
            assert run(EIGHT, mode, delay_ms, **LIFTED).finish_ns == run(EIGHT, mode, delay_ms).finish_ns
    bounded = run(MICROBATCHES, Mode.ON_DEMAND, 100).finish_ns
    assert run(MICROBATCHES, Mode.ON_DEMAND, 100, **LIFTED).finish_ns < 0.6 * bounded


def test_spread_ports_keep_rings_and_pairs_of_two_stages_apart() -> None:
    """With two stages and two members, nothing has to move at all after the first pair."""
    for delay_ms in (100, 1000):
        found = run(EIGHT, Mode.PROVISION, delay_ms, port_choice="spread")
        assert found.finish_ns == found.details["static_ns"]


@pytest.mark.parametrize(
    "options",
    [{"port_choice": "one-port", "circuit": "directed"}, {"defer_reductions": True}],
    ids=["one-port rings", "deferred reductions"],
)
@pytest.mark.parametrize("delay_ms", [50, 250])
def test_with_other_ports_or_another_order_next_to_nothing_is_exposed(
    options: dict[str, object], delay_ms: float
) -> None:
    """Within a thousandth of the static step, up to 250 ms."""
    found = run(LLAMA, Mode.PROVISION, delay_ms, **options)
    assert found.finish_ns <= 1.001 * found.details["static_ns"]
