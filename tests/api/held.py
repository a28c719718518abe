"""Parts of a controller that a test holds back, in the controller's own thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from opus_sdn.api import fabric_keeper
from opus_sdn.drivers.base import Applied, Observation
from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch
from opus_sdn.intent.changes import Batch
from opus_sdn.intent.fabric import CrossConnect, Switch
from opus_sdn.store.base import EventRecord, Snapshot
from opus_sdn.store.memory import MemoryStore


class HeldStore(MemoryStore):
    """Holds commits back between `hold` and `let_go`; counts the calls of its read methods."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.waiting: list[tuple[Batch, Future[int]]] = []
        self._holding = False
        self._lock = threading.Lock()

    def hold(self) -> None:
        self._holding = True

    def let_go(self) -> None:
        with self._lock:
            self._holding = False
            for batch, stored in self.waiting:
                stored.set_result(super().submit(batch).result())
            self.waiting.clear()

    def lose(self, error: Exception) -> None:
        """What waits, and everything after it, fails."""
        with self._lock:
            for _, stored in self.waiting:
                stored.set_exception(error)
            self.waiting.clear()

    def submit(self, batch: Batch) -> Future[int]:
        with self._lock:
            if not self._holding:
                return super().submit(batch)
            stored: Future[int] = Future()
            self.waiting.append((batch, stored))
            return stored

    def snapshot(self) -> Snapshot:
        self.reads += 1
        return super().snapshot()

    def events(self, *args: Any, **more: Any) -> list[EventRecord]:
        if not sys._getframe(1).f_code.co_filename.endswith(
            "reconciler/runs.py"
        ):  # that one writes the run files
            self.reads += 1
        return super().events(*args, **more)


class HeldDriver(EmulatedDriver):
    """An emulated switch whose answers wait for the test."""

    open_at_first = True

    def __init__(self, device: EmulatedSwitch) -> None:
        super().__init__(device)
        self.may_read = threading.Event()
        self.may_apply = threading.Event()
        if self.open_at_first:
            self.may_read.set()
        self.may_apply.set()
        self.applied = 0
        self.readings = 0

    async def read(self) -> Observation:
        self.readings += 1
        await _passing(self.may_read)
        return await super().read()

    async def apply(
        self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...], epoch: int
    ) -> Applied:
        await _passing(self.may_apply)
        applied = await super().apply(remove, add, epoch)
        self.applied += 1
        return applied


async def _passing(gate: threading.Event) -> None:
    while not gate.is_set():  # noqa: ASYNC110  # opened from the test's thread
        await asyncio.sleep(0.002)


@contextmanager
def held_drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, HeldDriver]]:
    """Switches of controllers started inside the block get a held driver; by name."""
    made: dict[str, HeldDriver] = {}

    def open_held(switch: Switch) -> HeldDriver:
        made[switch.name] = HeldDriver(EmulatedSwitch(switch))
        return made[switch.name]

    with monkeypatch.context() as patch:
        patch.setattr(fabric_keeper, "open_driver", open_held)
        yield made
        for driver in made.values():
            driver.may_read.set()
            driver.may_apply.set()
