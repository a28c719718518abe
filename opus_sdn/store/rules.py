"""What the SQL store and its in-memory twin agree on, apart from what each of them keeps where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opus_sdn.store.base import StoreError

EVENTS_LIMIT_MAX = 1000
TRIM_MAX = 1000
OLD_EVENTS_TRIM_MAX = 50_000  # of one transaction, so that it stays short
LOOK_FOR_OLD_EVERY_S = 60.0
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How much history is kept, newest first. What still matters is kept whatever it is."""

    events_max: int = 1_000_000
    events_age_s: float = 90 * DAY_S
    jobs_max: int = 10_000  # ended jobs
    steps_max: int = 10_000  # finished device steps

    def __post_init__(self) -> None:
        for name in ("events_max", "jobs_max", "steps_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: keep at least 1, numbers go on from it")


def may_act(newest: int, job: str, incarnation: int) -> bool:
    """Whether what is said about an incarnation still matters: of a superseded one nothing is kept.

    `newest` is the job's incarnation here, 0 for none. StoreError for one that was never started: the core
    and the store have parted ways.
    """
    if incarnation > newest:
        raise StoreError(
            f"job {job!r} has incarnation {newest} here, but a change names {incarnation}: "
            "JobStarted has to come first"
        )
    return incarnation == newest


def must_act(newest: int, job: str, incarnation: int) -> None:
    """As `may_act`, for what nobody can do in the name of a superseded incarnation."""
    if not may_act(newest, job, incarnation):
        raise StoreError(f"job {job!r} has incarnation {newest} here: {incarnation} may not act any more")


def must_be_newer(newest: int, job: str, incarnation: int) -> None:
    """StoreError for a new incarnation whose number does not rise."""
    if incarnation <= newest:
        raise StoreError(
            f"job {job!r} has incarnation {newest} here: a new one is numbered above it, not {incarnation}"
        )


def granted_twice(stream: object, n: int, rank: int) -> StoreError:
    """For a lock that is held already."""
    return StoreError(f"rank {rank} holds run {n} of {stream} already: it cannot be granted twice")


def step_must_be_newer(last_step: int, step: int) -> None:
    """StoreError for a planned step whose number was given before."""
    if step <= last_step:
        raise StoreError(f"step {step} is planned after step {last_step}: a new one is numbered above it")


def unknown_step(step: int, switch: str) -> StoreError:
    """For a move of a step that is not under way."""
    return StoreError(f"step {step} of switch {switch!r} is finished or was never planned: it cannot move")


def check_fabric_rows(ports: Sequence[tuple[str, str, str, int]], rails: Sequence[tuple[str, str]]) -> None:
    """StoreError for a fabric whose rows contradict each other; nothing was written then."""
    known = {rail for rail, _ in rails}
    if len(known) != len(rails):
        raise StoreError("fabric has two rails of one name: every rail is named once")
    at: dict[tuple[str, int], str] = {}
    names: set[str] = set()
    for port, rail, switch, position in ports:
        if rail not in known:
            raise StoreError(f"port {port} is on rail {rail!r}, which is not among {sorted(known)}")
        if port in names:
            raise StoreError(f"port {port} is there twice: every port sits on one position")
        if (switch, position) in at:
            raise StoreError(f"ports {at[switch, position]} and {port} both sit on {switch}:{position}")
        names.add(port)
        at[switch, position] = port


def events_to_drop(count: int, events_max: int) -> int:
    """How many of `count` events go now, oldest first: more than are over, so that trimming is rare."""
    if count <= events_max:
        return 0
    return count - events_max + min(TRIM_MAX, events_max // 10)


def old_events_to_drop(count: int) -> int:
    """How many of `count` events that are too old go now; the others at the next looks."""
    return max(0, min(count, OLD_EVENTS_TRIM_MAX))


def jobs_to_drop(count: int, jobs_max: int) -> int:
    """How many of `count` ended jobs go now, oldest first: more than are over, so that it is rare."""
    return 0 if count <= jobs_max else count - jobs_max + jobs_max // 20


def steps_to_keep(steps_max: int) -> int:
    """How many steps stay when there are more than `steps_max`, unfinished ones apart."""
    return steps_max - steps_max // 20


def check_events_limit(limit: int) -> None:
    """ValueError for a page of events larger than one answer may be."""
    if not 0 <= limit <= EVENTS_LIMIT_MAX:
        raise ValueError(f"limit is {limit}: use 0 to {EVENTS_LIMIT_MAX} and ask again from the last seq")
