"""A file that says which parallelism dimension a group is, by its ranks: for programs that do not say it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opus_sdn.shim.errors import SettingsError

BYTES_MAX = 1 << 20
RANKS_MAX = 1 << 20
DIMENSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
REMEDY = (
    'use a JSON list of {"ranks": [0, 4], "dimension": "pp"}, each rank list once; ranks may be "world" or '
    '{"start": 0, "stop": 8, "step": 2}'
)

# Dimension by rank list; () stands for the whole world, whatever its size.
Labels = Mapping[tuple[int, ...], str]
WORLD: tuple[int, ...] = ()


def labels_in(env: Mapping[str, str]) -> Labels:
    """The file that OPUS_GROUPS names, read whole. Raises SettingsError naming the entry."""
    path = env.get("OPUS_GROUPS", "").strip()
    if not path:
        return {}
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(BYTES_MAX + 1)
        if len(text) > BYTES_MAX:
            raise ValueError(f"it is larger than {BYTES_MAX} bytes")
        entries = json.loads(text)
    except (OSError, ValueError) as failed:
        raise _wrong(path, f"it cannot be read ({failed})") from None
    if not isinstance(entries, list):
        raise _wrong(path, f"it holds a {type(entries).__name__}")
    labels: dict[tuple[int, ...], str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != {"ranks", "dimension"}:
            raise _wrong(path, f"entry {entry!r}")
        ranks, dimension = _ranks(entry["ranks"]), entry["dimension"]
        named = isinstance(dimension, str) and DIMENSION.fullmatch(dimension)
        if ranks is None or ranks in labels or not named:
            raise _wrong(path, f"entry {entry!r}")
        labels[ranks] = dimension
    return labels


def label_of(labels: Labels, ranks: Sequence[int], world: int) -> str | None:
    """What the file says of these ranks, if anything."""
    found = labels.get(tuple(ranks))
    if found is None and tuple(ranks) == tuple(range(world)):
        found = labels.get(WORLD)
    return found


def _ranks(said: Any) -> tuple[int, ...] | None:
    if said == "world":
        return WORLD
    if isinstance(said, dict):
        if set(said) != {"start", "stop", "step"} or not all(_whole(one) for one in said.values()):
            return None
        span = range(said["start"], said["stop"], said["step"]) if said["step"] else range(0)
        return tuple(span) if 0 < len(span) <= RANKS_MAX else None
    if not isinstance(said, list) or not said or not all(_whole(one) for one in said):
        return None
    return tuple(said) if len(set(said)) == len(said) else None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong(path: str, why: str) -> SettingsError:
    return SettingsError(f"OPUS_GROUPS: is {path!r}: {why}; {REMEDY}")
