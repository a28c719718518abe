"""What a replica that does not lead answers: reads from the store, and for all else who leads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from opus_sdn.api.server import Address, StartError, running
from opus_sdn.cli.controller import Controller as CliController
from opus_sdn.settings import Settings
from opus_sdn.shim import settings as shim_settings
from opus_sdn.shim.client import ControllerClient
from opus_sdn.store import migrate
from opus_sdn.store.base import StoreError
from tests.api.world import PREFIX, Controller, fabric, job, wait_until
from tests.postgres import PostgresServer

TTL_S = 3.0


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """An address of a database without tables: the first replica makes them."""
    return postgres.create()


@contextmanager
def replica(folder: Path, database: str) -> Iterator[Controller]:
    values: dict[str, Any] = {"port": 0, "database": database, "runs_dir": folder, "leader_ttl_s": TTL_S}
    with running(Settings(**values)) as address:
        client = Controller(address)
        try:
            yield client
        finally:
            client.close()


@pytest.fixture
def two(tmp_path: Path, database: str) -> Iterator[tuple[Controller, Controller]]:
    """A leader with a fabric and a job, and a follower that has seen them."""
    with replica(tmp_path / "a", database) as leader:
        wait_until(lambda: leads(leader), "the first one leads")
        assert leader.put("/fabric", fabric()).status_code == 201
        with replica(tmp_path / "b", database) as follower:
            leader.declare()
            leader.check_in("dp", "world")
            wait_until(lambda: follower.get("/jobs")["jobs"], "the follower has seen the job")
            yield leader, follower


def leads(one: Controller) -> bool:
    said = one.http.get("/readyz").json()
    return bool(said.get("leads") and said.get("ready"))


def test_a_follower_is_ready_and_says_who_leads(two: tuple[Controller, Controller]) -> None:
    leader, follower = two
    assert leader.http.get("/readyz").json()["leader"] is None
    said = follower.http.get("/readyz?verbose")
    assert said.status_code == 200
    assert (said.json()["leads"], said.json()["leader"]) == (False, leader.address.url)
    assert follower.http.get("/livez").status_code == 200


def test_a_follower_serves_what_is_stored(two: tuple[Controller, Controller]) -> None:
    leader, follower = two
    for path in ("/fabric", "/jobs/j/groups", "/connections", "/locks"):
        seen = follower.http.get(PREFIX + path, params={"job": "j"} if path == "/connections" else None)
        assert seen.status_code == 200, seen.text
        assert seen.json() == leader.http.get(PREFIX + path, params=seen.request.url.params).json()
    assert follower.get("/jobs")["jobs"][0]["state"] == "running"
    newest = leader.get("/events")["newest"]
    wait_until(lambda: follower.get("/events")["newest"] >= newest, "the follower has the newest event")
    assert follower.get("/events")["events"] == leader.get("/events")["events"]


def test_who_waits_for_an_event_at_a_follower_gets_it(two: tuple[Controller, Controller]) -> None:
    leader, follower = two
    newest = follower.get("/events")["newest"]
    waiting = follower.later(follower.get, "/events", since=newest, wait_s=20, kind="job")
    leader.declare(nonce="2")
    assert [event["kind"] for event in waiting.result()["events"]][-1] == "job.started"


def test_what_only_the_leader_does_is_answered_with_its_address(two: tuple[Controller, Controller]) -> None:
    leader, follower = two
    news = follower.news(0, arrivals=[{"connection": "dp", "n": 0}])
    attempts = [
        follower.put("/jobs/j", job()),
        follower.put("/jobs/j/groups/dp", {"incarnation": 1, "ranks": "world", "dimension": "dp"}),
        follower.post("/jobs/j/arrivals", news),
        follower.put("/fabric", fabric(hosts=3), **{"If-Match": '"1"'}),
    ]
    for answer in attempts:
        assert answer.status_code == 307, answer.text
        assert answer.json()["type"] == "urn:opus-sdn:problem:not-leader"
        assert answer.json()["leader"] == leader.address.url
        assert answer.headers["Location"] == leader.address.url + answer.request.url.path
    assert leader.get("/jobs/j")["incarnation"] == 1
    followed = httpx.put(attempts[0].request.url, json=job(nonce="2"), follow_redirects=True, trust_env=False)
    assert followed.status_code == 201
    assert leader.get("/jobs/j")["incarnation"] == 2


def test_the_command_line_and_ranks_go_to_the_leader_by_themselves(
    two: tuple[Controller, Controller],
) -> None:
    leader, follower = two
    with CliController(follower.address.url) as command:
        assert command.put("/jobs/j", json.dumps(job(nonce="8")).encode(), {}).body["incarnation"] == 2
    client = ControllerClient(_address(follower.address))
    answer = client.request("PUT", f"{PREFIX}/jobs/j", job(nonce="9"))
    assert answer["incarnation"] == 3
    assert str(client.address) == leader.address.url
    client.close()


def test_when_the_leader_stops_in_order_another_one_leads_at_once_and_goes_on(
    tmp_path: Path, database: str
) -> None:
    with ExitStack() as first:
        leader = first.enter_context(replica(tmp_path / "a", database))
        wait_until(lambda: leads(leader), "the first one leads")
        assert leader.put("/fabric", fabric()).status_code == 201
        leader.declare()
        with replica(tmp_path / "b", database) as follower:
            assert not leads(follower)
            began = time.monotonic()
            first.close()
            wait_until(lambda: leads(follower), "the second one leads")
            assert time.monotonic() - began < 10 * TTL_S
            assert follower.get("/jobs/j")["state"] == "running"
            assert follower.put("/jobs/j", job()).status_code == 200, "the same declaration again"


def test_a_schema_of_another_revision_makes_a_controller_unready(tmp_path: Path, database: str) -> None:
    with replica(tmp_path / "a", database) as one:
        wait_until(lambda: leads(one), "it leads")
        with pytest.raises(StoreError, match=f"is in use by the controller at {one.address.url}: stop all"):
            migrate.downgrade(database, "0001")
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '0001'")
        said = one.http.get("/readyz")
        assert said.status_code == 503
        assert "has revision 0001" in said.json()["detail"]
        assert one.http.get("/livez").status_code == 200
    refused = pytest.raises(StartError, match=r"has revision 0001, .* is needed: run `opus db upgrade`")
    with refused, replica(tmp_path / "b", database):
        pass


def _address(address: Address) -> shim_settings.Address:
    return shim_settings.Address(False, "127.0.0.1", address.port)
