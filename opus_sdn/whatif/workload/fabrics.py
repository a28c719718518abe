"""The topologies that a plan is replayed on, as the published simulations lay them out.

Scale-up: every rank of a host to every other. Scale-out: the rings of data parallelism, or the links to the
stages before and behind, whichever the stage's bit says.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.schedules import MAX_CELLS, MAX_TOPOLOGIES, Row, Schedules
from opus_sdn.whatif.workload.layout import TENSOR, Layout
from opus_sdn.whatif.workload.models import STUDY

PIPELINE = "pp"
MAX_STAGES = MAX_TOPOLOGIES.bit_length() - 1


def schedules_of(
    layout: Layout, scale_out_gbps: float, scale_up_gbps: float, *, extremes: bool = False
) -> Schedules:
    """A topology for every combination of stages, each with its rings (0) or its pipeline links (1).

    Pipeline links between two neighbour stages are there where both have chosen them; a stage has rings
    unless that gives it such a link. With `extremes` only the two in which all stages choose alike, which is
    enough where only the union counts. GB/s of 2^30 bytes. Raises InputError beyond a few thousand ranks.
    """
    plan = layout.plan
    if plan.pp > MAX_STAGES and not extremes:
        why = f"topologies of all combinations are written out for at most {MAX_STAGES} stages"
        raise InputError(why, file=STUDY, field="parallelism.pp", value=plan.pp)
    _refuse_large(plan.ranks, 4 * plan.ranks)
    stages, width = plan.pp, plan.tp * plan.line
    rings = _rings(layout)
    rows: dict[tuple[int, bool, bool], Row] = {}

    def row(rank: int, before: bool, behind: bool) -> Row:
        key = (rank, before, behind)
        if key not in rows:
            cells = [0.0] * plan.ranks
            for peer in _host(layout, rank):
                cells[peer] = scale_up_gbps
            if not before and not behind:
                for peer in rings[rank]:
                    cells[peer] = scale_out_gbps
            for linked, stage in ((before, layout.stage(rank) - 1), (behind, layout.stage(rank) + 1)):
                if linked:
                    cells[layout.of_stage(rank, stage % stages)] = scale_out_gbps
            rows[key] = tuple(cells)
        return rows[key]

    topologies = []
    last = (1 << stages) - 1
    for number in (0, last) if extremes else range(last + 1):
        bits = [bool(number >> (stages - 1 - stage) & 1) for stage in range(stages)]
        found: list[Row] = []
        for rank in range(plan.ranks):
            stage = rank // width
            others = stages > 1 and bits[stage]
            before, behind = others and bits[stage - 1], others and bits[(stage + 1) % stages]
            found.append(row(rank, before, behind))
        topologies.append(tuple(found))
    return Schedules(tuple(topologies))


def balanced_of(
    layout: Layout, traffic: Mapping[str, int], scale_out_gbps: float, scale_up_gbps: float
) -> Schedules:
    """One topology in which a rank has as much bandwidth as in any of the others.

    It is spread over the dimensions in proportion to the square root of their `traffic` (bytes), and evenly
    over a dimension's links. GB/s of 2^30 bytes. Raises InputError beyond a few thousand ranks.
    """
    plan = layout.plan
    _refuse_large(plan.ranks, plan.ranks)
    rings = _rings(layout)
    links = {TENSOR: plan.tp - 1, PIPELINE: min(2, plan.pp - 1)}
    outward = max(*map(len, rings), links[PIPELINE])
    total = links[TENSOR] * scale_up_gbps + outward * scale_out_gbps
    ringed = sum(sent for name, sent in traffic.items() if name not in links)
    weights = {
        TENSOR: sqrt(traffic.get(TENSOR, 0)),
        PIPELINE: sqrt(traffic.get(PIPELINE, 0)),
        "": sqrt(ringed),
    }
    links[""] = max(map(len, rings))
    share = {
        name: total * weights[name] / sum(weights.values()) / links[name] if links[name] else 0.0
        for name in weights
    }
    rows: list[Row] = []
    for rank in range(plan.ranks):
        cells = [0.0] * plan.ranks
        for peer in _host(layout, rank):
            cells[peer] = share[TENSOR]
        for peer in rings[rank]:
            cells[peer] = share[""]
        stage = layout.stage(rank)
        for other in {(stage - 1) % plan.pp, (stage + 1) % plan.pp} - {stage}:
            cells[layout.of_stage(rank, other)] = share[PIPELINE]
        rows.append(tuple(cells))
    return Schedules((tuple(rows),))


def _host(layout: Layout, rank: int) -> range:
    """The ranks of a rank's host, itself among them."""
    width = layout.plan.tp * layout.plan.line
    first = rank // width * width + rank % layout.plan.line
    return range(first, first + width, layout.plan.line)


def _rings(layout: Layout) -> list[set[int]]:
    """The neighbours of every rank in all rings that lie on rails."""
    found: list[set[int]] = [set() for _ in range(layout.plan.ranks)]
    for dimension in layout.sizes():
        if dimension == TENSOR:
            continue
        for ranks in layout.groups(dimension):
            for a, b in zip(ranks, ranks[1:] + ranks[:1], strict=True):
                found[a].add(b)
                found[b].add(a)
    return found


def _refuse_large(ranks: int, rows: int) -> None:
    if ranks * rows > MAX_CELLS:
        most = int((MAX_CELLS / 4) ** 0.5)
        why = f"topologies are written out for at most {most} ranks: more need the symmetric step"
        raise InputError(why, file=STUDY, field="parallelism", value=ranks)
