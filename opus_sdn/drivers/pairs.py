"""Cross-connects and the ports that they hold: one form for each, what cannot be, and who is in the way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from opus_sdn.intent.fabric import CrossConnect, Side, Switch, Terminal


class PortId(NamedTuple):
    """One port of a switch, as the fabric file counts: from 0 on each side, or over all without sides."""

    side: Side
    position: int


def normal(switch: Switch, pair: CrossConnect) -> CrossConnect:
    """One form per connection: without sides 5-2 and 2-5 are the same, and the lower position comes first."""
    if switch.sided or pair.ingress <= pair.egress:
        return pair
    return CrossConnect(pair.egress, pair.ingress)


def misfit(switch: Switch, pair: CrossConnect) -> str | None:
    """Why this switch can never hold this pair, or None when it can."""
    if not (0 <= pair.ingress < switch.size and 0 <= pair.egress < switch.size):
        return f"{text(pair)} is out of range; positions are 0 to {switch.size - 1}"
    if not switch.sided and pair.ingress == pair.egress:
        return (
            f"{text(pair)} joins position {pair.ingress} to itself; an any-to-any switch needs two positions"
        )
    return None


def clash(switch: Switch, pairs: Sequence[CrossConnect]) -> str | None:
    """Two of these pairs that use one terminal, in words, or None when they are a matching."""
    users: dict[Terminal, CrossConnect] = {}
    for pair in pairs:
        for terminal in switch.terminals_of(pair):
            other = users.setdefault(terminal, pair)
            if other is not pair:
                return f"{text(other)} and {text(pair)} both use {place(terminal)}"
    return None


def text(pair: CrossConnect) -> str:
    """A cross-connect as messages write it."""
    return f"{pair.ingress}->{pair.egress}"


def place(port: PortId | Terminal) -> str:
    """A port as messages write it, without the switch's name."""
    side = {Side.INGRESS: "ingress", Side.EGRESS: "egress", Side.ANY: "position"}[port.side]
    return f"{side} {port.position}"


def ports_of(pair: CrossConnect, *, sided: bool) -> tuple[PortId, PortId]:
    """The two ports that one cross-connect holds."""
    if sided:
        return PortId(Side.INGRESS, pair.ingress), PortId(Side.EGRESS, pair.egress)
    return PortId(Side.ANY, pair.ingress), PortId(Side.ANY, pair.egress)


def displaced_by(
    matching: Iterable[CrossConnect],
    remove: Collection[CrossConnect],
    add: Collection[CrossConnect],
    *,
    sided: bool,
) -> tuple[CrossConnect, ...]:
    """Circuits that would have to go for `add` and that nobody asked to remove, in order."""
    wanted = {port for pair in add for port in ports_of(pair, sided=sided)}
    staying = set(matching) - set(remove) - set(add)
    return tuple(sorted(p for p in staying if wanted.intersection(ports_of(p, sided=sided))))
