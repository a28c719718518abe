"""One running controller: store, application and terms of deciding, opened and closed together.

When the store is lost its term is over: nothing that would be decided after it could be promised. The process
stays, opens the store anew as soon as that works, and begins another term, to which the ranks re-assert what
they hold. Meanwhile every request that needs a decision is told to come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fastapi import FastAPI

from opus_sdn.api.app import create_app, use_term
from opus_sdn.api.fabric_keeper import Drivers
from opus_sdn.api.term import StartError, Term, open_term
from opus_sdn.api.witness import Witness
from opus_sdn.fabric_file import FabricFileError
from opus_sdn.intent.errors import CoreError
from opus_sdn.reconciler.backoff import Backoff
from opus_sdn.reconciler.clock import Clock, steady_clock
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.settings import Settings
from opus_sdn.store.base import Store, StoreError
from opus_sdn.store.rules import DAY_S, Retention
from opus_sdn.store.sql import SqlStore

__all__ = ["Controller", "StartError"]

logger = logging.getLogger(__name__)

# A lost store is opened again at once and then at least every 2 s: ranks that hold something fence themselves
# when they are not answered for half a lease.
REOPEN_PAUSE_S = (0.05, 2.0)

OpenStore = Callable[[], Store]


class Controller:
    """`open` it, `start` it, serve `app`, `close` it. All on one event loop."""

    def __init__(
        self,
        settings: Settings,
        open_store: OpenStore,
        clock: Clock,
        store: Store,
        drivers: Drivers,
        witness: Witness | None,
        term: Term,
    ) -> None:
        self.app: FastAPI = create_app(settings, term)
        self._settings = settings
        self._open_store = open_store
        self._clock = clock
        self._store = store
        self._drivers = drivers
        self._witness = witness
        self._term = term
        self._ready = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def runtime(self) -> Runtime:
        """That of the newest term."""
        return self._term.runtime

    @property
    def witness_address(self) -> str | None:
        """Where the traffic witness listens, as host:port; None when there is none."""
        return self._witness.address if self._witness is not None else None

    @classmethod
    async def open(
        cls,
        settings: Settings,
        *,
        store: Store | None = None,
        open_store: OpenStore | None = None,
        clock: Clock | None = None,
    ) -> Controller:
        """Take over the store and get everything ready; no switch is touched. Raises StartError.

        `open_store` opens the store, at the start and again after it was lost; without it that is the
        database of the settings, or `store`, as it is. `clock`: the machine's. Given in tests.
        """
        clock = clock or steady_clock()
        if open_store is None:
            given = store
            open_store = (lambda: given) if given is not None else lambda: _database(settings)
        try:
            held = await asyncio.to_thread(open_store)
        except StoreError as error:
            raise StartError(str(error)) from None
        drivers = Drivers()
        witness = Witness(settings.host) if settings.witness else None
        try:
            term = await open_term(settings, held, drivers, witness, clock)
        except (StoreError, FabricFileError, CoreError) as error:
            await asyncio.to_thread(held.close)
            raise StartError(error.detail if isinstance(error, CoreError) else str(error)) from None
        return cls(settings, open_store, clock, held, drivers, witness, term)

    async def start(self) -> None:
        """Read every switch and begin to decide; returns when ready."""
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

    async def close(self) -> None:
        """Let the device steps in flight end and close everything; the circuits stay as they are."""
        self.refuse_work()
        if self._keeping is not None:
            await asyncio.wait({self._keeping})
        await self._term.runtime.end()
        # While a rank has not said yet what it holds, this start knows no more than the store did.
        clean = not any(job.in_doubt for job in self._term.runtime.engine.state.active.values())
        await asyncio.to_thread(self._store.close, clean=clean)
        await self._drivers.close()
        if self._witness is not None:
            await self._witness.close()

    async def _keep(self) -> None:
        """Begin a new term whenever one is over because the store was lost."""
        while True:
            starting = asyncio.create_task(self._begin(self._term))
            try:
                await self._term.runtime.store_lost.wait()
                await self._term.runtime.end()
            finally:
                starting.cancel()
            await asyncio.to_thread(self._store.close)
            self._term = await self._next_term()
            use_term(self.app, self._term)

    async def _begin(self, term: Term) -> None:
        await term.runtime.start()
        self._ready.set()

    async def _next_term(self) -> Term:
        """Open the store and a term on it, however often that has to be tried."""
        backoff, said = Backoff(*REOPEN_PAUSE_S), ""
        while True:
            try:
                self._store = await asyncio.to_thread(self._open_store)
                try:
                    return await open_term(
                        self._settings, self._store, self._drivers, self._witness, self._clock
                    )
                except BaseException:
                    await asyncio.to_thread(self._store.close)
                    raise
            except (StoreError, FabricFileError, CoreError) as error:
                if str(error) != said:
                    logger.warning("the store cannot be used yet", extra={"detail": str(error)})
                said = str(error)
            except Exception:
                logger.exception("no new term could be opened")
            await asyncio.sleep(backoff.failed())


def _database(settings: Settings) -> Store:
    return SqlStore(
        settings.database,
        retention=Retention(
            events_max=settings.events_kept_max,
            events_age_s=settings.events_kept_days * DAY_S,
            jobs_max=settings.jobs_kept_max,
            steps_max=settings.steps_kept_max,
        ),
        queue_max=settings.store_queue_max,
        reconnect_s=settings.store_reconnect_s,
    )
