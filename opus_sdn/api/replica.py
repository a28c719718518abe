"""One of several controller processes on one PostgreSQL database: it follows until it may lead."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable

from opus_sdn.api.following import Following
from opus_sdn.api.term import Term
from opus_sdn.reconciler.backoff import Backoff
from opus_sdn.reconciler.clock import Clock
from opus_sdn.reconciler.leadership import Leadership
from opus_sdn.settings import Settings
from opus_sdn.store.base import Store, StoreError
from opus_sdn.store.lease import open_lease
from opus_sdn.store.rules import DAY_S, Retention
from opus_sdn.store.sql import MayStart, ReadOnlyStore, SqlStore

logger = logging.getLogger(__name__)

FOLLOW_PAUSE_S = (0.1, 2.0)  # a database that cannot be read is tried again


def open_database(
    settings: Settings,
    may_start: MayStart | None = None,
    started: Callable[[int], None] | None = None,
) -> SqlStore:
    """The store that the settings name, see `SqlStore`."""
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
        may_start=may_start,
        started=started,
    )


class Replica:
    """This process among the others; used on one event loop. `address` is the URL that leads to it."""

    def __init__(self, settings: Settings, address: str, clock: Clock) -> None:
        """StoreError when the database is none that several processes can share."""
        self._settings = settings
        self._clock = clock
        self._lease = open_lease(
            settings.database,
            holder=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
            address=settings.advertise or address,
            ttl_s=settings.leader_ttl_s,
            step_deadline_s=settings.step_deadline_s,
        )
        self._leadership = Leadership(self._lease)
        self._following: Following | None = None
        self.holding: asyncio.Task[None] = asyncio.create_task(self._hold())

    def open_store(self) -> Store:
        """The store, whose next start number comes with the lease or not at all. For any thread."""
        return open_database(self._settings, self._lease.take, self._leadership.took)

    def may_step(self) -> bool:
        """Whether a device step may start now."""
        return self._leadership.may_step()

    async def quiet(self) -> None:
        """Return when the steps of an earlier leader have at most our own deadline left."""
        await self._leadership.quiet(self._settings.step_deadline_s)

    async def follow(self) -> Term:
        """What to serve from while another process leads. StoreError when the database cannot be read."""
        store = await asyncio.to_thread(ReadOnlyStore, self._settings.database)
        following = Following(self._settings, store, self._clock, lambda: self._leadership.leader)
        try:
            term = await following.term()
        except BaseException:
            await following.close()
            raise
        self._following = following
        assert term is not None, "at first everything is new"
        return term

    async def may_lead(self, use: Callable[[Term], None]) -> None:
        """Follow, handing on what to serve from, until this process may try to lead."""
        following = asyncio.create_task(self._keep_following(use))
        try:
            await self._leadership.free()
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def stop_following(self) -> None:
        """This process leads, and serves from its own term."""
        following, self._following = self._following, None
        if following is not None:
            await following.close()

    async def leave(self, *, drained: bool) -> None:
        """Lead no longer. `drained`: no device step of ours is under way."""
        await self._leadership.release(drained=drained)
        self.holding.cancel()
        await asyncio.wait({self.holding})
        self.holding = asyncio.create_task(self._hold())

    async def close(self) -> None:
        """Let go of the database."""
        self.holding.cancel()
        await self.stop_following()
        self._leadership.close()

    async def _hold(self) -> None:
        why = await self._leadership.hold()
        logger.warning("this replica leads no longer", extra={"detail": why})

    async def _keep_following(self, use: Callable[[Term], None]) -> None:
        backoff, said = Backoff(*FOLLOW_PAUSE_S), ""
        while self._following is None:
            try:
                use(await self.follow())
            except StoreError as error:
                if str(error) != said:
                    logger.warning("the store cannot be read", extra={"detail": str(error)})
                said = str(error)
                await asyncio.sleep(backoff.failed())
        await self._following.run(use)
