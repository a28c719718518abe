"""Positions of the fabric file and numbers of the device: every one there and back, on every kind of size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.drivers.pairs import PortId
from opus_sdn.drivers.polatis.numbering import Numbering, NumberingError
from opus_sdn.intent.fabric import CrossConnect, Side

IN, OUT, ANY = Side.INGRESS, Side.EGRESS, Side.ANY

numberings = st.one_of(
    st.builds(Numbering, st.integers(1, 512), st.integers(1, 512)),
    st.builds(Numbering, st.integers(2, 512), st.just(0)),
)


@pytest.mark.parametrize(
    ("text", "ingress", "egress"),
    [
        ("48x48", 48, 48),
        ("N-VST-512x512-LA1-DMHNV-701", 512, 512),
        ("N-OST-48x48-HA1-DMHEV-050", 48, 48),
        ("I-OST-24x24-LU1-DMHNS", 24, 24),
        ("N-VST-16x08-HU1-MMHNP-800", 16, 8),
        ("N-VST-192x192-LU1-DMHNV-801", 192, 192),
        ("32xCC", 32, 0),
        ("N-OST-32xCC-LU1", 32, 0),
        ("8X8", 8, 8),
    ],
)
def test_sizes_are_read_from_model_names_and_size_answers(text: str, ingress: int, egress: int) -> None:
    assert Numbering.parse(text) == Numbering(ingress, egress)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "N-OST-LA1",
        "0x8",
        "8x0",
        "1xCC",
        "0xCC",
        "8x8 or 16x16",
        "48x",
        "x48",
        "99999x99999",
        "a8x8",
        "8x8b",
    ],
)
def test_a_size_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(NumberingError, match="size"):
        Numbering.parse(text)


@pytest.mark.parametrize(
    ("size", "port", "number"),
    [
        ("8x8", PortId(IN, 0), 1),
        ("8x8", PortId(OUT, 0), 9),
        ("8x8", PortId(OUT, 7), 16),
        ("24x24", PortId(IN, 23), 24),
        ("24x24", PortId(OUT, 0), 25),
        ("24x24", PortId(OUT, 23), 48),
        ("48x48", PortId(OUT, 47), 96),
        ("16x08", PortId(IN, 15), 16),
        ("16x08", PortId(OUT, 0), 17),
        ("16x08", PortId(OUT, 7), 24),
        ("512x512", PortId(OUT, 0), 513),
        ("512x512", PortId(OUT, 511), 1024),
        ("32xCC", PortId(ANY, 0), 1),
        ("32xCC", PortId(ANY, 31), 32),
        ("32x32", PortId(IN, 24), 25),
        ("32x32", PortId(OUT, 24), 57),
    ],
)
def test_a_port_has_the_number_that_the_device_gives_it(size: str, port: PortId, number: int) -> None:
    numbering = Numbering.parse(size)
    assert numbering.number(port) == number
    assert numbering.port(number) == port


@given(numberings)
def test_every_port_goes_there_and_back(numbering: Numbering) -> None:
    ports = numbering.ports
    assert [numbering.number(port) for port in ports] == list(range(1, numbering.total + 1))
    assert [numbering.port(numbering.number(port)) for port in ports] == list(ports)
    assert {port.side for port in ports} == ({IN, OUT} if numbering.sided else {ANY})


@given(numberings, st.data())
def test_every_pair_goes_there_and_back_whichever_number_comes_first(
    numbering: Numbering, data: st.DataObject
) -> None:
    a = data.draw(st.integers(0, numbering.ingress - 1))
    b = data.draw(st.integers(0, (numbering.egress or numbering.ingress) - 1))
    pair = CrossConnect(a, b)
    if not numbering.sided and a == b:
        with pytest.raises(NumberingError, match="itself"):
            numbering.wire(pair)
        return
    low, high = numbering.wire(pair)
    assert low < high
    there = pair if numbering.sided else CrossConnect(min(a, b), max(a, b))
    assert numbering.pair(low, high) == numbering.pair(high, low) == there


@given(numberings, st.sampled_from(Side), st.integers(-3, 600))
def test_a_port_is_on_the_device_or_an_error_here(numbering: Numbering, side: Side, position: int) -> None:
    port = PortId(side, position)
    if port in numbering.ports:
        assert 1 <= numbering.number(port) <= numbering.total
    else:
        with pytest.raises(NumberingError):
            numbering.number(port)


@pytest.mark.parametrize("number", [0, -1, 25])
def test_a_number_beyond_the_device_is_refused(number: int) -> None:
    with pytest.raises(NumberingError, match="1 to 24"):
        Numbering.parse("16x08").port(number)


@pytest.mark.parametrize(("size", "a", "b"), [("8x8", 1, 2), ("8x8", 9, 16), ("8x8", 3, 3), ("8xCC", 4, 4)])
def test_a_device_cannot_list_ports_that_cannot_be_joined(size: str, a: int, b: int) -> None:
    with pytest.raises(NumberingError, match="cannot be connected"):
        Numbering.parse(size).pair(a, b)
