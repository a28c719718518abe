"""`opus whatif figure`: a published figure computed anew."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from opus_sdn.cli.whatif_common import add_common, as_csv, progress


def add_to(commands: Any) -> None:
    """Add the command to those of `opus whatif`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "figure",
        help="Compute a published figure anew, and compare.",
        description="Computes a figure of the published artifact, by the artifact's number, and compares it "
        "with what was published. The paper's first version numbers some otherwise: its cost figure is 14.",
        allow_abbrev=False,
    )
    parser.add_argument("number", metavar="NUMBER", help="such as 12; `list` lists all")
    parser.add_argument(
        "--parameters", type=Path, metavar="FILE", help="YAML, for figures with parameters: 9"
    )
    parser.add_argument("--quick", action="store_true", help="fewer points")
    add_common(parser, "nothing is written")
    parser.set_defaults(command=_figure)


def _figure(given: argparse.Namespace) -> None:
    from opus_sdn.whatif.figures import FIGURES, run_figure

    if given.number == "list":
        sys.stdout.writelines(f"{number}\n" for number in FIGURES)
        return
    if given.out is not None:
        from opus_sdn.whatif.page.files import require_folder
        from opus_sdn.whatif.page.plots import require_matplotlib

        require_matplotlib()
        require_folder(given.out)
    with progress("computing") as done:
        figure = run_figure(
            given.number, quick=given.quick, jobs=given.jobs, done=done, parameters=given.parameters
        )
    found = figure.document()
    if given.out is not None:
        from opus_sdn.whatif.page.figure import figure_page
        from opus_sdn.whatif.page.files import write_text
        from opus_sdn.whatif.page.plots import draw

        write_text(given.out / "figure.json", json.dumps(found, indent=1) + "\n")
        write_text(given.out / "data.csv", as_csv(_points(found)))
        write_text(given.out / "comparison.csv", as_csv(found["comparison"]))
        write_text(given.out / "plot.svg", draw(figure.panels))
        write_text(given.out / "report.html", figure_page(figure))
    if given.output == "json":
        sys.stdout.write(json.dumps(found) + "\n")
    elif given.output == "csv":
        sys.stdout.write(as_csv(_points(found)))
    else:
        _print_figure(found)


def _print_figure(found: dict[str, Any]) -> None:
    from opus_sdn.cli.output import columns, message, print_line, print_section

    print_line(f"figure {found['number']}: {found['title']}")
    for panel in found["panels"]:
        names = [series["name"] for series in panel["series"]]
        rows: dict[float, dict[str, Any]] = {}
        for series in panel["series"]:
            for x, y in zip(series["x"], series["y"], strict=True):
                rows.setdefault(x, {panel["x_label"]: _tick(panel, x)})[series["name"]] = y
        shape = columns(**{name: name for name in (panel["x_label"], *names)})
        print_section(f"{panel['title']}: {panel['y_label']}", list(rows.values()), shape)
    names = ["what", "published", "ours", "unit", "deviation", "within", "holds", "note"]
    print_section("compared", found["comparison"], columns(**{name: name for name in names}))
    for note in found["notes"]:
        message(f"note: {note}")


def _tick(panel: dict[str, Any], x: float) -> object:
    named = panel["kind"] == "bars" and panel["ticks"]
    return panel["ticks"][int(x)] if named else x


def _points(found: dict[str, Any]) -> list[dict[str, Any]]:
    """All points, one a line."""
    return [
        {
            "panel": panel["title"],
            "series": series["name"],
            "x": _tick(panel, x),
            "x_label": panel["x_label"],
            "y": y,
            "y_label": panel["y_label"],
        }
        for panel in found["panels"]
        for series in panel["series"]
        for x, y in zip(series["x"], series["y"], strict=True)
    ]
