"""Recordings made by hand, with times in ms and known gaps."""

from __future__ import annotations

from opus_sdn.shim.naming import group_name
from opus_sdn.shim.operations import What
from opus_sdn.trace.model import Act, Numbering, RankTrace, Recording, canonical

Line = tuple[str, str, tuple[int, ...], float, float]
"""Kind, dimension, ranks of the group (of a message: both ends, the sender first), begin and end in ms."""


def recording(lines: dict[int, list[Line]], *, gated: bool = True, size: int = 1000) -> Recording:
    """The ranks of a run that called these operations; `wait` lasts from 0.1 ms after the call to the end."""
    ranks = []
    for rank, own in lines.items():
        numbering = Numbering(rank)
        acts = []
        for number, (name, dimension, members, begin, end) in enumerate(own):
            kind = canonical(name)
            peer = next(m for m in members if m != rank) if kind in ("send", "receive") else None
            group = tuple(sorted(members))
            label = group_name(group, 0)
            what = What(
                name, label, f"mesh_{dimension}", dimension, group, label if gated else None, peer=peer
            )
            key = numbering.key(what, kind)
            moments = [round(at * 1e6) for at in (begin, end, begin + 0.1, end)]
            acts.append(Act(rank, number, what, kind, key, size, *moments))
        ranks.append(RankTrace(rank, tuple(acts)))
    return Recording("by-hand", len(ranks), tuple(ranks), (("pp", 2), ("dp", 2)) if len(ranks) == 4 else ())


def two_by_two() -> Recording:
    """Pipeline 2 x data 2. All-gather, a message to the next stage, all-reduce.

    Rank 0: the all-gather ends at 10 ms; it sends at 14; the receiver of its message asks at 13.
    """
    return recording(
        {
            0: [
                ("all_gather_single", "dp", (0, 1), 0, 9),
                ("send", "pp", (0, 2), 14, 16),
                ("allreduce", "dp", (0, 1), 20, 25),
            ],
            1: [
                ("all_gather_single", "dp", (0, 1), 1, 10),
                ("send", "pp", (1, 3), 11, 18),
                ("allreduce", "dp", (0, 1), 30, 32),
            ],
            2: [
                ("all_gather_single", "dp", (2, 3), 0, 5),
                ("recv", "pp", (0, 2), 13, 17),
                ("allreduce", "dp", (2, 3), 17.5, 22),
            ],
            3: [
                ("all_gather_single", "dp", (2, 3), 0, 5),
                ("recv", "pp", (1, 3), 4, 19),
                ("allreduce", "dp", (2, 3), 18, 22),
            ],
        }
    )
