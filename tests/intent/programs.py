"""Programs by name, programs by chance, and jobs side by side."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from opus_sdn.intent.fabric import CircuitKind, CrossConnect, Fabric, Port
from opus_sdn.intent.model import GroupSpec, PortChoice, WorldGroup
from tests.intent import schedules
from tests.intent.operations import (
    Collective,
    Op,
    Receive,
    ScaleUp,
    Scenario,
    Send,
    VirtualJob,
    Wait,
)
from tests.intent.worlds import group, make_fabric, make_spec, pairs_between, places


def scenario(
    name: str,
    groups: Sequence[GroupSpec],
    programs: Sequence[Sequence[Op]],
    ports: int = 1,
    kind: CircuitKind = CircuitKind.DUPLEX,
    gpus: int = 1,
    **more: object,
) -> Scenario:
    """One job without declared dimensions, its ranks host by host."""
    ranks = len(programs)
    fabric = make_fabric(-(-ranks // gpus), gpus, ports, kind)
    spec = make_spec(places(ranks, gpus), world_group=WorldGroup.RAIL, **more)
    return Scenario(name, fabric, (VirtualJob(spec, tuple(groups), tuple(map(tuple, programs))),))


def c1() -> Scenario:
    """An irecv posted before two collectives and waited for between them; one port joins both."""
    return scenario(
        "c1",
        [group("ring", 0, 1), group("line", 1, 2)],
        [
            [Collective("ring"), Collective("ring")],
            [Receive(2, "line", "r"), Collective("ring"), Wait("r"), Collective("ring")],
            [Send(1, "line")],
        ],
    )


def c2() -> Scenario:
    """Collectives inside two hosts couple what the rails do not: R, R' and S, S' and Q are ranks 0 to 4."""
    return scenario(
        "c2",
        [
            group("ring", 0, 4),
            group("line", 0, 2),
            group("other", 3, 1),
            group("tp-r", 0, 1, dimension="tp"),
            group("tp-s", 2, 3, dimension="tp"),
        ],
        [
            [Send(2, "line", "s"), Collective("ring"), ScaleUp("tp-r"), Collective("ring")],
            [Receive(3, "other"), ScaleUp("tp-r")],
            [Receive(0, "line"), ScaleUp("tp-s")],
            [ScaleUp("tp-s"), Send(1, "other")],
            [Collective("ring"), Collective("ring")],
        ],
        gpus=2,
    )


def c2_mixed() -> Scenario:
    """One member of a ring is quiet but coupled by its host, the other is closed with a send under way.

    R, R' and S, S' and Q are ranks 0 to 4; each offers two operations, for another reason.
    """
    return scenario(
        "c2 mixed",
        [
            group("ring", 0, 4),
            group("line", 4, 2),
            group("other", 3, 1),
            group("tp-r", 0, 1, dimension="tp"),
            group("tp-s", 2, 3, dimension="tp"),
        ],
        [
            [Collective("ring"), ScaleUp("tp-r"), Collective("ring")],
            [Receive(3, "other"), ScaleUp("tp-r")],
            [Receive(4, "line"), ScaleUp("tp-s")],
            [ScaleUp("tp-s"), Send(1, "other")],
            [Send(2, "line", "s"), Collective("ring"), Collective("ring"), Wait("s")],
        ],
        gpus=2,
    )


def c5a() -> Scenario:
    """One side posts both messages at once, the other one after the other."""
    return scenario(
        "c5a",
        [group("line", 0, 1)],
        [
            [Send(1, "line", "s"), Receive(1, "line", "r"), Wait("s"), Wait("r")],
            [Receive(0, "line"), Send(0, "line")],
        ],
    )


def c5b() -> Scenario:
    """Both sides post both messages, and a ring of one of them completes in between."""
    return scenario(
        "c5b",
        [group("line", 0, 1), group("ring", 1, 2)],
        [
            [Send(1, "line", "s"), Receive(1, "line", "r"), Wait("s"), Wait("r")],
            [
                Collective("ring", "c"),
                Receive(0, "line", "r"),
                Send(0, "line", "s"),
                Wait("r"),
                Wait("s"),
                Wait("c"),
            ],
            [Collective("ring")],
        ],
    )


def c5c(stages: int, ports: int = 2) -> Scenario:
    """Every stage sends to the next one and receives from the one before, around the circle."""
    programs = []
    for rank in range(stages):
        ahead, behind = (rank + 1) % stages, (rank - 1) % stages
        send, receive = Send(ahead, "line", "s"), Receive(behind, "line", "r")
        programs.append([send, receive, Wait("s"), Wait("r")])
    return scenario(f"c5c {stages} {ports}", [group("line", *range(stages), dimension="pp")], programs, ports)


def c6() -> Scenario:
    """Two communicators of the same two ranks over disjoint ports, issued in opposite orders."""
    return scenario(
        "c6",
        [group("x", 0, 1), group("y", 1, 0)],
        [
            [Collective("x", "x"), Collective("y", "y"), Wait("x"), Wait("y")],
            [Collective("y", "y"), Collective("x", "x"), Wait("x"), Wait("y")],
        ],
        ports=2,
    )


def c7() -> Scenario:
    """A message over free ports completes while its receiver still waits for a third party's."""
    return scenario(
        "c7",
        [group("x", 0, 1), group("back", 1, 0), group("third", 1, 2)],
        [
            [Send(1, "back", "s"), Collective("x"), Collective("x"), Wait("s")],
            [
                Receive(2, "third", "third"),
                Receive(0, "back", "r"),
                Collective("x", "x0"),
                Collective("x", "x1"),
                Wait("third"),
                Wait("r"),
                Wait("x1"),
            ],
            [Send(1, "third")],
        ],
        ports=2,
    )


def c12() -> Scenario:
    """Two rings that share a member and a port; each is used more than once."""
    return scenario(
        "c12",
        [group("c", 0, 1), group("d", 1, 2)],
        [
            [Collective("c"), Collective("c")],
            [Collective("c"), Collective("d"), Collective("c"), Collective("d")],
            [Collective("d"), Collective("d")],
        ],
    )


def c17() -> Scenario:
    """The receiver of a message never waits for it, and then needs its port for a ring."""
    return scenario(
        "c17",
        [group("line", 0, 1), group("ring", 1, 2)],
        [
            [Send(1, "line")],
            [Receive(0, "line", "never"), Collective("ring"), Collective("ring")],
            [Collective("ring"), Collective("ring")],
        ],
    )


def c18() -> Scenario:
    """Two rings that both need both rails: whichever rail served one of them first, both have to agree."""
    near, far = (
        [Collective("near", "n"), Collective("far", "f")],
        [Collective("far", "f"), Collective("near", "n")],
    )
    both = [Wait("n"), Wait("f"), Collective("near", "n2"), Collective("far", "f2"), Wait("n2"), Wait("f2")]
    return scenario(
        "c18",
        [group("near", 0, 1, 2, 3), group("far", 2, 3, 4, 5)],
        [
            [Collective("near"), Collective("near")],
            [Collective("near"), Collective("near")],
            [*near, *both],
            [*far, *both],
            [Collective("far"), Collective("far")],
            [Collective("far"), Collective("far")],
        ],
        gpus=2,
    )


def phase_counters() -> Scenario:
    """GPipe with FSDP inside 4 stages x 2 replicas: members of a group have different numbers of phases."""
    return schedules.training(schedules.Shape("gpipe", pp=4, dp=2, batches=2, layers=2))


def async_then_send() -> Scenario:
    """An asynchronous all-reduce, then a send; its receiver joins the all-reduce only afterwards."""
    return scenario(
        "async then send",
        [group("all", 0, 1, 2), group("line", 0, 1)],
        [
            [Collective("all", "a"), Send(1, "line"), Wait("a")],
            [Receive(0, "line"), Collective("all")],
            [Collective("all")],
        ],
        ports=2,
    )


def eager_sends() -> Scenario:
    """Both ranks send, then receive: natively legal for small messages, which go out without a receiver."""
    return scenario(
        "eager sends",
        [group("line", 0, 1)],
        [[Send(1, "line"), Receive(1, "line")], [Send(0, "line"), Receive(0, "line")]],
    )


def stream_wait() -> Scenario:
    """Legal where `wait()` only makes a CUDA stream wait: there the first ring goes out all the same."""
    return scenario(
        "stream wait",
        [group("ring1", 0, 1), group("ring0", 2, 3), group("a", 2, 0), group("b", 1, 3)],
        [
            [Receive(2, "a", "r"), Wait("r"), Collective("ring1")],
            [Collective("ring1"), Send(3, "b")],
            [Collective("ring0"), Send(0, "a")],
            [Receive(1, "b"), Collective("ring0")],
        ],
        ports=2,
    )


def busy_pair(messages: int) -> Scenario:
    """A stream of messages over a pair that is up, and a ring that wants one of its ports."""
    sends = [Send(1, "line", f"m{n}") for n in range(messages)]
    receives = [Receive(0, "line", f"m{n}") for n in range(messages)]
    last = Wait(f"m{messages - 1}")
    return scenario(
        "busy pair",
        [group("line", 0, 1), group("ring", 1, 2)],
        [[*sends, last], [*receives, Collective("ring"), last], [Collective("ring")]],
    )


def by_chance(seed: int) -> Scenario:
    """A random program that is legal: all ranks follow one order of operations, then waits are put off."""
    rng = random.Random(f"program {seed}")
    ranks = rng.randint(3, 5)
    kind = rng.choice(
        (CircuitKind.DUPLEX, CircuitKind.DUPLEX, CircuitKind.BIDIRECTIONAL, CircuitKind.DIRECTED)
    )
    ports = rng.choice((1, 2))
    rings: list[GroupSpec] = []
    for number in range(rng.randint(1, 4)):
        most = 2 if ports == 1 and kind is not CircuitKind.DIRECTED else ranks
        members = rng.sample(range(ranks), rng.randint(2, most))
        rings.append(group(f"ring{number}", *members))
    line = group("line", *rng.sample(range(ranks), ranks), dimension="pp")
    programs: list[list[Op]] = [[] for _ in range(ranks)]
    later: list[list[str]] = [[] for _ in range(ranks)]
    for number in range(rng.randint(6, 14)):
        if rng.random() < 0.5:
            chosen = rng.choice(rings)
            ops: dict[int, Op] = {rank: Collective(chosen.name) for rank in chosen.ranks}
        else:
            source, to = rng.sample(range(ranks), 2)
            ops = {source: Send(to, "line"), to: Receive(source, "line")}
        for rank, op in ops.items():
            _wait_for_some(rng, programs[rank], later[rank])
            handle = f"h{number}" if rng.random() < 0.5 else None
            programs[rank].append(replace(op, handle=handle))
            later[rank] += [handle] if handle else []
    for rank in range(ranks):
        programs[rank] += [Wait(handle) for handle in later[rank] if rng.random() < 0.7]
    spread = rng.choice(list(PortChoice))
    return scenario(f"by chance {seed}", [*rings, line], programs, ports, kind, port_choice=spread)


def _wait_for_some(rng: random.Random, program: list[Op], later: list[str]) -> None:
    for handle in list(later):
        if rng.random() < 0.3:
            later.remove(handle)
            program.append(Wait(handle))


def side_by_side(seed: int, count: int = 2) -> Scenario:
    """Training jobs on disjoint hosts of one fabric, whose rails, and so switches, they share."""
    rng = random.Random(f"two jobs {seed}")
    shapes = [
        replace(schedules.drawn(rng.randrange(10**6)), pp=2, dp=2, tp=1, ports=2, batches=2, steps=1)
        for _ in range(count)
    ]
    jobs = []
    for number, shape in enumerate(shapes):
        placement = places(4, first_host=4 * number)
        spec = make_spec(placement, {"pp": 2, "dp": 2}, f"job{number}", port_choice=shape.port_choice)
        jobs.append(VirtualJob(spec, schedules.groups_of(shape), schedules.lower(shape)))
    name = "two jobs" if count == 2 else f"{count} jobs"
    return Scenario(f"{name} {seed}", make_fabric(4 * count, 1, 2), tuple(jobs))


def lit_by(fabric: Fabric, *ends: tuple[Port, Port]) -> dict[str, frozenset[CrossConnect]]:
    """What the switches hold when exactly these ports are joined."""
    lit: dict[str, frozenset[CrossConnect]] = {}
    for a, b in ends:
        switch, pairs = pairs_between(fabric, a, b)
        lit[switch] = lit.get(switch, frozenset()) | pairs
    return lit


def with_past(base: Scenario, seed: int) -> Scenario:
    """The same, on switches that hold circuits from before, and with an initial topology to be installed."""
    rng = random.Random(f"past {seed}")
    ports = [at.port for at in base.fabric.attachments if at.port.slot == 0]
    rng.shuffle(ports)
    ends = list(zip(ports[::2], ports[1::2], strict=False))[: rng.randint(0, len(ports) // 2)]
    job = base.jobs[0]
    stages = next((d.size for d in job.spec.dimensions if d.name == "pp"), 1)
    topology = "".join(rng.choice("01") for _ in range(stages)) if job.spec.dimensions else None
    job = replace(job, spec=replace(job.spec, initial_topology=topology))
    return replace(
        base, jobs=(job, *base.jobs[1:]), lit=lit_by(base.fabric, *ends), name=f"{base.name}, past {seed}"
    )


def seeded_race() -> Scenario:
    """The ring is up from before when a step for the initial topology, which takes it down, is planned."""
    shape = schedules.Shape(pp=2, dp=2)
    base = schedules.training(shape, initial_topology="00")
    ring = [(Port("h0", 0, 1), Port("h1", 0, 0)), (Port("h2", 0, 1), Port("h3", 0, 0))]
    return replace(base, lit=lit_by(base.fabric, *ring), name="seeded race")
