"""The controller dies at one chosen point: before or after one commit, or one call of a switch's driver.

The points are found by running a scenario once and counting them: the store and the drivers that the
production controller is given count, nothing in it does. The world is that of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from opus_sdn.store.base import Store
from tests.intent import programs, schedules
from tests.intent.operations import Scenario
from tests.intent.virtual_switch import ViolationError
from tests.sim.faults import Faults
from tests.sim.world import World

POINTS = ("before a commit", "after a commit", "before a driver call", "after a driver call")
CONVERGED_S = 5.0  # after the restart nothing of the start before is left to be settled
STEP_DEADLINE_S = 2.0
QUIET = Faults(steps=400)

SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "two rings that share a port": programs.c12,
    "a stream of messages and a ring": lambda: programs.busy_pair(4),
    "a pipeline with replicas": lambda: schedules.training(schedules.Shape(pp=2, dp=2)),
    "rings over two rails": programs.c18,
    "an initial topology": programs.seeded_race,
}


@dataclass(frozen=True, slots=True)
class Point:
    """The n-th time, from 1, that a run of a scenario comes to a point of this kind."""

    scenario: str
    kind: str
    n: int


def points_of(scenario: str, open_store: Callable[[], Store]) -> list[Point]:
    """All points of a scenario, start and end of the controller's life included."""
    world = _world(scenario, open_store)
    world.run()
    return [Point(scenario, kind, n) for kind in POINTS for n in range(1, world.points[kind] + 1)]


def die_at(point: Point, open_store: Callable[[], Store]) -> World:
    """Run the scenario with the controller dying there once; ViolationError when anything is lost by it.

    Not all runs of a scenario that was cut once come to all points again; those then end undisturbed.
    """
    world = _world(point.scenario, open_store)
    world.replay = f"die_at({point})"
    world.die_at = (point.kind, point.n)

    def restarted() -> None:
        newest = world.disk.store.snapshot().last_step
        world.after(CONVERGED_S, lambda: _require_settled(world, newest))

    world.on_restart = restarted
    return world.run()


def _world(scenario: str, open_store: Callable[[], Store]) -> World:
    world = World(
        SCENARIOS[scenario](), 1, replace(QUIET), open_store=open_store, step_deadline_s=STEP_DEADLINE_S
    )
    world.watching_points = True
    return world


def _require_settled(world: World, newest: int) -> None:
    """All ranks have said what they hold, and every step up to the newest one has been settled."""
    runtime = world.process.runtime if world.process is not None else None
    if runtime is None:
        raise ViolationError("restart", f"not up {CONVERGED_S:g} s after the restart")
    engine = runtime.engine
    waiting = {name: sorted(job.awaited) for name, job in engine.state.jobs.items() if job.awaited}
    unsettled = [step.id for name in world.devices for step in engine.unsettled(name) if step.id <= newest]
    if waiting or unsettled:
        raise ViolationError(
            "restart", f"{CONVERGED_S:g} s after the restart: ranks {waiting} not heard, steps {unsettled}"
        )
