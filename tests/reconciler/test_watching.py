"""What the runtime makes of switches that others change, that go away, and that were left in the middle."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    DeviceEvent,
    DeviceEventKind,
    PairOutcome,
    PairResult,
    Refusal,
    TerminalError,
    TransientError,
)
from opus_sdn.intent.changes import EventAppended, IntentState, StepMoved, StepState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import CoreSettings, RankNews
from opus_sdn.intent.reasons import Reason
from opus_sdn.intent.recovery import KnownStep
from opus_sdn.reconciler.phase import Phase
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.store.memory import MemoryStore
from tests.drivers.virtual_time import run_virtual
from tests.reconciler.world import EPOCH, FakeSwitch, HeldStore, World, failing, forever, small_fabric

RING_0 = {CrossConnect(1, 2), CrossConnect(2, 1)}  # the circuit of pair-0
RING_2 = {CrossConnect(5, 6), CrossConnect(6, 5)}


def told(store: HeldStore, kind: str) -> list[EventAppended]:
    """The events of a kind that were stored."""
    return [
        change
        for batch in store.submitted
        for change in batch.changes
        if isinstance(change, EventAppended) and change.kind == kind
    ]


def reason(world: World, rank: int) -> Reason | None:
    """Why the rank's first open arrival waits."""
    because = world.answer(rank).arrivals[0].because
    return because.reason if because is not None else None


async def live_on(world: World, seconds: float) -> None:
    """Time passes in which every rank is heard."""
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
        for rank in range(world.hosts):
            world.say(RankNews(rank))


# --- drift


def test_a_circuit_lost_under_a_lock_is_seen_at_the_next_look_and_made_again() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store, observe_s=10.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        world.switch.matching.clear()
        await live_on(world, 9)
        assert told(store, "circuit.lost") == []
        await live_on(world, 2)
        (lost,) = told(store, "circuit.lost")
        assert lost.data["ranks"] == [0, 1]
        assert world.switch.matching == RING_0
        assert len(told(store, "circuit.restored")) == 1
        assert world.engine.state.jobs["job"].running

    run_virtual(main)


def test_a_switch_that_says_that_somebody_changed_it_is_looked_at_at_once() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store, observe_s=1000.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        world.switch.matching.clear()
        world.switch.told.put(DeviceEvent(DeviceEventKind.FOREIGN_CHANGE, "somebody", expected=True))
        world.switch.told.put(DeviceEvent(DeviceEventKind.WARNING, "warm"))
        await world.settle()
        assert told(store, "circuit.lost") == []
        world.switch.told.put(DeviceEvent(DeviceEventKind.FOREIGN_CHANGE, "somebody"))
        await world.settle(60)
        assert len(told(store, "circuit.lost")) == 1
        assert world.switch.matching == RING_0

    run_virtual(main)


def test_a_port_that_the_switch_calls_shut_parks_its_needs_until_it_is_back() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store, switch=FakeSwitch(shut={2}), observe_s=10.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert (reason(world, 0), world.switch.applies) == (Reason.PORT_FAILED, [])
        world.switch.shut = set()
        await live_on(world, 11)
        assert world.granted(0) == [("pair-0", 0)]
        assert [told(store, kind)[0].data["count"] for kind in ("port.failed", "port.back")] == [1, 1]

    run_virtual(main)


def test_a_switch_is_asked_for_its_ports_at_most_once_a_second_and_again_soon_after() -> None:
    async def main() -> None:
        world = await World(observe_s=1000.0).start()
        for _ in range(30):
            world.switch.told.put(DeviceEvent(DeviceEventKind.PORT, "port 3"))
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert len(world.switch.reads) > 30
        assert len(world.switch.port_reads) == 5
        assert min(after - before for before, after in pairwise(world.switch.port_reads)) >= 1

    run_virtual(main)


def test_a_refused_step_has_the_ports_looked_at() -> None:
    async def main() -> None:
        world = await World(observe_s=1000.0).start()
        world.switch.behave = failing(TerminalError("no"), *[TerminalError("no")] * 20)
        world.switch.shut = {2}
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(3)
        assert reason(world, 0) is Reason.PORT_FAILED

    run_virtual(main)


@pytest.mark.parametrize(
    "error",
    [
        TerminalError("cannot say", Refusal.UNSUPPORTED),
        TransientError("busy"),
        TimeoutError(),
        ValueError("bug"),
    ],
)
def test_a_switch_that_tells_nothing_of_its_ports_is_used_all_the_same(error: Exception) -> None:
    class Mute(FakeSwitch):
        async def ports(self):  # type: ignore[no-untyped-def,override]
            self.port_reads.append(0)
            raise error

    async def main() -> None:
        world = await World(switch=Mute(), observe_s=10.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await live_on(world, 25)
        assert world.granted(0) == [("pair-0", 0)]
        assert world.runtime.checks()["switch:ocs0"] is None
        for_ever = isinstance(error, TerminalError)
        assert (len(world.switch.port_reads) == 1) is for_ever

    run_virtual(main)


def test_a_switch_whose_reports_fail_is_read_from_time_to_time_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Mute(FakeSwitch):
        async def events(self):  # type: ignore[no-untyped-def,override]
            raise TransientError("no reports")
            yield

    async def main() -> None:
        world = await World(switch=Mute(), observe_s=10.0).start()
        await asyncio.sleep(25)
        assert len(world.switch.reads) == 3

    run_virtual(main)
    assert "not listened to any more" in caplog.text


def test_after_something_strange_the_switch_is_looked_at_more_often_for_a_while() -> None:
    async def main() -> None:
        world = await World(observe_s=60.0).start()
        await asyncio.sleep(30)
        world.switch.matching.add(CrossConnect(0, 3))
        await asyncio.sleep(31)
        first = len(world.switch.reads)
        await asyncio.sleep(9)
        assert [round(at - 60) for at in world.switch.reads[first:]] == [1, 3, 7]

    run_virtual(main)


def test_when_nothing_differs_looking_changes_nothing_and_stores_nothing() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store, switch=FakeSwitch(matching=set(RING_0)), observe_s=1.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        stored = len(store.submitted)
        await live_on(world, 50)
        assert len(world.switch.reads) > 50
        assert world.switch.applies == []
        assert len(store.submitted) == stored

    run_virtual(main)


def test_a_look_on_demand_is_stored_before_it_is_answered() -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store).start()
        world.switch.matching.add(CrossConnect(0, 3))
        await world.runtime.observe("ocs0")
        (drift,) = told(store, "switch.drifted")
        assert drift.data["appeared"] == [[0, 3]]
        with pytest.raises(CoreError, match="there is no switch 'ocs7'; known switches: ocs0"):
            await world.runtime.observe("ocs7")

    run_virtual(main)


def test_somebody_who_undoes_everything_at_every_look_gets_few_writes() -> None:
    async def main() -> None:
        world = await World(observe_s=2.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        for _ in range(600):
            world.switch.matching.clear()
            world.switch.matching.update({CrossConnect(1, 3)})
            await live_on(world, 1)
        assert 4 < len(world.switch.applies) < 25
        rivals = world.engine.state.switches["ocs0"].rivals
        assert rivals[CrossConnect(1, 2)].times > 4
        assert rivals[CrossConnect(1, 2)].since < EPOCH + 5

    run_virtual(main)


def test_what_somebody_has_to_look_at_is_in_the_log_with_the_words_of_the_history(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        store = HeldStore()
        world = await World(store=store).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        world.switch.matching.clear()
        await world.runtime.observe("ocs0")
        await world.settle()

    with caplog.at_level("INFO"):
        run_virtual(main)
    said = {record.message: record.__dict__ for record in caplog.records}
    assert said["circuit.lost"]["circuit"] == "h0:0:1--h1:0:0"
    assert (said["circuit.lost"]["job"], said["circuit.lost"]["ranks"]) == ("job", [0, 1])
    assert said["switch.drifted"]["vanished"] == [[1, 2], [2, 1]]
    assert "circuit.restored" in said
    assert "step.done" not in said, "what is as it should be is not told"


# --- a switch that is away


def test_a_switch_that_does_not_answer_holds_up_its_own_ranks_only() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        away = FakeSwitch(behave_reading=forever)
        engine = Engine(small_fabric(switches=2), CoreSettings(), start=1)
        drivers = {"ocs0": FakeSwitch(), "ocs1": away}
        runtime = Runtime(engine, MemoryStore(), drivers, loop.time, loop, step_deadline_s=2.0)
        await runtime.start()
        assert loop.time() == 2.0
        assert runtime.phase is Phase.READY
        assert runtime.checks()["switch:ocs1"] == "no answer within 2 s"
        away.behave_reading = None
        await asyncio.sleep(10)
        assert runtime.checks()["switch:ocs1"] is None
        await runtime.stop()

    run_virtual(main)


def test_work_for_a_switch_that_goes_away_waits_with_that_reason_and_goes_on_when_it_is_back() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch()
        world = await World(store=store, switch=switch, observe_s=5.0).start()
        switch.behave = failing(*[TransientError("no route", 0.1)] * 99)
        switch.behave_reading = failing(*[TransientError("no route")] * 8)
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(1)
        assert reason(world, 0) is Reason.SWITCH_AWAY
        assert len(switch.applies) == 1
        assert [event.data["detail"] for event in told(store, "switch.away")] == ["no route"]
        switch.behave = None
        await live_on(world, 20)
        assert len(told(store, "switch.back")) == 1
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


def test_a_look_on_demand_at_a_switch_that_is_away_says_so() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch()
        world = await World(store=store, switch=switch).start()
        switch.behave_reading = failing(TransientError("no route"))
        with pytest.raises(CoreError, match="switch ocs0 does not answer: no route") as refused:
            await world.runtime.observe("ocs0")
        assert refused.value.problem is Problem.SWITCH_AWAY
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert reason(world, 0) is Reason.SWITCH_AWAY
        assert switch.applies == []
        await world.runtime.observe("ocs0")
        await world.settle()
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


def test_a_need_that_no_switch_serves_is_stalled_after_its_time_and_served_later() -> None:
    async def main() -> None:
        store = HeldStore()
        refusals = [TerminalError("mirror stuck")] * 10
        world = await World(store=store, switch=FakeSwitch(behave=failing(*refusals))).start()
        world.arrive("pair-0", 0, 0, 1)
        await live_on(world, 11)
        (stalled,) = told(store, "intent.stalled")
        assert stalled.data["reason"] == "switch-failed"
        assert "mirror stuck" in str(stalled.data["detail"])
        (intent,) = world.engine.state.jobs["job"].waiting
        assert intent.state is IntentState.STALLED
        await live_on(world, 60)
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


# --- failures by class


def test_one_bad_port_does_not_stop_the_others() -> None:
    async def main() -> None:
        switch = FakeSwitch(max_inflight=2)
        world = await World(hosts=9, switch=switch).start()

        async def port_7_is_stuck() -> None:
            steps = [p.step for p in world.engine.state.switches["ocs0"].progress.values()]
            if any(7 in pair for pair in steps[0].add):
                raise TerminalError("port 7: mirror stuck")

        switch.behave = port_7_is_stuck
        for i in range(0, 8, 2):
            world.arrive(f"pair-{i}", 0, i, i + 1)
        await asyncio.sleep(0.01)
        assert [bool(world.granted(i)) for i in range(0, 8, 2)].count(True) >= 2
        switch.behave = None
        await asyncio.sleep(1)
        assert all(world.granted(i) for i in range(8))

    run_virtual(main)


def test_pairs_that_the_device_names_as_failed_are_not_asked_for_together_with_others() -> None:
    class Partial(FakeSwitch):
        async def apply(self, remove, add, epoch):  # type: ignore[no-untyped-def]
            self.asked.append(set(add))
            done = tuple(pair for pair in add if 5 not in pair)
            self.change(remove, done)
            failed = tuple(
                PairResult(pair, PairOutcome.FAILED, reason="port 5 failed") for pair in add if 5 in pair
            )
            return Applied(pairs=(*(PairResult(pair, PairOutcome.APPLIED) for pair in done), *failed))

    async def main() -> None:
        switch = Partial()
        switch.asked = []  # type: ignore[attr-defined]
        store = HeldStore()
        world = await World(hosts=5, switch=switch, store=store).start()
        world.arrive("pair-0", 0, 0, 1)
        world.arrive("pair-2", 0, 2, 3)
        await asyncio.sleep(1)
        assert world.granted(0) == [("pair-0", 0)]
        assert world.granted(2) == []
        asked = switch.asked  # type: ignore[attr-defined]
        assert asked[0] == RING_0 | RING_2
        assert all(pairs <= RING_2 for pairs in asked[1:])
        assert "port 5 failed" in str(told(store, "step.failed")[0].data["detail"])

    run_virtual(main)


def test_a_lost_answer_whose_whole_effect_is_there_costs_no_waiting() -> None:
    async def main() -> None:
        switch = FakeSwitch()

        async def answer_lost() -> None:
            (step,) = world.engine.state.switches["ocs0"].progress.values()
            switch.change(step.step.remove, step.step.add)
            raise AmbiguousError("connection reset")

        world = await World(switch=switch, step_deadline_s=3.0).start()
        switch.behave = answer_lost
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(0.5)
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


def test_a_new_need_does_not_wait_for_the_pause_that_others_have_earned() -> None:
    async def main() -> None:
        switch = FakeSwitch(behave=failing(*[TransientError("busy", 0.0)] * 7))
        world = await World(hosts=5, switch=switch).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(4)
        assert len(switch.applies) == 7
        world.arrive("pair-2", 0, 2, 3)
        await world.settle()
        assert switch.applies[7] == 4.0
        await asyncio.sleep(0.1)
        assert world.granted(2) == [("pair-2", 0)]

    run_virtual(main)


def test_but_the_time_that_the_device_has_asked_for_is_kept() -> None:
    async def main() -> None:
        switch = FakeSwitch(behave=failing(TransientError("locked by another session", 4.0)))
        world = await World(hosts=5, switch=switch).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(1)
        world.arrive("pair-2", 0, 2, 3)
        await asyncio.sleep(2.9)
        assert len(switch.applies) == 1
        await asyncio.sleep(0.2)
        assert len(switch.applies) > 1

    run_virtual(main)


@pytest.mark.parametrize("refusal", [Refusal.LOCKED, Refusal.UNAUTHORISED, Refusal.WOULD_DISPLACE])
def test_a_switch_that_takes_nothing_from_us_is_no_fault_of_what_was_asked(refusal: Refusal) -> None:
    async def main() -> None:
        switch = FakeSwitch(behave=failing(TerminalError("no", refusal)))
        world = await World(hosts=5, switch=switch).start()
        world.arrive("pair-0", 0, 0, 1)
        world.arrive("pair-2", 0, 2, 3)
        await asyncio.sleep(1)
        assert len(switch.applies) == 2, "both together, and both together again"
        assert world.granted(2) == [("pair-2", 0)]

    run_virtual(main)


def test_a_switch_that_refuses_everything_gets_pauses_whatever_is_asked_of_it() -> None:
    async def main() -> None:
        switch = FakeSwitch(behave=failing(*[TerminalError("no")] * 400))
        world = await World(hosts=17, switch=switch).start()
        for i in range(0, 16, 2):
            world.arrive(f"pair-{i}", 0, i, i + 1)
        await asyncio.sleep(20)
        assert len(switch.applies) < 80

    run_virtual(main)


def test_a_pair_without_light_is_granted_when_light_passes() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch(dark={CrossConnect(1, 2): "shutter closed"})
        world = await World(store=store, switch=switch, observe_s=5.0).start()
        world.arrive("pair-0", 0, 0, 1)
        await live_on(world, 6)
        assert reason(world, 0) is Reason.DARK
        assert len(switch.applies) == 1
        switch.dark.clear()
        await live_on(world, 6)
        assert world.granted(0) == [("pair-0", 0)]

    run_virtual(main)


# --- steps of an earlier start


def known_step() -> KnownStep:
    """A step for pair-0 that an earlier start has written down."""
    return KnownStep(1, "ocs0", 1, (), tuple(sorted(RING_0)), ("job/1/pair-0#0",))


class Recorded:
    """What an earlier start has recorded of the commands that it sent, and what this one records."""

    def __init__(self, *sent: int) -> None:
        self.sent = set(sent)
        self.begun: list[int] = []

    def may_be(self, step: int) -> bool:
        return step in self.sent

    def begin(self, step: int) -> None:
        self.sent.add(step)
        self.begun.append(step)

    def end(self, step: int) -> None:
        self.sent.discard(step)


def after_a_restart(switch: FakeSwitch, store: HeldStore, under_way: Recorded | None = None) -> World:
    world = World(switch=switch, store=store, step_deadline_s=3.0, under_way=under_way)
    world.engine.recover(world.runtime.now(), (), (known_step(),))
    world.engine.state.next_step = 2
    return world


def outcomes(store: HeldStore) -> list[tuple[int, StepState, str | None]]:
    moves = [c for batch in store.submitted for c in batch.changes if isinstance(c, StepMoved)]
    return [(move.step, move.state, move.detail) for move in moves]


def journal(store: HeldStore) -> None:
    """The store knows the step."""
    from opus_sdn.intent.changes import Batch, StepPlanned

    step = known_step()
    change = StepPlanned(step.step, step.switch, 1, step.remove, step.add, step.causes, step.disturbed)
    store.submit(Batch(0, 0.0, (change,), durable=True))


def test_a_step_of_an_earlier_start_whose_whole_effect_is_there_is_done() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch(matching=set(RING_0))
        journal(store)
        world = after_a_restart(switch, store)
        await world.start()
        await world.settle()
        assert outcomes(store) == [(1, StepState.DONE, None)]
        assert not world.engine.state.switches["ocs0"].moving
        world.arrive("pair-0", 0, 0, 1)
        await world.settle()
        assert world.granted(0) == [("pair-0", 0)]
        assert switch.applies == []

    run_virtual(main)


def test_a_step_of_an_earlier_start_may_still_act_until_its_deadline() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch()
        journal(store)
        world = after_a_restart(switch, store)
        await world.start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(2)
        assert reason(world, 0) is Reason.MOVING
        switch.matching |= RING_0
        await asyncio.sleep(2)
        assert outcomes(store) == [(1, StepState.DONE, None)]
        assert world.granted(0) == [("pair-0", 0)]
        assert switch.applies == []

    run_virtual(main)


def test_a_late_effect_of_a_step_of_an_earlier_start_is_not_waited_for_longer_than_it_takes() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch()
        journal(store)
        world = after_a_restart(switch, store)
        await world.start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(0.5)
        assert reason(world, 0) is Reason.MOVING
        switch.matching |= RING_0
        await asyncio.sleep(1)
        assert outcomes(store) == [(1, StepState.DONE, None)]
        assert world.granted(0) == [("pair-0", 0)]
        assert switch.applies == []

    run_virtual(main)


def test_a_step_of_an_earlier_start_that_never_acted_has_failed_and_what_it_was_for_is_planned_anew() -> None:
    async def main() -> None:
        store, switch = HeldStore(), FakeSwitch()
        journal(store)
        world = after_a_restart(switch, store)
        await world.start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(3.1)
        (first, *_) = outcomes(store)
        assert first[:2] == (1, StepState.FAILED)
        assert "cut short by the end of the controller; it reads back otherwise: missing 1-2" in str(first[2])
        assert world.granted(0) == [("pair-0", 0)]
        assert len(switch.applies) == 1

    run_virtual(main)


def test_a_step_of_an_earlier_start_that_was_never_sent_is_not_waited_for() -> None:
    async def main() -> None:
        store, switch, record = HeldStore(), FakeSwitch(), Recorded()
        journal(store)
        world = after_a_restart(switch, store, record)
        await world.start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle(60)
        assert outcomes(store)[0][:2] == (1, StepState.FAILED)
        assert world.granted(0) == [("pair-0", 0)]
        assert (asyncio.get_running_loop().time(), len(switch.applies)) == (0.0, 1)

    run_virtual(main)


def test_a_step_of_an_earlier_start_that_was_sent_is_waited_for() -> None:
    async def main() -> None:
        store, switch, record = HeldStore(), FakeSwitch(), Recorded(1)
        journal(store)
        world = after_a_restart(switch, store, record)
        await world.start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(2)
        assert (reason(world, 0), record.sent) == (Reason.MOVING, {1})
        await asyncio.sleep(2)
        assert world.granted(0) == [("pair-0", 0)]
        assert record.sent == set()

    run_virtual(main)


def test_a_step_is_recorded_from_before_its_command_leaves_until_it_is_settled() -> None:
    async def main() -> None:
        record = Recorded()
        seen: list[set[int]] = []

        async def look() -> None:
            seen.append(set(record.sent))
            await asyncio.sleep(1)

        world = await World(switch=FakeSwitch(behave=look), under_way=record).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(0.5)
        assert (seen, record.sent) == ([{1}], {1})
        await asyncio.sleep(1)
        assert (record.begun, record.sent) == ([1], set())

    run_virtual(main)


def test_a_step_that_this_replica_may_not_send_any_more_is_not_recorded() -> None:
    async def main() -> None:
        record, leads = Recorded(), [True, False]
        world = await World(
            under_way=record, may_step=lambda: leads.pop(0) if len(leads) > 1 else leads[0]
        ).start()
        world.arrive("pair-0", 0, 0, 1)
        await world.settle(60)
        assert (record.begun, world.switch.applies) == ([], [])

    run_virtual(main)
