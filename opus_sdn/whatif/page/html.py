"""Pages that open without a network: one file, plots inside, and a policy that forbids to fetch anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; color: #111; background: #fff; margin: 0 auto;
  max-width: 1100px; padding: 24px; }
h1 { font-size: 1.6em; margin: 0 0 .2em; }
h2 { font-size: 1.15em; margin: 1.8em 0 .5em; border-bottom: 1px solid #999; }
p.lead { font-size: 1.1em; margin: .3em 0; }
p.about { color: #444; margin: .2em 0 1em; }
table { border-collapse: collapse; font-size: .88em; margin: .4em 0 1em; }
th, td { padding: 3px 10px 3px 0; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid #333; font-weight: 600; }
td { border-bottom: 1px solid #e4e4e4; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
figure { margin: .5em 0 1em; }
figure svg { max-width: 100%; height: auto; }
pre { background: #f5f5f5; padding: 10px; overflow-x: auto; font-size: .85em; }
ul { margin: .3em 0; padding-left: 1.3em; }
.wide { overflow-x: auto; }
@media print {
  body { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  figure { break-inside: avoid; }
}
"""
ABSENT = "–"  # noqa: RUF001 - the dash that stands for nothing


def page(title: str, parts: Iterable[str]) -> str:
    """The document. `parts` are HTML already."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join([f"<h1>{escape(title)}</h1>", *parts])
        + "\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """Begins a section."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """Plain text; `kind` is `lead` or `about`."""
    mark = f' class="{kind}"' if kind else ""
    return f"<p{mark}>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """A list of plain texts."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def verbatim(text: str) -> str:
    """Text as it is, such as a file."""
    return f"<pre>{escape(text)}</pre>"


def figure(svg: str, what: str) -> str:
    """A plot, and what it shows for whoever cannot see it."""
    return f'<figure role="img" aria-label="{escape(what, quote=True)}">{svg}</figure>'


def table(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str], digits: int = 2) -> str:
    """Rows with these columns: field -> title. Numbers stand right, with so many digits behind the point;
    what is None is a dash, and a column without anything is left out.
    """
    columns = {field: title for field, title in columns.items() if any(_says(row.get(field)) for row in rows)}
    if not columns:
        return ""
    numbers = {field: all(_is_number(row.get(field)) for row in rows) for field in columns}
    head = "".join(_cell("th", title, numbers[field]) for field, title in columns.items())
    body = "".join(
        "<tr>"
        + "".join(_cell("td", shown(row.get(field), digits), numbers[field]) for field in columns)
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def shown(value: object, digits: int = 2) -> str:
    """A value as people read it: thousands apart, small ones with three significant digits."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value == 0 or abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.{digits}f}" if abs(value) >= 0.1 else f"{value:.3g}"
    return str(value)


def _says(value: object) -> bool:
    return value is not None and value != ""


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(tag: str, text: str, number: bool) -> str:
    mark = ' class="number"' if number else ""
    return f"<{tag}{mark}>{escape(text)}</{tag}>"
