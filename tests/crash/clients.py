"""Eight clients of a real server, each with the shim's session, who write down what they see."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from opus_sdn.intent.model import Grant, Stream
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.session import RankSession
from opus_sdn.shim.settings import Address
from tests.api.world import controller, fabric, job
from tests.crash.history import Kind, Observation, Recorder

CLIENTS = 8
WINDOW = 3  # operations that a client has open or holds at once
HOLD_S = (0.0, 0.0005, 0.001, 0.002, 0.03)  # now and then longer than it takes to re-point a switch
# Pairs around a circle, whose circuits meet at each client's one port; the first two also have a second group
# that shares their circuit, and so may be held together with the first.
MEMBERS: dict[str, tuple[int, ...]] = {f"g{r}": (r, (r + 1) % CLIENTS) for r in range(CLIENTS)} | {
    "x0": (0, 1)
}


class Client:
    """One rank: says that it arrives at operations in the order it is given, and finishes them in order."""

    def __init__(
        self, rank: int, port: int, plan: Sequence[str], recorder: Recorder, patience_s: float
    ) -> None:
        self.rank = rank
        self.stuck = False
        self._plan = plan
        self._recorder = recorder
        self._patience_s = patience_s
        self._rng = random.Random(rank)
        self._grants: queue.Queue[Grant] = queue.Queue()
        self._failed = threading.Event()
        self._session = RankSession(
            ControllerClient(Address(False, "127.0.0.1", port)),
            "j",
            1,
            1,
            rank,
            on_grant=self._granted,
            on_failed=lambda _: self._failed.set(),
            on_refused=lambda *_: self._failed.set(),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the plan, or until it is stuck."""
        self._thread.join()
        self._session.close(0.5 if self.stuck else 3.0)

    def _granted(self, grant: Grant) -> None:
        self._recorder.note(self.rank, Kind.GRANTED, grant.stream.connection, grant.n, grant.no)
        self._grants.put(grant)

    def _run(self) -> None:
        counts: dict[str, int] = {}
        outstanding = 0
        for name in (*self._plan, *[None] * WINDOW):
            while outstanding >= WINDOW or (name is None and outstanding):
                if not self._finish_one():
                    self.stuck = True
                    return
                outstanding -= 1
            if name is not None and not self._failed.is_set():
                n = counts[name] = counts.get(name, -1) + 1
                self._recorder.note(self.rank, Kind.ARRIVED, name, n)
                self._session.arrive(Stream(name), n)
                outstanding += 1

    def _finish_one(self) -> bool:
        give_up_at = time.monotonic() + self._patience_s
        while not self._failed.is_set() and time.monotonic() < give_up_at:
            try:
                grant = self._grants.get(timeout=0.1)
            except queue.Empty:
                continue
            time.sleep(self._rng.choice(HOLD_S))
            self._recorder.note(self.rank, Kind.RELEASED, grant.stream.connection, grant.n)
            self._session.release(grant.stream, grant.n)
            return True
        return False


def plans(seed: int, operations: int) -> list[list[str]]:
    """Each client's share of one random order of operations: so no programs wait for each other."""
    rng = random.Random(f"history {seed}")
    order = [rng.choice(sorted(MEMBERS)) for _ in range(operations)]
    return [[name for name in order if rank in MEMBERS[name]] for rank in range(CLIENTS)]


def play(
    folder: Path, seed: int, operations: int, *, patience_s: float = 60.0
) -> tuple[list[Observation], dict[str, dict[str, str]], bool]:
    """A run against a server of its own: what was seen, each stream's ports, whether anybody was stuck."""
    recorder = Recorder()
    declared = fabric(hosts=CLIENTS, ports_per_gpu=1, delay_ms=0.5)
    with controller(folder, declared=declared, durable=True) as opus:
        assert opus.put("/jobs/j", job(CLIENTS)).status_code == 201
        circuits: dict[str, dict[str, str]] = {}
        for name, ranks in MEMBERS.items():
            body = {"incarnation": 1, "ranks": list(ranks), "dimension": "dp", "ordinal": int(name == "x0")}
            answer = opus.put(f"/jobs/j/groups/{name}", body).json()
            ends = [circuit["id"].split("--") for circuit in answer["connection"]["circuits"]]
            circuits[name] = {one: other for a, b in ends for one, other in ((a, b), (b, a))}
        clients = [
            Client(rank, opus.address.port, plan, recorder, patience_s)
            for rank, plan in enumerate(plans(seed, operations))
        ]
        for client in clients:
            client.join()
    return recorder.observations, circuits, any(client.stuck for client in clients)
