"""Nothing is answered as granted before it is stored, and before the switch has shown it."""

from __future__ import annotations

import asyncio

import pytest

from opus_sdn.intent.changes import RunGranted, StepPlanned
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.model import RankKey
from opus_sdn.reconciler import runtime
from tests.drivers.virtual_time import run_virtual
from tests.reconciler.world import FakeSwitch, HeldStore, World


def test_a_grant_is_answered_and_the_ranks_are_woken_only_after_its_commit() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert world.granted(0) == [("pair-0", 0)]
        world.release("pair-0", 0, 0, 1)
        await world.settle()

        store.held = True
        poll = world.runtime.waiters.open((RankKey("job", 1, 0),), world.loop)
        world.arrive("pair-0", 1, 0, 1)
        await world.settle()
        assert any(isinstance(c, RunGranted) and c.n == 1 for c in store.submitted[-1].changes)
        assert world.granted(0) == [("pair-0", 0)]
        assert not poll.future.done()

        store.let_go()
        assert await poll.future
        assert world.granted(0) == world.granted(1) == [("pair-0", 0), ("pair-0", 1)]

    run_virtual(main)


def test_a_device_step_starts_only_after_its_plan_is_stored() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store).start()
        store.held = True
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert any(isinstance(c, StepPlanned) for c in store.submitted[-1].changes)
        assert world.switch.applies == []
        store.let_go()
        await world.settle()
        assert len(world.switch.applies) == 1

    run_virtual(main)


def test_a_grant_waits_until_the_switch_shows_its_circuit() -> None:
    async def main() -> None:
        shown = asyncio.Event()
        switch = FakeSwitch()
        world = await World(switch=switch).start()

        async def not_yet() -> None:
            await shown.wait()

        switch.behave_reading = not_yet
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert switch.matching, "the device says that it is done"
        assert len(switch.reads) == 2, "and is being read back"
        assert world.granted(0) == []
        shown.set()
        await world.settle()
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


def test_a_circuit_that_is_up_already_costs_no_device_step() -> None:
    async def main() -> None:
        world = await World().start()
        for n in range(5):
            world.arrive("pair-0", n, 0, 1)
            await world.settle()
            world.release("pair-0", n, 0, 1)
            await world.settle()
        assert len(world.granted(0)) == 5
        assert len(world.switch.applies) == 1

    run_virtual(main)


def test_a_burst_of_requests_in_one_turn_becomes_one_batch() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(hosts=9, store=store).start()
        before = len(store.submitted)
        for i in range(0, 8, 2):
            world.arrive(f"pair-{i}", 0, i, i + 1)
        await asyncio.sleep(0)
        assert len(store.submitted) == before + 1
        await world.settle()
        assert world.granted(6) == [("pair-6", 0)]

    run_virtual(main)


def test_what_waits_for_a_promise_waits_for_the_batch_that_holds_it() -> None:
    async def main() -> None:
        store = HeldStore()
        world = World(store=store)
        await world.runtime.start()
        store.held = True
        first = asyncio.ensure_future(world.declare())
        await world.settle()
        second = asyncio.ensure_future(world.runtime.stored())  # nothing new, but the first is not stored yet
        await world.settle()
        assert not first.done()
        assert not second.done()
        store.let_go()
        await asyncio.gather(first, second)

    run_virtual(main)


def test_a_deadline_of_the_core_is_kept_without_any_request() -> None:
    async def main() -> None:
        world = await World(deadline_s=7.0).start()
        poll = world.runtime.waiters.open((RankKey("job", 1, 1),), world.loop)
        world.arrive("pair-0", 0, 0)
        began = world.loop.time()
        assert await poll.future
        assert world.loop.time() - began == 7.0
        failure = world.answer(1).failure
        assert failure is not None
        assert failure.problem == "deadline-exceeded"

    run_virtual(main)


def test_while_the_store_is_far_behind_nothing_more_is_decided_and_then_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "PENDING_MAX", 2)

    async def main() -> None:
        store = HeldStore()
        world = await World(hosts=9, store=store).start()
        store.held = True
        before = len(store.submitted)
        for i in range(0, 8, 2):
            world.arrive(f"pair-{i}", 0, i, i + 1)
            await world.settle()
        assert len(store.submitted) == before + 2
        store.let_go()
        await world.settle(100)
        assert all(world.granted(rank) for rank in range(8))

    run_virtual(main)


def test_a_store_that_stays_behind_has_new_work_refused_until_it_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "PENDING_MAX", 2)

    async def main() -> None:
        store = HeldStore()
        world = await World(hosts=9, store=store).start()
        store.held = True
        for i in range(0, 8, 2):
            world.arrive(f"pair-{i}", 0, i, i + 1)
            await world.settle()
        await asyncio.sleep(0.9)
        world.runtime.take_on()  # a burst may last so long
        await asyncio.sleep(0.2)
        with pytest.raises(CoreError) as refused:
            world.runtime.take_on()
        assert refused.value.problem is Problem.OVERLOADED
        world.runtime.require_ready()  # who only asks is heard
        store.let_go()
        await world.settle(100)
        world.runtime.take_on()
        assert all(world.granted(rank) for rank in range(8))

    run_virtual(main)


def test_a_store_that_is_behind_again_and_again_and_catches_up_refuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "PENDING_MAX", 2)

    async def main() -> None:
        store = HeldStore()
        world = await World(hosts=9, store=store).start()
        for n in range(10):
            store.held = True
            for i in range(0, 8, 2):
                world.arrive(f"pair-{i}", n, i, i + 1)
                await world.settle()
            await asyncio.sleep(0.8)
            world.runtime.take_on()
            store.let_go()
            await world.settle(100)
            for i in range(0, 8, 2):
                world.release(f"pair-{i}", n, i, i + 1)
            await world.settle()

    run_virtual(main)
