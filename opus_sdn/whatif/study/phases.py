"""Which change of phase a step waits for: what used the ports before, and what had to wait for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from opus_sdn.whatif.report import Document
from opus_sdn.whatif.workload import Parallelism

RINGS = "rings of stage {stage}"
FORWARD = "messages {low} to {high}"
BACKWARD = "gradients {high} to {low}"
NOTHING = "idle ports"
_HOST = re.compile(r"host(\d+):")


@dataclass(frozen=True, slots=True)
class Change:
    """Changes of one kind on the causal chain of a step's end, and what the step waited for them in all."""

    before: str
    after: str
    count: int
    waited_ms: float

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}"


def limiting_changes(document: Document, plan: Parallelism) -> list[Change]:
    """The changes that the end of a step hangs on, the costliest first, from a replay on our controller."""
    found: dict[tuple[str, str], list[float]] = {}
    for exposure in document.get("exposures", ()):
        if "intent" not in exposure:  # not from our controller
            continue
        pair = (_before(exposure, plan), _after(exposure, plan))
        found.setdefault(pair, []).append((exposure["lock_ns"] + exposure["switch_ns"]) / 1e6)
    changes = [Change(*pair, len(waits), sum(waits)) for pair, waits in found.items()]
    return sorted(changes, key=lambda change: -change.waited_ms)


def _after(exposure: dict[str, Any], plan: Parallelism) -> str:
    """What waited: a message between two stages, or a ring."""
    ranks = exposure["ranks"]
    stages = sorted({_stage_of_rank(rank, plan) for rank in ranks})
    if len(stages) == 1:
        return RINGS.format(stage=stages[0])
    sender, receiver = map(int, exposure["intent"].partition("[")[2].partition("]")[0].split(">"))
    forward = _stage_of_rank(sender, plan) < _stage_of_rank(receiver, plan)
    return (FORWARD if forward else BACKWARD).format(low=stages[0], high=stages[-1])


def _before(exposure: dict[str, Any], plan: Parallelism) -> str:
    """What used the ports of those that waited."""
    own = {_host_of_rank(rank, plan) for rank in exposure["ranks"]}
    found = [ends for ends in map(_hosts_of_circuit, exposure["disturbed"]) if not own.isdisjoint(ends)]
    return " and ".join(sorted(_names_of(found, plan))) or NOTHING


def _names_of(circuits: Iterable[tuple[int, int]], plan: Parallelism) -> set[str]:
    names = set()
    for a, b in circuits:
        low, high = sorted((a // plan.line, b // plan.line))
        names.add(RINGS.format(stage=low) if low == high else f"links {low} to {high}")
    return names


def _hosts_of_circuit(circuit: str) -> tuple[int, int]:
    """The hosts that a circuit joins, as `host0:1:1--host4:1:0` does."""
    first, second = (int(number) for number in _HOST.findall(circuit))
    return first, second


def _stage_of_rank(rank: int, plan: Parallelism) -> int:
    return rank // (plan.tp * plan.line)


def _host_of_rank(rank: int, plan: Parallelism) -> int:
    return _stage_of_rank(rank, plan) * plan.line + rank % plan.line
