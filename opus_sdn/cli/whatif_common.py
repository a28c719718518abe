"""What the commands of `opus whatif` that write reports have in common."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OUTPUTS = ("table", "json", "csv")


def add_common(parser: argparse.ArgumentParser, default: str) -> None:
    """The options of every such command; `default` says where it writes when nothing is said."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"where to write; by default {default}")
    parser.add_argument("--jobs", type=positive, help="processes; by default one for each processor")
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table", help="how to print the result")


def positive(text: str) -> int:
    """A count from 1 on."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no count from 1 on")
    return int(text)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV, with the names of all their fields above."""
    names = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr with the time that is left, for people."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what)
        yield lambda count, total: bar.update(task, completed=count, total=total)
