"""The phase table of a rank: what its steps look like, and which runs it may offer at each operation. Pure.

A table is private to its rank and never right by itself: it says what was seen. Two figures for each
operation that starts a run on a ring, both at least 1:

* `closed`: operations of this ring until the program waits for anything outside it. Every wait counts, also
  for tensor parallelism inside the host, as the other side of that may wait for what the run holds up.
* `quiet`: operations of this ring until the program issues one that needs other circuits.

No run goes beyond the end of a step: what comes between two steps (evaluation, a checkpoint, the end of the
training) is what tables know least about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from opus_sdn.intent.model import Stream
from opus_sdn.shim.operations import STEP_END, Operation, Track

CYCLE_STEPS_MAX = 16  # steps after which a program may repeat itself, as with an evaluation every 10th
MARGIN = 2  # without marks: a period has to explain this many times what it does not explain


@dataclass(frozen=True, slots=True)
class Position:
    """One operation of the period, or the end of a step."""

    track: Track
    closed: int = 1
    quiet: int = 1


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """The operations of one period in order. After the last one the first one follows.

    A `coarse` table tells of operations across hosts only, and may name the dimension instead of the stream.
    """

    positions: tuple[Position, ...]
    coarse: bool = False

    @property
    def has_marks(self) -> bool:
        """Whether it knows where steps end; then it begins just after one."""
        return any(position.track == STEP_END for position in self.positions)


def learn(history: Sequence[Operation], repeats: int) -> PhaseTable | None:
    """The table of a history that ends with complete periods, seen at least so often; None of any other.

    With marks of steps the period is a number of whole steps and the history ends with a mark. Without, it is
    looked for in the operations themselves; then most of the history has to be explained by it.
    """
    tracks = [operation.what.track for operation in history]
    if STEP_END in tracks:
        found = _cycle(_steps(tracks), repeats)
    else:
        period = _period(tracks, repeats)
        found = (period, repeats) if period is not None else None
    if found is None:
        return None
    period, times = found
    closed, quiet = _closed(history), _quiet(tracks)
    last = len(history) - period
    return PhaseTable(
        tuple(
            Position(
                tracks[at],
                min(closed.get(at - k * period, 1) for k in range(times)),
                quiet.get(at, 1),
            )
            for at in range(last, last + period)
        )
    )


def _steps(tracks: Sequence[Track]) -> list[Sequence[Track]]:
    """The sequence by steps, each with its mark at the end."""
    ends = [0, *(at + 1 for at, track in enumerate(tracks) if track == STEP_END)]
    return [tracks[begin:end] for begin, end in pairwise(ends)]


def _cycle(steps: list[Sequence[Track]], repeats: int) -> tuple[int, int] | None:
    """Operations of the shortest cycle of whole steps that ends the sequence, and how often it was seen."""
    for cycle in range(1, CYCLE_STEPS_MAX + 1):
        times = max(repeats // cycle, 2) if cycle > 1 else repeats
        need = max(times * cycle, repeats)
        if need > len(steps):
            return None
        newest = steps[-need:]
        if all(one == other for one, other in zip(newest, newest[cycle:], strict=False)):
            return sum(map(len, newest[-cycle:])), times
    return None


def _period(tracks: Sequence[Track], repeats: int) -> int | None:
    """The period of the longest periodic end of the sequence, if that end is long enough.

    A suffix is a prefix of the reversed sequence; the prefix function gives the smallest period of each.
    """
    backwards, borders = tracks[::-1], [0]
    for track in backwards[1:]:
        border = borders[-1]
        while border and backwards[border] != track:
            border = borders[border - 1]
        borders.append(border + (backwards[border] == track))
    for length in range(len(tracks), 0, -1):
        period = length - borders[length - 1]
        if period * repeats <= length:
            return period if length >= MARGIN * (len(tracks) - length) else None
    return None


def _quiet(tracks: Sequence[Track]) -> dict[int, int]:
    """For each operation of a ring: operations of it until one that needs other circuits is issued."""
    found: dict[int, int] = {}
    ahead: dict[str, int] = {}
    for at in range(len(tracks) - 1, -1, -1):
        track = tracks[at]
        if track == STEP_END:
            ahead = {}
        elif isinstance(track, Stream):
            ahead = {track.connection: ahead.get(track.connection, 0) + 1}
            if track.source is None:
                found[at] = ahead[track.connection]
    return found


def _closed(history: Sequence[Operation]) -> dict[int, int]:
    """For each operation of a ring: operations of it until the program waits for anything else.

    A future may be waited for where nobody sees it. A ring beside which there are such futures has no runs.
    """
    moments = [(one.called_ns, at, False) for at, one in enumerate(history)]
    moments += [(one.wait_begin_ns, at, True) for at, one in enumerate(history) if one.wait_begin_ns]
    moments.sort()
    in_the_dark = {_owner(one) for one in history if one.has_future}
    found: dict[int, int] = {}
    ahead: dict[str, int] = {}
    for _, at, is_wait in reversed(moments):
        track, owner = history[at].what.track, _owner(history[at])
        if is_wait:
            ahead = {owner: ahead[owner]} if owner in ahead else {}
        elif track == STEP_END:
            ahead = {}
        elif isinstance(track, Stream) and track.source is None:
            ahead[owner] = ahead.get(owner, 0) + 1
            found[at] = ahead[owner] if in_the_dark <= {owner} else 1
    return found


def _owner(operation: Operation) -> str:
    """What runs are made of: the connection, or the name of a group that needs none."""
    track = operation.what.track
    return track.connection if isinstance(track, Stream) else track
