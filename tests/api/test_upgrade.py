"""A new controller takes over from one of the version before, under ranks whose client is of that one too.

Such a client knows of no sessions: when it hears of a new start it says its open arrivals and unanswered
releases again, and acknowledges its grants as always. A database of that version is at the first schema.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.store import migrate
from tests.api.test_process import start as start  # noqa: PLC0414  # the fixture
from tests.api.world import Controller, controller, fabric, wait_until


class OldRank:
    """A rank as a client of the version before speaks for it."""

    def __init__(self, rank: int, start: int) -> None:
        self.rank = rank
        self.start = start
        self.last_grant = 0
        self.open: list[int] = []
        self.unanswered: list[int] = []  # releases

    def say(self, opus: Controller) -> Any:
        """All that is open or unanswered; again, and to the new start, if there is one."""
        arrivals = [{"connection": "dp", "n": n} for n in self.open]
        releases = [{"connection": "dp", "n": n} for n in self.unanswered]
        body = opus.news(
            self.rank, seen_start=self.start, last_grant=self.last_grant, arrivals=arrivals, releases=releases
        )
        answer = opus.post("/jobs/j/arrivals", body)
        if answer.status_code == 409 and answer.json()["type"].endswith(":stale-start"):
            assert answer.json()["start"] > self.start, "an old client would ask for ever"
            self.start = answer.json()["start"]
            return self.say(opus)
        assert answer.status_code == 200, answer.text
        self.unanswered.clear()
        (mine,) = answer.json()["ranks"]
        for grant in mine["grants"]:
            assert grant["no"] == self.last_grant + 1
            self.last_grant = grant["no"]
            self.open.remove(grant["n"])
        return mine

    def await_grant(self, opus: Controller, no: int) -> None:
        wait_until(lambda: self.say(opus) and self.last_grant == no, f"rank {self.rank} has grant {no}")


def running_job(opus: Controller) -> list[OldRank]:
    """Both ranks hold dp#0. Rank 0 has arrived at dp#1; rank 1 has finished dp#0, which nobody has heard."""
    assert opus.put("/fabric", fabric()).status_code == 201
    opus.declare()
    opus.check_in("dp", "world")
    ranks = [OldRank(rank, opus.address.start) for rank in (0, 1)]
    for rank in ranks:
        rank.open.append(0)
        rank.say(opus)
    for rank in ranks:
        rank.await_grant(opus, 1)
    ranks[0].open.append(1)
    ranks[0].say(opus)
    ranks[1].unanswered.append(0)
    return ranks


def upgraded(folder: Path) -> None:
    """As its operator does it, from what a program of the version before has left."""
    url = f"sqlite:///{folder / 'opus.db'}"
    log = Path(f"{folder / 'opus.db'}-wal")
    left = log.read_bytes() if log.exists() else b""
    migrate.downgrade(url, "0001")
    if left:  # going back has closed the file in order, which a killed program has not
        log.write_bytes(left[:32])
    command = [sys.executable, "-m", "opus_sdn.cli", "db", "upgrade", "--database", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "from revision 0001" in done.stderr


def test_a_job_of_old_clients_goes_on_over_an_upgrade(start: Any, tmp_path: Path) -> None:
    process = start()
    first, second = running_job(process.ready())
    assert process.end(signal.SIGTERM)[0] == 0
    upgraded(tmp_path)
    with controller(tmp_path, durable=True) as opus:
        assert opus.get("/events", kind="job.recovered")["events"][0]["data"]["intact"]
        first.say(opus)
        second.say(opus)
        assert [(lock["rank"], lock["n"]) for lock in opus.get("/locks")["locks"]] == [(0, 0)]
        first.unanswered.append(0)
        second.open.append(1)
        for rank in (first, second):
            rank.say(opus)
        for rank in (first, second):
            rank.await_grant(opus, 2)
        assert opus.get("/jobs/j")["state"] == "running"
        for rank in (first, second):
            rank.unanswered.append(1)
            rank.say(opus)
        assert opus.get("/locks")["locks"] == []


def test_a_job_of_old_clients_ends_with_its_cause_when_records_may_be_missing(
    start: Any, tmp_path: Path
) -> None:
    process = start()
    first, second = running_job(process.ready())
    process.end(signal.SIGKILL)
    upgraded(tmp_path)
    with controller(tmp_path, durable=True) as opus:
        assert not opus.get("/events", kind="job.recovered")["events"][0]["data"]["intact"]
        told = first.say(opus)
        wait_until(lambda: first.say(opus)["failure"], "it is told")
        told = second.say(opus)
        assert told["failure"]["type"] == "urn:opus-sdn:problem:controller-restarted"
        assert "clients of an earlier version" in told["failure"]["detail"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_old_clients_go_on_over_a_restart_of_the_same_version_only_when_it_was_in_order(
    start: Any, number: int
) -> None:
    process = start()
    first, second = running_job(process.ready())
    process.end(number)
    opus = start().ready()
    first.say(opus)
    second.say(opus)
    if number == signal.SIGTERM:
        assert opus.get("/jobs/j")["state"] == "running"
    else:
        wait_until(lambda: opus.get("/jobs/j")["state"] == "failed", "it may lack something")
