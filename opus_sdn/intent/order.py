"""In which order complete intents of a job are served, and what stands in the way of each.

Messages before rings, then those whose circuits are up, then age. One that was overtaken too often or for
too long is next and reserves its ports, also against new operations of the connection that is up; after
these come intents whose switch step has begun, and last those that a device does not serve. The order is
total, over whole connections, and the same for every rail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from opus_sdn.intent.changes import IntentState
from opus_sdn.intent.fabric import Circuit, Terminal
from opus_sdn.intent.model import CoreSettings, Pattern
from opus_sdn.intent.streams import Intent

IsUp = Callable[[Circuit], bool]


def in_order(intents: Iterable[Intent], now: float, settings: CoreSettings, is_up: IsUp) -> list[Intent]:
    """Complete intents, first served first."""

    def rank_of(intent: Intent) -> tuple[int, int, int, int]:
        if intent.yields:
            return 3, 0, 0, intent.age
        if overdue(intent, now, settings):
            return 0, 0, 0, intent.age
        if intent.state is IntentState.INSTALLING:
            return 1, 0, 0, intent.age
        ring = intent.connection.pattern is Pattern.RING
        up = all(is_up(circuit) for circuit in intent.connection.circuits)
        return 2, int(ring), int(not up), intent.age

    return sorted(intents, key=rank_of)


def overdue(intent: Intent, now: float, settings: CoreSettings) -> bool:
    """Overtaken as often, or waiting as long, as the settings allow."""
    return intent.overtaken >= settings.overtake_max or now - intent.complete_at >= settings.overtake_s


def conflict(circuits: Sequence[Circuit], others: Sequence[Circuit]) -> bool:
    """Whether a circuit of one shares a terminal with a different circuit of the other."""
    taken = {terminal: circuit.id for circuit in others for terminal in circuit.terminals}
    return any(
        taken.get(terminal, circuit.id) != circuit.id
        for circuit in circuits
        for terminal in circuit.terminals
    )


class Reservations:
    """Terminals that intents served earlier hold while they wait."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[Terminal, tuple[str, Intent]] = {}

    def against(self, circuits: Sequence[Circuit]) -> Intent | None:
        """The earlier intent that a circuit of these conflicts with, if any."""
        for circuit in circuits:
            for terminal in circuit.terminals:
                held = self._held.get(terminal)
                if held is not None and held[0] != circuit.id:
                    return held[1]
        return None

    def add(self, intent: Intent) -> None:
        """The intent waits: its terminals are kept for it."""
        for circuit in intent.connection.circuits:
            for terminal in circuit.terminals:
                self._held.setdefault(terminal, (circuit.id, intent))


def count_overtaking(granted: Intent, waiting: Iterable[Intent]) -> None:
    """Everyone older than `granted` that conflicts with it has been overtaken once more."""
    for other in waiting:
        if other.age < granted.age and conflict(granted.connection.circuits, other.connection.circuits):
            other.overtaken += 1
