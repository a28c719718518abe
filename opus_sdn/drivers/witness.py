"""The traffic witness: sees the light of emulated switches and the operations of ranks, and nothing else.

It is told out of band which circuits an operation uses and from when to when, and it watches every change of
the switches. It reads no lock, no intent and no plan, and works out from the cabling itself which
cross-connects a circuit needs, so that an error of the controller cannot hide in what the two share.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from opus_sdn.drivers.pairs import text
from opus_sdn.intent.fabric import Attachment, CircuitKind, CrossConnect, Fabric, Port, Switch, Terminal

VIOLATIONS_KEPT = 1000
NAMES_KEPT = 64  # operations, ranks and circuits that one violation names
OPERATIONS_MAX = 65_536
CIRCUITS_IN_USE_MAX = 262_144
OPERATION_ID_MAX = 256

_SEPARATOR = re.compile(r"--|->")


class WitnessError(ValueError):
    """A report of traffic that makes no sense; nothing was recorded of it."""


class ViolationKind(StrEnum):
    """What must never happen."""

    TRAFFIC_OVER_MISSING_CIRCUIT = "traffic-over-missing-circuit"
    CHANGE_UNDER_TRAFFIC = "change-under-traffic"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must never happen, and who it happened to. `at` = seconds since 1970.

    At most `NAMES_KEPT` operations, ranks and circuits are named; `detail` names the cross-connects.
    """

    kind: ViolationKind
    at: float
    operations: tuple[str, ...]
    ranks: tuple[int, ...]
    circuits: tuple[str, ...]
    detail: str

    def as_json(self) -> dict[str, object]:
        """The form that the line protocol answers with."""
        when = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds")
        return {
            "kind": self.kind.value,
            "at": when.replace("+00:00", "Z"),
            "operations": list(self.operations),
            "ranks": list(self.ranks),
            "circuits": list(self.circuits),
            "detail": self.detail,
        }


class LightChange(Protocol):
    """Terminals whose light goes, the cross-connects that end there and those that come."""

    @property
    def terminals(self) -> frozenset[Terminal]:
        """All that begin to move, or are shut."""
        ...

    @property
    def remove(self) -> tuple[CrossConnect, ...]:
        """What is no longer connected."""
        ...

    @property
    def add(self) -> tuple[CrossConnect, ...]:
        """What will be."""
        ...

    @property
    def epoch(self) -> int:
        """Under which leader it was asked for; 0 where the wire does not say."""
        ...


class LightObserver(Protocol):
    """Who is told when light goes and comes, at the very moment."""

    def change_started(self, switch: WatchedSwitch, transition: LightChange) -> None:
        """These terminals are dark from now on."""
        ...

    def change_finished(self, switch: WatchedSwitch, transition: LightChange) -> None:
        """What was added carries light from now on."""
        ...


class WatchedSwitch(Protocol):
    """A switch whose light can be seen from outside."""

    @property
    def name(self) -> str:
        """As in the fabric."""
        ...

    @property
    def switch(self) -> Switch:
        """As the fabric declares it."""
        ...

    def is_lit(self, pair: CrossConnect) -> bool:
        """Whether light passes from this ingress to this egress right now."""
        ...

    def watch(self, observer: LightObserver) -> None:
        """Tell this observer of every change from now on."""
        ...


@dataclass(frozen=True, slots=True)
class _Path:
    """What one circuit needs inside its switch."""

    circuit: str
    device: WatchedSwitch
    pairs: tuple[CrossConnect, ...]
    terminals: tuple[Terminal, ...]


@dataclass(frozen=True, slots=True)
class _Active:
    rank: int
    paths: tuple[_Path, ...]


class TrafficWitness:
    """Watches the given switches of one fabric. For the thread that drives the switches.

    `operations` counts those ever begun, `abandoned` those whose rank vanished before it said `end`.
    """

    def __init__(
        self, fabric: Fabric, devices: Iterable[WatchedSwitch], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.operations = 0
        self.abandoned = 0
        self.violations_total = 0
        self._fabric = fabric
        self._ports = {attachment.port: attachment for attachment in fabric.attachments}
        self._devices = {device.name: device for device in devices}
        self._clock = clock
        self._violations: list[Violation] = []
        self._active: dict[str, _Active] = {}
        self._circuits_in_use = 0
        self._users: dict[Terminal, set[tuple[str, str]]] = {}  # (operation, circuit)
        for device in self._devices.values():
            device.watch(self)

    @property
    def active(self) -> int:
        """Operations begun and not ended."""
        return len(self._active)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The first `VIOLATIONS_KEPT` violations, oldest first; `violations_total` counts them all."""
        return tuple(self._violations)

    def begin(self, op_id: str, circuits: Sequence[str], rank: int) -> None:
        """Traffic starts: from now until `end` every cross-connect of these circuits is in use.

        A circuit without light at this moment is a violation. Raises WitnessError for an operation that is
        active already, a circuit that the fabric does not have, or one on a switch that is not watched.
        """
        if op_id in self._active:
            raise WitnessError(f"operation {op_id!r} is active already; end it first or use another id")
        paths = tuple(self._path(circuit) for circuit in dict.fromkeys(circuits))
        if len(self._active) >= OPERATIONS_MAX:
            raise WitnessError(f"{OPERATIONS_MAX} operations are active, which is the most; end some first")
        if self._circuits_in_use + len(paths) > CIRCUITS_IN_USE_MAX:
            raise WitnessError(
                f"circuits has {len(paths)} entries with {self._circuits_in_use} in use; "
                f"the most is {CIRCUITS_IN_USE_MAX} together"
            )
        self.operations += 1
        self._active[op_id] = _Active(rank, paths)
        self._circuits_in_use += len(paths)
        for path in paths:
            for terminal in path.terminals:
                self._users.setdefault(terminal, set()).add((op_id, path.circuit))
        self._check_light(op_id, paths, rank)

    def end(self, op_id: str) -> None:
        """The traffic of this operation has stopped. Raises WitnessError when it is not active."""
        active = self._active.pop(op_id, None)
        if active is None:
            raise WitnessError(f"operation {op_id!r} is not active; begin it first")
        self._circuits_in_use -= len(active.paths)
        for path in active.paths:
            for terminal in path.terminals:
                users = self._users[terminal]
                users.discard((op_id, path.circuit))
                if not users:
                    del self._users[terminal]

    def abandon(self, op_id: str) -> None:
        """As `end`, for a rank that is gone: a process that has died sends nothing any more."""
        self.end(op_id)
        self.abandoned += 1

    def report(self) -> dict[str, object]:
        """All of it in the form of the line protocol."""
        return {
            "violations": [violation.as_json() for violation in self._violations],
            "violations_total": self.violations_total,
            "operations": self.operations,
            "active": self.active,
            "abandoned": self.abandoned,
        }

    def change_started(self, switch: WatchedSwitch, transition: LightChange) -> None:
        """Record a violation when anybody's traffic runs through a terminal that begins to move."""
        hit = {user for terminal in transition.terminals for user in self._users.get(terminal, ())}
        if not hit:
            return
        removed = ", ".join(map(text, transition.remove[:NAMES_KEPT])) or "nothing"
        added = ", ".join(map(text, transition.add[:NAMES_KEPT])) or "nothing"
        self._record(
            ViolationKind.CHANGE_UNDER_TRAFFIC,
            {op_id for op_id, _ in hit},
            {circuit for _, circuit in hit},
            f"switch {switch.name} began to remove {removed} and add {added}, epoch {transition.epoch}",
        )

    def change_finished(self, switch: WatchedSwitch, transition: LightChange) -> None:
        """Nothing to find: traffic that began too early was recorded when it began."""

    def _check_light(self, op_id: str, paths: Sequence[_Path], rank: int) -> None:
        dark = [(path, pair) for path in paths for pair in path.pairs if not path.device.is_lit(pair)]
        if not dark:
            return
        named = ", ".join(f"{text(pair)} of switch {path.device.name}" for path, pair in dark[:NAMES_KEPT])
        self._record(
            ViolationKind.TRAFFIC_OVER_MISSING_CIRCUIT,
            {op_id},
            {path.circuit for path, _ in dark},
            f"rank {rank} began without light on {named}",
        )

    def _record(self, kind: ViolationKind, operations: set[str], circuits: set[str], detail: str) -> None:
        self.violations_total += 1
        if len(self._violations) >= VIOLATIONS_KEPT:
            return
        ranks = {self._active[op_id].rank for op_id in operations}
        self._violations.append(
            Violation(
                kind,
                self._clock(),
                tuple(sorted(operations)[:NAMES_KEPT]),
                tuple(sorted(ranks)[:NAMES_KEPT]),
                tuple(sorted(circuits)[:NAMES_KEPT]),
                detail,
            )
        )

    def _path(self, circuit: str) -> _Path:
        """What a circuit needs, worked out from where its two ports are plugged in."""
        first, second = self._ends(circuit)
        if first.switch != second.switch or first.rail != second.rail:
            raise WitnessError(f"circuit {circuit!r} joins ports of two rails, which no switch can")
        device = self._devices.get(first.switch)
        if device is None:
            raise WitnessError(f"circuit {circuit!r} is on switch {first.switch}, which is not watched")
        i, j = first.position, second.position
        pairs = {
            CircuitKind.DUPLEX: (CrossConnect(i, j), CrossConnect(j, i)),
            CircuitKind.BIDIRECTIONAL: (CrossConnect(min(i, j), max(i, j)),),
            CircuitKind.DIRECTED: (CrossConnect(i, j),),
        }[self._fabric.circuit_kind]
        terminals = tuple(t for pair in pairs for t in device.switch.terminals_of(pair))
        return _Path(circuit, device, pairs, terminals)

    def _ends(self, circuit: str) -> tuple[Attachment, Attachment]:
        """The two attachments that a circuit id names; a host name may hold the separator too."""
        separator = "->" if self._fabric.circuit_kind is CircuitKind.DIRECTED else "--"
        for match in _SEPARATOR.finditer(circuit):
            if match.group() != separator:
                continue
            first, second = self._plug(circuit[: match.start()]), self._plug(circuit[match.end() :])
            if first is not None and second is not None and first is not second:
                return first, second
        raise WitnessError(
            f"circuit {circuit!r} is unknown; right would be two different ports of the fabric, "
            f"host:slot:index{separator}host:slot:index"
        )

    def _plug(self, name: str) -> Attachment | None:
        try:
            return self._ports.get(Port.parse(name))
        except ValueError:
            return None
