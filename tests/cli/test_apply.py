"""Declaring a fabric from the command line: on conditions, dry, twice, and while it is in use."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from opus_sdn.api.server import running
from opus_sdn.cli import apply as cli_apply
from opus_sdn.cli.controller import Controller
from opus_sdn.fabric_file import generate_fabric
from opus_sdn.settings import load_settings
from tests.cli.conftest import Opus


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A controller without a fabric, and its API."""
    settings = load_settings(port=0, database=f"sqlite:///{tmp_path}/opus.db", runs_dir=tmp_path / "runs")
    with running(settings) as address:
        monkeypatch.setenv("OPUS_CONTROLLER", address.url)
        with httpx.Client(base_url=f"{address.url}/api/v1", trust_env=False) as client:
            yield client


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A fabric file of four hosts."""
    return fabric_of(4, tmp_path)


def fabric_of(hosts: int, folder: Path) -> Path:
    path = folder / f"fabric{hosts}.yaml"
    path.write_text(generate_fabric(hosts=hosts, gpus_per_host=1, delay_ms=0))
    return path


def fabric(api: httpx.Client) -> tuple[Any, str | None]:
    answer = api.get("/fabric")
    return (answer.json() if answer.is_success else None), answer.headers.get("etag")


def test_the_first_fabric_is_declared_and_the_same_again_changes_nothing(
    opus: Opus, api: httpx.Client, file: Path
) -> None:
    first = opus("apply", "-f", file, "-o", "json")
    assert first.code == 0
    assert first.json == {
        "applied": True,
        "changed": True,
        "dry_run": False,
        "generation": 1,
        "hosts": 4,
        "ports": 8,
        "rails": ["rail0"],
        "switches": ["ocs0"],
    }
    assert first.err == "the fabric is in force now\n"

    again = opus("apply", "-f", file)
    assert again.code == 0
    assert again.lines[0].split()[:3] == ["CHANGED", "APPLIED", "GENERATION"]
    assert again.lines[1].split()[:3] == ["no", "no", "1"]
    assert again.err == "the fabric was in force already; nothing was changed\n"


def test_a_dry_run_changes_nothing(opus: Opus, api: httpx.Client, file: Path, tmp_path: Path) -> None:
    dry = opus("apply", "-f", file, "--dry-run", "-o", "json")
    assert (dry.code, dry.json["changed"], dry.json["applied"]) == (0, True, False)
    assert fabric(api) == (None, None)

    opus("apply", "-f", file)
    before = fabric(api)
    dry = opus("apply", "-f", fabric_of(6, tmp_path), "--dry-run", "-o", "json")
    assert (dry.code, dry.json["changed"], dry.json["hosts"]) == (0, True, 6)
    assert dry.err == "the fabric would change; nothing was changed by this dry run\n"
    assert opus("apply", "-f", file, "--dry-run").err == "the fabric would stay as it is\n"
    assert fabric(api) == before


def test_a_change_replaces_the_fabric_that_was_looked_at(
    opus: Opus, api: httpx.Client, file: Path, tmp_path: Path
) -> None:
    opus("apply", "-f", file)
    changed = opus("apply", "-f", fabric_of(6, tmp_path), "-o", "json")
    assert (changed.code, changed.json["applied"], changed.json["generation"]) == (0, True, 2)
    assert fabric(api)[0]["hosts"] == ["host[0-5]"]


def test_a_change_is_refused_when_somebody_else_changed_the_fabric_meanwhile(
    opus: Opus, api: httpx.Client, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opus("apply", "-f", file)
    read_tag = cli_apply._etag

    def while_somebody_changes_it(asked: Controller) -> str | None:
        tag = read_tag(asked)
        other = {**api.get("/fabric").json(), "hosts": ["host[0-2]"]}
        assert tag is not None
        api.put("/fabric", json=other, headers={"If-Match": tag}).raise_for_status()
        return tag

    monkeypatch.setattr(cli_apply, "_etag", while_somebody_changes_it)
    refused = opus("apply", "-f", fabric_of(6, tmp_path))
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(
        "error: the fabric was changed by somebody else meanwhile (PUT /api/v1/fabric"
    )
    assert refused.err.endswith("look at it with `opus get fabric`, then apply again\n")
    assert fabric(api)[0]["hosts"] == ["host[0-2]"]


def test_a_faulty_file_is_refused_before_anything_is_asked(
    opus: Opus, tmp_path: Path, closed_port: int
) -> None:
    faulty = tmp_path / "faulty.yaml"
    faulty.write_text("version: 1\nhosts: 3\n")
    refused = opus("apply", "-f", faulty, "--controller", f"http://127.0.0.1:{closed_port}")
    assert refused.code == 1
    assert f"error: {faulty}:2: hosts: is 3; hosts is the list of host names" in refused.err


def test_names_that_a_job_chose_cannot_write_to_the_terminal(
    opus: Opus, api: httpx.Client, file: Path, tmp_path: Path
) -> None:
    opus("apply", "-f", file)
    place = {"rank": 0, "host": "host0", "slot": 0}
    body = {"owner": "eve\x1b[2J[bold]", "nonce": "x", "placement": [place]}
    api.put("/jobs/evil", json=body).raise_for_status()
    assert opus("get", "jobs").lines[1].split()[1] == "eve\\x1b[2J[bold]"
    assert "\x1b" not in opus("describe", "job", "evil").out

    in_use = opus("apply", "-f", fabric_of(6, tmp_path))
    assert in_use.code == 1
    assert "was refused (409 port-in-use): job evil runs, and its rank 0 uses port" in in_use.err


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_curl_lines_declare_the_same_with_the_same_condition(
    opus: Opus, api: httpx.Client, file: Path, tmp_path: Path
) -> None:
    for hosts, generation in ((4, 1), (6, 2)):
        lines = opus("apply", "-f", fabric_of(hosts, tmp_path), "--curl").out
        ran = subprocess.run(["sh", "-c", lines], capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stderr) == (0, "")
        answer = json.loads(ran.stdout)
        assert (answer["hosts"], answer["generation"], answer["applied"]) == (hosts, generation, True)
