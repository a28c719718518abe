"""The report of a study: one page with what was found, how it was found, and what it hangs on."""

from __future__ import annotations

import json
from typing import Any

from opus_sdn.whatif.figures.model import Panel, Series
from opus_sdn.whatif.page import html
from opus_sdn.whatif.page.plots import Spread, draw

FEW = 4  # windows of one kind, of which a distribution says nothing
STEP_COLUMNS = {
    "dp": "dp",
    "microbatches": "microbatches",
    "mode": "mode",
    "semantics": "semantics",
    "switch_ms": "optics, ms",
    "control_ms": "control, ms",
    "link_up_ms": "link-up, ms",
    "scale_out_gbps": "rail link, GB/s",
    "step_ms": "step, ms",
    "reference_ms": "reference, ms",
    "overhead_percent": "overhead, %",
    "exposures": "critical waits",
    "exposed_ms": "waited there, ms",
    "compute_utilisation": "computing, part",
    "cannot_finish": "cannot finish",
}
INPUTS = {
    "switch_ms": ("switching time of the optics", "ms"),
    "control_ms": ("control latency", "ms"),
    "link_up_ms": ("link-up time", "ms"),
    "scale_out_gbps": ("bandwidth of a rail link", "GB/s"),
    "dp": ("replicas, the batch staying as it is", "data parallelism"),
    "microbatches": ("microbatches of a replica", "count"),
}
MOVED = {
    "switch_ms": "optics",
    "control_ms": "control",
    "link_up_ms": "link-up",
    "scale_out_gbps": "rail bandwidth",
}


def study_page(found: dict[str, Any], source: str) -> str:
    """The page of a document of `run_study`; `source` is the study file's text."""
    parts = [
        html.paragraph(_about(found), "about"),
        *(html.paragraph(_headline(row, found["reference"]), "lead") for row in found["headlines"]),
        html.table(found["headlines"], STEP_COLUMNS),
    ]
    panels = sweep_panels(found)
    if panels:
        parts += [
            html.heading("Sweep"),
            html.figure(draw(panels), "step time and overhead over each swept input"),
        ]
    if found["windows"]:
        parts += _windows(found["windows"])
    if found["advice"] is not None:
        parts += _advice(found["advice"])
    if found["sensitivity"] is not None:
        parts += _sensitivity(found["sensitivity"])
    if found["cost"] is not None:
        parts += _cost(found["cost"])
    for name, rows in found["sweeps"].items():
        parts += [html.heading(f"All steps: {INPUTS[name][0]}"), html.table(rows, STEP_COLUMNS)]
    parts += [
        html.heading("How this was found"),
        html.bullets([*found["notes"], f"{found['steps_simulated']} steps were simulated"]),
        html.verbatim(source),
        html.paragraph("The workload that was generated:"),
        html.verbatim(json.dumps(found["workload"], indent=1)),
    ]
    return html.page(found["title"], parts)


def sweep_panels(found: dict[str, Any]) -> list[Panel]:
    """Step time and overhead over every swept input, a line for each mode."""
    panels = []
    for name, rows in found["sweeps"].items():
        what, unit = INPUTS[name]
        label = f"{what} ({unit})"
        log = name.endswith("_ms")
        modes = list(dict.fromkeys(row["mode"] for row in rows))
        steps = [_series(rows, mode, name, "step_ms") for mode in modes]
        own = [row for row in rows if row["mode"] == modes[0]]
        steps.append(
            Series(
                f"reference: {found['reference']}",
                tuple(row[name] for row in own),
                tuple(row["reference_ms"] for row in own),
            )
        )
        over = [_series(rows, mode, name, "overhead_percent") for mode in modes]
        panels.append(Panel("Step time", label, "step (ms)", tuple(steps), log_x=log))
        panels.append(
            Panel("Overhead over the reference", label, "overhead (%)", tuple(over), log_x=log, log_y=True)
        )
    return panels


def _series(rows: list[dict[str, Any]], mode: str, x: str, y: str) -> Series:
    own = [row for row in rows if row["mode"] == mode]
    return Series(mode, tuple(row[x] for row in own), tuple(row[y] for row in own))


def _about(found: dict[str, Any]) -> str:
    job = found["workload"]
    plan, batch = job["parallelism"], job["batch"]
    sizes = " x ".join(f"{name} {plan[name]}" for name in ("dp", "pp", "tp", "cp", "ep") if plan[name] > 1)
    return (
        f"{job['model']} on {job['gpus']} {job['accelerator']} in {job['hosts']} hosts; "
        f"{sizes or 'one GPU'}; {batch['size']} sequences of {batch['sequence']} tokens, "
        f"in {batch['microbatches']} microbatches for each replica; "
        f"operations counted as {job['preset']}"
    )


def _headline(row: dict[str, Any], reference: str) -> str:
    at = f"{row['mode']}, {row['switch_ms']:g} ms optics + {row['control_ms']:g} ms control"
    at += f" + {row['link_up_ms']:g} ms link-up" if row["link_up_ms"] else ""
    if row["step_ms"] is None:
        return f"{at}: the step cannot finish"
    return (
        f"{at}: a step takes {row['step_ms']:,.1f} ms, {row['overhead_percent']:+.2f} % over "
        f"{row['reference_ms']:,.1f} ms ({reference})"
    )


def _windows(windows: list[dict[str, Any]]) -> list[str]:
    overlapping = {each["pair"]: each["overlapping"] for each in windows if each["overlapping"]}
    says = "No phases overlap on the rails of a stage."
    if overlapping:
        names = ", ".join(f"{pair} ({count} times)" for pair, count in overlapping.items())
        says = f"Phases overlap on the rails of a stage, where a switch always shows: {names}."
    series = tuple(
        Series(each["pair"], *_distribution(each["lengths_ms"])) for each in windows if each["count"] >= FEW
    )
    parts = [html.heading("Windows between phases, every link up"), html.paragraph(says)]
    if series:
        panel = Panel("Windows", "length (ms)", "part of the windows that are shorter", series, kind="cdf")
        parts.append(html.figure(draw([panel]), "distribution of the windows for each transition"))
    columns = {
        "pair": "transition",
        "count": "in a step, all stages",
        "overlapping": "overlap",
        "smallest_ms": "smallest, ms",
        "median_ms": "median, ms",
        "largest_ms": "largest, ms",
        "stall_ms": "switches that do not fit, ms in all",
    }
    return [*parts, html.table(windows, columns)]


def _distribution(lengths: list[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Steps from 0 to 1, at every length one."""
    return (lengths[0], *lengths), tuple(number / len(lengths) for number in range(len(lengths) + 1))


def _advice(advice: dict[str, Any]) -> list[str]:
    parts = [
        html.heading(f"How slow may it be? Overhead under {advice['overhead_percent']:g} %"),
        html.bullets(limit["says"] for limit in advice["limits"]),
    ]
    for limit in advice["limits"]:
        if limit["changes"]:
            at = limit["over_ms"] if limit["over_ms"] is not None else limit["largest_ms"]
            parts += [
                html.paragraph(f"What a step waits for at {html.shown(at)} ms, {limit['mode']}:"),
                html.table(limit["changes"], _CHANGES),
            ]
    if advice["changes_now"]:
        mode = advice["alternatives_mode"]
        parts += [
            html.paragraph(f"What a step waits for on the fabric as studied, {mode}:"),
            html.table(advice["changes_now"], _CHANGES),
        ]
    if advice["alternatives"]:
        parts += [
            html.heading(f"What would change it ({advice['alternatives_mode']}, simulated)"),
            _alternatives(advice["alternatives"]),
        ]
    return parts


def _alternatives(outcomes: list[dict[str, Any]]) -> str:
    """A row for each alternative, with its step and overhead at every delay that was tried."""
    columns = {"name": "what is changed"}
    rows: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        row = rows.setdefault(outcome["name"], {"name": outcome["name"]})
        if outcome["refused"]:
            row["refused"] = outcome["refused"]
            continue
        delay = outcome["delay_ms"]
        columns |= {
            f"step_ms@{delay}": f"step at {delay:g} ms, ms",
            f"overhead@{delay}": f"overhead at {delay:g} ms, %",
            f"gain@{delay}": f"shorter at {delay:g} ms, %",
        }
        row |= {
            f"step_ms@{delay}": outcome["step_ms"],
            f"overhead@{delay}": outcome["overhead_percent"],
            f"gain@{delay}": outcome["gain_percent"],
            "reference_ms": outcome["reference_ms"],
            "overlapping": outcome["overlapping"],
        }
    columns |= {
        "reference_ms": "its reference, ms",
        "overlapping": "phases that overlap",
        "refused": "not simulated",
    }
    return html.table(list(rows.values()), columns)


_CHANGES = {"before": "used the ports", "after": "waited", "count": "times", "waited_ms": "waited, ms"}


def _sensitivity(found: dict[str, Any]) -> list[str]:
    rows = found["rows"]
    parts = [html.heading(f"What the overhead hangs on ({found['mode']})")]
    base = rows[0]["overhead_percent"]
    ranges: dict[str, list[float]] = {}
    for row in rows[1:]:
        if row["overhead_percent"] is not None:
            ranges.setdefault(MOVED.get(row["input"], row["input"]), []).append(row["overhead_percent"])
    if base is not None and ranges:
        bars = tuple((name, min(values), max(values)) for name, values in ranges.items())
        label = f"overhead (%), {base:.2f} as studied"
        spread = Spread("Each input halved and doubled", label, base, bars)
        parts.append(html.figure(draw([spread]), "range of the overhead for each input"))
    columns = {
        "input": "input",
        "value": "instead",
        "step_ms": "step, ms",
        "reference_ms": "reference, ms",
        "overhead_percent": "overhead, %",
        "refused": "not simulated",
    }
    shown = [row | {"input": MOVED.get(row["input"], row["input"])} for row in rows]
    return [*parts, html.table(shown, columns)]


def _cost(found: dict[str, Any]) -> list[str]:
    from opus_sdn.whatif.cost.plots import spreads

    parts = [html.heading("Cost and power of the network")]
    ratio = found["ratios"].get("rail")
    if ratio is not None and None not in ratio.values():
        parts.append(
            html.paragraph(
                f"A packet rail costs {html.shown(ratio['cost'])} times as much as the photonic one and "
                f"draws {html.shown(ratio['power'])} times the power.",
                "lead",
            )
        )
    columns = {
        "item": "part",
        "count": "count",
        "usd_each": "$ each",
        "usd": "$",
        "w_each": "W each",
        "w": "W",
    }
    for bill in found["bills"]:
        whole = {"item": "together", "usd": bill["usd"], "w": bill["w"]}
        parts += [
            html.paragraph(f"{bill['fabric']}: {bill['rule']}"),
            html.table([*bill["lines"], whole], columns),
        ]
    drawn = spreads(found)
    if drawn:  # over a photonic rail that costs and draws nothing there is no ratio
        parts.append(html.figure(draw(drawn), "range of the cost and power ratios for each input"))
    parts.append(html.bullets([found["prices"]["title"], *found["notes"]]))
    return parts
