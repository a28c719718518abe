"""Small training steps in memory: operation graphs of a few nodes, and the fabrics they run on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.inputs.system import System
from opus_sdn.whatif.scenario import Mode, Scenario
from opus_sdn.whatif.trace.model import (
    ALL_REDUCE,
    COLLECTIVE,
    COMPUTE,
    NO_PARTNER,
    RECEIVE,
    SEND,
    Graph,
    Group,
    Operation,
    RankTrace,
    Trace,
)

SYSTEM = System(memory_gbps=1000.0, peak_tflops=1.0, roofline=False)
UP_GBPS, OUT_GBPS = 400.0, 50.0
MB = 1 << 20


@dataclass
class Program:
    """One rank's nodes, in order; every method answers the node's position."""

    rank: int
    operations: list[Operation] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)
    partners: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)

    def _add(self, operation: Operation, partner: int, tag: int, after: Sequence[int]) -> int:
        self.operations.append(operation)
        self.after.append(tuple(after))
        self.partners.append(partner)
        self.tags.append(tag)
        return len(self.operations) - 1

    def compute(self, ns: int, *after: int) -> int:
        return self._add(Operation(COMPUTE, "compute", -1, 0, 0, ns), NO_PARTNER, 0, after)

    def reduce(self, group: int, size: int, *after: int) -> int:
        return self._add(Operation(COLLECTIVE, "reduce", ALL_REDUCE, size, 0, 0), group, 0, after)

    def send(self, peer: int, tag: int, size: int, *after: int) -> int:
        return self._add(Operation(SEND, f"send {tag}", -1, size, 0, 0), peer, tag, after)

    def receive(self, peer: int, tag: int, size: int, *after: int) -> int:
        return self._add(Operation(RECEIVE, f"receive {tag}", -1, size, 0, 0), peer, tag, after)

    def trace(self) -> RankTrace:
        children: list[list[int]] = [[] for _ in self.operations]
        for position, after in enumerate(self.after):
            for before in after:
                children[before].append(position)
        graph = Graph(
            tuple(range(len(self.operations))),
            tuple(self.operations),
            tuple(len(set(after)) for after in self.after),
            tuple(tuple(dict.fromkeys(found)) for found in children),
        )
        return RankTrace(self.rank, graph, tuple(self.partners), tuple(self.tags))


def trace_of(programs: Sequence[Program], groups: Sequence[Sequence[int]]) -> Trace:
    ranks = tuple(program.trace() for program in programs)
    named = tuple(Group(str(number), tuple(members)) for number, members in enumerate(groups))
    return Trace(ranks, named, tuple(rank.graph for rank in ranks), sum(len(rank.graph) for rank in ranks))


def grid(pp: int, dp: int, tp: int = 1) -> tuple[list[list[int]], Schedules]:
    """Data groups, then tensor groups, of ranks laid out (stage, tp, dp); and all topologies of stages."""
    inner = dp * tp
    world = pp * inner
    data = [[s * inner + t * dp + d for d in range(dp)] for s in range(pp) for t in range(tp)]
    tensor = [[s * inner + t * dp + d for t in range(tp)] for s in range(pp) for d in range(dp)]
    topologies = []
    for bits in range(1 << pp):
        rows = [[0.0] * world for _ in range(world)]
        pipeline = [bool(bits >> (pp - 1 - stage) & 1) for stage in range(pp)]
        for a in range(world):
            for b in range(world):
                stage, other = a // inner, b // inner
                if a == b:
                    continue
                near = abs(stage - other) in (1, pp - 1) and a % inner == b % inner
                sends = near and pipeline[stage] and pipeline[other]
                rings = a // dp == b // dp and not pipeline[stage]
                if stage == other and a % dp == b % dp:
                    rows[a][b] = UP_GBPS
                elif sends if stage != other else rings:
                    rows[a][b] = OUT_GBPS
        topologies.append(tuple(tuple(row) for row in rows))
    return data + tensor, Schedules(tuple(topologies))


def scenario_of(
    trace: Trace, schedules: Schedules, mode: Mode = Mode.ON_DEMAND, delay_ms: float = 0, **options: object
) -> Scenario:
    return Scenario(trace, SYSTEM, schedules, mode, delay_ms * 1e6, options=dict(options))


def pipeline_step(
    pp: int, dp: int, microbatches: int, *, rng: random.Random | None = None, layers: int = 2
) -> tuple[Trace, Schedules]:
    """Forward and backward of every microbatch through the stages, gradients reduced layer by layer.

    With `rng`, compute takes a random time that is the same on all ranks of a stage, and sizes vary.
    """
    groups, schedules = grid(pp, dp)
    programs = [Program(rank) for rank in range(pp * dp)]
    draw = rng or random.Random(0)
    cost = [[draw.randrange(50_000, 2_000_000) for _ in range(layers)] for _ in range(pp)]
    size = draw.choice((1, 4, 16)) * MB
    for rank, program in enumerate(programs):
        stage = rank // dp
        before, after = rank - dp, rank + dp
        came = {}
        for batch in range(microbatches):
            if stage:
                came["forward", batch] = program.receive(before, 2 * batch, size)
            if stage < pp - 1:
                came["backward", batch] = program.receive(after, 2 * batch + 1, size)
        ends = []
        for batch in range(microbatches):
            last = [came["forward", batch]] if stage else []
            for ns in cost[stage]:
                last = [program.compute(ns, *last)]
            ends.append(last[0])
            if stage < pp - 1:
                program.send(after, 2 * batch, size, *last)
        for batch in range(microbatches):
            last = [ends[batch], *([came["backward", batch]] if stage < pp - 1 else [])]
            for ns in cost[stage]:
                last = [program.compute(2 * ns, *last)]
                program.compute(1000, program.reduce(stage, 4 * size, *last))
            if stage:
                program.send(before, 2 * batch + 1, size, *last)
    return trace_of(programs, groups), schedules
