"""Rules about drift and failures left out one at a time: the tests named for them must fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opus_sdn.intent import causes, drift, planner, serving, setbacks, stepping
from opus_sdn.intent.streams import Intent
from opus_sdn.intent.switches import SwitchState
from tests.intent import test_drift, test_setbacks
from tests.intent.bench import Bench
from tests.intent.rows import GROUPS, row
from tests.intent.worlds import PATIENT, make_fabric, make_spec, places

Plant = Callable[[pytest.MonkeyPatch], None]


def everything_on_the_switch_is_ours(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drift, "kept_pairs", lambda state, switch: frozenset())


def a_rival_gets_no_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drift, "held_off", lambda now, switch: {})


def lost_circuits_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drift, "_look_after_circuits", lambda *_: None)


def what_is_up_is_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(serving, "_taken", lambda state, intent: None)


def repairs_wait_for_everybody(patch: pytest.MonkeyPatch) -> None:
    wants_on = causes.wants_on

    def last(*given: object) -> object:
        wants, found = wants_on(*given)  # type: ignore[arg-type]
        return sorted(wants, key=lambda want: causes.REPAIR in want.key), found

    patch.setattr(stepping, "wants_on", last)


def dark_is_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SwitchState, "is_up", lambda self, c: all(p in self.matching for p in c.cross_connects))


def dark_is_made_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planner, "_no_light", lambda facts, pair: None)


def absence_does_not_matter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drift, "why_unusable", lambda switch: None)


def the_first_reading_is_compared_with_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SwitchState, "remember", lambda self, matching, foreign=(): None)


def all_go_together(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(setbacks, "groups", lambda switch, wants: [frozenset(want.key for want in wants)])


def no_need_ever_pauses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(setbacks, "parked", lambda now, switch, key: False)


def pauses_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(setbacks, "forgive", lambda switch, keys: None)
    blame = setbacks.blame

    def short(*given: object) -> None:
        switch = given[2]
        assert isinstance(switch, SwitchState)
        for setback in switch.setbacks.values():
            setback.times = 0
        blame(*given)  # type: ignore[arg-type]

    patch.setattr(setbacks, "blame", short)


def the_switchs_own_matters_are_blamed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(setbacks, "_untouched", lambda switch, step: False)


def stalled_needs_reserve(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Intent, "yields", False)


MUTANTS: dict[str, tuple[Plant, Callable[..., None]]] = {
    "everything is ours": (
        everything_on_the_switch_is_ours,
        test_drift.test_a_foreign_circuit_is_never_removed_where_the_rail_is_only_observed,
    ),
    "a rival gets no pause": (
        a_rival_gets_no_pause,
        test_drift.test_somebody_who_keeps_taking_our_circuit_down_is_named_and_gets_growing_pauses,
    ),
    "lost circuits are not noticed": (
        lost_circuits_are_not_noticed,
        test_drift.test_a_circuit_that_vanishes_under_a_lock_is_an_alarm_and_is_made_again,
    ),
    "what is up is free": (
        what_is_up_is_free,
        test_drift.test_a_circuit_on_the_ports_of_one_that_was_lost_under_a_lock_is_granted_to_nobody,
    ),
    "repairs wait for everybody": (
        repairs_wait_for_everybody,
        test_drift.test_a_circuit_on_the_ports_of_one_that_was_lost_under_a_lock_is_granted_to_nobody,
    ),
    "dark is up": (
        dark_is_up,
        test_drift.test_a_circuit_that_is_connected_and_passes_no_light_is_granted_to_nobody_and_not_made_again,
    ),
    "dark is made again": (
        dark_is_made_again,
        test_drift.test_a_circuit_that_is_connected_and_passes_no_light_is_granted_to_nobody_and_not_made_again,
    ),
    "absence does not matter": (
        absence_does_not_matter,
        test_drift.test_a_switch_that_is_away_is_left_alone_and_goes_on_when_it_is_back,
    ),
    "nothing is remembered": (
        the_first_reading_is_compared_with_nothing,
        test_drift.test_what_an_earlier_start_knew_is_compared_with_what_is_there,
    ),
    "all go together": (
        all_go_together,
        test_setbacks.test_one_bad_port_does_not_fail_the_bulk_step_of_the_others_again_and_again,
    ),
    "no need ever pauses": (
        no_need_ever_pauses,
        test_setbacks.test_the_one_that_cannot_be_made_gets_pauses_that_double_up_to_a_limit,
    ),
    "pauses do not grow": (
        pauses_do_not_grow,
        test_setbacks.test_the_one_that_cannot_be_made_gets_pauses_that_double_up_to_a_limit,
    ),
    "the switch's own matters are blamed": (
        the_switchs_own_matters_are_blamed,
        lambda: test_setbacks.test_when_it_was_the_switchs_own_matter_nobody_is_blamed(
            test_setbacks.FailureKind.AMBIGUOUS
        ),
    ),
    "stalled needs reserve": (
        stalled_needs_reserve,
        test_setbacks.test_a_stalled_need_holds_up_nobody_whom_the_device_serves,
    ),
}


def patient_row() -> Bench:
    """The bench of the tests of setbacks."""
    bench = Bench(make_fabric(4, ports=1), PATIENT)
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    return bench


def play(test: Callable[..., None]) -> None:
    """Run a test of one of the two modules."""
    needs_bench = "bench" in test.__code__.co_varnames[: test.__code__.co_argcount]
    if not needs_bench:
        test()
    else:
        test(row() if test.__module__.endswith("test_drift") else patient_row())


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, test = MUTANTS[name]
    play(test)
    plant(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        play(test)
