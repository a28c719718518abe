"""Declaring the fabric, and declaring another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from opus_sdn.reconciler import runtime
from tests.api.held import HeldDriver, held_drivers
from tests.api.world import PREFIX, Controller, controller, fabric, job, wait_until


def declare(opus: Controller, body: dict[str, Any], **headers: str) -> httpx.Response:
    return opus.http.put(f"{PREFIX}/fabric", json=body, headers=headers)


def test_the_first_fabric_needs_no_precondition_and_the_same_again_changes_nothing(bare: Controller) -> None:
    assert bare.http.get(f"{PREFIX}/fabric").status_code == 404
    first = declare(bare, fabric())
    assert (first.status_code, first.headers["ETag"], first.json()["applied"]) == (201, '"1"', True)
    assert (first.json()["ports"], first.json()["rails"]) == (4, ["rail0"])
    again = declare(bare, fabric())
    assert (again.status_code, again.headers["ETag"], again.json()["changed"]) == (200, '"1"', False)
    spelled_otherwise = declare(bare, dict(reversed(fabric().items())))
    assert spelled_otherwise.json()["changed"] is False
    kinds = [event["kind"] for event in bare.get("/events")["events"]]
    assert kinds[0] == "fabric.changed"
    assert set(kinds[1:]) <= {"switch.adopted"}


def test_what_is_read_can_be_sent_back(bare: Controller) -> None:
    declare(bare, fabric())
    read = bare.http.get(f"{PREFIX}/fabric")
    same = declare(bare, read.json(), **{"If-Match": read.headers["ETag"]})
    assert (same.status_code, same.json()["changed"]) == (200, False)
    known = bare.http.get(f"{PREFIX}/fabric", headers={"If-None-Match": read.headers["ETag"]})
    assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize(
    ("tag", "status", "problem"),
    [(None, 428, "precondition-required"), ('"7"', 412, "precondition-failed")],
    ids=["none", "stale"],
)
def test_a_change_needs_the_tag_of_what_was_changed(
    bare: Controller, tag: str | None, status: int, problem: str
) -> None:
    declare(bare, fabric())
    headers = {} if tag is None else {"If-Match": tag}
    refused = declare(bare, fabric(hosts=3), **headers)
    assert (refused.status_code, refused.json()["type"]) == (status, f"urn:opus-sdn:problem:{problem}")
    assert refused.json()["etag"] == '"1"'
    assert len(bare.get("/ports")["ports"]) == 4


def test_a_precondition_on_a_fabric_that_is_not_there_fails(bare: Controller) -> None:
    assert declare(bare, fabric(), **{"If-Match": "*"}).status_code == 412
    assert bare.http.get(f"{PREFIX}/fabric").status_code == 404


def test_another_fabric_is_taken_while_no_job_runs_and_incarnations_go_on(bare: Controller) -> None:
    declare(bare, fabric())
    assert bare.declare() == 1
    bare.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    changed = declare(bare, fabric(hosts=3), **{"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["ETag"]) == (200, '"2"')
    assert len(bare.get("/ports")["ports"]) == 6
    assert bare.declare(world=3, nonce="2") == 2
    assert bare.http.get("/readyz").status_code == 200


def test_after_a_change_of_fabric_the_ranks_of_a_failed_job_still_hear_how_it_ended(
    opus: Controller,
) -> None:
    told = opus.arrive(0, "dp", 5, wait_s=30)["failure"]
    before = opus.get("/jobs/j")
    assert (before["state"], before["failure"]) == ("failed", told)
    assert declare(opus, fabric(hosts=3), **{"If-Match": '"1"'}).status_code == 200

    group = {"incarnation": 1, "ranks": "world", "dimension": "dp"}
    broken = {"incarnation": 1, "rank": 1, "detail": "connection reset"}
    for answer in (
        opus.post("/jobs/j/arrivals", opus.news(1, arrivals=[{"connection": "dp", "n": 0}])),
        opus.put("/jobs/j/groups/late", group),
        opus.post("/jobs/j/failures", broken),
        opus.post("/jobs/j/abort", broken),
        opus.post("/jobs/j/deaths", {"incarnation": 1, "ranks": [1], "detail": "killed"}),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (409, told["type"])
        assert (problem["detail"], problem["rank"]) == (told["detail"], 0)

    assert [job["job"] for job in opus.get("/jobs")["jobs"]] == ["j"]
    after = opus.get("/jobs/j")
    assert {name: after[name] for name in ("state", "incarnation", "failure", "owner")} == {
        name: before[name] for name in ("state", "incarnation", "failure", "owner")
    }
    ended = opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    assert (ended.status_code, ended.json()["state"]) == (200, "ended")
    assert opus.get("/events", kind="job.ended")["events"]
    assert opus.declare(nonce="2") == 2
    assert opus.post("/jobs/j/arrivals", opus.news(1)).status_code == 409


def test_generations_and_nonces_outlive_a_change_of_fabric(bare: Controller) -> None:
    declare(bare, fabric())
    for incarnation in (1, 2):
        assert bare.declare(nonce=str(incarnation)) == incarnation
        bare.check_in("dp", "world", incarnation=incarnation)
        bare.arrive(0, "dp", 0, incarnation=incarnation)
        bare.arrive(1, "dp", 0, incarnation=incarnation, wait_s=30)
        bare.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": incarnation})
    before = bare.get("/switches")["switches"][0]["generation"]
    assert before >= 2, "the switch was seen to change"
    other = fabric()
    other["switches"][0]["name"] = other["rails"][0]["switch"] = "ocs9"
    assert declare(bare, other, **{"If-Match": '"1"'}).status_code == 200
    for nonce in ("1", "2"):
        late = bare.put("/jobs/j", job(nonce=nonce))
        assert (late.status_code, late.json()["type"]) == (409, "urn:opus-sdn:problem:stale-incarnation")
    assert declare(bare, fabric(), **{"If-Match": '"2"'}).status_code == 200
    (switch,) = bare.get("/switches")["switches"]
    assert (switch["name"], switch["generation"] > before) == ("ocs0", True)
    assert bare.put("/jobs/j", job(nonce="1")).status_code == 409
    assert bare.declare(nonce="3") == 3


def moved() -> dict[str, Any]:
    """The fabric with its two hosts the other way round."""
    body = fabric()
    body["hosts"].reverse()
    return body


def test_no_fabric_is_taken_that_changes_a_port_in_use(opus: Controller) -> None:
    smaller = fabric(hosts=1)
    smaller["switches"] = fabric()["switches"]
    refused = declare(opus, smaller, **{"If-Match": '"1"'})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:port-in-use")
    assert (refused.json()["job"], refused.json()["rank"], refused.json()["port"]) == ("j", 1, "h1:0:0")
    assert "which would be gone" in refused.json()["detail"]
    elsewhere = declare(opus, moved(), **{"If-Match": '"1"'})
    assert elsewhere.status_code == 409
    assert "from rail rail0, ocs0:0 to rail rail0, ocs0:2" in elsewhere.json()["detail"]
    assert declare(opus, fabric()).status_code == 200, "the same one is no change"
    opus.arrive(0, "dp", 0)
    assert opus.arrive(1, "dp", 0, wait_s=30)["grants"]


def test_a_dry_run_says_what_would_be_and_changes_nothing(opus: Controller) -> None:
    before = opus.everything()
    dry = opus.http.put(f"{PREFIX}/fabric", params={"dry_run": True}, json=fabric())
    assert (dry.json()["changed"], dry.json()["applied"], dry.json()["dry_run"]) == (False, False, True)
    refused = opus.http.put(
        f"{PREFIX}/fabric", params={"dry_run": True}, json=fabric(hosts=3), headers={"If-Match": '"1"'}
    )
    assert refused.status_code == 409
    assert opus.everything() == before
    opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    dry = opus.http.put(
        f"{PREFIX}/fabric", params={"dry_run": True}, json=fabric(hosts=3), headers={"If-Match": '"1"'}
    )
    assert (dry.status_code, dry.json()["changed"], dry.json()["applied"]) == (200, True, False)
    assert (dry.json()["hosts"], dry.headers["ETag"]) == (3, '"1"')
    assert len(opus.get("/ports")["ports"]) == 4


def test_a_switch_that_stays_as_it_is_keeps_its_circuits(bare: Controller) -> None:
    body = fabric()
    declare(bare, body)
    bare.declare()
    bare.check_in("dp", "world")
    bare.arrive(0, "dp", 0)
    bare.arrive(1, "dp", 0, wait_s=30)
    bare.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    before = bare.get("/switches")["switches"][0]["matching"]
    assert before
    body["switches"].append({**body["switches"][0], "name": "ocs1"})
    assert declare(bare, body, **{"If-Match": '"1"'}).status_code == 200
    assert bare.get("/switches")["switches"][0]["matching"] == before
    assert bare.get("/switches")["switches"][1]["matching"] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [({"delay_ms": "50"}, "delay_ms"), ({"delayms": 50}, "delayms")],
    ids=["a-wrong-type", "an-unknown-option"],
)
def test_options_that_the_driver_refuses_are_named(
    bare: Controller, options: dict[str, Any], says: str
) -> None:
    body = fabric()
    body["switches"][0]["options"] = options
    refused = declare(bare, body)
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:opus-sdn:problem:invalid-request")
    assert says in refused.json()["detail"]
    assert bare.http.get(f"{PREFIX}/fabric").status_code == 404


def test_every_misfit_of_a_fabric_is_named_at_its_place(bare: Controller) -> None:
    body = fabric(hosts=4)
    body["switches"][0]["size"] = 5
    body["rails"].append({"name": "rail0", "slots": [0], "switch": "nope"})
    problem = declare(bare, body).json()
    fields = {error["field"] for error in problem["errors"]}
    assert any(field.startswith("rails[1]") for field in fields), problem


def test_a_fabric_whose_switch_is_away_is_answered_and_makes_everybody_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "ADOPTION_WAIT_S", 0.05)
    with held_drivers(monkeypatch) as drivers, controller(tmp_path) as opus:
        monkeypatch.setattr(HeldDriver, "open_at_first", False)
        assert declare(opus, fabric()).status_code == 201
        ready = opus.http.get("/readyz")
        assert ready.status_code == 503
        assert {check["name"] for check in ready.json()["checks"]} == {"adoption", "switch:ocs0"}
        refused = opus.put("/jobs/j", job())
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:opus-sdn:problem:not-ready")
        assert refused.headers["Retry-After"]
        drivers["ocs0"].may_read.set()
        wait_until(lambda: opus.http.get("/readyz").status_code == 200, "the switch has answered")
        assert opus.declare() == 1
