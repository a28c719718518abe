"""How the runtime starts, ends, and stops deciding when it can no longer promise anything."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future

import pytest

from opus_sdn.drivers.base import TransientError
from opus_sdn.intent.changes import Batch, EventAppended, StepMoved, StepState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import CoreSettings, RankKey, RankNews
from opus_sdn.reconciler.phase import Phase
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.store.base import StoreBusyError, StoreError
from opus_sdn.store.memory import MemoryStore
from tests.drivers.virtual_time import run_virtual
from tests.reconciler.world import EPOCH, FakeSwitch, HeldStore, World, failing, forever, small_fabric


def test_it_is_ready_only_when_every_switch_has_been_read() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        away = FakeSwitch(behave_reading=failing(TransientError("no route"), TransientError("no route")))
        engine = Engine(small_fabric(switches=2), CoreSettings(), start=1)
        drivers = {"ocs0": FakeSwitch(), "ocs1": away}
        runtime = Runtime(engine, MemoryStore(), drivers, loop.time, loop)
        with pytest.raises(CoreError, match="reading its switches"):
            runtime.require_ready()
        starting = asyncio.ensure_future(runtime.start())
        await asyncio.sleep(0.1)
        assert runtime.phase is Phase.ADOPTING
        assert runtime.checks()["switch:ocs1"] == "no route"
        await starting
        runtime.require_ready()
        assert set(runtime.checks().values()) == {None}
        assert len(away.reads) == 3

    run_virtual(main)


def test_circuits_found_at_the_start_are_used_as_they_are() -> None:
    async def main() -> None:
        # right of h0 (position 1) to left of h1 (position 2): what the ring pair-0 needs
        switch = FakeSwitch(matching={CrossConnect(1, 2), CrossConnect(2, 1)})
        world = await World(switch=switch).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert world.granted(0) == [("pair-0", 0)]
        assert switch.applies == []

    run_virtual(main)


def test_after_the_store_is_lost_nothing_is_granted_no_step_starts_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert len(world.switch.applies) == 1
        store.held = True
        poll = world.runtime.waiters.open((RankKey("job", 1, 0),), world.loop)
        world.arrive("pair-0", 1, 0, 1)
        world.arrive("pair-1", 0, 2)
        promise = asyncio.ensure_future(world.runtime.stored())
        await world.settle()
        store.lose(StoreError("disk is full"))
        assert not await poll.future
        with pytest.raises(CoreError, match="store has failed"):
            await promise
        with pytest.raises(CoreError, match="store has failed"):
            world.runtime.require_ready()
        assert world.granted(0) == [("pair-0", 0)]
        world.arrive("pair-1", 0, 1)
        store.lose(StoreError("disk is full"))
        await asyncio.sleep(60)
        assert len(world.switch.applies) == 1
        assert world.runtime.checks()["store"] == "disk is full"

    with caplog.at_level(logging.CRITICAL):
        run_virtual(main)
    assert [record.message for record in caplog.records] == ["the store failed; nothing is granted any more"]


def test_what_is_recorded_beside_the_core_is_stored_also_when_nobody_waits_for_it_any_more() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store).start()
        store.held = True
        recording = asyncio.ensure_future(world.runtime.record(EventAppended("thing.happened")))
        await world.settle()
        recording.cancel()
        await asyncio.wait({recording})
        store.let_go()
        (event,) = store.events(0, 10, kind="thing")
        await world.runtime.record(EventAppended("thing.happened"))
        assert world.runtime.feed.newest == event.seq + 1

    run_virtual(main)


def test_a_store_that_is_lost_while_something_is_recorded_beside_the_core_is_lost_for_all() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store).start()
        store.held = True
        recording = asyncio.ensure_future(world.runtime.record(EventAppended("thing.happened")))
        await world.settle()
        store.lose(StoreError("disk is full"))
        with pytest.raises(CoreError, match="store has failed"):
            await recording
        assert world.runtime.phase is Phase.STORE_FAILED

    run_virtual(main)


class FullStore(MemoryStore):
    """Has no room for the next `full` batches."""

    full = 0

    def has_room(self) -> bool:
        return not self.full

    def submit(self, batch: Batch) -> Future[int]:
        if self.full:
            self.full -= 1
            raise StoreBusyError("16384 batches wait for the disk")
        return super().submit(batch)


def test_what_is_decided_while_the_store_has_no_room_is_stored_when_it_has() -> None:
    async def main() -> None:
        store = FullStore()
        world = await World(store=store).start()
        before = world.runtime.feed.newest
        store.full = 3
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(1)
        assert (store.full, world.runtime.phase) == (0, Phase.READY)
        assert world.granted(0) == [("pair-0", 0)]
        seqs = [event.seq for event in store.events(before, 100)]
        assert seqs == list(range(before + 1, store.snapshot().last_event + 1))

    run_virtual(main)


def test_new_work_is_refused_before_anything_is_decided_while_the_store_has_no_room() -> None:
    async def main() -> None:
        store = FullStore()
        world = await World(store=store).start()
        store.full = 1
        with pytest.raises(CoreError, match="too much waits") as refused:
            world.runtime.take_on()
        assert refused.value.problem is Problem.OVERLOADED
        with pytest.raises(CoreError, match="too much waits"):
            await world.runtime.record(EventAppended("thing.happened"))
        world.runtime.take_on()

    run_virtual(main)


def test_the_end_waits_for_what_the_store_had_no_room_for() -> None:
    async def main() -> None:
        store = FullStore()
        world = await World(store=store).start()
        store.full = 2
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        await world.runtime.end()
        assert [event.kind for event in store.events(0, 100, kind="intent")]

    run_virtual(main)


def test_a_store_that_is_lost_while_it_has_no_room_takes_what_was_decided_with_it() -> None:
    async def main() -> None:
        store = FullStore()
        world = await World(store=store).start()
        store.full = 10**9
        waiting = asyncio.ensure_future(world.runtime.stored())
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(0.1)
        world.runtime._lose_store(StoreError("gone"))
        with pytest.raises(CoreError, match="store has failed"):
            await waiting
        await asyncio.sleep(0.1)
        assert world.runtime.phase is Phase.STORE_FAILED

    run_virtual(main)


def test_a_bug_in_a_pass_is_logged_and_the_next_pass_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        world = await World().start()

        def broken(now: float) -> None:
            raise RuntimeError("planted")

        with monkeypatch.context() as patch:
            patch.setattr(world.engine, "pump", broken)
            with pytest.raises(RuntimeError, match="planted"):
                await world.runtime.stored()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)
    assert "a pass failed" in caplog.text
    assert "RuntimeError: planted" in caplog.text


def test_stopping_lets_the_step_in_flight_end_and_be_recorded_and_starts_no_other() -> None:
    async def main() -> None:
        async def slow() -> None:
            await asyncio.sleep(3)

        store, switch = HeldStore(), FakeSwitch(behave=slow)
        world = await World(store=store, switch=switch, hosts=5).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        world.arrive("pair-2", 0, 2, 3)  # planned, and waits for its turn
        await world.settle()
        poll = world.runtime.waiters.open((RankKey("job", 1, 0),), world.loop)
        stopping = asyncio.ensure_future(world.runtime.stop())
        assert not await poll.future, "who waits is let go at once"
        with pytest.raises(CoreError, match="stopping"):
            world.runtime.require_ready()
        await stopping
        assert len(switch.applies) == 1
        moves = [c for b in store.submitted for c in b.changes if isinstance(c, StepMoved)]
        assert moves[-1].state is StepState.DONE
        assert switch.closed
        with pytest.raises(StoreError):
            store.snapshot()

    run_virtual(main)


def test_stopping_does_not_wait_for_ever_for_a_silent_switch() -> None:
    async def main() -> None:
        switch = FakeSwitch()
        world = await World(switch=switch).start()
        switch.behave = switch.behave_reading = forever
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        began = world.loop.time()
        await world.runtime.stop(timeout_s=10)
        assert world.loop.time() - began >= 10
        assert switch.closed

    run_virtual(main)


def test_stopping_before_the_switches_are_read_is_possible() -> None:
    async def main() -> None:
        world = World(switch=FakeSwitch(behave_reading=forever))
        starting = asyncio.ensure_future(world.runtime.start())
        await asyncio.sleep(1)
        await world.runtime.stop()
        await starting
        assert world.switch.closed

    run_virtual(main)


def test_another_fabric_is_taken_in_a_pause_in_which_nothing_is_decided() -> None:
    async def main() -> None:
        world = World()
        await world.runtime.start()
        engine = world.runtime.engine
        fresh = FakeSwitch()
        async with world.runtime.paused():
            with pytest.raises(CoreError, match="reading its switches"):
                world.runtime.require_ready()
            engine.change_fabric(small_fabric(hosts=2), {})
            await world.runtime.use({"ocs0": fresh})
        world.runtime.require_ready()
        assert world.runtime.engine is engine
        assert world.switch.closed
        assert len(fresh.reads) == 1

    run_virtual(main)


def test_a_pause_waits_for_the_device_step_in_flight() -> None:
    async def main() -> None:
        async def slow() -> None:
            await asyncio.sleep(3)

        world = await World(switch=FakeSwitch(behave=slow)).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert world.switch.matching == set()
        async with world.runtime.paused():
            assert world.switch.matching != set(), "it has ended"
            assert world.granted(0) == [("pair-0", 0)], "and nothing of it is lost"

    run_virtual(main)


def test_no_pause_begins_while_a_device_step_does_not_end() -> None:
    async def main() -> None:
        hangs = asyncio.Event()

        async def forever() -> None:
            await hangs.wait()

        world = await World().start()
        world.switch.behave_reading = forever
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        with pytest.raises(CoreError, match="step is in flight"):
            async with world.runtime.paused():
                pytest.fail("it began")
        hangs.set()
        await asyncio.sleep(4)
        assert world.granted(0) == [("pair-0", 0)], "and everything goes on"

    run_virtual(main)


def stand_still(world: World, for_s: float = 3600.0) -> None:
    """SIGSTOP, or a machine that was suspended: the clock goes on, and no timer comes in time."""
    world.runtime.clock = lambda: EPOCH + world.loop.time() + for_s


async def all_live_on(world: World, seconds: int, *ranks: int) -> None:
    for _ in range(seconds):
        for rank in ranks:
            world.say(RankNews(rank))
        await asyncio.sleep(1)


def test_while_the_controller_stands_still_no_rank_is_silent() -> None:
    async def main() -> None:
        world = await World().start()
        await all_live_on(world, 25, 0, 1, 2)
        await asyncio.sleep(4.5)
        stand_still(world)
        await asyncio.sleep(1)  # a lease is looked at before anybody is heard
        job = world.engine.state.jobs["job"]
        assert job.running
        await all_live_on(world, 15, 0, 1)
        assert job.running
        await all_live_on(world, 30, 0, 1)
        assert job.failure is not None
        assert (job.failure.problem, job.failure.rank) == (Problem.RANK_LOST, 2)

    run_virtual(main)


@pytest.mark.parametrize(
    ("heard", "problem"), [((0, 1, 2), Problem.OPERATION_FAILED), ((0, 2), Problem.RANK_LOST)]
)
def test_while_the_controller_stands_still_no_dead_rank_is_looked_for(
    heard: tuple[int, ...], problem: Problem
) -> None:
    async def main() -> None:
        world = await World().start()
        now = world.runtime.now()
        world.engine.operation_failed(now, "job", 1, 0, None, None, "connection closed by peer")
        world.runtime.changed()
        await asyncio.sleep(CoreSettings().fault_grace_s - 0.5)
        stand_still(world)
        await asyncio.sleep(1)
        job = world.engine.state.jobs["job"]
        assert job.running, "whoever spoke meanwhile has not been read yet"
        await all_live_on(world, 20, *heard)
        assert job.failure is not None
        assert job.failure.problem is problem

    run_virtual(main)
