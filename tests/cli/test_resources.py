"""What the command line shows of a real controller: the same as the API, as tables and as JSON."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from opus_sdn.api.server import running
from opus_sdn.cli import controller as cli_controller
from opus_sdn.cli import events
from opus_sdn.fabric_file import generate_fabric
from opus_sdn.settings import load_settings
from tests.api.world import wait_until
from tests.cli.conftest import Opus
from tests.whatif.cases import DATA, MICROBATCHES

JOB = "train"
PLACEMENT = [{"rank": rank, "host": f"host{rank}", "slot": 0} for rank in range(4)]
GROUPS = {"dp-0": [0, 1], "dp-1": [2, 3], "pp-0": [0, 2], "pp-1": [1, 3]}


class World:
    """A controller with a job in which some ranks hold a circuit, some wait for it, and one is late."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.api = httpx.Client(base_url=f"{url}/api/v1", trust_env=False)
        self.start = 0
        self.incarnation = 0

    def get(self, path: str) -> Any:
        return self.api.get(path).raise_for_status().json()

    def declare(self) -> None:
        """Ranks 0 and 1 hold dp-0; 0 and 2 want pp-0, which needs a port of it; 2 waits for 3 in dp-1."""
        body = {
            "owner": "anna",
            "nonce": "first",
            "placement": PLACEMENT,
            "dimensions": [{"name": "pp", "size": 2}, {"name": "dp", "size": 2}],
        }
        answer = self.api.put(f"/jobs/{JOB}", json=body).raise_for_status().json()
        self.start, self.incarnation = answer["start"], answer["incarnation"]
        groups = [
            {"name": name, "ranks": ranks, "dimension": name[:2], "ordinal": 0}
            for name, ranks in GROUPS.items()
        ]
        checked_in = {"incarnation": self.incarnation, "groups": groups}
        self.api.post(f"/jobs/{JOB}/groups", json=checked_in).raise_for_status()
        self.arrive(0, {"connection": "dp-0", "n": 0})
        granted = self.arrive(1, {"connection": "dp-0", "n": 0}, wait_s=30)
        assert granted["grants"][0]["connection"] == "dp-0"
        message = {"connection": "pp-0:0-2", "source": 0, "destination": 2, "n": 0}
        self.arrive(0, message)
        self.arrive(2, message)
        self.arrive(2, {"connection": "dp-1", "n": 0})

    def arrive(self, rank: int, arrival: dict[str, Any], wait_s: float = 0) -> Any:
        news = {"rank": rank, "last_grant": 0, "arrivals": [arrival]}
        body = {"incarnation": self.incarnation, "seen_start": self.start, "wait_s": wait_s, "ranks": [news]}
        answer = self.api.post(f"/jobs/{JOB}/arrivals", json=body, timeout=60).raise_for_status().json()
        return answer["ranks"][0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    fabric = folder / "fabric.yaml"
    fabric.write_text(generate_fabric(hosts=4, gpus_per_host=1, delay_ms=0))
    settings = load_settings(
        port=0, fabric_file=fabric, database=f"sqlite:///{folder}/opus.db", runs_dir=folder / "runs"
    )
    with running(settings) as address:
        made = World(address.url)
        made.declare()
        yield made
        made.api.close()


@pytest.fixture(autouse=True)
def _this_controller(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPUS_CONTROLLER", world.url)


def without_ages(document: Any) -> Any:
    """The document without what differs between two questions: ages, and when a rank was heard."""
    if isinstance(document, dict):
        return {k: without_ages(v) for k, v in document.items() if k not in ("age_ms", "last_heard")}
    return [without_ages(item) for item in document] if isinstance(document, list) else document


# kind, further arguments, path of the API, titles of the table, a row of it by its first word
LISTS = [
    (
        "switches",
        [],
        "/switches",
        "NAME DRIVER SIZE GENERATION CROSS CONNECTS STEPS FOREIGN CONTENDED REASON",
        "ocs0 emulated 8",
    ),
    (
        "rails",
        [],
        "/rails",
        "NAME SWITCH SLOTS CIRCUITS DESIRED MOVING TOPOLOGY DRIFT FOREIGN STALLED REASON",
        "rail0 ocs0 0 1 1 - train: 1- auto 0 0",
    ),
    (
        "ports",
        [],
        "/ports",
        "PORT RAIL SWITCH POSITION JOB RANK CIRCUIT STATE",
        "host2:0:1 rail0 ocs0 5 train 2 - -",
    ),
    (
        "circuits",
        [],
        "/circuits",
        "ID RAIL JOB DIGIT STATE",
        "host0:0:1--host1:0:0 rail0 train 1 live",
    ),
    (
        "jobs",
        [],
        "/jobs",
        "JOB OWNER INCARNATION STATE RANKS TOPOLOGY GRANTS TOPOLOGY CHANGES EXPOSED WAIT MS ALARMS",
        "train anna 1 running 4 rail0: 1- 1 1",
    ),
    (
        "groups",
        ["--job", JOB],
        f"/jobs/{JOB}/groups",
        "NAME DIMENSION DOMAIN RANKS CIRCUITS",
        "dp-1 dp scale-out 2-3 1",
    ),
    (
        "connections",
        ["--job", JOB],
        f"/connections?job={JOB}",
        "ID PATTERN RANKS CIRCUITS",
        "pp-0:0-2 pair 0, 2 host0:0:1--host2:0:0",
    ),
    ("intents", [], "/intents", "ID STATE FIRST AT MISSING REASON", "train/1/pp-0:0-2[0>2]#0 complete"),
    (
        "intents",
        ["--job", JOB],
        f"/intents?job={JOB}",
        "ID STATE FIRST AT MISSING REASON",
        "train/1/dp-1#0 declared",
    ),
    (
        "locks",
        ["--job", JOB],
        f"/locks?job={JOB}",
        "ID JOB RANK OPERATION AGE MS CIRCUITS",
        "train.1.1.0 train 0 dp-0#0",
    ),
    ("events", [], "/events?limit=500", "SEQ AT KIND JOB WHAT", "1 "),
]


@pytest.mark.parametrize(
    ("kind", "more", "path", "titles", "row"),
    LISTS,
    ids=[" ".join([kind, *more]) for kind, more, *_ in LISTS],
)
def test_a_list_is_the_same_as_the_api_gives(
    opus: Opus, world: World, kind: str, more: list[str], path: str, titles: str, row: str
) -> None:
    listed = opus("get", kind, *more, "-o", "json")
    assert (listed.code, listed.err) == (0, "")
    assert without_ages(listed.json) == without_ages(world.get(path))

    table = opus("get", kind, *more)
    assert (table.code, table.err) == (0, "")
    rows = [" ".join(line.split()) for line in table.lines]
    assert rows[0] == titles
    assert [line for line in rows[1:] if line.startswith(row)]
    assert len(rows) == 1 + len(listed.json[kind])


def test_a_kind_of_which_there_is_nothing_is_an_empty_answer_and_no_error(opus: Opus) -> None:
    assert opus("get", "steps", "-o", "json").json == {"next": None, "steps": []}
    nothing = opus("get", "steps")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no steps\n")


def test_the_fabric_is_the_declared_document(opus: Opus, world: World) -> None:
    assert opus("get", "fabric", "-o", "json").json == world.get("/fabric")
    assert opus("get", "fabric").lines[1].split() == ["host[0-3]", "1", "2", "duplex", "ocs0", "rail0"]


ONES = [
    (["job", JOB], f"/jobs/{JOB}"),
    (["jobs", JOB], f"/jobs/{JOB}"),
    (["rail", "rail0"], "/rails/rail0"),
    (["switch", "ocs0"], "/switches/ocs0"),
    (["connection", "pp-1:1-3", "--job", JOB], f"/connections/pp-1:1-3?job={JOB}"),
]


@pytest.mark.parametrize(("arguments", "path"), ONES, ids=[" ".join(arguments) for arguments, _ in ONES])
def test_one_thing_is_the_same_as_the_api_gives(
    opus: Opus, world: World, arguments: list[str], path: str
) -> None:
    for command in ("get", "describe"):
        shown = opus(command, *arguments, "-o", "json")
        assert (shown.code, shown.err) == (0, "")
        assert without_ages(shown.json) == without_ages(world.get(path))


def test_one_thing_without_a_route_of_its_own_is_picked_out_of_the_list(opus: Opus) -> None:
    assert opus("get", "port", "host3:0:1", "-o", "json").json["position"] == 7
    assert opus("get", "circuit", "host0:0:1--host1:0:0").lines[1].split()[1] == "rail0"


def test_a_switch_is_read_on_demand(opus: Opus, world: World) -> None:
    read = opus("observe", "ocs0")
    assert (read.code, read.err) == (0, "")
    assert read.lines[1].split()[:3] == ["ocs0", "emulated", "8"]
    assert opus("observe", "ocs0", "-o", "json").json == world.get("/switches/ocs0")
    shown = opus("observe", "ocs0", "--curl")
    assert shown.out.strip().endswith(f"-X POST {world.url}/api/v1/switches/ocs0/observe")
    absent = opus("observe", "ocs9")
    assert (absent.code, absent.out) == (1, "")
    assert "there is no switch 'ocs9'; known switches: ocs0" in absent.err


def test_a_described_switch_says_what_it_holds(opus: Opus) -> None:
    shown = opus("describe", "switch", "ocs0")
    assert (shown.code, shown.err) == (0, "")
    assert "Cross-connects" in shown.out
    assert "Foreign" not in shown.out


def test_a_name_that_is_not_there_is_refused_with_the_names_that_are(opus: Opus) -> None:
    absent = opus("get", "port", "host9:0:0")
    assert (absent.code, absent.out) == (1, "")
    assert absent.err.startswith("error: there is no port 'host9:0:0'; there are: host0:0:0")


def test_what_the_controller_refuses_is_told_in_its_own_words(opus: Opus) -> None:
    refused = opus("describe", "job", "nobody")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(
        "error: GET /api/v1/jobs/nobody was refused (404 unknown-job): there is no job"
    )


def test_lists_are_read_page_by_page_to_their_end(
    opus: Opus, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_controller, "PAGE_ITEMS", 3)
    assert opus("get", "ports", "-o", "json").json == world.get("/ports?limit=500")
    assert len(world.get("/ports?limit=3")["ports"]) == 3


def test_a_job_is_described_with_its_ranks_what_it_waits_for_and_what_it_holds(opus: Opus) -> None:
    shown = opus("describe", "job", JOB)
    assert shown.code == 0
    text = [" ".join(line.split()) for line in shown.lines]
    assert "Dimensions: pp 2 x dp 2" in text
    assert "Topology: rail0: 1-" in text
    ranks, waiting, held = (text.index(f"{title}:") for title in ("Ranks", "Waiting", "Held"))
    assert text[ranks + 2].startswith("0 host0 0 0 1 1")
    assert text[waiting + 2].startswith("pp-0:0-2[0>2]#0 complete 0, 2 - locked: ")
    assert text[waiting + 3].startswith("dp-1#0 declared 2 3 members-missing: ranks 3 have not arrived")
    assert [line.split()[:2] for line in text[held + 2 :]] == [["0", "dp-0#0"], ["1", "dp-0#0"]]


def test_a_rail_is_described_with_what_is_up_what_is_wanted_and_who_holds_it(opus: Opus) -> None:
    text = [" ".join(line.split()) for line in opus("describe", "rail", "rail0").lines]
    assert "Cross-connects: 1->2, 2->1" in text
    observed, desired, held = (text.index(f"{title}:") for title in ("Observed", "Desired", "Held"))
    assert text[observed + 2] == "host0:0:1--host1:0:0 rail0 train 1 live"
    assert text[desired + 2] == "host0:0:1--host2:0:0"
    assert len(text[held + 2 :]) == 2


def test_a_lock_is_described_with_who_waits_for_it(opus: Opus) -> None:
    text = [" ".join(line.split()) for line in opus("describe", "lock", "train.1.1.1").lines]
    assert "Held by: rank 1 of job train, incarnation 1" in text
    assert "Operation: dp-0#0" in text
    assert text[text.index("Waiting for it:") + 2].startswith("pp-0:0-2[0>2]#0 complete")


def test_an_intent_is_described_with_why_it_waits_and_what_is_in_its_way(opus: Opus) -> None:
    text = [" ".join(line.split()) for line in opus("describe", "intent", "train/1/pp-0:0-2[0>2]#0").lines]
    assert "Operation: pp-0:0-2[0>2]#0" in text
    assert [line for line in text if line.startswith("Waits because: locked: position 1 of ocs0")]
    assert [line.split()[:2] for line in text[text.index("Held in its way:") + 2 :]] == [
        ["0", "dp-0#0"],
        ["1", "dp-0#0"],
    ]


def test_a_simulation_is_listed_and_described_with_its_result_and_who_waits_for_whom(
    opus: Opus, world: World
) -> None:
    def sent(name: str) -> dict[str, str]:
        content = (DATA / MICROBATCHES / name).read_bytes()
        return {"name": name, "content": base64.b64encode(content).decode()}

    inputs = {
        "et": sent("workload_et.tar.xz"),
        "groups": sent("workload.json"),
        "system": sent("system.json"),
        "schedules": sent("schedules.txt.xz"),
    }
    body = {"label": "four", "inputs": inputs, "sweep": {"delays_ms": [10, 50]}}
    name = world.api.post("/simulations", json=body).raise_for_status().json()["id"]
    wait_until(lambda: world.get(f"/simulations/{name}")["state"] == "done", "the sweep is done")
    assert opus("get", "simulations", "-o", "json").json == world.get("/simulations")
    assert opus("describe", "simulation", name, "-o", "json").json == world.get(f"/simulations/{name}")
    listed = [" ".join(line.split()) for line in opus("get", "simulations").lines]
    assert listed[0] == "ID LABEL WHAT STATE PROGRESS CREATED AT FAILURE"
    assert listed[1].startswith(f"{name} four sweep done replaying 2/2 ")
    text = [" ".join(line.split()) for line in opus("describe", "simulation", name).lines]
    assert [line for line in text if line.startswith("peer on-demand 10 936.25 - 1084.472 ")]
    assert "peer on-demand 50 936.25 - cannot finish - -" in text
    cycle = text[text.index("Cannot finish: peer on-demand 50 ms:") + 2 :]
    waits = [line.split()[:2] for line in cycle if line]
    assert [whom for _, whom in waits] == [rank for rank, _ in (*waits[1:], waits[0])]


def test_what_has_no_description_of_its_own_is_shown_field_by_field(opus: Opus) -> None:
    text = [" ".join(line.split()) for line in opus("describe", "port", "host0:0:1").lines]
    assert text == [
        "Port: host0:0:1",
        "Rail: rail0",
        "Switch: ocs0",
        "Position: 1",
        "Job: train",
        "Rank: 0",
        "Circuit: host0:0:1--host1:0:0",
        "Moving: no",
        "Drained: no",
    ]


def test_events_are_filtered_and_come_as_one_json_object_a_line(opus: Opus, world: World) -> None:
    every = world.get("/events?limit=500")["events"]
    grants = [json.loads(line) for line in opus("events", "--kind", "intent.granted", "-o", "json").lines]
    assert grants == [event for event in every if event["kind"] == "intent.granted"]
    assert len(grants) == 1

    later = opus("events", "--since", every[-3]["seq"], "--job", JOB)
    assert later.lines[0].split() == ["SEQ", "AT", "KIND", "JOB", "WHAT"]
    assert [int(line.split()[0]) for line in later.lines[1:]] == [
        event["seq"] for event in every[-2:] if event["job"] == JOB
    ]


def test_events_are_read_page_by_page(opus: Opus, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGE_ITEMS", 2)
    assert opus("get", "events", "-o", "json").json == world.get("/events?limit=500")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize(
    "arguments", [["get", "ports"], ["get", "job", JOB], ["get", "connection", "pp-0:0-2", "--job", JOB]]
)
def test_the_curl_line_gives_what_the_command_gives(opus: Opus, arguments: list[str]) -> None:
    line = opus(*arguments, "--curl").out
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0
    assert without_ages(json.loads(ran.stdout)) == without_ages(opus(*arguments, "-o", "json").json)


def test_the_token_is_sent_and_proxies_of_the_environment_are_not_used(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("all_proxy", f"http://127.0.0.1:{closed_port}")
    with cli_controller.Controller(world.url, tmp_path / "token") as asked:
        assert asked.get("/jobs").body["jobs"][0]["job"] == JOB
        assert asked._http.headers["Authorization"] == "Bearer s3cret"
