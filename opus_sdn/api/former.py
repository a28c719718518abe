"""Jobs that the core does not know any more: an earlier start ran them, or they ran on an earlier fabric.

Their incarnations are over and hold nothing; what still runs or holds something, the core has taken over.
Their ranks still hear how they ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from opus_sdn.intent.changes import Change, EventAppended, JobSettled, JobState
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import JobSpec
from opus_sdn.store.base import JobRecord

VOUCHED = "its launcher vouches that all its processes are gone"


@dataclass(frozen=True, slots=True)
class FormerJob:
    """The last incarnation of a job, as far as it is still asked for."""

    job: str
    incarnation: int
    spec: JobSpec
    state: JobState
    failure: Failure | None

    @classmethod
    def of_record(cls, record: JobRecord) -> FormerJob:
        """As an earlier start has stored it."""
        return cls(record.job, record.incarnation, record.spec, record.state, record.failure)


class FormerJobs:
    """By name."""

    def __init__(self, records: Iterable[JobRecord] = ()) -> None:
        self._jobs = {record.job: FormerJob.of_record(record) for record in records}

    def __iter__(self) -> Iterator[FormerJob]:
        return iter(self._jobs.values())

    def get(self, job: str) -> FormerJob | None:
        """The last incarnation of a job, if it is known here."""
        return self._jobs.get(job)

    def take_over(self, job: JobCore) -> None:
        """A job of this start that has settled, before its core goes."""
        name = job.spec.name
        self._jobs[name] = FormerJob(name, job.incarnation, job.spec, job.state, job.failure)

    def superseded(self, job: str) -> None:
        """A new incarnation has started."""
        self._jobs.pop(job, None)

    def end(self, job: str, how: str) -> tuple[Change, ...]:
        """All processes of the job have stopped: what the store has to be told, nothing if it knows."""
        former = self._jobs[job]
        if former.state is JobState.ENDED:
            return ()
        self._jobs[job] = replace(former, state=JobState.ENDED)
        failure = former.failure
        # The cause stays, as the ranks may ask for it later still.
        cause, detail = (failure.problem.value, failure.detail) if failure is not None else (None, None)
        rank, more = (failure.rank, failure.data) if failure is not None else (None, {})
        return (
            JobSettled(job, former.incarnation, JobState.ENDED, cause, detail, rank, more),
            EventAppended("job.ended", job, former.incarnation, data={"cause": cause, "detail": how}),
        )

    def cause(self, job: str, incarnation: int) -> CoreError | None:
        """Why an incarnation can do nothing any more; None when it is not known here."""
        former = self._jobs.get(job)
        if former is None or former.incarnation != incarnation:
            return None
        failure = former.failure
        if failure is None:
            return CoreError(Problem.ABORTED, f"job {job} has ended", job=job)
        rank = {} if failure.rank is None else {"rank": failure.rank}
        return CoreError(failure.problem, failure.detail, **{**failure.data, **rank, "job": job})

    def better(self, refusal: CoreError, job: str, incarnation: int) -> CoreError:
        """The refusal, or instead of `unknown-job` the cause with which the incarnation ended."""
        told = self.cause(job, incarnation) if refusal.problem is Problem.UNKNOWN_JOB else None
        return told or refusal

    @contextmanager
    def telling(self, job: str, incarnation: int) -> Iterator[None]:
        """A refusal of what is in the block becomes the `better` one."""
        try:
            yield
        except CoreError as refusal:
            raise self.better(refusal, job, incarnation) from None
