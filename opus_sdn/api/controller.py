"""One running controller: store, application and terms of deciding, opened and closed together.

When the store is lost its term is over: nothing that would be decided after it could be promised. The process
stays, opens the store anew as soon as that works, and begins another term, to which the ranks re-assert what
they hold. Meanwhile every request that needs a decision is told to come again.

On PostgreSQL several processes do so, and the one that holds the lease has the term. The others serve what is
stored, and say who leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from opus_sdn.api.app import create_app, use_term
from opus_sdn.api.fabric_keeper import Drivers
from opus_sdn.api.replica import Replica, open_database
from opus_sdn.api.simulations.keeper import Simulations
from opus_sdn.api.term import StartError, Term, open_term, require_fabric
from opus_sdn.api.witness import Witness
from opus_sdn.fabric_file import FabricFileError
from opus_sdn.intent.errors import CoreError
from opus_sdn.reconciler.backoff import Backoff
from opus_sdn.reconciler.clock import Clock, steady_clock
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.settings import Settings
from opus_sdn.store.base import Store, StoreError
from opus_sdn.store.lease import LeaseHeldError

__all__ = ["Controller", "StartError"]

logger = logging.getLogger(__name__)

# A lost store is opened again at once and then at least every 2 s: ranks that hold something fence themselves
# when they are not answered for half a lease.
REOPEN_PAUSE_S = (0.05, 2.0)

OpenStore = Callable[[], Store]


class Controller:
    """`open` it, `start` it, serve `app`, `close` it. All on one event loop."""

    app: FastAPI
    _term: Term

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        drivers: Drivers,
        witness: Witness | None,
        open_store: OpenStore,
        replica: Replica | None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._drivers = drivers
        self._witness = witness
        self._open_store = open_store
        self._replica = replica
        self._store: Store | None = None  # of the term, while there is one
        self._ready = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def runtime(self) -> Runtime:
        """That of the newest term."""
        return self._term.runtime

    @property
    def _simulations(self) -> Simulations:
        simulations: Simulations = self.app.state.simulations
        return simulations

    @property
    def witness_address(self) -> str | None:
        """Where the traffic witness listens, as host:port; None when there is none."""
        return self._witness.address if self._witness is not None else None

    @classmethod
    async def open(
        cls,
        settings: Settings,
        *,
        address: str = "",
        store: Store | None = None,
        open_store: OpenStore | None = None,
        clock: Clock | None = None,
    ) -> Controller:
        """Take over the store and get everything ready; no switch is touched. Raises StartError.

        `address` is the URL by which replicas name this one. `open_store` opens the store, at the start and
        again after it was lost; without it that is the database of the settings, or `store`, as it is.
        `clock`: the machine's. Given in tests.
        """
        clock = clock or steady_clock()
        replica = None
        if open_store is None and store is None:
            try:
                await asyncio.to_thread(require_fabric, settings)
            except FabricFileError as error:
                raise StartError(str(error)) from None
        if open_store is None and store is not None:
            given = store
            open_store = lambda: given  # noqa: E731
        elif open_store is None and settings.replicated:
            try:
                replica = Replica(settings, address, clock)
            except StoreError as error:
                raise StartError(str(error)) from None
            open_store = replica.open_store
        elif open_store is None:
            open_store = lambda: open_database(settings)  # noqa: E731
        witness = Witness(settings.host) if settings.witness else None
        made = cls(settings, clock, Drivers(), witness, open_store, replica)
        try:
            term = await (made._open_term() if replica is None else replica.follow())
        except (StoreError, FabricFileError, CoreError) as error:
            if replica is not None:
                await replica.close()
            raise StartError(error.detail if isinstance(error, CoreError) else str(error)) from None
        made._term = term
        made.app = create_app(settings, term)
        return made

    async def start(self) -> None:
        """Read every switch and begin to decide, or follow who does; returns when ready."""
        self._keeping = asyncio.create_task(self._keep())
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({ready, self._keeping}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._keeping.done() and not self._keeping.cancelled():
            self._keeping.result()

    def refuse_work(self) -> None:
        """The beginning of `close`, for a server that first has to answer everybody who waits."""
        if self._keeping is not None:
            self._keeping.cancel()
        self._term.runtime.refuse_work()
        self._simulations.refuse_work()

    async def close(self) -> None:
        """Let the device steps in flight end and close everything; the circuits stay as they are."""
        self.refuse_work()
        if self._keeping is not None:
            await asyncio.wait({self._keeping})
        await self._simulations.close()
        await self._end_term()
        if self._replica is not None:
            await self._replica.close()
        await self._drivers.close()
        if self._witness is not None:
            await self._witness.close()

    async def _keep(self) -> None:
        """Begin a new term whenever one is over, as soon as there may be one."""
        while True:
            if self._store is None:
                self._use(await self._next_term())
                if self._replica is not None:
                    await self._replica.stop_following()
            starting = asyncio.create_task(self._begin(self._term))
            try:
                await self._over()
            finally:
                starting.cancel()
            await self._end_term()

    async def _over(self) -> None:
        """Return when the term is over: its store is lost, or this process does not lead any more."""
        lost = asyncio.create_task(self._term.runtime.store_lost.wait())
        ends: set[asyncio.Task[Any]] = {lost}
        if self._replica is not None:
            ends.add(self._replica.holding)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()

    async def _begin(self, term: Term) -> None:
        if self._replica is not None and term.unsettled:
            await self._replica.quiet()
        await term.runtime.start()
        self._ready.set()

    async def _end_term(self) -> None:
        drained = await self._term.runtime.end()
        if self._store is not None:
            # While a rank has not said yet what it holds, this start knows no more than the store did.
            clean = not any(job.in_doubt for job in self._term.runtime.engine.state.active.values())
            await asyncio.to_thread(self._store.close, clean=clean)
            self._store = None
            if self._replica is not None:
                await self._replica.leave(drained=drained)

    def _use(self, term: Term) -> None:
        self._term = term
        use_term(self.app, term)

    async def _next_term(self) -> Term:
        """Open the store and a term on it, however often that has to be tried."""
        backoff, said = Backoff(*REOPEN_PAUSE_S), ""
        while True:
            if self._replica is not None:
                self._ready.set()
                await self._replica.may_lead(self._use)
            try:
                return await self._open_term()
            except LeaseHeldError:
                continue
            except (StoreError, FabricFileError, CoreError) as error:
                if str(error) != said:
                    logger.warning("the store cannot be used yet", extra={"detail": str(error)})
                said = str(error)
            except Exception:
                logger.exception("no new term could be opened")
            await asyncio.sleep(backoff.failed())

    async def _open_term(self) -> Term:
        store = await asyncio.to_thread(self._open_store)
        try:
            term = await open_term(
                self._settings, store, self._drivers, self._witness, self._clock, may_step=self._may_step
            )
        except BaseException:
            await asyncio.to_thread(store.close, clean=False)
            if self._replica is not None:
                await self._replica.leave(drained=True)
            raise
        self._store = store
        return term

    def _may_step(self) -> bool:
        return self._replica is None or self._replica.may_step()
