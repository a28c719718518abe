"""How the ranks of a job become one incarnation: they meet in torch's store, rank 0 registers the job.

Rank 0 makes a fresh nonce for every init, so a restarted job is a new incarnation whatever the launcher's
restart count says. Everybody gets the same result or the same error; one rank's bad setting is everybody's.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, Protocol

from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import ControllerError, ControllerUnavailableError, OpusInitError
from opus_sdn.shim.settings import Admission, ShimSettings
from opus_sdn.shim.wire import job_path, queue_path, read_job

DEADLINE_SHARE = 0.9  # of the process group's timeout: the controller decides before torch's own watch does
INVALID_SETTINGS = "invalid-settings"
QUEUED = "queued"
INITIAL_TOPOLOGY_S = 30.0
INITIAL_TOPOLOGY_POLL_S = 0.02
QUEUED_POLL_S = 1.0  # an admitted job must be heard of within its lease

log = logging.getLogger(__name__)


class Store(Protocol):
    """What is used of torch's store."""

    def set(self, key: str, value: str) -> None:
        """Write a key."""

    def get(self, key: str) -> bytes:
        """Read a key, waiting for it."""

    def add(self, key: str, amount: int) -> int:
        """Count up; returns the new value."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until all keys are there; raises when they are not in time."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The job as all its ranks know it. `hosts[rank]` and `slots[rank]` are where a rank runs."""

    incarnation: int
    start: int
    hosts: tuple[str, ...]
    force_scale_out: bool
    deadline_s: float
    slots: tuple[int, ...]


class Meeting:
    """The keys of one init in the store. An init is counted by each rank, so a store may serve several."""

    def __init__(self, store: Store, rank: int, world: int, timeout: timedelta) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._timeout = timeout
        self._prefix = f"opus/{store.add(f'opus/inits/{rank}', 1)}"

    def present(self, place: dict[str, Any]) -> None:
        """Say where this rank runs, or why it cannot."""
        self._store.set(f"{self._prefix}/place/{self._rank}", json.dumps(place))

    def places(self) -> list[dict[str, Any]]:
        """What all ranks have presented, by rank. Raises OpusInitError naming who did not, in time."""
        keys = [f"{self._prefix}/place/{rank}" for rank in range(self._world)]
        self._wait(keys, "a rank's place")
        return [json.loads(self._store.get(key)) for key in keys]

    def publish(self, result: dict[str, Any]) -> None:
        """Tell all ranks how it went."""
        self._store.set(f"{self._prefix}/job", json.dumps(result))

    def result(self) -> dict[str, Any]:
        """How it went, from rank 0."""
        key = f"{self._prefix}/job"
        self._wait([key], "rank 0's registration")
        result: dict[str, Any] = json.loads(self._store.get(key))
        return result

    def _wait(self, keys: list[str], what: str) -> None:
        try:
            self._store.wait(keys, self._timeout)
        except Exception as failed:
            raise OpusInitError(
                "init-timeout",
                f"rank {self._rank} waited {self._timeout.total_seconds():g} s for {what}; start all "
                f"{self._world} ranks, and with OPUS_MODE the same on all of them",
            ) from failed


def enrol(
    meeting: Meeting, rank: int, settings: ShimSettings, client: ControllerClient, timeout: timedelta
) -> Enrolment:
    """Register the job (rank 0) or learn the registration (the others). Raises OpusInitError."""
    meeting.present({"host": settings.host, "slot": settings.slot})
    if rank == 0:
        try:
            result = _register(meeting.places(), settings, client, timeout)
        except OpusInitError as failed:
            result = _failure(failed)
        meeting.publish(result)
    else:
        result = meeting.result()
    if "problem" in result:
        raise OpusInitError(result["problem"], result["detail"])
    hosts = tuple(host for host, count in result["hosts"] for _ in range(count))
    return Enrolment(
        result["incarnation"],
        result["start"],
        hosts,
        result["force_scale_out"],
        result["deadline_s"],
        tuple(result["slots"]),
    )


def refuse(meeting: Meeting, rank: int, detail: str) -> OpusInitError:
    """This rank cannot take part: let the others know, and return the error that all will raise."""
    failed = OpusInitError(INVALID_SETTINGS, f"rank {rank}: {detail}")
    meeting.present(_failure(failed))
    if rank == 0:
        meeting.publish(_failure(failed))
    return failed


def _register(
    places: list[dict[str, Any]], settings: ShimSettings, client: ControllerClient, timeout: timedelta
) -> dict[str, Any]:
    for place in places:
        if "problem" in place:
            raise OpusInitError(place["problem"], place["detail"])
    deadline_s = round(DEADLINE_SHARE * timeout.total_seconds(), 3)
    body = {
        "owner": settings.owner,
        "nonce": uuid.uuid4().hex,
        "placement": [{"rank": rank, **place} for rank, place in enumerate(places)],
        "dimensions": [{"name": name, "size": size} for name, size in settings.dimensions],
        "port_choice": settings.port_choice.value,
        "world_group": settings.world_group.value,
        "force_scale_out": settings.force_scale_out,
        "deadline_s": deadline_s,
    }
    if settings.initial_topology is not None:
        body["initial_topology"] = settings.initial_topology
    if (budget := settings.retry_budget) is not None:
        body["retry_budget"] = {"timeout": budget.timeout, "retry": budget.retry}
    try:
        job = read_job(_admitted(body, settings, client, deadline_s))
    except ControllerError as refused:
        raise OpusInitError(refused.problem, refused.detail) from None
    except ControllerUnavailableError as absent:
        raise OpusInitError(
            "controller-unreachable",
            f"{absent}; tried for {settings.init_s:g} s (OPUS_INIT_S); start the controller, or correct "
            "OPUS_CONTROLLER",
        ) from None
    if settings.initial_topology is not None:
        _await_topology(settings.initial_topology, settings.job, client)
    return {
        "incarnation": job.incarnation,
        "start": job.start,
        "hosts": [[host, len(list(run))] for host, run in groupby(place["host"] for place in places)],
        "slots": [place["slot"] for place in places],
        "force_scale_out": settings.force_scale_out,
        "deadline_s": deadline_s,
    }


def _admitted(
    body: dict[str, Any], settings: ShimSettings, client: ControllerClient, deadline_s: float
) -> dict[str, Any]:
    """The answer to the registration once the job is not queued any more. OpusInitError when that is late."""
    body = {**body, "admission": settings.admission.value} if settings.admission is Admission.QUEUE else body
    give_up_at = time.monotonic() + deadline_s
    said = ""
    while True:
        answer: dict[str, Any] = client.request("PUT", job_path(settings.job), body, retry_s=settings.init_s)
        if answer.get("state") != QUEUED:
            return answer
        reason = str(answer.get("reason", {}).get("detail", "its ports are not free"))
        if reason != said:
            log.warning("job %s is queued: %s", settings.job, reason)
            said = reason
        if time.monotonic() >= give_up_at:
            client.request("DELETE", queue_path(settings.job, settings.owner))
            raise OpusInitError(
                QUEUED,
                f"job {settings.job} was still queued after {deadline_s:g} s: {reason}; it was withdrawn",
            )
        time.sleep(min(QUEUED_POLL_S, deadline_s))


def _await_topology(wanted: str, job: str, client: ControllerClient) -> None:
    """Let the ranks begin once the switches show the topology asked for; without it, late but not never."""
    give_up_at = time.monotonic() + INITIAL_TOPOLOGY_S
    while time.monotonic() < give_up_at:
        topology: dict[str, str] = client.request("GET", job_path(job))["topology"]
        if all(shown == wanted for shown in topology.values()):
            return
        time.sleep(INITIAL_TOPOLOGY_POLL_S)
    log.warning("job %s begins without its initial topology %s; the switches show %s", job, wanted, topology)


def _failure(failed: OpusInitError) -> dict[str, Any]:
    return {"problem": failed.problem, "detail": failed.detail}
