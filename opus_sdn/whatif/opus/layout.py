"""The fabric and the job that a trace implies: hosts, rails, groups and dimensions.

Ranks joined by collectives whose links are always up form one host. A slot of the hosts is a rail, with a
switch of its own. Messages get a group for every set of ranks that talk: the pipeline they are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opus_sdn.intent.fabric import Attachment, CircuitKind, Fabric, Port, Rail, Switch
from opus_sdn.intent.model import Dimension, GroupSpec, JobSpec, Place, PortChoice
from opus_sdn.intent.ranks import Layout
from opus_sdn.whatif.trace.model import RECEIVE, SEND, Trace

JOB = "replay"
PIPELINE, TENSOR, DATA = "pp", "tp", "dp"
NEVER_S = 1e9  # the job's deadline: a replay that hangs is found by having nothing left to do


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the controller is told: fabric, job, the trace's groups in their order, and a group per pipeline.

    `pipeline_of[r]` names the group of the ranks that rank r exchanges messages with, if it does.
    """

    fabric: Fabric
    job: JobSpec
    groups: tuple[GroupSpec, ...]
    pipelines: tuple[GroupSpec, ...]
    pipeline_of: dict[int, str]


def derive_cluster(
    trace: Trace,
    is_scale_up: Callable[[tuple[int, ...]], bool],
    *,
    port_choice: PortChoice = PortChoice.STANDARD,
    ports_per_gpu: int = 2,
    circuit_kind: CircuitKind = CircuitKind.DUPLEX,
    switch_options: dict[str, object] | None = None,
) -> Cluster:
    """The smallest regular cluster that a trace fits; `is_scale_up`: groups whose links are always up."""
    world = len(trace.ranks)
    groups = [group.ranks for group in trace.groups if len(group.ranks) > 1]
    hosts = _components(world, [ranks for ranks in groups if is_scale_up(ranks)])
    placement = [Place("", 0)] * world
    for number, members in enumerate(hosts):
        for slot, rank in enumerate(members):
            placement[rank] = Place(f"host{number}", slot)
    pipelines = pipelines_of(trace)
    dimensions = _dimensions(world, groups, is_scale_up, pipelines)
    fabric = regular_fabric(
        len(hosts), max(map(len, hosts)), ports_per_gpu, circuit_kind, switch_options or {}
    )
    job = JobSpec(JOB, "whatif", "1", tuple(placement), dimensions, port_choice, deadline_s=NEVER_S)
    return cluster_of(trace, fabric, job)


def cluster_of(trace: Trace, fabric: Fabric, job: JobSpec) -> Cluster:
    """A trace on a fabric and a placement that are given."""
    layout = Layout(job.dimensions, len(job.placement))
    seen: dict[tuple[int, ...], int] = {}
    groups = []
    for group in trace.groups:
        ordinal = seen[group.ranks] = seen.get(group.ranks, -1) + 1
        dimension = layout.dimension_of(group.ranks) or DATA
        groups.append(GroupSpec(f"g{group.name}", group.ranks, dimension, ordinal))
    pipelines = tuple(
        GroupSpec(f"{PIPELINE}-{number}", ranks, PIPELINE) for number, ranks in enumerate(pipelines_of(trace))
    )
    of_rank = {rank: spec.name for spec in pipelines for rank in spec.ranks}
    return Cluster(fabric, job, tuple(groups), pipelines, of_rank)


def regular_fabric(
    hosts: int, slots: int, ports: int, kind: CircuitKind, options: dict[str, object]
) -> Fabric:
    """Hosts of `slots` GPUs with `ports` ports each; every slot is a rail with a simulated switch."""
    names = tuple(f"host{number}" for number in range(hosts))
    sided = kind is not CircuitKind.BIDIRECTIONAL
    given = tuple(options.items())
    switches = tuple(
        Switch(f"ocs{slot}", "simulated", max(2, hosts * ports), sided, given) for slot in range(slots)
    )
    rails = tuple(Rail(f"rail{slot}", slot, f"ocs{slot}", (slot,)) for slot in range(slots))
    attachments = tuple(
        Attachment(Port(host, slot, index), f"rail{slot}", f"ocs{slot}", number * ports + index)
        for slot in range(slots)
        for number, host in enumerate(names)
        for index in range(ports)
    )
    return Fabric(names, slots, ports, kind, switches, rails, attachments)


def pipelines_of(trace: Trace) -> list[tuple[int, ...]]:
    """Sets of ranks that exchange messages, ascending."""
    talkers: dict[tuple[int, int], None] = {}
    for rank in trace.ranks:
        for operation, partner in zip(rank.graph.operations, rank.partners, strict=True):
            if operation.kind in (SEND, RECEIVE):
                talkers[rank.rank, partner] = None
    return [tuple(ranks) for ranks in _components(len(trace.ranks), list(talkers)) if len(ranks) > 1]


def _components(world: int, sets: Iterable[Sequence[int]]) -> list[list[int]]:
    """Ranks that the sets join, each component ascending, in order of their smallest members."""
    parent = list(range(world))

    def root(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for ranks in sets:
        for rank in ranks:
            a, b = sorted((root(ranks[0]), root(rank)))
            parent[b] = a
    found: dict[int, list[int]] = {}
    for rank in range(world):
        found.setdefault(root(rank), []).append(rank)
    return list(found.values())


def _dimensions(
    world: int,
    groups: Sequence[tuple[int, ...]],
    is_scale_up: Callable[[tuple[int, ...]], bool],
    pipelines: Sequence[tuple[int, ...]],
) -> tuple[Dimension, ...]:
    """Pipeline outermost, then tensor and data in the order in which every group is one line, else none.

    Where there is no such order, groups on rails may be parts of a line, as those of experts are.
    """
    dp = max((len(ranks) for ranks in groups if not is_scale_up(ranks)), default=1)
    tp = max((len(ranks) for ranks in groups if is_scale_up(ranks)), default=1)
    if world % (dp * tp):
        return ()
    tensor, data = Dimension(TENSOR, tp), Dimension(DATA, dp)
    inside = [ranks for ranks in groups if is_scale_up(ranks)]
    for lines in (groups, inside):
        for inner in ((tensor, data), (data, tensor)):
            layout = Layout((Dimension(PIPELINE, world // (dp * tp)), *inner), world)
            if all(layout.dimension_of(ranks) for ranks in (*lines, *pipelines)):
                return layout.dimensions
    return ()
