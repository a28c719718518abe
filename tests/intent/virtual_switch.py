"""Virtual optical switches, and a witness of the light that knows nothing of the controller's locks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from opus_sdn.intent.fabric import Circuit, CrossConnect, Fabric
from opus_sdn.intent.switches import Step
from tests.intent.worlds import pairs_between


class ViolationError(AssertionError):
    """An invariant does not hold. `rule` names it."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class RefusedError(Exception):
    """The device does not take a request; nothing was changed."""


@dataclass(slots=True)
class Change:
    """A request that the device has taken. `optics` = the mirrors still move."""

    step: Step
    optics: bool = True
    works: bool = True  # False: the device says that it failed
    happened: bool = True  # False: and nothing was changed


@dataclass(slots=True)
class VirtualSwitch:
    """The matching that a device holds, and the changes on their way. `sided` as the core has it."""

    name: str
    size: int
    sided: bool
    matching: set[CrossConnect] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)
    writes: int = 0

    def sides(self, pairs: Iterable[CrossConnect]) -> list[tuple[str, int]]:
        """The fibres that cross-connects occupy, one entry for each use."""
        if self.sided:
            return [side for i, j in pairs for side in (("in", i), ("out", j))]
        return [("any", end) for pair in pairs for end in pair]

    def moving(self) -> set[tuple[str, int]]:
        """Fibres whose mirrors move."""
        return {
            side
            for change in self.changes
            if change.optics
            for side in self.sides(change.step.remove + change.step.add)
        }

    def begin(self, change: Change) -> None:
        """Take a request, removes before adds: what is removed is dark from now on."""
        step = change.step
        absent = [pair for pair in step.remove if pair not in self.matching]
        kept = self.matching - set(step.remove)
        after = self.sides([*kept, *step.add])
        if absent:
            raise RefusedError(f"{self.name}: remove of {absent}, which are not there")
        if len(set(after)) < len(after):
            raise RefusedError(f"{self.name}: add of {list(step.add)} on busy fibres, holding {sorted(kept)}")
        if any(not 0 <= position < self.size for _, position in after):
            raise RefusedError(f"{self.name}: add of {list(step.add)} outside of 0 to {self.size - 1}")
        if set(self.sides(step.remove + step.add)) & self.moving():
            raise RefusedError(f"{self.name}: step {step.id} asks for fibres that still move")
        self.writes += 1
        self.changes.append(change)
        if change.happened:
            self.matching = kept

    def settle_optics(self, change: Change) -> None:
        """The mirrors stand: what was added carries light."""
        change.optics = False
        if change.happened:
            self.matching |= set(change.step.add)

    def assert_partial_matching(self) -> None:
        """I2, as the device sees it."""
        used = self.sides(self.matching)
        if len(set(used)) < len(used):
            raise ViolationError("I2", f"{self.name} holds {sorted(self.matching)}: a fibre is used twice")


class Witness:
    """Which operation of which rank uses which circuits right now, told by the ranks themselves."""

    def __init__(self, fabric: Fabric, switches: dict[str, VirtualSwitch]) -> None:
        self._fabric = fabric
        self._switches = switches
        self._needs: dict[str, tuple[str, frozenset[CrossConnect]]] = {}
        self._active: dict[Hashable, tuple[Circuit, ...]] = {}

    def needs(self, circuit: Circuit) -> tuple[str, frozenset[CrossConnect]]:
        """The switch and the pairs that a circuit between these two ports takes."""
        found = self._needs.get(circuit.id)
        if found is None:
            found = self._needs[circuit.id] = pairs_between(self._fabric, circuit.a, circuit.b)
        return found

    def is_lit(self, circuit: Circuit) -> bool:
        """Whether light goes both ways through a circuit, and none of its mirrors moves."""
        switch, pairs = self.needs(circuit)
        device = self._switches[switch]
        return pairs <= device.matching and not set(device.sides(pairs)) & device.moving()

    def begin(self, use: Hashable, circuits: tuple[Circuit, ...]) -> None:
        """Traffic of one rank begins."""
        for circuit in circuits:
            if not self.is_lit(circuit):
                raise ViolationError("I1", f"{use} sends over circuit {circuit.id}, which is not there")
        self._active[use] = circuits

    def end(self, use: Hashable) -> None:
        """Traffic of one rank has ended, or its process has."""
        self._active.pop(use, None)

    def begin_step(self, step: Step) -> None:
        """The device is about to be changed."""
        device = self._switches[step.switch]
        touched = set(device.sides(step.remove + step.add))
        for use, circuits in self._active.items():
            for circuit in circuits:
                switch, pairs = self.needs(circuit)
                if switch == step.switch and touched & set(device.sides(pairs)):
                    detail = f"step {step.id} changes circuit {circuit.id} under the traffic of {use}"
                    raise ViolationError("I1", detail)

    @property
    def active(self) -> int:
        """How many operations are on their way."""
        return len(self._active)
