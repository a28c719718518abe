"""What a device tells unasked, for everybody who listens. Bounded: who does not listen loses the oldest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from opus_sdn.drivers.base import DeviceEvent, DeviceEventKind

EVENTS_KEPT = 1024


class EventStream:
    """Hands every event to every subscriber, each in its own pace. For one event loop."""

    def __init__(self) -> None:
        self._subscribers: set[_Subscriber] = set()
        self._closed = False

    def put(self, event: DeviceEvent) -> None:
        """Tell everybody who has subscribed before now."""
        for subscriber in self._subscribers:
            subscriber.put(event)

    def subscribe(self) -> AsyncIterator[DeviceEvent]:
        """Everything from now on; ends when the stream is closed."""
        subscriber = _Subscriber()
        if self._closed:
            subscriber.close()
        else:
            self._subscribers.add(subscriber)
        return self._iterate(subscriber)

    def close(self) -> None:
        """End every subscription, once it has seen what was put before."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.close()

    async def _iterate(self, subscriber: _Subscriber) -> AsyncIterator[DeviceEvent]:
        try:
            while True:
                event = await subscriber.get()
                if event is None:
                    return
                yield event
        finally:
            self._subscribers.discard(subscriber)


class _Subscriber:
    def __init__(self) -> None:
        self._events: deque[DeviceEvent] = deque()
        self._lost = 0
        self._closed = False
        self._news = asyncio.Event()

    def put(self, event: DeviceEvent) -> None:
        if len(self._events) >= EVENTS_KEPT:
            self._events.popleft()
            self._lost += 1
        self._events.append(event)
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def get(self) -> DeviceEvent | None:
        """The next event, with a word about those that were lost before it; None at the end."""
        while not self._events and not self._closed:
            self._news.clear()
            await self._news.wait()
        if self._lost:
            lost, self._lost = self._lost, 0
            return DeviceEvent(DeviceEventKind.OTHER, f"{lost} events were lost: nobody read them in time")
        return self._events.popleft() if self._events else None
