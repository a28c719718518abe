"""A job from its declaration to its end, over a real server, as two or three ranks see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.api.world import PREFIX, Controller, controller, fabric, job, wait_until


def test_two_ranks_share_a_ring_and_only_the_first_operation_moves_the_switch(opus: Controller) -> None:
    for n in range(3):
        done = [{"connection": "dp", "n": n - 1}] if n else []
        first = opus.later(opus.arrive, 0, "dp", n, wait_s=30, last_grant=n, releases=done)
        second = opus.arrive(1, "dp", n, wait_s=30, last_grant=n, releases=done)
        wanted = {
            "no": n + 1,
            "connection": "dp",
            "source": None,
            "destination": None,
            "n": n,
            "length": 1,
        }
        assert first.result()["grants"] == second["grants"] == [wanted]
    seen = opus.get("/jobs/j")
    assert (seen["grants"], seen["device_steps"], seen["topology_changes"]) == (3, 1, 1)
    assert seen["topology"] == {"rail0": "1"}
    assert [lock["rank"] for lock in opus.get("/locks")["locks"]] == [0, 1]
    for rank in (0, 1):
        opus.release(rank, "dp", 2, last_grant=3)
    assert opus.get("/locks")["locks"] == []
    assert opus.get("/circuits")["circuits"][0]["live"] is False


def test_a_conflicting_connection_waits_for_the_release_and_an_independent_one_does_not(
    tmp_path: Path,
) -> None:
    with controller(tmp_path, declared=fabric(hosts=4)) as opus:
        opus.declare(world=4)
        # A two-member ring joins right (1) of the first with left (0) of the second: `ab` and `cb` both want
        # the left of h1, `dc` none of their ports.
        opus.check_in("ab", [0, 1])
        opus.check_in("cb", [2, 1])
        opus.check_in("dc", [3, 2])
        for rank in (0, 1):
            opus.arrive(rank, "ab", 0)
        granted(opus, 0, "ab")
        for rank in (2, 1):
            opus.arrive(rank, "cb", 0)
        for rank in (3, 2):
            opus.arrive(rank, "dc", 0)
        granted(opus, 3, "dc")
        (waiting,) = opus.get("/intents")["intents"]
        assert waiting["connection"] == "cb"
        assert waiting["state"] in ("complete", "installing")
        assert waiting["reason"]["code"] in ("locked", "reserved", "switching", "moving")
        assert waiting["reason"]["detail"]
        live = {circuit["id"] for circuit in opus.get("/circuits")["circuits"] if circuit["live"]}
        assert "h0:0:1--h1:0:0" in live
        for rank in (0, 1):
            opus.release(rank, "ab", 0)
        granted(opus, 2, "cb")
        assert "h0:0:1--h1:0:0" not in {c["id"] for c in opus.get("/circuits")["circuits"]}


def granted(opus: Controller, rank: int, connection: str) -> None:
    answer = opus.say(rank, wait_s=0)
    if connection not in {grant["connection"] for grant in answer["grants"]}:
        last = max((grant["no"] for grant in answer["grants"]), default=0)
        answer = opus.say(rank, wait_s=30, last_grant=last)
    assert connection in {grant["connection"] for grant in answer["grants"]}, answer


def test_messages_of_a_pair_are_numbered_by_direction(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric()) as opus:
        opus.declare(dimension="pp")
        group = opus.check_in("pp", [0, 1], dimension="pp")
        assert group["connection"]["pattern"] == "ring"
        for rank in (0, 1):
            opus.arrive(rank, "pp:0-1", 0, source=0, destination=1)
            opus.arrive(rank, "pp:0-1", 0, source=1, destination=0)
        wait_until(lambda: len(opus.say(0)["grants"]) == 2, "both directions are granted")
        answer = opus.say(0)
        assert {(g["source"], g["destination"], g["n"]) for g in answer["grants"]} == {(0, 1, 0), (1, 0, 0)}
        pair = opus.get("/connections/pp:0-1", job="j")
        assert [circuit["id"] for circuit in pair["circuits"]] == ["h0:0:1--h1:0:0"]
        assert [c["id"] for c in opus.get("/connections", job="j")["connections"]] == ["pp", "pp:0-1"]


def test_one_request_may_bring_the_news_of_all_ranks_of_a_host(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(slots=2)) as opus:
        places = [{"rank": r, "host": f"h{r // 2}", "slot": r % 2} for r in range(4)]
        body = {"owner": "me", "nonce": "1", "placement": places}
        assert opus.put("/jobs/j", body).status_code == 201
        both = {
            "incarnation": 1,
            "groups": [
                {"name": "r0", "ranks": [0, 2], "dimension": "dp"},
                {"name": "r1", "ranks": {"start": 1, "stop": 4, "step": 2}, "dimension": "dp"},
                {"name": "tp", "ranks": [0, 1], "dimension": "tp"},
                {"name": "all", "ranks": "world", "dimension": "world"},
            ],
        }
        groups = opus.post("/jobs/j/groups", both).json()["groups"]
        assert [group["domain"] for group in groups] == ["scale-out", "scale-out", "scale-up", "front-end"]
        assert [group["ranks"] for group in groups] == [[0, 2], [1, 3], [0, 1], [0, 1, 2, 3]]
        assert groups[2]["connection"] is None

        def host(*ranks: int) -> Any:
            news = [
                {"rank": r, "last_grant": 0, "arrivals": [{"connection": f"r{r % 2}", "n": 0}]} for r in ranks
            ]
            body = {"incarnation": 1, "seen_start": opus.address.start, "wait_s": 30, "ranks": news}
            return opus.post("/jobs/j/arrivals", body).json()

        first = opus.later(host, 0, 1)
        second = host(2, 3)
        assert [len(rank["grants"]) for rank in second["ranks"]].count(1) >= 1
        assert {rank["rank"] for rank in first.result()["ranks"]} == {0, 1}
        wait_until(lambda: opus.get("/jobs/j")["grants"] == 2, "both rings are granted")
        assert opus.get("/jobs/j")["topology"].keys() == {"rail0", "rail1"}


def test_the_same_nonce_is_the_same_incarnation_and_a_fresh_one_the_next(opus: Controller) -> None:
    again = opus.put("/jobs/j", job(nonce="1"))
    assert (again.status_code, again.json()["incarnation"]) == (200, 1)
    fresh = opus.put("/jobs/j", job(nonce="2"))
    assert (fresh.status_code, fresh.json()["incarnation"]) == (201, 2)
    assert fresh.headers["Location"] == f"{PREFIX}/jobs/j"
    stale = opus.post("/jobs/j/arrivals", opus.news(0, incarnation=1))
    assert (stale.status_code, stale.json()["type"]) == (409, "urn:opus-sdn:problem:stale-incarnation")


def test_ranks_that_leave_end_the_job_and_free_its_ports(opus: Controller) -> None:
    for rank in (0, 1):
        opus.say(rank, leave=True)
    assert opus.get("/jobs/j")["state"] == "ended"
    assert opus.declare("other") == 1, "its ports are free"


def test_a_launcher_that_has_stopped_all_ranks_ends_the_job(opus: Controller) -> None:
    for rank in (0, 1):
        opus.arrive(rank, "dp", 0)
    opus.say(0, wait_s=30)
    assert opus.get("/locks")["locks"]
    answer = opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    assert (answer.status_code, answer.json()["state"]) == (200, "ended")
    assert opus.get("/locks")["locks"] == []


def test_an_abort_tells_every_rank_the_one_cause(opus: Controller) -> None:
    waiting = opus.later(opus.arrive, 1, "dp", 0, wait_s=60)
    wait_until(lambda: opus.get("/intents")["intents"], "rank 1 has arrived")
    answer = opus.post("/jobs/j/abort", {"incarnation": 1, "rank": 0, "detail": "out of memory"})
    assert answer.json()["state"] == "failed"
    failure = waiting.result()["failure"]
    assert failure["type"] == "urn:opus-sdn:problem:aborted"
    assert failure["rank"] == 0
    assert "out of memory" in failure["detail"]
    assert opus.say(0)["failure"] == failure
    assert opus.get("/jobs/j")["failure"] == failure


def test_a_dead_rank_is_named_to_all_others(opus: Controller) -> None:
    waiting = opus.later(opus.arrive, 0, "dp", 0, wait_s=60)
    wait_until(lambda: opus.get("/intents")["intents"], "rank 0 has arrived")
    answer = opus.post("/jobs/j/deaths", {"incarnation": 1, "ranks": [1], "detail": "signal 9"})
    assert answer.status_code == 200
    failure = waiting.result()["failure"]
    assert (failure["type"], failure["rank"]) == ("urn:opus-sdn:problem:rank-lost", 1)


def test_an_operation_that_failed_fails_the_job_once_everybody_was_heard(opus: Controller) -> None:
    report = {"incarnation": 1, "rank": 0, "connection": "dp", "n": 0, "detail": "connection reset"}
    answer = opus.post("/jobs/j/failures", report)
    assert (answer.status_code, answer.json()["state"]) == (200, "running")
    wait_until(lambda: opus.say(0)["failure"] or opus.say(1)["failure"], "both were heard well after it")
    failure = opus.say(0)["failure"]
    assert failure["type"] == "urn:opus-sdn:problem:operation-failed"
    assert "connection reset" in failure["detail"]


def test_the_files_of_the_run_tell_its_story(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric()) as opus:
        opus.declare("my-run")
        opus.http.delete(f"{PREFIX}/jobs/my-run", params={"incarnation": 1})
    log = (tmp_path / "runs" / "my-run" / "controller.log").read_text()
    assert "job.started" in log
    assert "job.ended" in log
    assert (tmp_path / "runs" / "my-run" / "events.jsonl").exists()


def test_answers_carry_a_request_id_and_take_over_one_that_is_given(opus: Controller) -> None:
    mine = opus.http.get("/livez", headers={"X-Request-Id": "abc-1"})
    assert mine.headers["X-Request-Id"] == "abc-1"
    assert opus.http.get("/livez").headers["X-Request-Id"]
    strange = opus.http.get("/livez", headers={"X-Request-Id": "not good"})
    assert strange.headers["X-Request-Id"] != "not good"
    polled: httpx.Response = opus.post("/jobs/j/arrivals", opus.news(0))
    assert polled.headers["X-Request-Id"]
