"""The communicators of a job: `{"<group>": [ranks in ring order], ...}`."""

from __future__ import annotations

from pathlib import Path

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.text import integer, read_json
from opus_sdn.whatif.trace.model import Group

MAX_GROUPS = 1 << 20


def read_groups(path: Path | str) -> tuple[Group, ...]:
    """The groups in the order of the file. Raises InputError."""
    file = Path(path)
    found = read_json(file)
    if len(found) > MAX_GROUPS:
        raise InputError(f"at most {MAX_GROUPS} groups are read", file=file)
    groups = []
    for name, ranks in found.items():
        if not isinstance(ranks, list) or not ranks:
            raise InputError("a group is a list of ranks", file=file, field=name, value=ranks)
        members = tuple(integer(rank, file=file, field=name) for rank in ranks)
        if len(set(members)) != len(members):
            raise InputError("a rank occurs twice in the group", file=file, field=name, value=ranks)
        groups.append(Group(name, members))
    return tuple(groups)
