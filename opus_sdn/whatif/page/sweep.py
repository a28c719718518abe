"""What is drawn of a sweep over delays."""

from __future__ import annotations

from collections.abc import Sequence

from opus_sdn.whatif.figures.model import Panel, Series
from opus_sdn.whatif.report import Document


def delay_panels(found: Sequence[Document]) -> list[Panel]:
    """Step time over delay: a panel for each bandwidth and latency, a line for each mode and semantics."""
    panels: dict[tuple[float | None, float], dict[str, list[tuple[float, float | None]]]] = {}
    for one in found:
        lines = panels.setdefault((one["bandwidth_gbps"], one["latency_ns"]), {})
        name = f"{one['mode']} ({one['semantics']})"
        lines.setdefault(name, []).append((one["delay_ms"], one.get("step_ms")))
    return [_panel(*place, lines) for place, lines in panels.items()]


def _panel(
    gbps: float | None, latency_ns: float, lines: dict[str, list[tuple[float, float | None]]]
) -> Panel:
    at = "bandwidth as in the schedules" if gbps is None else f"{gbps:g} GB/s"
    series = [
        Series(name, tuple(delay for delay, _ in points), tuple(step for _, step in points))
        for name, points in (
            (name, sorted(points, key=lambda point: point[0])) for name, points in lines.items()
        )
    ]
    title = f"Step time, {at}, latency {latency_ns:g} ns"
    return Panel(title, "switch delay (ms)", "step (ms)", tuple(series), log_x=True)
