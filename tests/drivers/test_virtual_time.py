"""The clock that the tests of delays rely on."""

from __future__ import annotations

import asyncio

import pytest

from tests.drivers import virtual_time
from tests.drivers.virtual_time import StalledError, now, run_virtual


def test_time_passes_by_what_was_slept_and_no_more() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        await asyncio.sleep(0)
        return now()

    assert run_virtual(main) == pytest.approx(3600)


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((name, now()))

        await asyncio.gather(sleeper("late", 0.3), sleeper("early", 0.1), sleeper("middle", 0.2))
        return woken

    woken = run_virtual(main)
    assert [name for name, _ in woken] == ["early", "middle", "late"]
    assert [at for _, at in woken] == pytest.approx([0.1, 0.2, 0.3])


def test_a_timeout_strikes_on_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1000)
        return now()

    assert run_virtual(main) == pytest.approx(1000)


def test_a_hang_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "STALL_S", 0.05)

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StalledError, match="every task waits"):
        run_virtual(main)
