"""What operators tell from the command line, and see in its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from opus_sdn.api.server import running
from opus_sdn.fabric_file import generate_fabric
from opus_sdn.settings import load_settings
from tests.cli.conftest import Opus


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A controller with four hosts, named to the command line by the environment."""
    fabric = tmp_path / "fabric.yaml"
    fabric.write_text(generate_fabric(hosts=4, gpus_per_host=1, delay_ms=0))
    settings = load_settings(
        port=0, fabric_file=fabric, database=f"sqlite:///{tmp_path}/opus.db", runs_dir=tmp_path / "runs"
    )
    with running(settings) as address:
        monkeypatch.setenv("OPUS_CONTROLLER", address.url)
        yield address.url


def declare(url: str, name: str, hosts: tuple[int, ...], **more: object) -> httpx.Response:
    body = {
        "owner": "anna",
        "nonce": name,
        "placement": [{"rank": rank, "host": f"host{host}", "slot": 0} for rank, host in enumerate(hosts)],
        "dimensions": [{"name": "dp", "size": len(hosts)}],
        **more,
    }
    return httpx.put(f"{url}/api/v1/jobs/{name}", json=body, trust_env=False)


def test_a_port_is_drained_and_undrained_with_the_operators_name_on_it(url: str, opus: Opus) -> None:
    drained = opus("drain", "host0:0:0", "--by", "anna", "-m", "dirty connector")
    assert drained.code == 0
    assert "anna" in drained.out
    assert "drained" in opus("get", "port", "host0:0:0").out
    (told,) = opus("get", "directives", "-o", "json").json["directives"]
    assert (told["by"], told["detail"], told["done"]) == ("anna", "dirty connector", True)
    refused = declare(url, "train", (0, 1))
    assert refused.json()["port"] == "host0:0:0"
    assert opus("undrain", "host0:0:0").err == "port host0:0:0 may be used\n"
    assert declare(url, "train", (0, 1)).status_code == 201


def test_a_circuit_is_kept_up_and_dropped(url: str, opus: Opus) -> None:
    kept = opus("circuit", "keep", "host0:0:0", "host1:0:0", "--by", "anna", "-o", "json")
    assert kept.json["kind"] == "circuit"
    name = kept.json["name"]
    assert declare(url, "train", (0, 1)).json()["circuit"] == name
    assert "host0:0:0" in opus("circuit", "keep", "host0:0:0", "host1:0:0").out
    assert opus("circuit", "drop", name).code == 0
    gone = opus("circuit", "drop", name)
    assert (gone.code, "not-found" in gone.err) == (1, True)


def test_a_job_in_the_queue_is_seen_and_withdrawn(url: str, opus: Opus) -> None:
    declare(url, "first", (0, 1))
    assert declare(url, "second", (1, 2), admission="queue").status_code == 202
    shown = opus("get", "queue")
    assert "second" in shown.out
    assert "ports-taken" in shown.out
    assert opus("withdraw", "second").err == "job second waits no longer\n"
    assert opus("get", "queue", "-o", "json").json["queue"] == []
    assert opus("withdraw", "second").code == 1


def test_locks_go_by_force_only(url: str, opus: Opus) -> None:
    made = declare(url, "train", (0, 1)).json()
    group = {"incarnation": 1, "ranks": "world", "dimension": "dp"}
    httpx.put(f"{url}/api/v1/jobs/train/groups/dp", json=group, trust_env=False).raise_for_status()
    for rank in (0, 1):
        news = {"rank": rank, "last_grant": 0, "arrivals": [{"connection": "dp", "n": 0}]}
        body = {"incarnation": 1, "seen_start": made["start"], "wait_s": 10 * rank, "ranks": [news]}
        httpx.post(f"{url}/api/v1/jobs/train/arrivals", json=body, trust_env=False, timeout=30)
    lock = opus("get", "locks", "-o", "json").json["locks"][0]["id"]
    refused = opus("release", lock)
    assert (refused.code, "may still transmit" in refused.err) == (1, True)
    assert "409 locked" in opus("drain", "host0:0:1").err
    taken = opus("release", lock, "--force", "-o", "json")
    assert [each["rank"] for each in taken.json["released"]] == [int(lock[-1])]
    rest = opus("release", "--job", "train", "--force", "-m", "unplugged")
    assert (rest.code, "dp" in rest.out) == (0, True)
    assert opus("get", "locks", "-o", "json").json["locks"] == []


@pytest.mark.parametrize("arguments", [(), ("a.1.1.0", "--job", "a"), ("a.1.1.0", "--rank", 1)], ids=str)
def test_which_locks_to_release_is_said_in_one_way(opus: Opus, arguments: tuple[object, ...]) -> None:
    wrong = opus("release", *arguments)
    assert (wrong.code, "give one of them" in wrong.err) == (2, True)


def test_a_change_is_looked_at_before_it_is_made(url: str, opus: Opus) -> None:
    seen = opus("plan", "circuit", "host0:0:0", "host1:0:0", "--by", "anna")
    assert seen.code == 0
    assert "0->2, 2->0" in seen.out
    assert "nothing was changed" in seen.err
    name = opus("plan", "drain", "host3:0:0", "-o", "json").json["id"]
    assert "was applied" in opus("plan", "apply", name).err
    assert "was applied" in opus("plan", "circuit", "host0:0:0", "host1:0:0", "--apply").err
    kinds = [each["kind"] for each in opus("get", "directives", "-o", "json").json["directives"]]
    assert kinds == ["circuit", "drain"]
    refused = opus("plan", "drain", "host1:0:0", "--apply")
    assert (refused.code, "it would be refused: port host1:0:0 has the circuit" in refused.err) == (1, True)
    assert "409 stale-plan" in opus("plan", "apply", name).err
    rows = [" ".join(line.split()) for line in opus("get", "plans").lines]
    assert rows[0].startswith("ID CHANGE BY MADE AT APPLIED AT")
    assert all(words in " ".join(rows) for words in ("circuit host0:0:0 host1:0:0 anna", "drain host3:0:0"))
    assert opus("get", "plan", name, "-o", "json").json["applied_at"] is not None


def test_a_fabric_file_is_looked_at_too(url: str, opus: Opus, tmp_path: Path) -> None:
    larger = tmp_path / "larger.yaml"
    larger.write_text(generate_fabric(hosts=6, gpus_per_host=1, delay_ms=0))
    assert opus("plan", "fabric", larger, "--apply", "-o", "json").json["applied_at"]
    assert len(opus("get", "ports", "-o", "json").json["ports"]) == 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("move",), "CHANGE: is 'move'; known: drain"), (("circuit", "a"), "circuit takes a, b")],
    ids=str,
)
def test_what_cannot_be_planned_is_said(opus: Opus, arguments: tuple[str, ...], said: str) -> None:
    wrong = opus("plan", *arguments)
    assert (wrong.code, said in wrong.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "method", "path"),
    [
        (("drain", "h0:0:0"), "POST", "/ports/h0%3A0%3A0/drain"),
        (("undrain", "h0:0:0"), "POST", "/ports/h0%3A0%3A0/undrain"),
        (("circuit", "keep", "a:0:0", "b:0:0"), "POST", "/circuits"),
        (("circuit", "drop", "a--b"), "DELETE", "/circuits/a--b"),
        (("release", "j.1.1.0", "--force"), "DELETE", "/locks/j.1.1.0"),
        (("withdraw", "j"), "DELETE", "/queue/j"),
        (("plan", "drain", "h0:0:0"), "POST", "/plans"),
        (("plan", "apply", "7-3"), "POST", "/plans/7-3/apply"),
    ],
    ids=str,
)
def test_the_same_as_a_curl_line(opus: Opus, arguments: tuple[str, ...], method: str, path: str) -> None:
    line = opus(*arguments, "--curl").out
    assert f"-X {method}" in line
    assert f"/api/v1{path}" in line
