"""Results of runs that were never made, for what is computed from them."""

from __future__ import annotations

from typing import Any

from opus_sdn.experiment.results import RunResult


def result(mode: str = "on-demand", delay_ms: float = 50.0, step_s: float = 1.0, **changes: Any) -> RunResult:
    """Four ranks on two hosts, six steps; a change of topology and two grants in each, if not native."""
    native = mode == "native"
    given: dict[str, Any] = {
        "run": f"prototype8-{mode}-1",
        "case": "prototype8",
        "mode": mode,
        "delay_ms": 0.0 if native else delay_ms,
        "ranks": 4,
        "hosts": 2,
        "gpus_per_host": 2,
        "steps": 6,
        "command": "",
        "seconds": [[step_s] * 6 for _ in range(4)],
        "losses": ["1.5"] * 6,
        "jobs": 0 if native else 1,
        "arrivals_seen": not native,
        "grants": 0 if native else 12,
        "topology_changes": 0 if native else 6,
        "exposed_ms": [] if native else [delay_ms] * 6,
    }
    return RunResult(**(given | changes))
