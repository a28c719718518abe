"""When a waiting request is answered, and what ends it."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import State

from opus_sdn.api import hot
from opus_sdn.api.former import FormerJobs
from opus_sdn.api.schemas import WireRank
from opus_sdn.intent.model import CoreSettings, Hint, Stream
from opus_sdn.reconciler import runtime
from opus_sdn.reconciler.waiters import Poll
from opus_sdn.settings import Settings
from opus_sdn.store.base import StoreError
from tests.api.held import HeldDriver, HeldStore, held_drivers
from tests.api.world import PREFIX, Controller, controller, fabric, job, wait_until
from tests.drivers.virtual_time import run_virtual
from tests.reconciler.world import World, forever


def arrivals(opus: Controller) -> int:
    return sum(len(intent["arrived"]) for intent in opus.get("/intents")["intents"])


def test_the_last_arrival_wakes_all_who_wait(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(hosts=4)) as opus:
        opus.declare(world=4)
        opus.check_in("dp", "world")
        waiting = [opus.later(opus.arrive, rank, "dp", 0, wait_s=60) for rank in (0, 1, 2)]
        wait_until(lambda: arrivals(opus) == 3, "three of four have arrived")
        (intent,) = opus.get("/intents")["intents"]
        assert (intent["arrived"], intent["missing"]) == ([0, 1, 2], [3])
        assert intent["reason"]["code"] == "members-missing"
        assert not any(poll.done() for poll in waiting)
        last = opus.arrive(3, "dp", 0, wait_s=60)
        for answer in (last, *(poll.result() for poll in waiting)):
            assert [(grant["no"], grant["n"]) for grant in answer["grants"]] == [(1, 0)]


def test_without_news_the_answer_comes_at_the_end_of_the_wait_with_the_state_then(opus: Controller) -> None:
    for wait_s in (0, 0.01, 0.2):
        answer = opus.arrive(0, "dp", 0, wait_s=wait_s)
        (arrival,) = answer["arrivals"]
        assert (arrival["connection"], arrival["n"], arrival["state"]) == ("dp", 0, "open")
        assert arrival["reason"]["code"] == "members-missing"
        assert answer["grants"] == []


def test_a_newer_poll_of_a_rank_ends_its_older_one(opus: Controller) -> None:
    older = opus.later(opus.arrive, 0, "dp", 0, wait_s=60)
    wait_until(lambda: arrivals(opus) == 1, "the older poll waits")
    newer = opus.later(opus.say, 0, wait_s=60)
    assert older.result()["grants"] == []
    assert not newer.done()
    opus.arrive(1, "dp", 0, wait_s=60)
    assert len(newer.result()["grants"]) == 1


def test_a_repeated_poll_hears_of_the_same_grant_until_it_is_acknowledged(opus: Controller) -> None:
    opus.arrive(0, "dp", 0)
    opus.arrive(1, "dp", 0, wait_s=60)
    for _ in range(2):
        answer = opus.arrive(0, "dp", 0, wait_s=60)
        assert [grant["no"] for grant in answer["grants"]] == [1]
        assert [arrival["state"] for arrival in answer["arrivals"]] == ["granted"]
    assert opus.say(0, last_grant=1)["grants"] == []
    opus.release(0, "dp", 0, last_grant=1)
    assert [arrival["state"] for arrival in opus.arrive(0, "dp", 0, last_grant=1)["arrivals"]] == ["done"]


def test_a_client_that_disconnects_frees_its_waiter_and_its_arrival_stays(opus: Controller) -> None:
    body = json.dumps(
        opus.news(0, wait_s=60, arrivals=[{"connection": "dp", "n": 0}]),
    ).encode()
    head = (
        f"POST {PREFIX}/jobs/j/arrivals HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", opus.address.port)) as client:
        client.sendall(head + body)
        wait_until(lambda: arrivals(opus) == 1, "the client's arrival is known")
        wait_until(lambda: polls() == 1, "the client waits")
    wait_until(lambda: polls() == 0, "its waiter is gone")
    assert arrivals(opus) == 1
    assert len(opus.arrive(1, "dp", 0, wait_s=60)["grants"]) == 1


def polls() -> int:
    """Polls that wait in this process, which the controller shares with its test."""
    return sum(isinstance(each, Poll) and not each.future.done() for each in gc.get_objects())


def test_a_grant_is_not_answered_before_its_batch_is_stored(tmp_path: Path) -> None:
    store = HeldStore()
    with controller(tmp_path, declared=fabric(), store=store) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        for rank in (0, 1):
            opus.arrive(rank, "dp", 0)
        wait_until(lambda: opus.say(0)["grants"], "the circuit is up")
        for rank in (0, 1):
            opus.release(rank, "dp", 0, last_grant=1)
        store.hold()
        waiting = opus.later(opus.arrive, 0, "dp", 1, wait_s=60, last_grant=1)
        opus.arrive(1, "dp", 1, last_grant=1)
        wait_until(lambda: store.waiting, "the grant is on its way to the store")
        answer = opus.arrive(1, "dp", 1, last_grant=1)
        assert answer["grants"] == []
        assert [arrival["state"] for arrival in answer["arrivals"]] == ["open"]
        assert not waiting.done()
        store.let_go()
        assert [grant["no"] for grant in waiting.result()["grants"]] == [2]


def test_a_job_is_not_answered_before_it_is_stored(tmp_path: Path) -> None:
    store = HeldStore()
    with controller(tmp_path, declared=fabric(), store=store) as opus:
        store.hold()
        declared = opus.later(opus.declare)
        wait_until(lambda: store.waiting, "the job is on its way to the store")
        assert not declared.done()
        store.let_go()
        assert declared.result() == 1


def test_a_grant_is_not_answered_before_the_switch_shows_the_circuit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_drivers(monkeypatch) as drivers, controller(tmp_path, declared=fabric()) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        switch = drivers["ocs0"]
        switch.may_read.clear()
        waiting = opus.later(opus.arrive, 0, "dp", 0, wait_s=60)
        opus.arrive(1, "dp", 0)
        wait_until(lambda: switch.applied == 1 and switch.readings == 2, "the circuit is made and is read")
        assert switch.device.table
        assert opus.say(1)["grants"] == []
        assert opus.get("/rails/rail0")["moving"] == [1, 2]
        assert not waiting.done()
        switch.may_read.set()
        assert len(waiting.result()["grants"]) == 1
        assert opus.get("/rails/rail0")["moving"] == []


def test_after_a_missed_step_deadline_the_switch_is_read_back_and_the_step_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        held_drivers(monkeypatch) as drivers,
        controller(tmp_path, declared=fabric(), step_deadline_s=0.2) as opus,
    ):
        opus.declare()
        opus.check_in("dp", "world")
        switch = drivers["ocs0"]
        switch.may_apply.clear()
        waiting = opus.later(opus.arrive, 0, "dp", 0, wait_s=60)
        opus.arrive(1, "dp", 0)
        wait_until(lambda: switch.readings >= 2, "the deadline is over and the switch is read")
        assert opus.say(1)["grants"] == []
        switch.may_apply.set()
        assert len(waiting.result()["grants"]) == 1
        kinds = [event["kind"] for event in opus.get("/events", kind="step")["events"]]
        assert kinds[0] == "step.planned"
        assert "step.failed" in kinds
        assert kinds[-1] == "step.done"
        assert switch.applied == 1


def test_the_hot_route_reads_nothing_from_the_store(tmp_path: Path) -> None:
    store = HeldStore()
    with controller(tmp_path, declared=fabric(), store=store) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        before = store.reads
        for n in range(5):
            done = [{"connection": "dp", "n": n - 1}] if n else []
            for rank, wait_s in ((0, 0), (1, 60)):
                opus.arrive(rank, "dp", n, wait_s=wait_s, last_grant=n, releases=done)
        assert opus.get("/jobs/j")["grants"] == 5
        assert store.reads == before


class ComingBack(HeldStore):
    """A store that can be opened again, except while it is `away`."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    def open(self) -> ComingBack:
        if self.away:
            raise StoreError("the disk is full")
        return self

    def close(self, *, clean: bool = True) -> None:
        """What is stored stays."""

    def fail(self, opus: Controller) -> None:
        """The write that is on its way is lost, and so are all that follow."""
        self.hold()
        declared = opus.later(opus.put, "/jobs/k", job(1, placement=[{"rank": 0, "host": "h2", "slot": 0}]))
        wait_until(lambda: self.waiting, "a batch is on its way")
        self.away = True
        self.lose(StoreError("disk is full"))
        assert declared.result().status_code == 503

    def come_back(self) -> None:
        self.let_go()
        self.away = False


def test_after_the_store_is_lost_it_is_opened_again_and_the_job_goes_on(tmp_path: Path) -> None:
    store = ComingBack()
    with controller(tmp_path, declared=fabric(hosts=3), open_store=store.open) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        for rank in (0, 1):
            opus.arrive(rank, "dp", 0)
        wait_until(lambda: opus.say(0)["grants"], "granted")
        steps = opus.get("/jobs/j")["device_steps"]
        waiting = opus.later(opus.post, "/jobs/j/arrivals", opus.news(0, wait_s=60, last_grant=1))
        store.fail(opus)
        assert waiting.result().status_code == 503
        for path in ("/readyz", PREFIX + "/jobs/j/arrivals"):
            answer = opus.http.get(path) if path == "/readyz" else opus.http.post(path, json=opus.news(0))
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:opus-sdn:problem:not-ready")
            assert int(answer.headers["Retry-After"]) >= 1
        assert opus.http.get("/livez").status_code == 200, "nobody need start the process anew"
        store.come_back()
        wait_until(lambda: opus.http.get("/readyz").status_code == 200, "a new term has begun")
        assert opus.http.get("/readyz").json()["start"] == 2
        held = [{"no": 1, "connection": "dp", "n": 0}]
        session = {"last_grant": 1, "held": held, "marks": [{"connection": "dp", "granted": 1}]}
        for rank in (0, 1):
            opus.say(rank, seen_start=2, last_grant=1, session=session)
        for rank in (0, 1):
            opus.release(rank, "dp", 0, seen_start=2, last_grant=1)
            opus.arrive(rank, "dp", 1, seen_start=2, last_grant=1)
        (grant,) = opus.say(0, seen_start=2, last_grant=1, wait_s=30)["grants"]
        assert (grant["n"], steps, opus.get("/jobs/j")["device_steps"]) == (1, 1, 0)


def test_news_are_refused_while_the_store_has_no_room_and_who_only_asks_is_answered(tmp_path: Path) -> None:
    store = HeldStore()
    with controller(tmp_path, declared=fabric(), store=store) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        store.has_room = lambda: False  # type: ignore[method-assign]
        before = opus.everything()
        for answer in (
            opus.post("/jobs/j/arrivals", opus.news(0, arrivals=[{"connection": "dp", "n": 0}])),
            opus.put("/jobs/k", job()),
        ):
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:opus-sdn:problem:overloaded")
            assert answer.headers["Retry-After"] == "1"
        assert opus.say(0)["grants"] == []
        assert opus.everything() == before


def test_a_store_that_cannot_keep_up_has_ranks_told_to_come_again_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "PENDING_MAX", 1)
    monkeypatch.setattr(runtime, "BEHIND_S", 0.05)
    store = HeldStore()
    with controller(tmp_path, declared=fabric(), store=store) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        store.hold()
        for rank in (0, 1):
            opus.arrive(rank, "dp", 0)
        again = opus.news(0, arrivals=[{"connection": "dp", "n": 1}])

        def is_refused() -> bool:
            answer = opus.post("/jobs/j/arrivals", again)
            return answer.status_code == 503 and answer.headers["Retry-After"] == "1"

        wait_until(is_refused, "the store is behind for long")
        assert opus.post("/jobs/j/arrivals", again).json()["type"] == "urn:opus-sdn:problem:overloaded"
        assert opus.say(0)["grants"] == [], "who only asks is heard"
        store.let_go()
        wait_until(lambda: opus.post("/jobs/j/arrivals", again).status_code == 200, "it has caught up")
        wait_until(lambda: opus.say(1)["grants"], "what was taken before is granted")


def test_a_switch_that_is_away_is_no_reason_to_start_the_controller_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldDriver, "open_at_first", False)
    monkeypatch.setattr(runtime, "ADOPTION_WAIT_S", 0.05)
    with held_drivers(monkeypatch), controller(tmp_path, declared=fabric()) as opus:
        assert opus.http.get("/readyz").status_code == 503
        assert opus.http.get("/livez").status_code == 200


def test_ranks_that_only_wait_are_not_lost_however_long_they_ask_to_wait() -> None:
    async def main() -> None:
        world = await World(hosts=2).start()
        lease_s = CoreSettings().lease_s
        state = State({"runtime": world.runtime, "settings": Settings(), "former_jobs": FormerJobs()})
        assert state.settings.lease_s == lease_s < state.settings.wait_s_max

        async def poll(rank: int) -> None:
            news = {"rank": rank, "last_grant": 0}
            raw = json.dumps({"incarnation": 1, "seen_start": 1, "wait_s": 60, "ranks": [news]}).encode()
            scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
            sent = [{"type": "http.request", "body": raw}]

            async def receive() -> Any:
                return sent.pop() if sent else await forever()

            answer = json.loads(await hot.serve(state, "job", scope, receive))
            assert answer["ranks"][0]["failure"] is None

        async def only_poll(rank: int) -> None:
            while world.loop.time() < 10 * lease_s:
                await poll(rank)

        await asyncio.gather(only_poll(0), only_poll(1))

    run_virtual(main)


def test_what_a_rank_expects_to_need_next_reaches_the_core() -> None:
    pair = {"connection": "pp:0-4", "source": 0, "destination": 4, "n": 7}
    rank = WireRank.model_validate({"rank": 0, "last_grant": 0, "hints": [pair]})
    assert hot.news_of(rank).hints == (Hint(Stream("pp:0-4", 0, 4), 7),)


def test_after_the_store_is_lost_nobody_is_granted_anything(tmp_path: Path) -> None:
    store = HeldStore()
    with controller(tmp_path, declared=fabric(), store=store) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        store.hold()
        body = opus.news(0, wait_s=60, arrivals=[{"connection": "dp", "n": 0}])
        waiting = opus.later(opus.post, "/jobs/j/arrivals", body)
        opus.arrive(1, "dp", 0)
        wait_until(lambda: store.waiting, "a batch is on its way")
        store.lose(RuntimeError("disk is full"))
        for answer in (waiting.result(), opus.post("/jobs/j/arrivals", opus.news(1))):
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:opus-sdn:problem:not-ready")
            assert answer.headers["Retry-After"]
        ready = opus.http.get("/readyz")
        assert ready.status_code == 503
        assert {check["name"] for check in ready.json()["checks"]} == {"store"}
        assert opus.get("/rails")["rails"], "what is known can still be read"


def test_a_run_is_cut_through_the_open_polls_of_its_members(opus: Controller) -> None:
    for rank in (0, 1):
        opus.say(rank, arrivals=[{"connection": "dp", "n": 0, "closed": 4}])
    wait_until(lambda: opus.say(0)["grants"], "the circuit is up")
    assert [grant["length"] for grant in opus.say(0)["grants"]] == [4]
    asked = opus.later(opus.say, 1, wait_s=60, last_grant=1)
    opus.say(0, last_grant=1, cut=[{"connection": "dp", "n": 0, "issued": 1}])
    question = {"connection": "dp", "source": None, "destination": None, "n": 0, "length": None}
    assert asked.result()["cut_requests"] == [question]
    (cut,) = opus.get("/jobs/j")["cuts"]
    assert cut == {
        "connection": "dp",
        "n": 0,
        "length": 4,
        "decided": False,
        "issued": {"0": 1},
        "holders": [0, 1],
    }
    told = opus.later(opus.say, 0, wait_s=60, last_grant=1)
    opus.say(1, last_grant=1, cut=[{"connection": "dp", "n": 0, "issued": 3}])
    assert told.result()["cut_requests"] == [{**question, "length": 3}]
    for rank, issued in ((0, 1), (1, 3)):
        ack = {"connection": "dp", "n": 0, "issued": issued, "length": 3}
        assert opus.say(rank, last_grant=1, cut=[ack])["cut_requests"] == []
        opus.say(rank, last_grant=1, releases=[{"connection": "dp", "n": 0, "length": 3}])
    seen = opus.get("/jobs/j")
    assert (seen["cuts"], seen["runs_cut"], seen["grants"], seen["operations"]) == ([], 1, 1, 3)
    assert [(t["before"], t["after"], t["changes"]) for t in seen["transitions"]] == [("-", "dp", 1)]
    assert opus.get("/locks")["locks"] == []
