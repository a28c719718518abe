"""Where the ports of a declared fabric sit on its switches, and all that does not fit together in it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from opus_sdn.fabric_file.lines import Location
from opus_sdn.intent.fabric import CircuitKind, Port

if TYPE_CHECKING:
    from opus_sdn.fabric_file.spec import FabricSpec, RailSpec, SwitchSpec

PORTS_MAX = 262_144


class Misfit(NamedTuple):
    """What is wrong with the value at a path, and what would be right."""

    at: Location
    message: str


class Layout(StrEnum):
    """Whether a switch joins ingress fibres to egress fibres, or any fibre to any other."""

    SIDED = "sided"
    ANY_TO_ANY = "any_to_any"


LAYOUT_OF = {
    CircuitKind.DUPLEX: Layout.SIDED,
    CircuitKind.BIDIRECTIONAL: Layout.ANY_TO_ANY,
    CircuitKind.DIRECTED: Layout.SIDED,
}


def ports_of(rail: RailSpec, hosts: tuple[str, ...], ports_per_gpu: int) -> Iterator[tuple[Port, int | None]]:
    """Every port of a rail with its switch position, host by host, slot by slot; None = placed nowhere."""
    named = rail.ports
    places = product(hosts, dict.fromkeys(rail.slots), range(ports_per_gpu))
    for number, place in enumerate(places):
        port = Port(*place)
        by_rule = None if rail.first_port is None else rail.first_port + number
        yield port, named.get(str(port), by_rule) if named else by_rule


def misfits_of(spec: FabricSpec) -> Iterator[Misfit]:
    """Everything that does not fit together, with the path of the value that would have to change."""
    hosts = spec.host_names()
    ports = len(hosts) * spec.gpus_per_host * spec.ports_per_gpu
    if ports > PORTS_MAX:
        yield Misfit(
            ("hosts",), f"gives {ports} ports, and a fabric has at most {PORTS_MAX}; split it in several"
        )
        return
    yield from _circuit_misfits(spec)
    slots = list(_slot_misfits(spec))
    yield from slots
    # Where the slots of a rail are wrong, its positions would only say so again in other words.
    wrong = {misfit.at[1] for misfit in slots if len(misfit.at) > 1}
    yield from _position_misfits(spec, hosts, skip=wrong)


def _circuit_misfits(spec: FabricSpec) -> Iterator[Misfit]:
    """What the kind of circuit asks of switches and NICs."""
    wanted = LAYOUT_OF[spec.circuit]
    directed = spec.circuit is CircuitKind.DIRECTED
    for number, switch in enumerate(spec.switches):
        if switch.layout is not wanted:
            fitting = " or ".join(kind for kind, layout in LAYOUT_OF.items() if layout is switch.layout)
            yield Misfit(
                ("switches", number, "layout"),
                f"is {switch.layout}, but {spec.circuit} circuits need a switch that is {wanted}; "
                f"write layout: {wanted}, or circuit: {fitting}",
            )
        elif directed and not switch.directed:
            yield Misfit(
                ("switches", number, "directed"),
                "is false, but directed circuits need a switch that joins the two sides of a position to "
                "different positions; write directed: true if it does, else circuit: duplex",
            )
    if directed and not spec.nics_directed:
        yield Misfit(
            ("nics_directed",),
            "is false, but directed circuits need NICs that send to one port and receive from another; "
            "write nics_directed: true if they do, else circuit: duplex",
        )


def _slot_misfits(spec: FabricSpec) -> Iterator[Misfit]:
    """Every GPU slot is on exactly one rail."""
    last = spec.gpus_per_host - 1
    rail_of: dict[int, str] = {}
    for number, rail in enumerate(spec.rails):
        for place, slot in enumerate(rail.slots):
            if slot > last:
                yield Misfit(
                    ("rails", number, "slots", place),
                    f"is {slot}, but with gpus_per_host: {spec.gpus_per_host} slots end at {last}; "
                    "take it out or raise gpus_per_host",
                )
            elif slot in rail_of:
                yield Misfit(
                    ("rails", number, "slots", place),
                    f"is {slot}, which is on rail {rail_of[slot]!r} already; "
                    "a slot is on one rail, so keep one of the two",
                )
            rail_of.setdefault(slot, rail.name)
    missing = [slot for slot in range(spec.gpus_per_host) if slot not in rail_of]
    if missing:
        yield Misfit(("rails",), f"leave out GPU slots {_listed(missing)}; add them to the slots of a rail")


def _position_misfits(spec: FabricSpec, hosts: tuple[str, ...], skip: set[str | int]) -> Iterator[Misfit]:
    """Every port sits on a position that its switch has, and on one that no other port has."""
    switches = {switch.name: switch for switch in spec.switches}
    taken: dict[str, dict[int, tuple[str, Port]]] = {name: {} for name in switches}
    for number, rail in enumerate(spec.rails):
        switch = switches.get(rail.switch)
        if switch is None:
            yield Misfit(
                ("rails", number, "switch"),
                f"is {rail.switch!r}, which is not declared under switches; known: {_listed(list(switches))}",
            )
            continue
        if number in skip:
            continue
        placed = list(ports_of(rail, hosts, spec.ports_per_gpu))
        yield from _names_that_are_no_ports(spec, number, rail, {str(port) for port, _ in placed})
        nowhere = [str(port) for port, position in placed if position is None]
        if len(nowhere) == len(placed) and not rail.ports:
            free = max(taken[switch.name], default=-1) + 1
            yield Misfit(("rails", number), f"has neither first_port nor ports; add first_port: {free}")
            continue
        if nowhere:
            yield Misfit(
                ("rails", number, "ports"),
                f"leaves out {_listed(nowhere)}; add them, or give first_port too",
            )
        yield from _outside(number, rail, switch, placed)
        yield from _shared(number, rail, switch, placed, taken[switch.name])


def _names_that_are_no_ports(
    spec: FabricSpec, number: int, rail: RailSpec, known: set[str]
) -> Iterator[Misfit]:
    for name in rail.ports:
        if name not in known:
            yield Misfit(
                ("rails", number, "ports", name),
                f"is no port of rail {rail.name!r}; write host:slot:port with a host of the fabric, "
                f"slot {_one_of(rail.slots)} and port {_one_of(range(spec.ports_per_gpu))}",
            )


def _outside(
    number: int, rail: RailSpec, switch: SwitchSpec, placed: list[tuple[Port, int | None]]
) -> Iterator[Misfit]:
    """Positions beyond the switch: one misfit for the rule, one for each port named."""
    beyond = [
        (port, position) for port, position in placed if position is not None and position >= switch.size
    ]
    by_rule = [position for port, position in beyond if str(port) not in rail.ports]
    if by_rule:
        yield Misfit(
            ("rails", number, "first_port"),
            f"is {rail.first_port}, so that the {len(placed)} ports of rail {rail.name!r} reach position "
            f"{max(by_rule)}, but switch {switch.name!r} ends at {switch.size - 1}; give the switch a size "
            f"of {max(by_rule) + 1} or more if it has them, else use another switch or first_port",
        )
    for port, position in beyond:
        if str(port) in rail.ports:
            yield Misfit(
                ("rails", number, "ports", str(port)),
                f"is {position}, but the positions of switch {switch.name!r} are 0 to {switch.size - 1}; "
                "use one of them",
            )


def _shared(
    number: int,
    rail: RailSpec,
    switch: SwitchSpec,
    placed: list[tuple[Port, int | None]],
    taken: dict[int, tuple[str, Port]],
) -> Iterator[Misfit]:
    """Positions that another port has: one misfit per rail for the rule, one for each port named."""
    clashes: dict[tuple[Location, str], list[tuple[int, Port, Port]]] = {}
    before = max(taken, default=-1)
    for port, position in placed:
        if position is None:
            continue
        owner, other = taken.setdefault(position, (rail.name, port))
        if other != port:
            at = ("ports", str(port)) if str(port) in rail.ports else ("first_port",)
            clashes.setdefault((("rails", number, *at), owner), []).append((position, port, other))
    for (where, owner), found in clashes.items():
        position, port, other = found[0]
        more = f" (and {len(found) - 1} more positions)" if len(found) > 1 else ""
        remedy = "move one"
        if where[-1] == "first_port" and owner != rail.name:
            remedy = f"write first_port: {before + 1}"
            if before + 1 + len(placed) > switch.size:
                remedy += f" and give the switch a size of {before + 1 + len(placed)}, or use another switch"
        yield Misfit(
            where,
            f"puts {port} on position {position} of switch {switch.name!r}, where {other} of rail "
            f"{owner!r} is{more}; two ports never share a position: {remedy}",
        )


def _listed(values: list[str] | list[int]) -> str:
    """The first few values, and how many more there are."""
    shown = ", ".join(str(value) for value in values[:8])
    return f"{shown} and {len(values) - 8} more" if len(values) > 8 else shown


def _one_of(values: tuple[int, ...] | range) -> str:
    return " or ".join(str(value) for value in values)
