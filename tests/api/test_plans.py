"""Plans over the API: looked at, kept, and applied only while what they were made on is current."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from opus_sdn.api import plan_book
from opus_sdn.api.server import running
from tests.api.world import PREFIX, Controller, controller, fabric, job, settings, wait_until

DRAIN = {"kind": "drain", "port": "h0:0:1"}


def plan(opus: Controller, change: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = opus.post("/plans", {"by": "ann", "detail": "cleaning", "change": change, **more})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert isinstance(made, dict)
    assert opus.get(f"/plans/{made['id']}") == made
    return made


def apply(opus: Controller, made: dict[str, Any]) -> httpx.Response:
    return opus.post(f"/plans/{made['id']}/apply", {})


def up(opus: Controller) -> None:
    """The ring's circuit is up and idle."""
    opus.arrive(0, "dp", 0)
    assert opus.arrive(1, "dp", 0, wait_s=30)["grants"]
    for rank in (0, 1):
        opus.release(rank, "dp", 0, last_grant=1)
    wait_until(lambda: not opus.get("/locks")["locks"], "it is idle")


def test_a_plan_shows_its_steps_and_changes_nothing_until_it_is_applied(opus: Controller) -> None:
    up(opus)
    before = opus.everything()
    made = plan(opus, DRAIN)
    assert opus.everything() == before
    assert made["disturbed"] == ["h0:0:1--h1:0:0"]
    assert [step["switch"] for step in made["steps"]] == ["ocs0"]
    assert made["refusal"] is None
    applied = apply(opus, made)
    assert (applied.status_code, applied.json()["steps"]) == (200, made["steps"])
    wait_until(lambda: not opus.get("/circuits")["circuits"], "the port is dark")
    (event,) = opus.get("/events", kind="port.drained")["events"]
    assert (event["data"]["by"], event["data"]["detail"]) == ("ann", "cleaning")
    again = apply(opus, made)
    assert (again.status_code, again.json()["type"]) == (409, "urn:opus-sdn:problem:stale-plan")
    assert "was applied at" in again.json()["detail"]


def test_a_plan_made_before_a_switch_changed_is_stale(opus: Controller) -> None:
    made = plan(opus, DRAIN)
    up(opus)
    stale = apply(opus, made)
    assert (stale.status_code, stale.json()["type"]) == (409, "urn:opus-sdn:problem:stale-plan")
    assert stale.json()["switch"] == "ocs0"
    assert opus.get("/directives")["directives"] == []


def test_a_plan_that_would_do_something_else_now_is_stale(opus: Controller) -> None:
    up(opus)
    made = plan(opus, DRAIN)
    for rank in (0, 1):
        opus.arrive(rank, "dp", 1, last_grant=1)
    wait_until(lambda: len(opus.get("/locks")["locks"]) == 2, "it is held, and no switch has changed")
    stale = apply(opus, made)
    assert (stale.status_code, stale.json()["type"]) == (409, "urn:opus-sdn:problem:stale-plan")
    assert stale.json()["differs"] == ["steps", "disturbed", "refusal"]


def test_a_plan_made_before_the_fabric_changed_is_stale(opus: Controller) -> None:
    made = plan(opus, {"kind": "circuit", "a": "h0:0:0", "b": "h1:0:1"}, force=True)
    body = fabric()
    body["rails"][0]["drift"] = "observe"
    assert opus.http.put(f"{PREFIX}/fabric", json=body, headers={"If-Match": '"1"'}).status_code == 200
    stale = apply(opus, made)
    assert (stale.status_code, stale.json()["fabric"]) == (409, 2)


def test_a_refusal_is_planned_and_comes_when_it_is_applied(opus: Controller) -> None:
    made = plan(opus, {"kind": "circuit", "a": "h0:0:0", "b": "h1:0:1"})
    assert made["refusal"]["type"] == "urn:opus-sdn:problem:port-in-use"
    refused = apply(opus, made)
    assert (refused.status_code, refused.json()["job"]) == (409, "j")


@pytest.mark.parametrize(
    ("change", "done"),
    [
        ({"kind": "circuit", "a": "h0:0:0", "b": "h1:0:0"}, "/directives"),
        ({"kind": "job", "job": "j", "spec": job()}, "/jobs"),
        ({"kind": "undrain", "port": "h0:0:0"}, None),
        ({"kind": "fabric", "fabric": fabric(hosts=3)}, None),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_every_kind_of_change_is_planned_and_applied(
    tmp_path: Path, change: dict[str, Any], done: str | None
) -> None:
    with controller(tmp_path, declared=fabric()) as opus:
        made = plan(opus, change)
        assert made["refusal"] is None
        assert apply(opus, made).status_code == 200
        if done is not None:
            assert opus.get(done)[done[1:]]
        if change["kind"] == "circuit":
            wait_until(lambda: opus.get("/circuits")["circuits"], "it is up")
            dropped = plan(opus, {"kind": "drop-circuit", "circuit": "h0:0:0--h1:0:0"})
            assert apply(opus, dropped).status_code == 200
            assert opus.get("/directives")["directives"] == []


def test_a_job_that_may_wait_is_planned_as_waiting(opus: Controller) -> None:
    made = plan(opus, {"kind": "job", "job": "later", "spec": job(admission="queue")})
    assert [blocked["reason"]["code"] for blocked in made["blocked"]] == ["ports-taken"]
    assert apply(opus, made).status_code == 200
    assert [queued["job"] for queued in opus.get("/queue")["queue"]] == ["later"]


def test_plans_outlive_a_restart_and_are_stale_after_it(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(), durable=True) as opus:
        made = plan(opus, DRAIN)
    with running(settings(tmp_path)) as address:
        again = Controller(address)
        assert again.get(f"/plans/{made['id']}") == made
        assert apply(again, made).status_code == 409
        again.close()


def test_plans_that_are_kept_are_listed_oldest_first_page_by_page(opus: Controller) -> None:
    made = [plan(opus, DRAIN, by=f"operator {n}") for n in range(11)]
    apply(opus, made[0])
    first = opus.get("/plans", limit=8)
    rest = opus.get("/plans", limit=8, cursor=first["next"])
    listed = [*first["plans"], *rest["plans"]]
    assert [each["by"] for each in listed] == [each["by"] for each in made]
    assert [each["applied_at"] is not None for each in listed] == [True] + [False] * 10
    assert rest["next"] is None


def test_plans_whose_time_is_over_are_listed_no_more(
    opus: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(opus, DRAIN)
    monkeypatch.setattr(plan_book, "LASTS_S", 0.0)
    assert opus.get("/plans")["plans"] == []


def test_device_steps_under_way_are_listed_by_themselves(opus: Controller) -> None:
    assert opus.get("/steps") == {"next": None, "steps": []}


def test_only_so_many_plans_are_kept(opus: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_book, "PLANS_MAX", 2)
    made = [plan(opus, DRAIN) for _ in range(3)]
    assert opus.http.get(f"{PREFIX}/plans/{made[0]['id']}").status_code == 404
    assert [opus.get(f"/plans/{each['id']}")["id"] for each in made[1:]] == [each["id"] for each in made[1:]]
