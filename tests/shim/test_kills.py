"""`kill -9` of the controller under sixteen busy ranks, again and again: no grant is lost, no circuit torn.

How often, says OPUS_KILLS (4; the full figure is 100). The switches and their witness are a process of their
own.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from opus_sdn.demo.controller import Controller
from opus_sdn.fabric_file import generate_fabric
from opus_sdn.intent.model import Grant, Stream
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import OpusJobFailed
from opus_sdn.shim.session import RankSession
from opus_sdn.shim.settings import Address
from opus_sdn.shim.witness_client import WitnessClient
from tests.emulated import emulated_switches
from tests.waiting import wait_until

KILLS = int(os.environ.get("OPUS_KILLS", "4"))
WORLD = 16


class BusyRank:
    """Runs its rings in turn until told to stop: each operation needs another circuit of its one port."""

    def __init__(self, controller: Controller, rank: int, rings: list[tuple[str, str]]) -> None:
        self.rank = rank
        self.failed: list[OpusJobFailed] = []
        self.order: list[tuple[str, int]] = []
        self._rings = rings  # connection and its circuit
        self._witness = WitnessClient(controller.witness_address)
        self._granted: dict[tuple[Stream, int], threading.Event] = {}
        self._stop_at: int | None = None
        port = int(controller.url.rpartition(":")[2])
        self._session = RankSession(
            ControllerClient(Address(False, "127.0.0.1", port)),
            "busy",
            1,
            1,
            rank,
            on_grant=self._take,
            on_failed=self.failed.append,
            on_refused=lambda *refused: self.failed.append(refused),  # type: ignore[arg-type]
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rounds = 0

    def start(self) -> None:
        self._thread.start()

    def stop_after(self, rounds: int) -> None:
        self._stop_at = rounds

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), f"rank {self.rank} is stuck in round {self.rounds}"
        self._session.close()
        self._witness.close()

    def _take(self, grant: Grant) -> None:
        self.order.append((grant.stream.connection, grant.n))
        self._granted[grant.stream, grant.n].set()

    def _run(self) -> None:
        while self._stop_at is None or self.rounds < self._stop_at:
            for connection, circuit in self._rings:
                if self.failed:
                    return
                stream, n = Stream(connection), self.rounds
                granted = self._granted[stream, n] = threading.Event()
                self._session.arrive(stream, n, blocking=True)
                while not granted.wait(0.2):
                    if self.failed:
                        return
                name = f"{connection}#{n}/{self.rank}"
                self._witness.begin(name, [circuit], self.rank)
                self._witness.end(name)
                self._session.release(stream, n)
            self.rounds += 1


def rings_of(controller: Controller) -> dict[int, list[tuple[str, str]]]:
    """Each rank is in two rings of two, whose circuits end on its one port."""
    pairs = {f"a{r}": (r, r + 1) for r in range(0, WORLD, 2)}
    pairs |= {f"b{r}": (r, (r + 1) % WORLD) for r in range(1, WORLD, 2)}
    groups = [{"name": name, "ranks": list(ranks), "dimension": "dp"} for name, ranks in pairs.items()]
    answer = controller.post("/jobs/busy/groups", {"incarnation": 1, "groups": groups})
    found: dict[int, list[tuple[str, str]]] = {rank: [] for rank in range(WORLD)}
    for group in answer["groups"]:
        (circuit,) = group["connection"]["circuits"]
        for rank in pairs[group["name"]]:
            found[rank].append((group["name"], circuit["id"]))
    return {rank: sorted(rings) for rank, rings in found.items()}


def declare(controller: Controller) -> None:
    placement = [{"rank": r, "host": f"host{r}", "slot": 0} for r in range(WORLD)]
    body: dict[str, Any] = {"owner": "me", "nonce": "1", "placement": placement}
    dimensions = [{"name": "dp", "size": WORLD}]
    answer = controller.try_put("/jobs/busy", {**body, "dimensions": dimensions})
    assert answer.status_code == 201, answer.text


def test_sixteen_ranks_go_on_over_kills_of_the_controller(tmp_path: Path) -> None:
    fabric = yaml.safe_load(generate_fabric(hosts=WORLD, gpus_per_host=1, ports_per_gpu=1, delay_ms=1))
    slowest_s = 0.0
    with (
        emulated_switches(fabric, tmp_path) as switches,
        Controller(json.dumps(switches.fabric), tmp_path / "c", witness=switches.witness) as controller,
    ):
        declare(controller)
        rings = rings_of(controller)
        ranks = [BusyRank(controller, rank, rings[rank]) for rank in range(WORLD)]
        for rank in ranks:
            rank.start()
        for _ in range(KILLS):
            before = min(rank.rounds for rank in ranks)
            wait_until(
                lambda least=before + 2: (
                    min(r.rounds for r in ranks) >= least or any(r.failed for r in ranks)
                ),
                "all go on",
            )
            assert not [rank.failed for rank in ranks if rank.failed]
            controller.kill()
            controller.start_again()
            ready_at = time.monotonic()
            last = [rank.rounds for rank in ranks]
            wait_until(
                lambda last=last: (
                    all(r.rounds > n for r, n in zip(ranks, last, strict=True))
                    or any(r.failed for r in ranks)
                ),
                "everybody goes on after the restart",
            )
            slowest_s = max(slowest_s, time.monotonic() - ready_at)
        end = max(rank.rounds for rank in ranks) + 2
        for rank in ranks:
            rank.stop_after(end)
        for rank in ranks:
            rank.join()
        assert not [rank.failed for rank in ranks if rank.failed]
        for rank in ranks:  # every operation was granted once, and to both ends in one order
            assert len(set(rank.order)) == len(rank.order) == 2 * end
        wait_until(lambda: controller.get("/jobs/busy")["state"] == "ended", "all have left")
        assert controller.all("/locks") == []
        report = switches.report()
    assert (report["violations"], report["operations"]) == ([], WORLD * 2 * end)
    logging.getLogger(__name__).info(
        "%d kills, %d operations, slowest restart to progress of all %.2f s",
        *(KILLS, report["operations"], slowest_s),
    )
