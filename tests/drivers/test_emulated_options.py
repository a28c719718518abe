"""Options of the emulated switch in the fabric file, and drivers by name."""

from __future__ import annotations

import pytest

from opus_sdn.drivers.base import SwitchConfigError
from opus_sdn.drivers.emulated import EmulatedDriver
from opus_sdn.drivers.emulated_options import EmulatedOptions
from opus_sdn.drivers.registry import open_driver
from opus_sdn.intent.fabric import Switch
from tests.drivers.devices import pairs, switch


def test_a_switch_without_options_is_empty_and_loses_no_time() -> None:
    assert EmulatedOptions.of(switch()) == EmulatedOptions(
        delay_ms=0.0, control_ms=0.0, max_inflight=64, initial=()
    )


def test_options_are_read_as_the_file_gives_them() -> None:
    options = EmulatedOptions.of(
        switch(delay_ms=25, control_ms=1.5, max_inflight=1, initial=[[0, 1], [1, 0]])
    )
    assert options == EmulatedOptions(25.0, 1.5, 1, pairs((0, 1), (1, 0)))
    assert options.change_s == pytest.approx(0.0265)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay_ms": -1}, ["delay_ms is -1", "milliseconds"]),
        ({"delay_ms": True}, ["delay_ms is True"]),
        ({"delay_ms": "50"}, ["delay_ms is '50'"]),
        ({"delay_ms": float("nan")}, ["delay_ms is nan"]),
        ({"delay_ms": 600_001}, ["delay_ms is 600001", "to 600000"]),
        ({"control_ms": None}, ["control_ms is None"]),
        ({"max_inflight": 0}, ["max_inflight is 0", "from 1"]),
        ({"max_inflight": 1.0}, ["max_inflight is 1.0", "whole number"]),
        ({"max_inflight": True}, ["max_inflight is True"]),
        ({"initial": {"0": 1}}, ["initial is {'0': 1}", "list of pairs"]),
        ({"initial": [[0, 1], [2]]}, ["initial[1] is [2]", "[ingress, egress]"]),
        ({"initial": [[0, True]]}, ["initial[0] is [0, True]"]),
        ({"initial": [["0", 1]]}, ["initial[0] is ['0', 1]"]),
        ({"initial": [[0, 8]]}, ["initial[0] is [0, 8]", "out of range", "0 to 7"]),
        ({"initial": [[0, 1], [2, 1]]}, ["0->1 and 2->1 both use egress 1"]),
        ({"delay": 5}, ["'delay' is unknown", "did you mean 'delay_ms'", "max_inflight"]),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_the_remedy(
    options: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(SwitchConfigError) as error:
        open_driver(Switch("ocs", "emulated", 8, sided=True, options=tuple(options.items())))
    for word in ["switch ocs", *words]:
        assert word in str(error.value)


def test_a_loop_at_the_start_is_refused_where_there_are_no_sides() -> None:
    with pytest.raises(SwitchConfigError, match="joins position 3 to itself"):
        open_driver(switch(sided=False, initial=[[3, 3]]))
    open_driver(switch(sided=True, initial=[[3, 3]]))


def test_a_driver_is_opened_by_its_name() -> None:
    driver = open_driver(switch(initial=[[0, 1]]))
    assert isinstance(driver, EmulatedDriver)
    assert driver.device.table == set(pairs((0, 1)))


@pytest.mark.parametrize(
    ("name", "hint"), [("emulate", "did you mean 'emulated'"), ("optics9", "unknown; known")]
)
def test_an_unknown_driver_lists_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(SwitchConfigError, match=r"known: .*emulated") as error:
        open_driver(Switch("ocs", name, 8, sided=True))
    assert repr(name) in str(error.value)
    assert hint in str(error.value)
