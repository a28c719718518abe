"""Names of groups and connections, the same on all members whatever torch calls the group there.

torch numbers groups by creation on each rank, so its names differ between ranks. Members agree on the rank
list, and on how many groups of this list were made before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from opus_sdn.intent.model import Stream

READABLE_MAX = 64  # characters of a rank list that a name spells out
LABEL_MAX = 64
MESH = "mesh_"
UNKNOWN = "other"

_SIGNS = (
    (("send", "recv"), "pp"),
    (("gather_single", "_allgather_base", "reduce_scatter"), "dp_shard"),
    (("all_to_all", "alltoall"), "ep"),
    (("allreduce",), "dp"),
)


def group_name(ranks: Sequence[int], ordinal: int) -> str:
    """A URL-safe name from the rank list and the ordinal among groups of the same list."""
    step = stride(ranks)
    if len(ranks) > 2 and step is not None:
        spelt = f"{ranks[0]}to{ranks[-1]}" + (f"by{step}" if step != 1 else "")
    else:
        spelt = "-".join(map(str, ranks))
    if len(spelt) > READABLE_MAX:
        digest = hashlib.sha256(spelt.encode()).hexdigest()[:16]
        spelt = f"{ranks[0]}etc{len(ranks)}-{digest}"
    return f"ranks-{spelt}.{ordinal}"


def stride(ranks: Sequence[int]) -> int | None:
    """The common difference of an ascending rank list; None when there is none."""
    if len(ranks) < 2 or ranks[1] <= ranks[0]:
        return None
    step = ranks[1] - ranks[0]
    return step if tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1, step)) else None


def rank_list(ranks: Sequence[int], world: int) -> Any:
    """The shortest form that the wire has for a rank list."""
    if tuple(ranks) == tuple(range(world)):
        return "world"
    step = stride(ranks)
    if len(ranks) > 2 and step is not None:
        return {"start": ranks[0], "stop": ranks[-1] + 1, "step": step}
    return list(ranks)


def dimension(description: str) -> str:
    """The parallelism dimension that torch's description of a group names."""
    if description.startswith(MESH):
        return description.removeprefix(MESH)[:LABEL_MAX] or UNKNOWN
    if description == "default_pg":
        return "world"
    return UNKNOWN if description in ("", "undefined") else description[:LABEL_MAX]


def dimension_by_use(kind: str) -> str:
    """What a group is most likely for, from the kind of its first operation, where nobody says it.

    Messages are a pipeline's, gathers of parameters and scatters of gradients those of sharded data
    parallelism, exchanges of all with all those of experts, sums those of data parallelism.
    """
    for signs, name in _SIGNS:
        if any(sign in kind for sign in signs):
            return name
    return UNKNOWN


def pair_stream(group: str, ranks: Sequence[int], source: int, destination: int) -> Stream:
    """The stream of messages between two global ranks; the earlier in group order is named first."""
    first, second = sorted((source, destination), key=ranks.index)
    return Stream(f"{group}:{first}-{second}", source, destination)
