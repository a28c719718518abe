"""The loop around the core: inputs make it decide, decisions are stored, and only then do they take effect.

One pass decides all that can be decided now, so a burst of requests in one turn of the event loop costs one
pass and one transaction. Whatever goes wrong in a pass is a bug: it is logged with its traceback, that pass
ends, and the process goes on serving. A failing store is different: nothing that is decided after it can be
promised, so the runtime stops for good and says so; whoever owns the store opens it anew for another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opus_sdn.drivers.base import Driver
from opus_sdn.intent.changes import Batch, Change, StepPlanned
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.reconciler import notices
from opus_sdn.reconciler.clock import Clock
from opus_sdn.reconciler.feed import EventFeed
from opus_sdn.reconciler.phase import SENTENCES, Phase
from opus_sdn.reconciler.runs import RunFiles
from opus_sdn.reconciler.waiters import Waiters
from opus_sdn.reconciler.worker import SwitchWorker, always
from opus_sdn.store.base import Store, StoreBusyError, StoreError, UnderWay

logger = logging.getLogger(__name__)

# A deadline that stays due (its consequence waits for a commit) is looked at again after this pause.
TICK_PAUSE_S = 0.01
# How long a changed fabric's request waits for its switches to be read: none waits for a device for ever.
ADOPTION_WAIT_S = 5.0
# Batches handed to the store and not yet written. The writer joins what is queued into one transaction;
# beyond this many it is slower than the ranks, and fewer passes that decide more cost it less.
PENDING_MAX = 256
BUSY_PAUSE_S = 0.005
# A burst is over before; a store that is behind for longer cannot keep up, and whoever asks is told so.
BEHIND_S = 1.0
# A timer that comes so much later than it was set for is not late: the process, or its machine, stood still.
STANDSTILL_S = 1.0
STEP_POLL_S = 0.005  # how often it is looked whether the steps in flight have ended


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch on its way to the store, with the steps that may start once it is there."""

    batch: Batch
    steps: tuple[StepPlanned, ...]
    stored: Future[int]
    confirm: list[asyncio.Future[None]]  # who waits for this batch, or for one before it, to be stored


_Refused = tuple[Batch, tuple[int, ...], list[asyncio.Future[None]]]


class Runtime:
    """The engine's shell. All methods are called on `loop`.

    `newest_event` is the number of the last event in the store at the start; with `runs_dir` every job gets
    its own files there. `may_step` says, at once, whether a device step may start; `under_way` records which
    commands have left. With `leader` nothing is
    decided here: it gives the address of the replica that does.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        drivers: Mapping[str, Driver],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        step_deadline_s: float = 5.0,
        observe_s: float | None = None,
        newest_event: int = 0,
        runs_dir: Path | None = None,
        may_step: Callable[[], bool] = always,
        under_way: UnderWay | None = None,
        leader: Callable[[], str | None] | None = None,
    ) -> None:
        self.engine = engine
        self.store = store
        self.clock = clock
        self.phase = Phase.ADOPTING if leader is None else Phase.FOLLOWING
        self._leader = leader
        self._may_step = may_step
        self._under_way = under_way
        self.store_lost = asyncio.Event()  # whoever owns the store has to open it anew, and another runtime
        self.waiters = Waiters()
        self.feed = EventFeed(newest_event)
        self.loop = loop
        self._step_deadline_s = step_deadline_s
        self._observe_s = observe_s
        self._workers: dict[str, SwitchWorker] = {}
        self._pending: deque[_Pending] = deque()
        self._unconfirmed: list[asyncio.Future[None]] = []
        self._store_trouble = ""  # why it was lost
        self._record_end = False  # at the end, what became of the steps in flight is still stored
        self._refused: _Refused | None = None  # decided, and the store had no room for it yet
        self._pump_due = False
        self._behind_since: float | None = None  # so far that nothing is decided; the next commit pumps
        self._due: float | None = None  # when the timer is set for
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None  # when it should come
        self._adoption: asyncio.Task[None] | None = None
        self._run_files = RunFiles(store, self.feed, runs_dir) if runs_dir is not None else None
        self._run_files_task: asyncio.Task[None] | None = None
        self._make_workers(drivers)

    # --- what the API calls

    def now(self) -> float:
        """The time to give to the core, seconds since 1970."""
        return self.clock()

    def changed(self) -> None:
        """Say after every input to the core: what follows from it is decided at the end of this turn."""
        if not self._pump_due and self.phase is Phase.READY:
            self._pump_due = True
            self.loop.call_soon(self._pump)

    async def stored(self) -> None:
        """Say that the core was given an input, and wait until what followed from it at once is stored.

        For requests whose answer is a promise. Raises CoreError `not-ready` when the store is lost meanwhile.
        """
        self.require_ready()
        confirmed: asyncio.Future[None] = self.loop.create_future()
        self._unconfirmed.append(confirmed)
        self.changed()
        await confirmed

    async def record(self, *changes: Change) -> None:
        """Store, durably, what is decided outside of the core.

        Raises CoreError `not-ready` when the store is lost.
        """
        try:
            stored = self.store.submit(Batch(0, self.now(), changes, durable=True))
            newest = await asyncio.shield(asyncio.wrap_future(stored, loop=self.loop))
        except StoreBusyError:
            raise _overloaded() from None
        except StoreError as error:
            self._lose_store(error)
            raise _store_lost() from None
        self.feed.advance(newest)

    async def observe(self, switch: str) -> None:
        """Read a switch now, and store what follows from it. CoreError `not-found`, `switch-away`."""
        self.require_ready()
        worker = self._workers.get(switch)
        if worker is None:
            known = ", ".join(self._workers)
            raise CoreError(
                Problem.NOT_FOUND, f"there is no switch {switch!r}; known switches: {known}", switch=switch
            )
        await worker.observe()
        await self.stored()

    def require_ready(self) -> None:
        """Raise CoreError `not-ready` unless what is decided now can be stored and carried out."""
        if self.phase is Phase.READY:
            return
        if self.phase is Phase.FOLLOWING and (leader := self.leader) is not None:
            start = self.engine.state.start
            detail = f"another replica decides: {leader} leads under start {start}; send this there"
            raise CoreError(Problem.NOT_LEADER, detail, leader=leader, start=start)
        raise CoreError(Problem.NOT_READY, SENTENCES[self.phase], phase=self.phase.value)

    def take_on(self) -> None:
        """As `require_ready`, for a request that brings the core something new.

        Raises CoreError `overloaded` as well, before anything is decided, while too much waits for the disk.
        """
        self.require_ready()
        if not self.store.has_room() or self._is_behind():
            raise _overloaded()

    def _is_behind(self) -> bool:
        since = self._behind_since
        return since is not None and self.loop.time() - since >= BEHIND_S

    @property
    def leader(self) -> str | None:
        """The address of the replica that decides instead of this one; None when none is known."""
        return self._leader() if self._leader is not None else None

    def checks(self) -> dict[str, str | None]:
        """Name of each readiness check -> what is wrong, None when it passes."""
        checks: dict[str, str | None] = {
            "store": self._store_trouble if self.phase is Phase.STORE_FAILED else None,
            "adoption": "switches are being read" if self.phase is Phase.ADOPTING else None,
            "running": "stopping" if self.phase is Phase.STOPPING else None,
        }
        if self.phase is Phase.FOLLOWING:
            checks["leader"] = None if self.leader is not None else SENTENCES[Phase.FOLLOWING]
            return checks
        for name, worker in self._workers.items():
            checks[f"switch:{name}"] = worker.trouble
        return checks

    # --- life

    async def start(self) -> None:
        """Read every switch, then begin to decide. Returns when ready; waits for a switch that is away."""
        await self._begin(wait_s=None)

    async def _begin(self, wait_s: float | None) -> None:
        if self._run_files is not None and self._run_files_task is None:
            self._run_files_task = self.loop.create_task(self._run_files.run())
        adoption = self.loop.create_task(self._adopt())
        self._adoption = adoption
        await asyncio.wait({adoption}, timeout=wait_s)
        if adoption.done() and not adoption.cancelled():
            adoption.result()

    def refuse_work(self) -> None:
        """The beginning of `end`, for a server that first has to answer everybody who waits."""
        if self.phase is Phase.STOPPING:
            return
        if self.phase is not Phase.STORE_FAILED:
            self._record_end = self.phase is Phase.READY
            self.phase = Phase.STOPPING
        self.waiters.end_all()
        self.feed.close()
        if self._adoption is not None:
            self._adoption.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = None
        for worker in self._workers.values():
            worker.stop()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """`end`, and close store and drivers."""
        await self.end(timeout_s)
        await asyncio.to_thread(self.store.close)
        await self._close_drivers(worker.driver for worker in self._workers.values())

    async def end(self, timeout_s: float = 10.0) -> bool:
        """Start nothing more, let the steps in flight end and be recorded. Store and drivers stay open.

        A step that takes longer than `timeout_s` seconds is left to the device; the next start reads what
        became of it. Returns whether there was none.
        """
        self.refuse_work()
        drained = await asyncio.gather(*(worker.drained(timeout_s) for worker in self._workers.values()))
        if self._record_end:
            await self._flush()
            self._decide()
            await self._flush()
        if self._run_files is not None and self._run_files_task is not None:
            await asyncio.wait({self._run_files_task})
            await self._run_files.finish()
        return all(drained)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Decide nothing in the block, where `use` may put another fabric in force; then read all switches.

        Everything decided before is stored when the block begins. A switch that is away is waited for after
        the block has ended: the runtime is not ready until then. Raises CoreError `not-ready` when device
        steps in flight do not end within their deadline.
        """
        self.require_ready()
        self.phase = Phase.ADOPTING
        self.waiters.end_all()
        try:
            await self._no_step_in_flight()
            await self._flush()
            self._decide()
            await self._flush()
            await self._no_step_in_flight()
            yield
        finally:
            if self.phase is Phase.ADOPTING:
                await self._begin(wait_s=ADOPTION_WAIT_S)

    async def _no_step_in_flight(self) -> None:
        """Wait for the steps in flight; meanwhile nothing new is decided. CoreError `not-ready`."""
        give_up_at = self.loop.time() + 2 * self._step_deadline_s
        while any(worker.busy for worker in self._workers.values()):
            if self.loop.time() >= give_up_at:
                raise CoreError(Problem.NOT_READY, "a device step is in flight; ask again when it has ended")
            await asyncio.sleep(STEP_POLL_S)

    async def use(self, drivers: Mapping[str, Driver]) -> None:
        """Go on with these drivers, one for each switch of the fabric. For the inside of `paused`."""
        former = self._workers
        kept = {name: worker for name, worker in former.items() if drivers.get(name) is worker.driver}
        for name, worker in former.items():
            if name not in kept:
                worker.stop()
        self._make_workers({name: driver for name, driver in drivers.items() if name not in kept})
        self._workers = {name: kept.get(name) or self._workers[name] for name in drivers}
        left = [worker.driver for name, worker in former.items() if name not in kept]
        await self._close_drivers(driver for driver in left if driver not in drivers.values())

    def drivers(self) -> Mapping[str, Driver]:
        """The drivers by switch name."""
        return {name: worker.driver for name, worker in self._workers.items()}

    def _make_workers(self, drivers: Mapping[str, Driver]) -> None:
        self._workers = {
            name: SwitchWorker(
                name,
                driver,
                self.engine,
                self.clock,
                self.loop,
                step_deadline_s=self._step_deadline_s,
                may_step=self._may_step,
                under_way=self._under_way,
                observe_s=self._observe_s,
                changed=self.changed,
            )
            for name, driver in drivers.items()
        }

    async def _adopt(self) -> None:
        for worker in self._workers.values():
            if not worker.begun:  # those that stay when the fabric changes go on as they are
                worker.begin()
        # A switch that is away holds up those that need it, and nobody else.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._step_deadline_s):
                for worker in self._workers.values():
                    await worker.adopted.wait()
        if self.phase is Phase.ADOPTING:
            self.engine.begin(self.clock())
            self.phase = Phase.READY
            logger.info("ready", extra={"start": self.engine.state.start, "switches": len(self._workers)})
            self.changed()

    async def _close_drivers(self, drivers: Iterable[Driver]) -> None:
        for driver in drivers:
            try:
                await driver.close()
            except Exception:
                logger.exception("driver did not close")

    # --- the loop

    def _pump(self) -> None:
        self._pump_due = False
        if self.phase is not Phase.READY:
            return
        if self._refused is not None:
            return  # its next try pumps
        if len(self._pending) >= PENDING_MAX:
            if self._behind_since is None:
                self._behind_since = self.loop.time()
            return
        self._decide()

    def _decide(self) -> None:
        confirm, self._unconfirmed = self._unconfirmed, []
        try:
            effects = self.engine.pump(self.clock())
            self._arm()
        except Exception as error:
            logger.exception("a pass failed")
            _refuse(confirm, error)
            return
        if effects.batch is not None:
            self._submit(effects.batch, effects.steps, confirm)
        elif self._pending:
            self._pending[-1].confirm.extend(confirm)
        else:
            _confirm(confirm)

    def _submit(self, batch: Batch, step_ids: tuple[int, ...], confirm: list[asyncio.Future[None]]) -> None:
        wanted = set(step_ids)
        steps = tuple(
            change
            for change in (batch.changes if wanted else ())
            if isinstance(change, StepPlanned) and change.step in wanted
        )
        try:
            stored = self.store.submit(batch)
        except StoreBusyError:
            # Decided is decided: it goes to the store before anything else is.
            self._refused = (batch, step_ids, confirm)
            self.loop.call_later(BUSY_PAUSE_S, self._submit_again)
            return
        except StoreError as error:
            self._lose_store(error)
            _refuse(confirm, _store_lost())
            return
        self._pending.append(_Pending(batch, steps, stored, confirm))
        if stored.done():
            self.loop.call_soon(self._take_stored)
        else:
            stored.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self._take_stored))

    def _submit_again(self) -> None:
        """A batch that the store had no room for is tried again; meanwhile nothing is decided."""
        refused, self._refused = self._refused, None
        if refused is None or self.phase is Phase.STORE_FAILED:
            return
        self._submit(*refused)
        if self._refused is None:
            self.changed()

    def _take_stored(self) -> None:
        """Batches take effect in the order in which they were decided, each when it is stored."""
        while self._pending and self._pending[0].stored.done() and self.phase is not Phase.STORE_FAILED:
            error = self._pending[0].stored.exception()
            if error is not None:
                self._lose_store(error)
                return
            pending = self._pending.popleft()
            try:
                self._take_effect(pending)
            except Exception:
                logger.exception("a stored batch was not taken over", extra={"batch": pending.batch.id})
        if self._behind_since is not None and len(self._pending) < PENDING_MAX:
            self._behind_since = None
            self.changed()

    def _take_effect(self, pending: _Pending) -> None:
        woken = self.engine.committed(pending.batch.id)
        _confirm(pending.confirm)
        self.feed.advance(pending.stored.result())
        notices.write(pending.batch.changes)
        if self.phase is Phase.STOPPING:
            return
        self.waiters.wake(woken)
        for planned in pending.steps:
            self._workers[planned.switch].enqueue(planned.step, planned.causes)

    async def _flush(self) -> None:
        """Wait until everything decided is stored, or the store is lost."""
        while self._refused is not None and self.phase is not Phase.STORE_FAILED:  # noqa: ASYNC110 - no event
            await asyncio.sleep(BUSY_PAUSE_S)
        while self._pending and self.phase is not Phase.STORE_FAILED:
            await asyncio.wait({asyncio.wrap_future(self._pending[-1].stored, loop=self.loop)})
            self._take_stored()

    def _lose_store(self, error: BaseException) -> None:
        """Nothing that is decided from now on can be promised: no answer, no step. Said once."""
        if self.phase is Phase.STORE_FAILED:
            return
        logger.critical("the store failed; nothing is granted any more", extra={"detail": str(error)})
        self._store_trouble = str(error)
        self.phase = Phase.STORE_FAILED
        self.store_lost.set()
        for pending in self._pending:
            _refuse(pending.confirm, _store_lost())
        _refuse(self._unconfirmed, _store_lost())
        if self._refused is not None:
            _refuse(self._refused[2], _store_lost())
        self._pending.clear()
        for worker in self._workers.values():
            worker.stop()
        self.waiters.end_all()

    # --- time

    def _arm(self) -> None:
        """Have `tick` called when the core's next deadline is due."""
        self._notice_standstill()
        due = self.engine.next_deadline()
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._timer_at = None
        if due is not None:
            now = self.clock()
            self._timer_at = max(now + TICK_PAUSE_S, due)
            self._timer = self.loop.call_later(self._timer_at - now, self._tick)

    def _notice_standstill(self) -> None:
        """Nobody could be heard while this process stood still, so nobody was silent."""
        if self._timer_at is None:
            return
        now = self.clock()
        late_s = now - self._timer_at
        if late_s > STANDSTILL_S:
            self._timer_at = None
            logger.warning("this process stood still", extra={"for_s": round(late_s, 3)})
            self.engine.stood_still(now, late_s)

    def _tick(self) -> None:
        self._notice_standstill()
        self._timer = self._timer_at = None
        if self.phase is not Phase.READY:
            return
        try:
            self.engine.tick(self.clock())
        except Exception:
            logger.exception("a tick failed")
        self.changed()


def _confirm(waiting: Iterable[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


def _refuse(waiting: Iterable[asyncio.Future[None]], error: Exception) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error)


def _store_lost() -> CoreError:
    return CoreError(Problem.NOT_READY, SENTENCES[Phase.STORE_FAILED], phase=Phase.STORE_FAILED.value)


def _overloaded() -> CoreError:
    return CoreError(Problem.OVERLOADED, "too much waits to be written to the store; ask again in a second")
