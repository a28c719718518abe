"""What the store holds of an earlier start, in the form in which the core takes it over."""

from __future__ import annotations

from collections.abc import Iterable

from opus_sdn.intent.model import GroupSpec, Stream
from opus_sdn.intent.recovery import KnownJob, KnownRun, KnownStep, KnownStream
from opus_sdn.store.base import IntentRecord, JobRecord, LockRecord, Snapshot


def known_jobs(before: Snapshot) -> tuple[KnownJob, ...]:
    """The jobs that go on: those that run, and failed ones while ranks of them may hold something."""
    return tuple(_known_job(job, before) for job in before.jobs if not job.over)


def known_steps(before: Snapshot) -> tuple[KnownStep, ...]:
    """Device steps of which nobody has recorded how they ended."""
    return tuple(
        KnownStep(s.step, s.switch, s.generation, s.remove, s.add, s.causes, s.disturbed)
        for s in before.steps
    )


def _known_job(job: JobRecord, before: Snapshot) -> KnownJob:
    def mine(record: object) -> bool:
        return (getattr(record, "job", None), getattr(record, "incarnation", None)) == (
            job.job,
            job.incarnation,
        )

    return KnownJob(
        spec=job.spec,
        incarnation=job.incarnation,
        started_at=job.started_at,
        groups=tuple(
            GroupSpec(group.group, group.ranks, group.dimension, group.ordinal)
            for group in before.groups
            if mine(group)
        ),
        streams=tuple(
            KnownStream(mark.stream, mark.granted, mark.released) for mark in before.marks if mine(mark)
        ),
        runs=_runs(filter(mine, before.locks), filter(mine, before.intents)),
        owners=tuple((owner.circuit, owner.digit) for owner in before.owners if mine(owner)),
        left=tuple(left.rank for left in before.left if mine(left)),
        failure=job.failure,
        intact=before.clean,
    )


def _runs(locks: Iterable[LockRecord], intents: Iterable[IntentRecord]) -> tuple[KnownRun, ...]:
    complete = {(intent.stream, intent.n): intent.complete_at for intent in intents}
    runs: dict[tuple[Stream, int], list[LockRecord]] = {}
    for lock in locks:
        runs.setdefault((lock.stream, lock.n), []).append(lock)
    return tuple(
        KnownRun(
            stream,
            n,
            held[0].length,
            tuple((lock.rank, lock.no) for lock in held),
            held[0].at,
            complete.get((stream, n)) or held[0].at,
        )
        for (stream, n), held in runs.items()
    )
