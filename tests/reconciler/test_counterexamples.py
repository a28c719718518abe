"""C10 and C11: commands that act after everybody has given them up. Each rule is also left out, and seen to
be missed.

One port of h0 is wanted by two rings: `near` to h1 and `far` to h2, whose circuit is up. The step for `near`
takes that circuit down, 2 s after whoever sent it was told that the answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch
from opus_sdn.drivers.faults import Fault, FaultKind, FaultyDriver
from opus_sdn.intent.changes import Batch, StepPlanned
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.fabric import CrossConnect, Switch
from opus_sdn.intent.model import GroupSpec
from opus_sdn.intent.recovery import KnownStep
from opus_sdn.intent.switches import Step
from opus_sdn.reconciler.worker import SwitchWorker
from tests.drivers.virtual_time import run_virtual
from tests.reconciler.world import SWITCH, World

NEAR = (CrossConnect(1, 2), CrossConnect(2, 1))
FAR = (CrossConnect(1, 4), CrossConnect(4, 1))
LATE_S = 2.0
DEADLINE_S = 3.0


def device() -> EmulatedSwitch:
    """The circuit of `far` is up."""
    return EmulatedSwitch(
        Switch(SWITCH, "emulated", 8, True, (("initial", tuple(tuple(pair) for pair in FAR)),))
    )


def ranks(driver: object) -> World:
    """Three ranks, one on each host."""
    return World(switch=driver, step_deadline_s=DEADLINE_S)  # type: ignore[arg-type]


async def begin(world: World) -> None:
    """Adopt the switch and check in the two rings."""
    await world.start()
    groups = [GroupSpec("near", (0, 1), "dp"), GroupSpec("far", (0, 2), "dp")]
    world.engine.check_in(world.runtime.now(), "job", 1, groups)
    await world.runtime.stored()


async def watch(world: World, switch: EmulatedSwitch, seconds: float) -> None:
    """Time passes; whoever was granted `far` and has not released it finds its circuit there."""
    for _ in range(int(seconds * 10)):
        await asyncio.sleep(0.1)
        if ("far", 0) in world.granted(0):
            assert set(FAR) <= switch.table, "a circuit was taken down under traffic"


def lost_answer() -> None:
    """C11: the driver is told that the answer is lost, and reads the switch: nothing has happened yet."""

    async def main() -> None:
        switch = device()
        driver = FaultyDriver(EmulatedDriver(switch), [Fault(FaultKind.LATE, LATE_S)])
        world = ranks(driver)
        await begin(world)
        world.arrive("near", 0, 0, 1)
        world.runtime._decide()
        world.arrive("far", 0, 0, 2)
        await watch(world, switch, 10)
        assert ("near", 0) in world.granted(0) or ("far", 0) in world.granted(0)

    run_virtual(main)


def earlier_start() -> None:
    """C10: another controller has sent the command, and its successor knows it from the journal."""

    async def main() -> None:
        switch = device()
        old = FaultyDriver(EmulatedDriver(switch), [Fault(FaultKind.LATE, LATE_S)])
        with pytest.raises(Exception, match="no answer"):
            await old.apply(FAR, NEAR, 1)
        world = ranks(EmulatedDriver(switch))
        step = KnownStep(1, SWITCH, 1, FAR, NEAR, ("job/1/near#0",))
        world.store.submit(
            Batch(0, 0.0, (StepPlanned(1, SWITCH, 1, FAR, NEAR, step.causes, step.disturbed),), durable=True)
        )
        world.engine.state.next_step = 2
        world.engine.recover(world.runtime.now(), (), (step,))
        await begin(world)
        world.arrive("far", 0, 0, 2)
        await watch(world, switch, 10)
        assert ("far", 0) in world.granted(0)

    run_virtual(main)


SCENARIOS = pytest.mark.parametrize("play", [earlier_start, lost_answer], ids=["C10", "C11"])


@SCENARIOS
def test_a_command_that_acts_late_takes_no_circuit_from_under_traffic(play: Callable[[], None]) -> None:
    play()


async def _at_once(self: SwitchWorker, step: Step, deadline: float) -> None:
    """The switch is believed as soon as it can be read."""


def _nothing_left(self: Engine, now: float, jobs: object, steps: object) -> tuple[()]:
    """Steps of an earlier start are of no interest."""
    return ()


@pytest.mark.parametrize(
    ("play", "what", "name", "bug"),
    [
        (lost_answer, SwitchWorker, "_until_certain", _at_once),
        (earlier_start, Engine, "recover", _nothing_left),
    ],
    ids=["C11", "C10"],
)
def test_without_the_rule_the_scenario_fails(
    play: Callable[[], None], what: type, name: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what, name, bug)
    with pytest.raises(AssertionError, match="under traffic"):
        play()
