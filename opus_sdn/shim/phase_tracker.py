"""Where a rank is in its phase table: learns one, follows it, drops it at the first thing that differs. Pure.

One call for every operation of the program, so the common case, an operation that was expected, does next to
nothing. Dropping a table costs time only: without one every operation asks for itself.
"""

from __future__ import annotations

from collections import deque

from opus_sdn.intent.model import Stream
from opus_sdn.shim.operations import STEP_END, Operation, Track, interned
from opus_sdn.shim.phases import PhaseTable, Position, learn

HISTORY_MAX = 16_384  # operations looked at; longer periods are not found
FIRST_LOOK = 32  # operations, where steps are not marked
DIMENSION = "dimension:"  # in a coarse table: any stream of this dimension


class PhaseTracker:
    """The table of one rank. `steps`: learn from so many, the first of which is skipped; 0: never learn.

    A `table` that was loaded is followed from the end of the first step on, which is different; a coarse one,
    and one without steps, from the beginning.
    """

    def __init__(self, steps: int, table: PhaseTable | None = None) -> None:
        self.table: PhaseTable | None = None  # the newest, also once it was dropped
        self.learned = 0
        self.dropped = 0
        self._repeats = steps - 1
        self._loaded = table
        self._history: deque[Operation] = deque(maxlen=HISTORY_MAX)
        self._look_after, self._not_looked = FIRST_LOOK, 0
        self._has_marks = False
        # Of the table that is followed now:
        self._tracks: list[Track] = []
        self._positions: tuple[Position, ...] = ()
        self._needs: list[int] = []  # for each position, the first one from there on that is a stream
        self._at = -1  # the next operation; -1 without a table
        if table is not None and not table.has_marks:
            self._begin(table)

    @property
    def is_following(self) -> bool:
        """Whether there is a table that was right so far."""
        return self._at >= 0

    @property
    def at_step_end(self) -> bool:
        """Nothing was called since the end of a step."""
        return bool(self._history) and self._history[-1].what.track is STEP_END

    def follow(self, operation: Operation) -> Position | None:
        """The program calls this operation, or ends a step. Its place in the table; None without one."""
        self._history.append(operation)
        at = self._at
        if at < 0 or self._tracks[at] is not operation.what.track:
            return self._unexpected(operation)
        self._at = at + 1 if at + 1 < len(self._tracks) else 0
        return self._positions[at]

    def next_need(self) -> Stream | None:
        """The next stream that the program will need, as far as the table knows."""
        if self._at < 0 or not self._needs:
            return None
        track = self._tracks[self._needs[self._at]]
        return track if isinstance(track, Stream) else None

    def drop(self) -> None:
        """The program does not do what the table says."""
        if self._at >= 0:
            self._at = -1
            self.dropped += 1
            if not self._has_marks:
                self._history.clear()
                self._look_after = FIRST_LOOK

    def _unexpected(self, operation: Operation) -> Position | None:
        """Not what the table says, or there is none: fill a coarse one in, or learn."""
        what = operation.what
        if self._at >= 0 and self.table is not None and self.table.coarse:
            if what.connection is None:
                return None
            if self._tracks[self._at] == DIMENSION + what.dimension:
                self._tracks[self._at] = what.track
                position = self._positions[self._at]
                self._at = (self._at + 1) % len(self._tracks)
                return position
        self.drop()
        self._not_looked += 1
        if what.track is STEP_END:
            self._end_step()
        elif not self._has_marks and self._not_looked >= self._look_after:
            self._not_looked = 0
            self._look_after = min(self._look_after * 3 // 2, HISTORY_MAX // 4)
            self._learn()
        return None

    def _end_step(self) -> None:
        if not self._has_marks:  # the first step is different
            self._has_marks = True
            self._history.clear()
            if self._loaded is not None and self._loaded.has_marks:
                self._begin(self._loaded)
        else:
            self._learn()

    def _learn(self) -> None:
        if self._repeats > 0 and (table := learn(list(self._history), self._repeats)) is not None:
            self.learned += 1
            self._begin(table)

    def _begin(self, table: PhaseTable) -> None:
        self.table = table
        self._positions = table.positions
        self._tracks = [interned(position.track) for position in table.positions]
        self._needs = _first_streams(self._tracks)
        self._at = 0


def _first_streams(tracks: list[Track]) -> list[int]:
    """For each position the first one, from there on and around, that needs circuits; empty without any."""
    found = [0] * len(tracks)
    nearest: int | None = None
    for at in reversed(range(2 * len(tracks))):
        track = tracks[at % len(tracks)]
        if isinstance(track, Stream) or track.startswith(DIMENSION):
            nearest = at % len(tracks)
        if nearest is not None:
            found[at % len(tracks)] = nearest
    return found if nearest is not None else []
