"""A recorded run as the published per-rank tables of phases (`opus_sdn.shim.legacy_table` has the format)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from opus_sdn.shim.legacy_table import LegacyPhase, format_table, table_path
from opus_sdn.trace.model import MESSAGES, Act, RankTrace, Recording
from opus_sdn.trace.windows import phases, scale_out_dimensions

PIPELINE: Final = "PP"
DATA: Final = "DP"


def compile_tables(
    recording: Recording, dimensions: Sequence[str] | None = None
) -> dict[int, list[LegacyPhase]]:
    """Each rank's phases over these dimensions (None: those that needed grants)."""
    chosen = scale_out_dimensions(recording) if dimensions is None else dimensions
    return {rank.rank: _rank(rank, chosen) for rank in recording.ranks}


def write_tables(tables: dict[int, list[LegacyPhase]], prefix: str) -> list[Path]:
    """A file for each rank. Raises OSError."""
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    written = []
    for rank, table in tables.items():
        path = table_path(prefix, rank)
        path.write_text(format_table(table), encoding="utf-8")
        written.append(path)
    return written


def _rank(rank: RankTrace, dimensions: Sequence[str]) -> list[LegacyPhase]:
    backends: dict[str, int] = {}
    counts: dict[str, int] = {}
    place: dict[int, tuple[int, int]] = {}
    for act in rank.acts:
        group = act.what.group
        backend = backends.setdefault(group, len(backends))
        place[act.number] = (backend, counts.get(group, 0))
        counts[group] = counts.get(group, 0) + 1
    return [
        LegacyPhase(
            _name(phase.acts),
            *place[phase.acts[0].number],
            *place[phase.acts[-1].number],
            len(phase.acts),
        )
        for phase in phases(rank.acts, dimensions)
    ]


def _name(acts: Sequence[Act]) -> str:
    """The format knows two kinds: pipeline links, and rings of whatever dimension."""
    return PIPELINE if any(act.kind in MESSAGES for act in acts) or acts[0].dimension == "pp" else DATA
