"""What is drawn of a bill: how far each input moves the ratios, by the table of `sensitivity`."""

from __future__ import annotations

from typing import Any

from opus_sdn.whatif.page.plots import Spread


def spreads(document: dict[str, Any]) -> list[Spread]:
    """The ranges of the cost and of the power ratio, from a document of `cost_document`."""
    found = []
    for field, name in (("cost_ratio", "cost"), ("power_ratio", "power")):
        cases = [case for case in document["sensitivity"] if case[field] is not None]
        base = next((case[field] for case in cases if case["group"] == "as priced"), None)
        if base is None:
            continue
        ranges: dict[str, list[float]] = {}
        for case in cases:
            ranges.setdefault(case["group"], []).append(case[field])
        bars = [(group, min(values), max(values)) for group, values in ranges.items() if group != "as priced"]
        moved = tuple(bar for bar in bars if bar[1] != base or bar[2] != base)
        title = f"{name.capitalize()}, packet fabric / photonic rail, {document['gpus']} GPUs"
        found.append(Spread(title, f"{name} ratio, {base:.2f} as priced", base, moved))
    return found
