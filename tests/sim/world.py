"""The simulated world: one seed, one order of everything, one log.

A controller (the production one, process by process), its disk, its switches, the network, the ranks, and
what goes wrong. There is one thread and one clock; what happens next is the earliest of all that is due. The
log of what happened is hashed, so that two runs of a seed can be compared.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from opus_sdn.api.fabric_keeper import document_of, store_fabric
from opus_sdn.drivers.emulated import Transition
from opus_sdn.drivers.faults import READ_FAULTS, FaultKind
from opus_sdn.drivers.witness import TrafficWitness
from opus_sdn.intent.changes import Batch
from opus_sdn.intent.fabric import CrossConnect, Switch
from opus_sdn.intent.model import RankKey
from opus_sdn.store.base import Store
from opus_sdn.store.memory import MemoryStore
from tests.intent.operations import Scenario
from tests.intent.virtual_switch import ViolationError
from tests.sim import ending, troubles
from tests.sim.books import Books
from tests.sim.device import SimDevice, SimDriver
from tests.sim.faults import Drawn, Faults
from tests.sim.fleet import Fleet
from tests.sim.places import fabric_spec
from tests.sim.process import Process, Request, settings_of, simulated
from tests.sim.rank import NO_OFFERS, Offers
from tests.sim.store import SimDisk, SimStore

EPOCH = 1_700_000_000.0  # wall-clock seconds at the beginning
LEASE_S, FENCE_S, ABORT_S, STEP_DEADLINE_S = 30.0, 15.0, 5.0, 5.0
EVENTS_MAX = 60_000
END_S_MAX = 1_500.0  # after the faults: what has not ended by then never does
TRACE_KEPT = 60


class StuckError(ViolationError):
    """What should have ended has not."""


class World:
    """One run. `open_store` makes an empty store: the in-memory one unless told otherwise."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        faults: Faults,
        *,
        open_store: Callable[[], Store] = MemoryStore,
        disk: Callable[..., SimDisk] = SimDisk,
        step_deadline_s: float = STEP_DEADLINE_S,
        keep_log: bool = False,
        replay: str = "",
        offers: Offers = NO_OFFERS,
    ) -> None:
        self.scenario, self.seed, self.faults, self.replay = scenario, seed, faults, replay
        self.step_deadline_s = step_deadline_s
        self.rng = random.Random(f"world {scenario.name} {seed}")
        self.time = 0.0
        self.wall_offset = EPOCH
        self.steps = 0
        self.trouble = True
        self.met = Drawn()
        self.trace: deque[str] = deque(maxlen=None if keep_log else TRACE_KEPT)
        self.wake_ups_to_drop = 0
        self.process: Process | None = None
        self.moments = deque(faults.moments)
        self.watching_points = False  # points at which a process may die are counted
        self.points: Counter[str] = Counter()
        self.die_at: tuple[str, int] | None = None
        self.died_at: float | None = None
        self.on_restart: Callable[[], None] | None = None  # told once, after the death at that point
        self._device_faults = dict(faults.device)
        self._hash = hashlib.blake2b(digest_size=16)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._lives: list[Process] = []
        self._waiters: object = None
        fabric = scenario.fabric
        self.devices = {
            switch.name: SimDevice(switch, self.rng, self.now, self.after, self) for switch in fabric.switches
        }
        for name, lit in scenario.lit.items():
            for pair in sorted(lit):
                self.devices[name].core._hold(pair)
        self.witness = TrafficWitness(fabric, [d.core for d in self.devices.values()], clock=self.now)
        self.books = Books(fabric, self.devices, self.now, LEASE_S)
        self.disk = disk(open_store, self.rng, self._committed, self.books.undone)
        self.fleet = Fleet(self, scenario, in_order=self.rng.random() < 0.3, offers=offers)
        self._spec = fabric_spec(fabric)

    # --- the whole run

    def run(self, course: Callable[[World], None] | None = None) -> World:
        """Play the usual course, or this one. ViolationError, with a picture, when an invariant breaks."""
        quiet = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with simulated(self._open_driver):
                (course or World._usual_course)(self)
        except Exception as error:
            error.add_note(self.picture())
            raise
        finally:
            logging.disable(quiet)
            for life in self._lives:
                life.bury()
        return self

    def _usual_course(self) -> None:
        self.begin()
        self.play(lambda: self.steps >= self.faults.steps or self.fleet.over)
        ending.calm(self)
        ending.converge(self)
        self.play(lambda: self.fleet.over, until=self.time + END_S_MAX)
        ending.check(self)

    @property
    def digest(self) -> str:
        """The hash of the log so far."""
        return self._hash.hexdigest()

    def begin(self) -> None:
        """Declare the fabric, start the controller, launch the jobs."""
        document, fabric = document_of(self._spec), self._spec.build()
        self.disk.write(lambda store: store_fabric(store, document, fabric), durable=True)
        self.start_process()
        self.fleet.launch()

    def play(self, over: Callable[[], bool], until: float = float("inf")) -> None:
        """One thing after the other until it is over."""
        while not over():
            if not self.step(until):
                raise StuckError("stuck", f"nothing more happens until {until:.1f} s, and it is not over")

    def play_for(self, until: float) -> None:
        """All that happens until then."""
        while self.step(until):
            pass
        self.time = until

    def step(self, until: float = float("inf")) -> bool:
        """The next thing that happens; False when there is none until then."""
        event = self._heap[0][0] if self._heap else float("inf")
        timer = self.process.next_timer() if self.process is not None else None
        timer = float("inf") if timer is None else timer
        due = min(event, timer)
        if due > until or due == float("inf"):
            return False
        self.time = max(self.time, due)
        self.steps += 1
        if self.steps > EVENTS_MAX:
            raise StuckError("endless", f"more than {EVENTS_MAX} steps")
        if event <= timer:
            heapq.heappop(self._heap)[2]()
        self.turn()
        while self.trouble and self.moments and self.steps >= self.moments[0][0]:
            troubles.strike(self, self.moments.popleft()[1])
            self.turn()
        self.books.after_step()
        return True

    def turn(self) -> None:
        """Let the controller do what it can do now."""
        process = self.process
        if process is None:
            return
        process.turn()
        self._hear_wake_ups()
        if self.process is process and not process.alive:
            self.log("ended by itself", process.number)
            self.process = None
            self.after(0.5, self.start_if_down)

    # --- time and log

    def now(self) -> float:
        """Seconds since the beginning."""
        return self.time

    def wall(self) -> float:
        """The machine's time, which jumps."""
        return self.time + self.wall_offset

    def after(self, pause_s: float, act: Callable[[], None]) -> None:
        """Have something done later."""
        heapq.heappush(self._heap, (self.time + pause_s, next(self._order), act))

    def log(self, *what: object) -> None:
        """One line of history."""
        line = f"{self.time:.6f} {' '.join(map(str, what))}"
        self._hash.update(line.encode())
        self.trace.append(line)

    def jitter(self) -> float:
        """Between a half and one, as the shim's pauses have it."""
        return self.rng.uniform(0.5, 1.0)

    # --- the controller

    def start_process(self) -> None:
        """Start the controller."""
        number = len(self._lives) + 1
        self.log("process", number)
        settings = settings_of(
            lease_s=LEASE_S, fence_s=FENCE_S, abort_s=ABORT_S, step_deadline_s=self.step_deadline_s
        )
        process = Process(number, settings, self._store, self.now, self.wall)
        self._lives.append(process)
        self.process = process
        if self.died_at is not None and self.on_restart is not None:
            restarted, self.on_restart = self.on_restart, None
            restarted()

    def start_if_down(self) -> None:
        """Start the controller unless somebody has."""
        if self.process is None:
            self.start_process()

    def _store(self) -> SimStore:
        return SimStore(self.disk, self.rng, self.after, self._started, self._passing)

    def _started(self, start: int) -> None:
        self.log("start", start, "clean" if self.disk.began_clean else "unclean")
        self.books.term(start, clean=self.disk.began_clean)

    def _hear_wake_ups(self) -> None:
        """Every wake-up of a waiting request passes here, and may be dropped."""
        runtime = self.process.runtime if self.process is not None else None
        if runtime is None or runtime.waiters is self._waiters:
            return
        waiters = self._waiters = runtime.waiters
        wake = waiters.wake

        def wake_some(keys: Any) -> None:
            if self.wake_ups_to_drop:
                self.wake_ups_to_drop -= 1
                self.log("wake-up dropped")
            else:
                wake(keys)

        waiters.wake = wake_some

    def _open_driver(self, switch: Switch) -> SimDriver:
        def meet(call: str) -> FaultKind | None:
            for kind, share in self._device_faults.items() if self.trouble else ():
                if self.rng.random() < share and (call == "apply" or kind in READ_FAULTS):
                    self.met.note(f"device {kind.value}")
                    self.log("device fault", switch.name, call, kind.value)
                    return kind
            return None

        device = self.devices[switch.name]
        return SimDriver(device, self.rng, self.after, meet, self._passing, self.step_deadline_s)

    def _passing(self, point: str) -> bool:
        """The controller is at a point at which it may die; whether it does."""
        if not self.watching_points:
            return False
        self.points[point] += 1
        if (point, self.points[point]) != self.die_at:
            return False
        self.log("dies", point, self.points[point])
        self.die_at = None
        self.died_at = self.time
        troubles.kill(self, at_once=True)
        return True

    def _committed(self, batch: Batch) -> None:
        self.log("commit", batch.id, *(type(change).__name__ for change in batch.changes))
        self.books.committed(batch)

    # --- devices

    def sent(self, device: SimDevice, epoch: int, add: tuple[CrossConnect, ...]) -> None:
        """A command leaves the controller (for `SimDriver`)."""
        self.books.sent(device, epoch, add)

    def commanded(self, device: SimDevice, transition: Transition) -> None:
        """A device has taken a command of the controller (for `SimDevice`)."""
        removed, added = list(map(tuple, transition.remove)), list(map(tuple, transition.add))
        self.log("command", device.name, "epoch", transition.epoch, removed, added)
        self.books.commanded(device, transition)

    def hurt(self, device: SimDevice, positions: set[int]) -> None:
        """Light has gone that nobody of us has taken (for `SimDevice`)."""
        self.log("hurt", device.name, sorted(positions))
        self.books.hurt(device, positions)

    @property
    def writes(self) -> int:
        """Commands that devices have taken."""
        return sum(device.writes for device in self.devices.values())

    # --- the network

    def request(
        self,
        method: str,
        path: str,
        body: bytes,
        reply: Callable[[int, bytes], None],
        broken: Callable[[], None],
        *,
        sure: bool = False,
    ) -> Request:
        """Send one request; it is answered, breaks, or nothing is ever heard of it. A `sure` one is not lost
        or copied on the way.
        """
        request = Request(method, path, body, lambda s, b: self._answer(path, s, b, reply), broken)
        if not sure and self._meets(self.faults.lost):
            self.log("request lost", path)
            return request
        self.after(self.hop_s(), lambda: self._deliver(request))
        if not sure and self._meets(self.faults.copied):
            copy = Request(method, path, body, lambda s, b: None, lambda: None)
            self.after(self.hop_s() * self.rng.choice((1, 3, 300)), lambda: self._deliver(copy, "copy"))
        return request

    def hop_s(self) -> float:
        """How long one message takes."""
        return self.rng.choice(self.faults.delay_s) * self.rng.uniform(0.5, 1.5)

    def _deliver(self, request: Request, what: str = "request") -> None:
        self.log(what, request.method, request.path, short(request.body))
        if self.process is None:
            request.broken()
            return
        if self.process.listens and request.path.endswith("/arrivals"):
            self._note_speech(request)
        self.process.take(request)

    def _note_speech(self, request: Request) -> None:
        fields = json.loads(request.body)
        job = request.path.split("/")[-2]
        for rank in fields["ranks"]:
            key = RankKey(job, fields["incarnation"], rank["rank"])
            self.books.spoke(key, fields["seen_start"])

    def _answer(self, path: str, status: int, body: bytes, reply: Callable[[int, bytes], None]) -> None:
        if self._meets(self.faults.lost):
            self.log("answer lost", path)
        else:
            self.after(self.hop_s(), lambda: reply(status, body))

    def _meets(self, share: float) -> bool:
        return self.trouble and share > 0 and self.rng.random() < share

    # --- for people

    def picture(self) -> str:
        """How to see it again, who waits for whom, what went wrong, and the last of the log."""
        lines = [
            f"replay: {self.replay}" if self.replay else f"scenario {self.scenario.name}, seed {self.seed}",
            f"at step {self.steps}, {self.time:.3f} s; faults met: {self.met.counts}; {self.faults}",
            f"controller: {self._describe_process()}",
            *self.fleet.describe(),
            *(f"held: {held}" for held in self.books.held()),
            *(f"{name} holds {sorted(map(tuple, d.core.table))}" for name, d in self.devices.items()),
        ]
        return "\n".join([*lines, "last of the log:", *self.trace])

    def _describe_process(self) -> str:
        runtime = self.process.runtime if self.process is not None else None
        if self.process is None or runtime is None:
            return "down" if self.process is None else f"process {self.process.number}, not open"
        lines = [f"process {self.process.number}, {runtime.phase}, {runtime.checks()}"]
        for job in runtime.engine.state.jobs.values():
            lines.append(f"  core: {job.spec.name}/{job.incarnation} {job.state} {job.failure}")
            for intent in job.open.values():
                because = job.streams[intent.stream].why_open(intent)
                lines.append(f"    {intent.key} {intent.state}: {because.reason}: {because.detail}")
        return "\n".join(lines)


def short(body: bytes) -> str:
    """A body as the log has it."""
    text = body.decode("utf-8", "replace")
    return text if len(text) < 400 else f"{text[:400]}..."
