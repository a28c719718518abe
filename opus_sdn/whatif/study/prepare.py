"""From a study to what is replayed: step, GPU, topologies. Refusals name the study's field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from opus_sdn.whatif.engine import Step
from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.study.schema import Study, made
from opus_sdn.whatif.workload import (
    Accelerator,
    Batch,
    Model,
    Parallelism,
    Workload,
    accelerator,
    generate,
    model_card,
)


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained on what, before its step is generated: what alternatives change one thing of."""

    model: Model
    gpu: Accelerator
    parallelism: Parallelism
    batch: Batch
    preset: str
    efficiency: float | None
    scale_out_gbps: float
    scale_up_gbps: float

    def prepared(self) -> Prepared:
        """Generate the step. Raises InputError with what would fit."""
        workload = generate(
            self.model, self.parallelism, self.batch, preset=self.preset, efficiency=self.efficiency
        )
        return Prepared(self, workload)


@dataclass(frozen=True)
class Prepared:
    """A job with its step, as far as it is needed.

    All rails do the same. Our own semantics replay one of them for all; the published ones need every rank.
    """

    job: Job
    workload: Workload

    @cached_property
    def everything(self) -> tuple[Step, Schedules]:
        """All ranks, and the topologies that the stages choose from."""
        job = self.job
        return self.workload.step(job.gpu), self.workload.schedules(job.scale_out_gbps, job.scale_up_gbps)

    @cached_property
    def rail(self) -> tuple[Step, Schedules]:
        """One rail."""
        job = self.job
        step = self.workload.rail_step(job.gpu)
        return step, self.workload.rail_schedules(job.scale_out_gbps, job.scale_up_gbps)

    def ideal(self, scale_out_gbps: float | None) -> Schedules:
        """The one topology of the reference `ideal` for all ranks, at this bandwidth or the job's own."""
        gbps = self.job.scale_out_gbps if scale_out_gbps is None else scale_out_gbps
        return self.workload.balanced(gbps, self.job.scale_up_gbps)


@contextmanager
def refusals_of(file: Path | str) -> Iterator[None]:
    """What the generator refuses is said of the study's file."""
    try:
        yield
    except InputError as error:
        if error.file != "study":
            raise
        raise InputError(error.why, file=file, field=error.field, value=error.value) from None


def job_of(study: Study, file: Path | str) -> Job:
    """The job that a study describes. Raises InputError with what would fit."""
    named: Any = study.model
    machine: Any = study.accelerator
    with refusals_of(file):
        model = model_card(named) if isinstance(named, str) else made(Model, named)
        gpu = accelerator(machine) if isinstance(machine, str) else made(Accelerator, machine)
    parallelism = made(Parallelism, study.parallelism)
    _check_hosts(study, parallelism, file)
    fabric = study.fabric
    return Job(
        model,
        gpu,
        parallelism,
        made(Batch, study.batch),
        study.preset,
        study.efficiency,
        fabric.scale_out_gbps or gpu.scale_out_gbps,
        fabric.scale_up_gbps or gpu.scale_up_gbps,
    )


def prepare(study: Study, file: Path | str) -> Prepared:
    """The job of a study with its step. Raises InputError with what would fit."""
    job = job_of(study, file)
    with refusals_of(file):
        return job.prepared()


def _check_hosts(study: Study, plan: Parallelism, file: Path | str) -> None:
    """Hosts that are named are those that the plan fills: each holds one tensor-parallel group."""
    per_host, hosts = study.gpus_per_host, study.hosts
    if per_host is not None and per_host != plan.tp:
        why = (
            f"a host holds one tensor-parallel group: parallelism.tp {per_host} would fit, "
            f"or gpus_per_host {plan.tp}"
        )
        raise InputError(why, file=file, field="gpus_per_host", value=per_host)
    needed = plan.ranks // plan.tp if plan.tp else 0
    if hosts is not None and hosts != needed and plan.tp > 0:
        rest = plan.pp * plan.cp
        other = f"parallelism.dp {hosts // rest}, or " if rest and hosts % rest == 0 else ""
        why = (
            f"the plan fills {needed} (dp {plan.dp} x pp {plan.pp} x cp {plan.cp}, {plan.tp} GPUs each): "
            f"{other}hosts {needed} would fit"
        )
        raise InputError(why, file=file, field="hosts", value=hosts)
