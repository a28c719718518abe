"""`opus whatif cost`: what the network of a cluster costs and draws."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

OUTPUTS = ("table", "json", "csv")
FABRICS = ("rail", "fat-tree", "photonic", "cpo")
LINES = ("fabric", "item", "count", "usd_each", "usd", "w_each", "w")


def add_to(commands: Any) -> None:
    """Add the command to those of `opus whatif`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "cost",
        help="Bill of materials, cost and power of a fabric.",
        description="Prices the network of a cluster. Without a price file the published prices and rules.",
        allow_abbrev=False,
    )
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="whole scale-up domains")
    parser.add_argument("--system", choices=("h200", "gb200"), default="h200", help="whose prices and rules")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="YAML: what differs from these prices")
    parser.add_argument(
        "--fabric",
        action="append",
        choices=FABRICS,
        default=[],
        help="which bill; may be repeated; by default rail and photonic",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the sensitivity")
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table", help="how to write the result")
    parser.set_defaults(command=_cost)


def _cost(given: argparse.Namespace) -> None:
    from opus_sdn.whatif.cost.fabrics import Kind
    from opus_sdn.whatif.cost.prices import system_prices
    from opus_sdn.whatif.cost.report import cost_document

    prices = system_prices(given.system, given.prices)
    found = cost_document(given.gpus, prices, [Kind(name) for name in given.fabric])
    if given.plot is not None:
        from opus_sdn.whatif.cost.plots import spreads
        from opus_sdn.whatif.errors import InputError
        from opus_sdn.whatif.page.files import write_text
        from opus_sdn.whatif.page.plots import draw

        drawn = spreads(found)
        if not drawn:
            why = (
                "nothing can be drawn: over a photonic rail that is free and draws nothing there is no ratio"
            )
            raise InputError(why, file="--plot")
        write_text(given.plot, draw(drawn))
    if given.output == "json":
        sys.stdout.write(json.dumps(found) + "\n")
    elif given.output == "csv":
        writer = csv.DictWriter(sys.stdout, LINES, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_lines(found))
    else:
        _print(found)


def _lines(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"fabric": bill["fabric"], **line} for bill in found["bills"] for line in bill["lines"]]


def _print(found: dict[str, Any]) -> None:
    from opus_sdn.cli.output import columns, message, print_line, print_section

    prices = found["prices"]
    print_line(f"{found['gpus']} GPUs in {found['hosts']} scale-up domains: {prices['title']}")
    for bill in found["bills"]:
        whole = {"item": "together", "usd": bill["usd"], "w": bill["w"]}
        rows = [{key: _money(value) for key, value in line.items()} for line in (*bill["lines"], whole)]
        title = f"{bill['fabric']} ({bill['rule']})"
        print_section(
            title,
            rows,
            columns(item="item", count="count", usd_each="usd_each", usd="usd", w_each="w_each", w="w"),
        )
    rows = [{"fabric": name} | found["ratios"][name] for name in found["ratios"]]
    print_section("over the photonic rail", rows, columns(fabric="fabric", cost="cost", power="power"))
    shown = [
        case | {name: f"${case[name] / 1e6:,.3f} M" for name in ("packet_usd", "photonic_usd")}
        for case in found["sensitivity"]
    ]
    print_section(
        "sensitivity: one input at a time",
        shown,
        columns(
            input="group",
            value="value",
            packet="packet_usd",
            photonic="photonic_usd",
            cost_ratio="cost_ratio",
            power_ratio="power_ratio",
        ),
    )
    for note in found["notes"]:
        message(f"note: {note}")


def _money(value: object) -> object:
    """Dollars and watts with their thousands apart; whatever is no fraction stays."""
    return f"{value:,.2f}" if isinstance(value, float) else value
