"""What operators tell over the API: drains, circuits of their own, force, the queue, a fabric under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from opus_sdn.api.server import running
from opus_sdn.intent.directives import Operator
from opus_sdn.reconciler.runtime import Runtime
from tests.api.world import PREFIX, Controller, controller, fabric, job, settings, wait_until

ANN = {"by": "ann", "detail": "cleaning"}


def drain(opus: Controller, port: str, **more: Any) -> httpx.Response:
    return opus.post(f"/ports/{port}/drain", {**ANN, **more})


def delete(opus: Controller, path: str, **query: Any) -> httpx.Response:
    return opus.http.delete(PREFIX + path, params={"by": "ann", **query})


def is_done(opus: Controller, name: str) -> bool:
    held = {each["name"]: each for each in opus.get("/directives")["directives"]}
    return bool(held[name]["done"])


def hold(opus: Controller) -> dict[str, Any]:
    """Ranks 0 and 1 hold the ring; the lock of rank 0."""
    opus.arrive(0, "dp", 0)
    assert opus.arrive(1, "dp", 0, wait_s=30)["grants"]
    lock = next(lock for lock in opus.get("/locks")["locks"] if lock["rank"] == 0)
    assert isinstance(lock, dict)
    return lock


def test_a_drained_port_is_shown_and_what_needs_it_waits_with_the_same_reason(opus: Controller) -> None:
    answer = drain(opus, "h0:0:1")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["kind"], told["name"], told["by"], told["done"]) == ("drain", "h0:0:1", "ann", True)
    assert {port["port"] for port in opus.get("/ports")["ports"] if port["drained"]} == {"h0:0:1"}
    opus.arrive(0, "dp", 0)
    opus.arrive(1, "dp", 0)
    wait_until(lambda: opus.get("/intents")["intents"][0]["reason"]["code"] == "drained", "it is told")
    (intent,) = opus.get("/intents")["intents"]
    assert opus.say(1)["arrivals"][0]["reason"] == intent["reason"]
    undrained = opus.post("/ports/h0:0:1/undrain", ANN)
    assert (undrained.status_code, undrained.content) == (204, b"")
    assert opus.say(1, wait_s=30)["grants"]
    kinds = [event["kind"] for event in opus.get("/events", kind="port")["events"]]
    assert kinds == ["port.drained", "port.undrained"]


def test_a_drain_under_a_lock_names_the_holders_and_force_is_on_record(opus: Controller) -> None:
    hold(opus)
    refused = drain(opus, "h0:0:1")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:locked")
    assert [holder["rank"] for holder in refused.json()["holders"]] == [0, 1]
    assert opus.get("/circuits")["circuits"]
    assert drain(opus, "h0:0:1", force=True).status_code == 200
    wait_until(lambda: is_done(opus, "h0:0:1"), "the port is dark")
    (event,) = opus.get("/events", kind="port.drained")["events"]
    assert (event["data"]["by"], event["data"]["force"], event["data"]["detail"]) == ("ann", True, "cleaning")
    assert len(event["data"]["before"]["holders"]) == 2


def test_a_drain_taken_back_while_it_is_stored_is_answered_with_what_was_told(
    opus: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Runtime.stored

    async def stored_and_taken_back(runtime: Runtime) -> None:
        await stored(runtime)
        runtime.engine.undrain_port(runtime.now(), "h0:0:1", Operator("bob", ""))

    with monkeypatch.context() as patched:
        patched.setattr(Runtime, "stored", stored_and_taken_back)
        answer = drain(opus, "h0:0:1")
    assert (answer.status_code, answer.json()["name"], answer.json()["by"]) == (200, "h0:0:1", "ann")
    assert opus.get("/directives")["directives"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [("/ports/h9:0:0/drain", ANN), ("/ports/nonsense/undrain", ANN)],
)
def test_unknown_ports_are_not_found(opus: Controller, path: str, body: dict[str, Any]) -> None:
    assert opus.post(path, body).status_code == 404


def test_whoever_drains_says_who_he_is(opus: Controller) -> None:
    answer = opus.post("/ports/h0:0:0/drain", {})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "by")


def test_what_operators_told_outlives_a_restart(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(hosts=4), durable=True) as opus:
        assert drain(opus, "h0:0:0").status_code == 200
        kept = opus.post("/circuits", {**ANN, "a": "h2:0:0", "b": "h3:0:0"})
        assert kept.status_code == 201
        before = opus.get("/directives")["directives"]
        assert [each["name"] for each in before] == ["h2:0:0--h3:0:0", "h0:0:0"]
    with running(settings(tmp_path)) as address:
        again = Controller(address)
        wait_until(lambda: is_done(again, "h2:0:0--h3:0:0"), "the circuit is up again")
        after = again.get("/directives")["directives"]
        assert [(each["name"], each["since"]) for each in after] == [
            (each["name"], each["since"]) for each in before
        ]
        refused = again.put("/jobs/j", job())
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:port-drained")
        assert refused.json()["port"] == "h0:0:0"
        again.close()


def test_an_operators_circuit_keeps_jobs_off_its_ports_until_it_is_dropped(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric()) as opus:
        kept = opus.post("/circuits", {**ANN, "a": "h1:0:0", "b": "h0:0:1"})
        name = kept.json()["name"]
        assert (kept.status_code, name) == (201, "h0:0:1--h1:0:0")
        wait_until(lambda: is_done(opus, name), "it is up")
        refused = opus.put("/jobs/j", job())
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:port-in-use")
        assert refused.json()["circuit"] == name
        assert delete(opus, f"/circuits/{name}").status_code == 204
        assert delete(opus, f"/circuits/{name}").status_code == 404
        assert opus.declare() == 1


def test_a_circuit_on_a_running_jobs_ports_is_refused_naming_it(opus: Controller) -> None:
    refused = opus.post("/circuits", {**ANN, "a": "h0:0:0", "b": "h1:0:0"})
    assert (refused.status_code, refused.json()["job"]) == (409, "j")
    forced = opus.post("/circuits", {**ANN, "a": "h0:0:0", "b": "h1:0:0", "force": True})
    assert forced.status_code == 201


def test_a_lock_is_taken_away_by_force_only(opus: Controller) -> None:
    lock = hold(opus)
    refused = delete(opus, f"/locks/{lock['id']}")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:locked")
    assert "may still transmit" in refused.json()["detail"]
    taken = delete(opus, f"/locks/{lock['id']}", force=True, detail="host unplugged")
    assert taken.status_code == 200
    assert [holder["rank"] for holder in taken.json()["released"]] == [0]
    assert [left["rank"] for left in opus.get("/locks")["locks"]] == [1]
    rest = delete(opus, "/jobs/j/locks", incarnation=1, rank=1, force=True)
    assert [holder["rank"] for holder in rest.json()["released"]] == [1]
    assert opus.get("/locks")["locks"] == []
    events = opus.get("/events", kind="locks.forced")["events"]
    assert [(event["data"]["by"], event["data"]["detail"]) for event in events] == [
        ("ann", "host unplugged"),
        ("ann", ""),
    ]


@pytest.mark.parametrize("lock", ["nonsense", "j.1.1.x", "gone.1.1.0", "j.1.9.0"])
def test_a_lock_that_is_not_there_is_not_found(opus: Controller, lock: str) -> None:
    assert delete(opus, f"/locks/{lock}", force=True).status_code == 404


def test_a_job_that_may_wait_is_queued_and_runs_when_its_ports_are_free(opus: Controller) -> None:
    waits = opus.put("/jobs/later", job(admission="queue"))
    assert waits.status_code == 202
    assert (waits.json()["state"], waits.json()["position"]) == ("queued", 0)
    assert waits.json()["reason"]["code"] == "ports-taken"
    assert waits.json()["reason"]["data"]["job"] == "j"
    (queued,) = opus.get("/queue")["queue"]
    assert queued == waits.json()
    assert opus.put("/jobs/pushy", job()).status_code == 409
    opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    runs = opus.put("/jobs/later", job(admission="queue"))
    assert (runs.status_code, runs.json()["incarnation"]) == (200, 1)
    assert opus.get("/queue")["queue"] == []


def test_a_queued_job_can_be_withdrawn_and_outlives_a_restart(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(), durable=True) as opus:
        opus.declare()
        for name in ("one", "two"):
            assert opus.put(f"/jobs/{name}", job(admission="queue")).status_code == 202
    with running(settings(tmp_path)) as address:
        again = Controller(address)
        assert [queued["job"] for queued in again.get("/queue")["queue"]] == ["one", "two"]
        assert delete(again, "/queue/one").status_code == 204
        assert delete(again, "/queue/one").status_code == 404
        (left,) = again.get("/queue")["queue"]
        assert (left["job"], left["position"]) == ("two", 0)
        again.close()


def test_all_ranks_cancelled_at_once_leave_nothing_behind_and_the_next_job_runs(opus: Controller) -> None:
    hold(opus)
    opus.put("/jobs/later", job(admission="queue"))
    dead = opus.post("/jobs/j/deaths", {"incarnation": 1, "ranks": [0, 1], "detail": "cancelled"})
    assert dead.status_code == 200
    assert opus.get("/locks")["locks"] == []
    wait_until(lambda: not opus.get("/queue")["queue"], "its ports are free")
    assert opus.put("/jobs/later", job(admission="queue")).json()["state"] == "running"


def with_rail() -> dict[str, Any]:
    """The fabric of the tests with a second slot on a rail and switch of its own."""
    body = fabric()
    body["gpus_per_host"] = 2
    body["switches"].append(
        {"name": "ocs1", "driver": "emulated", "size": 4, "layout": "sided", "options": {"delay_ms": 0}}
    )
    body["rails"].append({"name": "rail1", "slots": [1], "switch": "ocs1", "first_port": 0})
    return body


def test_a_rail_is_added_while_a_job_runs_and_holds_its_circuits(opus: Controller) -> None:
    hold(opus)
    before = opus.get("/circuits")["circuits"]
    waiting = opus.later(opus.post, "/jobs/j/arrivals", opus.news(1, wait_s=30, last_grant=1))
    added = opus.http.put(f"{PREFIX}/fabric", json=with_rail(), headers={"If-Match": '"1"'})
    assert added.status_code == 200, added.text
    assert opus.get("/circuits")["circuits"] == before
    assert len(opus.get("/locks")["locks"]) == 2
    assert waiting.result().status_code == 503, "whoever waits is told to come again"
    for rank in (0, 1):
        opus.release(rank, "dp", 0, last_grant=1)
    opus.arrive(0, "dp", 1, last_grant=1)
    assert opus.arrive(1, "dp", 1, last_grant=1, wait_s=30)["grants"]
    other = job(nonce="x")
    for place in other["placement"]:
        place["slot"] = 1
    assert opus.put("/jobs/second", other).status_code == 201, "the new rail is there"
    back = opus.http.put(f"{PREFIX}/fabric", json=fabric(), headers={"If-Match": '"2"'})
    assert (back.status_code, back.json()["job"]) == (409, "second")


def test_a_drained_port_that_leaves_the_fabric_is_drained_no_more(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(hosts=3)) as opus:
        drain(opus, "h2:0:0")
        drain(opus, "h0:0:0")
        changed = opus.http.put(f"{PREFIX}/fabric", json=fabric(), headers={"If-Match": '"1"'})
        assert changed.status_code == 200
        assert [each["name"] for each in opus.get("/directives")["directives"]] == ["h0:0:0"]
        assert opus.get("/events", kind="directive.dropped")["events"]
