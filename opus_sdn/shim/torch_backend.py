"""Makes process groups of the backend `opus`: the creator that torch calls on every member of a group."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.enrolment import Meeting, enrol, refuse
from opus_sdn.shim.errors import OpusError, SettingsError, UnsupportedTorchError
from opus_sdn.shim.operations import OperationLog
from opus_sdn.shim.phase_file import load_published, load_table
from opus_sdn.shim.phases import PhaseTable
from opus_sdn.shim.recorder import Recorder
from opus_sdn.shim.settings import Mode, ShimSettings, from_environ, read_token
from opus_sdn.shim.torch_cuda import gpu_names
from opus_sdn.shim.torch_group import OpusGroup, life_of
from opus_sdn.shim.torch_job import RankJob
from opus_sdn.shim.torch_lanes import build_inner, wrap_inner

KNOWN_GOOD_TORCH = ("2.13.",)
EXIT_DRAIN_S = 1.0  # for operations that nobody waited for; a program that failed should not linger

log = logging.getLogger(__name__)

_job: RankJob | None = None  # of this process's default group; a forked child's use of it is refused there


def create(options: Any, backend_options: Any) -> OpusGroup:
    """The creator. The default group registers the job first: without a controller nothing is made."""
    is_default = not options.global_ranks_in_group
    job = _enter(options) if is_default else _current_job()
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    try:
        backends = build_inner(options, backend_options, life_of(job))
        inner = wrap_inner(options, backends)
        return OpusGroup(job, ranks, options.group_rank, inner, backends, is_default)
    except BaseException:
        if is_default and job is not None:
            job.close(drain_s=0.0)
        raise


def operation_log() -> OperationLog | None:
    """What this rank has done in the job of its default group; None without one, and with mode off."""
    return _job.log if _job is not None else None


def statistics() -> dict[str, Any] | None:
    """What this rank asked for and how long it waited, in its job so far; None where there is no log.

    `waits` has, for each "phase before -> phase now", `grants`, `wait_ms` in all and `longest_ms`.
    """
    return _job.statistics() if _job is not None else None


def end_step() -> None:
    """A step of the program ends here. Programs with a torch optimizer need not say so: it is seen."""
    if _job is not None:
        _job.end_step()


def _require_known_torch() -> None:
    """The group subclasses what torch keeps private; an untried version could compute wrong results.

    Raises UnsupportedTorchError.
    """
    if (
        torch.__version__.startswith(KNOWN_GOOD_TORCH)
        or os.environ.get("OPUS_ALLOW_TORCH", "").strip() == "1"
    ):
        return
    known = ", ".join(f"{version}*" for version in KNOWN_GOOD_TORCH)
    raise UnsupportedTorchError(
        f"torch is {torch.__version__}; backend opus was tried with {known} only; install such a version, "
        "use another backend, or set OPUS_ALLOW_TORCH=1 to try this one"
    )


def _enter(options: Any) -> RankJob | None:
    """Register this life of the job, with all its ranks. None with mode off."""
    global _job  # noqa: PLW0603 - the creator has no other way to know what the default group was made with
    rank = options.group_rank
    meeting = Meeting(options.store, rank, options.group_size, options.timeout)
    try:
        _require_known_torch()
        settings = from_environ(gpu_names=gpu_names)
        client = _client(settings) if settings.mode is not Mode.OFF else None
        table = _table(settings, rank)
    except SettingsError as wrong:
        raise refuse(meeting, rank, str(wrong)) from None
    except UnsupportedTorchError as wrong:
        refuse(meeting, rank, str(wrong))
        raise
    if client is None:
        refuse(meeting, rank, "OPUS_MODE is off on this rank and not on others; use one mode for all ranks")
        _job = None
        return None
    enrolment = enrol(meeting, rank, settings, client, options.timeout)
    _job = RankJob(settings, client, enrolment, rank, table)
    if settings.trace_dir is not None:
        _job.on_close.append(_record(settings, settings.trace_dir, client, _job))
    log.info("joined job=%s incarnation=%d rank=%d", settings.job, enrolment.incarnation, rank)
    return _job


def _table(settings: ShimSettings, rank: int) -> PhaseTable | None:
    """The phase table to begin with, if one is named. Raises SettingsError."""
    if settings.phase_table is not None:
        return load_table(settings.phase_table, rank)
    return load_published(settings.comm_pattern, rank) if settings.comm_pattern is not None else None


def _record(
    settings: ShimSettings, folder: Path, client: ControllerClient, job: RankJob
) -> Callable[[], None]:
    """Log this rank's operations to a file from now on; returns what ends that."""
    head = {
        "job": settings.job,
        "incarnation": job.incarnation,
        "rank": job.rank,
        "world": job.world,
        "host": settings.host,
        "dimensions": [list(each) for each in settings.dimensions],
    }
    try:
        return Recorder(folder, head, job.log.follow(), client).close
    except OSError as failed:
        log.warning("this rank's operations are not recorded folder=%s error=%s", folder, failed)
        return lambda: None


def _client(settings: ShimSettings) -> ControllerClient:
    assert settings.controller is not None
    return ControllerClient(
        settings.controller,
        read_token(settings.token_file),
        settings.ca_file,
        others=settings.replicas,
        agent=settings.agent,
    )


def _current_job() -> RankJob | None:
    """The job of the default group, for a further group."""
    if _job is None and from_environ().mode is not Mode.OFF:
        raise OpusError(
            "a group with backend opus needs a default group with backend opus: it registers the job; "
            'use init_process_group("opus"), or OPUS_MODE=off'
        )
    return _job


@atexit.register
def _leave_at_exit() -> None:
    """For programs without `destroy_process_group`: no thread may be left when the interpreter goes."""
    if _job is not None:
        _job.close(drain_s=EXIT_DRAIN_S)
