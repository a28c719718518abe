"""What a rank did: a record of every operation, kept in a ring of bounded size. Knows nothing of torch.

Programs issue thousands of operations per second, so a record costs as little as Python allows: one object
whose moments are filled in by whoever sees them, and no lock. All moments are `time.monotonic_ns()` of this
process; 0 means that it was not seen (yet). They mean: `called` the program called; `arrived` the controller
was asked; `granted` its answer was there (for an operation in a run that is held: at once); `issued` the
operation was handed to the device; `wait_begin`, `wait_end` the first wait of the program (on CUDA a wait
of the stream); `finished` it was seen to have finished on the device. An ungated one is seen to finish by
whoever waits for it first.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from opus_sdn.intent.model import Stream

RECORDS_MAX = 65_536  # of some 300 bytes each; a step of a large job has a few thousand
UNFINISHED_MAX = 8_192  # that a follower keeps an eye on


# What an operation occupies: a stream that needs grants, else the name of a group.
Track = Stream | str

STEP_END: Track = "(step)"  # between the operations: the program's optimizer has made a step

_tracks: dict[Track, Track] = {}


def interned(track: Track) -> Track:
    """The one object for equal tracks: they are compared with `is`, as comparing fields would be slow."""
    return _tracks.setdefault(track, track)


@dataclass(frozen=True, slots=True, eq=False)
class What:
    """What is the same for all operations of a kind on a group, and for messages of a peer."""

    kind: str  # as torch names it: allreduce, all_gather_single, send, ...
    group: str  # the name that all members have for it
    description: str  # torch's own, as mesh_pp
    dimension: str
    ranks: tuple[int, ...] = ()
    connection: str | None = None  # None: no grant is needed
    source: int | None = None  # global ranks of a message across hosts, else None
    destination: int | None = None
    peer: int | None = None  # global rank of the other end of any message
    track: Track = field(init=False)

    def __post_init__(self) -> None:
        """Find the track."""
        track: Track = self.group
        if self.connection is not None:
            track = Stream(self.connection, self.source, self.destination)
        object.__setattr__(self, "track", interned(track))


STEP = What("step", str(STEP_END), "", "")
"""The end of a step of the program's optimizer, recorded between its operations; nothing is communicated."""


class Operation:
    """One operation. Made by `OperationLog.begin`; attributes are set once each, from several threads."""

    number: int  # counts all operations of this rank, from 0
    what: What
    bytes: int  # of the larger side: the gathered tensor of a gather, the parts of a scatter
    called_ns: int
    n: int | None = None  # of its connection, or of its (source, destination); None for ungated ones
    has_future: bool = False  # a future was asked for: waits on that are not seen
    arrived_ns: int = 0
    granted_ns: int = 0
    issued_ns: int = 0
    wait_begin_ns: int = 0
    wait_end_ns: int = 0
    finished_ns: int = 0
    failed: bool = False

    def __repr__(self) -> str:
        name = self.what.connection or self.what.group
        return f"Operation({self.number}: {self.what.kind} {name}#{'-' if self.n is None else self.n})"


class OperationLog:
    """The newest `capacity` operations of this rank."""

    def __init__(self, capacity: int = RECORDS_MAX) -> None:
        self._ring: deque[Operation] = deque(maxlen=capacity)
        self._numbers = itertools.count()

    def begin(self, what: What, size: int) -> Operation:
        """Record that the program calls an operation of `size` bytes now."""
        operation = Operation()
        operation.number = next(self._numbers)
        operation.what = what
        operation.bytes = size
        operation.called_ns = time.monotonic_ns()
        self._ring.append(operation)
        return operation

    @property
    def begun(self) -> int:
        """Operations so far, ends of steps among them."""
        return self._ring[-1].number + 1 if self._ring else 0

    def newest(self) -> list[Operation]:
        """All records that are still kept, oldest first; those under way are still filled in."""
        return list(self._ring)  # one step of the interpreter: no other thread comes between

    def follow(self) -> Follower:
        """A reader of all operations from now on."""
        return Follower(self)


class Follower:
    """Takes every finished operation once. Ask at least as often as the ring turns over: see `lost`."""

    def __init__(self, log: OperationLog) -> None:
        self._log = log
        self._next = max((o.number + 1 for o in log.newest()), default=0)
        self._unfinished: list[Operation] = []
        self.lost = 0  # records that were overwritten before they were taken

    def take(self, unfinished_too: bool = False) -> list[Operation]:
        """Operations that have finished and were not taken before, in order of their calls.

        An operation that is waited for is given once its wait has ended. `unfinished_too` at the end.
        """
        taken: list[Operation] = []
        still: list[Operation] = []
        for operation in self._due():
            waits = operation.wait_begin_ns and not operation.wait_end_ns
            done = unfinished_too or (operation.finished_ns and not waits)
            (taken if done else still).append(operation)
        surplus = len(still) - UNFINISHED_MAX
        if surplus > 0:  # nobody will ever see these finish; they are told as they are
            taken = sorted([*taken, *still[:surplus]], key=lambda operation: operation.number)
            still = still[surplus:]
        self._unfinished = still
        return taken

    def _due(self) -> Iterator[Operation]:
        new = [o for o in self._log.newest() if o.number >= self._next]
        new.sort(key=lambda operation: operation.number)  # two threads may append in the other order
        if new:
            self.lost += new[-1].number + 1 - self._next - len(new)
            self._next = new[-1].number + 1
        yield from self._unfinished
        yield from new
