"""The static step of a job of any size: one rank for each stage, because all ranks of a stage do the same.

Where every link is up, the members of a collective begin together, and each does what all others do: one of
them is enough, and the step is that of the whole job. With circuits that have to be waited for it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opus_sdn.whatif.inputs.network import DEFAULT_LATENCY_NS
from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.inputs.system import System
from opus_sdn.whatif.opus.network import Network
from opus_sdn.whatif.opus.outcome import Outcome, node_of
from opus_sdn.whatif.opus.replay import Replay
from opus_sdn.whatif.opus.rings import Flight, RingSolver
from opus_sdn.whatif.opus.transfers import End, Transfers
from opus_sdn.whatif.rings import flight_ns, ring_of
from opus_sdn.whatif.trace.model import NO_PARTNER, Group, RankTrace, Trace
from opus_sdn.whatif.workload.accelerators import Accelerator
from opus_sdn.whatif.workload.generate import Workload
from opus_sdn.whatif.workload.layout import TENSOR


class _OneOfEach(Transfers):
    """Links of one rank of each stage: collectives are with as many like it as the dimension has."""

    def __init__(
        self,
        trace: Trace,
        system: System,
        sizes: Mapping[str, int],
        gbps: Mapping[str, float],
        latency_ns: float,
    ) -> None:
        stages = len(trace.ranks)
        schedules = Schedules((tuple([(gbps["pp"],) * stages] * stages),))
        solver = RingSolver(system.endpoint_delay_ns)
        super().__init__(trace, system, Network(schedules), latency_ns, solver)
        self._names, self._members, self._gbps = tuple(sizes), sizes, gbps
        self._ring_free: dict[tuple[int, int], int] = {}

    def join_ring(self, rank: int, position: int, now: int) -> Sequence[End]:
        """All members are there as soon as one is."""
        own = self._trace.ranks[rank]
        dimension = own.partners[position]
        name = self._names[dimension]
        ring = ring_of(own.graph.operations[position], self._members[name], self._system)
        flight: Flight = flight_ns(ring.size, self._gbps[name], self._latency_ns)
        free = self._ring_free.get((rank, dimension), 0)
        base, ends, frees = self._solver.solve(ring, (flight,), [now], [free])
        self._ring_free[rank, dimension] = base + frees[0]
        return ((base + ends[0], rank, position, node_of(rank, position)),)


def symmetric_trace(workload: Workload) -> Trace:
    """One rank for each stage; the partner of a collective is the number of its dimension."""
    names = tuple(workload.layout.sizes())
    ranks = []
    for stage, program in enumerate(workload.programs):
        partners = tuple(
            [
                NO_PARTNER
                if role is None
                else role.stage
                if role.dimension is None
                else names.index(role.dimension)
                for role in program.roles
            ]
        )
        tags = tuple([0 if role is None else role.tag for role in program.roles])
        ranks.append(RankTrace(stage, program.graph, partners, tags))
    groups = tuple(Group(name, tuple(range(len(ranks)))) for name in names)
    nodes = sum(len(rank.graph) for rank in ranks)
    return Trace(tuple(ranks), groups, tuple(rank.graph for rank in ranks), nodes)


def static_outcome(
    workload: Workload,
    accelerator: Accelerator,
    *,
    scale_out_gbps: float | None = None,
    scale_up_gbps: float | None = None,
    latency_ns: float = DEFAULT_LATENCY_NS,
) -> Outcome:
    """When everything happens on one rank of each stage, with every link up. GB/s of 2^30 bytes."""
    outward = accelerator.scale_out_gbps if scale_out_gbps is None else scale_out_gbps
    inward = accelerator.scale_up_gbps if scale_up_gbps is None else scale_up_gbps
    sizes = workload.layout.sizes()
    gbps = {"pp": outward} | {name: inward if name == TENSOR else outward for name in sizes}
    trace, system = symmetric_trace(workload), accelerator.system(workload.efficiency)
    transfers = _OneOfEach(trace, system, sizes, gbps, latency_ns)
    return Replay(trace, system, transfers).run()
