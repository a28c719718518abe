"""What a run cost, as the controller recorded it: steps, grants, changes, device operations, exposed wait."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich import box
from rich.table import Table

from opus_sdn.demo.controller import Controller


@dataclass(frozen=True, slots=True)
class StepTime:
    """One training step: when it ended (seconds since 1970, rank 0) and how long it took."""

    ended_at: float
    seconds: float


@dataclass(slots=True)
class RunReport:
    """One line of the table, and one entry of report.json. Waits are in milliseconds."""

    name: str
    job: str
    delay_ms: int
    ranks: int
    step_seconds: list[float]
    grants: int = 0
    topology_changes: int = 0
    device_operations: int = 0
    exposed_wait_ms_by_step: list[float] = field(default_factory=list)
    exposed_wait_ms_by_grant: list[float] = field(default_factory=list)
    topology_history: dict[str, list[str]] = field(default_factory=dict)
    grants_by_dimension: dict[str, int] = field(default_factory=dict)
    groups_by_domain: dict[str, int] = field(default_factory=dict)
    witness_operations: int = 0
    witness_violations: int = 0
    results: list[str] = field(default_factory=list)
    results_gloo: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether every result (losses, or reduced values) equals plain gloo's in every digit."""
        return self.results == self.results_gloo


def collect(
    controller: Controller,
    name: str,
    job: str,
    delay_ms: int,
    steps: Sequence[StepTime],
    results: Sequence[str],
    results_gloo: Sequence[str],
) -> RunReport:
    """Read a finished run's figures from the controller's API and from the traffic witness."""
    view = controller.get(f"/jobs/{job}")
    events = controller.events(job)
    connections = {c["id"]: c for c in controller.all("/connections", job=job)}
    witness = controller.witness()
    report = RunReport(name, job, delay_ms, len(view["ranks"]), [step.seconds for step in steps])
    report.grants = view["grants"]
    report.topology_changes = view["topology_changes"]
    report.device_operations = view["device_steps"]
    granted = [event for event in events if event["kind"] == "intent.granted"]
    report.exposed_wait_ms_by_grant = [event["data"]["exposed_wait_ms"] for event in granted]
    report.exposed_wait_ms_by_step = waits_by_step(granted, connections, steps)
    report.topology_history = _history(events)
    for event in granted:
        dimension = connections[event["data"]["connection"]]["dimension"]
        report.grants_by_dimension[dimension] = report.grants_by_dimension.get(dimension, 0) + 1
    for group in controller.all(f"/jobs/{job}/groups"):
        domain = group["domain"]
        report.groups_by_domain[domain] = report.groups_by_domain.get(domain, 0) + 1
    report.witness_operations = witness["operations"]
    report.witness_violations = len(witness["violations"])
    report.results, report.results_gloo = list(results), list(results_gloo)
    return report


def _history(events: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Topology ids per rail, in the order in which the switches showed them."""
    history: dict[str, list[str]] = {}
    for event in events:
        if event["kind"] == "topology.changed":
            history.setdefault(event["rail"], []).append(event["data"]["new"])
    return history


def waits_by_step(
    granted: Sequence[Mapping[str, Any]],
    connections: Mapping[str, Mapping[str, Any]],
    steps: Sequence[StepTime],
) -> list[float]:
    """Per step the exposed wait of the rank that waited most, summed over its grants in that step."""
    ends = [step.ended_at for step in steps]
    waits: list[dict[int, float]] = [{} for _ in steps]
    for event in granted:
        step = bisect_left(ends, datetime.fromisoformat(event["at"]).timestamp())
        if step < len(waits):
            for rank in connections[event["data"]["connection"]]["ranks"]:
                waits[step][rank] = waits[step].get(rank, 0.0) + event["data"]["exposed_wait_ms"]
    return [round(max(ranks.values(), default=0.0), 3) for ranks in waits]


def table(reports: Sequence[RunReport]) -> Table:
    """The demonstration's last word, for people: a column for each run, so that it fits a narrow terminal."""
    shown = Table(title="What the controller recorded", box=box.SIMPLE)
    shown.add_column("", no_wrap=True)
    for report in reports:
        shown.add_column(report.name, justify="right", no_wrap=True)
    rows: dict[str, Callable[[RunReport], str]] = {
        "switch delay, ms": lambda run: str(run.delay_ms),
        "step, ms (median)": lambda run: f"{median(run.step_seconds) * 1e3:.1f}",
        "grants": lambda run: str(run.grants),
        "topology changes": lambda run: str(run.topology_changes),
        "device operations": lambda run: str(run.device_operations),
        "exposed ms/step": lambda run: f"{median(run.exposed_wait_ms_by_step):.1f}",
        "  the longest": lambda run: f"{max(run.exposed_wait_ms_by_step):.1f}",
        "final loss (a: sum)": lambda run: run.results[-1],
        "  plain gloo's": lambda run: run.results_gloo[-1],
        "violations": lambda run: str(run.witness_violations),
    }
    for heading, figure in rows.items():
        shown.add_row(heading, *(figure(report) for report in reports))
    return shown


def median(values: Sequence[float]) -> float:
    """The middle value; 0 of nothing."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
