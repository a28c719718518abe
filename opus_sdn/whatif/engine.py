"""Loads what is to be replayed, and replays it with the semantics asked for.

Semantics are named here and imported when they are used. Each is a module with

    replay(scenario: Scenario, *, exact: bool, memo: object | None) -> Result
    new_memo() -> object | None

where `memo` holds what replays of one step share; replays with the same memo run one after another.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.network import DEFAULT_LATENCY_NS, MAX_DELAY_NS, MAX_LATENCY_NS
from opus_sdn.whatif.scenario import Mode, Scenario

if TYPE_CHECKING:
    from opus_sdn.whatif.inputs.hints import Hints
    from opus_sdn.whatif.inputs.schedules import Schedules
    from opus_sdn.whatif.inputs.system import System
    from opus_sdn.whatif.result import Result
    from opus_sdn.whatif.trace.model import Trace

SEMANTICS = {"peer": "opus_sdn.whatif.peer.replay", "opus": "opus_sdn.whatif.opus.run"}

DERIVE = "derive"


class Semantics(Protocol):
    """What a module of semantics offers."""

    def replay(self, scenario: Scenario, *, exact: bool, memo: object | None) -> Result:
        """One replay."""
        ...

    def new_memo(self) -> object | None:
        """What replays of one step may share."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A step and the machine it runs on: what all points of a sweep have in common."""

    trace: Trace
    system: System


def load_step(et: Path, groups: Path, system: Path) -> Step:
    """The step in these files. Raises InputError."""
    from opus_sdn.whatif.inputs.groups import read_groups
    from opus_sdn.whatif.inputs.system import read_system
    from opus_sdn.whatif.trace.load import load_trace

    step = Step(load_trace(et, read_groups(groups)), read_system(system))
    _refuse_too_small_shards(step, et)
    return step


def _refuse_too_small_shards(step: Step, et: Path) -> None:
    """A shard is gathered in as many chunks as the system file says, of at least a byte."""
    from opus_sdn.whatif.trace.model import ALL_GATHER

    splits = step.system.splits
    for graph in step.trace.graphs:
        for position in graph.communications:
            operation = graph.operations[position]
            if operation.collective == ALL_GATHER and operation.size < splits:
                why = f"a shard is gathered in {splits} chunks of at least a byte (preferred-dataset-splits)"
                node = graph.ids[position]
                raise InputError(why, file=et, node=node, field="comm_size", value=operation.size)


def make_scenario(
    step: Step,
    schedules: Schedules,
    *,
    mode: Mode = Mode.ON_DEMAND,
    delay_ns: float = 0.0,
    latency_ns: float = DEFAULT_LATENCY_NS,
    hints: Hints | None = None,
    options: dict[str, object] | None = None,
) -> Scenario:
    """A scenario over `schedules`, which for `static` become one topology with every link of all.

    Raises InputError.
    """
    for field, value, most in (
        ("delay_ms", delay_ns / 1e6, MAX_DELAY_NS / 1e6),
        ("latency_ns", latency_ns, MAX_LATENCY_NS),
    ):
        if not 0 <= value <= most:
            raise InputError(
                f"it must lie between 0 and {most:.0f}", file="scenario", field=field, value=value
            )
    if schedules.ranks != len(step.trace.ranks):
        why = f"the schedules join {schedules.ranks} ranks, the trace has {len(step.trace.ranks)}"
        raise InputError(why, file="schedules")
    if mode is Mode.STATIC:
        schedules = schedules.collapsed()
    if mode is Mode.IDEAL and schedules.stages:
        why = "for `ideal` they hold one topology, with the total bandwidth spread over the pairs that talk"
        raise InputError(why, file="schedules")
    return Scenario(step.trace, step.system, schedules, mode, delay_ns, latency_ns, hints, options or {})


def replay(
    scenario: Scenario,
    *,
    semantics: str = "peer",
    exact: bool = False,
    memo: object | None = None,
) -> Result:
    """Replay one scenario. Raises CannotFinishError, with the wait-for cycle, where the step hangs.

    `exact` asks for the plain event-by-event engine where there is one. `memo` comes from `new_memo` of the
    same semantics and makes further replays of one step faster.
    """
    began = time.perf_counter()
    result = load_semantics(semantics).replay(scenario, exact=exact, memo=memo)
    result.wall_s = time.perf_counter() - began
    return result


def load_semantics(name: str) -> Semantics:
    """The module of these semantics."""
    if name not in SEMANTICS:
        raise InputError(f"semantics are {', '.join(SEMANTICS)}", file="--semantics", value=name)
    return cast("Semantics", importlib.import_module(SEMANTICS[name]))
