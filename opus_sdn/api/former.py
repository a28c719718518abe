"""Jobs that an earlier start of the controller has left in the store.

Their incarnations are over: this start knows none of their grants. But their processes may still transmit,
until their shims have noticed. So for one lease their ports go to no other job, unless their launcher comes
back, which vouches that they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.model import JobSpec
from opus_sdn.store.base import JobRecord


class FormerJobs:
    """By name. `interrupted` are those that may still transmit, until `held_until` (seconds since 1970)."""

    def __init__(
        self, records: Iterable[JobRecord] = (), interrupted: Iterable[str] = (), held_until: float = 0.0
    ) -> None:
        self._records = {record.job: record for record in records}
        self._interrupted = set(interrupted)
        self._held_until = held_until

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self._records.values())

    def get(self, job: str) -> JobRecord | None:
        """The record of a job, if an earlier start had it."""
        return self._records.get(job)

    def cause(self, job: str, incarnation: int) -> CoreError | None:
        """Why an incarnation of an earlier start can do nothing; None when it is not known here."""
        record = self._records.get(job)
        if record is None or record.incarnation != incarnation:
            return None
        if record.cause is None:
            return CoreError(Problem.ABORTED, f"job {job} has ended", job=job)
        return CoreError(Problem(record.cause), record.detail or "", job=job)

    def require_free(self, spec: JobSpec, now: float) -> None:
        """Raise CoreError `ports-overlap` while a place of this job may still carry another job's traffic."""
        if now >= self._held_until:
            self._interrupted.clear()
        for name in self._interrupted - {spec.name}:
            taken = set(self._records[name].spec.placement)
            for rank, place in enumerate(spec.placement):
                if place in taken:
                    raise CoreError(
                        Problem.PORTS_OVERLAP,
                        f"rank {rank} is placed on host {place.host} slot {place.slot}, where job {name} ran "
                        f"when the controller was started anew; its ports are free in "
                        f"{self._held_until - now:.0f} s, or at once when its launcher ends or restarts it",
                        rank=rank,
                        host=place.host,
                        slot=place.slot,
                        job=name,
                    )

    def stopped(self, job: str) -> None:
        """The job's launcher vouches that all its processes of before are gone."""
        self._interrupted.discard(job)
