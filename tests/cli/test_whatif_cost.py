"""`opus whatif cost` on the command line."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.cli.conftest import Opus


def test_the_published_bill_is_one_command_away(opus: Opus) -> None:
    ran = opus("whatif", "cost", "--gpus", 128, "--system", "h200", "-o", "json")
    assert ran.code == 0
    packet, photonic = ran.json["bills"]
    assert (packet["fabric"], packet["usd"], packet["w"]) == ("rail", 1_048_062.0, 32_920.0)
    assert (photonic["fabric"], photonic["usd"], photonic["w"]) == ("photonic", 245_632.0, 1_380.0)
    shown = opus("whatif", "cost", "--gpus", 128)
    assert "1,048,062.00" in shown.out
    assert "note: NICs, fibre" in shown.err


def test_csv_has_a_line_for_every_part_of_the_fabrics_asked_for(opus: Opus) -> None:
    ran = opus("whatif", "cost", "--gpus", 512, "--system", "gb200", "--fabric", "cpo", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert {row["fabric"] for row in rows} == {"cpo"}
    assert [row["item"] for row in rows][-1] == "co-packaged optics of a port"


def test_the_sensitivity_is_drawn_into_a_file(opus: Opus, tmp_path: Path) -> None:
    file = tmp_path / "plots" / "sensitivity.svg"
    assert opus("whatif", "cost", "--gpus", 128, "--plot", file).code == 0
    drawn = ET.fromstring(file.read_text())  # well-formed
    words = "".join(drawn.itertext())
    assert "cost ratio, 4.27 as priced" in words
    assert "power ratio, 23.86 as priced" in words


def test_a_size_that_is_no_whole_number_of_domains_says_which_are(opus: Opus) -> None:
    ran = opus("whatif", "cost", "--gpus", 100, "--system", "gb200")
    assert ran.code == 2
    assert "96 or 128 would fit" in ran.err


def test_where_the_photonic_rail_is_free_there_is_no_ratio_and_nothing_to_draw(
    opus: Opus, tmp_path: Path
) -> None:
    prices, plot = tmp_path / "prices.yaml", tmp_path / "plot.svg"
    prices.write_text("transceiver: {usd: 0, w: 0}\noptical_switch: {usd_per_port: 0, w: 0}\n")
    ran = opus("whatif", "cost", "--gpus", 128, "--prices", prices, "-o", "json")
    assert ran.json["ratios"] == {"rail": {"cost": None, "power": None}}
    drawn = opus("whatif", "cost", "--gpus", 128, "--prices", prices, "--plot", plot)
    assert (drawn.code, drawn.out) == (2, "")
    assert "error: --plot: nothing can be drawn" in drawn.err
