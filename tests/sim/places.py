"""Scenarios of the core's simulator as the API takes them: fabrics, jobs, and the circuits of streams."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from opus_sdn.fabric_file import FabricSpec
from opus_sdn.intent.fabric import Circuit, CircuitKind, Fabric
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import CoreSettings, Stream
from tests.intent.operations import VirtualJob

LAYOUTS = {True: "sided", False: "any_to_any"}


def fabric_spec(fabric: Fabric) -> FabricSpec:
    """The declaration from which this fabric is built; its rails must fill their positions in order."""
    first: dict[str, int] = {}
    for at in fabric.attachments:
        first[at.rail] = min(at.position, first.get(at.rail, at.position))
    document: dict[str, Any] = {
        "version": 1,
        "hosts": list(fabric.hosts),
        "gpus_per_host": fabric.gpus_per_host,
        "ports_per_gpu": fabric.ports_per_gpu,
        "circuit": fabric.circuit_kind.value,
        "nics_directed": fabric.circuit_kind is CircuitKind.DIRECTED,
        "switches": [
            {
                "name": switch.name,
                "driver": "emulated",
                "size": switch.size,
                "layout": LAYOUTS[switch.sided],
                "directed": fabric.circuit_kind is CircuitKind.DIRECTED,
            }
            for switch in fabric.switches
        ],
        "rails": [
            {
                "name": rail.name,
                "slots": list(rail.slots),
                "switch": rail.switch,
                "first_port": first[rail.name],
            }
            for rail in fabric.rails
        ],
    }
    spec = FabricSpec.model_validate_json(json.dumps(document))
    assert spec.build().attachments == fabric.attachments
    return spec


def job_body(job: VirtualJob, nonce: str, deadline_s: float) -> dict[str, Any]:
    """The body of PUT /jobs/{job}."""
    spec = job.spec
    body: dict[str, Any] = {
        "owner": spec.owner,
        "nonce": nonce,
        "placement": [
            {"rank": rank, "host": place.host, "slot": place.slot}
            for rank, place in enumerate(spec.placement)
        ],
        "dimensions": [{"name": d.name, "size": d.size} for d in spec.dimensions],
        "port_choice": spec.port_choice.value,
        "world_group": spec.world_group.value,
        "force_scale_out": spec.force_scale_out,
        "deadline_s": deadline_s,
    }
    if spec.initial_topology is not None:
        body["initial_topology"] = spec.initial_topology
    return body


def groups_body(job: VirtualJob, incarnation: int) -> dict[str, Any]:
    """The body of POST /jobs/{job}/groups."""
    groups = [
        {"name": g.name, "ranks": list(g.ranks), "dimension": g.dimension, "ordinal": g.ordinal}
        for g in job.groups
    ]
    return {"incarnation": incarnation, "groups": groups}


class Cabling:
    """Which circuits the operations of a job use."""

    def __init__(self, fabric: Fabric, job: VirtualJob) -> None:
        self._core = JobCore(fabric, CoreSettings(), job.spec, 1, 0.0)
        for group in job.groups:
            self._core.check_in(group)
        self.ranks = set(range(len(job.programs)))
        self.positions: dict[str, set[int]] = {}
        for at in fabric.attachments:
            if (at.port.host, at.port.slot) in self._core.rank_at:
                self.positions.setdefault(at.switch, set()).add(at.position)
        self.circuits = lru_cache(maxsize=None)(self._circuits)

    def _circuits(self, stream: Stream) -> tuple[Circuit, ...]:
        return self._core.connection(stream.connection).circuits

    def participants(self, stream: Stream) -> tuple[int, ...]:
        """Who takes part."""
        return self._core.connection(stream.connection).ranks
