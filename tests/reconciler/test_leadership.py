"""When a process leads and may start device steps, on a virtual clock: TTL 3 s, renewed every second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from opus_sdn.intent.changes import StepMoved, StepState
from opus_sdn.reconciler.leadership import Leadership
from opus_sdn.store.base import StoreError
from opus_sdn.store.lease import LeaseRecord
from tests.drivers.virtual_time import now, run_virtual
from tests.reconciler.world import FakeSwitch, HeldStore, World

TTL_S = 3.0


class Inline(Executor):
    """Calls at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # as an executor does
            done.set_exception(error)
        return done


@dataclass
class FakeLease:
    """A lease whose answers the test scripts: `renewals` are the times of the calls."""

    ttl_s: float = TTL_S
    asked_at: float = 0.0
    quiet_until: float = 0.0
    record: LeaseRecord | None = None
    free_at: float = 0.0
    away: Callable[[], bool] = lambda: False
    mine: bool = True
    reads: list[float] = field(default_factory=list)
    renewals: list[float] = field(default_factory=list)
    released: list[tuple[int, bool]] = field(default_factory=list)
    ended: list[LeaseRecord] = field(default_factory=list)

    def read(self) -> LeaseRecord | None:
        self._must_be_there()
        self.reads.append(now())
        return self.record

    def free_in_s(self, record: LeaseRecord | None) -> float:
        return max(0.0, self.free_at - now())

    def end_holder(self, record: LeaseRecord) -> None:
        self.ended.append(record)

    def renew(self, epoch: int) -> bool:
        self._must_be_there()
        self.renewals.append(now())
        return self.mine

    def release(self, epoch: int, *, drained: bool) -> None:
        self._must_be_there()
        self.released.append((epoch, drained))

    def close(self) -> None:
        return

    def _must_be_there(self) -> None:
        if self.away():
            raise StoreError("the lease cannot be reached")


def held(left_s: float = 2.0, holder: str = "other") -> LeaseRecord:
    return LeaseRecord(7, holder, "http://other", 4, TTL_S, 5.0, left_s, left_s + 5.0)


def leadership(lease: FakeLease) -> Leadership:
    return Leadership(lease, clock=asyncio.get_running_loop().time, thread=Inline())


def test_a_lease_is_renewed_every_third_of_its_time_for_as_long_as_that_works() -> None:
    async def main() -> None:
        lease = FakeLease()
        mine = leadership(lease)
        assert not mine.may_step(), "nothing is started before the lease is taken"
        holding = asyncio.create_task(mine.hold())
        await asyncio.sleep(10)
        assert lease.renewals == []
        lease.asked_at = now()
        mine.took(8)
        await asyncio.sleep(30)
        assert [round(at - 10, 3) for at in lease.renewals[:4]] == [0, 1, 2, 3]
        assert mine.may_step()
        assert not holding.done()
        holding.cancel()

    run_virtual(main)


@pytest.mark.parametrize("away_s", [0.5, 1.5, 1.9])
def test_a_database_that_is_away_for_less_than_two_thirds_of_the_time_costs_nothing(away_s: float) -> None:
    async def main() -> None:
        lease = FakeLease()
        mine = leadership(lease)
        mine.took(8)
        holding = asyncio.create_task(mine.hold())
        await asyncio.sleep(5.001)
        began = now()
        lease.away = lambda: now() < began + away_s - 1  # the last renewal was a second ago at most
        await asyncio.sleep(20)
        assert not holding.done()
        assert mine.may_step()
        holding.cancel()

    run_virtual(main)


def test_a_leader_that_cannot_renew_for_two_thirds_of_the_time_leads_no_longer() -> None:
    async def main() -> None:
        lease = FakeLease()
        mine = leadership(lease)
        mine.took(8)
        holding = asyncio.create_task(mine.hold())
        await asyncio.sleep(5.5)
        lease.away = lambda: True
        assert lease.renewals[-1] == pytest.approx(5)
        await asyncio.sleep(1.4)  # at 6.9 s
        assert mine.may_step()
        await asyncio.sleep(0.2)  # at 7.1 s: 2 s after the renewal at 5 s
        assert not mine.may_step()
        assert "not renewed in time: the lease cannot be reached" in await holding

    run_virtual(main)


def test_a_process_that_was_stopped_starts_nothing_when_it_goes_on() -> None:
    """SIGSTOP: the clock goes on and nothing else does; what runs first afterwards may be anything."""

    async def main() -> None:
        clock = [0.0]
        lease = FakeLease()
        mine = Leadership(lease, clock=lambda: clock[0], thread=Inline())
        mine.took(8)
        assert mine.may_step()
        clock[0] = 2.0
        assert not mine.may_step()
        assert "not renewed in time" in await mine.hold()
        assert lease.renewals == [], "it does not even try to get the lease back"

    run_virtual(main)


def test_a_lease_that_another_process_has_taken_ends_it_at_once() -> None:
    async def main() -> None:
        lease = FakeLease()
        mine = leadership(lease)
        mine.took(8)
        holding = asyncio.create_task(mine.hold())
        await asyncio.sleep(1.5)
        lease.mine = False
        assert await holding == "another process has taken it"
        assert not mine.may_step()
        assert now() == pytest.approx(2)
        lease.mine, lease.asked_at = True, now()
        again = asyncio.create_task(mine.hold())
        mine.took(12)
        await asyncio.sleep(1)
        assert mine.may_step(), "it may lead again, under another epoch"
        again.cancel()

    run_virtual(main)


def test_a_candidate_looks_often_and_ends_the_session_of_a_leader_whose_time_is_over() -> None:
    async def main() -> None:
        lease = FakeLease(record=held(), free_at=10.0)
        mine = leadership(lease)
        await mine.free()
        assert now() == pytest.approx(10)
        gaps = {
            round(later - earlier, 3) for earlier, later in zip(lease.reads, lease.reads[1:], strict=False)
        }
        assert max(gaps) <= TTL_S / 5, "it has to see every renewal soon"
        assert lease.ended == [lease.record]
        assert mine.leader == "http://other"

    run_virtual(main)


def test_a_lease_that_nobody_holds_is_free_and_nobody_is_ended() -> None:
    async def main() -> None:
        for record in (None, held(-1.0, holder="")):
            lease = FakeLease(record=record)
            mine = leadership(lease)
            await mine.free()
            assert now() == 0
            assert lease.ended == []
            assert mine.leader is None

    run_virtual(main)


def test_a_candidate_without_a_database_waits_for_it_and_knows_no_leader() -> None:
    async def main() -> None:
        lease = FakeLease(record=held(), free_at=0.0, away=lambda: now() < 20)
        mine = leadership(lease)
        mine.seen = held()
        await mine.free()
        assert now() == pytest.approx(20, abs=TTL_S)

    run_virtual(main)


def test_stopping_in_order_releases_the_lease_once() -> None:
    async def main() -> None:
        lease = FakeLease()
        mine = leadership(lease)
        await mine.release(drained=True)
        assert lease.released == [], "it has none"
        mine.took(8)
        await mine.release(drained=False)
        await mine.release(drained=True)
        assert lease.released == [(8, False)]
        assert not mine.may_step()

    run_virtual(main)


def test_a_lease_that_cannot_be_released_only_runs_out() -> None:
    async def main() -> None:
        lease = FakeLease(away=lambda: True)
        mine = leadership(lease)
        mine.took(8)
        await mine.release(drained=True)
        assert not mine.may_step()

    run_virtual(main)


def test_a_replica_whose_lease_is_over_sends_nothing_to_the_switch() -> None:
    async def main() -> None:
        leads = True
        store, switch = HeldStore(), FakeSwitch()
        world = await World(store=store, switch=switch, may_step=lambda: leads).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(0.1)
        assert len(switch.applies) == 1
        leads = False
        world.release("pair-0", 0, 0, 1)
        world.arrive("pair-1", 0, 1, 2)
        await asyncio.sleep(60)
        assert len(switch.applies) == 1
        assert world.granted(2) == []

    run_virtual(main)


def test_a_step_that_was_started_and_not_sent_before_the_lease_was_over_is_not_sent() -> None:
    async def main() -> None:
        asked = 0

        def once() -> bool:
            nonlocal asked
            asked += 1
            return asked == 1

        store, switch = HeldStore(), FakeSwitch()
        world = await World(store=store, switch=switch, may_step=once).start()
        world.arrive("pair-0", 0, 0, 1)
        await asyncio.sleep(60)
        moves = [c for b in store.submitted for c in b.changes if isinstance(c, StepMoved)]
        assert [move.state for move in moves][:2] == [StepState.STARTED, StepState.FAILED]
        assert "does not lead any more" in str(moves[1].detail)
        assert switch.applies == []

    run_virtual(main)
