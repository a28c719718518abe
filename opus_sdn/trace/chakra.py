"""A recorded run as a step that what-if can replay: Chakra traces, groups, topologies and a machine.

A rank becomes the chain of what its host did: computing for as long as it was seen not to wait, calling
operations, waiting for them. Communication gets no recorded time: a replay is about how long it takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from opus_sdn.trace.model import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    MESSAGES,
    REDUCE_SCATTER,
    SEND,
    Act,
    Key,
    Recording,
    TraceError,
)
from opus_sdn.whatif.trace import model as chakra
from opus_sdn.whatif.trace.write import write_trace

WORLD: Final = "world"
STAGES_MAX: Final = 12  # 2^stages topologies are written
GATHER_BYTES_MIN: Final = 4
TAGS: Final = 1 << 32  # of one group
COLLECTIVES: Final = {
    ALL_REDUCE: chakra.ALL_REDUCE,
    ALL_GATHER: chakra.ALL_GATHER,
    REDUCE_SCATTER: chakra.REDUCE_SCATTER,
    ALL_TO_ALL: chakra.ALL_TO_ALL,
}
SYSTEM: Final = {
    "endpoint-delay": 10,
    "preferred-dataset-splits": 4,
    "local-mem-bw": 4800,
    "peak-perf": 989,
    "roofline-enabled": 0,
}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written below `folder`; `dropped` operations had no counterpart in the traces."""

    folder: Path
    nodes: int
    groups: int
    topologies: int
    dropped: int


def export(
    recording: Recording, folder: Path, *, scale_out_gbps: float = 50.0, scale_up_gbps: float = 450.0
) -> Exported:
    """Write `workload.<rank>.et`, `workload.json`, `system.json` and `schedules.txt`.

    Bandwidths are in GB/s of 2^30 bytes. Raises TraceError for a recording that is no whole run, OSError.
    """
    if recording.missing():
        few = ", ".join(map(str, recording.missing()[:8]))
        raise TraceError(f"{recording.name}: there is no trace of rank {few}; a replay needs all ranks")
    whole = _whole(recording)
    groups = _groups(recording, whole)
    trace = _trace(recording, whole, groups)
    topologies = _topologies(recording, whole, scale_out_gbps, scale_up_gbps)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("workload.*.et"):
        stale.unlink()
    write_trace(trace, folder / "workload")
    names = {group.name: list(group.ranks) for group in groups}
    (folder / "workload.json").write_text(json.dumps(names) + "\n", encoding="utf-8")
    (folder / "system.json").write_text(json.dumps(SYSTEM, indent=2) + "\n", encoding="utf-8")
    with (folder / "schedules.txt").open("w", encoding="utf-8") as file:
        for number, rows in enumerate(topologies):
            lines = (" ".join(f"{cell:.6f}" for cell in row) for row in rows)
            file.write("\n".join([f"BW {number}", *lines, "END", "", ""]))
    dropped = sum(len(rank.acts) for rank in recording.ranks) - sum(len(acts) for acts in whole.values())
    return Exported(folder, trace.nodes, len(groups), len(topologies), dropped)


def _whole(recording: Recording) -> dict[int, list[Act]]:
    """Operations that all their participants have recorded: a run that was cut short has others."""
    seen: dict[Key, set[int]] = {}
    for act in recording.acts():
        seen.setdefault(act.key, set()).add(act.rank)
    return {
        rank.rank: [act for act in rank.acts if seen[act.key] >= set(_participants(act))]
        for rank in recording.ranks
    }


def _participants(act: Act) -> tuple[int, ...]:
    if act.key.source is not None and act.key.destination is not None:
        return (act.key.source, act.key.destination)
    return act.what.ranks or (act.rank,)


def _groups(recording: Recording, whole: Mapping[int, Sequence[Act]]) -> tuple[chakra.Group, ...]:
    """Groups with collectives; the world's goes over the front-end network and is recorded time."""
    found: dict[str, tuple[int, ...]] = {}
    for acts in whole.values():
        for act in acts:
            if not _is_recorded_time(act, recording.world) and act.kind not in MESSAGES:
                found.setdefault(act.what.group, act.what.ranks)
    return tuple(chakra.Group(name, ranks) for name, ranks in sorted(found.items()))


def _is_recorded_time(act: Act, world: int) -> bool:
    """On the front-end network, or within one rank: no links of ours are involved."""
    if act.kind in MESSAGES:
        return False
    ungated_world = len(act.what.ranks) == world and act.what.connection is None and act.dimension == WORLD
    return ungated_world or len(act.what.ranks) < 2


def _trace(
    recording: Recording, whole: Mapping[int, Sequence[Act]], groups: Sequence[chakra.Group]
) -> chakra.Trace:
    numbers = {group.name: number for number, group in enumerate(groups)}
    names = sorted({act.what.group for acts in whole.values() for act in acts})
    tags = {name: number for number, name in enumerate(names)}
    ranks = []
    for rank in recording.ranks:
        builder = _Rank(rank.rank, recording.world, numbers, tags)
        builder.add(whole[rank.rank])
        ranks.append(builder.trace())
    graphs = tuple(rank.graph for rank in ranks)
    return chakra.Trace(tuple(ranks), tuple(groups), graphs, sum(len(graph) for graph in graphs))


class _Rank:
    """Builds one rank's graph, node by node in the order of what the host did."""

    def __init__(self, rank: int, world: int, groups: Mapping[str, int], tags: Mapping[str, int]) -> None:
        self._rank, self._world, self._groups, self._tags = rank, world, groups, tags
        self._operations: list[chakra.Operation] = []
        self._dependencies: list[tuple[int, ...]] = []
        self._partners: list[int] = []
        self._own_tags: list[int] = []
        self._tail: tuple[int, ...] = ()  # what the host's next deed comes after

    def add(self, acts: Sequence[Act]) -> None:
        """All of its operations."""
        node_of: dict[int, int] = {}
        now = acts[0].begin if acts else 0
        for at, is_wait, act in sorted(_deeds(acts), key=lambda deed: (deed[0], deed[1], deed[2].number)):
            now = self._compute(now, at)
            if not is_wait:
                node_of[act.number] = self._operation(act)
            else:
                self._tail = tuple(dict.fromkeys((*self._tail, node_of[act.number])))
                now = max(now, act.wait_end)

    def trace(self) -> chakra.RankTrace:
        """The rank as what-if has it."""
        children: list[list[int]] = [[] for _ in self._operations]
        for node, dependencies in enumerate(self._dependencies):
            for dependency in dependencies:
                children[dependency].append(node)
        graph = chakra.Graph(
            ids=tuple(range(len(self._operations))),
            operations=tuple(self._operations),
            indegree=tuple(len(dependencies) for dependencies in self._dependencies),
            children=tuple(tuple(found) for found in children),
        )
        return chakra.RankTrace(self._rank, graph, tuple(self._partners), tuple(self._own_tags))

    def _compute(self, begin: int, end: int) -> int:
        """Time in which the host did not wait, in whole microseconds; returns up to where it is told."""
        micros = (end - begin) // 1000
        if micros < 1:
            return begin
        operation = chakra.Operation(chakra.COMPUTE, "host", -1, 0, 0, micros * 1000)
        self._tail = (self._node(operation),)
        return begin + micros * 1000

    def _operation(self, act: Act) -> int:
        if _is_recorded_time(act, self._world):
            took = max(1000, act.end - act.begin) // 1000 * 1000
            return self._node(chakra.Operation(chakra.COMPUTE, act.what.kind, -1, 0, 0, took))
        if act.kind in MESSAGES:
            kind = chakra.SEND if act.kind == SEND else chakra.RECEIVE
            peer = act.key.destination if act.kind == SEND else act.key.source
            assert peer is not None  # a message has two ends
            tag = self._tags[act.what.group] * TAGS + act.key.n
            operation = chakra.Operation(kind, act.what.kind, -1, max(1, act.size), 0, 0)
            return self._node(operation, peer, tag)
        members = len(act.what.ranks)
        collective = COLLECTIVES.get(act.kind, chakra.ALL_REDUCE)
        size = max(1, act.size)
        if collective == chakra.ALL_GATHER:  # told by its shard
            size = max(GATHER_BYTES_MIN, act.size // members)
        operation = chakra.Operation(chakra.COLLECTIVE, act.what.kind, collective, size, 0, 0)
        return self._node(operation, self._groups[act.what.group])

    def _node(self, operation: chakra.Operation, partner: int = chakra.NO_PARTNER, tag: int = 0) -> int:
        self._operations.append(operation)
        self._dependencies.append(self._tail)
        self._partners.append(partner)
        self._own_tags.append(tag)
        return len(self._operations) - 1


def _deeds(acts: Sequence[Act]) -> Iterator[tuple[int, bool, Act]]:
    """When the host called or began to wait; of one moment, calls come first."""
    for act in acts:
        yield act.begin, False, act
        if act.wait_end:
            yield max(act.wait_begin, act.begin), True, act


def _topologies(
    recording: Recording, whole: Mapping[int, Sequence[Act]], scale_out: float, scale_up: float
) -> list[list[list[float]]]:
    """One for each choice of pipeline links (bit 1) or rings (bit 0) by the stages, stage 0 in the highest
    bit: a stage has its rings unless it and a neighbour have chosen their pipeline links.
    """
    stages = dict(recording.dimensions).get("pp", 1)
    if stages > STAGES_MAX:
        raise TraceError(
            f"{recording.name}: {stages} pipeline stages; topologies are written for {STAGES_MAX}"
        )
    if recording.world % stages:
        raise TraceError(f"{recording.name}: {recording.world} ranks do not divide into {stages} stages")
    size = recording.world // stages
    always, rings, pairs = _links(recording, whole, size)
    found = []
    for bits in range(1 << stages if stages > 1 else 1):
        chosen = [bool(bits >> (stages - 1 - stage) & 1) for stage in range(stages)]
        paired = {
            s for s in range(stages) if chosen[s] and any(chosen[max(0, s - 1) : s] + chosen[s + 1 : s + 2])
        }
        rows = [[0.0] * recording.world for _ in range(recording.world)]
        for rank in range(recording.world):
            rows[rank][rank] = scale_up
        for a, b in always:
            rows[a][b] = rows[b][a] = scale_up
        for a, b in rings:
            if a // size not in paired:
                rows[a][b] = rows[b][a] = scale_out
        for a, b in pairs:
            if stages == 1 or (a // size in paired and b // size in paired):
                rows[a][b] = rows[b][a] = scale_out
        found.append(rows)
    return found


def _links(
    recording: Recording, whole: Mapping[int, Sequence[Act]], stage_size: int
) -> tuple[set[tuple[int, int]], set[tuple[int, int]], set[tuple[int, int]]]:
    """Pairs of ranks joined inside hosts, by rings within a stage, and between stages."""
    always: set[tuple[int, int]] = set()
    rings: set[tuple[int, int]] = set()
    pairs: set[tuple[int, int]] = set()
    for acts in whole.values():
        for act in acts:
            if _is_recorded_time(act, recording.world):
                continue
            members = _participants(act)
            closed = (*members, members[0]) if act.kind not in MESSAGES else members
            for a, b in pairwise(closed):
                link = (min(a, b), max(a, b))
                if act.what.connection is None and recording.dimensions:
                    always.add(link)
                elif a // stage_size == b // stage_size:
                    rings.add(link)
                else:
                    pairs.add(link)
    return always, rings - always, pairs - always
