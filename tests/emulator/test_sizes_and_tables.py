"""Port numbers of every model, and what a table becomes by an edit. Numbers are the device's, from 1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.drivers.polatis_emulator.judge import Busy, Edit, end_state
from opus_sdn.drivers.polatis_emulator.layout import PortLayout, SizeError
from opus_sdn.drivers.polatis_emulator.refusals import RefusalError, Why
from opus_sdn.drivers.polatis_emulator.spec import EmulatorSpec, Monitors

EIGHT = PortLayout.parse("8x8")


@pytest.mark.parametrize(
    ("size", "first_egress", "last"),
    [
        ("8x8", 9, 16),
        ("24x24", 25, 48),
        ("48x48", 49, 96),
        ("16x8", 17, 24),
        ("16x08", 17, 24),
        ("512x512", 513, 1024),
    ],
)
def test_egress_numbers_follow_those_of_the_ingress_side(size: str, first_egress: int, last: int) -> None:
    layout = PortLayout.parse(size)
    assert layout.egress_ports == range(first_egress, last + 1)
    assert layout.ports == range(1, last + 1)
    assert not layout.any_to_any


def test_a_switch_without_sides_counts_all_its_ports_once() -> None:
    layout = PortLayout.parse("32xCC")
    assert layout.any_to_any
    assert layout.ports == layout.egress_ports == range(1, 33)
    assert layout.joinable(5, 6)
    assert not layout.joinable(5, 5)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("N-VST-512x512-LA1-DMHNV-701", "512x512"),
        ("N-OST-48x48-HA1-DMHEV-050", "48x48"),
        ("I-OST-24x24-LU1-DMHNS", "24x24"),
        ("N-VST-16x08-HU1-MMHNP-800", "16x8"),
    ],
)
def test_a_model_name_says_its_size(model: str, size: str) -> None:
    assert EmulatorSpec(model=model).layout == PortLayout.parse(size)


@pytest.mark.parametrize(
    ("model", "monitors"),
    [
        ("N-OST-48x48-HA1-DMHEV-050", Monitors.EGRESS),
        ("I-OST-24x24-LU1-DMHNS", Monitors.NONE),
        ("N-VST-192x192-LU1-DMHNV-801", Monitors.ALL),
    ],
)
def test_a_model_name_says_where_power_is_measured(model: str, monitors: Monitors) -> None:
    assert EmulatorSpec(model=model).monitored is monitors


@pytest.mark.parametrize(
    "size", ["", "8", "8x", "x8", "0x8", "8x0", "1xCC", "8xC", "8x8x8", "9999x9999", "-1x8"]
)
def test_what_is_no_size_is_refused_with_one_that_is(size: str) -> None:
    with pytest.raises(SizeError, match=r"right would be|the most is"):
        PortLayout.parse(size)


@pytest.mark.parametrize(
    ("table", "edit", "wanted"),
    [
        pytest.param({}, Edit(((1, 9),)), {1: 9}, id="both free"),
        pytest.param({1: 9}, Edit(((1, 9),)), {1: 9}, id="there already"),
        pytest.param({}, Edit(((9, 1),)), {1: 9}, id="higher port first"),
        pytest.param({1: 9, 2: 10}, Edit(((1, 10),)), {1: 10}, id="two victims of one request"),
        pytest.param({1: 9}, Edit(((1, 10),), busy=Busy.MOVE), {1: 10}, id="an ingress moves"),
        pytest.param({1: 9, 2: 10}, Edit(((1, 10), (2, 9)), busy=Busy.MOVE), {1: 10, 2: 9}, id="a swap"),
        pytest.param(
            {1: 9, 2: 10, 3: 11}, Edit(((1, 11), (2, 10), (3, 9))), {1: 11, 2: 10, 3: 9}, id="reversal"
        ),
        pytest.param({1: 9, 2: 10}, Edit(disconnect=(10,)), {1: 9}, id="freed by its egress port"),
        pytest.param({1: 9}, Edit(disconnect=(7,)), {1: 9}, id="freed though free"),
        pytest.param(
            {1: 9, 2: 10}, Edit(((3, 9),), disconnect=(1,), busy=Busy.REFUSE), {2: 10, 3: 9}, id="reuse"
        ),
        pytest.param({1: 9, 2: 10}, Edit(((1, 9),), clear=True), {1: 9}, id="replaced"),
        pytest.param({1: 9}, Edit(((1, 9),), busy=Busy.REFUSE), {1: 9}, id="same circuit is nobody's victim"),
    ],
)
def test_an_edit_is_judged_by_its_end_state(
    table: dict[int, int], edit: Edit, wanted: dict[int, int]
) -> None:
    assert end_state(EIGHT, table, edit) == wanted


@pytest.mark.parametrize(
    ("edit", "why", "ports"),
    [
        pytest.param(Edit(((1, 10),), busy=Busy.MOVE), Why.IN_USE, (10,), id="egress of another ingress"),
        pytest.param(Edit(((1, 9),), busy=Busy.CREATE), Why.EXISTS, (1, 9), id="create what is there"),
        pytest.param(Edit(((1, 12),), busy=Busy.CREATE), Why.EXISTS, (1,), id="create on a busy ingress"),
        pytest.param(Edit(((3, 9),), busy=Busy.CREATE), Why.IN_USE, (9,), id="create on a busy egress"),
        pytest.param(Edit(((1, 12),), busy=Busy.REFUSE), Why.IN_USE, (1,), id="refuse a busy ingress"),
        pytest.param(Edit(((3, 12), (4, 12))), Why.DUPLICATE, (4, 12), id="one egress twice"),
        pytest.param(Edit(((3, 12), (3, 13))), Why.DUPLICATE, (3, 13), id="one ingress twice"),
        pytest.param(Edit(((77, 11),)), Why.BAD_PORT, (77,), id="no such port"),
        pytest.param(Edit(((0, 11),)), Why.BAD_PORT, (0,), id="port 0"),
        pytest.param(Edit(disconnect=(17,)), Why.BAD_PORT, (17,), id="free no such port"),
        pytest.param(Edit(((3, 4),)), Why.SAME_SIDE, (3, 4), id="two ingress ports"),
        pytest.param(Edit(((12, 13),)), Why.SAME_SIDE, (12, 13), id="two egress ports"),
    ],
)
def test_what_cannot_be_is_refused_and_names_the_ports(edit: Edit, why: Why, ports: tuple[int, ...]) -> None:
    with pytest.raises(RefusalError) as refused:
        end_state(EIGHT, {1: 9, 2: 10}, edit)
    assert (refused.value.why, refused.value.ports) == (why, ports)


def test_without_sides_a_port_is_busy_whichever_end_it_is() -> None:
    any_to_any = PortLayout.parse("8xCC")
    assert end_state(any_to_any, {1: 5, 2: 3}, Edit(((6, 5),))) == {2: 3, 5: 6}
    with pytest.raises(RefusalError):
        end_state(any_to_any, {1: 5}, Edit(((5, 6),), busy=Busy.REFUSE))


@given(st.sampled_from(["8x8", "6x3", "9xCC"]), st.data())
def test_whatever_is_asked_no_port_is_ever_in_two_circuits(size: str, data: st.DataObject) -> None:
    layout = PortLayout.parse(size)
    ports = st.integers(0, layout.ports[-1] + 1)
    table: dict[int, int] = {}
    for _ in range(6):
        edit = Edit(
            tuple(data.draw(st.lists(st.tuples(ports, ports), max_size=4))),
            tuple(data.draw(st.lists(ports, max_size=2))),
            data.draw(st.booleans()),
            data.draw(st.sampled_from(list(Busy))),
        )
        try:
            table = end_state(layout, table, edit, last_wins=data.draw(st.booleans()))
        except RefusalError:
            continue
        held = [port for pair in table.items() for port in pair]
        assert len(set(held)) == len(held)
        assert all(ingress < egress and layout.joinable(ingress, egress) for ingress, egress in table.items())
        wanted = [tuple(sorted(pair)) for pair in edit.connect]
        if len({port for pair in wanted for port in pair}) == 2 * len(wanted):
            assert set(wanted) <= set(table.items())
