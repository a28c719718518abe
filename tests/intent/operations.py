"""What a virtual rank's program is made of, and whether a program ends when there is no controller at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from opus_sdn.intent.fabric import CrossConnect, Fabric
from opus_sdn.intent.model import GroupSpec, JobSpec, Stream


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over a group. With a handle it is asynchronous, to be waited for later or never."""

    group: str
    handle: str | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """A message to a rank of a group. It ends when both ends have been issued, never earlier."""

    to: int
    group: str
    handle: str | None = None


@dataclass(frozen=True, slots=True)
class Receive:
    """A message from a rank of a group."""

    source: int
    group: str
    handle: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Block until the operation of that handle has finished on this rank."""

    handle: str


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """A blocking collective inside one host, of which the controller never hears."""

    group: str


Op = Collective | Send | Receive | Wait | ScaleUp
Program = tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class VirtualJob:
    """One job: its declaration, its groups, and what each rank does."""

    spec: JobSpec
    groups: tuple[GroupSpec, ...]
    programs: tuple[Program, ...]

    def members(self, name: str) -> tuple[int, ...]:
        """Ranks of a group in group order."""
        return next(g.ranks for g in self.groups if g.name == name)

    def stream_of(self, rank: int, op: Collective | Send | Receive) -> Stream:
        """The stream that an operation of this rank belongs to."""
        if isinstance(op, Collective):
            return Stream(op.group)
        ends = (rank, op.to) if isinstance(op, Send) else (op.source, rank)
        first, second = sorted(ends, key=self.members(op.group).index)
        return Stream(f"{op.group}:{first}-{second}", *ends)

    def participants(self, stream: Stream) -> tuple[int, ...]:
        """Who takes part in operations of a stream."""
        if stream.source is None:
            return self.members(stream.connection)
        return stream.source, stream.destination


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fabric, the jobs on it, and what the switches hold when the controller first reads them."""

    name: str
    fabric: Fabric
    jobs: tuple[VirtualJob, ...]
    lit: dict[str, frozenset[CrossConnect]] = field(default_factory=dict)


def ends_without_controller(job: VirtualJob) -> bool:
    """Whether the program ends when an operation needs nothing but all its participants.

    Sends are synchronous and `Wait` blocks the host: this is the promise's premise. What can happen never
    stops something else from happening here, so trying one order is enough.
    """
    return not _left_over(job)


def _left_over(job: VirtualJob) -> list[int]:
    """Ranks that never end, by running the program greedily."""
    position = [0] * len(job.programs)
    counts: list[Counter[object]] = [Counter() for _ in job.programs]
    issued: Counter[tuple[object, int]] = Counter()
    needed: dict[tuple[object, int], int] = {}
    handles: dict[tuple[int, str], tuple[object, int]] = {}
    blocked_on: dict[int, tuple[object, int]] = {}

    def issue(rank: int, op: Collective | Send | Receive | ScaleUp) -> tuple[object, int]:
        if isinstance(op, ScaleUp):
            stream: object = ("scale-up", op.group)
            size = len(job.members(op.group))
        else:
            stream = job.stream_of(rank, op)
            size = len(job.participants(stream))
        key = (stream, counts[rank][stream])
        counts[rank][stream] += 1
        issued[key] += 1
        needed[key] = size
        return key

    def run(rank: int, program: Sequence[Op]) -> bool:
        moved = False
        while True:
            if rank in blocked_on:
                key = blocked_on[rank]
                if issued[key] < needed[key]:
                    return moved
                del blocked_on[rank]
                position[rank] += 1
                moved = True
            if position[rank] == len(program):
                return moved
            op = program[position[rank]]
            key = handles[rank, op.handle] if isinstance(op, Wait) else issue(rank, op)
            handle = getattr(op, "handle", None)
            if isinstance(op, Wait) or handle is None:
                blocked_on[rank] = key
            else:
                handles[rank, handle] = key
                position[rank] += 1
            moved = True

    while any(run(rank, program) for rank, program in enumerate(job.programs)):
        pass
    return [rank for rank, program in enumerate(job.programs) if position[rank] < len(program)]
