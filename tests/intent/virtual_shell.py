"""The shell around the core without threads: a store that writes later, switches that take their time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from opus_sdn.intent.changes import Batch, StepPlanned
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.fabric import CrossConnect
from tests.intent.modes import Mode
from tests.intent.virtual_switch import Change, RefusedError, ViolationError, VirtualSwitch
from tests.intent.watch import Watch

Event = tuple[object, ...]


@dataclass(slots=True)
class _Device:
    """One switch: planned steps, and what was read back and is not settled yet."""

    switch: VirtualSwitch
    queue: deque[int] = field(default_factory=deque)
    read: tuple[list[Change], frozenset[CrossConnect]] | None = None


class VirtualShell:
    """Pumps the core, writes its batches in order, and carries out its steps, one event at a time."""

    def __init__(
        self, engine: Engine, watch: Watch, mode: Mode, rng: random.Random, clock: Callable[[], float]
    ) -> None:
        self._engine, self._watch, self._mode, self._rng, self._clock = engine, watch, mode, rng, clock
        self._devices = {name: _Device(switch) for name, switch in watch.switches.items()}
        self._store: deque[Batch] = deque()
        self.pump_due = True

    def enabled(self) -> Iterator[Event]:
        """What can happen next here."""
        if self.pump_due:
            yield ("pump",)
        if self._store:
            yield ("commit",)
        for name, device in self._devices.items():
            changes = device.switch.changes
            if device.queue and len(changes) < self._mode.steps_at_once:
                yield ("start", name)
            yield from (("optics", name, change.step.id) for change in changes if change.optics)
            if device.read is not None:
                yield ("settle", name)
            elif any(not change.optics for change in changes):
                yield ("read", name)

    def do_pump(self) -> None:
        """The core decides all that can be decided now."""
        self.pump_due = False
        effects = self._engine.pump(self._clock())
        if effects.batch is None:
            assert not effects.steps
            return
        self._watch.decided(effects.batch)
        self._store.append(effects.batch)

    def do_commit(self) -> None:
        """The oldest batch is stored."""
        batch = self._store.popleft()
        self._watch.stored(batch.id)
        self._engine.committed(batch.id)
        for change in batch.changes:
            if isinstance(change, StepPlanned):
                self._devices[change.switch].queue.append(change.step)

    def do_start(self, name: str) -> None:
        """The oldest planned step of a switch starts, if the core still wants it."""
        device = self._devices[name]
        step = self._engine.start_step(self._clock(), device.queue.popleft())
        self.pump_due = True
        if step is None:
            return
        self._watch.started(step)
        works = self._rng.random() >= self._mode.device_faults
        happened = works or self._rng.random() < 0.5
        try:
            device.switch.begin(Change(step, works=works, happened=happened))
        except RefusedError as error:
            raise ViolationError("refused", str(error)) from None

    def do_optics(self, name: str, step: int) -> None:
        """The mirrors of a step stand."""
        switch = self._devices[name].switch
        switch.settle_optics(next(change for change in switch.changes if change.step.id == step))

    def do_read(self, name: str) -> None:
        """The switch is read for every step whose mirrors stand; one reading at a time."""
        device = self._devices[name]
        done = [change for change in device.switch.changes if not change.optics]
        device.read = done, frozenset(device.switch.matching)

    def do_settle(self, name: str) -> None:
        """The core hears what was read."""
        device = self._devices[name]
        assert device.read is not None
        done, matching = device.read
        device.read = None
        for change in done:
            device.switch.changes.remove(change)
            detail = None if change.works else "the device says no"
            self._engine.settle_step(self._clock(), change.step.id, change.works, detail, matching)
        self.pump_due = True
