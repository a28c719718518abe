"""What is refused, with which problem and status, and that a refusal leaves no trace.

The world of every case: hosts h0 to h2 with slots 0 and 1, rail0 for slot 0 and rail1 for slot 1. Job `j` has
ranks 0 and 1 on slot 0 of h0 and h1, and rank 2 on slot 1 of h2; its group `dp` = {0, 1} holds operation 0.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from opus_sdn.intent import views
from opus_sdn.intent.engine import Engine
from tests.api.world import PREFIX, Controller, controller, fabric, wait_until

J = "/jobs/j"
PLACES = [
    {"rank": 0, "host": "h0", "slot": 0},
    {"rank": 1, "host": "h1", "slot": 0},
    {"rank": 2, "host": "h2", "slot": 1},
]
JOB: dict[str, Any] = {"owner": "me", "nonce": "1", "placement": PLACES}


class Case(NamedTuple):
    """One bad request. `body` is sent as JSON, `raw` as it is."""

    name: str
    request: str  # method and path
    status: int
    problem: str
    says: str  # in the detail
    body: Any = None
    raw: bytes | None = None
    headers: dict[str, str] = {}  # noqa: RUF012  # a NamedTuple's default, never changed


def news(rank: int = 0, **more: Any) -> dict[str, Any]:
    """One rank's news; START stands for the controller's start number."""
    return {
        "incarnation": more.pop("incarnation", 1),
        "seen_start": more.pop("seen_start", "START"),
        "wait_s": more.pop("wait_s", 0),
        "ranks": [{"rank": rank, "last_grant": more.pop("last_grant", 0), **more}],
    }


def arrival(connection: str, n: int, rank: int = 0, **more: Any) -> dict[str, Any]:
    return news(rank, arrivals=[{"connection": connection, "n": n, **more}])


def release(connection: str, n: int, rank: int = 0, **more: Any) -> dict[str, Any]:
    return news(rank, releases=[{"connection": connection, "n": n, **more}])


def changed(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**body, **fields}


def places(*at: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"rank": rank, "host": host, "slot": slot} for rank, (host, slot) in enumerate(at)]


POST, GROUP, NEW = f"POST {J}/arrivals", f"PUT {J}/groups/g", "PUT /jobs/k"
INVALID, K256 = "invalid-request", 256 * 1024

CASES = (
    # ranks and places
    Case("a rank that the job does not have", POST, 422, "unknown-rank", "rank 9", news(9)),
    Case("a death of an unknown rank", f"POST {J}/deaths", 422, "unknown-rank", "rank 3",
         {"incarnation": 1, "ranks": [0, 3], "detail": "x"}),
    Case("an abort by an unknown rank", f"POST {J}/abort", 422, "unknown-rank", "rank 7",
         {"incarnation": 1, "rank": 7, "detail": "x"}),
    Case("a failure on an unknown rank", f"POST {J}/failures", 422, "unknown-rank", "rank 7",
         {"incarnation": 1, "rank": 7, "detail": "x"}),
    Case("a link of an unknown rank", f"POST {J}/links", 422, "unknown-rank", "rank 7",
         {"incarnation": 1, "rank": 7, "ports": [{"index": 0, "up": True}]}),
    Case("a link of a port that the GPU has not", f"POST {J}/links", 422, INVALID, "ports 0 to",
         {"incarnation": 1, "rank": 0, "ports": [{"index": 3, "up": True}]}),
    Case("a retry budget beyond InfiniBand's", NEW, 422, INVALID, "retry_budget.timeout",
         changed(JOB, placement=places(("h0", 1), ("h1", 1)), retry_budget={"timeout": 32, "retry": 7})),
    Case("an unknown rank in a group", GROUP, 422, "unknown-rank", "rank 3",
         {"incarnation": 1, "ranks": [0, 3], "dimension": "dp"}),
    Case("a stride that leaves the job", GROUP, 422, "unknown-rank", "rank 4",
         {"incarnation": 1, "ranks": {"start": 0, "stop": 1000000, "step": 2}, "dimension": "dp"}),
    Case("a rank beyond the placement", NEW, 422, "unknown-rank", "placement[1].rank is 5",
         changed(JOB, placement=[PLACES[0], {"rank": 5, "host": "h1", "slot": 0}])),
    Case("a rank placed twice", NEW, 422, INVALID, "placement[1].rank is 0 again",
         changed(JOB, placement=[PLACES[0], {"rank": 0, "host": "h1", "slot": 0}])),
    Case("an unknown host", NEW, 422, "unknown-place", "hosts h0, h1, h2",
         changed(JOB, placement=places(("h7", 0)))),
    Case("an unknown slot", NEW, 422, "unknown-place", "slots 0 to 1",
         changed(JOB, placement=places(("h0", 2)))),
    Case("two ranks on one GPU", NEW, 409, "ports-overlap", "ranks 0 and 1",
         changed(JOB, placement=places(("h0", 1), ("h0", 1)))),
    Case("ports of another job", NEW, 409, "ports-overlap", "job j",
         changed(JOB, placement=places(("h0", 0)))),
    Case("a job twice with another placement", f"PUT {J}", 409, "job-conflict", "placement",
         changed(JOB, placement=places(("h0", 0), ("h1", 0), ("h2", 0)))),
    Case("a job of another owner", f"PUT {J}", 409, "job-conflict", "owner",
         changed(JOB, owner="you", nonce="2")),
    Case("dimensions that do not multiply to the world", NEW, 422, INVALID, "multiply to 4",
         changed(JOB, placement=places(("h0", 1), ("h1", 1)), dimensions=[{"name": "dp", "size": 4}])),
    # groups and connections
    Case("a rank twice in a group", GROUP, 422, INVALID, "twice",
         {"incarnation": 1, "ranks": [0, 1, 0], "dimension": "dp"}),
    Case("a group with other ranks", f"PUT {J}/groups/dp", 409, "group-conflict", "dp",
         {"incarnation": 1, "ranks": [1, 0], "dimension": "dp"}),
    Case("one bad group among many", f"POST {J}/groups", 422, "unknown-rank", "rank 3",
         {"incarnation": 1, "groups": [{"name": "g1", "ranks": "world", "dimension": "x"},
                                       {"name": "g2", "ranks": [3], "dimension": "x"}]}),
    Case("an unknown connection", POST, 404, "unknown-connection", "'nope'", arrival("nope", 0)),
    Case("a pair of a rank that is no member", POST, 404, "unknown-connection", "dp:0-2",
         arrival("dp:0-2", 0, source=0, destination=2)),
    Case("an arrival of a rank that takes no part", POST, 422, "not-a-member", "rank 2", arrival("dp", 1, 2)),
    Case("a ring that its rails do not connect, at its first arrival", POST, 422, "unroutable", "torn",
         arrival("torn", 0, 0)),
    Case("a pair that its rails do not connect", POST, 422, "unroutable", "torn",
         arrival("torn:0-2", 0, 0, source=0, destination=2)),
    Case("a ring with source and destination", POST, 422, INVALID, "is a ring",
         arrival("dp", 1, source=0, destination=1)),
    Case("receiving from any source", POST, 422, "receive-from-any", "source",
         arrival("dp:0-1", 0, 1, destination=1)),
    Case("a pair with strange ends", POST, 422, INVALID, "its two ranks",
         arrival("dp:0-1", 0, source=0, destination=2)),
    # numbers
    Case("a release of what was never granted", POST, 409, "release-not-held", "granted 1", release("dp", 1)),
    Case("a release that leaves a gap", POST, 409, "release-not-held", "released 0",
         release("dp", 0, length=2)),
    Case("an acknowledgement of what was never granted", POST, 422, INVALID, "grant 2",
         news(last_grant=2)),
    Case("an arrival together with a bad release", POST, 409, "release-not-held", "dp",
         news(arrivals=[{"connection": "dp", "n": 1}], releases=[{"connection": "dp", "n": 7}])),
    Case("two entries of one rank", POST, 422, INVALID, "rank 0 twice",
         changed(news(), ranks=[{"rank": 0, "last_grant": 0}, {"rank": 0, "last_grant": 0}])),
    Case("one bad rank among several", POST, 422, "unknown-rank", "rank 9",
         changed(news(), ranks=[{"rank": 0, "last_grant": 0, "arrivals": [{"connection": "dp", "n": 1}]},
                                {"rank": 9, "last_grant": 0}])),
    # who speaks to whom
    Case("an unknown job", "POST /jobs/nope/arrivals", 404, "unknown-job", "'nope'", news()),
    Case("an unknown job, asked for", "GET /jobs/nope", 404, "unknown-job", "'nope'"),
    Case("an unknown job's groups", "GET /jobs/nope/groups", 404, "unknown-job", "'nope'"),
    Case("the end of an unknown job", "DELETE /jobs/nope?incarnation=1", 404, "unknown-job", "'nope'"),
    Case("a check-in to an unknown job", "PUT /jobs/nope/groups/g", 404, "unknown-job", "'nope'",
         {"incarnation": 1, "ranks": [0], "dimension": "dp"}),
    Case("a stale incarnation", POST, 409, "stale-incarnation", "incarnation 2", news(incarnation=2)),
    Case("the end of a stale incarnation", f"DELETE {J}?incarnation=7", 409, "stale-incarnation", "7"),
    Case("a start of long ago", POST, 409, "stale-start", "start 99", news(seen_start=99)),
    # JSON and types
    Case("malformed JSON", POST, 400, "malformed-json", "not JSON", raw=b'{"incarnation": 1,'),
    Case("an empty body", POST, 400, "malformed-json", "not JSON", raw=b""),
    Case("bytes that are no text", f"PUT {J}", 400, "malformed-json", "not JSON", raw=b"\xff\xfe{}"),
    Case("malformed JSON of a job", NEW, 400, "malformed-json", "not JSON", raw=b"{'owner': 1}"),
    Case("a list for an object", POST, 422, INVALID, "body is []", []),
    Case("false for a number", POST, 422, INVALID, "ranks[0].last_grant is false", news(last_grant=False)),
    Case("false for the wait", POST, 422, INVALID, "wait_s is false", news(wait_s=False)),
    Case("text for a number", POST, 422, INVALID, 'ranks[0].rank is "3"', news("3")),  # type: ignore[arg-type]
    Case("a fraction for a whole number", POST, 422, INVALID, "last_grant is 1.0", news(last_grant=1.0)),
    Case("a number for true", POST, 422, INVALID, "ranks[0].leave is 1", news(leave=1)),
    Case("null for a number", POST, 422, INVALID, "incarnation is null", news(incarnation=None)),
    Case("a negative operation", POST, 422, INVALID, "ranks[0].arrivals[0].n is -1", arrival("dp", -1)),
    Case("no number", POST, 422, INVALID, "wait_s is NaN",
         raw=b'{"incarnation":1,"seen_start":1,"wait_s":NaN,"ranks":[{"rank":0,"last_grant":0}]}'),
    Case("a wait beyond the limit", POST, 422, INVALID, "wait_s is 61", news(wait_s=61)),
    Case("an offer of nothing", POST, 422, INVALID, "closed is 0", arrival("dp", 1, closed=0)),
    Case("a field too many", POST, 422, INVALID, "ranks[0].lastgrant", news(lastgrant=1)),
    Case("a field too few", GROUP, 422, INVALID, "dimension: is required", {"incarnation": 1, "ranks": [0]}),
    Case("false for a rank of a group", GROUP, 422, INVALID, "ranks[1] is false",
         {"incarnation": 1, "ranks": [0, False], "dimension": "dp"}),
    Case("an unknown word for ranks", GROUP, 422, INVALID, 'ranks is "all"',
         {"incarnation": 1, "ranks": "all", "dimension": "dp"}),
    Case("a group without ranks", GROUP, 422, INVALID, "ranks is []",
         {"incarnation": 1, "ranks": [], "dimension": "dp"}),
    Case("text for a slot", NEW, 422, INVALID, 'placement[0].slot is "0"',
         changed(JOB, placement=[{"rank": 0, "host": "h0", "slot": "0"}])),
    Case("a job without ranks", NEW, 422, INVALID, "placement is []", changed(JOB, placement=[])),
    Case("an unknown port choice", NEW, 422, INVALID, "port_choice", changed(JOB, port_choice="any")),
    Case("a deadline of nothing", NEW, 422, INVALID, "deadline_s is 0", changed(JOB, deadline_s=0)),
    Case("a topology id that is none", NEW, 422, INVALID, "initial_topology",
         changed(JOB, placement=places(("h0", 1), ("h1", 1)), initial_topology="zz")),
    Case("a bad job name", "PUT /jobs/.hidden", 422, INVALID, "path.job", JOB),
    Case("a bad group name", f"PUT {J}/groups/a b", 422, INVALID, "path.group",
         {"incarnation": 1, "ranks": [0], "dimension": "dp"}),
    Case("a fabric with a wrong type", "PUT /fabric", 422, INVALID, "gpus_per_host is true",
         changed(fabric(), gpus_per_host=True)),
    # queries
    Case("text for a limit", "GET /jobs?limit=many", 422, INVALID, "query.limit"),
    Case("a limit beyond the limit", "GET /ports?limit=501", 422, INVALID, "query.limit"),
    Case("a cursor of nothing", "GET /locks?cursor=!!", 422, INVALID, "query.cursor"),
    Case("a cursor of another list", "GET /jobs?cursor=WzFd", 422, INVALID, "query.cursor"),
    Case("an unknown query parameter", "PUT /fabric?dryrun=true", 422, INVALID, "query.dryrun", fabric()),
    Case("an end without incarnation", f"DELETE {J}", 422, INVALID, "query.incarnation"),
    Case("connections of no job", "GET /connections", 422, INVALID, "query.job"),
    Case("an unknown rail", "GET /rails/nope", 404, "not-found", "rail0, rail1"),
    # HTTP
    Case("an unknown route", "GET /nope", 404, "not-found", "/api/v1/nope"),
    Case("an unknown method", "PATCH /jobs", 405, "method-not-allowed", "PATCH"),
    Case("an unknown method of the hot route", f"GET {J}/arrivals", 405, "method-not-allowed", "GET"),
    Case("a body beyond 256 KiB on a rank route", POST, 413, "body-too-large", str(K256),
         raw=b" " * (K256 + 1)),
    Case("a check-in beyond 256 KiB", GROUP, 413, "body-too-large", str(K256), raw=b" " * (K256 + 1)),
    Case("a body without a type", POST, 422, INVALID, "application/json",
         raw=b"{}", headers={"Content-Type": ""}),
    Case("a body of a web form", f"POST {J}/abort", 422, INVALID, "application/json",
         raw=b"{}", headers={"Content-Type": "text/plain"}),
    Case("a name of another machine", "GET /jobs", 422, INVALID, "evil.example",
         headers={"Host": "evil.example"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with controller(tmp_path_factory.mktemp("bad"), declared=fabric(hosts=3, slots=2)) as opus:
        assert opus.put(J, JOB).status_code == 201
        opus.check_in("dp", [0, 1])
        torn = opus.check_in("torn", [0, 2])
        assert (torn["domain"], torn["connection"]) == ("scale-out", None), (
            "known, and not refused at check-in"
        )
        for rank in (0, 1):
            opus.arrive(rank, "dp", 0)
        wait_until(lambda: opus.say(0)["grants"] and opus.say(1)["grants"], "operation 0 is granted")
        yield opus


def send(opus: Controller, case: Case) -> httpx.Response:
    method, path = case.request.split(" ", 1)
    content = case.raw
    if case.body is not None:
        content = json.dumps(case.body).replace('"START"', str(opus.address.start)).encode()
    headers = {} if content is None else {"Content-Type": "application/json"}
    return opus.http.request(method, PREFIX + path, content=content, headers={**headers, **case.headers})


@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "-") for case in CASES])
def test_bad_input_is_refused_by_name_and_changes_nothing(world: Controller, case: Case) -> None:
    before = world.everything()
    answer = send(world, case)
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (case.status, f"urn:opus-sdn:problem:{case.problem}")
    assert problem["status"] == case.status
    assert case.says in problem["detail"], problem["detail"]
    assert problem["title"]
    assert problem["instance"].startswith("/api/v1/")
    assert problem["request_id"] == answer.headers["X-Request-Id"]
    assert world.everything() == before


def test_a_body_beyond_32_mib_is_refused_on_operator_routes(world: Controller) -> None:
    before = world.everything()
    for path in ("/fabric", "/jobs/k"):
        answer = world.http.put(
            PREFIX + path, content=b" " * (32 * 1024 * 1024 + 1), headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:opus-sdn:problem:body-too-large")
    assert world.everything() == before


def test_a_client_that_asks_first_is_told_before_it_sends_too_much(world: Controller) -> None:
    headers = {
        "Content-Type": "application/json",
        "Expect": "100-continue",
        "Content-Length": str(K256 * 100),
    }
    request = world.http.build_request("POST", f"{PREFIX}{J}/arrivals", headers=headers)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection(("127.0.0.1", world.address.port)) as raw:
        raw.sendall(f"POST {PREFIX}{J}/arrivals HTTP/1.1\r\n{head}\r\n".encode())
        assert raw.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_many_faults_are_named_and_counted(world: Controller) -> None:
    ranks = [{"rank": rank, "last_grant": False} for rank in range(50)]
    problem = world.post(f"{J}/arrivals", {**world.news(0), "ranks": ranks}).json()
    assert problem["error_count"] == 50
    assert len(problem["errors"]) == 20
    assert problem["errors"][7] == {
        "field": "ranks[7].last_grant",
        "value": "false",
        "message": "should be a valid integer",
    }
    assert "and 47 more" in problem["detail"]


@pytest.mark.parametrize(
    ("second", "problem", "says"),
    [
        ({"n": 5}, "diverged", "operation 5"),
        ({"n": 0, "tag": 8, "source": 0, "destination": 1}, "tag-order", "tags"),
    ],
    ids=["members-at-different-n", "a-tag-out-of-order"],
)
def test_what_no_rank_can_recover_from_is_told_to_all_of_them(
    opus: Controller, second: dict[str, Any], problem: str, says: str
) -> None:
    connection = "dp:0-1" if "tag" in second else "dp"
    ends = {"source": 0, "destination": 1, "tag": 7} if "tag" in second else {}
    first = opus.say(0, arrivals=[{"connection": connection, "n": 0, **ends}])
    assert first["failure"] is None
    told = opus.say(1, arrivals=[{"connection": connection, **second}], wait_s=30)["failure"]
    assert told["type"] == f"urn:opus-sdn:problem:{problem}"
    assert says in told["detail"]
    assert opus.say(0)["failure"] == told
    assert opus.get("/jobs/j")["state"] == "failed"
    refused = opus.put("/jobs/j/groups/late", {"incarnation": 1, "ranks": "world", "dimension": "dp"})
    assert (refused.status_code, refused.json()["type"]) == (409, f"urn:opus-sdn:problem:{problem}")


def test_an_operation_that_was_granted_or_released_before_is_answered_and_never_repeated(
    opus: Controller,
) -> None:
    for rank in (0, 1):
        opus.arrive(rank, "dp", 0)
    wait_until(lambda: opus.say(0)["grants"], "granted")
    before = opus.get("/jobs/j")["grants"]
    assert opus.arrive(0, "dp", 0)["arrivals"][0]["state"] == "granted"
    opus.release(0, "dp", 0)
    assert opus.arrive(0, "dp", 0)["arrivals"][0]["state"] == "done"
    assert opus.release(0, "dp", 0)["failure"] is None, "a late copy of a release is harmless"
    assert opus.get("/jobs/j")["grants"] == before


def test_a_bug_is_answered_without_its_insides(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("a secret of the inside")

    with controller(tmp_path, declared=fabric()) as opus:
        opus.declare()
        monkeypatch.setattr(views, "jobs_view", broken)
        monkeypatch.setattr(Engine, "news", broken)
        for answer in (
            opus.http.get(f"{PREFIX}/jobs"),
            opus.post("/jobs/j/arrivals", opus.news(0)),
        ):
            assert answer.status_code == 500
            assert answer.headers["Content-Type"] == "application/problem+json"
            problem = answer.json()
            assert problem["type"] == "urn:opus-sdn:problem:internal-error"
            assert problem["request_id"] in problem["detail"]
            assert "secret" not in answer.text
            assert problem["request_id"] in [getattr(r, "request_id", None) for r in caplog.records]
        monkeypatch.undo()
        assert opus.get("/jobs/j")["state"] == "running", "and the process goes on"
    assert "a secret of the inside" in caplog.text


@pytest.mark.parametrize(("size", "status"), [(K256 // 4, 422), (K256 + 8, 413), (K256 * 8, 413)])
def test_a_body_that_comes_in_pieces_is_held_to_the_same_limit(
    world: Controller, size: int, status: int
) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"incarnation": 1'
        for _ in range(8):
            yield b" " * (size // 8)
        yield b" }"

    headers = {"Content-Type": "application/json"}
    answer = world.http.post(f"{PREFIX}{J}/arrivals", content=pieces(), headers=headers)
    assert answer.status_code == status
