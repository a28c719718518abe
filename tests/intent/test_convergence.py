"""After faults stop: everything that is wanted is made within a few passes, and then the devices rest (I10).

A pass reads every switch, decides, and carries out what was planned. Where nothing is planned because a pause
is not over, time goes on to its end first.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opus_sdn.intent.fabric import CircuitKind, CrossConnect
from opus_sdn.intent.model import Stream
from opus_sdn.intent.planner import SwitchFacts, Want, plan
from opus_sdn.intent.switches import FailureKind, Step
from tests.intent.bench import Bench
from tests.intent.test_planner import FABRICS, circuit
from tests.intent.virtual_switch import VirtualSwitch
from tests.intent.worlds import PATIENT, group, make_fabric, make_spec, places

SEEDS = range(60)
HOSTS = 8
QUIET_PASSES = 50


@dataclass
class Stormy:
    """Eight ranks in a row, a ring between each two neighbours, and a device on which anything may fail."""

    rng: random.Random

    def __post_init__(self) -> None:
        kind = self.rng.choice(list(CircuitKind))
        self.bench = Bench(make_fabric(HOSTS, ports=1, kind=kind), PATIENT)
        (switch,) = self.bench.engine.state.fabric.switches
        self.sides = VirtualSwitch(switch.name, switch.size, switch.sided).sides
        self.name, self.size = switch.name, switch.size
        self.writes = 0
        self.bench.observe()
        rings = [group(f"r{k}", k, k + 1) for k in range(HOSTS - 1)]
        self.bench.job(make_spec(places(HOSTS), {"dp": HOSTS}, deadline_s=1e9), *rings)
        self.next = [0] * (HOSTS - 1)
        self.wanted: set[int] = set()

    # --- faults

    def need(self) -> None:
        """Some rings that nobody waits for or holds are wanted."""
        for k in self.rng.sample(range(HOSTS - 1), 3):
            if k not in self.wanted and k not in self.held():
                self.bench.arrive(Stream(f"r{k}"), self.next[k], k, k + 1)
                self.wanted.add(k)

    def release(self) -> None:
        """Some rings that are held end."""
        for k in sorted(self.held()):
            if self.rng.random() < 0.5:
                self.end(k)

    def end(self, k: int) -> None:
        self.bench.release(Stream(f"r{k}"), self.next[k], k, k + 1)
        self.next[k] += 1
        self.wanted.discard(k)

    def held(self) -> set[int]:
        streams = self.bench.engine.state.jobs["job"].streams
        return {k for k in range(HOSTS - 1) if (s := streams.get(Stream(f"r{k}"))) is not None and s.held}

    def meddle(self) -> None:
        """Somebody else takes a cross-connect down, or makes one where there is room."""
        lit = self.bench.lit[self.name]
        still = set(self.sides(lit)) - self.moving()
        gone = sorted(p for p in lit if not set(self.sides([p])) & self.moving())
        if gone and self.rng.random() < 0.5:
            lit.discard(self.rng.choice(gone))
            return
        pair = CrossConnect(*self.rng.sample(range(self.size), 2))
        if not set(self.sides([pair])) & (still | self.moving() | set(self.sides(lit))):
            lit.add(pair)

    def moving(self) -> set[tuple[str, int]]:
        progress = self.bench.engine.state.switches[self.name].progress.values()
        return {side for p in progress for side in self.sides(p.step.remove + p.step.add)}

    def carry_out(self, step: Step, *, calm: bool) -> None:
        """The device does all of it, or some, or nothing, and says anything about it."""
        self.writes += 1
        lit = self.bench.lit[self.name]
        self.judge(step)
        share = 1.0 if calm else self.rng.choice((0.0, 0.5, 1.0, 1.0))
        lit -= {p for p in step.remove if share == 1.0 or self.rng.random() < share}
        free = [p for p in step.add if not set(self.sides([p])) & set(self.sides(lit))]
        lit |= {p for p in free if share == 1.0 or self.rng.random() < share}
        kind = FailureKind.MISMATCH if share == 1.0 else self.rng.choice(list(FailureKind))
        ok = share == 1.0 or kind is FailureKind.MISMATCH
        self.bench.settle(step, ok=ok, works=False, detail="a fault", kind=kind)

    def judge(self, step: Step) -> None:
        """I1 and I2 of a step, from what the ranks hold and what the device was seen to hold."""
        known = self.bench.engine.state.switches[self.name].matching
        job = self.bench.engine.state.jobs["job"]
        held = {p for k in self.held() for c in job.connection(f"r{k}").circuits for p in c.cross_connects}
        assert not held & set(step.remove), "a circuit under traffic is removed"
        ports = set(range(HOSTS))
        assert all(end in ports for pair in step.remove + step.add for end in pair), "not our port"
        after = self.sides((known - set(step.remove)) | set(step.add))
        assert len(after) == len(set(after)), "a port twice"

    def storm(self) -> None:
        """Forty things that may happen, in any order."""
        bench = self.bench
        for _ in range(40):
            match self.rng.randrange(8):
                case 0 | 1:
                    self.need()
                case 2:
                    self.release()
                case 3:
                    self.meddle()
                case 4:
                    bench.engine.lose_switch(bench.now, self.name, "no route")
                case 5:
                    bench.observe()
                case _:
                    bench.now += self.rng.random()
                    bench.engine.tick(bench.now)
            bench.pump()
            while bench.planned:
                step = bench.start()
                if step is not None:
                    self.carry_out(step, calm=False)
                bench.pump()

    # --- calm

    def one_pass(self) -> None:
        """Read, decide, and do what was decided."""
        bench = self.bench
        bench.observe()
        bench.pump()
        if not bench.planned:
            retry_at = bench.engine.state.switches[self.name].retry_at
            bench.now = max(bench.now + 0.01, retry_at or 0.0)
            bench.engine.tick(bench.now)
            bench.pump()
        for step in [bench.start() for _ in list(bench.planned)]:
            if step is not None:
                self.carry_out(step, calm=True)
        bench.pump()


@pytest.mark.parametrize("seed", SEEDS)
def test_after_faults_stop_everything_is_made_in_few_passes_and_then_the_devices_rest(seed: int) -> None:
    world = Stormy(random.Random(seed))
    world.storm()
    ports = range(HOSTS)
    # What somebody has put on positions that are not ours is theirs to take away; else it may be in the way.
    world.bench.lit[world.name] = {
        p for p in world.bench.lit[world.name] if p.ingress in ports and p.egress in ports
    }
    state = world.bench.engine.state.switches[world.name]
    while world.wanted:
        for k in sorted(world.held() & world.wanted):
            world.end(k)
        open_needs = len(world.wanted)
        if not open_needs:
            break
        before, passes = world.writes, 0
        while not world.held() & world.wanted:
            world.one_pass()
            passes += 1
            assert passes <= world.writes - before + 3, "not converged in time"
    job = world.bench.engine.state.jobs["job"]
    assert not job.waiting
    assert not state.moving
    for _ in range(3):
        world.one_pass()
    before = world.writes
    for _ in range(QUIET_PASSES):
        world.bench.now += 1
        world.one_pass()
    assert world.writes == before, "the device is written to although nobody needs anything"
    assert not any(intent.because for intent in job.waiting)


# --- single plans

pair = st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda ends: ends[0] != ends[1])
table = st.lists(pair, max_size=5)


def matching_of(kind: CircuitKind, pairs: list[tuple[int, int]]) -> set[CrossConnect]:
    """As many of these circuits as fit beside each other."""
    switch = FABRICS[kind].switches[0]
    held: set[CrossConnect] = set()
    used: set[object] = set()
    for i, j in pairs:
        one = circuit(f"{i}-{j}", kind)
        if not used & set(one.terminals):
            used |= set(one.terminals)
            held |= set(one.cross_connects)
    assert len(used) == 2 * len(held) or not switch.sided
    return held


def facts_with(kind: CircuitKind, held: set[CrossConnect]) -> SwitchFacts:
    switch = FABRICS[kind].switches[0]
    holder = {terminal: p for p in held for terminal in switch.terminals_of(p)}
    return SwitchFacts(switch, 1, holder, (), {}, FABRICS[kind].positions("ocs0"))


@settings(max_examples=300)
@given(st.sampled_from(list(CircuitKind)), table, table)
def test_a_plan_does_no_more_than_the_difference_and_asking_again_does_nothing(
    kind: CircuitKind, have: list[tuple[int, int]], want: list[tuple[int, int]]
) -> None:
    held = matching_of(kind, have)
    wanted = matching_of(kind, want)
    circuits = {found.id: found for p in wanted if (found := FABRICS[kind].circuit_of("ocs0", p)) is not None}
    wants = [Want(name, (found,)) for name, found in sorted(circuits.items())]
    made = plan(facts_with(kind, held), wants)
    assert len(made.remove) + len(made.add) <= len(held ^ wanted)
    assert set(made.add) == wanted - held
    needed = {t for p in made.add for t in FABRICS[kind].switches[0].terminals_of(p)}
    in_the_way = {p for p in held if set(FABRICS[kind].switches[0].terminals_of(p)) & needed}
    assert set(made.remove) == in_the_way, "what is in the way, and nothing else"
    after = (held - set(made.remove)) | set(made.add)
    assert after >= wanted
    again = plan(facts_with(kind, after), wants)
    assert (again.remove, again.add, again.causes) == ((), (), ())
