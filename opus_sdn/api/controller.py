"""One running controller: store, core, switches, runtime and application, opened and closed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fastapi import FastAPI

from opus_sdn.api.app import create_app
from opus_sdn.api.fabric_keeper import NO_FABRIC, FabricKeeper, document_of, open_drivers, store_fabric
from opus_sdn.api.former import SILENT, FormerJobs
from opus_sdn.drivers.base import Driver
from opus_sdn.drivers.emulated import EmulatedDriver
from opus_sdn.drivers.witness import TrafficWitness
from opus_sdn.drivers.witness_server import WitnessServer
from opus_sdn.fabric_file import FabricFileError, FabricSpec, parse_fabric
from opus_sdn.intent.changes import Batch, Change, EventAppended, JobSettled, JobState, StepMoved, StepState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Fabric
from opus_sdn.intent.model import CoreSettings
from opus_sdn.reconciler.clock import Clock, steady_clock
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.settings import Settings
from opus_sdn.store.base import JobRecord, Snapshot, Store, StoreError
from opus_sdn.store.rules import DAY_S, Retention
from opus_sdn.store.sql import SqlStore

logger = logging.getLogger(__name__)


class StartError(Exception):
    """The controller cannot start; the message says why and what to do."""


class Controller:
    """`open` it, `start` it, serve `app`, `close` it. All on one event loop."""

    def __init__(self, runtime: Runtime, app: FastAPI, witness: _Witness | None, former: FormerJobs) -> None:
        self.runtime = runtime
        self.app = app
        self._witness = witness
        self._former = former
        self._release: asyncio.Task[None] | None = None

    @property
    def witness_address(self) -> str | None:
        """Where the traffic witness listens, as host:port; None when there is none."""
        return self._witness.address if self._witness is not None else None

    @classmethod
    async def open(
        cls, settings: Settings, *, store: Store | None = None, clock: Clock | None = None
    ) -> Controller:
        """Take over the store and get everything ready; no switch is touched. Raises StartError.

        `store`, `clock`: None for the database of the settings and the machine's clock; given in tests.
        """
        clock = clock or steady_clock()
        try:
            held: Store = store if store is not None else await asyncio.to_thread(_open_store, settings)
        except StoreError as error:
            raise StartError(str(error)) from None
        try:
            return await cls._open(settings, held, clock)
        except (StoreError, FabricFileError, CoreError) as error:
            await asyncio.to_thread(held.close)
            raise StartError(error.detail if isinstance(error, CoreError) else str(error)) from None

    @classmethod
    async def _open(cls, settings: Settings, store: Store, clock: Clock) -> Controller:
        start = await asyncio.to_thread(store.raise_start)  # first: whatever follows belongs to this start
        before = await asyncio.to_thread(store.snapshot)
        spec = _fabric_in_force(before, settings.fabric_file)
        fabric = spec.build() if spec is not None else NO_FABRIC
        drivers = open_drivers(fabric.switches)
        generation = 0
        if spec is not None:
            generation = await asyncio.to_thread(store_fabric, store, document_of(spec), fabric)
        interrupted = [job for job in before.jobs if job.state is JobState.RUNNING]
        newest_event = before.last_event
        if interrupted or before.steps:
            batch = Batch(0, clock(), tuple(_settle(before, interrupted)), durable=True)
            newest_event = await asyncio.wrap_future(store.submit(batch))
        observations = {switch.switch: switch.generation for switch in before.switches}
        engine = Engine(
            fabric,
            _core_settings(settings),
            start,
            last_step=before.last_step,
            incarnations={job.job: job.incarnation for job in before.jobs},
            generations=observations,
            nonces={job.job: (job.spec.nonce,) for job in before.jobs},
        )
        runtime = Runtime(
            engine,
            store,
            drivers,
            clock,
            asyncio.get_running_loop(),
            step_deadline_s=settings.step_deadline_s,
            newest_event=newest_event,
            runs_dir=settings.runs_dir,
        )
        witness = _Witness(settings.host) if settings.witness else None
        if witness is not None:
            await witness.watch(fabric, drivers)
        holding = dict.fromkeys([job.job for job in interrupted] + [lock.job for lock in before.locks])
        former = FormerJobs(map(_as_settled, before.jobs), holding, clock() + settings.lease_s)
        keeper = FabricKeeper(
            runtime,
            spec,
            generation,
            former,
            observations=observations,
            changed=witness.watch if witness else None,
        )
        return cls(runtime, create_app(runtime, settings, keeper, former), witness, former)

    async def start(self) -> None:
        """Read every switch and begin to decide; returns when ready."""
        self._release = asyncio.create_task(_release_silent(self.runtime, self._former))
        await self.runtime.start()

    async def close(self) -> None:
        """Let the device steps in flight end and close everything; the circuits stay as they are."""
        if self._release is not None:
            self._release.cancel()
            await asyncio.wait({self._release})
        await self.runtime.stop()
        if self._witness is not None:
            await self._witness.close()


async def _release_silent(runtime: Runtime, former: FormerJobs) -> None:
    """Wait until the former jobs have been silent for a lease, and store that their locks are gone."""
    if former.holding:
        await asyncio.sleep(max(0.0, former.held_until - runtime.now()))
    changes = [change for job in former.holding for change in former.end(job, SILENT)]
    if changes:
        with suppress(CoreError):  # without a store there is nothing to be told, and it has been said
            await runtime.record(*changes)


class _Witness:
    """The traffic witness of the emulated switches, and the address that it keeps over changes of fabric."""

    def __init__(self, host: str) -> None:
        self._host = "127.0.0.1" if host == "localhost" else host
        self._server: WitnessServer | None = None
        self.address = ""

    async def watch(self, fabric: Fabric, drivers: Mapping[str, Driver]) -> None:
        """Watch the emulated switches of this fabric from now on."""
        devices = [driver.device for driver in drivers.values() if isinstance(driver, EmulatedDriver)]
        port = int(self.address.rpartition(":")[2]) if self.address else 0
        await self.close()
        self._server = WitnessServer(TrafficWitness(fabric, devices), self._host, port)
        self.address = await self._server.start()

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.close()


def _open_store(settings: Settings) -> SqlStore:
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


def _core_settings(settings: Settings) -> CoreSettings:
    return CoreSettings(
        overtake_max=settings.overtake_max,
        overtake_s=settings.overtake_ms / 1e3,
        lease_s=settings.lease_s,
        fence_s=settings.fence_s,
        abort_s=settings.abort_s,
    )


def _fabric_in_force(before: Snapshot, file: Path | None) -> FabricSpec | None:
    """The stored fabric; without one that of the file. Whoever has edited the file is told what it is for."""
    if before.fabric is None:
        return _fabric_in_file(file)
    stored = FabricSpec.model_validate_json(before.fabric)
    try:
        offered = _fabric_in_file(file)
    except (StartError, FabricFileError) as error:
        logger.warning("fabric file not read; the fabric in the database stays", extra={"detail": str(error)})
        return stored
    if offered is not None and document_of(offered) != document_of(stored):
        logger.warning(
            "fabric file differs from the fabric in the database, which stays; to change it, apply the file",
            extra={"file": str(file), "command": f"opus apply -f {file}"},
        )
    return stored


def _fabric_in_file(path: Path | None) -> FabricSpec | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path}: cannot be read: {error}; name an existing fabric file") from None
    return parse_fabric(text, str(path))


def _cause(job: str) -> str:
    return f"the controller was started anew while job {job} ran; declare it again with a fresh nonce"


def _settle(before: Snapshot, interrupted: list[JobRecord]) -> list[Change]:
    """What an earlier start left unfinished is over: nobody holds a promise of it any more."""
    changes: list[Change] = []
    cause = Problem.CONTROLLER_RESTARTED.value
    for job in interrupted:
        changes.append(JobSettled(job.job, job.incarnation, JobState.FAILED, cause, _cause(job.job)))
        data: dict[str, object] = {"cause": cause, "detail": _cause(job.job)}
        changes.append(EventAppended("job.failed", job.job, job.incarnation, data=data))
    for step in before.steps:
        detail = "the controller was started anew; the switch is read before anything else"
        changes.append(StepMoved(step.step, step.switch, StepState.FAILED, detail))
        data = {"step": step.step, "detail": detail}
        changes.append(EventAppended("step.failed", switch=step.switch, data=data))
    return changes


def _as_settled(job: JobRecord) -> JobRecord:
    if job.state is not JobState.RUNNING:
        return job
    cause = Problem.CONTROLLER_RESTARTED.value
    return JobRecord(job.job, job.incarnation, job.spec, JobState.FAILED, cause, _cause(job.job))
