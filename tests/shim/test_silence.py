"""Silence is not death: no circuit moves under the traffic of a rank that is cut off, or stopped (C15).

Ranks 0 and 1 hold a ring. Rank 1 falls silent in one way or another, its lease runs out, and another job
makes the switch take the ring's circuit down for one of its own. The witness sees who still transmits then.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.shim.watchdog import Watchdog
from opus_sdn.shim.witness_client import WitnessClient
from tests.api.world import Controller, controller, fabric
from tests.waiting import PATIENCE_S, wait_until

LEASE = {"lease_s": 2.4, "fence_s": 1.2, "abort_s": 0.6}
RING = "h0:0:0--h1:0:0"


class LoneRank:
    """A rank's process and the words that it has said."""

    def __init__(self, opus: Controller, rank: int, port: int, watchdog: bool) -> None:
        told = {
            "job": "j",
            "rank": rank,
            "start": opus.address.start,
            "port": port,
            "connection": "dp",
            "circuits": [RING],
            "witness": opus.address.witness,
            "fence_s": LEASE["fence_s"],
            "watchdog": watchdog,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.shim.lone_rank", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def word(self) -> str:
        """The next word; empty when it has ended."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "it says nothing"
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


class Cable:
    """A TCP relay to a port that can be cut: nothing passes any more, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._cut = threading.Event()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut.set()

    def close(self) -> None:
        self._listener.close()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    def _carry(self, a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while data := a.recv(65536):
                if not self._cut.is_set():
                    b.sendall(data)


@contextmanager
def two_ranks(tmp_path: Path, watchdog: bool) -> Iterator[tuple[Controller, list[LoneRank], Cable]]:
    """A controller, two ranks that hold a ring, and the cable between the second one and the controller."""
    with (
        controller(tmp_path, declared=fabric(hosts=3, ports_per_gpu=1), witness=True, **LEASE) as opus,
        ExitStack() as stack,
    ):
        opus.declare()
        circuits = opus.check_in("dp", "world")["connection"]["circuits"]
        assert [circuit["id"] for circuit in circuits] == [RING]
        cable = Cable(opus.address.port)
        stack.callback(cable.close)
        ranks = [LoneRank(opus, 0, opus.address.port, watchdog), LoneRank(opus, 1, cable.port, watchdog)]
        for rank in ranks:
            stack.callback(rank.end)
        assert [rank.word() for rank in ranks] == ["granted", "granted"]
        yield opus, ranks, cable


def another_job_takes_the_port(opus: Controller) -> None:
    """As soon as the controller lets it: ranks on hosts 1 and 2, whose ring needs the port of host 1."""
    places = [{"rank": rank, "host": f"h{1 + rank}", "slot": 0} for rank in (0, 1)]
    wait_until(lambda: opus.get("/jobs/j")["state"] == "failed", "the silence is noticed")
    wait_until(lambda: not opus.get("/locks")["locks"], "the locks are reclaimed")
    assert opus.declare("k", placement=places) == 1
    opus.check_in("dp", "world", name="k")
    for rank in (0, 1):
        opus.arrive(rank, "dp", 0, name="k")
    wait_until(lambda: opus.say(0, name="k")["grants"], "its circuit is made")


def seen_by_the_witness(opus: Controller) -> dict[str, Any]:
    assert opus.address.witness is not None
    client = WitnessClient(opus.address.witness)
    try:
        return client.report()
    finally:
        client.close()


def test_a_rank_that_is_cut_off_stops_by_itself_before_its_circuits_move(tmp_path: Path) -> None:
    with two_ranks(tmp_path, watchdog=True) as (opus, (here, away), cable):
        cable.cut()
        assert away.word() == "controller-unreachable"
        another_job_takes_the_port(opus)
        assert here.word() == "rank-lost"
        assert seen_by_the_witness(opus)["violations"] == []
        assert opus.get("/jobs/j")["failure"]["rank"] == 1


def test_a_rank_that_is_stopped_past_its_lease_is_ended_before_its_circuits_move(tmp_path: Path) -> None:
    with two_ranks(tmp_path, watchdog=True) as (opus, (_, stopped), _):
        os.kill(stopped.process.pid, signal.SIGSTOP)
        another_job_takes_the_port(opus)
        with suppress(ProcessLookupError):
            os.kill(stopped.process.pid, signal.SIGCONT)
        assert stopped.process.wait(PATIENCE_S) == -signal.SIGKILL
        report = seen_by_the_witness(opus)
        assert (report["violations"], report["abandoned"]) == ([], 1)
        assert f"killed process {stopped.process.pid}" in stopped.process.communicate()[1]


def test_without_its_watchdog_a_stopped_rank_transmits_over_what_is_not_its_own(tmp_path: Path) -> None:
    """What the watchdog is for: nothing else can tell a stopped process from a silent one."""
    with two_ranks(tmp_path, watchdog=False) as (opus, (_, stopped), _):
        os.kill(stopped.process.pid, signal.SIGSTOP)
        another_job_takes_the_port(opus)
        (violation,) = seen_by_the_witness(opus)["violations"]
        assert (violation["kind"], violation["ranks"]) == ("change-under-traffic", [1])


def test_all_ranks_cancelled_at_once_leave_nothing_behind(tmp_path: Path) -> None:
    """As a cluster's scheduler does it: every process is gone, and nobody is left to say so."""
    with two_ranks(tmp_path, watchdog=True) as (opus, ranks, _):
        for rank in ranks:
            rank.process.kill()
        another_job_takes_the_port(opus)
        report = seen_by_the_witness(opus)
        assert (report["violations"], report["active"], report["abandoned"]) == ([], 0, 2)
        ended = opus.get("/jobs/j")
        assert ended["failure"]["type"] == "urn:opus-sdn:problem:rank-lost"
        assert all(rank["stopped"] for rank in ended["ranks"])
        assert opus.get("/intents", job="j")["intents"] == []


# --- the watchdog itself

WATCHED = """
import sys, time
from opus_sdn.shim.watchdog import Watchdog
dog = Watchdog.start(0.05)
assert dog is not None
{}
"""


def watched(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WATCHED.format(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_that_does_not_move_its_end_on_is_ended() -> None:
    process = watched("dog.end_at(time.monotonic() + 0.2); time.sleep(60)")
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_process_that_moves_its_end_on_or_rests_goes_on() -> None:
    moves = "[(dog.end_at(time.monotonic() + 5), time.sleep(0.01)) for _ in range(30)]"
    rests = "dog.rest(); time.sleep(0.3); dog.close()"
    process = watched(f"{moves}; {rests}")
    assert process.wait(PATIENCE_S) == 0, process.communicate()


def test_the_watchdog_ends_with_its_process(tmp_path: Path) -> None:
    process = watched("print(dog._process.pid, flush=True); time.sleep(60)")
    assert process.stdout is not None
    dog = int(process.stdout.readline())
    process.kill()
    process.communicate()
    wait_until(lambda: not Path(f"/proc/{dog}").exists() or _is_zombie(dog), "the watchdog has ended")


def _is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.parametrize("missing", [(os, "memfd_create"), (subprocess, "Popen")])
def test_a_machine_without_the_means_has_no_watchdog_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: tuple[Any, str]
) -> None:
    def cannot(*_: object, **__: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(*missing, cannot)
    assert Watchdog.start(1.0) is None
    assert "a stopped rank is not ended" in caplog.text
