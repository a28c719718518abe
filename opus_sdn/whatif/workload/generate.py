"""From a model and a plan to a step: one program per stage, shared by all its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from opus_sdn.whatif.engine import Step
from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.rings import ring_of
from opus_sdn.whatif.trace.load import MAX_NODES
from opus_sdn.whatif.trace.model import COLLECTIVE, COMPUTE, NO_PARTNER, SEND, Group, RankTrace, Trace
from opus_sdn.whatif.workload import physical, stg
from opus_sdn.whatif.workload.accelerators import Accelerator
from opus_sdn.whatif.workload.fabrics import PIPELINE, balanced_of, schedules_of
from opus_sdn.whatif.workload.layout import TENSOR, Layout
from opus_sdn.whatif.workload.models import Model
from opus_sdn.whatif.workload.plan import PHYSICAL, RAIL, STG, Batch, Parallelism, check_plan, refused
from opus_sdn.whatif.workload.program import Program

# The part of the peak that matrix products reach, where nothing is said: the published accounting has none,
# and large products in bf16 come to about 0.7 on the GPUs of the table.
EFFICIENCY = {STG: 1.0, PHYSICAL: 0.7}


@dataclass(frozen=True)
class Workload:
    """A step of training. `programs[s]` is what every rank of stage s runs.

    `efficiency`: the part of a GPU's peak that matrix products reach.
    """

    model: Model
    parallelism: Parallelism
    batch: Batch
    preset: str
    efficiency: float
    programs: tuple[Program, ...] = field(repr=False)

    @property
    def layout(self) -> Layout:
        """Where its ranks sit."""
        return Layout(self.parallelism)

    @cached_property
    def trace(self) -> Trace:
        """The step as the replays take it. Ranks of one stage share a graph."""
        return _trace(self.programs, self.layout, *self.layout.numbered())

    @property
    def rail_layout(self) -> Layout:
        """Where the ranks of one rail sit."""
        plan = self.parallelism
        return Layout(replace(plan, tp=1, ep=plan.experts_on_rail, expert_placement=RAIL))

    @cached_property
    def rail_trace(self) -> Trace:
        """One rail of the step. All rails do the same, so that a host is one rank, which stands for all.

        For our own semantics only: the published ones let the order of equal ranks decide.
        """
        groups, of_rank = self.rail_layout.numbered()
        host = self.parallelism.tp
        folded = tuple([Group(f"host{rank}", (rank,), host) for rank in range(self.rail_layout.plan.ranks)])
        of_rank[TENSOR] = [len(groups) + rank for rank in range(len(folded))]
        return _trace(self.programs, self.rail_layout, groups + folded, of_rank)

    def rail_step(self, accelerator: Accelerator) -> Step:
        """One rail of the step on this GPU."""
        return Step(self.rail_trace, accelerator.system(self.efficiency))

    def rail_schedules(self, scale_out_gbps: float, scale_up_gbps: float) -> Schedules:
        """The two extreme topologies of one rail, in GB/s of 2^30 bytes. Raises InputError."""
        return schedules_of(self.rail_layout, scale_out_gbps, scale_up_gbps, extremes=True)

    def step(self, accelerator: Accelerator) -> Step:
        """The step on this GPU."""
        return Step(self.trace, accelerator.system(self.efficiency))

    def schedules(self, scale_out_gbps: float, scale_up_gbps: float) -> Schedules:
        """The topologies that its stages can choose, in GB/s of 2^30 bytes. Raises InputError."""
        return schedules_of(self.layout, scale_out_gbps, scale_up_gbps)

    def balanced(self, scale_out_gbps: float, scale_up_gbps: float) -> Schedules:
        """The one topology of the reference `ideal`. Raises InputError."""
        return balanced_of(self.layout, self.bytes_per_dimension(), scale_out_gbps, scale_up_gbps)

    def bytes_per_dimension(self) -> dict[str, int]:
        """What all ranks put on links in a step, by dimension; messages are `pp`."""
        sizes = self.layout.sizes()
        found = dict.fromkeys([*sizes, PIPELINE], 0)
        system = Accelerator("", 1, 1, 1, 1, 1, 1, "").system()
        for program in self.programs:
            for operation, role in zip(program.graph.operations, program.roles, strict=True):
                if operation.kind == COLLECTIVE and role is not None and role.dimension is not None:
                    ring = ring_of(operation, sizes[role.dimension], system)
                    found[role.dimension] += ring.chunks * ring.sends * ring.size
                elif operation.kind == SEND:
                    found[PIPELINE] += operation.size
        per_stage = self.parallelism.ranks // self.parallelism.pp
        return {name: sent * per_stage for name, sent in found.items() if sent}

    def compute_ns(self, accelerator: Accelerator) -> list[int]:
        """How long a rank of each stage computes."""
        system = accelerator.system(self.efficiency)
        return [
            sum(system.compute_ns(o) for o in program.graph.operations if o.kind == COMPUTE)
            for program in self.programs
        ]

    def write(
        self,
        folder: Path,
        accelerator: Accelerator,
        *,
        scale_out_gbps: float | None = None,
        scale_up_gbps: float | None = None,
    ) -> None:
        """The step as files, in the published simulator's formats. Raises InputError and OSError."""
        from opus_sdn.whatif.workload.files import write_workload

        write_workload(
            self,
            folder,
            accelerator,
            accelerator.scale_out_gbps if scale_out_gbps is None else scale_out_gbps,
            accelerator.scale_up_gbps if scale_up_gbps is None else scale_up_gbps,
        )


def generate(
    model: Model,
    parallelism: Parallelism,
    batch: Batch,
    *,
    preset: str = PHYSICAL,
    efficiency: float | None = None,
) -> Workload:
    """The step. Raises InputError with the field, its value and what would fit."""
    check_plan(model, parallelism, batch, preset)
    pieces = even_layers(model.layers, parallelism.pp * parallelism.virtual_stages)
    if preset == STG:
        programs = tuple(
            stg.stage_program(model, parallelism, batch, own, stage) for stage, own in enumerate(pieces)
        )
    else:
        programs = physical.stage_programs(model, parallelism, batch, pieces)
    reached = EFFICIENCY[preset] if efficiency is None else efficiency
    return Workload(model, parallelism, batch, preset, reached, programs)


def _trace(
    programs: Sequence[Program], layout: Layout, groups: Sequence[Group], of_rank: Mapping[str, Sequence[int]]
) -> Trace:
    """The trace of all ranks; `of_rank` numbers the group of each in every dimension."""
    nodes = sum(len(program.graph) for program in programs) * layout.plan.ranks // layout.plan.pp
    if nodes > MAX_NODES:
        why = f"{nodes} operations of all ranks, at most {MAX_NODES}: fewer microbatches or ranks"
        raise refused("batch.microbatches", layout.plan.ranks, why)
    tags = [tuple([0 if role is None else role.tag for role in p.roles]) for p in programs]
    ranks: list[RankTrace] = []
    for rank in range(layout.plan.ranks):
        stage = layout.stage(rank)
        partners = [
            NO_PARTNER
            if role is None
            else layout.of_stage(rank, role.stage)
            if role.dimension is None
            else of_rank[role.dimension][rank]
            for role in programs[stage].roles
        ]
        ranks.append(RankTrace(rank, programs[stage].graph, tuple(partners), tags[stage]))
    graphs = tuple(dict.fromkeys(program.graph for program in programs))
    return Trace(tuple(ranks), tuple(groups), graphs, nodes)


def even_layers(layers: int, pieces: int) -> list[range]:
    """Layers of each piece in order: as equal as can be, the first ones taking one more."""
    least, more = divmod(layers, pieces)
    found, at = [], 0
    for piece in range(pieces):
        end = at + least + (piece < more)
        found.append(range(at, end))
        at = end
    return found
