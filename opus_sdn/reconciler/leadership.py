"""Which of several replicas decides: the one that holds the lease, and for how long it may rely on that.

The lease is renewed every third of its time. A leader that could not renew it for two thirds of that time
leads no longer, by its own clock, whatever the database would say: the last third is the margin between the
clocks. It starts a device step only before that, so a step has passed its deadline when the lease has run out
and the longest deadline of a step after that. A successor that finds steps of which nobody knows the end
waits for that moment before it reads the switches; all others are known to have ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from opus_sdn.store.base import StoreError
from opus_sdn.store.lease import LeaseRecord

logger = logging.getLogger(__name__)
T = TypeVar("T")

RENEWALS = 3  # in the time of a lease
LOOKS = 5  # of a candidate, in the time of a lease
HELD_SHARE = 2 / 3  # of the time of a lease after which it counts as lost


class LeaseRow(Protocol):
    """What is needed of `store.lease.Lease`; its methods are called on a thread, one at a time."""

    ttl_s: float
    asked_at: float
    quiet_until: float

    def read(self) -> LeaseRecord | None: ...

    def free_in_s(self, record: LeaseRecord | None) -> float: ...

    def end_holder(self, record: LeaseRecord) -> None: ...

    def renew(self, epoch: int) -> bool: ...

    def release(self, epoch: int, *, drained: bool) -> None: ...

    def close(self) -> None: ...


class Leadership:
    """This process's part in it. Used on the event loop; `took` and `may_step` from any thread."""

    def __init__(
        self,
        lease: LeaseRow,
        *,
        clock: Callable[[], float] = time.monotonic,
        thread: Executor | None = None,  # given in tests
    ) -> None:
        self.seen: LeaseRecord | None = None  # the lease as it was last read
        self._lease = lease
        self._clock = clock
        self._epoch = 0
        self._held_until = 0.0
        self._trouble = ""
        self._loop = asyncio.get_running_loop()
        self._taken = asyncio.Event()
        # Of its own: the shared one may be full of calls that wait for the same database.
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="opus-lease")

    @property
    def leader(self) -> str | None:
        """The address of who leads, as last seen; None when nobody does."""
        seen = self.seen
        return seen.address if seen is not None and seen.holder and seen.left_s > 0 else None

    def may_step(self) -> bool:
        """Whether a device step may start now."""
        return self._clock() < self._held_until

    def took(self, epoch: int) -> None:
        """The lease was taken with this epoch, and that is committed."""
        self._epoch = epoch
        self._held_until = self._lease.asked_at + HELD_SHARE * self._lease.ttl_s
        self._loop.call_soon_threadsafe(self._taken.set)

    async def free(self) -> None:
        """Return when this process may try to take the lease."""
        while True:
            try:
                self.seen = await self._ask(self._lease.read)
                wait_s = self._lease.free_in_s(self.seen)
                if wait_s <= 0:
                    if self.seen is not None and self.seen.holder:
                        await self._ask(partial(self._lease.end_holder, self.seen))
                    return
            except StoreError as error:
                self.seen = None
                self._say("the lease cannot be read", str(error))
                wait_s = self._lease.ttl_s
            else:
                self._trouble = ""
            await asyncio.sleep(min(wait_s, self._lease.ttl_s / LOOKS))

    async def hold(self) -> str:
        """Renew the lease, from when it is taken until it is lost; in one sentence why it is."""
        await self._taken.wait()
        why = "it was not renewed in time"
        while (left_s := self._held_until - self._clock()) > 0:
            asked_at = self._clock()
            try:
                renewed = await asyncio.wait_for(self._ask(self._renew), left_s)
            except StoreError as error:
                why = f"it was not renewed in time: {error}"
                await asyncio.sleep(min(left_s, self._lease.ttl_s / LOOKS))
                continue
            except TimeoutError:
                continue
            if not renewed:
                why = "another process has taken it"
                break
            self._held_until = asked_at + HELD_SHARE * self._lease.ttl_s
            await asyncio.sleep(asked_at + self._lease.ttl_s / RENEWALS - self._clock())
        self._held_until = 0.0
        self._taken.clear()
        return why

    async def quiet(self, but_s: float) -> None:
        """Return `but_s` seconds before the moment after which no step of an earlier leader is under way."""
        await asyncio.sleep(max(0.0, self._lease.quiet_until - but_s - self._clock()))

    async def release(self, *, drained: bool) -> None:
        """Let another process lead at once, if this one does. `drained`: none of its steps is under way."""
        held, self._held_until = self.may_step(), 0.0
        self._taken.clear()
        if not held:
            return
        try:
            await asyncio.wait_for(
                self._ask(lambda: self._lease.release(self._epoch, drained=drained)), self._lease.ttl_s
            )
        except (StoreError, TimeoutError) as error:
            logger.warning("lease not released; it runs out", extra={"detail": str(error)})

    def close(self) -> None:
        """Let go of the connection."""
        self._thread.submit(self._lease.close)
        self._thread.shutdown(wait=False)

    def _renew(self) -> bool:
        return self._lease.renew(self._epoch)

    def _say(self, what: str, trouble: str) -> None:
        if trouble != self._trouble:
            logger.warning("leadership: %s", what, extra={"detail": trouble})
        self._trouble = trouble

    async def _ask(self, act: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, act)
