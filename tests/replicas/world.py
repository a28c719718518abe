"""Replicas as real processes on one real PostgreSQL and one shared switch, and ranks that ask on and on."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from opus_sdn.drivers.witness import TrafficWitness
from opus_sdn.fabric_file import generate_fabric, parse_fabric
from opus_sdn.intent.model import Grant, Stream
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import ControllerError, OpusJobFailed
from opus_sdn.shim.session import RankSession
from opus_sdn.shim.settings import Address
from opus_sdn.shim.wire import connection_path, job_path, read_circuits, read_job
from tests.postgres import PostgresServer
from tests.replicas.switch import SharedSwitch

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
TTL_S = 3.0
STEP_DEADLINE_S = 2.0
FAILOVER_S = 2 * TTL_S + STEP_DEADLINE_S
HOSTS = 4
GROUPS = {"dp-0": (0, 1), "dp-1": (2, 3), "pp-0": (0, 2), "pp-1": (1, 3)}
# Every rank's operations, again and again: each turn from one dimension to the other re-points the switch.
RINGS = {rank: name for name, ranks in GROUPS.items() if name.startswith("dp") for rank in ranks}
PAIRS = {rank: name for name, ranks in GROUPS.items() if name.startswith("pp") for rank in ranks}


class Replica:
    """One controller process."""

    def __init__(self, folder: Path, settings: dict[str, Any], socket: Path) -> None:
        folder.mkdir()
        self._ready = folder / "ready.json"
        self._log = (folder / "log").open("wb")
        self.log = folder / "log"
        settings = {**settings, "runs_dir": str(folder / "runs")}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.replicas.process",
                json.dumps(settings),
                str(self._ready),
                str(socket),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )
        self._url = ""

    @property
    def url(self) -> str:
        """Where it listens, once it leads or follows."""
        if not self._url:
            until(lambda: self._ready.exists() or self.process.poll() is not None, "a replica is ready")
            assert self.process.poll() is None, self.log.read_text()
            self._url = json.loads(self._ready.read_text())["url"]
        return self._url

    def readiness(self) -> dict[str, Any] | None:
        """What it says about itself; None when it does not answer."""
        try:
            return dict(httpx.get(f"{self.url}/readyz?verbose", trust_env=False, timeout=0.5).json())
        except httpx.HTTPError:
            return None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self) -> None:
        """Kill it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self._log.close()


class Cluster:
    """Replicas by number; those that were killed are started again by `start`."""

    def __init__(self, folder: Path, postgres: PostgresServer, database: str) -> None:
        self._folder = folder
        self.postgres = postgres
        self._starts = 0
        fabric = folder / "fabric.yaml"
        fabric.write_text(generate_fabric(hosts=HOSTS, gpus_per_host=1, delay_ms=5))
        self.fabric = parse_fabric(fabric.read_text(), "fabric").build()
        self.switch = SharedSwitch(self.fabric.switches[0], postgres.folder / f"switch{os.getpid()}")
        self.witness = TrafficWitness(self.fabric, [self.switch.device])
        self._settings = {
            "port": 0,
            "database": database,
            "fabric_file": str(fabric),
            "leader_ttl_s": TTL_S,
            "step_deadline_s": STEP_DEADLINE_S,
        }
        self.replicas: list[Replica] = []

    def start(self, **more: Any) -> Replica:
        """One more replica."""
        self._starts += 1
        replica = Replica(self._folder / f"r{self._starts}", {**self._settings, **more}, self.switch.path)
        self.replicas.append(replica)
        return replica

    def start_again(self, replica: Replica) -> Replica:
        """Another process where one was killed, at the same address: ranks know no other."""
        replica.end()
        self.replicas.remove(replica)
        return self.start(port=httpx.URL(replica.url).port)

    def leader(self, other_than: Replica | None = None, patience_s: float = PATIENCE_S) -> Replica:
        """Who leads and grants, as it says itself."""
        give_up_at = time.monotonic() + patience_s
        while time.monotonic() < give_up_at:
            for replica in self.replicas:
                if replica is not other_than and replica.process.poll() is None:
                    said = replica.readiness()
                    if said is not None and said.get("leads") and said.get("ready"):
                        return replica
            time.sleep(0.02)
        logs = "\n".join(f"{r.url}:\n{r.log.read_text()[-3000:]}" for r in self.replicas)
        raise AssertionError(f"nobody leads after {patience_s:g} s\n{logs}")

    def client(self) -> ControllerClient:
        """A client that knows all replicas."""
        addresses = [_address(replica.url) for replica in self.replicas]
        return ControllerClient(addresses[0], others=tuple(addresses[1:]))

    def close(self) -> None:
        """End everything."""
        for replica in self.replicas:
            replica.end()
        self.switch.close()


class Job:
    """Ranks in threads of this process that do one operation after the other until they are stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client = cluster.client()
        body = {
            "owner": "test",
            "nonce": uuid.uuid4().hex,
            "placement": [{"rank": rank, "host": f"host{rank}", "slot": 0} for rank in range(HOSTS)],
            "dimensions": [{"name": "pp", "size": 2}, {"name": "dp", "size": 2}],
        }
        made = read_job(self._client.request("PUT", job_path("j"), body, retry_s=PATIENCE_S))
        groups = [
            {"name": name, "ranks": list(ranks), "dimension": name.partition("-")[0], "ordinal": 0}
            for name, ranks in GROUPS.items()
        ]
        declared = {"incarnation": made.incarnation, "groups": groups}
        self._client.request("POST", job_path("j", "groups"), declared, retry_s=PATIENCE_S)
        self.circuits = {
            connection: read_circuits(
                self._client.request("GET", connection_path("j", connection), retry_s=PATIENCE_S)
            )
            for connection in ("dp-0", "dp-1", "pp-0:0-2", "pp-1:1-3")
        }
        self.turns = [0] * HOSTS
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._ranks = [_Rank(self, cluster, made.incarnation, made.start, rank) for rank in range(HOSTS)]

    def stopped(self) -> bool:
        """Whether the ranks have to end after the turn that all of them have begun."""
        return self._stop.is_set()

    def wait_for_turns(self, more: int) -> None:
        """Until every rank has done so many further turns."""
        wanted = min(self.turns) + more
        until(lambda: min(self.turns) >= wanted or bool(self.errors), f"{more} turns of every rank")
        assert [repr(error) for error in self.errors] == []

    def end(self) -> None:
        """End all ranks, each as it is: what they hear of each other's end is no error."""
        assert [repr(error) for error in self.errors] == []
        self._stop.set()
        for rank in self._ranks:
            rank.end()


class _Rank:
    def __init__(self, job: Job, cluster: Cluster, incarnation: int, start: int, rank: int) -> None:
        self._job = job
        self._cluster = cluster
        self._rank = rank
        self._heard: queue.SimpleQueue[Grant | Exception | None] = queue.SimpleQueue()
        self._session = RankSession(
            cluster.client(),
            "j",
            incarnation,
            start,
            rank,
            on_grant=self._heard.put,
            on_failed=self._heard.put,
            on_refused=self._refused,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._heard.put(None)
        self._thread.join(PATIENCE_S)
        self._session.close(0.5)

    def _run(self) -> None:
        pair = PAIRS[self._rank]
        first, second = GROUPS[pair]
        name = f"{pair}:{first}-{second}"
        try:
            for turn in range(1_000_000):
                for stream in (Stream(RINGS[self._rank]), Stream(name, first, second)):
                    if self._job.stopped():
                        return
                    self._perform(stream, turn)
                self._job.turns[self._rank] += 1
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001  # told to the test's thread
            if not self._job.stopped():
                self._job.errors.append(error)

    def _perform(self, stream: Stream, n: int) -> None:
        self._session.arrive(stream, n, blocking=True)
        heard = self._heard.get(timeout=PATIENCE_S)
        if heard is None:
            raise StopIteration
        if isinstance(heard, Exception):
            raise heard
        assert (heard.stream, heard.n) == (stream, n), f"rank {self._rank} was granted {heard}"
        key, circuits = f"{stream}#{n}@{self._rank}", self._job.circuits[stream.connection]
        witness, do = self._cluster.witness, self._cluster.switch.do
        do(lambda: witness.begin(key, circuits, self._rank))
        time.sleep(0.002)
        do(lambda: witness.end(key))
        self._session.release(stream, n)

    def _refused(self, stream: Stream, n: int, error: ControllerError) -> None:
        self._heard.put(AssertionError(f"{stream}#{n} was refused: {error}"))


@dataclass(frozen=True, slots=True)
class Failover:
    """How the leader ended, and how long it took until another one, or itself, granted."""

    how: str
    took_s: float


def stale_operations(cluster: Cluster) -> list[str]:
    """Requests that reached the device with an epoch below one that it had seen before."""
    found, newest = [], 0
    for operation in cluster.switch.operations():
        if operation.epoch < newest:
            found.append(f"{operation} after epoch {newest}")
        newest = max(newest, operation.epoch)
    return found


def until(done: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    give_up_at = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < give_up_at, f"did not happen in {patience_s:g} s: {what}"
        time.sleep(0.01)


@contextmanager
def cluster_of(folder: Path, postgres: PostgresServer, database: str, count: int) -> Iterator[Cluster]:
    """So many replicas, of which one leads."""
    cluster = Cluster(folder, postgres, database)
    try:
        for _ in range(count):
            cluster.start()
        for replica in cluster.replicas:
            assert replica.url
        yield cluster
    finally:
        for replica in cluster.replicas:
            replica.signal(signal.SIGCONT)
        cluster.close()


def _address(url: str) -> Address:
    parts = httpx.URL(url)
    assert parts.port is not None
    return Address(False, parts.host, parts.port)


__all__ = ["Failover", "Job", "OpusJobFailed", "cluster_of", "stale_operations", "until"]
