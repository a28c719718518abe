"""What a rank may offer at an operation, read off its program: an oracle instead of a learned phase table."""

from __future__ import annotations

from collections.abc import Callable

from tests.intent.operations import Collective, Receive, ScaleUp, Send, VirtualJob, Wait

Offer = tuple[int, int]  # closed, quiet
Table = Callable[[VirtualJob, int, int, bool], Offer]


def closed(job: VirtualJob, rank: int, at: int, *, coupled: bool = True) -> int:
    """Operations of the stream at `at`, until the program first waits for anything outside of them.

    `coupled`: collectives inside a host count as such a wait.
    """
    program = job.programs[rank]
    stream = job.stream_of(rank, program[at])
    found = 0
    inside: set[str] = set()
    for op in program[at:]:
        match op:
            case Collective() | Send() | Receive():
                if job.stream_of(rank, op) == stream:
                    found += 1
                    inside |= {op.handle} if op.handle else set()
                elif op.handle is None:
                    return found
            case Wait() if op.handle not in inside:
                return found
            case ScaleUp() if coupled:
                return found
    return found


def quiet(job: VirtualJob, rank: int, at: int) -> int:
    """Operations of the stream at `at`, until the program next issues on another connection."""
    program = job.programs[rank]
    stream = job.stream_of(rank, program[at])
    found = 0
    for op in program[at:]:
        if isinstance(op, Collective | Send | Receive):
            if job.stream_of(rank, op) != stream:
                return found
            found += 1
    return found


def honest(job: VirtualJob, rank: int, at: int, idle: bool) -> Offer:
    """Rule 5. `idle`: nothing is open or unfinished on another connection."""
    return closed(job, rank, at), quiet(job, rank, at) if idle else 1


def by_closed(job: VirtualJob, rank: int, at: int, idle: bool) -> Offer:
    """Until the first wait alone."""
    return closed(job, rank, at), 1


def by_quiet(job: VirtualJob, rank: int, at: int, idle: bool) -> Offer:
    """Until the next issue elsewhere alone."""
    return 1, quiet(job, rank, at) if idle else 1


def union(job: VirtualJob, rank: int, at: int, idle: bool) -> Offer:
    """Bug: until the next issue elsewhere, whatever is open (C1)."""
    return 1, quiet(job, rank, at)


def uncoupled(job: VirtualJob, rank: int, at: int, idle: bool) -> Offer:
    """Bug: collectives inside a host are thought to couple nobody (C2)."""
    return closed(job, rank, at, coupled=False), 1
