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
SLICE_S, SLICE_S_MAX = 0.25, 8.0  # to wait in the store before looking whether something has changed
LOOK_S, LOOK_S_MAX = 0.01, 0.5
REFUSAL_S = 10.0  # how long rank 0 waits for others, only to tell them that it cannot run
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

    def delete_key(self, key: str) -> bool:
        """Forget a key; whether it was there."""

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
    nonce: str  # of this life, as the controller has it


class Meeting:
    """How the ranks of one init find each other in a store that may still hold what an earlier life wrote.

    A launcher may start all ranks again over the same store, in other places and without a number that all of
    them know. So everybody says hello with a fresh id; rank 0 welcomes those ids under a fresh id of its own,
    again when one has changed, until all have acknowledged it. All else is filed under that id.
    """

    def __init__(self, store: Store, rank: int, world: int, timeout: timedelta) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._timeout = timeout
        self._id = uuid.uuid4().hex
        self._welcomed: dict[int, str] = {}
        self._slice_s = SLICE_S

    def present(self, place: dict[str, Any]) -> None:
        """Say where this rank runs, or why it cannot."""
        self._store.set(f"opus/hello/{self._rank}", json.dumps({"id": self._id, "place": place}))

    def places(self) -> list[dict[str, Any]]:
        """For rank 0: what all ranks have presented, by rank; one that cannot run ends the waiting.

        Raises OpusInitError naming who did not, in time.
        """
        give_up_at = time.monotonic() + self._timeout.total_seconds()
        others = [rank for rank in range(self._world) if rank != self._rank]
        while True:
            hellos = self._hellos(give_up_at)
            self._welcome(hellos)
            places = [hello["place"] for hello in hellos]
            if any("problem" in place for place in places):
                break
            acknowledged = [f"opus/{self._id}/ack/{rank}" for rank in others]
            if self._are_there(acknowledged, give_up_at):
                ids = [self._store.get(key).decode() for key in acknowledged]
                if ids == [hellos[rank]["id"] for rank in others]:
                    break
        self._forget()
        return places

    def publish(self, result: dict[str, Any]) -> None:
        """For rank 0: tell all that were welcomed how it went."""
        self._store.set(f"opus/{self._id}/job", json.dumps(result))

    def refuse(self, result: dict[str, Any]) -> None:
        """For rank 0, which cannot run itself: tell all who come soon."""
        try:
            self._welcome(self._hellos(time.monotonic() + min(REFUSAL_S, self._timeout.total_seconds())))
        except OpusInitError:
            log.warning("not all ranks were there to be told why rank 0 cannot run")
        self._forget()
        self.publish(result)

    def result(self) -> dict[str, Any]:
        """For the others: how it went, from rank 0. Raises OpusInitError when that is not said in time."""
        give_up_at = time.monotonic() + self._timeout.total_seconds()
        acknowledged, look_s = "", LOOK_S
        mine = f"opus/welcome/{self._rank}"
        while True:
            if self._are_there([mine], give_up_at):
                whom, _, life = self._store.get(mine).decode().partition(" ")
                if whom == self._id:
                    if acknowledged != life:
                        self._store.set(f"opus/{life}/ack/{self._rank}", self._id)
                        acknowledged = life
                    if self._are_there([f"opus/{life}/job"], give_up_at):
                        result: dict[str, Any] = json.loads(self._store.get(f"opus/{life}/job"))
                        return result
            time.sleep(look_s)
            look_s = min(2 * look_s, LOOK_S_MAX)
            if time.monotonic() >= give_up_at:
                raise self._late("rank 0's registration")

    def _hellos(self, give_up_at: float) -> list[dict[str, Any]]:
        keys = [f"opus/hello/{rank}" for rank in range(self._world)]
        while not self._are_there(keys, give_up_at):
            if time.monotonic() >= give_up_at:
                raise self._late("a rank's place")
        return [json.loads(self._store.get(key)) for key in keys]

    def _welcome(self, hellos: list[dict[str, Any]]) -> None:
        for rank, hello in enumerate(hellos):
            if self._welcomed.get(rank) != hello["id"]:
                self._store.set(f"opus/welcome/{rank}", f"{hello['id']} {self._id}")
                self._welcomed[rank] = hello["id"]

    def _forget(self) -> None:
        """Hellos are for this life only."""
        for rank in range(self._world):
            self._store.delete_key(f"opus/hello/{rank}")

    def _are_there(self, keys: list[str], give_up_at: float) -> bool:
        """Wait for keys, a little while; whether they are there. Raises OpusInitError past `give_up_at`."""
        try:
            self._store.wait(keys, timedelta(seconds=self._slice_s))
        except Exception:  # noqa: BLE001 - torch has several types for a wait that was in vain
            if time.monotonic() >= give_up_at:
                raise self._late("the other ranks") from None
            self._slice_s = min(2 * self._slice_s, SLICE_S_MAX)
            return False
        return True

    def _late(self, what: str) -> OpusInitError:
        return OpusInitError(
            "init-timeout",
            f"rank {self._rank} waited {self._timeout.total_seconds():g} s for {what}; start all "
            f"{self._world} ranks, and with OPUS_MODE the same on all of them",
        )


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
        result["nonce"],
    )


def refuse(meeting: Meeting, rank: int, detail: str) -> OpusInitError:
    """This rank cannot take part: let the others know, and return the error that all will raise."""
    failed = OpusInitError(INVALID_SETTINGS, f"rank {rank}: {detail}")
    meeting.present(_failure(failed))
    if rank == 0:
        meeting.refuse(_failure(failed))
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
        "nonce": body["nonce"],
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
