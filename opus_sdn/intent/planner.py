"""Desired x observed x locks -> an immutable plan of one switch. Pure; the executor has no choices left.

Wants come in the job's order. A want that cannot go yet reserves its terminals, so that no later want takes
them (bounded overtaking depends on it). Only what is in the way is removed, and a duplex circuit always as
a whole; idle circuits elsewhere stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from opus_sdn.intent.fabric import Circuit, CrossConnect, Switch, Terminal
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.standing import Bar

# Obstacles that go away only when somebody does something at the device.
LASTING = frozenset({Reason.FOREIGN, Reason.CONTENDED, Reason.DARK, Reason.PORT_FAILED})


@dataclass(frozen=True, slots=True)
class SwitchFacts:
    """What is known of a switch at the moment of planning. `holder` names the cross-connect on a terminal.

    `live`: the circuit that carries traffic on a terminal. `kept`: pairs that somebody else made and that are
    never removed. `held_off`: pairs that are not to be made now, and why. `dark`: pairs that are there and
    pass no light, and why.
    """

    switch: Switch
    generation: int
    holder: Mapping[Terminal, CrossConnect]
    moving: Collection[Terminal]
    live: Mapping[Terminal, Circuit]
    owned: Collection[int]  # positions with a port of this fabric; nothing else is ever touched
    graced: Collection[Terminal] = ()  # a rank here may hold what is not known: nothing is removed
    kept: Collection[CrossConnect] = ()
    held_off: Mapping[CrossConnect, Because] = field(default_factory=dict)
    dark: Mapping[CrossConnect, str] = field(default_factory=dict)
    barred: Mapping[Terminal, Bar] = field(default_factory=dict)  # closed by an operator, or broken


@dataclass(frozen=True, slots=True)
class Want:
    """One intent's circuits on this switch; `clear`: pairs to take down as well, as far as nobody minds.

    One that `yields` reserves only what is being made for it.
    """

    key: str
    circuits: tuple[Circuit, ...]
    clear: tuple[CrossConnect, ...] = ()
    yields: bool = False


@dataclass(frozen=True, slots=True)
class Blocked:
    """A circuit that cannot be made yet, and why."""

    key: str
    circuit: str
    because: Because


@dataclass(frozen=True, slots=True)
class Plan:
    """One bulk transaction (removes, then adds) and what stays blocked. Empty when nothing can be done."""

    switch: str
    generation: int
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    causes: tuple[str, ...]
    blocked: tuple[Blocked, ...]


def is_up(facts: SwitchFacts, circuit: Circuit) -> bool:
    """Every cross-connect is observed, passes light, and none of its terminals is moving."""
    if any(terminal in facts.moving for terminal in circuit.terminals):
        return False
    return not _absent(facts, circuit) and not any(pair in facts.dark for pair in circuit.cross_connects)


def plan(facts: SwitchFacts, wants: Sequence[Want], chosen: Collection[str] | None = None) -> Plan:
    """Plan every want in order: start what is free, leave the rest blocked with its reason.

    `chosen`: names of the wants that this plan is for; the others keep their place in the order, no more.
    """
    reserved: dict[Terminal, tuple[str, str]] = {}
    remove: dict[CrossConnect, None] = {}
    add: dict[CrossConnect, None] = {}
    causes: dict[str, None] = {}
    blocked: list[Blocked] = []
    for want in wants:
        mine = chosen is None or want.key in chosen
        hopeless = _hopeless(facts, want) if mine and want.yields else None
        for circuit in want.circuits:
            because, begun = _closed(facts, circuit), False
            if because is not None:  # it will not go, and keeps no port from those that may
                if mine and not is_up(facts, circuit):
                    blocked.append(Blocked(want.key, circuit.id, because))
                continue
            if mine and not is_up(facts, circuit):
                victims = victims_of(facts, circuit)
                because = _obstacle(facts, circuit, victims, reserved) or (hopeless if victims else None)
                if because is None:
                    remove.update(dict.fromkeys(victims))
                    add.update(dict.fromkeys(_absent(facts, circuit)))
                    causes[want.key] = None
                    begun = True
                else:
                    blocked.append(Blocked(want.key, circuit.id, because))
            if begun or not want.yields:
                for terminal in circuit.terminals:
                    reserved.setdefault(terminal, (circuit.id, want.key))
        for pair in want.clear if mine else ():
            if pair in remove or facts.holder.get(facts.switch.terminals_of(pair)[0]) != pair:
                continue
            because = _why_stays(facts, pair, reserved)
            if because is None:
                remove[pair] = None
                causes[want.key] = None
            else:
                blocked.append(Blocked(want.key, f"{pair.ingress}->{pair.egress}", because))
    return Plan(facts.switch.name, facts.generation, tuple(remove), tuple(add), tuple(causes), tuple(blocked))


def _hopeless(facts: SwitchFacts, want: Want) -> Because | None:
    """Why one that yields cannot be made whole however long it waits: then it takes nothing from others.

    Two of these would else take each other's circuits down for ever.
    """
    missing = (circuit for circuit in want.circuits if not is_up(facts, circuit))
    found = (
        _closed(facts, circuit) or _obstacle(facts, circuit, victims_of(facts, circuit), {})
        for circuit in missing
    )
    return next((because for because in found if because is not None and because.reason in LASTING), None)


def victims_of(facts: SwitchFacts, circuit: Circuit) -> tuple[CrossConnect, ...]:
    """Cross-connects in the way; both directions of a duplex one, as a new one takes both sides of a port."""
    victims: dict[CrossConnect, None] = {}
    for terminal in circuit.terminals:
        pair = facts.holder.get(terminal)
        if pair is None or pair in circuit.cross_connects:
            continue
        victims[pair] = None
    return tuple(victims)


def _closed(facts: SwitchFacts, circuit: Circuit) -> Because | None:
    """Why the circuit is not to be made at all: a port of it is broken, or an operator's."""
    if not facts.barred:
        return None
    bars = (facts.barred.get(terminal) for terminal in circuit.terminals)
    return next((bar.because for bar in bars if bar is not None and bar.circuit != circuit), None)


def _why_stays(
    facts: SwitchFacts, pair: CrossConnect, reserved: Mapping[Terminal, tuple[str, str]]
) -> Because | None:
    """Why a pair that is there is not taken down: somebody else's, moving, in use, or reserved."""
    foreign = _foreign(facts, pair)
    if foreign is not None:
        return foreign
    for terminal in facts.switch.terminals_of(pair):
        if terminal in facts.moving:
            return _moving(terminal)
        if terminal in facts.live:
            return _locked(terminal)
        if terminal in facts.graced:
            return in_grace(terminal)
        if terminal in reserved:
            key = reserved[terminal][1]
            return Because(Reason.RESERVED, f"{key} goes first", {"for": key})
    return None


def _moving(terminal: Terminal) -> Because:
    detail = f"position {terminal.position} of {terminal.switch} is moving"
    return Because(Reason.MOVING, detail, {"switch": terminal.switch, "position": terminal.position})


def _locked(terminal: Terminal) -> Because:
    detail = f"position {terminal.position} of {terminal.switch} carries traffic"
    return Because(Reason.LOCKED, detail, {"switch": terminal.switch, "position": terminal.position})


def _absent(facts: SwitchFacts, circuit: Circuit) -> list[CrossConnect]:
    holder, switch = facts.holder, facts.switch
    return [p for p in circuit.cross_connects if holder.get(switch.terminals_of(p)[0]) != p]


def _obstacle(
    facts: SwitchFacts,
    circuit: Circuit,
    victims: tuple[CrossConnect, ...],
    reserved: Mapping[Terminal, tuple[str, str]],
) -> Because | None:
    """Why the circuit cannot be made now: a foreign pair, ports moving, a want ordered before, or traffic."""
    touched = list(circuit.terminals)
    for pair in victims:
        touched += facts.switch.terminals_of(pair)
        foreign = _foreign(facts, pair)
        if foreign is not None:
            return foreign
    for terminal in touched:
        if terminal in facts.moving:
            return _moving(terminal)
    # Whoever wants a victim to stay has reserved the terminal that it shares with this circuit.
    for terminal in circuit.terminals:
        holder = reserved.get(terminal)
        if holder is not None and holder[0] != circuit.id:
            return Because(Reason.RESERVED, f"{holder[1]} goes first", {"for": holder[1]})
    traffic = _traffic(facts, circuit, victims, touched)
    if traffic is not None:
        return traffic
    return next((facts.held_off[p] for p in _absent(facts, circuit) if p in facts.held_off), None) or next(
        (_no_light(facts, pair) for pair in circuit.cross_connects if pair in facts.dark), None
    )


def _no_light(facts: SwitchFacts, pair: CrossConnect) -> Because:
    name = facts.switch.name
    detail = f"{pair.ingress}->{pair.egress} of {name} is connected, but passes no light: {facts.dark[pair]}"
    return Because(Reason.DARK, detail, {"switch": name, "position": pair.ingress})


def _traffic(
    facts: SwitchFacts, circuit: Circuit, victims: Sequence[CrossConnect], touched: Sequence[Terminal]
) -> Because | None:
    """Traffic in the way, or what may be traffic as far as is known.

    A circuit that was lost under a lock may be made again, and somebody else's pair in its place carries no
    traffic of ours.
    """
    for terminal in touched:
        held = facts.live.get(terminal)
        if held is None or held == circuit:
            continue
        if terminal in circuit.terminals or any(pair in held.cross_connects for pair in victims):
            return _locked(terminal)
    ends = (terminal for pair in victims for terminal in facts.switch.terminals_of(pair))
    graced = next((terminal for terminal in ends if terminal in facts.graced), None)
    return in_grace(graced) if graced is not None else None


def _foreign(facts: SwitchFacts, pair: CrossConnect) -> Because | None:
    """Why a pair in the way is not ours to remove; None when it is."""
    name = facts.switch.name
    outside = next((position for position in pair if position not in facts.owned), None)
    if outside is not None:
        detail = (
            f"{pair.ingress}->{pair.egress} of {name} is in the way, and position {outside} is not a "
            "port of this fabric: whoever made it has to remove it"
        )
        return Because(Reason.FOREIGN, detail, {"switch": name, "position": outside})
    if pair in facts.kept:
        detail = (
            f"{pair.ingress}->{pair.egress} of {name} is in the way, somebody else made it, and the rail's "
            "drift policy is observe: whoever made it has to remove it, or the policy has to become auto"
        )
        return Because(Reason.FOREIGN, detail, {"switch": name, "position": pair.ingress})
    return None


def in_grace(terminal: Terminal) -> Because:
    """The reason while a circuit may carry traffic of a rank that was not heard since a restart."""
    return Because(
        Reason.GRACE,
        f"position {terminal.position} of {terminal.switch} belongs to a job whose ranks have not all said, "
        "since the controller was restarted, what they hold",
        {"switch": terminal.switch, "position": terminal.position},
    )
