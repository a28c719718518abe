"""The page on which a person watches the switch. It needs no script: the browser fetches it anew."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opus_sdn.drivers.polatis_emulator.emulator import PolatisEmulator

REFRESH_S = 1
ACTIVITIES_SHOWN = 20
NOBODY = "(not logged in)"
ROW_PX, DRAWN_PORTS_MAX = 16, 128

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; max-width: 72em; color: #222; background: #fff }
h1 { font-size: 1.4em; margin: 0 0 .2em } h2 { font-size: 1.1em; margin: 1.6em 0 .4em }
table { border-collapse: collapse } td, th { padding: .15em 1.2em .15em 0; text-align: left }
td, text { font-variant-numeric: tabular-nums } .dim { color: #666 }
.lit { color: #176b2c } .dark { color: #a11 } .moving { color: #a60 }
svg { background: #fafafa; border: 1px solid #ddd } svg text { font-size: 10px; fill: #444 }
line.lit { stroke: #2a9d4a; stroke-width: 1.6 } line.dark { stroke: #c33; stroke-dasharray: 4 3 }
line.moving { stroke: #e08a00; stroke-dasharray: 1 3; stroke-width: 2 }
.columns { display: flex; gap: 3em; flex-wrap: wrap; align-items: flex-start }
"""


def write_page(emulator: PolatisEmulator) -> str:
    """The whole page, of the state at this moment."""
    spec, device = emulator.spec, emulator.device
    table = device.table
    lit = sum(device.optics.is_lit(egress) for egress in table.values())
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f"<meta http-equiv=refresh content={REFRESH_S}>",
        f"<title>{len(table)} circuits - {escape(spec.model_name)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(spec.model_name)}</h1>",
        f"<p class=dim>Emulated switch, {escape(spec.size_text)}, firmware {escape(spec.firmware)}.",
        f" RESTCONF {escape(emulator.restconf_url)}/api, TL1 {escape(emulator.tl1_address)}</p>",
        f"<p>{len(table)} circuits, <span class=lit>{lit} lit</span>, ",
        f"<span class=dark>{len(table) - lit} without light</span></p>",
        "<div class=columns>",
        _drawing(emulator),
        _circuits(emulator),
        "</div>",
        _faults(emulator),
        _activities(emulator),
        _sessions(emulator),
        "</body></html>",
    ]
    return "".join(parts)


def _state(emulator: PolatisEmulator, ingress: int, egress: int) -> str:
    optics = emulator.device.optics
    if optics.is_lit(egress):
        return "lit"
    return "moving" if {ingress, egress} & optics.moving else "dark"


def _drawing(emulator: PolatisEmulator) -> str:
    """The two sides with a line for each circuit; nothing for switches too large, or without sides."""
    layout = emulator.spec.layout
    if layout.any_to_any or len(layout.ports) > DRAWN_PORTS_MAX:
        return ""
    height = (max(layout.ingress, layout.egress) + 1) * ROW_PX
    drawn = [f'<svg width="300" height="{height}" role="img" aria-label="circuits">']
    for port in layout.ports:
        left = port <= layout.ingress
        y = _row(emulator, port)
        anchor, x = ("end", 34) if left else ("start", 266)
        drawn.append(f'<text x="{x}" y="{y + 4}" text-anchor="{anchor}">{port}</text>')
    for ingress, egress in emulator.table.items():
        ends = f'x1="40" y1="{_row(emulator, ingress)}" x2="260" y2="{_row(emulator, egress)}"'
        drawn.append(f'<line class="{_state(emulator, ingress, egress)}" {ends}/>')
    drawn.append("</svg>")
    return "".join(drawn)


def _row(emulator: PolatisEmulator, port: int) -> int:
    first_egress = emulator.spec.layout.ingress
    return (port if port <= first_egress else port - first_egress) * ROW_PX


def _circuits(emulator: PolatisEmulator) -> str:
    device = emulator.device
    if not device.table:
        return "<p>No circuits.</p>"
    rows = ["<table><tr><th>ingress<th>egress<th>light<th>power"]
    labels = device.flash.labels
    for pair in device.table.items():
        ingress, egress = (f"{port} {escape(labels.get(port, ''))}" for port in pair)
        state = _state(emulator, *pair)
        power = f"{device.optics.power_dbm(pair[1]):.2f} dBm" if device.measures(pair[1]) else "-"
        rows.append(f"<tr><td>{ingress}<td>{egress}<td class={state}>{state}<td>{power}")
    return "".join(rows) + "</table>"


def _faults(emulator: PolatisEmulator) -> str:
    states = emulator.faults.model_dump(mode="json", exclude_defaults=True)
    named = [f"{name} = {value}" for name, value in states.items()]
    named += [f"next {due.on} request: {due.kind}, {due.times} times" for due in emulator.script.due]
    if not named:
        return "<h2>Faults</h2><p class=dim>none</p>"
    return "<h2>Faults</h2><ul>" + "".join(f"<li>{escape(entry)}" for entry in named) + "</ul>"


def _activities(emulator: PolatisEmulator) -> str:
    rows = ["<h2>Changes</h2><table><tr><th>time<th>by<th>removed<th>added<th>displaced"]
    activities = list(emulator.device.activities)[-ACTIVITIES_SHOWN:]
    for entry in reversed(activities):
        when = datetime.fromtimestamp(entry.at, UTC).strftime("%H:%M:%S.%f")[:-3]
        cells = (_pairs(entry.removed), _pairs(entry.added), _pairs(entry.displaced))
        who = escape(f"{entry.actor.user} ({entry.actor.door})")
        rows.append(f"<tr><td>{when}<td>{who}" + "".join(f"<td>{cell}" for cell in cells))
    return "".join(rows) + "</table>" if activities else "<h2>Changes</h2><p class=dim>none</p>"


def _pairs(pairs: tuple[tuple[int, int], ...]) -> str:
    shown = ", ".join(f"{ingress}:{egress}" for ingress, egress in pairs[:8])
    return shown + (f" and {len(pairs) - 8} more" if len(pairs) > 8 else "")


def _sessions(emulator: PolatisEmulator) -> str:
    sessions = list(emulator.sessions)
    if not sessions:
        return ""
    rows = [f"<li>{escape(f'{s.protocol} {s.user or NOBODY} {s.address}')}" for s in sessions]
    return "<h2>Sessions</h2><ul>" + "".join(rows) + "</ul>"
