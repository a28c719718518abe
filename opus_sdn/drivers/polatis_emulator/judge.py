"""What a table of circuits becomes by one edit, or why the edit is refused. Judged on the end state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from opus_sdn.drivers.polatis_emulator.layout import PortLayout
from opus_sdn.drivers.polatis_emulator.refusals import RefusalError, Why

Pair = tuple[int, int]


class Busy(Enum):
    """What happens when a port of a new circuit is in another one that the edit does not remove."""

    DISPLACE = auto()  # the other circuit goes
    MOVE = auto()  # an ingress port moves, a busy egress port is refused
    REFUSE = auto()  # refused, unless it is the same circuit
    CREATE = auto()  # refused, the same circuit too


@dataclass(frozen=True, slots=True)
class Edit:
    """One transaction: circuits to make, ports to free (either end), or everything to free first."""

    connect: tuple[Pair, ...] = ()
    disconnect: tuple[int, ...] = ()
    clear: bool = False
    busy: Busy = Busy.DISPLACE

    def first(self, count: int) -> Edit:
        """The same edit, stopped after so many ports freed and circuits made."""
        kept = max(0, count - len(self.disconnect))
        return Edit(self.connect[:kept], self.disconnect[:count], self.clear, self.busy)

    @property
    def length(self) -> int:
        """How many ports it frees and circuits it makes."""
        return len(self.disconnect) + len(self.connect)


def ordered(layout: PortLayout, first: int, second: int, *, strict: bool) -> Pair:
    """The pair with its lower port first. Raises RefusalError for what no table can hold."""
    for port in (first, second):
        if port not in layout.ports:
            raise RefusalError(Why.BAD_PORT, f"Invalid OXC port: {port}", port)
    if not layout.joinable(first, second):
        raise RefusalError(Why.SAME_SIDE, f"Ports {first} and {second} cannot be connected", first, second)
    if first > second and strict:
        raise RefusalError(Why.BAD_PORT, f"Invalid OXC port: {first}", first)
    return (first, second) if first < second else (second, first)


def end_state(
    layout: PortLayout, table: Mapping[int, int], edit: Edit, *, strict: bool = False, last_wins: bool = False
) -> dict[int, int]:
    """The table after the edit, in order of the ingress ports. Raises RefusalError and changes nothing.

    `last_wins`: of two circuits of one edit on the same egress port the later one stays.
    """
    connect = _distinct(layout, edit, strict=strict, last_wins=last_wins)
    after = {} if edit.clear else dict(table)
    holder = {port: pair for pair in after.items() for port in pair}
    for port in edit.disconnect:
        if port not in layout.ports:
            raise RefusalError(Why.BAD_PORT, f"Invalid OXC port: {port}", port)
        if (pair := holder.get(port)) is not None:
            after.pop(pair[0], None)
    new_at = {port: pair for pair in connect for port in pair}
    # All that is in the way goes first: what is left of it at the end is not in anybody's way.
    victims = {holder[port] for port in new_at if port in holder and holder[port][0] in after}
    for victim in sorted(victims):
        _judge_victim(victim, new_at, edit.busy)
        del after[victim[0]]
    after.update(connect)
    return dict(sorted(after.items()))


def _judge_victim(victim: Pair, new_at: Mapping[int, Pair], busy: Busy) -> None:
    """Refuse to touch this circuit of the table unless the edit may."""
    if new_at.get(victim[0]) == victim:
        if busy is Busy.CREATE:
            raise RefusalError(Why.EXISTS, "object already exists", *victim)
        return
    taken = [port for port in victim if port in new_at]
    if busy in (Busy.REFUSE, Busy.CREATE):
        why = Why.EXISTS if busy is Busy.CREATE and victim[0] in taken else Why.IN_USE
        raise RefusalError(why, "one or both ports already in use", *taken)
    # An entry that keeps its ingress port, or loses it to the same edit, is moved and not robbed.
    if busy is Busy.MOVE and victim[0] not in new_at:
        raise RefusalError(Why.IN_USE, "one or both ports already in use", *taken)


def _distinct(layout: PortLayout, edit: Edit, *, strict: bool, last_wins: bool) -> tuple[Pair, ...]:
    """The circuits to make, each port in one of them."""
    made: dict[int, Pair] = {}
    for first, second in edit.connect:
        pair = ordered(layout, first, second, strict=strict)
        clash = next((made[port] for port in pair if port in made and made[port] != pair), None)
        if clash is not None:
            if not last_wins:
                raise RefusalError(
                    Why.DUPLICATE, f"{clash[0]},{clash[1]} and {pair[0]},{pair[1]} use the same port", *pair
                )
            for port in pair:
                if port in made:
                    for gone in made[port]:
                        made.pop(gone, None)
        made.update(dict.fromkeys(pair, pair))
    return tuple(dict.fromkeys(made.values()))
