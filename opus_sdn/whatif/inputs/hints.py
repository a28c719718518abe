"""When a rank asks for the next topology before it needs it: after its k-th finished communication.

The file is a mapping rank -> target -> [k, ...]: once the k-th communication of the rank (counted from 0)
has finished, it asks for the data-parallel topology of its stage (target -1) or for the pipeline links to a
peer rank.
"""

from __future__ import annotations

from pathlib import Path

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.text import read_yaml

DATA_PARALLEL = -1

# hints[rank][k] = the targets to ask for, in the order of the file.
Hints = dict[int, dict[int, tuple[int, ...]]]


def read_hints(path: Path | str, ranks: int) -> Hints:
    """The hints file for a job of `ranks` ranks. Raises InputError."""
    file = Path(path)
    hints: Hints = {}
    for rank, targets in read_yaml(file).items():
        field = f"rank {rank}"
        if not _is_rank(rank, ranks):
            raise InputError(f"ranks are 0 to {ranks - 1}", file=file, field=field, value=rank)
        if not isinstance(targets, dict):
            raise InputError("a mapping target -> [k, ...] is needed", file=file, field=field, value=targets)
        of_rank: dict[int, tuple[int, ...]] = {}
        for target, places in targets.items():
            if target != DATA_PARALLEL and not (_is_rank(target, ranks) and target != rank):
                why = f"a target is {DATA_PARALLEL} (data-parallel) or another rank, 0 to {ranks - 1}"
                raise InputError(why, file=file, field=field, value=target)
            if not isinstance(places, list) or not all(type(k) is int and k >= 0 for k in places):
                why = f"target {target} needs a list of numbers of communications, from 0"
                raise InputError(why, file=file, field=field, value=places)
            for k in places:
                of_rank[k] = (*of_rank.get(k, ()), target)
        hints[rank] = of_rank
    return hints


def _is_rank(value: object, ranks: int) -> bool:
    return type(value) is int and 0 <= value < ranks


def derive_hints(finished: list[list[int | None]]) -> Hints:
    """The published rule: at each change of kind, ask for the new one when the last of the old finishes.

    `finished[r]` lists the communications of rank r in the order in which they finished: None for one that
    needs no switching, DATA_PARALLEL for a collective over switched links, else the peer of a message. The
    first kind is asked for after communication 0.
    """
    hints: Hints = {}
    for rank, kinds in enumerate(finished):
        of_rank: dict[int, tuple[int, ...]] = {}
        last_kind: int | None = None
        last_index = 0
        for index, kind in enumerate(kinds):
            if kind is None:
                continue
            if kind != last_kind:
                of_rank[last_index] = (kind,)
            last_kind, last_index = kind, index
        hints[rank] = of_rank
    return hints
