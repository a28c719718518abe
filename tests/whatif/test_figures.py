"""Figures: the recovery of a link in closed form, cost panels, and pages that a browser shows as meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.figures import FIGURES, run_figure
from opus_sdn.whatif.figures.costs import cost_panels
from opus_sdn.whatif.figures.f09 import Parameters, budget_ms, recoveries, resumed_ms
from opus_sdn.whatif.figures.model import Compared, Panel, Series
from opus_sdn.whatif.page.figure import figure_page
from opus_sdn.whatif.page.html import page, paragraph, table
from opus_sdn.whatif.page.plots import draw
from tests.chromium import Chromium


@pytest.mark.parametrize(
    ("carrier_ms", "exponent", "retries", "wanted_ms"),
    [
        (3001, 20, 7, 4294.967296),  # 4.096 us x 2^20: the first repetition finds the link up
        (3001, 17, 7, 3221.225472),  # the sixth one
        (3001, 14, 7, None),  # 8 x 67 ms are over before
        (6001, 17, 7, None),
        (6001, 18, 7, 6442.450944),
        (26, 20, 0, None),  # without repetitions nothing is sent again
    ],
)
def test_traffic_is_back_at_a_multiple_of_the_time_out_or_never(
    carrier_ms: float, exponent: int, retries: int, wanted_ms: float | None
) -> None:
    found = resumed_ms(carrier_ms, exponent, retries)
    assert found == (None if wanted_ms is None else pytest.approx(wanted_ms))


def test_the_published_times_are_those_of_the_default_parameters() -> None:
    up, negotiated, fast = recoveries(Parameters(control_ms=0))
    assert (up.light_ms, up.carrier_ms, negotiated.carrier_ms) == (200, 3000, 6000)
    assert fast.granted_ms == 25
    assert budget_ms(20, 7) == pytest.approx(8 * 4294.967296)


def test_parameters_come_from_a_file_and_only_figures_that_have_some_take_one(tmp_path: Path) -> None:
    file = tmp_path / "testbed.yaml"
    file.write_text("link_up_ms: 300\nack_timeout_exponent: 16\n")
    found = {
        row.note: row.ours
        for row in run_figure("9", parameters=file).comparison
        if row.what == "traffic after"
    }
    # Carrier after 1 + 200 + 300 ms; repetitions every 268.435456 ms.
    assert found["granted when the carrier is up"] == pytest.approx(0.501)
    assert found["sent into the dark"] == pytest.approx(0.536870912)
    file.write_text("link_up: 300\n")
    with pytest.raises(InputError, match="link_up: no such key; did you mean 'link_up_ms'"):
        run_figure("9", parameters=file)
    with pytest.raises(InputError, match=r"figures are .*9"):
        run_figure("99")


def test_the_cost_panels_end_where_the_published_ratios_are() -> None:
    panels, compared = cost_panels()
    assert [panel.y_label for panel in panels] == ["cost (M$)", "power (kW)"] * 2
    assert all(row.holds for row in compared)
    h200_cost = panels[0]
    assert h200_cost.series[0].x == (64.0, 128.0, 256.0, 512.0)
    assert h200_cost.series[0].y[1] == pytest.approx(1.048062)


@pytest.mark.parametrize(
    ("published", "ours", "within", "holds"),
    [(2.0, 2.001, 1e-3, True), (2.0, 2.003, 1e-3, False), (2.0, 9.0, None, None), (None, 1.0, 1e-3, False)],
)
def test_a_promise_holds_within_its_bound(
    published: float | None, ours: float, within: float | None, holds: bool | None
) -> None:
    assert Compared("x", published, ours, "s", within).holds is holds


def test_a_figure_is_json_all_through() -> None:
    found = run_figure("9").document()
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found, allow_nan=False))
    assert set(FIGURES) >= {"9"}


def test_lines_differ_without_colour() -> None:
    series = tuple(Series(f"line {n}", (0.0, 1.0, 10.0), (float(n), None, n + 1.0)) for n in range(6))
    lines = draw([Panel("many", "x (ms)", "y (ms)", series, log_x=True)])
    dashes = {part.split('"')[0] for part in lines.split("stroke-dasharray: ")[1:]}
    assert len({dash.split(";")[0] for dash in dashes}) >= 5  # and one that has none
    bars = draw([Panel("bars", "", "y ($)", series[:3], kind="bars", ticks=("a", "b"))])
    assert bars.count("<pattern") == 2  # hatched, beside the plain one


def test_text_of_others_is_text_on_a_page() -> None:
    evil = "<script>alert(1)</script>"
    shown = page(evil, [paragraph(evil), table([{"a": evil}], {"a": evil})])
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 5


def test_the_page_of_a_figure_asks_for_nothing_and_its_plots_are_legible(
    chromium: Chromium, tmp_path: Path
) -> None:
    panels, _ = cost_panels()
    pages = {"costs": page("costs", [draw(panels)])}
    pages |= {number: figure_page(run_figure(number, quick=True, jobs=1)) for number in ("4", "9")}
    for name, text in pages.items():
        file = tmp_path / f"{name}.html"
        file.write_text(text)
        assert chromium.requests(file) == []
        measured = chromium.measured(file)
        assert measured["scroll_width"] <= measured["width"]
        assert len(measured["plots"]) == 1
        for plot in measured["plots"]:
            assert plot["texts"] > 20
            assert (plot["outside"], plot["overlapping"], plot["small"]) == ([], [], [])


def test_a_page_that_does_fetch_is_caught(chromium: Chromium, tmp_path: Path) -> None:
    file = tmp_path / "planted.html"
    file.write_text(
        '<style>@import url(http://planted.test/a.css);</style><img src="http://planted.test/b.png">'
    )
    assert {"http://planted.test/a.css", "http://planted.test/b.png"} <= set(chromium.requests(file))
    # The policy of our pages would have stopped it.
    file.write_text(page("planted", ['<img src="http://planted.test/b.png">']))
    assert chromium.requests(file) == []


def test_texts_that_overlap_or_are_cut_off_are_caught(chromium: Chromium, tmp_path: Path) -> None:
    texts = '<text x="5" y="20">one</text><text x="9" y="22">two</text><text x="95" y="20">cut off</text>'
    file = tmp_path / "planted.html"
    file.write_text(page("planted", [f'<svg width="100" height="40">{texts}</svg>']))
    plot = chromium.measured(file)["plots"][0]
    assert (plot["overlapping"], plot["outside"]) == ([["one", "two"]], ["cut off"])
