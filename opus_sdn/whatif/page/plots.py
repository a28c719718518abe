"""Draws panels as SVG. What is drawn can be told apart in grey: by dashes, marks and hatching.

matplotlib is used without pyplot: no window, no global state, no fonts from elsewhere. Text stays text.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from textwrap import wrap
from typing import Any

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.figures.model import Panel, Series

COLOURS = ("#111111", "#0b5fa5", "#b3541e", "#4f7f4f", "#7a5195", "#777777", "#a08000", "#008080")
DASHES: tuple[Any, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (1, 1)),
    (0, (8, 3)),
    (0, (3, 5)),
)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo", "--")
FILLS = ("#333333", "#c9c9c9", "#ffffff", "#8f8f8f", "#e6e6e6", "#6a6a6a", "#b0b0b0", "#f4f4f4")
PUBLISHED = "published"
MANY_DECADES = 2000.0
LINEAR_FROM = 1e-3
CHARACTERS = 56  # that fit side by side below an axis
WIDTH_IN, HEIGHT_IN = 5.2, 3.4
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "opus",  # the same data give the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


@dataclass(frozen=True, slots=True)
class Spread:
    """From where to where each input moves a value that is `base` when nothing is changed."""

    title: str
    x_label: str
    base: float
    bars: tuple[tuple[str, float, float], ...]


def require_matplotlib() -> None:
    """Before long work that ends with plots. Raises InputError where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        why = "plots need the package `matplotlib`: pip install 'opus-sdn[whatif]'"
        raise InputError(why, file="plot")


def draw(panels: Sequence[Panel | Spread], columns: int = 2) -> str:
    """All panels in one SVG document. Raises InputError where matplotlib is missing."""
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_IN * columns, HEIGHT_IN * rows), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, panel in zip(axes, panels, strict=False):
            _spread(ax, panel) if isinstance(panel, Spread) else _DRAWERS[panel.kind](ax, panel)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        found = io.StringIO()
        figure.savefig(found, format="svg", metadata={"Date": None, "Creator": None})
    text = found.getvalue()
    return text[text.index("<svg") :]


def _titles(ax: Any, panel: Panel) -> None:
    ax.set_title(panel.title, fontsize=10, loc="left")
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    if len(panel.series) > 1 or panel.series[0].name:
        ax.legend(fontsize=8)


def _points(series: Series) -> tuple[list[float], list[float]]:
    return list(series.x), [math.nan if y is None else y for y in series.y]


def _lines(ax: Any, panel: Panel) -> None:
    for number, series in enumerate(panel.series):
        x, y = _points(series)
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        if series.name.startswith(PUBLISHED):
            ax.plot(x, y, ls="none", marker=mark, ms=8, mfc="none", mec=colour, mew=1.2, label=series.name)
        else:
            dash = DASHES[number % len(DASHES)]
            ax.plot(x, y, color=colour, ls=dash, marker=mark, ms=4, lw=1.5, label=series.name)
    _scales(ax, panel)
    _titles(ax, panel)


def _steps(ax: Any, panel: Panel) -> None:
    for number, series in enumerate(panel.series):
        x, y = _points(series)
        ax.step(
            x,
            y,
            where="post",
            color=COLOURS[number % len(COLOURS)],
            ls=DASHES[number % len(DASHES)],
            lw=1.5,
            label=series.name,
        )
    _scales(ax, panel)
    _titles(ax, panel)


def _scales(ax: Any, panel: Panel) -> None:
    if panel.log_x:
        xs = [x for series in panel.series for x in series.x]
        _logarithmic(ax.set_xscale, ax.xaxis, xs, 1.0 if panel.kind == "cdf" else LINEAR_FROM)
    if panel.log_y:
        ys = [y for series in panel.series for y in series.y if y is not None]
        _logarithmic(ax.set_yscale, ax.yaxis, ys, LINEAR_FROM)
    _names(ax, panel)


def _names(ax: Any, panel: Panel) -> None:
    """Names instead of numbers below the axis, in as many lines as keep them apart."""
    if panel.ticks:
        width = max(4, CHARACTERS // len(panel.ticks))
        ax.set_xticks(range(len(panel.ticks)), ["\n".join(wrap(name, width)) for name in panel.ticks])


def _logarithmic(
    set_scale: Callable[..., None], axis: Any, values: Sequence[float], linear_from: float
) -> None:
    """A logarithmic axis; where there is 0 or less, it is linear up to the smallest value or `linear_from`,
    whichever is more, but at most to 1.

    Numbers are written out, at 1, 2 and 5 of every decade as long as these are few.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, SymmetricalLogLocator

    sizes = [abs(value) for value in values if value]
    smallest, largest = min(sizes, default=1.0), max(sizes, default=1.0)
    subs = [1, 2, 5] if largest / smallest < MANY_DECADES else [1]
    if min(values, default=0) > 0:
        set_scale("log")
        locator: Any = LogLocator(subs=subs, numticks=20)
    else:
        edge = min(max(smallest, linear_from), 1.0)
        subs = [1, 2, 5] if largest / edge < MANY_DECADES else [1]
        set_scale("symlog", linthresh=edge)
        locator = SymmetricalLogLocator(base=10, linthresh=edge, subs=subs)
    axis.set_major_locator(locator)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _bars(ax: Any, panel: Panel) -> None:
    width = 0.8 / len(panel.series)
    for number, series in enumerate(panel.series):
        x, y = _points(series)
        at = [each + (number - (len(panel.series) - 1) / 2) * width for each in x]
        ax.bar(
            at,
            y,
            width,
            color=FILLS[number % len(FILLS)],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="black",
            lw=0.6,
            label=series.name,
        )
    _names(ax, panel)
    ax.grid(visible=False, axis="x")
    _titles(ax, panel)


def _spread(ax: Any, spread: Spread) -> None:
    reach = [(name, min(low, spread.base), max(high, spread.base)) for name, low, high in spread.bars]
    bars = sorted(reach, key=lambda bar: bar[2] - bar[1])
    ax.use_sticky_edges = False
    ax.margins(x=0.06)
    for at, (_, below, above) in enumerate(bars):
        ax.barh(at, spread.base - below, left=below, color=FILLS[1], edgecolor="black", lw=0.6)
        ax.barh(at, above - spread.base, left=spread.base, color=FILLS[0], edgecolor="black", lw=0.6)
    ax.axvline(spread.base, color="black", lw=1)
    ax.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=8)
    ax.grid(visible=False, axis="y")
    ax.set_title(spread.title, fontsize=10, loc="left")
    ax.set_xlabel(spread.x_label)


_DRAWERS: dict[str, Callable[[Any, Panel], None]] = {"line": _lines, "cdf": _steps, "bars": _bars}
