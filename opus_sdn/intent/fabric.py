"""Hosts, NIC ports, rails, switches and circuits as frozen values. Built once from a fabric file.

A circuit occupies *terminals*: the sides of a switch that its cross-connects use. Two circuits conflict
when they share a terminal and are not the same circuit; this one rule covers all circuit kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from opus_sdn.intent.errors import CoreError, Problem


class CircuitKind(StrEnum):
    """How one link between two ports is made inside a switch."""

    DUPLEX = "duplex"  # two cross-connects, i -> N+j and j -> N+i, made and removed as one
    BIDIRECTIONAL = "bidirectional"  # one cross-connect carries both ways (any-to-any switches)
    DIRECTED = "directed"  # transmit side of one port to the receive side of another


class DriftPolicy(StrEnum):
    """What happens to differences that somebody else made on the ports of a rail."""

    AUTO = "auto"  # what we own is repaired, and a foreign circuit on our ports goes when it is in the way
    OBSERVE = "observe"  # reported only


class Side(StrEnum):
    """Which half of a switch position a terminal is; `any` on switches without sides."""

    INGRESS = "in"
    EGRESS = "out"
    ANY = "any"


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """One NIC port on a rail. `index` 0 is left and 1 right; with four, 0 and 2 are left, 1 and 3 right."""

    host: str
    slot: int
    index: int

    def __str__(self) -> str:
        return f"{self.host}:{self.slot}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Port:
        """Read the form `host:slot:index` that `str(port)` writes; ValueError when it is another form."""
        host, slot, index = text.rsplit(":", 2)
        return cls(host, int(slot), int(index))


class CrossConnect(NamedTuple):
    """One connection inside a switch, by position from 0. On switches without sides ingress < egress."""

    ingress: int
    egress: int


class Terminal(NamedTuple):
    """One side of one position of one switch: what a circuit holds exclusively."""

    switch: str
    side: Side
    position: int


@dataclass(frozen=True, slots=True)
class Switch:
    """One optical circuit switch. `size` = positions from 0; `sided` = ingress and egress are apart."""

    name: str
    driver: str
    size: int
    sided: bool
    options: tuple[tuple[str, object], ...] = ()

    def terminals_of(self, pair: CrossConnect) -> tuple[Terminal, Terminal]:
        """The two terminals that one cross-connect occupies."""
        if self.sided:
            return (
                Terminal(self.name, Side.INGRESS, pair.ingress),
                Terminal(self.name, Side.EGRESS, pair.egress),
            )
        return Terminal(self.name, Side.ANY, pair.ingress), Terminal(self.name, Side.ANY, pair.egress)


@dataclass(frozen=True, slots=True)
class Rail:
    """GPU slots joined by one switch or by a range of its ports."""

    name: str
    index: int
    switch: str
    slots: tuple[int, ...]
    drift: DriftPolicy = DriftPolicy.AUTO
    carrier: bool = False  # grants wait until the hosts report the links of both ports up


@dataclass(frozen=True, slots=True)
class Attachment:
    """Which switch position a NIC port sits on."""

    port: Port
    rail: str
    switch: str
    position: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """One link between two ports, with all that the switch has to hold for it. Equal by `id`."""

    id: str
    rail: str = field(compare=False)
    switch: str = field(compare=False)
    kind: CircuitKind = field(compare=False)
    a: Port = field(compare=False)
    b: Port = field(compare=False)
    cross_connects: tuple[CrossConnect, ...] = field(compare=False)
    terminals: tuple[Terminal, ...] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Fabric:
    """The whole fabric. `hosts` in declaration order; every port is attached to exactly one position."""

    hosts: tuple[str, ...]
    gpus_per_host: int
    ports_per_gpu: int
    circuit_kind: CircuitKind
    switches: tuple[Switch, ...]
    rails: tuple[Rail, ...]
    attachments: tuple[Attachment, ...]
    _by_port: Mapping[Port, Attachment] = field(init=False, compare=False, repr=False)
    _by_position: Mapping[tuple[str, int], Port] = field(init=False, compare=False, repr=False)
    _owned: Mapping[str, frozenset[int]] = field(init=False, compare=False, repr=False)
    _observed_only: Mapping[str, frozenset[int]] = field(init=False, compare=False, repr=False)
    _carrier_rails: frozenset[str] = field(init=False, compare=False, repr=False)
    _switches: Mapping[str, Switch] = field(init=False, compare=False, repr=False)
    _circuits: dict[tuple[Port, Port], Circuit] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_port", {a.port: a for a in self.attachments})
        positions = {(a.switch, a.position): a.port for a in self.attachments}
        object.__setattr__(self, "_by_position", positions)
        owned: dict[str, set[int]] = {switch.name: set() for switch in self.switches}
        observed: dict[str, set[int]] = {switch.name: set() for switch in self.switches}
        observed_rails = {rail.name for rail in self.rails if rail.drift is DriftPolicy.OBSERVE}
        for at in self.attachments:
            owned[at.switch].add(at.position)
            if at.rail in observed_rails:
                observed[at.switch].add(at.position)
        object.__setattr__(self, "_owned", {name: frozenset(found) for name, found in owned.items()})
        only = {name: frozenset(found) for name, found in observed.items()}
        object.__setattr__(self, "_observed_only", only)
        awaiting = frozenset(rail.name for rail in self.rails if rail.carrier)
        object.__setattr__(self, "_carrier_rails", awaiting)
        object.__setattr__(self, "_switches", {s.name: s for s in self.switches})
        object.__setattr__(self, "_circuits", {})

    def attachment(self, port: Port) -> Attachment:
        """Where a port sits; KeyError for a port that the fabric does not have."""
        return self._by_port[port]

    def port_at(self, switch: str, position: int) -> Port | None:
        """The port on a switch position; None where none of ours is."""
        return self._by_position.get((switch, position))

    def positions(self, switch: str) -> frozenset[int]:
        """Positions of a switch that have a port of this fabric."""
        return self._owned[switch]

    def observed_only(self, switch: str) -> frozenset[int]:
        """Positions of a switch on rails whose drift policy is `observe`."""
        return self._observed_only[switch]

    def awaits_carrier(self, rail: str) -> bool:
        """Whether grants on a rail wait for the links of both ports."""
        return rail in self._carrier_rails

    def circuit_of(self, switch: str, pair: CrossConnect) -> Circuit | None:
        """The circuit that a cross-connect is part of; None when it is not between two ports of one rail."""
        a, b = self.port_at(switch, pair.ingress), self.port_at(switch, pair.egress)
        if a is None or b is None or self._by_port[a].rail != self._by_port[b].rail:
            return None
        return self.circuit(a, b)

    def terminals_of(self, host: str, slot: int) -> tuple[Terminal, ...]:
        """Every terminal of every port of one GPU."""
        found: list[Terminal] = []
        for index in range(self.ports_per_gpu):
            at = self._by_port[Port(host, slot, index)]
            sides = (Side.INGRESS, Side.EGRESS) if self._switches[at.switch].sided else (Side.ANY,)
            found += [Terminal(at.switch, side, at.position) for side in sides]
        return tuple(found)

    def has_gpu(self, host: str, slot: int) -> bool:
        """Whether this GPU slot exists and has a port on a rail."""
        return Port(host, slot, 0) in self._by_port

    def switch(self, name: str) -> Switch:
        """One switch by name; KeyError when unknown."""
        return self._switches[name]

    def rail_of(self, host: str, slot: int) -> str:
        """The rail of a GPU: all ports of one GPU are on the same rail."""
        return self._by_port[Port(host, slot, 0)].rail

    def circuit(self, a: Port, b: Port) -> Circuit:
        """The circuit between two ports of one rail (of its switch); the same object for the same ends.

        Duplex and bidirectional circuits have no direction, so (a, b) and (b, a) are one circuit.
        Raises CoreError `unroutable` when the ports sit on different switches.
        """
        found = self._circuits.get((a, b))
        if found is None:
            found = self._make_circuit(a, b)
            self._circuits[(a, b)] = found
        return found

    def _make_circuit(self, a: Port, b: Port) -> Circuit:
        first, second = self._by_port[a], self._by_port[b]
        if first.rail != second.rail:
            raise CoreError(
                Problem.UNROUTABLE,
                f"ports {a} (rail {first.rail}) and {b} (rail {second.rail}) share no rail",
                ports=[str(a), str(b)],
            )
        directed = self.circuit_kind is CircuitKind.DIRECTED
        if not directed and second.position < first.position:
            return self.circuit(b, a)
        i, j = first.position, second.position
        pairs: tuple[CrossConnect, ...] = (CrossConnect(i, j),)
        if self.circuit_kind is CircuitKind.DUPLEX:
            pairs = (CrossConnect(i, j), CrossConnect(j, i))
        switch = self._switches[first.switch]
        return Circuit(
            id=f"{a}->{b}" if directed else f"{a}--{b}",
            rail=first.rail,
            switch=first.switch,
            kind=self.circuit_kind,
            a=a,
            b=b,
            cross_connects=pairs,
            terminals=tuple(t for pair in pairs for t in switch.terminals_of(pair)),
        )
