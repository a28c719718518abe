"""Ports, circuits and what they occupy inside a switch."""

from __future__ import annotations

import pytest

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CircuitKind, CrossConnect, Port, Side, Terminal
from tests.intent.worlds import make_fabric


def test_a_port_is_read_from_the_text_that_it_writes() -> None:
    port = Port("host:with:colons", 3, 1)
    assert str(port) == "host:with:colons:3:1"
    assert Port.parse(str(port)) == port


@pytest.mark.parametrize("text", ["h0", "h0:1", "h0:x:1", "h0:1:y"])
def test_text_of_another_form_is_no_port(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Port.parse(text)


# Positions on rail 0 of three hosts with two ports: h0 has 0 and 1, h1 has 2 and 3, h2 has 4 and 5.
CIRCUITS = {
    CircuitKind.DUPLEX: (
        "h0:0:1--h1:0:0",
        (CrossConnect(1, 2), CrossConnect(2, 1)),
        {(Side.INGRESS, 1), (Side.EGRESS, 2), (Side.INGRESS, 2), (Side.EGRESS, 1)},
    ),
    CircuitKind.BIDIRECTIONAL: ("h0:0:1--h1:0:0", (CrossConnect(1, 2),), {(Side.ANY, 1), (Side.ANY, 2)}),
    CircuitKind.DIRECTED: (
        "h0:0:1->h1:0:0",
        (CrossConnect(1, 2),),
        {(Side.INGRESS, 1), (Side.EGRESS, 2)},
    ),
}


@pytest.mark.parametrize("kind", CircuitKind)
def test_a_circuit_occupies_what_its_kind_needs(kind: CircuitKind) -> None:
    fabric = make_fabric(3, kind=kind)
    name, pairs, terminals = CIRCUITS[kind]
    circuit = fabric.circuit(Port("h0", 0, 1), Port("h1", 0, 0))
    assert circuit.id == name
    assert circuit.cross_connects == pairs
    assert set(circuit.terminals) == {Terminal("ocs0", side, at) for side, at in terminals}
    assert circuit is fabric.circuit(Port("h0", 0, 1), Port("h1", 0, 0))


@pytest.mark.parametrize("kind", [CircuitKind.DUPLEX, CircuitKind.BIDIRECTIONAL])
def test_a_circuit_without_direction_is_the_same_from_both_ends(kind: CircuitKind) -> None:
    fabric = make_fabric(3, kind=kind)
    a, b = Port("h0", 0, 1), Port("h1", 0, 0)
    assert fabric.circuit(b, a) is fabric.circuit(a, b)


def test_a_directed_circuit_is_another_one_backwards() -> None:
    fabric = make_fabric(3, kind=CircuitKind.DIRECTED)
    back = fabric.circuit(Port("h1", 0, 0), Port("h0", 0, 1))
    assert back.id == "h1:0:0->h0:0:1"
    assert back.cross_connects == (CrossConnect(2, 1),)


def test_ports_on_different_rails_have_no_circuit() -> None:
    fabric = make_fabric(2, gpus=2)
    with pytest.raises(CoreError, match="share no rail") as refused:
        fabric.circuit(Port("h0", 0, 0), Port("h1", 1, 0))
    assert refused.value.problem is Problem.UNROUTABLE
    assert refused.value.data == {"ports": ["h0:0:0", "h1:1:0"]}


def test_rails_may_share_a_switch_but_not_a_circuit() -> None:
    fabric = make_fabric(2, gpus=2, one_switch=True)  # rail 1 begins at position 4
    assert fabric.attachment(Port("h0", 1, 0)).position == 4
    assert fabric.circuit_of("ocs", CrossConnect(0, 4)) is None
    with pytest.raises(CoreError, match="share no rail"):
        fabric.circuit(Port("h0", 0, 0), Port("h0", 1, 0))


def test_a_cross_connect_is_named_by_its_circuit_if_both_ends_are_ours() -> None:
    fabric = make_fabric(2)  # ports on 0 to 3, and two spare positions
    circuit = fabric.circuit_of("ocs0", CrossConnect(3, 0))
    assert circuit is not None
    assert circuit.id == "h0:0:0--h1:0:1"
    assert fabric.circuit_of("ocs0", CrossConnect(0, 4)) is None
    assert fabric.circuit_of("ocs0", CrossConnect(4, 0)) is None
    assert fabric.port_at("ocs0", 4) is None


def test_a_gpu_knows_its_rail_and_its_terminals() -> None:
    sided, unsided = make_fabric(2, gpus=2), make_fabric(2, kind=CircuitKind.BIDIRECTIONAL)
    assert sided.rail_of("h1", 1) == "rail1"
    assert sided.has_gpu("h1", 1)
    assert not sided.has_gpu("h1", 2)
    assert not sided.has_gpu("h2", 0)
    assert sided.terminals_of("h0", 1) == tuple(
        Terminal("ocs1", side, at) for at in (0, 1) for side in (Side.INGRESS, Side.EGRESS)
    )
    assert unsided.terminals_of("h1", 0) == tuple(Terminal("ocs0", Side.ANY, at) for at in (2, 3))
    assert sided.switch("ocs1").size == 6
