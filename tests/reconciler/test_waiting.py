"""Polls and readers of the history: who is woken, when, and by what."""

from __future__ import annotations

import asyncio
import time

import pytest

from opus_sdn.intent.model import RankKey
from opus_sdn.reconciler.clock import steady_clock
from opus_sdn.reconciler.feed import EventFeed
from opus_sdn.reconciler.waiters import Waiters
from tests.drivers.virtual_time import now, run_virtual


def keys(*ranks: int) -> tuple[RankKey, ...]:
    return tuple(RankKey("job", 1, rank) for rank in ranks)


def test_news_for_any_rank_of_a_poll_wakes_it_and_no_other() -> None:
    async def main() -> None:
        waiters, loop = Waiters(), asyncio.get_running_loop()
        host_a, host_b = waiters.open(keys(0, 1), loop), waiters.open(keys(2, 3), loop)
        waiters.wake(keys(1, 9))
        assert host_a.future.result() is True
        assert not host_b.future.done()

    run_virtual(main)


def test_a_newer_poll_of_a_rank_ends_its_older_one_and_survives_its_closing() -> None:
    async def main() -> None:
        waiters, loop = Waiters(), asyncio.get_running_loop()
        older = waiters.open(keys(0, 1), loop)
        newer = waiters.open(keys(1), loop)
        assert older.future.result() is False
        waiters.close(older)
        assert len(waiters) == 1
        waiters.wake(keys(1))
        assert newer.future.result() is True
        waiters.close(newer)
        assert len(waiters) == 0

    run_virtual(main)


def test_a_reader_is_woken_by_a_newer_event_and_not_by_one_that_it_knows() -> None:
    async def main() -> None:
        feed = EventFeed(5)
        assert await feed.newer_than(4, 10)
        reader = asyncio.ensure_future(feed.newer_than(7, 10))
        await asyncio.sleep(1)
        feed.advance(7)
        await asyncio.sleep(1)
        assert not reader.done()
        feed.advance(8)
        assert await reader
        assert now() == 2

    run_virtual(main)


def test_a_reader_goes_on_when_time_is_up_and_when_the_feed_ends() -> None:
    async def main() -> None:
        feed = EventFeed()
        assert not await feed.newer_than(0, 3)
        assert now() == 3
        reader = asyncio.ensure_future(feed.newer_than(0, 60))
        await asyncio.sleep(1)
        feed.close()
        assert not await reader
        assert now() == 4

    run_virtual(main)


def test_setting_the_machine_time_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = steady_clock()
    before = clock()
    assert abs(before - time.time()) < 60
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock() < before + 60
