"""Programs of the pipeline schedules, with FSDP inside the stages: (pp, dp, tp) meshes, pp outermost.

A schedule is an order of actions for each pipeline rank. `lower` puts the communication in, in the order in
which the actions can run, so that no program can be stuck by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opus_sdn.intent.fabric import CircuitKind, Fabric
from opus_sdn.intent.model import GroupSpec, PortChoice
from tests.intent.operations import Collective, Op, Receive, ScaleUp, Scenario, Send, VirtualJob, Wait
from tests.intent.worlds import group, make_fabric, make_spec, places


@dataclass(frozen=True, slots=True)
class Action:
    """Forward, backward, or the weights' half of a backward pass of one chunk for one microbatch."""

    kind: str  # F, B or W
    chunk: int
    batch: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a program looks like. `ahead`: receives are posted as early as the sender can send."""

    schedule: str = "1f1b"
    pp: int = 2
    dp: int = 2
    tp: int = 1
    batches: int = 2
    layers: int = 1
    reshard: bool = True
    ahead: bool = False
    prefetch: bool = False  # all-gathers are asynchronous, one layer ahead
    ports: int = 2
    port_choice: PortChoice = PortChoice.STANDARD
    one_switch: bool = False
    steps: int = 1

    def rank(self, stage: int, replica: int, slot: int) -> int:
        """Global rank of a mesh coordinate."""
        return (stage * self.dp + replica) * self.tp + slot


Schedule = list[list[Action]]  # by pipeline rank


def gpipe(pp: int, batches: int) -> Schedule:
    """All forward passes, then all backward passes."""
    order = [Action(kind, 0, m) for kind in "FB" for m in range(batches)]
    return [list(order) for _ in range(pp)]


def one_f_one_b(pp: int, batches: int) -> Schedule:
    """A warm-up of pp - rank forward passes, then one backward for one forward."""
    found = []
    for rank in range(pp):
        warm = min(batches, pp - rank)
        order = [Action("F", 0, m) for m in range(warm)]
        for m in range(batches):
            order.append(Action("B", 0, m))
            if warm + m < batches:
                order.append(Action("F", 0, warm + m))
        found.append(order)
    return found


def interleaved(pp: int, batches: int) -> Schedule:
    """Two chunks a rank, stage = chunk * pp + rank; backward passes first, as far as they can run."""
    return _greedy(pp, batches, lambda stage: (stage % pp, stage // pp), "FB", 2 * pp)


def zbv(pp: int, batches: int) -> Schedule:
    """Two chunks a rank, down and up again as a V, with the weights' gradients put off."""
    return _greedy(pp, batches, lambda stage: _v(pp, stage), "FBW", 2 * pp)


def _v(pp: int, stage: int) -> tuple[int, int]:
    return (stage, 0) if stage < pp else (2 * pp - 1 - stage, 1)


def _greedy(
    pp: int, batches: int, place: Callable[[int], tuple[int, int]], kinds: str, in_flight: int
) -> Schedule:
    """Each tick every rank runs the most urgent action that can run: B before F before W."""
    last = 2 * pp - 1
    done: dict[tuple[str, int, int], int] = {}  # kind, stage, batch -> tick
    found: Schedule = [[] for _ in range(pp)]
    todo = [(k, stage, m) for k in "BFW" if k in kinds for m in range(batches) for stage in range(last + 1)]
    tick = 0

    def ready(kind: str, stage: int, batch: int) -> bool:
        if kind == "W":
            need = ("B", stage, batch)
        elif kind == "B":
            need = ("F", stage, batch) if stage == last else ("B", stage + 1, batch)
        else:
            running = sum(1 for k, s, m in done if k == "F" and s == stage and ("B", s, m) not in done)
            if running >= in_flight:
                return False
            if stage == 0:
                return True
            need = ("F", stage - 1, batch)
        return need in done and done[need] < tick

    while todo:
        busy: set[int] = set()
        for item in list(todo):
            kind, stage, batch = item
            rank, chunk = place(stage)
            if rank not in busy and ready(kind, stage, batch):
                busy.add(rank)
                todo.remove(item)
                done[item] = tick
                found[rank].append(Action(kind, chunk, batch))
        tick += 1
    return found


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zbv": zbv,
}


class _Lowering:
    """Turns one schedule into the programs of all ranks."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.programs: list[list[Op]] = [[] for _ in range(shape.pp * shape.dp * shape.tp)]
        self._two_chunks = shape.schedule in ("interleaved", "zbv")
        self.last = (2 * shape.pp if self._two_chunks else shape.pp) - 1
        self._gathered: set[tuple[int, int]] = set()
        self._handles = 0

    def place(self, stage: int) -> tuple[int, int]:
        """Pipeline rank and chunk of a stage."""
        if self.shape.schedule == "zbv":
            return _v(self.shape.pp, stage)
        return stage % self.shape.pp, stage // self.shape.pp

    def step(self, number: int) -> None:
        """One training step: actions in an order in which they can run, the same for all replicas."""
        schedule = SCHEDULES[self.shape.schedule](self.shape.pp, self.shape.batches)
        stage_at = {self.place(stage): stage for stage in range(self.last + 1)}
        self._gathered.clear()
        at = [0] * self.shape.pp
        done: set[tuple[str, int, int]] = set()
        sends: list[list[str]] = [[] for _ in range(self.shape.pp)]
        while any(at[rank] < len(order) for rank, order in enumerate(schedule)):
            before = sum(at)
            for rank, order in enumerate(schedule):
                if at[rank] == len(order):
                    continue
                action = order[at[rank]]
                stage = stage_at[rank, action.chunk]
                if self._need(action.kind, stage, action.batch) - done:
                    continue
                self._act(number, rank, stage, action, order[at[rank] + 1 :], sends)
                done.add((action.kind, stage, action.batch))
                at[rank] += 1
            assert sum(at) > before, "the schedule is stuck by itself"
        for rank, handles in enumerate(sends):
            for handle in handles:
                self._emit(rank, Wait(handle))

    def _need(self, kind: str, stage: int, batch: int) -> set[tuple[str, int, int]]:
        if kind == "F":
            return {("F", stage - 1, batch)} if stage else set()
        if kind == "W":
            return {("B", stage, batch)}
        return {("F", stage, batch)} if stage == self.last else {("B", stage + 1, batch)}

    def _act(
        self,
        number: int,
        rank: int,
        stage: int,
        action: Action,
        later: Sequence[Action],
        sends: list[list[str]],
    ) -> None:
        kind, batch = action.kind, action.batch
        if kind != "W":
            source = stage - 1 if kind == "F" else stage + 1
            self._take(number, rank, source, kind, batch)
            self._compute(rank, action.chunk)
        gradient = "W" if self.shape.schedule == "zbv" else "B"
        if kind == gradient and Action(kind, action.chunk, self.shape.batches - 1) == action:
            for _ in range(self.shape.layers):
                self._collective(rank)
        if kind != "W":
            self._give(number, rank, stage, stage + 1 if kind == "F" else stage - 1, kind, batch, sends)

    def _take(self, number: int, rank: int, source: int, kind: str, batch: int) -> None:
        if not 0 <= source <= self.last or self.place(source)[0] == rank:
            return
        if self.shape.ahead or self._two_chunks:
            self._emit(rank, Wait(f"r{number}.{kind}{source}.{batch}"))
        else:
            self._message(rank, self.place(source)[0], None, receive=True)

    def _give(
        self, number: int, rank: int, stage: int, to: int, kind: str, batch: int, sends: list[list[str]]
    ) -> None:
        if not 0 <= to <= self.last or self.place(to)[0] == rank:
            return
        peer = self.place(to)[0]
        handle = f"s{number}.{kind}{stage}.{batch}"
        self._message(rank, peer, handle)
        sends[rank].append(handle)
        if self.shape.ahead or self._two_chunks:
            self._message(peer, rank, f"r{number}.{kind}{stage}.{batch}", receive=True)

    def _compute(self, rank: int, chunk: int) -> None:
        """Gather the parameters layer by layer, unless they were kept, with tensor parallelism in between."""
        shape = self.shape
        gather = shape.reshard or (rank, chunk) not in self._gathered
        self._gathered.add((rank, chunk))
        ahead: list[str] = []
        for layer in range(shape.layers):
            if gather and shape.prefetch:
                self._handles += 1
                ahead.append(f"g{self._handles}")
                self._collective(rank, ahead[-1])
                if layer:
                    self._emit(rank, Wait(ahead[layer - 1]))
            elif gather:
                self._collective(rank)
            if shape.tp > 1:
                self._scale_up(rank)
        if ahead:
            self._emit(rank, Wait(ahead[-1]))

    def _emit(self, stage: int, op: Op) -> None:
        for replica in range(self.shape.dp):
            for slot in range(self.shape.tp):
                self.programs[self.shape.rank(stage, replica, slot)].append(op)

    def _collective(self, stage: int, handle: str | None = None) -> None:
        for replica in range(self.shape.dp):
            for slot in range(self.shape.tp):
                rank = self.shape.rank(stage, replica, slot)
                self.programs[rank].append(Collective(f"dp{stage}.{slot}", handle))

    def _scale_up(self, stage: int) -> None:
        for replica in range(self.shape.dp):
            for slot in range(self.shape.tp):
                self.programs[self.shape.rank(stage, replica, slot)].append(ScaleUp(f"tp{stage}.{replica}"))

    def _message(self, stage: int, peer: int, handle: str | None, receive: bool = False) -> None:
        for replica in range(self.shape.dp):
            for slot in range(self.shape.tp):
                rank, other = (self.shape.rank(s, replica, slot) for s in (stage, peer))
                name = f"pp{replica}.{slot}"
                op = Receive(other, name, handle) if receive else Send(other, name, handle)
                self.programs[rank].append(op)


def groups_of(shape: Shape) -> tuple[GroupSpec, ...]:
    """The groups of the mesh: pipelines, data-parallel rings and, with tp, one group in each host."""
    found = [
        group(f"pp{d}.{t}", *(shape.rank(s, d, t) for s in range(shape.pp)), dimension="pp")
        for d in range(shape.dp)
        for t in range(shape.tp)
    ]
    found += [
        group(f"dp{s}.{t}", *(shape.rank(s, d, t) for d in range(shape.dp)), dimension="dp")
        for s in range(shape.pp)
        for t in range(shape.tp)
    ]
    if shape.tp > 1:
        found += [
            group(f"tp{s}.{d}", *(shape.rank(s, d, t) for t in range(shape.tp)), dimension="tp")
            for s in range(shape.pp)
            for d in range(shape.dp)
        ]
    return tuple(found)


def lower(shape: Shape) -> tuple[tuple[Op, ...], ...]:
    """The programs of all ranks."""
    lowering = _Lowering(shape)
    for number in range(shape.steps):
        lowering.step(number)
    return tuple(tuple(program) for program in lowering.programs)


def fabric_of(shape: Shape) -> Fabric:
    """One host for each stage and replica."""
    kind = CircuitKind.DUPLEX if shape.ports > 1 or shape.dp <= 2 else CircuitKind.DIRECTED
    return make_fabric(shape.pp * shape.dp, shape.tp, shape.ports, kind, shape.one_switch)


def training(shape: Shape, **more: object) -> Scenario:
    """A training run of that shape alone on its fabric."""
    spec = make_spec(
        places(shape.pp * shape.dp * shape.tp, shape.tp),
        {"pp": shape.pp, "dp": shape.dp, "tp": shape.tp},
        port_choice=shape.port_choice,
        **more,
    )
    return Scenario(str(shape), fabric_of(shape), (VirtualJob(spec, groups_of(shape), lower(shape)),))


def drawn(seed: int) -> Shape:
    """A shape for a seed; larger ones are rarer, so that many runs fit into little time."""
    rng = random.Random(f"shape {seed}")
    pp = rng.choice((2, 2, 2, 3, 4))
    dp = rng.choice((2, 2, 3)) if pp < 4 else 2
    tp = 2 if pp * dp <= 4 and rng.random() < 0.3 else 1
    return Shape(
        schedule=rng.choice(list(SCHEDULES)),
        pp=pp,
        dp=dp,
        tp=tp,
        batches=rng.choice((2, 2, 3, 4)) if pp < 4 else 2,
        layers=rng.choice((1, 1, 2)),
        reshard=rng.random() < 0.6,
        ahead=rng.random() < 0.5,
        prefetch=rng.random() < 0.3,
        ports=rng.choice((1, 2, 2, 4)),
        port_choice=rng.choice(list(PortChoice)),
        one_switch=rng.random() < 0.4,
        steps=2 if pp * dp <= 4 and rng.random() < 0.2 else 1,
    )
