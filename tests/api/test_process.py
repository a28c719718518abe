"""The controller as a process: where it says it is, how it ends, and what the next one makes of the rest."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.api.former import FormerJobs
from opus_sdn.api.logs import KeyValueFormatter
from opus_sdn.api.server import Address, StartError, running
from opus_sdn.intent.changes import Batch, JobState, StepMoved, StepPlanned, StepState
from opus_sdn.intent.errors import Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import JobSpec, Place
from opus_sdn.store.base import JobRecord
from opus_sdn.store.memory import MemoryStore
from tests.api.world import PATIENCE_S, PREFIX, Controller, controller, fabric, job, settings, wait_until

ROOT = Path(__file__).parents[2]


class Process:
    """A controller process on a database in `folder`."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self._ready = folder / "ready.json"
        self._ready.unlink(missing_ok=True)
        values = {"port": 0, "database": f"sqlite:///{folder / 'opus.db'}", "runs_dir": str(folder / "runs")}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.api.process",
                json.dumps({**values, **more}),
                str(self._ready),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.client: Controller | None = None

    def ready(self) -> Controller:
        wait_until(lambda: self._ready.exists() or self.process.poll() is not None, "it is ready")
        assert self._ready.exists(), self.process.communicate()
        self.client = Controller(Address(**json.loads(self._ready.read_text())))
        return self.client

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal and wait for the end: status, stdout, stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S + 10)
        if self.client is not None:
            self.client.close()
            self.client = None
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start controller processes on one database; what is left of them is killed."""
    started: list[Process] = []

    def one(**more: Any) -> Process:
        started.append(Process(tmp_path, **more))
        return started[-1]

    yield one
    for each in started:
        each.end(signal.SIGKILL)


def with_a_job(opus: Controller) -> None:
    assert opus.put("/fabric", fabric()).status_code == 201
    run_a_job(opus)


def run_a_job(opus: Controller) -> None:
    opus.declare()
    opus.check_in("dp", "world")
    for rank in (0, 1):
        opus.arrive(rank, "dp", 0)
    wait_until(lambda: opus.say(0)["grants"], "granted")


def test_it_says_where_it_is_and_ends_in_order_while_a_rank_waits(start: Any, tmp_path: Path) -> None:
    process = start()
    opus = process.ready()
    assert process.process.stdout.readline() == opus.address.url + "\n"
    assert opus.address.start == 1
    with_a_job(opus)
    body = opus.news(0, wait_s=60, last_grant=1, arrivals=[{"connection": "dp", "n": 1}])
    waiting = opus.later(opus.post, "/jobs/j/arrivals", body)
    wait_until(lambda: opus.get("/intents")["intents"], "a rank waits")
    process.process.send_signal(signal.SIGTERM)
    answer = waiting.result()
    assert (answer.status_code, answer.json()["phase"]) == (503, "stopping")
    status, _, errors = process.end()
    assert status == 0
    assert "Traceback" not in errors
    assert "job.started" in (tmp_path / "runs" / "j" / "controller.log").read_text()


def killed(folder: Path, start: Any) -> None:
    process = start()
    with_a_job(process.ready())
    process.end(signal.SIGKILL)


def stopped(folder: Path, start: Any) -> None:
    with controller(folder, durable=True) as opus:
        with_a_job(opus)


def session(rank_holds: bool = True) -> dict[str, Any]:
    """What a rank of `with_a_job` says to a new start: it holds dp#0, or has finished it meanwhile."""
    held = [{"no": 1, "connection": "dp", "n": 0, "length": 1}] if rank_holds else []
    mark = {"connection": "dp", "granted": 1, "released": 0 if rank_holds else 1}
    return {"last_grant": 1, "held": held, "open": [], "marks": [mark]}


@pytest.mark.parametrize("ended", [stopped, killed])
def test_after_a_restart_a_job_goes_on_when_its_ranks_have_said_what_they_hold(
    start: Any, tmp_path: Path, ended: Callable[[Path, Any], None]
) -> None:
    ended(tmp_path, start)
    with controller(tmp_path, durable=True) as opus:
        assert opus.address.start == 2
        assert len(opus.get("/ports")["ports"]) == 4, "the fabric was kept"
        (seen,) = opus.get("/jobs")["jobs"]
        assert (seen["state"], seen["incarnation"], seen["grants"]) == ("running", 1, 1)
        assert [(lock["rank"], lock["n"]) for lock in opus.get("/locks")["locks"]] == [(0, 0), (1, 0)]
        (event,) = opus.get("/events", kind="job.recovered")["events"]
        assert event["data"] == {"held": 1, "awaited": 2, "intact": ended is stopped}

        stale = opus.post("/jobs/j/arrivals", opus.news(0, seen_start=1))
        assert (stale.status_code, stale.json()["type"]) == (409, "urn:opus-sdn:problem:stale-start")
        assert stale.json()["start"] == 2
        for rank in (0, 1):
            opus.say(rank, last_grant=1, session=session())
        wait_until(lambda: opus.get("/events", kind="job.reasserted")["events"], "all were heard")
        for rank in (0, 1):
            opus.release(rank, "dp", 0, last_grant=1)
            opus.arrive(rank, "dp", 1, last_grant=1)
        (grant,) = opus.say(0, last_grant=1, wait_s=30)["grants"]
        assert (grant["n"], grant["no"]) == (1, 2)


def test_a_restarted_job_ends_like_any_other(tmp_path: Path) -> None:
    with controller(tmp_path, durable=True) as opus:
        with_a_job(opus)
    with controller(tmp_path, durable=True) as opus:
        for rank in (0, 1):
            opus.say(rank, last_grant=1, session=session(rank_holds=False), leave=True)
        assert opus.get("/jobs/j")["state"] == "ended"
        assert opus.get("/locks")["locks"] == []


def test_after_a_restart_another_job_cannot_take_ports_that_may_still_carry_traffic(
    tmp_path: Path,
) -> None:
    place = [{"rank": 0, "host": "h0", "slot": 0}]
    other = {"owner": "me", "nonce": "1", "placement": place}
    with controller(tmp_path, durable=True) as opus:
        with_a_job(opus)
    with controller(tmp_path, durable=True) as opus:
        refused = opus.put("/jobs/k", other)
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:ports-overlap")
        assert refused.json()["job"] == "j"
        ended = opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
        assert ended.status_code == 200, "its launcher vouches for it"
        assert opus.put("/jobs/k", other).status_code == 201


def test_a_failure_keeps_its_rank_and_data_over_a_restart(tmp_path: Path) -> None:
    with controller(tmp_path, durable=True) as opus:
        with_a_job(opus)
        opus.arrive(0, "dp", 1, last_grant=1)
        assert opus.arrive(1, "dp", 5, last_grant=1)["failure"] is None, "not before it is stored"
        before = opus.get("/jobs/j")["failure"]
        assert (before["type"], before["rank"]) == ("urn:opus-sdn:problem:diverged", 1)
        assert before["data"]["n"] == 5
    with controller(tmp_path, durable=True) as opus:
        assert opus.get("/jobs/j")["failure"] == before
        told = opus.say(0, session=session(), last_grant=1)["failure"]
        assert (told["rank"], told["data"]) == (1, before["data"])
        for rank in (0, 1):
            opus.say(rank, session=session(rank_holds=False), last_grant=1, leave=True)
        wait_until(lambda: opus.get("/locks")["locks"] == [], "nobody holds anything")
    with controller(tmp_path, durable=True) as opus:
        assert opus.get("/jobs/j")["failure"] == before
        over = opus.post("/jobs/j/arrivals", opus.news(0))
        assert (over.status_code, over.json()["rank"], over.json()["n"]) == (409, 1, 5)


def test_a_long_session_is_taken_while_it_is_awaited_and_never_otherwise(tmp_path: Path) -> None:
    small = {"rank_body_max_bytes": 4096}
    padding = " " * 8192
    with controller(tmp_path, durable=True, **small) as opus:
        with_a_job(opus)
    with controller(tmp_path, durable=True, **small) as opus:
        for wanted in (200, 413):
            for rank in (0, 1):
                body = opus.news(rank, last_grant=1, session=session())
                answer = opus.http.post(
                    f"{PREFIX}/jobs/j/arrivals",
                    content=json.dumps(body) + padding,
                    headers={"Content-Type": "application/json"},
                )
                assert answer.status_code == wanted, answer.text


def test_a_job_name_stays_its_owner_s_over_a_restart(tmp_path: Path) -> None:
    with controller(tmp_path, durable=True) as opus:
        with_a_job(opus)
    with controller(tmp_path, durable=True) as opus:
        refused = opus.put("/jobs/j", job(nonce="2", owner="somebody else"))
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:job-conflict")
        assert "me" in refused.json()["detail"]


def test_a_new_incarnation_frees_the_ports_of_the_one_before_the_restart(tmp_path: Path) -> None:
    with controller(tmp_path, durable=True) as opus:
        with_a_job(opus)
    with controller(tmp_path, durable=True) as opus:
        assert opus.declare(world=1, nonce="2") == 2
        left = [{"rank": 0, "host": "h1", "slot": 0}]
        assert opus.put("/jobs/k", job(1, placement=left)).status_code == 201


def vouched_for(opus: Controller) -> None:
    ended = opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": 1})
    assert (ended.status_code, ended.json()["state"]) == (200, "ended")


def silent_for_a_lease(opus: Controller) -> None:
    wait_until(lambda: opus.get("/jobs/j")["state"] == "failed", "the lease is over")
    assert opus.get("/jobs/j")["failure"]["type"] == "urn:opus-sdn:problem:rank-lost"


@pytest.mark.parametrize(
    ("settle", "more", "cause"),
    [
        (vouched_for, {}, "aborted"),
        (silent_for_a_lease, {"lease_s": 0.5, "fence_s": 0.2, "abort_s": 0.1}, "rank-lost"),
    ],
    ids=["vouched-for", "silent-for-a-lease"],
)
def test_ports_of_a_job_known_to_have_stopped_are_free_at_every_later_start(
    tmp_path: Path, settle: Callable[[Controller], None], more: dict[str, Any], cause: str
) -> None:
    with controller(tmp_path, durable=True) as opus:
        with_a_job(opus)
    with controller(tmp_path, durable=True, **more) as opus:
        settle(opus)
    with controller(tmp_path, durable=True) as opus:
        assert opus.declare("k", world=2) == 1
        over = opus.post("/jobs/j/arrivals", opus.news(0))
        assert (over.status_code, over.json()["type"]) == (409, f"urn:opus-sdn:problem:{cause}")


def test_after_a_restart_no_other_fabric_is_taken_while_a_job_may_still_transmit(tmp_path: Path) -> None:
    with controller(tmp_path, durable=True) as opus:
        with_a_job(opus)
    with controller(tmp_path, durable=True) as opus:
        refused = opus.put("/fabric", fabric(hosts=3), **{"If-Match": '"1"'})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:opus-sdn:problem:port-in-use")
        assert refused.json()["job"] == "j"
        vouched_for(opus)
        assert opus.put("/fabric", fabric(hosts=3), **{"If-Match": '"1"'}).status_code == 200
        assert opus.get("/jobs/j")["state"] == "ended"


def test_generations_and_nonces_outlive_a_restart(tmp_path: Path) -> None:
    with controller(tmp_path, durable=True) as opus:
        with_a_job(opus)
        before = opus.get("/switches")["switches"][0]["generation"]
        assert before >= 2, "the switch was seen to change"
    with controller(tmp_path, durable=True) as opus:
        assert opus.get("/switches")["switches"][0]["generation"] > before
        moved = [{"rank": rank, "host": f"h{1 - rank}", "slot": 0} for rank in (0, 1)]
        again = opus.put("/jobs/j", job(nonce="1"))
        assert (again.status_code, again.json()["incarnation"], again.json()["start"]) == (200, 1, 2)
        other = opus.put("/jobs/j", job(nonce="1", placement=moved))
        assert (other.status_code, other.json()["type"]) == (409, "urn:opus-sdn:problem:job-conflict")
        assert opus.get("/jobs/j")["incarnation"] == 1
        assert opus.declare(nonce="2") == 2


def test_the_ranks_of_a_former_job_hear_how_it_ended() -> None:
    spec = JobSpec("j", "me", "1", (Place("h0", 0),))
    ended = FormerJobs([JobRecord("j", 1, spec, JobState.ENDED, None, None)]).cause("j", 1)
    assert ended is not None
    assert ended.problem is Problem.ABORTED
    assert FormerJobs().cause("j", 1) is None


def test_a_second_controller_on_the_same_database_does_not_start(tmp_path: Path) -> None:
    with (
        controller(tmp_path, durable=True),
        pytest.raises(StartError, match="in use"),
        running(settings(tmp_path)),
    ):
        pytest.fail("it started")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(StartError, match=f"port {port} .* use another port"),
            running(settings(tmp_path, port=port)),
        ):
            pytest.fail("it started")


@pytest.mark.parametrize(
    ("name", "says"),
    [("fabric.yaml", r"fabric\.yaml:3: "), ("nowhere.yaml", r"nowhere\.yaml: cannot be read")],
)
def test_a_fault_of_the_fabric_file_is_named_with_its_place(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "fabric.yaml").write_text("version: 1\nhosts: [h0]\ngpus_per_host: many\n")
    with (
        pytest.raises(StartError, match=says),
        running(settings(tmp_path, fabric_file=tmp_path / name)),
    ):
        pytest.fail("it started")
    assert not (tmp_path / "opus.db").exists(), "no database is made for it"


def test_the_fabric_file_counts_only_until_a_fabric_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(json.dumps(fabric()))  # JSON is YAML
    with controller(tmp_path, durable=True, fabric_file=file) as opus:
        assert len(opus.get("/ports")["ports"]) == 4
        assert opus.put("/fabric", fabric(hosts=3), **{"If-Match": '"1"'}).status_code == 200
    with controller(tmp_path, durable=True, fabric_file=file) as opus:
        assert len(opus.get("/ports")["ports"]) == 6
        assert opus.http.get(f"{PREFIX}/fabric").headers["ETag"] == '"2"'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps(fabric(hosts=3)), ["fabric file differs", "opus apply -f"]),
        (json.dumps(fabric(), indent=2), []),
        ("version: 1\nhosts: many\n", ["fabric file not read", "fabric.yaml:2"]),
        (None, ["fabric file not read", "cannot be read"]),
    ],
    ids=["edited", "spelled-otherwise", "broken", "gone"],
)
def test_a_fabric_file_that_is_not_what_is_stored_is_told_how_to_come_into_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, says: list[str]
) -> None:
    with controller(tmp_path, durable=True, declared=fabric()):
        pass
    file = tmp_path / "fabric.yaml"
    if text is not None:
        file.write_text(text)
    caplog.clear()
    with controller(tmp_path, durable=True, fabric_file=file) as opus:
        assert len(opus.get("/ports")["ports"]) == 4
    told = [KeyValueFormatter().format(r) for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == (1 if says else 0)
    assert all(word in line for word in says for line in told)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_an_ipv6_literal_works_as_host(tmp_path: Path) -> None:
    with controller(tmp_path, host="::1") as opus:
        assert opus.address.url.startswith("http://[::1]:")
        assert opus.http.get("/livez").json() == {"alive": True}


def test_a_traffic_witness_watches_the_switches_of_every_fabric(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(), witness=True) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        opus.arrive(0, "dp", 0)
        opus.arrive(1, "dp", 0, wait_s=30)
        assert opus.address.witness is not None
        host, _, port = opus.address.witness.rpartition(":")
        with socket.create_connection((host, int(port))) as line, line.makefile("rw") as talk:

            def say(**words: Any) -> Any:
                talk.write(json.dumps(words) + "\n")
                talk.flush()
                return json.loads(talk.readline())

            assert say(op="begin", id="1", circuits=["h0:0:1--h1:0:0"], rank=0) == {"ok": True}
            assert say(op="end", id="1") == {"ok": True}
            report = say(op="report")
            assert (report["operations"], report["violations"]) == (1, [])


def test_a_device_step_that_a_crash_has_cut_short_is_recorded_as_failed(tmp_path: Path) -> None:
    store = MemoryStore()
    step = StepPlanned(4, "ocs0", 1, (), (CrossConnect(1, 2), CrossConnect(2, 1)), ("j/1/dp#0",), ())
    store.submit(Batch(1, 1.0, (step, StepMoved(4, "ocs0", StepState.STARTED)), durable=True)).result()
    with controller(tmp_path, declared=fabric(), store=store) as opus:
        (failed,) = opus.get("/events", kind="step")["events"]
        assert (failed["kind"], failed["switch"], failed["data"]["step"]) == ("step.failed", "ocs0", 4)
        run_a_job(opus)
        planned = opus.get("/events", kind="step.planned")["events"]
        assert [event["data"]["step"] for event in planned] == [5], "step numbers go on"
