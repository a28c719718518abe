"""The page of a published figure computed anew."""

from __future__ import annotations

from opus_sdn.whatif.figures.model import Compared, Figure
from opus_sdn.whatif.page import html
from opus_sdn.whatif.page.plots import draw


def figure_page(figure: Figure) -> str:
    """Plots, the comparison with what was published, and notes."""
    title = f"Figure {figure.number}: {figure.title}"
    parts = [html.figure(draw(figure.panels), title)]
    if figure.comparison:
        rows = [_row(compared) for compared in figure.comparison]
        columns = {
            "what": "what",
            "published": "published",
            "ours": "ours",
            "unit": "unit",
            "deviation": "deviation, %",
            "within": "promised within, %",
            "holds": "holds",
            "note": "note",
        }
        parts += [html.heading("Compared with what was published"), html.table(rows, columns, digits=3)]
    if figure.notes:
        parts += [html.heading("To be known"), html.bullets(figure.notes)]
    return html.page(title, parts)


def _row(compared: Compared) -> dict[str, object]:
    deviation, within = compared.deviation, compared.within
    return compared.document() | {
        "deviation": None if deviation is None else 100 * deviation,
        "within": None if within is None else 100 * within,
    }
