"""The published table format: a rank's phases, one a line, flat over the run.

    <PP|DP> start_backend: b start_idx: i end_backend: b end_idx: j len: n

A backend is a communicator of the rank, numbered by its first use; an index counts its operations. A phase
goes from operation i of one to operation j of another (or the same), `n` operations in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_LINE: Final = re.compile(
    r"(?P<dimension>[A-Za-z][A-Za-z0-9_-]{0,63})\s+"
    r"start_backend:\s*(?P<start_backend>\d{1,9})\s+start_idx:\s*(?P<start_index>\d{1,12})\s+"
    r"end_backend:\s*(?P<end_backend>\d{1,9})\s+end_idx:\s*(?P<end_index>\d{1,12})\s+"
    r"len:\s*(?P<length>\d{1,12})"
)
_FORM: Final = "<PP|DP> start_backend: b start_idx: i end_backend: b end_idx: j len: n"


class LegacyTableError(ValueError):
    """A table that cannot be read: which file and line, and how a line is made."""


class LegacyPhase(NamedTuple):
    """One phase. `dimension` is upper case, as PP or DP."""

    dimension: str
    start_backend: int
    start_index: int
    end_backend: int
    end_index: int
    length: int

    def __str__(self) -> str:
        return (
            f"{self.dimension} start_backend: {self.start_backend} start_idx: {self.start_index} "
            f"end_backend: {self.end_backend} end_idx: {self.end_index} len: {self.length}"
        )


def format_table(phases: Iterable[LegacyPhase]) -> str:
    """The text of a rank's file."""
    return "".join(f"{phase}\n" for phase in phases)


def parse_table(text: str, source: str) -> list[LegacyPhase]:
    """The phases of a rank's file. Raises LegacyTableError that names `source` and the line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise LegacyTableError(f"{source}:{number}: {line[:80]!r}; wanted {_FORM}")
        phase = LegacyPhase(
            match["dimension"].upper(),
            *(
                int(match[name])
                for name in ("start_backend", "start_index", "end_backend", "end_index", "length")
            ),
        )
        if phase.length < 1:
            raise LegacyTableError(f"{source}:{number}: len is 0; wanted at least 1")
        if phase.start_backend == phase.end_backend and phase.end_index < phase.start_index:
            raise LegacyTableError(
                f"{source}:{number}: end_idx is {phase.end_index}; wanted at least start_idx, "
                f"{phase.start_index}"
            )
        found.append(phase)
    return found


def table_path(prefix: str, rank: int) -> Path:
    """The file of a rank below a prefix such as `COMM_PATTERN_PATH`, as this program names it."""
    return Path(f"{prefix}_{rank}")


def find_table(prefix: str, rank: int) -> Path:
    """The file of a rank that is there, in the ways in which such files are named.

    Raises LegacyTableError that lists what was looked for.
    """
    tried = list(_candidates(prefix, rank))
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        names = ", ".join(str(path) for path in tried)
        raise LegacyTableError(f"no table of rank {rank} at prefix {prefix!r}: there is none of {names}")
    return found


def read_table(prefix: str, rank: int) -> list[LegacyPhase]:
    """The phases of a rank below the prefix. Raises LegacyTableError."""
    path = find_table(prefix, rank)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise LegacyTableError(f"{path}: is larger than {FILE_BYTES_MAX} bytes")
        return parse_table(raw.decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as failed:
        raise LegacyTableError(f"{path}: cannot be read: {failed}") from None


def _candidates(prefix: str, rank: int) -> Iterator[Path]:
    yield table_path(prefix, rank)
    for between in (".", "_rank", "_rank_", "-", ""):
        for suffix in ("", ".txt"):
            yield Path(f"{prefix}{between}{rank}{suffix}")
    yield Path(f"{prefix}_{rank}.txt")
