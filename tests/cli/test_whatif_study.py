"""`opus whatif run` and `figure` on the command line: the way of a new user, and what is written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.chromium import Chromium
from tests.cli.conftest import ROOT, Opus

EXAMPLE = ROOT / "examples" / "studies" / "llama3-8b.yaml"


def test_a_new_user_writes_ten_lines_and_opens_a_report(
    opus: Opus, chromium: Chromium, tmp_path: Path
) -> None:
    assert len(EXAMPLE.read_text().splitlines()) == 10
    file = tmp_path / "mine.yaml"
    file.write_text(EXAMPLE.read_text())
    ran = opus("whatif", "run", file)
    assert ran.code == 0, ran.err
    folder = tmp_path / "mine-report"
    assert f"the report is {folder / 'report.html'}" in ran.err
    with (folder / "steps.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert {row["mode"] for row in rows} == {"on-demand", "provision"}
    found = json.loads((folder / "study.json").read_text())
    assert found["workload"]["gpus"] == 16
    assert found["cost"]["ratios"]["rail"]["cost"] > 1
    report = folder / "report.html"
    assert chromium.requests(report) == []
    measured = chromium.measured(report)
    assert measured["scroll_width"] <= measured["width"]
    assert len(measured["plots"]) == 3  # the sweep, the sensitivity, the cost
    for plot in measured["plots"]:
        assert plot["texts"] > 10
        assert (plot["outside"], plot["overlapping"], plot["small"]) == ([], [], [])


def test_a_refusal_names_the_file_on_the_command_line(opus: Opus, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(EXAMPLE.read_text().replace("accelerator: h200", "accelerator: h300"))
    ran = opus("whatif", "run", file)
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {file}, accelerator is 'h300': known accelerators are" in ran.err
    assert not (tmp_path / "study-report").exists()


@pytest.mark.parametrize("command", [("run", EXAMPLE), ("figure", 5)])
def test_where_results_cannot_go_is_said_before_anything_is_simulated(
    opus: Opus, tmp_path: Path, command: tuple[object, ...]
) -> None:
    """Both would take longer than a command may here if they began."""
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for folder in (taken, taken / "below"):
        ran = opus("whatif", *command, "--out", folder)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == f"error: {folder}: cannot be written: {taken} is no folder\n"
    assert taken.read_text() == "mine"


def test_a_figure_is_written_with_its_data_and_its_comparison(opus: Opus, tmp_path: Path) -> None:
    parameters = ROOT / "examples" / "studies" / "figure9.yaml"
    ran = opus("whatif", "figure", 9, "--parameters", parameters, "--out", tmp_path, "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.json == opus("whatif", "figure", 9, "-o", "json").json  # the file holds the defaults
    assert json.loads((tmp_path / "figure.json").read_text()) == ran.json
    points = list(csv.DictReader(io.StringIO((tmp_path / "data.csv").read_text())))
    assert len(points) == sum(len(series["x"]) for panel in ran.json["panels"] for series in panel["series"])
    compared = list(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert [row["what"] for row in compared] == [row["what"] for row in ran.json["comparison"]]
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")
    assert "Figure 9" in (tmp_path / "report.html").read_text()


def test_figures_are_listed_and_an_unknown_one_says_which_there_are(opus: Opus) -> None:
    listed = opus("whatif", "figure", "list").lines
    assert "9" in listed
    ran = opus("whatif", "figure", 99)
    assert ran.code == 2
    assert ", ".join(listed) in ran.err
