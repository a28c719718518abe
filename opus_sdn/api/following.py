"""What a replica serves while another one leads: the state as stored, read again and again.

It is the same application over the same core, built anew from the store whenever that has changed. Nothing is
ever decided by it: whatever needs a decision is answered with the leader's address.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from opus_sdn.api.fabric_keeper import NO_FABRIC, Drivers, FabricKeeper
from opus_sdn.api.former import FormerJobs
from opus_sdn.api.plan_book import PlanBook
from opus_sdn.api.recovered import known_jobs, known_steps
from opus_sdn.api.term import Term, core_settings
from opus_sdn.fabric_file import FabricSpec
from opus_sdn.intent.engine import Engine
from opus_sdn.reconciler.clock import Clock
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.settings import Settings
from opus_sdn.store.base import Snapshot, Store, StoreError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
# A large fabric takes long to build: at most this share of the time goes into it.
BUILD_SHARE = 0.1


class Following:
    """Reads from `store`, which it closes at the end; `leader` gives the leader's address, if known."""

    def __init__(
        self, settings: Settings, store: Store, clock: Clock, leader: Callable[[], str | None]
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._seen = (-1, -1)
        self._built_in_s = 0.0
        self._runtime: Runtime | None = None
        self._leader = leader

    async def term(self) -> Term | None:
        """What to serve from, when it has changed since the last call. StoreError when it cannot be read."""
        before = await asyncio.to_thread(self._store.snapshot)
        seen = (before.start, before.last_event)
        if seen == self._seen:
            return None
        began = time.monotonic()
        engine, spec, former = await asyncio.to_thread(self._build, before)
        self._built_in_s = time.monotonic() - began
        self._seen = seen
        if self._runtime is None:
            self._runtime = Runtime(
                engine,
                self._store,
                {},
                self._clock,
                asyncio.get_running_loop(),
                newest_event=before.last_event,
                leader=self._leader,
            )
        self._runtime.engine = engine
        self._runtime.feed.advance(before.last_event)
        keeper = FabricKeeper(
            self._runtime, spec, before.fabric_generation, former, drivers=Drivers(), observations={}
        )
        return Term(self._runtime, keeper, former, PlanBook(self._runtime, keeper, before.directives))

    async def run(self, use: Callable[[Term], None]) -> None:
        """Hand on every new term, until cancelled."""
        trouble = ""
        while True:
            await asyncio.sleep(max(LOOK_EVERY_S, self._built_in_s / BUILD_SHARE))
            try:
                term = await self.term()
            except StoreError as error:
                if str(error) != trouble:
                    logger.warning("store cannot be read", extra={"detail": str(error)})
                trouble = str(error)
                continue
            trouble = ""
            if term is not None:
                use(term)

    async def close(self) -> None:
        """End whoever waits for something, and let go of the store."""
        if self._runtime is not None:
            self._runtime.refuse_work()
        await asyncio.to_thread(self._store.close)

    def _build(self, before: Snapshot) -> tuple[Engine, FabricSpec | None, FormerJobs]:
        spec = FabricSpec.model_validate_json(before.fabric) if before.fabric is not None else None
        engine = Engine(
            spec.build() if spec is not None else NO_FABRIC,
            core_settings(self._settings),
            before.start,
            last_step=before.last_step,
            incarnations={job.job: job.incarnation for job in before.jobs},
            generations={switch.switch: switch.generation for switch in before.switches},
        )
        now = self._clock()
        jobs = known_jobs(before)
        misfits = {job.spec.name for job in engine.recover(now, jobs, known_steps(before), before.directives)}
        known = set(engine.state.switches)
        for switch in before.switches:
            if switch.switch in known:
                engine.observe(now, switch.switch, frozenset(switch.matching))
        taken = {job.spec.name for job in jobs} - misfits
        return engine, spec, FormerJobs(job for job in before.jobs if job.job not in taken)
