"""Puts the news of a host's ranks into few requests, and gives each rank its part of the answers.

A rank's request waits here as it would at the controller. Whenever somebody has something to say, one request
goes out for all who wait: with the news of those who came, and only the name and last grant of the others,
so that the controller has one poll of this host. A rank is answered with what the controller said of it and
never by the agent itself, for a rank counts how long it was not answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from opus_sdn.agent.upstream import Answer, UpstreamGoneError

LINGER_S: Final = 0.0005  # for ranks that speak at the same time, as members of a group do
RANKS_MAX: Final = 1024  # of one request
PAUSE_S: Final = 0.05  # before asking again after an answer without news before its time
NEARLY_S: Final = 0.02
OK: Final = 200

Send = Callable[[bytes, float], Awaitable[Answer]]
"""Sends a body to the route of one job; the seconds are what the answer may wait."""


@dataclass(slots=True, eq=False)
class Pending:
    """A rank's request that has not been answered. `news` is None once it was sent."""

    rank: int
    last_grant: int
    news: dict[str, Any] | None
    entry: dict[str, Any]
    deadline: float
    answer: asyncio.Future[Answer]


@dataclass(slots=True)
class Line:
    """All requests of one job, incarnation and start number to one controller."""

    head: dict[str, Any]
    send: Send
    waiting: dict[int, Pending] = field(default_factory=dict)
    quick: list[Pending] = field(default_factory=list)
    saying: bool = False
    replaced: dict[int, list[Pending]] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    polls: int = 0
    due: asyncio.TimerHandle | None = None

    @property
    def is_in_use(self) -> bool:
        """Whether somebody waits for something."""
        return bool(self.waiting or self.quick or self.tasks or self.due)

    async def ask(self, body: dict[str, Any]) -> Answer:
        """A rank's request, answered in its time. Raises UpstreamGoneError."""
        loop = asyncio.get_running_loop()
        entry, wait_s = body["ranks"][0], float(body["wait_s"])
        pending = Pending(
            int(entry["rank"]),
            int(entry.get("last_grant", 0)),
            entry,
            entry,
            loop.time() + wait_s,
            loop.create_future(),
        )
        if wait_s > 0:
            self._replace(pending)
        else:
            self.quick.append(pending)
        if self.due is None:
            self.due = loop.call_later(LINGER_S, self._flush)
        try:
            return await pending.answer
        finally:
            if self.waiting.get(pending.rank) is pending:
                del self.waiting[pending.rank]

    def _replace(self, pending: Pending) -> None:
        """A rank has one poll; its older one is over."""
        older = self.waiting.get(pending.rank)
        if older is not None and older.news is not None:
            self._flush()  # what it said goes out before what it says now
        if older is not None:
            self.replaced.setdefault(pending.rank, []).append(older)
        self.waiting[pending.rank] = pending

    def drop(self, rank: int) -> None:
        """Nobody speaks for a rank that is gone."""
        for pending in (*self.waiting.values(), *self.quick, *self.replaced.pop(rank, ())):
            if pending.rank == rank:
                pending.answer.cancel()
        self.waiting.pop(rank, None)
        self.quick = [pending for pending in self.quick if pending.rank != rank]

    def _flush(self) -> None:
        if self.due is not None:
            self.due.cancel()
            self.due = None
        if self.quick and not self.saying:
            self.saying = True
            self._start(self._say())
        if any(pending.news is not None for pending in self.waiting.values()):
            self._poll()

    async def _say(self) -> None:
        """Requests that do not wait, one after the other: what a rank says later must not come first."""
        try:
            while self.quick:
                batch: dict[int, Pending] = {}
                later: list[Pending] = []
                for pending in self.quick:
                    full = len(batch) >= RANKS_MAX or pending.rank in batch
                    if full:
                        later.append(pending)
                    else:
                        batch[pending.rank] = pending
                self.quick = later
                await self._exchange(list(batch.values()), 0.0, is_poll=False)
        finally:
            self.saying = False

    def _poll(self) -> None:
        waiting = list(self.waiting.values())
        if not waiting:
            return
        now = asyncio.get_running_loop().time()
        wait_s = max(0.0, min(pending.deadline for pending in waiting) - now)
        for begin in range(0, len(waiting), RANKS_MAX):
            self._start(self._exchange(waiting[begin : begin + RANKS_MAX], wait_s, is_poll=True))

    def _start(self, exchange: Awaitable[None]) -> None:
        task = asyncio.ensure_future(exchange)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _exchange(self, asked: list[Pending], wait_s: float, *, is_poll: bool) -> None:
        """One request for these ranks, and what becomes of them."""
        self.polls += is_poll
        number = self.polls
        entries = [pending.news or _only_asks(pending) for pending in asked]
        for pending in asked:
            pending.news = None
        try:
            answer = await self._send(entries, wait_s)
        except UpstreamGoneError as gone:
            for pending in asked:
                self._settle(pending, gone)
            return
        if answer.status != OK and len(asked) > 1:
            # Refused as a whole: each rank gets its own refusal. Repeating what was taken is harmless.
            await asyncio.gather(
                *(self._alone(pending, entry) for pending, entry in zip(asked, entries, strict=True))
            )
            return
        if answer.status != OK:
            self._settle(asked[0], answer)
            return
        try:
            self._take(asked, answer, is_poll=is_poll)
        except (KeyError, TypeError, ValueError) as wrong:
            for pending in asked:
                self._settle(pending, UpstreamGoneError(f"an answer that is none: {wrong!r}"))
            return
        if is_poll and number == self.polls and self.waiting:
            if not any(pending.news is not None for pending in self.waiting.values()):
                await asyncio.sleep(PAUSE_S if len(asked) == len(self.waiting) else 0)
            if number == self.polls:
                self._poll()

    def _take(self, asked: list[Pending], answer: Answer, *, is_poll: bool) -> None:
        """Answer those for whom there is news, whose time is over, or who have asked again meanwhile."""
        found = json.loads(answer.body)
        of_rank = {entry["rank"]: entry for entry in found["ranks"]}
        now = asyncio.get_running_loop().time()
        for pending in asked:
            entry = of_rank[pending.rank]
            body = json.dumps({**found, "ranks": [entry]}, separators=(",", ":")).encode()
            mine = Answer(answer.status, answer.content_type, body)
            self._settle_replaced(pending.rank, mine)
            over = now >= pending.deadline - NEARLY_S
            if not is_poll or over or _has_news(entry) or self.waiting.get(pending.rank) is not pending:
                self._settle(pending, mine)

    async def _alone(self, pending: Pending, entry: dict[str, Any]) -> None:
        try:
            wait_s = max(0.0, pending.deadline - asyncio.get_running_loop().time())
            self._settle(pending, await self._send([entry], wait_s))
        except UpstreamGoneError as gone:
            self._settle(pending, gone)

    async def _send(self, entries: list[dict[str, Any]], wait_s: float) -> Answer:
        body = {**self.head, "wait_s": wait_s, "ranks": entries}
        return await self.send(json.dumps(body, separators=(",", ":")).encode(), wait_s)

    def _settle_replaced(self, rank: int, outcome: Answer | UpstreamGoneError) -> None:
        for older in self.replaced.pop(rank, ()):
            self._settle(older, outcome)

    def _settle(self, pending: Pending, outcome: Answer | UpstreamGoneError) -> None:
        self._settle_replaced(pending.rank, outcome)
        if self.waiting.get(pending.rank) is pending:
            del self.waiting[pending.rank]
        if pending.answer.done():
            return
        if isinstance(outcome, UpstreamGoneError):
            pending.answer.set_exception(outcome)
        else:
            pending.answer.set_result(outcome)


def _only_asks(pending: Pending) -> dict[str, Any]:
    return {"rank": pending.rank, "last_grant": pending.last_grant}


def _has_news(entry: dict[str, Any]) -> bool:
    return bool(entry.get("grants") or entry.get("cut_requests") or entry.get("failure"))


class Arrivals:
    """The lines of all jobs of the host."""

    def __init__(self) -> None:
        self._lines: dict[tuple[object, ...], Line] = {}

    async def ask(self, key: tuple[object, ...], body: dict[str, Any], send: Send) -> Answer:
        """A request of one rank. `key` names controller, job and credentials. Raises UpstreamGoneError."""
        head = {name: value for name, value in body.items() if name not in ("ranks", "wait_s")}
        whole = (*key, json.dumps(head, sort_keys=True))
        line = self._lines.get(whole)
        if line is None:
            self._lines = {name: other for name, other in self._lines.items() if other.is_in_use}
            line = self._lines[whole] = Line(head, send)
        return await line.ask(body)

    def drop(self, rank: int, job: str) -> None:
        """A rank of a job has gone."""
        for key, line in list(self._lines.items()):
            if job in key:
                line.drop(rank)


def is_of_one_rank(body: object) -> bool:
    """Whether it is a rank's own news, as shims send it."""
    if not isinstance(body, dict) or not isinstance(body.get("ranks"), list) or len(body["ranks"]) != 1:
        return False
    entry, wait_s = body["ranks"][0], body.get("wait_s")
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("rank"), int)
        and isinstance(entry.get("last_grant", 0), int)
        and isinstance(wait_s, int | float)
        and not isinstance(wait_s, bool)
    )
