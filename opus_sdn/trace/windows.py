"""The window between two phases: how long a fabric may take to change without anybody waiting for it.

A phase of a rank is a longest sequence of operations of one dimension, in the order of its calls. The window
between phases P1 and P2 is the smallest, over P2's operations, of the slowest rank's start, less the latest
end over P1's. It is negative where communication of both overlaps: there the change is on the critical path
whatever its delay. Operations inside a host need no circuits and delimit no phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import Final, NamedTuple

from opus_sdn.trace.model import BARRIER, Act, Key, Recording

PERCENTILES: Final = (5, 10, 25, 50, 75, 90, 95)
UTILISATION_MS: Final = (0, 1, 5, 10, 50, 100, 250, 500, 750, 1000)
COMBINED: Final = "all"


class Phase(NamedTuple):
    """Operations of one dimension that follow one another on a rank."""

    dimension: str
    acts: tuple[Act, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Between two phases of a rank. Times in ns.

    `size` is the window as measured over all ranks that take part; `own` is what the rank itself left between
    its two phases: the window if all ranks ran alike, which is what a model of one rank gives.
    """

    rank: int
    before: str
    after: str
    at: int
    size: int
    own: int

    @property
    def pair(self) -> str:
        """The two dimensions."""
        return f"{self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Summary:
    """Windows of one pair of dimensions, in ms. `at_least_1_ms` is a share of `count`."""

    pair: str
    count: int
    percentiles: tuple[float, ...]
    at_least_1_ms: float
    overlapping: int


def scale_out_dimensions(recording: Recording) -> list[str]:
    """Dimensions of which some operation needed a grant; all of them where nothing was granted, as in
    profiler traces.
    """
    dimensions: dict[str, bool] = {}
    for act in recording.acts():
        gated = act.what.connection is not None
        dimensions[act.dimension] = dimensions.get(act.dimension, False) or gated
    gated_ones = [name for name, gated in dimensions.items() if gated]
    return sorted(gated_ones or dimensions)


def phases(acts: Sequence[Act], dimensions: Sequence[str]) -> Iterator[Phase]:
    """A rank's phases over these dimensions. Barriers carry nothing and belong to none."""
    wanted = set(dimensions)
    chosen = (act for act in acts if act.dimension in wanted and act.kind != BARRIER)
    for dimension, group in groupby(chosen, key=lambda act: act.dimension):
        yield Phase(dimension, tuple(group))


def windows(recording: Recording, dimensions: Sequence[str] | None = None) -> list[Window]:
    """All windows of all ranks, between phases of these dimensions (None: those that needed grants)."""
    chosen = scale_out_dimensions(recording) if dimensions is None else dimensions
    together = recording.together()
    found = []
    for rank in recording.ranks:
        for before, after in pairwise(phases(rank.acts, chosen)):
            begin = min(_slowest_start(act, together) for act in after.acts)
            end = max(_last_end(act, together) for act in before.acts)
            own = after.acts[0].begin - _own_end(before, after)
            found.append(Window(rank.rank, before.dimension, after.dimension, begin, begin - end, own))
    return found


def _slowest_start(act: Act, together: Mapping[Key, Sequence[Act]]) -> int:
    return max(member.begin for member in together[act.key])


def _last_end(act: Act, together: Mapping[Key, Sequence[Act]]) -> int:
    return max(member.end for member in together[act.key])


def _own_end(before: Phase, after: Phase) -> int:
    """When the rank itself was through with the phase: its last operation, or its wait for it, was over."""
    begin = after.acts[0].begin
    ends = [act.wait_end or act.end for act in before.acts]
    return max((end for end in ends if end <= begin), default=min(ends))


def by_pair(found: Sequence[Window]) -> dict[str, list[Window]]:
    """The windows of each pair of dimensions, in order of the pair."""
    pairs: dict[str, list[Window]] = {}
    for window in sorted(found, key=lambda one: (one.pair, one.at)):
        pairs.setdefault(window.pair, []).append(window)
    return pairs


def summaries(found: Sequence[Window]) -> list[Summary]:
    """Each pair's, and last that of all together."""
    pairs = by_pair(found)
    both = [*pairs.items(), (COMBINED, list(found))]
    return [_summary(pair, [window.size for window in members]) for pair, members in both if members]


def _summary(pair: str, sizes: Sequence[int]) -> Summary:
    ordered = sorted(sizes)
    return Summary(
        pair,
        len(ordered),
        tuple(percentile(ordered, share) / 1e6 for share in PERCENTILES),
        sum(size >= 1_000_000 for size in ordered) / len(ordered),
        sum(size < 0 for size in ordered),
    )


def percentile(ordered: Sequence[int], share: float) -> float:
    """By linear interpolation between the two nearest of at least one value."""
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def stall_ns(found: Sequence[Window], delay_ns: int) -> dict[int, int]:
    """For each rank what changes of so long would have it wait, over all its windows."""
    stalls: dict[int, int] = {}
    for window in found:
        stalls[window.rank] = stalls.get(window.rank, 0) + max(0, delay_ns - max(0, window.size))
    return stalls


def utilisation(recording: Recording, found: Sequence[Window], delay_ns: int) -> float | None:
    """Tcompute / (Tcompute + Tcommunication + Tstall), the mean over ranks; communication is what the host
    was seen to wait for. None where no rank was seen to compute.
    """
    stalls = stall_ns(found, delay_ns)
    shares = []
    for rank in recording.ranks:
        if not rank.acts:
            continue
        span = max(act.end for act in rank.acts) - rank.acts[0].begin
        waiting = sum(act.wait_end - act.wait_begin for act in rank.acts)
        computing = max(0, span - waiting)
        whole = computing + waiting + stalls.get(rank.rank, 0)
        if whole:
            shares.append(computing / whole)
    return sum(shares) / len(shares) if shares else None


@dataclass(frozen=True, slots=True)
class Cost:
    """What operations of a kind and dimension take: `overhead_us` and `gbps` (1e9 bytes per second) are a
    straight line through the measured ones, None where all had one size.
    """

    dimension: str
    kind: str
    count: int
    bytes_median: int
    took_us_median: float
    overhead_us: float | None
    gbps: float | None


def costs(recording: Recording) -> list[Cost]:
    """Over all operations that moved bytes, from the slowest rank's start to the last end."""
    together = recording.together()
    samples: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for members in together.values():
        act = members[0]
        if act.size:
            took = max(m.end for m in members) - max(m.begin for m in members)
            kind = "message" if act.key.source is not None else act.kind
            samples.setdefault((act.dimension, kind), []).append((act.size, took))
    return [_cost(dimension, kind, pairs) for (dimension, kind), pairs in sorted(samples.items())]


def _cost(dimension: str, kind: str, pairs: Sequence[tuple[int, int]]) -> Cost:
    sizes, took = [size for size, _ in pairs], [ns for _, ns in pairs]
    mean_size, mean_took = sum(sizes) / len(pairs), sum(took) / len(pairs)
    spread = sum((size - mean_size) ** 2 for size in sizes)
    overhead = gbps = None
    if spread:
        slope = sum((size - mean_size) * (ns - mean_took) for size, ns in pairs) / spread
        overhead = (mean_took - slope * mean_size) / 1e3
        gbps = 1 / slope if slope > 0 else None
    return Cost(dimension, kind, len(pairs), int(median(sizes)), median(took) / 1e3, overhead, gbps)
