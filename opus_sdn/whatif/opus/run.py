"""One replay on our own controller, from scenario to result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opus_sdn.intent.fabric import CircuitKind
from opus_sdn.intent.model import PortChoice
from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.opus.bound import Bound, lower_bound
from opus_sdn.whatif.opus.causes import Exposed, exposed_steps
from opus_sdn.whatif.opus.control import Controller
from opus_sdn.whatif.opus.layout import Cluster, derive_cluster
from opus_sdn.whatif.opus.network import Network
from opus_sdn.whatif.opus.options import Options
from opus_sdn.whatif.opus.order import deferred, expected_orders
from opus_sdn.whatif.opus.outcome import Outcome
from opus_sdn.whatif.opus.replay import Replay
from opus_sdn.whatif.opus.rings import RingSolver
from opus_sdn.whatif.opus.stuck import cannot_finish
from opus_sdn.whatif.opus.transfers import Transfers
from opus_sdn.whatif.result import Exposure, Result
from opus_sdn.whatif.scenario import Mode, Scenario
from opus_sdn.whatif.trace.model import Trace

SEMANTICS = "opus"
NS_PER_MS = 1e6


@dataclass(slots=True)
class Memo:
    """What replays of one step share. Static outcomes are kept by link latency and by their schedules."""

    solvers: dict[int, RingSolver] = field(default_factory=dict)  # by endpoint delay
    orders: list[list[int]] | None = None
    static: dict[tuple[float, int], Outcome] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)  # schedules, whose ids are keys above

    later: Trace | None = None  # the step with its reductions deferred, and what its replays share
    of_later: Memo | None = None

    def deferred(self, scenario: Scenario) -> Trace:
        """The step with its reductions deferred."""
        self.later = self.later or deferred(scenario.trace, scenario.schedules.everywhere)
        return self.later

    def of_deferred(self) -> Memo:
        """What replays of the deferred step share."""
        self.of_later = self.of_later or Memo(self.solvers)
        return self.of_later

    def solver(self, endpoint_ns: int) -> RingSolver:
        """The solver of rings for this endpoint delay."""
        return self.solvers.setdefault(endpoint_ns, RingSolver(endpoint_ns))


def new_memo() -> Memo:
    """What replays of one step may share."""
    return Memo()


def replay(
    scenario: Scenario,
    *,
    exact: bool = False,
    memo: object | None = None,
    cluster: Cluster | None = None,
) -> Result:
    """Replay the scenario's step on the production controller; `cluster`: on this one, not a derived one.

    There is one engine, which is exact; with `exact` nothing that other replays have found is used. Raises
    InputError, and CannotFinishError with the circle of waits.
    """
    shared = memo if isinstance(memo, Memo) and not exact else Memo()
    options = Options.of(scenario.options)
    if options.defer_reductions:
        _require_topologies(scenario)
        scenario, shared = replace(scenario, trace=shared.deferred(scenario)), shared.of_deferred()
    network = Network(scenario.schedules)
    if scenario.mode in (Mode.STATIC, Mode.IDEAL):
        outcome = _play(scenario, options, network, shared, None)
        return _result(scenario, outcome)
    cluster = cluster or _cluster(scenario, options)
    controller = _controller(scenario, options, cluster, shared)
    outcome = _play(scenario, options, network, shared, controller)
    result = _result(scenario, outcome)
    _tell_control(result, scenario, outcome, controller)
    if options.lower_bound:
        key = (scenario.latency_ns, id(scenario.schedules))
        static = shared.static.get(key)
        if static is None:
            static = shared.static[key] = _play(scenario, options, network, shared, None)
            shared.kept.append(scenario.schedules)
        _tell_bound(result, scenario, static, lower_bound(scenario.trace, static, controller))
    return result


def _cluster(scenario: Scenario, options: Options) -> Cluster:
    """The cluster that the files describe, else the one that the trace implies."""
    delay_ms = scenario.delay_ns / NS_PER_MS
    if options.fabric is not None and options.job is not None:
        from opus_sdn.whatif.opus.files import read_cluster

        files = Path(options.fabric), Path(options.job)
        return read_cluster(scenario.trace, *files, delay_ms, options.control_ms, options.inflight)
    _require_topologies(scenario)
    return derive_cluster(
        scenario.trace,
        scenario.schedules.everywhere,
        port_choice=PortChoice(options.port_choice),
        ports_per_gpu=options.ports_per_gpu,
        circuit_kind=CircuitKind(options.circuit),
        switch_options={
            "delay_ms": delay_ms,
            "control_ms": options.control_ms or 0.0,
            "max_inflight": options.inflight,
        },
    )


def _require_topologies(scenario: Scenario) -> None:
    if len(scenario.schedules.topologies) < 2:
        why = "with one topology nothing is known of what is switched; it takes one per combination of stages"
        raise InputError(why, file="schedules", field="topologies", value=1)


def _controller(scenario: Scenario, options: Options, cluster: Cluster, memo: Memo) -> Controller:
    orders = None
    if scenario.mode is Mode.PROVISION:
        orders = memo.orders = memo.orders or expected_orders(scenario.trace)
    sizes = {dimension.name: dimension.size for dimension in cluster.job.dimensions}
    start = options.start_topology
    if start is None and sizes.get("dp", 1) > 1:
        start = "1" * sizes.get("pp", 1)
    return Controller(scenario.trace, cluster, options.settings(), orders, start)


def _play(
    scenario: Scenario, options: Options, network: Network, memo: Memo, controller: Controller | None
) -> Outcome:
    trace, system = scenario.trace, scenario.system
    solver = memo.solver(system.endpoint_delay_ns)
    transfers = Transfers(trace, system, network, scenario.latency_ns, solver)
    run = Replay(trace, system, transfers, controller, hold=options.hold)
    outcome = run.run()
    if outcome.unfinished:
        raise cannot_finish(trace, run, controller)
    return outcome


def _result(scenario: Scenario, outcome: Outcome) -> Result:
    return Result(
        SEMANTICS,
        scenario.mode.value,
        max(outcome.finish_ns, default=0),
        outcome.finish_ns,
        outcome.started_ns,
        outcome.ended_ns,
    )


def _tell_control(result: Result, scenario: Scenario, outcome: Outcome, controller: Controller) -> None:
    """What the controller and its switches did, and what it cost."""
    exposed = exposed_steps(outcome, controller)
    result.exposures = [_exposure(scenario.trace, found) for found in exposed]
    by_rail: dict[str, list[tuple[int, int | str]]] = {}
    for time_ns, rail, topology in controller.topology:
        by_rail.setdefault(rail, []).append((time_ns, topology))
    result.reconfigurations = next(iter(by_rail.values()), [])
    result.details |= {
        "topology": {rail: [list(found) for found in history] for rail, history in by_rail.items()},
        "grants": len(controller.grants),
        "device_steps": len(controller.steps),
        "hinted_steps": sum(bool(step.hinted) for step in controller.steps),
        "hosts": len(controller.cluster.fabric.hosts),
    }


def _tell_bound(result: Result, scenario: Scenario, static: Outcome, bound: Bound | None) -> None:
    """How the step compares with one whose circuits are always up, and with the best there can be."""
    static_ns = max(static.finish_ns, default=0)
    result.details |= {
        "static_ns": static_ns,
        "lost_to_switching_ns": result.finish_ns - static_ns,
        "lower_bound_ns": bound.at(round(scenario.delay_ns)) if bound is not None else None,
        "lower_bound_gaps_ns": list(bound.gaps_ns) if bound is not None else None,
    }


def _exposure(trace: Trace, found: Exposed) -> Exposure:
    rank, position = found.grant.nodes[-1]
    operation = trace.ranks[rank].graph.operations[position].name
    return Exposure(
        found.step.started_ns,
        None,
        found.lock_ns + found.switch_ns,
        rank,
        operation,
        _details_of(found),
    )


def _details_of(found: Exposed) -> dict[str, Any]:
    grant, step = found.grant, found.step
    return {
        "intent": f"{grant.stream}#{grant.n}",
        "ranks": sorted(rank for rank, _ in grant.nodes),
        "complete_ns": grant.complete_ns,
        "granted_ns": grant.granted_ns,
        "lock_ns": found.lock_ns,
        "switch_ns": found.switch_ns,
        "hinted": bool(step.hinted),
        "circuits": list(step.added),
        "disturbed": list(step.removed),
    }
