"""Where ranks sit and whom each dimension joins.

Ranks are laid out stage, tensor, context, data, with data innermost: without a context dimension, as in the
published simulations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opus_sdn.whatif.trace.model import Group
from opus_sdn.whatif.workload.plan import Parallelism

TENSOR, DATA, CONTEXT, EXPERTS, REPLICAS = "tp", "dp", "cp", "ep", "edp"


@dataclass(frozen=True, slots=True)
class Layout:
    """Of a job. `dp` groups are the ranks that hold the same weights, `ep` those on one rail among which the
    experts of a layer are spread, `edp` those on one rail that hold the same experts.
    """

    plan: Parallelism

    def stage(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        return rank // (self.plan.tp * self.plan.line)

    def of_stage(self, rank: int, stage: int) -> int:
        """The same rank of another stage."""
        return rank + (stage - self.stage(rank)) * self.plan.tp * self.plan.line

    def sizes(self) -> dict[str, int]:
        """Ranks of a group in each dimension that has groups."""
        plan = self.plan
        spread = plan.experts_on_rail if plan.ep > 1 else 1
        found = {TENSOR: plan.tp, DATA: plan.line, CONTEXT: plan.cp, EXPERTS: spread}
        if 1 < spread < plan.line:
            found[REPLICAS] = plan.line // spread
        return {name: size for name, size in found.items() if size > 1}

    def groups(self, dimension: str) -> Iterator[tuple[int, ...]]:
        """All groups of a dimension, in ring order, ascending by their first ranks."""
        plan = self.plan
        size, line = self.sizes()[dimension], plan.line
        step = {
            TENSOR: line,
            DATA: 1,
            CONTEXT: plan.dp,
            EXPERTS: 1,
            REPLICAS: plan.experts_on_rail,
        }[dimension]
        for first in range(plan.ranks):
            if first // step % size == 0:
                yield tuple(range(first, first + step * size, step))

    def numbered(self) -> tuple[tuple[Group, ...], dict[str, list[int]]]:
        """The groups of all dimensions, and for each dimension the group of every rank by number."""
        groups: list[Group] = []
        of_rank: dict[str, list[int]] = {}
        for dimension in (DATA, TENSOR, CONTEXT, EXPERTS, REPLICAS):
            if dimension not in self.sizes():
                continue
            mine = of_rank[dimension] = [-1] * self.plan.ranks
            for ranks in self.groups(dimension):
                for rank in ranks:
                    mine[rank] = len(groups)
                groups.append(Group(str(len(groups) + 1), ranks))
        return tuple(groups), of_rank
