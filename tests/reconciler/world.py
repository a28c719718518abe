"""A small world around the runtime: hosts on one switch, and a store and a switch that tests hold back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from opus_sdn.drivers.base import (
    Applied,
    Description,
    DeviceEvent,
    Observation,
    PortState,
    Refusal,
    TerminalError,
)
from opus_sdn.drivers.event_stream import EventStream
from opus_sdn.drivers.pairs import PortId
from opus_sdn.intent.changes import Batch
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.fabric import (
    Attachment,
    CircuitKind,
    CrossConnect,
    Fabric,
    Port,
    Rail,
    Side,
    Switch,
)
from opus_sdn.intent.model import (
    Arrival,
    CoreSettings,
    Dimension,
    GroupSpec,
    JobSpec,
    Place,
    RankAnswer,
    RankNews,
    Release,
    Stream,
)
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.store.base import UnderWay
from opus_sdn.store.memory import MemoryStore

SWITCH = "ocs0"
APPLIES_MAX = 500
EPOCH = 1_700_000_000.0  # wall-clock seconds of loop time 0


def small_fabric(hosts: int = 3, switches: int = 1) -> Fabric:
    """One GPU slot for each switch on every host, two ports each; rail i on switch i."""
    names = tuple(f"h{i}" for i in range(hosts))
    return Fabric(
        hosts=names,
        gpus_per_host=switches,
        ports_per_gpu=2,
        circuit_kind=CircuitKind.DUPLEX,
        switches=tuple(Switch(f"ocs{i}", "fake", 2 * hosts, sided=True) for i in range(switches)),
        rails=tuple(Rail(f"rail{i}", i, f"ocs{i}", (i,)) for i in range(switches)),
        attachments=tuple(
            Attachment(Port(host, slot, index), f"rail{slot}", f"ocs{slot}", 2 * at + index)
            for slot in range(switches)
            for at, host in enumerate(names)
            for index in (0, 1)
        ),
    )


class HeldStore(MemoryStore):
    """Commits in order, but only as far as the test lets it. `reads` counts calls of its read methods."""

    def __init__(self) -> None:
        super().__init__()
        self.held = False
        self.reads = 0
        self.submitted: list[Batch] = []
        self._waiting: list[tuple[Batch, Future[int]]] = []

    def submit(self, batch: Batch) -> Future[int]:
        self.submitted.append(batch)
        if not self.held:
            return super().submit(batch)
        stored: Future[int] = Future()
        self._waiting.append((batch, stored))
        return stored

    def let_go(self) -> None:
        """Commit everything that waits, and hold nothing back any more."""
        self.held = False
        waiting, self._waiting = self._waiting, []
        for batch, stored in waiting:
            stored.set_result(super().submit(batch).result())

    def lose(self, error: Exception) -> None:
        """Every commit that waits fails."""
        waiting, self._waiting = self._waiting, []
        for _, stored in waiting:
            stored.set_exception(error)

    def snapshot(self):  # type: ignore[no-untyped-def]
        self.reads += 1
        return super().snapshot()

    def events(self, since, limit, job=None, kind=None):  # type: ignore[no-untyped-def]
        self.reads += 1
        return super().events(since, limit, job, kind)


@dataclass
class FakeSwitch:
    """A switch whose answers a test scripts. `applies` and `reads` are the loop times of the calls.

    `behave` is called for every `apply` before the change is made; what it raises, or how long it waits, is
    what the caller sees. `make` False: it says done and changes nothing.
    """

    matching: set[CrossConnect] = field(default_factory=set)
    max_inflight: int = 1
    behave: Callable[[], Awaitable[None]] | None = None
    behave_reading: Callable[[], Awaitable[None]] | None = None
    make: bool = True
    applies: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    closed: bool = False
    told: EventStream = field(default_factory=EventStream)  # what it tells unasked
    dark: dict[CrossConnect, str] = field(default_factory=dict)
    shut: set[int] | None = field(default_factory=set)  # positions; None: it cannot say
    port_reads: list[float] = field(default_factory=list)

    async def describe(self) -> Description:
        return Description("fake", 64, True, self.max_inflight)

    async def read(self) -> Observation:
        self.reads.append(asyncio.get_running_loop().time())
        if self.behave_reading is not None:
            await self.behave_reading()
        return Observation(frozenset(self.matching), "0", dict(self.dark))

    async def ports(self) -> tuple[PortState, ...]:
        self.port_reads.append(asyncio.get_running_loop().time())
        if self.shut is None:
            raise TerminalError("cannot say", Refusal.UNSUPPORTED)
        sides = (Side.INGRESS, Side.EGRESS)
        ports = [PortId(side, position) for side in sides for position in range(64)]
        return tuple(PortState(port, enabled=port.position not in self.shut) for port in ports)

    async def apply(
        self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...], epoch: int
    ) -> Applied:
        self.applies.append(asyncio.get_running_loop().time())
        if len(self.applies) > APPLIES_MAX:  # asked in a busy loop, in which virtual time would stand still
            await forever()
        if self.behave is not None:
            await self.behave()
        if self.make:
            self.change(remove, add)
        return Applied()

    def change(self, remove: Sequence[CrossConnect], add: Sequence[CrossConnect]) -> None:
        assert self.matching.issuperset(remove)
        self.matching.difference_update(remove)
        self.matching.update(add)

    def events(self) -> AsyncIterator[DeviceEvent]:
        return self.told.subscribe()

    async def close(self) -> None:
        self.closed = True


class World:
    """A runtime with one job of one rank per host; `pair-i` is the ring of ranks i and i + 1."""

    def __init__(
        self,
        *,
        hosts: int = 3,
        switch: FakeSwitch | None = None,
        store: MemoryStore | None = None,
        step_deadline_s: float = 5.0,
        deadline_s: float = 1000.0,
        observe_s: float | None = None,
        fabric: Fabric | None = None,
        may_step: Callable[[], bool] = lambda: True,
        under_way: UnderWay | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.hosts = hosts
        self.switch = switch or FakeSwitch()
        self.store = store or MemoryStore()
        self.engine = Engine(fabric or small_fabric(hosts), CoreSettings(), start=1)
        self.runtime = Runtime(
            self.engine,
            self.store,
            {SWITCH: self.switch},
            lambda: EPOCH + loop.time(),
            loop,
            step_deadline_s=step_deadline_s,
            observe_s=observe_s,
            may_step=may_step,
            under_way=under_way,
        )
        self.deadline_s = deadline_s

    async def start(self) -> World:
        """Adopt the switch, and declare and check in the job."""
        await self.runtime.start()
        await self.declare()
        return self

    async def declare(self) -> None:
        places = tuple(Place(f"h{i}", 0) for i in range(self.hosts))
        spec = JobSpec(
            "job", "owner", "nonce", places, (Dimension("dp", self.hosts),), deadline_s=self.deadline_s
        )
        self.engine.put_job(self.runtime.now(), spec)
        groups = [GroupSpec(f"pair-{i}", (i, i + 1), "dp") for i in range(self.hosts - 1)]
        self.engine.check_in(self.runtime.now(), "job", 1, groups)
        await self.runtime.stored()

    def arrive(self, connection: str, n: int, *ranks: int) -> None:
        """These ranks arrive at operation n of a ring."""
        for rank in ranks:
            self.say(RankNews(rank, arrivals=(Arrival(Stream(connection), n),)))

    def release(self, connection: str, n: int, *ranks: int) -> None:
        """These ranks have finished operation n."""
        for rank in ranks:
            self.say(RankNews(rank, releases=(Release(Stream(connection), n),)))

    def say(self, news: RankNews) -> None:
        self.engine.news(self.runtime.now(), "job", 1, 1, [news])
        self.runtime.changed()

    def answer(self, rank: int) -> RankAnswer:
        return self.engine.answer("job", 1, rank, 0)

    def granted(self, rank: int) -> list[tuple[str, int]]:
        """What the rank would be told it was granted."""
        return [(grant.stream.connection, grant.n) for grant in self.answer(rank).grants]

    async def settle(self, turns: int = 20) -> None:
        """Let everything run that can run without time going on."""
        for _ in range(turns):
            await asyncio.sleep(0)


async def forever() -> None:
    """A device that never answers."""
    await asyncio.Event().wait()


def failing(*errors: Exception | None) -> Callable[[], Awaitable[None]]:
    """Raise these in turn, None for a success; successes after the last."""
    left = list(errors)

    async def behave() -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return behave
