"""Simulations over HTTP: what they find, what they are refused for, and that nothing else waits for them."""

from __future__ import annotations

import base64
import json
import lzma
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from opus_sdn.api.simulations import request as wire
from opus_sdn.api.simulations import runner
from opus_sdn.api.simulations.documents import SimulationDocument
from opus_sdn.whatif.engine import SEMANTICS
from tests.api.world import PREFIX, Controller, controller, fabric, settings, wait_until
from tests.whatif.cases import DATA, EIGHT, EXPECTED, LLAMA, MICROBATCHES

FILES = {
    "et": "workload_et.tar.xz",
    "groups": "workload.json",
    "system": "system.json",
    "schedules": "schedules.txt.xz",
}
FINAL = {"done", "failed", "cancelled"}
ENDLESS = {"delays_ms": [i / 2 for i in range(1024)], "modes": ["on-demand", "provision"]}  # minutes of work


def sent(case: str, **more: Any) -> dict[str, Any]:
    """The files of a published case, sent along."""
    inputs: dict[str, Any] = {}
    for field, name in FILES.items():
        content = (DATA / case / name).read_bytes()
        inputs[field] = {"name": name, "content": base64.b64encode(content).decode()}
    return inputs | more


def named(case: str, **more: Any) -> dict[str, Any]:
    """The same files, by their names below the folder of traces."""
    return {field: {"path": f"{case}/{name}"} for field, name in FILES.items()} | more


def ask(opus: Controller, inputs: dict[str, Any], **what: Any) -> str:
    """Ask for a simulation; its id."""
    answer = opus.post("/simulations", {"inputs": inputs, **what})
    assert answer.status_code == 202, answer.text
    assert answer.json()["state"] in ("queued", "running")
    path = answer.headers["Location"]
    assert path == f"{PREFIX}/simulations/{answer.json()['id']}"
    return str(answer.json()["id"])


def refused(opus: Controller, inputs: dict[str, Any], **what: Any) -> dict[str, Any]:
    """Ask for what cannot be; the problem."""
    answer = opus.post("/simulations", {"inputs": inputs, **what})
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    problem: dict[str, Any] = answer.json()
    return problem


def look(opus: Controller, simulation: str) -> dict[str, Any]:
    """A simulation as it is now, which is as the API document says."""
    found: dict[str, Any] = opus.get(f"/simulations/{simulation}")
    SimulationDocument.model_validate_json(json.dumps(found))
    return found


def ended(opus: Controller, simulation: str) -> dict[str, Any]:
    """A simulation when it has ended."""
    wait_until(lambda: look(opus, simulation)["state"] in FINAL, f"simulation {simulation} ends")
    return look(opus, simulation)


def children(parent: int) -> list[int]:
    """The processes of simulations that this process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            stat = folder.joinpath("stat").read_text().rpartition(")")[2].split()
            command = folder.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == parent and stat[0] != "Z" and runner.CHILD.encode() in command:
            found.append(int(folder.name))
    return found


def folders() -> set[str]:
    """What simulations have left in the folder of temporary files."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("opus-simulation-*")}


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))


@pytest.fixture
def opus(tmp_path: Path) -> Iterator[Controller]:
    """A controller that reads the published cases."""
    with controller(tmp_path, traces_dir=DATA) as client:
        yield client


# What they find


@pytest.mark.parametrize("give", [sent, named])
def test_a_replay_finds_what_the_published_simulator_found(opus: Controller, give: Any) -> None:
    found = ended(opus, ask(opus, give(EIGHT), replay={"delay_ms": 10}, label="eight"))
    assert (found["state"], found["label"], found["failure"]) == ("done", "eight", None)
    assert found["progress"] == {"phase": "replaying", "done": 1, "points": 1}
    assert found["created_at"] <= found["started_at"] <= found["ended_at"]
    expected = EXPECTED[EIGHT]
    assert found["result"]["finish_ns_per_rank"] == expected["per_rank_finish_ns"]["baseline_10ms"]
    assert found["result"]["reconfigurations"] == expected["reconfigurations"]["baseline_10ms"]


def test_hints_may_be_sent_along_as_text(opus: Controller) -> None:
    text = (DATA / EIGHT / "rank_comm_groups_10ms.yaml").read_text()
    hints = {"name": "hints.yaml", "text": text}
    wanted = {"delay_ms": 10, "mode": "provision"}
    found = ended(opus, ask(opus, sent(EIGHT, hints=hints), replay=wanted))
    assert found["result"]["finish_ns_per_rank"] == EXPECTED[EIGHT]["per_rank_finish_ns"]["provisioning_10ms"]
    assert found["inputs"]["hints"] == "hints.yaml"


def test_a_sweep_finds_every_point_in_order(opus: Controller) -> None:
    wanted = {"delays_ms": [0, 10, 50], "modes": ["on-demand", "provision"]}
    found = ended(opus, ask(opus, sent(EIGHT), sweep=wanted))
    assert found["progress"] == {"phase": "replaying", "done": 6, "points": 6}
    finished = {(p["delay_ms"], p["mode"]): p["finish_ns_per_rank"] for p in found["result"]}
    assert list(finished) == [(d, m) for d in (0, 10, 50) for m in ("on-demand", "provision")]
    for delay in (0, 10, 50):
        of_ranks = EXPECTED[EIGHT]["per_rank_finish_ns"]
        assert finished[delay, "on-demand"] == of_ranks[f"baseline_{delay}ms"]
        assert finished[delay, "provision"] == of_ranks[f"provisioning_{delay}ms"]


def test_a_step_that_cannot_finish_is_a_result_with_the_circle_of_waits(opus: Controller) -> None:
    once = ended(opus, ask(opus, sent(MICROBATCHES), replay={"delay_ms": 50}))
    many = ended(opus, ask(opus, sent(MICROBATCHES), sweep={"delays_ms": [10, 50]}))
    assert (once["state"], many["state"]) == ("done", "done")
    for found in (once["result"], many["result"][1]):
        assert (found["finish_ns"], found["unfinished_ranks"], found["delay_ms"]) == (None, 32, 50)
        cycle = found["cycle"]
        assert len(cycle) >= 2
        for wait, following in pairwise([*cycle, cycle[0]]):
            assert wait["waits_for"] == following["rank"]
            assert wait["operation"]
            assert wait["connection"]
    expected = EXPECTED[MICROBATCHES]["runs"]["10ms"]["on_demand"]["last_rank"]
    assert many["result"][0]["finish_ns"] == expected


def test_our_own_semantics_take_a_fabric_and_a_job_file(opus: Controller) -> None:
    fabric_file = {
        "version": 1,
        "hosts": ["h[0-3]"],
        "gpus_per_host": 2,
        "ports_per_gpu": 2,
        "circuit": "duplex",
        "switches": [{"name": "s", "driver": "emulated", "size": 16, "layout": "sided"}],
        "rails": [{"name": f"r{i}", "slots": [i], "switch": "s", "first_port": 8 * i} for i in range(2)],
    }
    job = {
        "placement": [{"rank": r, "host": f"h{r // 4 * 2 + r % 2}", "slot": r // 2 % 2} for r in range(8)],
        "dimensions": [{"name": name, "size": 2} for name in ("pp", "tp", "dp")],
    }
    more = {
        "fabric": {"name": "fabric.yaml", "text": json.dumps(fabric_file)},
        "job": {"name": "job.yaml", "text": json.dumps(job)},
    }
    wanted = {"delay_ms": 10, "mode": "provision", "semantics": "opus"}
    derived = ended(opus, ask(opus, sent(EIGHT), replay=wanted))
    placed = ended(opus, ask(opus, sent(EIGHT, **more), replay=wanted))
    assert (derived["state"], placed["state"]) == ("done", "done"), (derived["failure"], placed["failure"])
    assert placed["result"]["finish_ns_per_rank"] == derived["result"]["finish_ns_per_rank"]


# Bad input


def test_bad_input_is_a_failure_that_names_file_node_and_field(opus: Controller) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"system": {"name": "s.json", "text": "{"}}, {"file": "system/s.json"}, "no JSON"),
        (
            {"groups": {"name": "g.json", "text": '{"0": [0, "x"]}'}},
            {"file": "groups/g.json"},
            "groups/g.json",
        ),
        (
            {"schedules": {"name": "s.txt", "text": "BW 0\n0 x\n"}},
            {"file": "schedules/s.txt", "field": "line 2", "value": "'x'"},
            "a bandwidth",
        ),
        ({"et": {"path": f"{EIGHT}/nowhere"}}, {"file": f"{EIGHT}/nowhere"}, "no trace files"),
        ({"system": {"name": "s.json", "content": "{}"}}, {"field": "inputs.system.content"}, "no base64"),
        ({"schedules": {"path": f"{LLAMA}/schedules.txt.xz"}}, {"file": "schedules"}, "join 128 ranks"),
    ]
    for inputs, where, says in cases:
        found = ended(opus, ask(opus, sent(EIGHT) | inputs, replay={"delay_ms": 10}))
        failure = found["failure"]
        assert (found["state"], found["result"]) == ("failed", None)
        assert (failure["type"], failure["status"]) == ("urn:opus-sdn:problem:invalid-request", 422)
        assert where.items() <= failure.items(), failure
        assert says in failure["detail"]
        assert tempfile.gettempdir() not in json.dumps(failure), "nothing of our folders is told"
        assert str(DATA) not in json.dumps(failure)


def test_a_broken_trace_names_its_file_and_node(opus: Controller, tmp_path: Path) -> None:
    import io
    import tarfile

    with tarfile.open(DATA / EIGHT / FILES["et"]) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
    broken = io.BytesIO()
    with tarfile.open(fileobj=broken, mode="w:gz") as archive:
        for name, content in members.items():
            kept = content[: len(content) // 2] if name.endswith(".3.et") else content
            info = tarfile.TarInfo(name)
            info.size = len(kept)
            archive.addfile(info, io.BytesIO(kept))
    et = {"name": "t.tar.gz", "content": base64.b64encode(broken.getvalue()).decode()}
    failure = ended(opus, ask(opus, sent(EIGHT, et=et), replay={"delay_ms": 10}))["failure"]
    assert failure["file"].startswith("et/t.tar.gz(")
    assert failure["file"].endswith(".3.et)")
    assert failure["type"] == "urn:opus-sdn:problem:invalid-request"


ONCE: dict[str, Any] = {"replay": {"delay_ms": 10}}


@pytest.mark.parametrize(
    ("inputs", "what", "field", "says"),
    [
        ({}, {}, "replay", "give one of them"),
        ({}, {"replay": {"delay_ms": 1}, "sweep": {"delays_ms": [1]}}, "replay", "give one of them"),
        ({"et": {"name": "a.tar"}}, ONCE, "inputs.et", "has nothing"),
        ({"et": {"name": "a.tar", "text": "", "content": ""}}, ONCE, "inputs.et", "content and text"),
        ({"et": {"text": ""}}, ONCE, "inputs.et.name", "goes with"),
        ({"et": {"name": "a", "path": "a"}}, ONCE, "inputs.et.name", "a path has its name"),
        ({"hints": {"name": "h", "text": ""}}, ONCE, "inputs.hints", "mode provision"),
        ({"hints": {"name": "h", "text": ""}}, {"sweep": {"delays_ms": [1]}}, "inputs.hints", "a sweep"),
        ({"job": {"name": "j", "text": ""}}, ONCE, "inputs.fabric", "go together"),
        ({}, {"sweep": {"delays_ms": [1.0] * 1024, "latencies_ns": [1.0] * 5}}, "sweep", "at most 4096"),
        (
            {},
            {"replay": {"delay_ms": 1, "options": {"fabric": "/etc/passwd"}}},
            "replay.options.fabric",
            "use inputs.fabric",
        ),
        (
            {},
            {"sweep": {"delays_ms": [1], "options": {"job": "/etc/passwd"}}},
            "sweep.options.job",
            "use inputs.job",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(
    opus: Controller, inputs: dict[str, Any], what: dict[str, Any], field: str, says: str
) -> None:
    problem = refused(opus, sent(EIGHT) | inputs, **what)
    assert (problem["status"], problem["field"]) == (422, field)
    assert says in problem["detail"]
    assert opus.get("/simulations")["simulations"] == []


@pytest.mark.parametrize(
    ("inputs", "what", "field"),
    [
        ({"et": {"name": "../a.tar", "text": ""}}, ONCE, "inputs.et.name"),
        ({"et": {"name": ".a", "text": ""}}, ONCE, "inputs.et.name"),
        ({"et": {"name": "a", "txt": ""}}, ONCE, "inputs.et.txt"),
        ({}, {"replay": {"delay_ms": -1}}, "replay.delay_ms"),
        ({}, {"replay": {"delay_ms": True}}, "replay.delay_ms"),
        ({}, {"replay": {"delay_ms": 1, "semantics": "other"}}, "replay.semantics"),
        ({}, {"sweep": {"delays_ms": []}}, "sweep.delays_ms"),
        ({}, {"sweep": {"delays_ms": [1], "bandwidths_gbps": [0]}}, "sweep.bandwidths_gbps[0]"),
    ],
)
def test_what_no_request_looks_like_is_refused_with_its_field(
    opus: Controller, inputs: dict[str, Any], what: dict[str, Any], field: str
) -> None:
    problem = refused(opus, sent(EIGHT) | inputs, **what)
    assert problem["type"] == "urn:opus-sdn:problem:invalid-request"
    assert [error["field"] for error in problem["errors"]] == [field]


def test_the_semantics_of_the_wire_are_those_of_the_library() -> None:
    assert set(get_args(get_args(wire.Semantics)[0])) == set(SEMANTICS)


def test_a_body_above_the_limit_is_refused(tmp_path: Path) -> None:
    with controller(tmp_path, operator_body_max_bytes=20_000) as opus:
        problem = refused(opus, sent(EIGHT), **ONCE)
        assert (problem["status"], problem["limit_bytes"]) == (413, 20_000)


# Files of the controller's machine


def test_no_file_is_read_by_name_unless_a_folder_is_set(tmp_path: Path) -> None:
    with controller(tmp_path) as opus:
        problem = refused(opus, named(EIGHT), **ONCE)
        assert (problem["status"], problem["field"]) == (422, "inputs.et.path")
        assert "OPUS_SDN_TRACES_DIR" in problem["detail"]


def test_no_path_leads_out_of_the_folder_of_traces(tmp_path: Path) -> None:
    traces, outside = tmp_path / "traces", tmp_path / "outside"
    (traces / "set").mkdir(parents=True)
    outside.mkdir()
    secret = outside / "secret.0.et"
    secret.write_text("secret")
    (traces / "link").symlink_to(outside)
    (traces / "circle").symlink_to(traces / "circle")
    (traces / "set" / "a.0.et").symlink_to(secret)
    (traces / "plain.json").write_text("{}")
    out = ["..", "../outside/secret.0.et", "set/../../outside", str(secret), "link", "link/secret.0.et",
           "set", "set/a", "link/secret", "\0", "x" * 4000]  # fmt: skip
    with controller(tmp_path, traces_dir=traces) as opus:
        for path in out:
            problem = refused(opus, sent(EIGHT, et={"path": path}), **ONCE)
            assert (problem["status"], problem["field"]) == (422, "inputs.et.path"), path
            assert str(outside) not in problem["detail"] or path == str(secret)
        known = ask(opus, sent(EIGHT, system={"path": "set/../plain.json"}), **ONCE)
        assert ended(opus, known)["failure"]["file"] == "plain.json"


# Many at a time


def test_the_others_wait_their_turn_and_the_queue_is_bounded(tmp_path: Path) -> None:
    with controller(tmp_path, traces_dir=DATA, simulations_queued_max=2) as opus:
        first = ask(opus, named(LLAMA), sweep=ENDLESS)
        second, third = (ask(opus, named(EIGHT), **ONCE) for _ in range(2))
        wait_until(lambda: look(opus, first)["progress"]["done"] > 0, "the first one gets on")
        assert [look(opus, known)["state"] for known in (first, second, third)] == [
            "running",
            "queued",
            "queued",
        ]
        answer = opus.post("/simulations", {"inputs": named(EIGHT), **ONCE})
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:opus-sdn:problem:overloaded")
        assert answer.headers["Retry-After"]
        assert opus.http.delete(f"{PREFIX}/simulations/{second}").json()["state"] == "cancelled"
        assert look(opus, third)["state"] == "queued"
        assert opus.http.delete(f"{PREFIX}/simulations/{first}").json()["state"] == "cancelled"
        assert ended(opus, third)["state"] == "done"
        assert (look(opus, second)["started_at"], look(opus, first)["result"]) == (None, None)


def test_a_cancelled_simulation_leaves_no_process_and_no_file(opus: Controller) -> None:
    known = ask(opus, sent(LLAMA), sweep=ENDLESS)
    wait_until(lambda: look(opus, known)["progress"]["done"] > 0, "it gets on")
    assert len(children(os.getpid())) == 1
    assert len(folders()) == 1
    for _ in range(2):
        answer = opus.http.delete(f"{PREFIX}/simulations/{known}")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
        assert children(os.getpid()) == []
    wait_until(lambda: not folders(), "its folder is gone")


def test_grants_go_on_while_a_simulation_runs(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(), traces_dir=DATA) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        known = ask(opus, named(LLAMA), sweep=ENDLESS)
        wait_until(lambda: look(opus, known)["state"] == "running", "it runs")
        for n in range(50):
            opus.arrive(0, "dp", n)
            opus.arrive(1, "dp", n, wait_s=30)
            for rank in (0, 1):
                opus.release(rank, "dp", n, last_grant=n + 1)
        assert opus.get("/jobs/j")["grants"] == 50
        assert look(opus, known)["state"] == "running"


def test_the_list_comes_in_pages_in_the_order_of_the_requests(opus: Controller) -> None:
    asked = [ask(opus, named(EIGHT), label=str(i), **ONCE) for i in range(5)]
    for known in asked:
        ended(opus, known)
    found: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(3):
        answer = opus.get("/simulations", limit=2, **cursor)
        found += [each["id"] for each in answer["simulations"]]
        assert all("result" not in each for each in answer["simulations"])
        cursor = {"cursor": answer["next"]}
    assert (found, answer["next"]) == (asked, None)


def test_the_newest_that_ended_are_kept(tmp_path: Path) -> None:
    with controller(tmp_path, traces_dir=DATA, simulations_kept_max=2) as opus:
        asked = [ask(opus, named(EIGHT), **ONCE) for _ in range(4)]
        ended(opus, asked[-1])
        assert [each["id"] for each in opus.get("/simulations")["simulations"]] == asked[2:]
        gone = opus.http.get(f"{PREFIX}/simulations/{asked[0]}")
        assert (gone.status_code, gone.json()["type"]) == (404, "urn:opus-sdn:problem:not-found")
        assert opus.http.delete(f"{PREFIX}/simulations/{asked[0]}").status_code == 404


# Limits


def limit_of(tmp_path: Path, inputs: dict[str, Any], what: dict[str, Any], **limits: Any) -> dict[str, Any]:
    """The failure of a simulation that goes beyond a limit; the next one is not concerned."""
    with controller(tmp_path, traces_dir=DATA, **limits) as opus:
        found = ended(opus, ask(opus, inputs, **what))
        assert children(os.getpid()) == []
        assert (found["state"], found["failure"]["type"]) == ("failed", "urn:opus-sdn:problem:limit-exceeded")
        failure: dict[str, Any] = found["failure"]
        return failure


def test_a_simulation_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    failure = limit_of(tmp_path, named(LLAMA), {"sweep": ENDLESS}, simulation_s_max=1.5)
    assert (failure["limit_s"], "simulation_s_max" in failure["detail"]) == (1.5, True)


def test_a_simulation_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    rows = b"".join(b"%d " % row + b"1 " * (1 << 20) + b"\n" for row in range(32))
    packed = lzma.compress(b"BW 0\n" + rows, preset=0)
    bomb = {"name": "schedules.txt.xz", "content": base64.b64encode(packed).decode()}
    limit = 256 << 20
    failure = limit_of(tmp_path, sent(EIGHT, schedules=bomb), ONCE, simulation_memory_max_bytes=limit)
    assert failure["limit_bytes"] == limit
    assert "simulation_memory_max_bytes" in failure["detail"]


def test_a_result_that_is_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RESULT_MAX_BYTES", 100)
    assert limit_of(tmp_path, named(EIGHT), ONCE)["limit_bytes"] == 100


def test_a_process_that_dies_is_a_failure_that_says_how(opus: Controller) -> None:
    known = ask(opus, named(LLAMA), sweep=ENDLESS)
    wait_until(lambda: look(opus, known)["progress"]["done"] > 0, "it gets on")
    (process,) = children(os.getpid())
    os.kill(process, signal.SIGKILL)
    failure = ended(opus, known)["failure"]
    assert failure["type"] == "urn:opus-sdn:problem:internal-error"
    assert "signal 9" in failure["detail"]
    assert ended(opus, ask(opus, named(EIGHT), **ONCE))["state"] == "done"


# The end of the controller


def test_a_controller_that_stops_ends_its_simulations(tmp_path: Path) -> None:
    with controller(tmp_path, traces_dir=DATA) as opus:
        known = ask(opus, named(LLAMA), sweep=ENDLESS)
        ask(opus, named(EIGHT), **ONCE)
        wait_until(lambda: look(opus, known)["progress"]["done"] > 0, "it gets on")
    assert children(os.getpid()) == []
    assert folders() == set()


def test_a_controller_that_is_killed_leaves_no_simulation_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")  # nobody writes: the simulation waits, and says nothing meanwhile
    given = settings(tmp_path, traces_dir=tmp_path).model_dump(mode="json", exclude_defaults=True)
    ready = tmp_path / "ready"
    command = [sys.executable, "-m", "tests.api.process", json.dumps(given), str(ready)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(ready.exists, "the controller is ready")
        url = json.loads(ready.read_text())["url"]
        body = {"inputs": sent(EIGHT, system={"path": "pipe.json"}), **ONCE}
        with httpx.Client(base_url=url + PREFIX, trust_env=False) as http:
            known = http.post("/simulations", json=body).raise_for_status().json()["id"]
            loading = lambda: http.get(f"/simulations/{known}").json()["progress"]["phase"] == "loading"  # noqa: E731
            wait_until(loading, "it reads its files")
            assert len(folders()) == 1
        (simulation,) = children(process.pid)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not Path(f"/proc/{simulation}").exists(), "the simulation has ended")
    assert folders() == set()
