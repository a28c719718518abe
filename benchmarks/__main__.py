"""`make bench`: from the last rank's arrival to the last rank's grant, beside a bare TCP barrier.

Ours: a real `opus serve` with SQLite and the shim's own sessions, on circuits that are up (no device step)
and with a switch of 0 ms that is re-pointed every time. Rounds are interleaved; medians and ratios are shown.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks.tcp_barrier import BarrierClient
from opus_sdn.demo.controller import Controller
from opus_sdn.fabric_file import generate_fabric
from opus_sdn.intent.model import Grant, Stream
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.session import RankSession
from opus_sdn.shim.settings import Address

SIZES = (4, 16, 64)
ROUNDS = 200
WARM_UP = 20


class Ranks:
    """N torch-free ranks in threads of this process, on N hosts, in two rings that exclude each other."""

    def __init__(self, controller: Controller, size: int) -> None:
        self._size = size
        self._granted = threading.Semaphore(0)
        self._next = {"wide": 0, "turned": 0}
        job = f"bench{size}"
        client = ControllerClient(_address(controller))
        made = client.request(
            "PUT",
            f"/api/v1/jobs/{job}",
            {
                "owner": "bench",
                "nonce": str(time.time_ns()),
                "placement": [{"rank": r, "host": f"host{r}", "slot": 0} for r in range(size)],
                "dimensions": [{"name": "dp", "size": size}],
                "world_group": "rail",
            },
        )
        groups = [
            {"name": "wide", "ranks": "world", "dimension": "dp", "ordinal": 0},
            # The other way round: other circuits on the same ports.
            {"name": "turned", "ranks": list(reversed(range(size))), "dimension": "dp", "ordinal": 0},
        ]
        body = {"incarnation": made["incarnation"], "groups": groups}
        client.request("POST", f"/api/v1/jobs/{job}/groups", body)
        self.sessions = [
            RankSession(
                ControllerClient(_address(controller)),
                job,
                made["incarnation"],
                made["start"],
                rank,
                on_grant=self._on_grant,
                on_failed=lambda failure: print(failure, file=sys.stderr),
                on_refused=lambda stream, n, error: print(stream, n, error, file=sys.stderr),
            )
            for rank in range(size)
        ]

    def _on_grant(self, _: Grant) -> None:
        self._granted.release()

    def round(self, connection: str) -> float:
        """One operation of all ranks; seconds from the last arrival to the last grant."""
        stream, n = Stream(connection), self._next[connection]
        self._next[connection] += 1
        for session in self.sessions[:-1]:
            session.arrive(stream, n)
        time.sleep(0.002 + self._size * 2e-4)  # let the others get there: the last one is what is measured
        begin = time.perf_counter()
        self.sessions[-1].arrive(stream, n)
        for _ in self.sessions:
            self._granted.acquire()
        took = time.perf_counter() - begin
        for session in self.sessions:
            session.release(stream, n)
        return took

    def close(self) -> None:
        """Leave the job."""
        for session in self.sessions:
            session.close()


def _address(controller: Controller) -> Address:
    url = urlsplit(controller.url)
    assert url.hostname is not None
    assert url.port is not None
    return Address(False, url.hostname, url.port)


class Limit:
    """The same N participants at the bare TCP barrier."""

    def __init__(self, size: int) -> None:
        command = [sys.executable, "-m", "benchmarks.tcp_barrier", str(size)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        port = int(self._server.stdout.readline())
        self._clients = [BarrierClient(port) for _ in range(size)]

    def round(self) -> float:
        """One barrier; seconds from the last arrival until all have heard."""
        for client in self._clients[:-1]:
            client.arrive()
        time.sleep(0.002)
        begin = time.perf_counter()
        self._clients[-1].arrive()
        for client in self._clients:
            client.wait()
        return time.perf_counter() - begin

    def close(self) -> None:
        """End the server."""
        for client in self._clients:
            client.close()
        self._server.kill()
        self._server.wait()


def measure(size: int, folder: Path) -> dict[str, float]:
    """Medians in milliseconds for one number of ranks."""
    fabric = generate_fabric(hosts=size, gpus_per_host=1, delay_ms=0)
    with Controller(fabric, folder) as controller:
        ranks, limit = Ranks(controller, size), Limit(size)
        kinds: dict[str, Callable[[], float]] = {
            "grant_unchanged_ms": lambda: ranks.round("wide"),
            "limit_ms": limit.round,
        }
        times: dict[str, list[float]] = {kind: [] for kind in (*kinds, "grant_changed_ms")}
        for turn in range(WARM_UP + ROUNDS):
            for kind, run in kinds.items():
                times[kind].append(run())
            if turn % 4 == 3:  # there and back: both rounds move circuits
                times["grant_changed_ms"].append(ranks.round("turned"))
                times["grant_changed_ms"].append(ranks.round("wide"))
        ranks.close()
        limit.close()
    return {kind: round(median(taken[WARM_UP:]) * 1e3, 3) for kind, taken in times.items()}


def main() -> int:
    """Print a line per size, and all of it as JSON on stdout."""
    results = {}
    for size in SIZES:
        print(f"{size} ranks, {ROUNDS} rounds ...", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="opus-bench-") as folder:
            figures = measure(size, Path(folder))
        figures["unchanged_to_limit"] = round(figures["grant_unchanged_ms"] / figures["limit_ms"], 2)
        figures["changed_to_limit"] = round(figures["grant_changed_ms"] / figures["limit_ms"], 2)
        results[size] = figures
        print(f"  {figures}", file=sys.stderr)
    print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
