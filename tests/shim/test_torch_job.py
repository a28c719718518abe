"""A rank's job in one process: numbering from many threads, issue in grant order, and how it ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from opus_sdn.intent.changes import JobState
from opus_sdn.intent.model import CoreSettings, Domain, Stream
from opus_sdn.shim import torch_job
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.enrolment import Enrolment
from opus_sdn.shim.errors import OpusError, OpusJobFailed, OpusRefusedError
from opus_sdn.shim.operations import What
from opus_sdn.shim.settings import from_environ
from opus_sdn.shim.torch_job import RankJob
from opus_sdn.shim.torch_lanes import HostLane
from opus_sdn.shim.torch_works import GatedWork
from tests.shim.small_controller import SmallController, a_fabric

pytestmark = pytest.mark.torch

WAIT_S = 30.0
RING = Stream("ranks-0-1.0")
WORLD = (0, 1)
BROKEN = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")


class Group:
    """A process group that notes that it was broken off."""

    def __init__(self) -> None:
        self.broken_off = threading.Event()

    def break_off(self) -> None:
        self.broken_off.set()


class Done:
    """An inner Work that is done."""

    def wait(self) -> bool:
        return True


@contextmanager
def jobs_of(controller: SmallController, **environment: str) -> Iterator[list[RankJob]]:
    """Both ranks of a job, in this process, with their group checked in."""
    settings = from_environ(
        {
            "OPUS_CONTROLLER": controller.url,
            "OPUS_JOB": "job",
            "LOCAL_RANK": "0",
            "OPUS_FENCE_S": "1.5",
            **environment,
        }
    )
    body = {
        "owner": "me",
        "nonce": "1",
        "placement": [{"rank": r, "host": f"host{r}", "slot": 0} for r in WORLD],
        "world_group": "rail",
    }
    controller.serve("PUT", "/api/v1/jobs/job", body)
    enrolment = Enrolment(1, 1, ("host0", "host1"), False, 60.0, (0, 0), "1")
    assert settings.controller is not None
    jobs = [RankJob(settings, ControllerClient(settings.controller), enrolment, rank) for rank in WORLD]
    try:
        for job in jobs:
            assert job.check_in("ranks-0-1.0", WORLD, "dp", 0).domain is Domain.SCALE_OUT
        yield jobs
    finally:
        for job in jobs:
            job.close(drain_s=0.0)


def submit(job: RankJob, log: list[int] | None = None, error: Exception | None = None) -> GatedWork:
    """An operation of both ranks; notes its number when it is issued."""
    noted: list[GatedWork] = []
    ready = threading.Event()

    def call() -> Any:
        assert ready.wait(WAIT_S)
        if log is not None:
            log.append(noted[0].n)
        if error is not None:
            raise error
        return Done()

    record = job.log.begin(What("allreduce", "ranks-0-1.0", "", "dp"), 4)
    work = job.submit(HostLane(), call, [torch.ones(1)], RING, record)
    noted.append(work)
    ready.set()
    return work


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns all the time: what may come in between does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_operations_of_many_threads_are_numbered_once_each_and_issued_in_order(restless: None) -> None:
    with SmallController(a_fabric(gpus=1)) as controller, jobs_of(controller) as jobs:
        works: list[list[GatedWork]] = [[], []]
        logs: list[list[int]] = [[], []]

        def many(rank: int) -> None:
            for _ in range(25):
                works[rank].append(submit(jobs[rank], logs[rank]))

        threads = [
            threading.Thread(target=many, args=(rank,), daemon=True) for rank in WORLD for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        for rank in WORLD:
            assert len(works[rank]) == 100
            assert all(work.wait() for work in works[rank])
            assert logs[rank] == list(range(100))
        assert controller.job_grants("job") == 100


def test_a_broken_operation_fails_the_job_for_both_with_the_controllers_cause() -> None:
    settings = CoreSettings(lease_s=3.0, fence_s=1.5, abort_s=0.2, fault_grace_s=2.0)
    with SmallController(a_fabric(gpus=1), settings) as controller, jobs_of(controller) as jobs:
        groups = [Group(), Group()]
        for job, group in zip(jobs, groups, strict=True):
            assert job.register(group, WORLD) == 0
            assert job.register(group, WORLD) == 1
        works = [submit(jobs[0], error=BROKEN), submit(jobs[1])]
        with pytest.raises(OpusJobFailed, match="Connection closed by peer") as first:
            works[0].wait()
        assert first.value.problem == "operation-failed"
        assert works[1].wait()  # it was done here before anybody knew
        with pytest.raises(OpusJobFailed) as second:
            submit(jobs[1]).wait()
        assert str(first.value) == str(second.value)
        assert all(group.broken_off.wait(WAIT_S) for group in groups)
        for job in jobs:
            job.close()
        assert all(rank.left for rank in controller.engine.state.jobs["job"].ranks)


def test_where_nobody_names_a_cause_the_ranks_own_error_is_the_cause_and_nobody_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_job, "CAUSE_S", 0.4)
    with SmallController(a_fabric(gpus=1)) as controller, jobs_of(controller, OPUS_FENCE_S="0.4") as jobs:
        controller.mangle = lambda method, path: "drop" if path.endswith("failures") else None
        failed = jobs[0].explain(BROKEN, None)
        assert isinstance(failed, OpusJobFailed)
        assert (failed.problem, failed.rank) == ("operation-failed", None)
        assert "the controller named no cause" in failed.detail
        with pytest.raises(OpusJobFailed):
            submit(jobs[0])


def test_a_group_that_the_controller_does_not_take_is_refused_by_name() -> None:
    with SmallController(a_fabric(gpus=1)) as controller, jobs_of(controller) as jobs:
        with pytest.raises(OpusRefusedError, match="group-conflict"):
            jobs[0].check_in("ranks-0-1.0", (1, 0), "dp", 0)
        jobs[1].abort("enough")
        with pytest.raises(OpusJobFailed, match="enough"):
            jobs[1].check_in("another", WORLD, "dp", 0)
        with pytest.raises(OpusJobFailed, match="enough"):
            jobs[0].check_in("another", WORLD, "dp", 0)


def test_a_job_that_is_left_with_operations_open_says_so_to_both_sides() -> None:
    with SmallController(a_fabric(gpus=1)) as controller, jobs_of(controller) as jobs:
        work = submit(jobs[0])
        jobs[0].close(drain_s=0.01)
        with pytest.raises(OpusError, match="rank 0 left the job before"):
            work.wait()
        with pytest.raises(OpusJobFailed, match="rank 0 "):
            submit(jobs[1]).wait()
        assert controller.engine.state.jobs["job"].state is JobState.FAILED
        jobs[0].close()  # once more is no error


def test_leaving_waits_for_operations_that_nobody_waited_for() -> None:
    with SmallController(a_fabric(gpus=1)) as controller, jobs_of(controller) as jobs:
        works = [submit(job) for job in jobs for _ in range(5)]
        for job in jobs:
            job.close()
        assert all(work.is_success() for work in works)
        assert controller.engine.state.jobs["job"].state is JobState.ENDED
