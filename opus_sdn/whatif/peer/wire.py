"""One directed link while one operation uses it: when each of its messages starts, and when the link falls
free.

A link is busy from the start of a message until a `Free` event. A change of topology is a `Pulse`: the link
is made busy, whatever it carries, and a further `Free` comes 1 ns later or, where its bandwidth changes,
after the delay. An older `Free` is not withdrawn by that: it then frees the link in the middle of a
message.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple

from opus_sdn.whatif.peer.order import Chain, Chains, UnknownOrderError

NEVER = 1 << 200  # later than the end of the longest step that can be asked for

# Where a chain ends: (START, member, 0), (LINK, member, number of the free event), (PULSE, member, number).
Root = tuple[int, int, int]
START, LINK, PULSE = 0, 1, 2

Flight = tuple[int, int] | None  # ns until arrival, ns until free; None on a dark link


class Free(NamedTuple):
    """The link falls free: when, when that was put into the queue, and what decides its order there."""

    time: int
    inserted: int
    chain: Chain | None
    root: Root


class Pulse(NamedTuple):
    """A change of topology as one link sees it: when it comes, and when the link is free again.

    The event that it comes with was put into the queue at `first` at the earliest and `last` at the latest.
    """

    time: int
    free: int
    first: int
    last: int


class Wire:
    """The link's future, message by message. `flights[e]` holds between the e-th pulse and the next."""

    __slots__ = (
        "_chains",
        "_epoch",
        "_flights",
        "_idles_put_in",
        "_last",
        "_place",
        "_pulses",
        "_sent_before",
        "busy",
        "frees",
        "idles",
        "marks",
    )

    def __init__(
        self,
        chains: Chains,
        place: int,
        busy: bool,
        frees: list[Free],
        flights: tuple[Flight, ...],
        pulses: tuple[Pulse, ...],
    ) -> None:
        self._chains, self._place = chains, place
        self.busy = busy
        self.frees = frees
        self._flights = flights
        self._pulses = pulses
        self._epoch = 0
        self._last = -NEVER  # when the last message started
        self._sent_before = False  # in the nanosecond of the next pulse, but before it
        self.marks: list[int] = []  # when it became busy
        self.idles: list[int] = []  # when it fell free with nothing to send
        self._idles_put_in: list[int] = []

    def send(
        self, time: int, gap: int | None, chain: Chain | None, root: Root
    ) -> tuple[int, int, Chain | None, Root]:
        """A message handed over at `time`, by an event put into the queue `gap` ns before (None: unknown).

        Returns when it starts, how long it flies, and the chain and root of the event that starts it. It
        starts NEVER when it waits for a change of topology that has not come yet. Messages start in the
        order of these calls.
        """
        if time > self._last:
            self._go_on(time, gap)
        flight = self._flights[self._epoch]
        if self.busy or flight is None:
            while True:
                pulse = self._next_pulse()
                if self.frees and self.frees[0].time <= pulse:
                    free = self.frees.pop(0)
                    self.busy = False
                    flight = self._flights[self._epoch]
                    if flight is not None:
                        time, chain, root = free.time, free.chain, free.root
                        break
                    self._idle(free)
                elif pulse != NEVER:
                    self._pulse()
                else:
                    self._last = NEVER
                    return NEVER, 0, None, root
        self.busy = True
        self._last = time
        self.marks.append(time)
        self._add(Free(time + flight[1], time, self._chains.link((-flight[1],), chain), root))
        return time, flight[0], chain, root

    def finish(self, end: int) -> None:
        """Nothing more is sent before `end`; take in the pulses until then, all that are known if NEVER."""
        if NEVER > self._last > end:
            raise UnknownOrderError("an operation ends before its last message has started")
        while self._next_pulse() <= min(end, NEVER - 1):
            self._settle(self._next_pulse())
            self._pulse()

    def busy_at(self, time: int, at_first: bool, *, all_past: bool) -> bool:
        """Whether the link is busy at `time`; `at_first`: whether it was when it was taken.

        `all_past`: what happens at `time` has happened.
        """
        falls = self.idles + [free.time for free in self.frees]
        mark, idle = bisect_right(self.marks, time), bisect_right(falls, time)
        last_mark = self.marks[mark - 1] if mark else -NEVER
        last_idle = falls[idle - 1] if idle else -NEVER
        if time in (last_mark, last_idle) and not all_past:
            raise UnknownOrderError("a link changes in the nanosecond of a request")
        if not mark and not idle:
            return at_first
        return last_mark >= last_idle  # what falls free and is used again in one nanosecond is busy

    def put_in(self, time: int) -> list[int]:
        """When the events were put into the queue by which the link falls idle at `time`."""
        found = [put_in for idle, put_in in zip(self.idles, self._idles_put_in, strict=True) if idle == time]
        return found + [free.inserted for free in self.frees if free.time == time]

    def fallen_after(self, time: int) -> list[int]:
        """When the link falls free with nothing to send, after `time`, as far as is known."""
        return self.idles[bisect_right(self.idles, time) :] + [f.time for f in self.frees if f.time > time]

    def last_event(self) -> int:
        """When the last thing happens on the link that is known of now."""
        return max([free.time for free in self.frees] + self.marks[-1:] + self.idles[-1:], default=-NEVER)

    def _next_pulse(self) -> int:
        return self._pulses[self._epoch].time if self._epoch < len(self._pulses) else NEVER

    def _go_on(self, time: int, gap: int | None) -> None:
        """Let happen what happens before the event at `time` that hands over the next message."""
        while self._next_pulse() <= time:
            if self._next_pulse() == time and self._before_pulse(time, gap):
                break
            self._settle(self._next_pulse())
            self._pulse()
        self._settle(time - 1)
        while self.frees and self.frees[0].time == time:
            put_in = self.frees[0].inserted
            if gap is None or put_in == time - gap:
                raise UnknownOrderError("a message is sent in the nanosecond in which its link falls free")
            if put_in > time - gap:
                break
            self._free()

    def _settle(self, until: int) -> None:
        while self.frees and self.frees[0].time <= until:
            self._free()

    def _before_pulse(self, time: int, gap: int | None) -> bool:
        """Whether the event that sends a message comes before the change of topology of its nanosecond."""
        if gap is None:
            return True
        pulse = self._pulses[self._epoch]
        if pulse.last < time - gap:
            return False
        if pulse.first <= time - gap or (self.frees and self.frees[0].time <= time):
            raise UnknownOrderError("a message is sent in the nanosecond of a reconfiguration")
        self._sent_before = True
        return True

    def _free(self) -> None:
        self._idle(self.frees.pop(0))
        self.busy = False

    def _idle(self, free: Free) -> None:
        self.idles.append(free.time)
        self._idles_put_in.append(free.inserted)

    def _pulse(self) -> None:
        pulse = self._pulses[self._epoch]
        if self._last == pulse.time and not self._sent_before:
            raise UnknownOrderError("a message starts in the nanosecond of a reconfiguration")
        self.busy = True
        self.marks.append(pulse.time)
        chain = self._chains.link((pulse.time - pulse.free,), None)
        self._add(Free(pulse.free, pulse.time, chain, (PULSE, self._place, self._epoch)))
        self._epoch += 1
        self._sent_before = False

    def _add(self, free: Free) -> None:
        if any(other.time == free.time for other in self.frees):
            raise UnknownOrderError("a link falls free twice in one nanosecond")
        insort(self.frees, free)
