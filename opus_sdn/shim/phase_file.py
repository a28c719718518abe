"""Phase tables as files: one JSON file per rank, and the published text format (read only).

    {"format": "opus-phase-table", "version": 1, "rank": 3, "positions": [...]}

A position is `{"step": true}`, `{"group": NAME}` for what needs no grant, or `{"connection": ID, "closed": 3,
"quiet": 2}`, messages with `source` and `destination` and without offers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opus_sdn.intent.model import Stream
from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.legacy_table import LegacyPhase, LegacyTableError, read_table
from opus_sdn.shim.operations import STEP_END
from opus_sdn.shim.phase_tracker import DIMENSION
from opus_sdn.shim.phases import PhaseTable, Position

FORMAT = "opus-phase-table"
VERSION = 1
FILE_BYTES_MAX = 16 * 1024 * 1024
POSITIONS_MAX = 65_536
NAME_MAX = 512
NUMBER_MAX = 1_000_000
RANK = "{rank}"

_FIELDS = {"connection", "source", "destination", "closed", "quiet"}


def rank_path(pattern: str, rank: int) -> Path:
    """The file of one rank; `{rank}` stands for its number."""
    return Path(pattern.replace(RANK, str(rank)))


def load_table(pattern: str, rank: int) -> PhaseTable:
    """The table of a rank. Raises SettingsError with the file, the position, and what would be right."""
    path = rank_path(pattern, rank)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as failed:
        raise SettingsError(
            f"OPUS_PHASE_TABLE: {str(path)!r} cannot be read ({failed.strerror}); name each rank's file, "
            f"with {RANK} for its number, as tables/rank{RANK}.json"
        ) from None
    if len(raw) > FILE_BYTES_MAX:
        raise SettingsError(f"OPUS_PHASE_TABLE: {str(path)!r} is larger than {FILE_BYTES_MAX} bytes")
    try:
        said = json.loads(raw)
        if not isinstance(said, dict) or (said.get("format"), said.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"wanted an object of format {FORMAT!r} and version {VERSION}")
        if said.get("rank") != rank:
            raise ValueError(f"rank: {said.get('rank')!r}; wanted {rank}, whose table this is to be")
        positions = said.get("positions")
        if not isinstance(positions, list) or not 1 <= len(positions) <= POSITIONS_MAX:
            raise ValueError(f"positions: wanted a list of 1 to {POSITIONS_MAX}")
        return PhaseTable(tuple(_position(at, fields) for at, fields in enumerate(positions)))
    except (ValueError, RecursionError) as wrong:
        raise SettingsError(f"OPUS_PHASE_TABLE: {str(path)!r}: {wrong}") from None


def load_published(prefix: str, rank: int) -> PhaseTable:
    """A table in the published format: phases by dimension, each quiet to its end. Raises SettingsError."""
    try:
        phases = read_table(prefix, rank)
    except LegacyTableError as wrong:
        raise SettingsError(f"COMM_PATTERN_PATH: {wrong}") from None
    count = sum(phase.length for phase in phases)
    if not 1 <= count <= POSITIONS_MAX:
        raise SettingsError(
            f"COMM_PATTERN_PATH: {prefix!r}: has {count} operations for rank {rank}; "
            f"wanted 1 to {POSITIONS_MAX}"
        )
    return PhaseTable(tuple(_of_phases(phases)), coarse=True)


def save_table(pattern: str, rank: int, table: PhaseTable) -> None:
    """Write the table of a rank; whoever reads sees a whole file. Raises OSError."""
    path = rank_path(pattern, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {
        "format": FORMAT,
        "version": VERSION,
        "rank": rank,
        "positions": [_fields(position) for position in table.positions],
    }
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(said, separators=(",", ":")))
    new.replace(path)


def _of_phases(phases: list[LegacyPhase]) -> Iterator[Position]:
    for phase in phases:
        for left in range(phase.length, 0, -1):
            yield Position(DIMENSION + phase.dimension.lower(), 1, left)


def _fields(position: Position) -> dict[str, Any]:
    track = position.track
    if track == STEP_END:
        return {"step": True}
    if not isinstance(track, Stream):
        return {"group": track}
    if track.source is not None:
        return {"connection": track.connection, "source": track.source, "destination": track.destination}
    return {"connection": track.connection, "closed": position.closed, "quiet": position.quiet}


def _position(at: int, fields: Any) -> Position:
    """One position. Raises ValueError."""
    where = f"positions[{at}]"
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: {fields!r}; wanted an object")
    if fields == {"step": True}:
        return Position(STEP_END)
    if set(fields) == {"group"}:
        return Position(_name(f"{where}.group", fields["group"]))
    unknown = set(fields) - _FIELDS
    if unknown or "connection" not in fields or ("source" in fields) != ("destination" in fields):
        raise ValueError(
            f'{where}: has the fields {sorted(fields)}; wanted {{"step": true}}, a group, or a connection '
            "with closed and quiet, or with source and destination"
        )
    ends = [_number(f"{where}.{end}", fields[end], 0) for end in ("source", "destination") if end in fields]
    return Position(
        Stream(_name(f"{where}.connection", fields["connection"]), *ends),
        _number(f"{where}.closed", fields.get("closed", 1), 1),
        _number(f"{where}.quiet", fields.get("quiet", 1), 1),
    )


def _name(where: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_MAX:
        raise ValueError(f"{where}: {value!r}; wanted a name of 1 to {NAME_MAX} characters")
    return value


def _number(where: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= NUMBER_MAX:
        raise ValueError(f"{where}: {value!r}; wanted a whole number, {least} to {NUMBER_MAX}")
    return value
