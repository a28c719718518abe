"""`opus whatif run`: a study from its file to results, plots and a report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opus_sdn.cli.whatif_common import add_common, as_csv, progress


def add_to(commands: Any) -> None:
    """Add the command to those of `opus whatif`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="Run a study: sweep, advice, cost, and a report that opens offline.",
        description="Runs the study in a YAML file. Writes report.html, study.json, steps.csv, plots.",
        allow_abbrev=False,
    )
    parser.add_argument("study", type=Path, metavar="STUDY.yaml")
    add_common(parser, "a folder `<name of the study>-report` beside the study")
    parser.set_defaults(command=_run)


def _run(given: argparse.Namespace) -> None:
    from opus_sdn.cli.output import message
    from opus_sdn.whatif.inputs.text import read_bytes
    from opus_sdn.whatif.page.files import require_folder, write_text
    from opus_sdn.whatif.page.plots import draw, require_matplotlib
    from opus_sdn.whatif.page.study import study_page, sweep_panels
    from opus_sdn.whatif.study.run import run_study
    from opus_sdn.whatif.study.schema import read_study

    study = read_study(given.study)
    require_matplotlib()
    source = read_bytes(given.study).decode("utf-8")
    folder = given.out or given.study.with_name(f"{given.study.stem}-report")
    require_folder(folder)
    with progress("simulating") as done:
        found = run_study(study, given.study, jobs=given.jobs, done=done)
    rows = [*found["headlines"], *(row for rows in found["sweeps"].values() for row in rows)]
    write_text(folder / "report.html", study_page(found, source))
    write_text(folder / "study.json", json.dumps(found, indent=1) + "\n")
    write_text(folder / "steps.csv", as_csv(rows))
    for number, panel in enumerate(sweep_panels(found)):
        write_text(folder / f"plot-{number + 1}.svg", draw([panel]))
    if given.output == "json":
        sys.stdout.write(json.dumps(found) + "\n")
    elif given.output == "csv":
        sys.stdout.write(as_csv(rows))
    else:
        _print_study(found, rows)
    message(f"the report is {folder / 'report.html'}")


def _print_study(found: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    from opus_sdn.cli.output import columns, message, print_line, print_table

    jobs = [name for name in ("dp", "microbatches") if any(name in row for row in rows)]
    names = (
        *jobs,
        "mode",
        "switch_ms",
        "control_ms",
        "link_up_ms",
        "scale_out_gbps",
        "step_ms",
        "overhead_percent",
    )
    print_table(list(rows), columns(**{name: name for name in names}))
    for limit in (found["advice"] or {"limits": []})["limits"]:
        print_line(limit["says"])
    for note in found["notes"]:
        message(f"note: {note}")
