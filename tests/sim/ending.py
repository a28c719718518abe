"""How a run ends: nothing goes wrong any more, switches come to rest, all ranks end, nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opus_sdn.intent.changes import JobState
from opus_sdn.reconciler.runtime import Runtime
from tests.intent.virtual_switch import ViolationError
from tests.sim import troubles

if TYPE_CHECKING:
    from tests.sim.world import World

SETTLE_S = 12.0  # commands under way end, pauses end, a controller is there
CONVERGE_S = 45.0  # longer than any pause of a switch
MORE_STEPS_MAX = 3
QUIET_PASSES = 50
PASS_S = 0.02
LOST_HARMLESS = 0.05  # share of messages; with more, silences add up to what a fence minds


def calm(world: World) -> None:
    """Nothing goes wrong any more, and what can be repaired is."""
    world.log("calm")
    world.trouble = False
    world.wake_ups_to_drop = 0
    troubles.mend_store(world)
    world.fleet.unheard.clear()
    for device in world.devices.values():
        device.away = False
    if world.faults.lost > LOST_HARMLESS:
        for run in world.fleet.runs:
            run.lethal = run.lethal or "many messages were lost"
    if world.process is not None and world.process.paused:
        world.process.resume()
        world.turn()


def converge(world: World) -> None:
    """I10: with nothing new, the devices come to rest within the steps that are wanted, and stay so."""
    world.fleet.freeze()
    world.play_for(world.time + SETTLE_S)
    quiet(world, 1, writes=True)
    world.play_for(world.time + SETTLE_S)
    wanted, before = _wanted(_runtime(world)), world.writes
    world.play_for(world.time + CONVERGE_S)
    made = world.writes - before
    if made > wanted + MORE_STEPS_MAX:
        raise ViolationError("I10", f"{made} device steps with nothing new; {wanted} were wanted")
    quiet(world, QUIET_PASSES)
    world.fleet.thaw()


def _wanted(runtime: Runtime) -> int:
    """How many device steps what waits may need at most: each intent one on each of its switches."""
    state = runtime.engine.state
    planned = sum(len(switch.progress) for switch in state.switches.values())
    return planned + sum(
        len({circuit.switch for circuit in intent.connection.circuits if not state.is_up(circuit)})
        for job in state.active.values()
        for intent in job.complete.values()
    )


def quiet(world: World, passes: int, *, writes: bool = False) -> None:
    """Passes of the reconciler in which it reads every switch, and must change none unless `writes`."""
    before = world.writes
    for _ in range(passes):
        runtime = _runtime(world)
        for name, device in world.devices.items():
            runtime.engine.observe(runtime.now(), name, device.core.table)
        for job in runtime.engine.state.active.values():
            runtime.engine.state.touch(job)
        runtime.changed()
        world.play_for(world.time + PASS_S)
    if world.writes > before and not writes:
        raise ViolationError("I10", f"{world.writes - before} device writes with nothing to do")


def _runtime(world: World) -> Runtime:
    process = world.process
    if process is None or process.runtime is None or not process.listens:
        raise ViolationError("stuck", "the controller is not up although nothing goes wrong any more")
    return process.runtime


def check(world: World) -> None:
    """Every rank has ended, with its work done or with a cause; harmless faults have ended nothing."""
    for run in world.fleet.runs:
        # A rank that is done waits some seconds for its farewell to be heard; then its lease decides.
        unheard = any(rank.gone and not rank.bade_farewell and rank.failure is None for rank in run.ranks)
        if not run.well and run.lethal is None and not unheard:
            raise ViolationError("end", f"job {run.name} has failed, and nothing has gone wrong for it")
    if world.books.active or world.witness.active:
        raise ViolationError("end", "operations are under way although every rank has ended")
    if world.witness.violations_total and not world.books.anything_hurt:
        raise ViolationError("I1", f"the witness saw {world.witness.violations}")
    _nothing_is_left(world)


def _nothing_is_left(world: World) -> None:
    """When the last lease is over nothing is held, nothing moves, and the devices are left alone."""
    world.play_for(world.time + 2 * world.books.lease_s)
    quiet(world, QUIET_PASSES)
    snapshot = world.disk.store.snapshot()
    for job in snapshot.jobs:
        run = world.fleet.named(job.job)
        if job.state is JobState.FAILED and run.well and all(rank.bade_farewell for rank in run.ranks):
            raise ViolationError("end", f"job {job.job} has done all its work, and counts as failed: {job}")
        if job.state is JobState.RUNNING:
            raise ViolationError("end", f"job {job.job} still runs, and none of its processes is there")
    if snapshot.locks or snapshot.steps:
        raise ViolationError("end", f"left: locks {snapshot.locks}, steps {snapshot.steps}")
