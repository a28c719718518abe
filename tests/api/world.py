"""A running controller on loopback, and ranks that speak to it as a shim does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from opus_sdn.api.server import Address, running
from opus_sdn.settings import Settings
from opus_sdn.store.base import Store
from opus_sdn.store.memory import MemoryStore

PATIENCE_S = 20.0  # longest wait for something that happens within milliseconds on an idle machine
PREFIX = "/api/v1"


def fabric(*, hosts: int = 2, delay_ms: float = 0, ports_per_gpu: int = 2, slots: int = 1) -> dict[str, Any]:
    """All hosts on one emulated switch; rail i joins slot i."""
    ports = hosts * ports_per_gpu
    return {
        "version": 1,
        "hosts": [f"h{i}" for i in range(hosts)],
        "gpus_per_host": slots,
        "ports_per_gpu": ports_per_gpu,
        "circuit": "duplex",
        "switches": [
            {
                "name": "ocs0",
                "driver": "emulated",
                "size": ports * slots,
                "layout": "sided",
                "options": {"delay_ms": delay_ms},
            }
        ],
        "rails": [
            {"name": f"rail{i}", "slots": [i], "switch": "ocs0", "first_port": i * ports}
            for i in range(slots)
        ],
    }


def job(world: int = 2, *, nonce: str = "1", dimension: str = "dp", **more: Any) -> dict[str, Any]:
    """One rank on each host."""
    return {
        "owner": "me",
        "nonce": nonce,
        "placement": [{"rank": rank, "host": f"h{rank}", "slot": 0} for rank in range(world)],
        "dimensions": [{"name": dimension, "size": world}],
        **more,
    }


class Controller:
    """A client's view of a controller: requests, and the whole visible state for comparisons."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.http = httpx.Client(base_url=address.url, trust_env=False, timeout=PATIENCE_S + 60)
        self._threads = ThreadPoolExecutor(32)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.http.close()

    def get(self, path: str, **query: Any) -> Any:
        answer = self.http.get(PREFIX + path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put(self, path: str, body: Mapping[str, Any], **headers: str) -> httpx.Response:
        return self.http.put(PREFIX + path, json=body, headers=headers)

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        return self.http.post(PREFIX + path, json=body)

    def declare(self, name: str = "j", **more: Any) -> int:
        """Declare a job; its incarnation."""
        answer = self.put(f"/jobs/{name}", job(**more))
        assert answer.status_code in (200, 201), answer.text
        incarnation = answer.json()["incarnation"]
        assert isinstance(incarnation, int)
        return incarnation

    def check_in(
        self, group: str, ranks: Any, *, name: str = "j", incarnation: int = 1, dimension: str = "dp"
    ) -> Any:
        body = {"incarnation": incarnation, "ranks": ranks, "dimension": dimension}
        answer = self.put(f"/jobs/{name}/groups/{group}", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def news(self, rank: int, *, name: str = "j", incarnation: int = 1, **more: Any) -> dict[str, Any]:
        """One rank's request: `wait_s` and `seen_start` are the request's, all else the rank's."""
        return {
            "incarnation": incarnation,
            "seen_start": more.pop("seen_start", self.address.start),
            "wait_s": more.pop("wait_s", 0),
            "ranks": [{"rank": rank, "last_grant": more.pop("last_grant", 0), **more}],
        }

    def say(self, rank: int, *, name: str = "j", **more: Any) -> dict[str, Any]:
        """Send a rank's news; its part of the answer."""
        answer = self.post(f"/jobs/{name}/arrivals", self.news(rank, **more))
        assert answer.status_code == 200, answer.text
        (mine,) = answer.json()["ranks"]
        assert isinstance(mine, dict)
        return mine

    def arrive(self, rank: int, connection: str, n: int, **more: Any) -> dict[str, Any]:
        """Arrive at one operation."""
        ends = {end: more.pop(end) for end in ("source", "destination") if end in more}
        return self.say(rank, arrivals=[{"connection": connection, "n": n, **ends}], **more)

    def release(self, rank: int, connection: str, n: int, **more: Any) -> dict[str, Any]:
        """Say that one operation has finished."""
        ends = {end: more.pop(end) for end in ("source", "destination") if end in more}
        return self.say(rank, releases=[{"connection": connection, "n": n, **ends}], **more)

    def later(self, what: Any, *args: Any, **more: Any) -> Future[Any]:
        """Do it in another thread; httpx gives each concurrent request a connection of its own."""
        return self._threads.submit(what, *args, **more)

    def everything(self) -> dict[str, Any]:
        """All state that can be read, without what changes by itself."""
        lists = ("rails", "switches", "ports", "circuits", "locks", "intents", "steps")
        state: dict[str, Any] = {name: self.get(f"/{name}", limit=500)[name] for name in lists}
        for lock in state["locks"]:
            del lock["age_ms"]
        state["jobs"] = [self.get(f"/jobs/{each['job']}") for each in self.get("/jobs")["jobs"]]
        for each in state["jobs"]:
            for rank in each["ranks"]:
                del rank["last_heard"]
        state["groups"] = {j["job"]: self.get(f"/jobs/{j['job']}/groups")["groups"] for j in state["jobs"]}
        state["fabric"] = self.http.get(PREFIX + "/fabric").text
        state["events"] = self.get("/events", limit=500)["events"]
        return state


def wait_until(holds: Any, what: str) -> None:
    """Wait for a condition. Fails after a time that only a hang takes."""
    done = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if holds():
            return
        done.wait(0.005)
    raise AssertionError(f"did not happen in {PATIENCE_S} s: {what}")


def settings(folder: Path, **more: Any) -> Settings:
    """Settings of a controller with a database in this folder."""
    return Settings(
        **{"port": 0, "database": f"sqlite:///{folder / 'opus.db'}", "runs_dir": folder / "runs", **more}
    )


@contextmanager
def controller(
    folder: Path,
    *,
    declared: Mapping[str, Any] | None = None,
    store: Store | None = None,
    durable: bool = False,
    open_store: Callable[[], Store] | None = None,
    **more: Any,
) -> Iterator[Controller]:
    """A controller in a thread; `declared` is its fabric, `durable` a real database instead of memory."""
    held = store if store is not None or durable or open_store else MemoryStore()
    with running(settings(folder, **more), store=held, open_store=open_store) as address:
        client = Controller(address)
        try:
            if declared is not None:
                answer = client.put("/fabric", declared)
                assert answer.status_code == 201, answer.text
            yield client
        finally:
            client.close()
