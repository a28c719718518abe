"""The windows between communication phases of a step: how much time a switch has, and where it has none.

A phase is a run of transfers of one parallelism dimension on the rails of a stage. The window between two
phases begins when the last transfer of the first one has ended on every rank, and ends when the slowest rank
begins the first transfer of the second. Below zero, the phases overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opus_sdn.whatif.trace.model import COMPUTE, RECEIVE, SEND
from opus_sdn.whatif.workload.generate import Workload
from opus_sdn.whatif.workload.layout import TENSOR

MESSAGES = "pp"

Times = Sequence[Sequence[int]]  # in ns, by rank and position
Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Phase:
    """`transfers` of one dimension in a row, which begin and end then; `size` in bytes on each rank."""

    dimension: str
    begin_ns: int
    end_ns: int
    transfers: int
    size: int


@dataclass(frozen=True, slots=True)
class Window:
    """Between two phases of a stage; `size` is what the second one moves."""

    stage: int
    before: str
    after: str
    begin_ns: int
    length_ns: int
    size: int

    @property
    def pair(self) -> str:
        """The transition, for people."""
        return f"{self.before} to {self.after}"

    def stall_ns(self, switch_ns: float) -> float:
        """What of a switch does not fit in."""
        return max(0.0, switch_ns - self.length_ns)


def phases_of(workload: Workload, started: Times, ended: Times) -> list[list[Phase]]:
    """The phases of each stage on its rails, in order of their begin.

    `started` and `ended` are of all ranks, or of one rank for each stage.
    """
    return [_phases(_transfers(workload, stage, started, ended)) for stage in range(workload.parallelism.pp)]


def windows_of(workload: Workload, started: Times, ended: Times) -> list[Window]:
    """All windows, stage by stage."""
    found = []
    for stage, phases in enumerate(phases_of(workload, started, ended)):
        for one, two in pairwise(phases):
            length = two.begin_ns - one.end_ns
            found.append(Window(stage, one.dimension, two.dimension, one.end_ns, length, two.size))
    return found


def changes_of_stage(phases: Sequence[Phase]) -> int:
    """How often a stage changes its dimension in a step that follows another one like it."""
    names = [phase.dimension for phase in phases]
    return sum(one != two for one, two in zip(names, names[1:] + names[:1], strict=True))


def windows_without_experts(stages: int) -> int:
    """How many windows a step has, in closed form, when every rank reduces its gradients once.

    On every stage but the first: gradients come in, are reduced, and go on to the stage before. The first one
    sends nothing on. Holds for GPipe and 1F1B, at any number of microbatches.
    """
    return 2 * stages - 1


def utilisation(
    compute_ns: Sequence[int], exposed_ns: Sequence[int], windows: Iterable[Window], switch_ns: float
) -> float:
    """Compute over compute, communication that is not hidden, and stalls; the mean of the stages.

    A stage's stall is the sum of what of each switch does not fit into its window.
    """
    stalls = [0.0] * len(compute_ns)
    for window in windows:
        stalls[window.stage] += window.stall_ns(switch_ns)
    parts = [
        busy / (busy + exposed + stall)
        for busy, exposed, stall in zip(compute_ns, exposed_ns, stalls, strict=True)
    ]
    return sum(parts) / len(parts)


def exposed_communication_ns(workload: Workload, started: Times, ended: Times) -> list[int]:
    """For each stage, how long its first rank communicates, inside its host too, and does not compute.

    A message counts from when it is sent; waiting for other stages does not.
    """
    per_stage = len(started) // workload.parallelism.pp
    sent = _sends(workload, started, per_stage)
    found = []
    for stage, program in enumerate(workload.programs):
        rank = stage * per_stage
        talks: list[tuple[int, int]] = []
        works: list[tuple[int, int]] = []
        for position, (operation, role) in enumerate(
            zip(program.graph.operations, program.roles, strict=True)
        ):
            begin, end = started[rank][position], ended[rank][position]
            if operation.kind == COMPUTE:
                works.append((begin, end))
            elif role is not None:
                if operation.kind == RECEIVE:
                    begin = sent[role.stage, stage, role.tag]
                talks.append((begin, end))
        found.append(_length([*talks, *works]) - _length(works))
    return found


def _length(intervals: Iterable[tuple[int, int]]) -> int:
    """Of the time that any of the intervals covers."""
    total = covered = 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, covered))
        covered = max(covered, end)
    return total


_Transfer = tuple[int, int, str, int]  # begin and end in ns, dimension, bytes


def _transfers(workload: Workload, stage: int, started: Times, ended: Times) -> list[_Transfer]:
    per_stage = len(started) // workload.parallelism.pp
    program = workload.programs[stage]
    sent = _sends(workload, started, per_stage)
    ranks = range(stage * per_stage, (stage + 1) * per_stage)
    found = []
    for position, (operation, role) in enumerate(zip(program.graph.operations, program.roles, strict=True)):
        if role is None or role.dimension == TENSOR:
            continue
        begin = max(started[rank][position] for rank in ranks)
        if operation.kind == RECEIVE:  # posted long before anything is sent
            begin = sent[role.stage, stage, role.tag]
        end = max(ended[rank][position] for rank in ranks)
        found.append((begin, end, role.dimension or MESSAGES, operation.size))
    return sorted(found)


def _sends(workload: Workload, started: Times, per_stage: int) -> dict[Key, int]:
    """When the slowest rank of a stage sets out each message, by sender, receiver and tag."""
    found: dict[Key, int] = {}
    for stage, program in enumerate(workload.programs):
        for position, operation in enumerate(program.graph.operations):
            role = program.roles[position]
            if operation.kind == SEND and role is not None:
                ranks = range(stage * per_stage, (stage + 1) * per_stage)
                found[stage, role.stage, role.tag] = max(started[rank][position] for rank in ranks)
    return found


def _phases(transfers: Sequence[_Transfer]) -> list[Phase]:
    found: list[Phase] = []
    for begin, end, dimension, size in transfers:
        if found and found[-1].dimension == dimension:
            last = found[-1]
            found[-1] = Phase(
                dimension, last.begin_ns, max(last.end_ns, end), last.transfers + 1, last.size + size
            )
        else:
            found.append(Phase(dimension, begin, end, 1, size))
    return found
