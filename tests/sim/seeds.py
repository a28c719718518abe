"""What one seed means: a scenario, its faults, and the run of both."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from opus_sdn.store.base import Store
from opus_sdn.store.memory import MemoryStore
from tests.intent import programs
from tests.intent.offers import honest
from tests.intent.operations import Scenario
from tests.sim.faults import Faults, Kind
from tests.sim.rank import NO_OFFERS, Offers
from tests.sim.world import World

STEPS = 200
NAMED: tuple[Callable[[], Scenario], ...] = (
    programs.c1,
    programs.c2,
    programs.c5a,
    programs.c5b,
    programs.c6,
    programs.c7,
    programs.c12,
    programs.c17,
    programs.async_then_send,
)


def scenario_of(seed: int) -> Scenario:
    """The programs that a seed runs."""
    rng = random.Random(f"scenario {seed}")
    draw = rng.random()
    if draw < 0.3:
        return rng.choice(NAMED)()
    if draw < 0.8:
        return programs.by_chance(seed)
    if draw < 0.9:
        return programs.with_past(programs.by_chance(seed), seed)
    return programs.side_by_side(seed)


def offers_of(seed: int) -> Offers:
    """What its ranks offer: half of the seeds nothing, a quarter what is true, a quarter also what is not."""
    draw = random.Random(f"offers {seed}").random()
    if draw < 0.5:
        return NO_OFFERS
    return Offers(honest) if draw < 0.75 else Offers(honest, seed)


def world_of(
    seed: int,
    *,
    steps: int = STEPS,
    kinds: frozenset[Kind] = frozenset(Kind),
    open_store: Callable[[], Store] = MemoryStore,
    keep_log: bool = False,
) -> World:
    """The world of a seed, not yet run."""
    return World(
        scenario_of(seed),
        seed,
        Faults.drawn(seed, steps, kinds),
        open_store=open_store,
        keep_log=keep_log,
        offers=offers_of(seed),
        replay=f"python -m tests.sim {seed}",
    )


def calm(seed: int) -> World:
    """The same programs with nothing going wrong."""
    faults = replace(Faults.drawn(seed, STEPS), lost=0, copied=0, device=(), moments=())
    return World(scenario_of(seed), seed, faults, offers=replace(offers_of(seed), dream=None))
