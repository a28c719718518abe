"""A replay as a document: what `-o json` prints and the API answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opus_sdn.whatif.errors import CannotFinishError
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.rings import ring_of
from opus_sdn.whatif.scenario import Scenario
from opus_sdn.whatif.trace.model import COLLECTIVE, COMPUTE, SEND, Operation

Document = dict[str, Any]


def document(scenario: Scenario, result: Result) -> Document:
    """The result with what it is a result of. Names carry their units; no name is ever left out."""
    return {
        "semantics": result.semantics,
        "mode": result.mode,
        "delay_ms": scenario.delay_ns / 1e6,
        "latency_ns": scenario.latency_ns,
        "ranks": len(scenario.trace.ranks),
        "operations": scenario.trace.nodes,
        "finish_ns": result.finish_ns,
        "step_ms": result.finish_ns / 1e6,
        "exposed_delay_ns": result.exposed_delay_ns,
        "exposures": [
            {
                "time_ns": exposure.time_ns,
                "topology": exposure.topology,
                "waited_ns": exposure.waited_ns,
                "rank": exposure.rank,
                "operation": exposure.operation,
                **exposure.details,
            }
            for exposure in result.exposures
        ],
        "reconfigurations": [list(found) for found in result.reconfigurations],
        "bytes_per_dimension": bytes_per_dimension(scenario),
        "compute_utilisation": round(compute_utilisation(scenario, result), 6),
        "details": result.details,
        "wall_s": round(result.wall_s, 4),
        "finish_ns_per_rank": result.finish_ns_per_rank,
    }


def stuck_document(scenario: Scenario, semantics: str, stuck: CannotFinishError) -> Document:
    """What is known of a step that cannot finish: `finish_ns` is None, `cycle` says who waits for whom."""
    return {
        "semantics": semantics,
        "mode": str(scenario.mode),
        "delay_ms": scenario.delay_ns / 1e6,
        "latency_ns": scenario.latency_ns,
        "finish_ns": None,
        "cannot_finish": str(stuck),
        "stuck_at_ns": stuck.time_ns,
        "unfinished_ranks": stuck.unfinished,
        "cycle": [asdict(wait) for wait in stuck.cycle],
    }


def bytes_per_dimension(scenario: Scenario) -> dict[str, int]:
    """What all links carry: `scale_up` in groups that never switch, `data` in others, `pipeline` messages."""
    trace = scenario.trace
    everywhere = [scenario.schedules.everywhere(group.ranks) for group in trace.groups]
    found = {"scale_up": 0, "data": 0, "pipeline": 0}
    per_rank: dict[tuple[Operation, int], int] = {}
    for rank in trace.ranks:
        for position in rank.graph.communications:
            operation, partner = rank.graph.operations[position], rank.partners[position]
            if operation.kind == SEND:
                found["pipeline"] += operation.size
            elif operation.kind == COLLECTIVE:
                key = (operation, trace.groups[partner].members)
                if key not in per_rank:
                    ring = ring_of(*key, scenario.system)
                    per_rank[key] = ring.chunks * ring.sends * ring.size
                found["scale_up" if everywhere[partner] else "data"] += per_rank[key]
    return found


def compute_utilisation(scenario: Scenario, result: Result) -> float:
    """The part of the step during which a rank computes, on average."""
    per_graph = {
        graph: sum(scenario.system.compute_ns(o) for o in graph.operations if o.kind == COMPUTE)
        for graph in scenario.trace.graphs
    }
    total = sum(per_graph[rank.graph] for rank in scenario.trace.ranks)
    return total / (result.finish_ns * len(scenario.trace.ranks)) if result.finish_ns else 0.0
