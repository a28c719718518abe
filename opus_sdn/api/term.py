"""One life of deciding: what the store held when it began, the core that goes on from there, its switches.

A process may have several terms one after the other: one ends when the controller stops or its store is
lost, and the next one begins with what the store then holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from opus_sdn.api.fabric_keeper import NO_FABRIC, Drivers, FabricKeeper, document_of, store_fabric
from opus_sdn.api.former import FormerJobs
from opus_sdn.api.plan_book import PlanBook
from opus_sdn.api.recovered import known_jobs, known_steps
from opus_sdn.api.witness import Witness
from opus_sdn.fabric_file import FabricFileError, FabricSpec, parse_fabric
from opus_sdn.intent.changes import Batch, Change, EventAppended, JobLetGo, JobSettled, JobState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import Problem
from opus_sdn.intent.model import CoreSettings
from opus_sdn.intent.recovery import KnownJob
from opus_sdn.reconciler.clock import Clock
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.reconciler.worker import always
from opus_sdn.settings import Settings
from opus_sdn.store.base import JobRecord, Snapshot, Store, StoreError
from opus_sdn.store.database import database_of

logger = logging.getLogger(__name__)


class StartError(Exception):
    """The controller cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Term:
    """What the application serves from while it lasts."""

    runtime: Runtime
    keeper: FabricKeeper
    former: FormerJobs
    plans: PlanBook
    unsettled: bool = False  # there are device steps of which nobody has recorded how they ended

    @property
    def start(self) -> int:
        """Its start number."""
        return self.runtime.engine.state.start


async def open_term(
    settings: Settings,
    store: Store,
    drivers: Drivers,
    witness: Witness | None,
    clock: Clock,
    *,
    may_step: Callable[[], bool] = always,
) -> Term:
    """Take over the store and get everything ready; no switch is touched.

    `drivers` keep their sessions from term to term; `may_step` says whether a device step may start. Raises
    StoreError, FabricFileError, CoreError.
    """
    start = await asyncio.to_thread(store.raise_start)  # first: whatever follows belongs to this start
    before = await asyncio.to_thread(store.snapshot)
    spec = _fabric_in_force(before, settings.fabric_file)
    fabric = spec.build() if spec is not None else NO_FABRIC
    opened = drivers.of(fabric.switches)
    generation = 0
    if spec is not None:
        generation = await asyncio.to_thread(store_fabric, store, document_of(spec), fabric)
    observations = {switch.switch: switch.generation for switch in before.switches}
    jobs = known_jobs(before)
    taken = {job.spec.name for job in jobs}
    engine = Engine(
        fabric,
        core_settings(settings),
        start,
        last_step=before.last_step,
        incarnations={job.job: job.incarnation for job in before.jobs},
        generations=observations,
        incarnation_floor=before.incarnation_floor,
        nonces={job.job: (job.spec.nonce,) for job in before.jobs if job.job not in taken},
    )
    for switch in before.switches:
        engine.remember(switch.switch, switch.matching, switch.foreign)
    misfits = engine.recover(clock(), jobs, known_steps(before), before.directives)
    newest_event = before.last_event
    if misfits:
        batch = Batch(0, clock(), tuple(c for job in misfits for c in _end_misfit(job)), durable=True)
        newest_event = await asyncio.wrap_future(store.submit(batch))
    runtime = Runtime(
        engine,
        store,
        opened,
        clock,
        asyncio.get_running_loop(),
        step_deadline_s=settings.step_deadline_s,
        observe_s=settings.observe_s,
        newest_event=newest_event,
        runs_dir=settings.runs_dir,
        may_step=may_step,
        under_way=store.under_way(start, [step.step for step in before.steps]),
    )
    if witness is not None:
        await witness.watch(fabric, opened)
    cannot = {job.spec.name for job in misfits}
    former = FormerJobs(
        _as_misfit(job) if job.job in cannot else job
        for job in before.jobs
        if job.job in cannot or job.job not in taken
    )
    keeper = FabricKeeper(
        runtime,
        spec,
        generation,
        former,
        drivers=drivers,
        observations=observations,
        changed=witness.watch if witness else None,
    )
    logger.info(
        "term opened",
        extra={"start": start, "jobs": len(engine.state.active), "clean": before.clean},
    )
    return Term(
        runtime, keeper, former, PlanBook(runtime, keeper, before.directives), unsettled=bool(before.steps)
    )


def core_settings(settings: Settings) -> CoreSettings:
    """The core's part of the settings."""
    return CoreSettings(
        run_length_max=settings.run_length_max,
        overtake_max=settings.overtake_max,
        overtake_s=settings.overtake_ms / 1e3,
        ring_patience_s=settings.ring_patience_ms / 1e3,
        lease_s=settings.lease_s,
        fence_s=settings.fence_s,
        abort_s=settings.abort_s,
        install_s=settings.install_s,
        light_s=settings.light_s,
        carrier_s=settings.carrier_s,
    )


def _misfit(job: str) -> str:
    return f"the controller was started anew, and job {job} does not fit the fabric that it found"


def _end_misfit(job: KnownJob) -> list[Change]:
    name, cause = job.spec.name, Problem.CONTROLLER_RESTARTED.value
    data: dict[str, object] = {"cause": cause, "detail": _misfit(name)}
    return [
        JobSettled(name, job.incarnation, JobState.FAILED, cause, _misfit(name)),
        JobLetGo(name, job.incarnation),
        EventAppended("job.failed", name, job.incarnation, data=data),
    ]


def _as_misfit(job: JobRecord) -> JobRecord:
    cause = Problem.CONTROLLER_RESTARTED.value
    return replace(job, state=JobState.FAILED, cause=cause, detail=_misfit(job.job), rank=None, data={})


def require_fabric(settings: Settings) -> None:
    """Raise StartError or FabricFileError when a database that is new would be made for no fabric.

    A wrong name of the file is found before a database is; one that has a fabric goes on without the file.
    """
    if settings.fabric_file is None:
        return
    try:
        is_new = not database_of(settings.database).tables()
    except StoreError:
        return  # whoever opens it says what is wrong with it
    if is_new:
        _fabric_in_file(settings.fabric_file)


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
