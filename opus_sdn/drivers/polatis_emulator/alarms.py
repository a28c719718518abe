"""Power alarms as the device raises them: on the crossing of a threshold, never merely for being below it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from opus_sdn.drivers.polatis_emulator.optics import Optics

ALARMS_KEPT = 512
AVERAGING_DEFAULT = 4
AVERAGING_BASE_MS = 10.0


@dataclass(frozen=True, slots=True)
class AlarmSetting:
    """One port's alarm. `single`: it disarms itself when it has fired. Thresholds in dBm, hold-off in s."""

    enabled: bool = False
    single: bool = False
    low_dbm: float = -60.0
    degrade_dbm: float = -60.0
    high_dbm: float = 25.0
    holdoff_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm. `at` = seconds since 1970; `kind` as the device names it."""

    at: float
    kind: str
    port: int
    message: str


class Alarms:
    """Watches the ports whose alarm is armed. `listen` is called with every alarm and every clearing."""

    def __init__(
        self,
        optics: Optics,
        sleep: Callable[[float], Awaitable[object]],
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        wall: Callable[[], float],
    ) -> None:
        self.settings: dict[int, AlarmSetting] = {}
        self.averaging: dict[int, int] = {}
        self.active: dict[int, Alarm] = {}
        self.history: deque[Alarm] = deque(maxlen=ALARMS_KEPT)
        self.listen: Callable[[Alarm], None] = lambda _alarm: None
        self._optics = optics
        self._sleep = sleep
        self._spawn = spawn
        self._wall = wall
        self._below: dict[int, bool] = {}  # armed ports: whether they are below their threshold
        self._losses: dict[int, int] = {}  # port -> number of its newest loss

    def window_s(self, port: int) -> float:
        """Over how long the port's readings are averaged: 10 ms, doubled by every step of the setting."""
        return AVERAGING_BASE_MS * (1 << (self.averaging.get(port, AVERAGING_DEFAULT) - 1)) / 1e3

    def arm(self, port: int, setting: AlarmSetting) -> None:
        """Set a port's alarm. A port that is below the threshold already has crossed nothing."""
        self.settings[port] = setting
        self._below[port] = self._optics.power_dbm(port) <= setting.low_dbm

    def light_changed(self, ports: Collection[int]) -> None:
        """The light at these ports is another one."""
        for port in ports:
            setting = self.settings.get(port)
            if setting is None:
                continue
            before, now = self._below[port], self._optics.power_dbm(port) <= setting.low_dbm
            self._below[port] = now
            if before and not now:
                self._spawn(self._clear(port, setting))
            elif now and not before and setting.enabled:
                self._losses[port] = self._losses.get(port, 0) + 1
                self._spawn(self._raise(port, setting, self._losses[port]))

    def clear(self) -> None:
        """Forget the active alarms, as an operator does."""
        self.active.clear()

    async def _raise(self, port: int, setting: AlarmSetting, loss: int) -> None:
        # A reading follows the light only as fast as it is averaged: a shorter gap is never seen.
        await self._sleep(self.window_s(port))
        again = self._losses[port] != loss or port in self.active
        if again or not self._below[port]:
            return
        if setting.single:
            self.settings[port] = replace(setting, enabled=False)
        self._tell(
            Alarm(self._wall(), "NOTIF_PORT_POWER", port, f"Loss of light on port {port}"), active=True
        )

    async def _clear(self, port: int, setting: AlarmSetting) -> None:
        await self._sleep(setting.holdoff_s)
        if port in self.active and not self._below[port]:
            self._tell(
                Alarm(self._wall(), "NOTIF_PORT_POWER_CLEAR", port, f"Light back on port {port}"),
                active=False,
            )

    def _tell(self, alarm: Alarm, *, active: bool) -> None:
        if active:
            self.active[alarm.port] = alarm
        else:
            self.active.pop(alarm.port, None)
        self.history.append(alarm)
        self.listen(alarm)
