"""One rank's session, against the real core behind a server that loses, delays and restarts."""

from __future__ import annotations

import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opus_sdn.intent.changes import JobState
from opus_sdn.intent.fabric import DriftPolicy
from opus_sdn.intent.model import CoreSettings, Grant, Stream
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.conversation import Answer, Conversation
from opus_sdn.shim.errors import ControllerError, ForkedProcessError, OpusError, OpusJobFailed
from opus_sdn.shim.session import (
    CLOSE_S_MIN,
    EXCHANGES_MAX,
    LINGER_S,
    UNREACHABLE,
    RankSession,
    answer_within_s,
)
from opus_sdn.shim.settings import Address
from tests.shim.small_controller import SmallController, a_fabric

RING = Stream("ring")
OTHER = Stream("other")
WAIT_S = 30.0
BRISK = CoreSettings(lease_s=1.0, fence_s=0.6, abort_s=0.1, fault_grace_s=0.3)


class Rank:
    """A rank that has its operations granted, and finishes them at once unless told to hold them."""

    def __init__(self, url: str, rank: int, ca_file: Path | None = None, **options: Any) -> None:
        self.rank = rank
        self.holds = False
        self.grants: list[Grant] = []
        self.refused: list[tuple[Stream, int, ControllerError]] = []
        self.failed: list[OpusJobFailed] = []
        self.changed = threading.Condition()
        port = int(url.rpartition(":")[2])
        self.client = ControllerClient(Address(ca_file is not None, "127.0.0.1", port), ca_file=ca_file)
        self.session = RankSession(
            self.client,
            "job",
            1,
            1,
            rank,
            on_grant=self._granted,
            on_failed=lambda failed: self._note(self.failed, failed),
            on_refused=lambda *refused: self._note(self.refused, refused),
            **{"fence_s": 5.0, **options},
        )

    def _granted(self, grant: Grant) -> None:
        if not self.holds:
            self.session.release(grant.stream, grant.n)
        self._note(self.grants, grant)

    def _note(self, what: list[Any], item: Any) -> None:
        with self.changed:
            what.append(item)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), (self.rank, len(self.grants), self.failed)


def declare(controller: SmallController, world: int = 2, nonce: str = "1", **spec: Any) -> int:
    """A job of so many ranks, one per host, with the groups `ring` and `other` of all of them."""
    placement = [{"rank": r, "host": f"host{r}", "slot": 0} for r in range(world)]
    body = {"owner": "me", "nonce": nonce, "placement": placement, "world_group": "rail", **spec}
    status, answer = controller.serve("PUT", "/api/v1/jobs/job", body)
    assert status == 200, answer
    groups = [
        {"name": n, "ranks": "world", "dimension": "dp", "ordinal": i}
        for i, n in enumerate(["ring", "other"])
    ]
    incarnation = answer["incarnation"]
    controller.serve("POST", "/api/v1/jobs/job/groups", {"incarnation": incarnation, "groups": groups})
    return int(incarnation)


@contextmanager
def ranks_of(controller: SmallController, count: int = 2, **options: Any) -> Iterator[list[Rank]]:
    ranks = [Rank(controller.url, rank, **options) for rank in range(count)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.session.close(timeout_s=2.0)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.005)


def test_an_operation_is_granted_when_all_have_arrived_and_not_before() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            a.session.arrive(RING, 0)
            eventually(lambda: controller.engine.state.jobs["job"].open != {})
            assert a.grants == []
            b.session.arrive(RING, 0)
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.grants) == 1)  # type: ignore[misc]
                assert rank.grants == [Grant(1, RING, 0, 1)]


def test_a_circuit_that_is_lost_under_a_rank_is_a_warning_in_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fabric = a_fabric(gpus=1)
    only_told = tuple(replace(rail, drift=DriftPolicy.OBSERVE) for rail in fabric.rails)
    with SmallController(replace(fabric, rails=only_told)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            for rank in (a, b):
                rank.holds = True
                rank.session.arrive(RING, 0)
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.grants) == 1)  # type: ignore[misc]
            with controller.changed:
                (name,) = controller.engine.state.switches
                controller.engine.observe(time.time(), name, frozenset())
            for n in range(3):
                a.session.arrive(OTHER, n)
            eventually(lambda: "circuit lost under this rank rank=0" in caplog.text)
            assert caplog.text.count("circuit lost under this rank rank=0") == 1


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("said", ["nothing", "arrivals", "releases"])
@pytest.mark.parametrize("quiet_s", [0.0, LINGER_S, 4.0, 100.0])
@pytest.mark.parametrize(
    "under_way", [kinds for n in range(EXCHANGES_MAX + 1) for kinds in product(("poll", "ask"), repeat=n)]
)
def test_who_has_nothing_to_send_waits_for_a_moment_that_has_not_passed(
    under_way: tuple[str, ...], quiet_s: float, said: str, one_by_one: bool
) -> None:
    now = 1000.0
    talk = Conversation(rank=0, start=1)
    session = RankSession.__new__(RankSession)
    session._talk, session._lock, session._failed = talk, threading.RLock(), None
    session._retry_at, session._one_by_one = 0.0, one_by_one
    session._heard_at, session._quiet_since = now - 1.0, now - quiet_s
    session._fence_s, session._deadline_s, session._poll_s = 15.0, 30.0, 5.0
    requests = [
        SimpleNamespace(is_poll=kind == "poll", letter=talk.compose(), expires_at=now + 3.0)
        for kind in under_way
    ]
    if said != "nothing":
        talk.arrive(RING, 0)
        letter = talk.compose()
        if said == "releases":
            talk.answered(letter, Answer(1, (Grant(1, RING, 0, 1),)))
            talk.release(RING, 0)
        for request in requests[:1]:
            request.letter = talk.compose()
    session._exchanges = SimpleNamespace(under_way=requests)  # type: ignore[assignment]
    for _ in range(EXCHANGES_MAX + 1):  # it sends what it has
        due = session._next(now)
        if due is None:
            break
        letter, wait_s = due
        requests.append(SimpleNamespace(is_poll=wait_s > 0, letter=letter, expires_at=now + wait_s + 5.0))
    assert due is None
    assert session._next_event(now) > now


def test_news_are_said_at_once_although_a_long_poll_stands() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller, fence_s=300.0) as (a, b):
            a.session.arrive(RING, 0)  # its poll stands for 10 s
            eventually(lambda: any(x.get("wait_s") == 10.0 for _, _, x in controller.requests))
            for rank in (a, b):
                rank.session.arrive(OTHER, 0)
            a.wait(lambda: len(a.grants) == 1)
            assert a.grants[0].stream == OTHER
            assert controller.polls_run_out == 0


@pytest.mark.parametrize(
    ("fence_s", "controllers", "wanted_s"), [(15.0, 1, 5.0), (15.0, 3, 2.5), (2.0, 1, 1.0), (2.0, 2, 1.0)]
)
def test_a_controller_that_hangs_is_left_sooner_where_there_are_others(
    fence_s: float, controllers: int, wanted_s: float
) -> None:
    assert answer_within_s(fence_s, controllers) == wanted_s


def test_over_tls_a_standing_poll_keeps_no_news_waiting_either(
    certificate: tuple[ssl.SSLContext, Path],
) -> None:
    context, public = certificate
    with SmallController(a_fabric(gpus=1), tls=context) as controller:
        declare(controller)
        with ranks_of(controller, ca_file=public, fence_s=300.0) as (a, b):
            a.session.arrive(RING, 0)
            eventually(lambda: any(x.get("wait_s") == 10.0 for _, _, x in controller.requests))
            for rank in (a, b):
                rank.session.arrive(OTHER, 0)
            a.wait(lambda: len(a.grants) == 1)
            assert controller.polls_run_out == 0


@pytest.mark.parametrize("seed", range(3))
def test_requests_and_answers_may_get_lost_and_every_operation_is_granted_once(seed: int) -> None:
    chance = random.Random(seed)
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        controller.mangle = lambda method, path: chance.choice([None, None, None, "drop", "lose"])
        with ranks_of(controller) as ranks:
            for rank in ranks:
                for n in range(30):
                    rank.session.arrive(RING, n)
                    rank.session.arrive(OTHER, n)
            for rank in ranks:
                rank.wait(lambda rank=rank: len(rank.grants) == 60)  # type: ignore[misc]
                assert [g.no for g in rank.grants] == list(range(1, 61))
                assert sorted((g.stream, g.n) for g in rank.grants) == sorted(
                    (s, n) for s in (RING, OTHER) for n in range(30)
                )
                assert rank.failed == []
            controller.mangle = lambda method, path: None
        assert controller.engine.state.jobs["job"].state is JobState.ENDED


def test_a_restarted_controller_is_told_everything_open_again() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller, fence_s=300.0) as (a, b):
            a.session.arrive(RING, 0)
            eventually(lambda: len(controller.engine.state.jobs["job"].open) == 1)
            with controller.changed:
                controller.engine.state.start = 7
                controller._polls.clear()
            b.session.arrive(RING, 0)  # is told of the new start
            a.session.arrive(OTHER, 0)
            b.session.arrive(OTHER, 0)
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.grants) == 2)  # type: ignore[misc]


def test_a_controller_that_has_forgotten_the_job_ends_it() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller, 1) as (a,):
            with controller.changed:
                controller.engine.state.jobs.clear()
            a.session.arrive(RING, 0)
            a.wait(lambda: len(a.failed) == 1)
            assert a.failed[0].problem == "unknown-job"


def test_one_refused_operation_does_not_keep_the_others_from_being_granted() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            for rank in (a, b):
                with rank.session._lock:  # all three in one request
                    rank.session._talk.arrive(RING, 0)
                    rank.session._talk.arrive(Stream("nowhere"), 0)
                    rank.session._talk.arrive(OTHER, 0)
                    rank.session._signal()
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.grants) == 2 and len(rank.refused) == 1)  # type: ignore[misc]
                stream, n, error = rank.refused[0]
                assert (stream, n, error.problem) == (Stream("nowhere"), 0, "unknown-connection")
                assert rank.failed == []


def test_a_failed_job_is_told_to_every_rank_once_and_grants_nothing_more() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            a.session.arrive(RING, 0)
            b.session.abort("enough")
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.failed) == 1)  # type: ignore[misc]
                failed = rank.failed[0]
                assert (failed.problem, failed.rank, failed.incarnation) == ("aborted", 1, 1)
                assert "enough" in failed.detail
                with pytest.raises(OpusJobFailed, match="enough"):
                    rank.session.arrive(OTHER, 0)
                rank.session.release(RING, 0)  # too late for anybody, and no error
        assert [len(rank.failed) for rank in (a, b)] == [1, 1]


def test_an_idle_rank_hears_of_a_failure_too() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller, fence_s=300.0) as (a, b):
            a.session.abort("enough")
            b.wait(lambda: len(b.failed) == 1)
            assert controller.polls_run_out == 0  # it did not have to wait for its next heartbeat


def test_a_broken_operation_is_explained_by_the_controller() -> None:
    with SmallController(a_fabric(gpus=1), BRISK) as controller:
        declare(controller)
        with ranks_of(controller, fence_s=0.6) as (a, b):
            a.session.report_failure(RING, 3, "connection reset")
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.failed) == 1)  # type: ignore[misc]
            assert str(a.failed[0]) == str(b.failed[0])
            assert a.failed[0].problem == "operation-failed"
            assert "connection reset" in a.failed[0].detail


def test_an_idle_rank_keeps_its_lease() -> None:
    with SmallController(a_fabric(gpus=1), BRISK) as controller:
        declare(controller)
        with ranks_of(controller, fence_s=0.6):
            begin = time.time()
            eventually(lambda: time.time() - begin > 3 * BRISK.lease_s)
            assert controller.engine.state.jobs["job"].state is JobState.RUNNING


def test_a_silent_rank_is_lost_to_the_others() -> None:
    with SmallController(a_fabric(gpus=1), BRISK) as controller:
        declare(controller)
        with ranks_of(controller, 1, fence_s=0.6) as (a,):  # rank 1 never comes
            a.session.arrive(RING, 0)
            a.wait(lambda: len(a.failed) == 1)
            assert (a.failed[0].problem, a.failed[0].rank) == ("rank-lost", 1)


def test_a_rank_that_holds_circuits_stops_by_itself_when_nobody_answers() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller, fence_s=0.5) as (a, b):
            a.holds = True
            for rank in (a, b):
                rank.session.arrive(RING, 0)
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.grants) == 1)  # type: ignore[misc]
            controller.mangle = lambda method, path: "drop"
            b.session.arrive(OTHER, 0)
            begin = time.monotonic()
            a.wait(lambda: len(a.failed) == 1)
            assert a.failed[0].problem == UNREACHABLE
            assert "1 operations unfinished" in a.failed[0].detail
            eventually(lambda: time.monotonic() - begin > 1.0)
            assert b.failed == []  # it holds nothing, so it only waits
            controller.mangle = lambda method, path: None
            a.session.close()
            b.wait(lambda: len(b.failed) == 1)
            assert (b.failed[0].problem, b.failed[0].rank) == ("rank-lost", 0)


def test_one_poll_that_gets_lost_without_a_trace_is_no_reason_to_fence() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller, fence_s=3.0) as (a, b):
            for rank in (a, b):
                rank.holds = True
                rank.session.arrive(RING, 0)
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.grants) == 1)  # type: ignore[misc]
            polls = controller.polls_run_out
            eventually(lambda: controller.polls_run_out >= polls + 2)  # the next ones have just begun
            lost = ["silent"]
            controller.mangle = lambda method, path: lost.pop() if lost else None
            eventually(lambda: not lost)
            begin = time.monotonic()
            eventually(lambda: time.monotonic() - begin > 4.0)
            assert a.failed == b.failed == []


def test_a_rank_that_waits_gives_up_at_its_deadline() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller, 1, fence_s=0.5, deadline_s=0.5) as (a,):
            controller.mangle = lambda method, path: "drop"
            a.session.arrive(RING, 0)
            a.wait(lambda: len(a.failed) == 1)
            assert a.failed[0].problem == UNREACHABLE
            assert "1 operations waiting" in a.failed[0].detail


def test_the_last_rank_to_leave_ends_the_job_and_nothing_is_left_behind() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            a.session.close()
            assert controller.engine.state.jobs["job"].state is JobState.RUNNING
            b.session.close()
            assert controller.engine.state.jobs["job"].state is JobState.ENDED
            with pytest.raises(OpusError, match="has left the job"):
                a.session.arrive(RING, 0)
            a.session.close()  # once more is no error
    assert not [t for t in threading.enumerate() if t.name.startswith("opus-session")]


def test_a_farewell_is_said_again_to_a_controller_that_is_not_ready() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            refused = iter([True, True])
            controller.mangle = lambda method, path: "not-ready" if next(refused, False) else None
            a.session.close()
            b.session.close()
            assert controller.engine.state.jobs["job"].state is JobState.ENDED


def test_a_rank_leaves_once_all_that_it_has_finished_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conversation.compose, "__defaults__", (2, False))
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            for rank in (a, b):
                rank.holds = True
                for n in range(9):
                    rank.session.arrive(RING, n)
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.grants) == 9)  # type: ignore[misc]
                controller.mangle = lambda method, path: "drop"
                for n in range(9):
                    rank.session.release(RING, n)
                controller.mangle = lambda method, path: None
                rank.session.close()
            job = controller.engine.state.jobs["job"]
            assert (job.state, job.failure) == (JobState.ENDED, None)


def test_a_rank_that_has_done_its_work_is_heard_by_a_controller_that_was_away_for_long() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller, fence_s=300.0) as (a, b):
            b.session.close()
            controller.mangle = lambda method, path: "drop"
            leaving = threading.Thread(target=a.session.close)
            leaving.start()
            then = time.monotonic()
            eventually(lambda: time.monotonic() > then + CLOSE_S_MIN + 0.2)
            controller.mangle = lambda method, path: None
            leaving.join(WAIT_S)
            assert controller.engine.state.jobs["job"].state is JobState.ENDED


def test_leaving_is_bounded_when_nobody_answers() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        rank = Rank(controller.url, 0)
        controller.mangle = lambda method, path: "drop"
        rank.session.close(timeout_s=0.3)
        assert not rank.session._thread.is_alive()


def test_a_newer_incarnation_ends_the_older_and_the_older_can_do_nothing() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            assert declare(controller, nonce="2") == 2
            a.session.arrive(RING, 0)
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.failed) == 1)  # type: ignore[misc]
                assert rank.failed[0].problem in ("superseded", "stale-incarnation")
            assert controller.engine.state.jobs["job"].open == {}


def test_a_forked_child_cannot_speak_for_the_rank() -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        declare(controller)
        with ranks_of(controller) as (a, b):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    a.session.arrive(RING, 0)
                except ForkedProcessError as refused:
                    status = 0 if "rank 0 of job job" in str(refused) else 2
                a.session.close()  # must not take the parent's rank out of the job
                os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            for rank in (a, b):
                rank.session.arrive(RING, 0)
            for rank in (a, b):
                rank.wait(lambda rank=rank: len(rank.grants) == 1)  # type: ignore[misc]
