"""A fabric file and a job file instead of what a trace implies: any placement, any cabling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opus_sdn.fabric_file.read import FabricFileError, load_fabric
from opus_sdn.intent.errors import CoreError
from opus_sdn.intent.fabric import Fabric, Switch
from opus_sdn.intent.model import Dimension, JobSpec, Place, PortChoice, WorldGroup
from opus_sdn.intent.ranks import check_dimensions
from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.text import read_bytes
from opus_sdn.whatif.opus.layout import JOB, NEVER_S, Cluster, cluster_of
from opus_sdn.whatif.trace.model import Trace

MAX_JOB_BYTES = 32 << 20


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Place(_Part):
    rank: Annotated[int, Field(ge=0)]
    host: str
    slot: Annotated[int, Field(ge=0)]


class _Dimension(_Part):
    name: str
    size: Annotated[int, Field(ge=1)]


class JobFile(_Part):
    """The part of a job's declaration that decides what it needs: the body of `PUT /jobs/{job}`, or less."""

    owner: str = "whatif"
    nonce: str = "1"
    placement: Annotated[list[_Place], Field(min_length=1)]
    dimensions: list[_Dimension] = []
    port_choice: Annotated[PortChoice, Field(strict=False)] = PortChoice.STANDARD
    world_group: Annotated[WorldGroup, Field(strict=False)] = WorldGroup.AUTO
    force_scale_out: bool = False
    legacy_digits: bool = False

    def spec(self) -> JobSpec:
        """The core's form; ValueError when the placement does not name every rank once."""
        places = {entry.rank: Place(entry.host, entry.slot) for entry in self.placement}
        world = len(self.placement)
        if sorted(places) != list(range(world)):
            raise ValueError(f"placement must name every rank from 0 to {world - 1} once")
        return JobSpec(
            JOB,
            self.owner,
            self.nonce,
            tuple(places[rank] for rank in range(world)),
            tuple(Dimension(each.name, each.size) for each in self.dimensions),
            self.port_choice,
            self.world_group,
            self.force_scale_out,
            NEVER_S,
            legacy_digits=self.legacy_digits,
        )


def read_cluster(
    trace: Trace, fabric_file: Path, job_file: Path, delay_ms: float, control_ms: float | None, inflight: int
) -> Cluster:
    """The trace on this fabric, placed as the job says. InputError when the files do not go together.

    Every switch is simulated with `delay_ms`; its control time is the file's where `control_ms` is None.
    """
    try:
        fabric = load_fabric(fabric_file)
    except (FabricFileError, OSError) as error:
        raise InputError(str(error), file=fabric_file) from None
    job = _read_job(job_file, len(trace.ranks))
    for rank, place in enumerate(job.placement):
        if not fabric.has_gpu(place.host, place.slot):
            why = f"the fabric has no GPU at host {place.host!r} slot {place.slot}"
            raise InputError(why, file=job_file, field=f"placement of rank {rank}")
    switches = tuple(_simulated(switch, delay_ms, control_ms, inflight) for switch in fabric.switches)
    simulated = Fabric(
        fabric.hosts,
        fabric.gpus_per_host,
        fabric.ports_per_gpu,
        fabric.circuit_kind,
        switches,
        fabric.rails,
        fabric.attachments,
    )
    return cluster_of(trace, simulated, job)


def _read_job(file: Path, ranks: int) -> JobSpec:
    try:
        job = JobFile.model_validate(yaml.safe_load(read_bytes(file, MAX_JOB_BYTES))).spec()
        check_dimensions(job)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(first["msg"], file=file, field=field or "the document") from None
    except (CoreError, ValueError, yaml.YAMLError) as error:
        raise InputError(str(error), file=file) from None
    if len(job.placement) != ranks:
        why = f"the job has {len(job.placement)} ranks, the trace {ranks}"
        raise InputError(why, file=file, field="placement")
    return job


def _simulated(switch: Switch, delay_ms: float, control_ms: float | None, inflight: int) -> Switch:
    given = dict(switch.options).get("control_ms", 0.0)
    control = control_ms if control_ms is not None else given
    options = (("delay_ms", delay_ms), ("control_ms", control), ("max_inflight", inflight))
    return replace(switch, driver="simulated", options=options)
