"""A driver around another one that fails as told, call by call, to show what the controller makes of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    ConflictMode,
    Description,
    DeviceEvent,
    Driver,
    DriverError,
    Observation,
    PortState,
    Refusal,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.pairs import PortId
from opus_sdn.intent.fabric import CrossConnect


class FaultKind(StrEnum):
    """What goes wrong with one call."""

    TRANSIENT = "transient"  # refused, nothing changed, may work later
    TERMINAL = "terminal"  # refused, nothing changed, never works
    ANSWER_LOST = "answer-lost"  # applied, the answer never came
    REQUEST_LOST = "request-lost"  # not applied, an answer never came
    LATE = "late"  # given up by the driver, applied by the device afterwards
    SLOW = "slow"  # works, after a while
    PARTIAL = "partial"  # the first pairs of the list applied, the others not
    LIE = "lie"  # says done, changes nothing
    LOCKED = "locked"  # refused: somebody at the device keeps everybody else from writing
    SILENT = "silent"  # connected, and never answers


READ_FAULTS = frozenset({FaultKind.TRANSIENT, FaultKind.TERMINAL, FaultKind.SLOW, FaultKind.SILENT})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `seconds`: retry-after (transient), wait (slow), time until the device acts (late).

    `pairs` (partial): how many of the removes, then adds are made.
    """

    kind: FaultKind
    seconds: float = 0.0
    pairs: int = 0


class FaultyDriver:
    """Passes calls on to `inner`; the n-th `apply` and the n-th `read` meet the n-th fault of their script.

    None in a script lets the call through; so does the end of the script.
    """

    def __init__(
        self,
        inner: Driver,
        applies: Iterable[Fault | None] = (),
        reads: Iterable[Fault | None] = (),
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.inner = inner
        self._applies = deque(applies)
        self._reads = deque(reads)
        self._sleep = sleep
        self._late: set[asyncio.Task[None]] = set()
        for fault in self._reads:
            if fault is not None and fault.kind not in READ_FAULTS:
                raise ValueError(
                    f"a read cannot meet the fault {fault.kind}; right would be one of "
                    f"{', '.join(sorted(READ_FAULTS))}"
                )

    @property
    def faults_left(self) -> int:
        """Entries of both scripts that no call has met yet."""
        return len(self._applies) + len(self._reads)

    async def describe(self) -> Description:
        """As the inner driver says."""
        return await self.inner.describe()

    async def read(self) -> Observation:
        """As the inner driver says, unless a fault is due."""
        fault = self._reads.popleft() if self._reads else None
        if fault is not None:
            await self._refuse_or_wait(fault)
        return await self.inner.read()

    async def apply(
        self,
        remove: tuple[CrossConnect, ...],
        add: tuple[CrossConnect, ...],
        epoch: int,
        *,
        mode: ConflictMode = ConflictMode.SAFE,
        expect_revision: str | None = None,
    ) -> Applied:
        """As the inner driver does, unless a fault is due. A faulty call is made in `safe` mode."""
        fault = self._applies.popleft() if self._applies else None
        if fault is None:
            return await self.inner.apply(remove, add, epoch, mode=mode, expect_revision=expect_revision)
        if fault.kind is FaultKind.LIE:
            return Applied()
        if fault.kind is FaultKind.REQUEST_LOST:
            raise AmbiguousError("no answer (the request was lost)")
        if fault.kind is FaultKind.ANSWER_LOST:
            await self.inner.apply(remove, add, epoch)
            raise AmbiguousError("no answer (the answer was lost)")
        if fault.kind is FaultKind.LATE:
            task = asyncio.get_running_loop().create_task(self._apply_late(fault.seconds, remove, add, epoch))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise AmbiguousError("no answer (the request is still on its way)")
        if fault.kind is FaultKind.PARTIAL:
            await self.inner.apply(remove[: fault.pairs], add[: max(0, fault.pairs - len(remove))], epoch)
            raise AmbiguousError(f"stopped after {fault.pairs} of {len(remove) + len(add)} cross-connects")
        await self._refuse_or_wait(fault)
        return await self.inner.apply(remove, add, epoch)

    async def ports(self) -> tuple[PortState, ...]:
        """As the inner driver says."""
        return await self.inner.ports()

    async def power(self, ports: Collection[PortId]) -> Mapping[PortId, float]:
        """As the inner driver says."""
        return await self.inner.power(ports)

    async def block(self, ports: Collection[PortId], *, blocked: bool) -> None:
        """As the inner driver does."""
        await self.inner.block(ports, blocked=blocked)

    async def label(self, labels: Mapping[PortId, str]) -> None:
        """As the inner driver does."""
        await self.inner.label(labels)

    def events(self) -> AsyncIterator[DeviceEvent]:
        """Those of the inner driver."""
        return self.inner.events()

    async def close(self) -> None:
        """Close the inner driver; a late request that has not landed yet is lost with the session."""
        await self.inner.close()

    async def _refuse_or_wait(self, fault: Fault) -> None:
        if fault.kind is FaultKind.TRANSIENT:
            raise TransientError("refused for now (injected fault)", fault.seconds)
        if fault.kind is FaultKind.TERMINAL:
            raise TerminalError("refused (injected fault)")
        if fault.kind is FaultKind.LOCKED:
            raise TerminalError("locked at the device (injected fault)", Refusal.LOCKED)
        if fault.kind is FaultKind.SILENT:
            await asyncio.get_running_loop().create_future()
        await self._sleep(fault.seconds)

    async def _apply_late(
        self, seconds: float, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...], epoch: int
    ) -> None:
        await self._sleep(seconds)
        try:
            await self.inner.apply(remove, add, epoch)
        except DriverError:
            # Nobody waits for this answer any more; the device's own log keeps the refusal.
            return
