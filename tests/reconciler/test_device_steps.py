"""What the runtime makes of switches that refuse, stay silent, lie, or are slow."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from opus_sdn.drivers.base import AmbiguousError, Observation, TerminalError, TransientError
from opus_sdn.intent.changes import StepMoved, StepState
from opus_sdn.reconciler.backoff import Backoff
from tests.drivers.virtual_time import run_virtual
from tests.reconciler.world import FakeSwitch, HeldStore, World, failing, forever


def gaps(times: list[float]) -> list[float]:
    return [round(later - earlier, 6) for earlier, later in pairwise(times)]


def outcomes(store: HeldStore) -> list[StepState]:
    moves = [c for batch in store.submitted for c in batch.changes if isinstance(c, StepMoved)]
    return [move.state for move in moves if move.state in (StepState.DONE, StepState.FAILED)]


def test_a_step_without_an_answer_is_read_back_after_its_deadline_and_made_again() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch(behave=forever)
        world = await World(store=store, switch=switch, step_deadline_s=2.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(1.9)
        assert len(switch.reads) == 1, "nothing is read before the deadline"
        switch.behave = None
        await asyncio.sleep(0.2)
        assert [round(at, 3) for at in switch.reads[1:2]] == [2.0]
        assert outcomes(store) == [StepState.FAILED, StepState.DONE]
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


def test_ports_of_a_step_that_is_not_read_back_are_up_for_nobody() -> None:
    async def main() -> None:
        switch = FakeSwitch()
        world = await World(switch=switch, step_deadline_s=1.0).start()
        switch.behave = forever
        switch.behave_reading = forever
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(30)
        assert len(switch.reads) > 3, "reading is tried again and again"
        assert len(switch.applies) == 1, "and nothing is started on these ports meanwhile"
        assert world.engine.state.switches["ocs0"].moving
        assert world.granted(0) == []
        switch.behave = switch.behave_reading = None
        await asyncio.sleep(10)
        assert not world.engine.state.switches["ocs0"].moving
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


def test_a_command_whose_answer_was_lost_may_act_until_its_deadline() -> None:
    async def main() -> None:
        switch = FakeSwitch(behave=failing(AmbiguousError("connection reset")))
        world = await World(switch=switch, step_deadline_s=3.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(2.9)
        assert len(switch.reads) > 2, "nothing can be seen of it"
        assert len(switch.applies) == 1, "that it has done nothing yet proves nothing"
        assert world.engine.state.switches["ocs0"].moving
        await asyncio.sleep(0.3)
        assert [round(at, 3) for at in switch.applies[1:]] == [3.05], (
            "the deadline, and a switch's first pause"
        )
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


def test_a_late_effect_of_a_command_whose_answer_was_lost_is_not_waited_for_longer_than_it_takes() -> None:
    async def main() -> None:
        switch = FakeSwitch(behave=failing(AmbiguousError("connection reset")))
        world = await World(switch=switch, step_deadline_s=3.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(0.5)
        (step,) = world.engine.state.switches["ocs0"].progress.values()
        switch.change(step.step.remove, step.step.add)
        assert world.granted(0) == []
        await asyncio.sleep(1.0)
        assert world.granted(0) == [("pair-0", 0)]
        assert len(switch.applies) == 1, "the lost command did it: there is nothing to do again"

    run_virtual(main)


def test_a_switch_that_refuses_is_asked_at_growing_intervals_and_at_once_again_after_a_success() -> None:
    async def main() -> None:
        refusals = [TerminalError("busy")] * 4
        switch = FakeSwitch(behave=failing(*refusals, None, TerminalError("busy")))
        world = await World(switch=switch).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(10)
        assert gaps(switch.applies) == [0.05, 0.1, 0.2, 0.4]
        assert world.granted(0) == [("pair-0", 0)]
        world.release("pair-0", 0, 0, 1)
        world.arrive("pair-1", 0, 1, 2)
        await asyncio.sleep(10)
        assert gaps(switch.applies)[-1:] == [0.05], "after a success the pauses start anew"
        assert world.granted(2) == [("pair-1", 0)]

    run_virtual(main)


def test_a_switch_that_asks_for_time_gets_it() -> None:
    async def main() -> None:
        switch = FakeSwitch(behave=failing(TransientError("locked by another session", retry_after_s=4.0)))
        world = await World(switch=switch).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(10)
        assert gaps(switch.applies) == [4.0]
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


def test_a_switch_that_says_done_and_did_nothing_is_not_asked_in_a_busy_loop_and_not_believed() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch(make=False)
        world = await World(store=store, switch=switch).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(5)
        assert world.granted(0) == []
        assert 5 <= len(switch.applies) <= 8
        assert set(outcomes(store)) == {StepState.FAILED}
        assert "reads back otherwise" in str(world.runtime.checks()["switch:ocs0"])
        switch.make = True
        await asyncio.sleep(10)
        assert world.granted(0) == [("pair-0", 0)]
        assert world.runtime.checks()["switch:ocs0"] is None

    run_virtual(main)


def test_an_unforeseen_driver_error_is_logged_and_treated_as_a_lost_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        switch = FakeSwitch(behave=failing(KeyError("reply")))
        world = await World(switch=switch, step_deadline_s=2.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(10)
        assert gaps(switch.applies) == [2.05], "the step's deadline and the first pause"
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("max_inflight", [1, 3])
def test_a_switch_gets_no_more_steps_at_once_than_it_takes(max_inflight: int) -> None:
    async def main() -> None:
        busy = 0
        most = 0

        async def slow() -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(1)
            busy -= 1

        switch = FakeSwitch(max_inflight=max_inflight, behave=slow)
        world = await World(hosts=9, switch=switch).start()
        for i in range(0, 8, 2):
            world.arrive(f"pair-{i}", 0, i, i + 1)
            await world.settle()  # one step each: they are decided one after the other
        await asyncio.sleep(10)
        assert all(world.granted(i) for i in range(8))
        assert most == max_inflight

    run_virtual(main)


def test_steps_that_end_together_share_one_reading() -> None:
    async def main() -> None:
        async def slow() -> None:
            await asyncio.sleep(1)

        switch = FakeSwitch(max_inflight=4, behave=slow)
        world = await World(hosts=9, switch=switch).start()
        for i in range(0, 8, 2):
            world.arrive(f"pair-{i}", 0, i, i + 1)
            await world.settle()
        await asyncio.sleep(5)
        assert all(world.granted(i) for i in range(8))
        assert len(switch.applies) == 4
        assert len(switch.reads) <= 1 + 2, "the adoption, the first to end, and all the others together"

    run_virtual(main)


@pytest.mark.parametrize("second_s", [1.5, 2.5], ids=["during-the-reading", "after-the-reading"])
def test_a_step_that_ends_once_the_first_ones_reading_has_begun_is_read_back_and_settled_too(
    second_s: float,
) -> None:
    async def main() -> None:
        store, switch = HeldStore(), SlowReading(max_inflight=2)
        world = await World(hosts=5, store=store, switch=switch).start()
        durations = iter((1.0, second_s))

        async def slow() -> None:
            await asyncio.sleep(next(durations))

        switch.behave = slow
        began = world.loop.time()
        for i in (0, 2):
            world.arrive(f"pair-{i}", 0, i, i + 1)
            await world.settle()
        await asyncio.sleep(30)
        assert [at - began for at in switch.applies] == [0, 0], "both are in flight at once, and once each"
        assert [at - began for at in switch.reads[1:]] == [1, max(2, second_s)]
        assert outcomes(store) == [StepState.DONE, StepState.DONE]
        assert all(world.granted(rank) for rank in range(4))

    run_virtual(main)


class SlowReading(FakeSwitch):
    """Takes a second to tell what it held when it was asked."""

    async def read(self) -> Observation:
        seen = await super().read()
        await asyncio.sleep(1)
        return seen


def test_pauses_double_up_to_a_limit_and_never_undercut_the_device() -> None:
    backoff = Backoff(0.05, 30.0)
    pauses = [backoff.failed() for _ in range(2000)]
    assert pauses[:5] == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == 30.0
    assert backoff.failed(at_least_s=60.0) == 60.0
    backoff.succeeded()
    assert backoff.failed() == 0.05
