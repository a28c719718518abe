"""What the command line writes: data on stdout as a table or as JSON, messages on stderr.

Everything that came from elsewhere is shown as plain text: names and details cannot carry markup or control
sequences into a terminal. Colours go to terminals only, and not where NO_COLOR is set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

ABSENT = "-"
PIPE_COLUMNS = 100_000  # a pipe has no width: lines are never wrapped or cut there


class Format(StrEnum):
    """How data is written."""

    TABLE = "table"
    JSON = "json"


class Column(NamedTuple):
    """One column of a table: its title and how a cell is made of an item of the API."""

    title: str
    cell: Callable[[dict[str, Any]], object]


def field(name: str) -> Callable[[dict[str, Any]], object]:
    """A cell that shows one field of an item."""
    return lambda item: item.get(name)


def columns(**cells: str | Callable[[dict[str, Any]], object]) -> tuple[Column, ...]:
    """Columns titled by the names given here; a cell is a function of the item, or the name of a field."""
    return tuple(
        Column(title.upper().replace("_", " "), field(cell) if isinstance(cell, str) else cell)
        for title, cell in cells.items()
    )


def cell_text(value: object) -> str:
    """A value as a cell shows it: nothing is `-`, lists are joined, control characters are made visible."""
    if value is None or value in ("", [], {}, ()):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, dict):
        return ", ".join(f"{key}: {cell_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text(item) for item in value)
    return plain(str(value))


def plain(text: str) -> str:
    """The text with everything unprintable written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_table(rows: Iterable[dict[str, Any]], shape: Sequence[Column], empty: str = "nothing") -> None:
    """A table on stdout; when there is no row, `empty` on stderr."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in shape:
        table.add_column(column.title, overflow="fold", no_wrap=not sys.stdout.isatty())
    for item in rows:
        table.add_row(*(Text(cell_text(column.cell(item))) for column in shape))
    if table.row_count:
        print_rich(table)
    else:
        message(empty)


class Rows:
    """A table that grows: each row is written at once. Columns have the widths given, the last has none."""

    def __init__(self, shape: Sequence[Column], widths: Sequence[int]) -> None:
        self._shape = shape
        self._widths = (*widths, 0)
        self._begun = False

    def print(self, item: dict[str, Any]) -> None:
        """One row on stdout, with the titles before the first."""
        if not self._begun:
            self._begun = True
            print_rich(Text(self._line([column.title for column in self._shape]), style="bold"))
        print_line(self._line([cell_text(column.cell(item)) for column in self._shape]))
        sys.stdout.flush()

    def _line(self, cells: Sequence[str]) -> str:
        return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, self._widths, strict=True)).rstrip()


def print_facts(facts: dict[str, Any]) -> None:
    """Names and values, one a line; what is nothing is left out."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        text = cell_text(value)
        if text != ABSENT:
            print_rich(Text(f"{name + ':':<{width + 2}}", style="bold").append(text, style="not bold"))


def print_section(title: str, rows: Sequence[dict[str, Any]], shape: Sequence[Column]) -> None:
    """A titled table on stdout; a line with `none` when there is no row."""
    print_rich(Text(f"\n{title}:" + ("" if rows else " none"), style="bold"))
    if rows:
        print_table(rows, shape)


def print_line(text: str) -> None:
    """A line of data on stdout, as it is."""
    sys.stdout.write(text + "\n")


def print_rich(renderable: object) -> None:
    """Something of rich's on stdout: as wide as the terminal, or unwrapped into a pipe or file."""
    console = Console(highlight=False, soft_wrap=False)
    if sys.stdout.isatty():
        console.print(renderable)
        return
    console.width = PIPE_COLUMNS
    with console.capture() as capture:
        console.print(renderable)
    for line in capture.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def print_json(document: object) -> None:
    """A document on stdout: indented, keys in the API's order, text unescaped."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def print_json_line(document: object) -> None:
    """One document on one line of stdout, at once."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def message(text: str, *, error: bool = False) -> None:
    """A line for people, on stderr."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    line = Text("error: ", style="bold red") if error else Text()
    console.print(line.append(plain(text), style=None if error else ""))
