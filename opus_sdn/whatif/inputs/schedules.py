"""The topologies a fabric can take: who is joined to whom with how much bandwidth.

A schedules file has one block per topology: `BW <id>`, a row of bandwidths for each rank (GB/s, of 2^30
bytes), and `END`. Most rows are equal in most topologies, so rows are kept once and compared by identity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.text import opened

Row = tuple[float, ...]

GIGABYTE = 1 << 30
MAX_TOPOLOGIES = 4096
MAX_LINES = 1 << 22
MAX_LINE_BYTES = 1 << 22
MAX_CELLS = 1 << 26  # of all rows that differ
_SLOWEST, _FASTEST = 1e-6, 1e9  # GB/s


@dataclass(frozen=True, slots=True, eq=False)
class Schedules:
    """`topologies[t][i][j]` is the bandwidth in GB/s from rank i to rank j in topology t; 0 is dark.

    Rows that are equal are one object, within a topology and between them.
    """

    topologies: tuple[tuple[Row, ...], ...]

    @property
    def ranks(self) -> int:
        """How many ranks the topologies join."""
        return len(self.topologies[0])

    @property
    def stages(self) -> int:
        """How many pipeline stages choose their topology; 0 when there is only one topology."""
        return len(self.topologies).bit_length() - 1

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank: ranks of a stage are contiguous."""
        return rank * self.stages // self.ranks if self.stages else 0

    def collapsed(self) -> Schedules:
        """One topology with every link of all of them, each at its largest bandwidth."""
        merged: dict[tuple[int, ...], Row] = {}
        rows: list[Row] = []
        for source in range(self.ranks):
            distinct = {id(topology[source]): topology[source] for topology in self.topologies}
            key = tuple(distinct)
            if key not in merged:
                merged[key] = (
                    tuple(map(max, *distinct.values())) if len(distinct) > 1 else self.topologies[0][source]
                )
            rows.append(merged[key])
        return Schedules((tuple(rows),))

    def with_switched(self, gbps: float) -> Schedules:
        """The same with `gbps` on every link that is not equal in all topologies; what is dark stays dark.

        Raises InputError where no link has so much or so little.
        """
        if not _SLOWEST <= gbps <= _FASTEST:
            why = f"a bandwidth in GB/s, from {_SLOWEST:g} to {_FASTEST:g}"
            raise InputError(why, file="schedules", field="bandwidth_gbps", value=gbps)
        changed: dict[tuple[int, ...], dict[int, Row]] = {}
        topologies: list[list[Row]] = [[] for _ in self.topologies]
        for source in range(self.ranks):
            rows = [topology[source] for topology in self.topologies]
            key = tuple([id(row) for row in rows])
            if key not in changed:
                distinct = list({id(row): row for row in rows}.values())
                steady = [len(set(cells)) == 1 for cells in zip(*distinct, strict=True)]
                changed[key] = {
                    id(row): tuple(
                        [cell if same or not cell else gbps for cell, same in zip(row, steady, strict=True)]
                    )
                    for row in distinct
                }
            for topology, row in zip(topologies, rows, strict=True):
                topology.append(changed[key][id(row)])
        return Schedules(tuple(tuple(rows) for rows in topologies))

    def everywhere(self, ranks: Sequence[int]) -> bool:
        """Whether every topology joins each rank to the next in the list; not the last to the first."""
        pairs = list(pairwise(ranks))
        return all(rows[a][b] > 0 for rows in self.topologies for a, b in pairs)

    def bandwidth(self, topology: int, source: int, destination: int) -> float:
        """GB/s from one rank to another."""
        return self.topologies[topology][source][destination]


def read_schedules(path: Path | str) -> Schedules:
    """The schedules file, plain or `.xz`. Raises InputError."""
    file = Path(path)
    with opened(file) as content:
        return parse_schedules(content, file)


def parse_schedules(content: IO[bytes], file: Path) -> Schedules:
    """The schedules in `content`, of which one line at a time is held: packed files may be bombs."""
    rows: dict[bytes, Row] = {}
    values: dict[bytes, float] = {}
    blocks: dict[int, tuple[Row, ...]] = {}
    current: int | None = None
    found: list[Row] = []
    cells = 0
    for number, line in enumerate(iter(lambda: content.readline(MAX_LINE_BYTES + 1), b""), start=1):
        if number > MAX_LINES or len(line) > MAX_LINE_BYTES:
            why = f"at most {MAX_LINES} lines of {MAX_LINE_BYTES} bytes are read"
            raise InputError(why, file=file, field=f"line {number}")
        row = rows.get(line)
        if row is not None and current is not None:
            found.append(row)
            continue
        text = line.strip()
        if not text:
            continue
        if text.startswith(b"BW"):
            if current is not None:
                raise InputError(f"topology {current} has no END", file=file, field=f"line {number}")
            current, found = _topology_id(text, file, number, blocks), []
        elif current is None:
            raise InputError("a block begins with `BW <topology id>`", file=file, field=f"line {number}")
        elif text == b"END":
            blocks[current] = tuple(found)
            current = None
        else:
            row = rows[line] = _row(text, values, file, number)
            found.append(row)
            cells += len(row)
            if cells > MAX_CELLS:
                why = f"rows that differ may hold {MAX_CELLS} bandwidths together"
                raise InputError(why, file=file, field=f"line {number}")
    if current is not None:
        raise InputError(f"topology {current} has no END", file=file)
    return _checked(blocks, file)


def _topology_id(text: bytes, file: Path, line: int, known: dict[int, tuple[Row, ...]]) -> int:
    words = text.split()
    known_form = len(words) == 2 and words[0] == b"BW" and words[1].isdigit() and len(words[1]) < 9
    if not known_form or int(words[1]) >= MAX_TOPOLOGIES:
        why = f"a block begins with `BW <topology id>`, ids below {MAX_TOPOLOGIES}"
        raise InputError(why, file=file, field=f"line {line}", value=text.decode("utf-8", "replace"))
    number = int(words[1])
    if number in known:
        raise InputError("the topology occurs twice", file=file, field=f"line {line}", value=number)
    return number


def _row(text: bytes, values: dict[bytes, float], file: Path, line: int) -> Row:
    words = text.split()
    for word in set(words) - values.keys():
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if value != 0 and not _SLOWEST <= value <= _FASTEST:
            why = f"a bandwidth in GB/s, 0 (dark) or from {_SLOWEST:g} to {_FASTEST:g}"
            shown = word.decode("utf-8", "replace")
            raise InputError(why, file=file, field=f"line {line}", value=shown)
        values[word] = value
    return tuple([values[word] for word in words])


def _checked(blocks: dict[int, tuple[Row, ...]], file: Path) -> Schedules:
    count = len(blocks)
    if count == 0:
        raise InputError("no block `BW <topology id>` ... `END`", file=file)
    if count & (count - 1) or sorted(blocks) != list(range(count)):
        why = f"topologies 0 to 2^stages - 1 are needed, found {sorted(blocks)[:8]} ({count} of them)"
        raise InputError(why, file=file)
    topologies = tuple(blocks[number] for number in range(count))
    ranks = len(topologies[0])
    for number, rows in enumerate(topologies):
        if len(rows) != ranks or ranks == 0:
            why = f"topology {number} has {len(rows)} rows, topology 0 has {ranks}"
            raise InputError(why, file=file)
        for source, row in enumerate(rows):
            if len(row) != ranks:
                why = f"row {source} of topology {number} has {len(row)} numbers, {ranks} ranks need {ranks}"
                raise InputError(why, file=file)
    stages = count.bit_length() - 1
    if stages and ranks % stages:
        raise InputError(f"{ranks} ranks do not divide into {stages} pipeline stages", file=file)
    return Schedules(topologies)
