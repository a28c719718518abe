"""A rank of the simulated world: its program, its device, and the session that the shim would have.

What it says and what an answer means to it is the shim's own `Conversation`, `read_answer` and `judge`. When
it says it follows `RankSession`, whose thread and sockets are replaced by the world's clock and network.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from opus_sdn.intent.errors import Problem
from opus_sdn.intent.model import Arrival, Cut, Grant, Release
from opus_sdn.shim.client import BACKOFF_FIRST_S, BACKOFF_MAX_S, decode
from opus_sdn.shim.conversation import Conversation, JobFailure, Letter
from opus_sdn.shim.errors import ControllerError, ControllerUnavailableError
from opus_sdn.shim.session import CLOSE_S_MIN, EXCHANGES_MAX, LINGER_S, POLL_S_MAX, UNREACHABLE
from opus_sdn.shim.settings import Address
from opus_sdn.shim.verdict import Verdict, judge
from opus_sdn.shim.wire import job_path, read_answer
from tests.intent.offers import Table
from tests.intent.operations import VirtualJob
from tests.intent.running_rank import RunningRank
from tests.intent.virtual_rank import Use
from tests.intent.virtual_switch import ViolationError

ADDRESS = Address(tls=False, host="127.0.0.1", port=8700)


@dataclass(slots=True, eq=False)
class Exchange:
    """A request under way. `over`: answered, given up, or broken. `hang_up` closes its connection."""

    letter: Letter
    sent_at: float
    expires_at: float
    is_poll: bool
    over: bool = False
    hang_up: Callable[[], None] | None = None


class Around(Protocol):
    """What a rank needs of the world around it."""

    def now(self) -> float: ...

    def jitter(self) -> float: ...

    def send(self, rank: SimRank, exchange: Exchange, body: bytes) -> None: ...

    def wake_at(self, rank: SimRank, at: float) -> None: ...

    def granted(self, rank: SimRank, grants: tuple[Grant, ...]) -> None: ...

    def failed(self, rank: SimRank) -> None: ...

    def left(self, rank: SimRank) -> None: ...


@dataclass(slots=True, kw_only=True)
class Program(RunningRank):
    """The program of a rank; what it declares goes into the conversation."""

    talk: Conversation

    def tell(self, arrival: Arrival, *, new: bool) -> None:
        use = (arrival.stream, arrival.n)
        if new:
            offer = {"closed": arrival.closed, "quiet": arrival.quiet}
            self.talk.arrive(*use, blocking=arrival.blocking, **offer)
            return
        if arrival.blocking:
            self.talk.block(*use)
        self.talk.offer(*use, arrival.closed, arrival.quiet)

    def tell_cut(self, cut: Cut) -> None:
        self.talk.cut(cut.stream, cut.n, cut.issued)

    def tell_release(self, release: Release) -> None:
        self.talk.release(release.stream, release.n)

    def finish_one(self, use: Use) -> None:
        self.finished.add(use)
        self.released[use[0]] += 1
        self.talk.release(*use)


def nothing(job: VirtualJob, rank: int, at: int, idle: bool) -> tuple[int, int]:
    """The table of a rank that offers no runs."""
    return 1, 1


@dataclass(frozen=True, slots=True)
class Offers:
    """What the ranks of a world offer: by a table, and with a seed to dream by wrong ones now and then."""

    table: Table = nothing
    dream: int | None = None


NO_OFFERS = Offers()


class SimRank:
    """One process. `state`: running, failed (told or fenced, aborting), leaving, gone (left or dead)."""

    def __init__(
        self,
        around: Around,
        job: VirtualJob,
        incarnation: int,
        rank: int,
        start: int,
        *,
        fence_s: float = 15.0,
        abort_s: float = 5.0,
        deadline_s: float,
        offers: Offers,
    ) -> None:
        self.job, self.incarnation, self.rank = job, incarnation, rank
        self.talk = Conversation(rank, start)
        dreamer = random.Random(f"dream {offers.dream} {rank}") if offers.dream is not None else None
        self.program = Program(job, rank, talk=self.talk, table=offers.table, dreamer=dreamer)
        self.failure: JobFailure | None = None
        self.dead = False
        self.gone = False
        self.bade_farewell = False  # and was answered
        self.closing = False
        self.issued = 0
        self._around = around
        self.abort_s = abort_s
        self._fence_s, self._deadline_s = fence_s, deadline_s
        self._poll_s = min(POLL_S_MAX, fence_s / 3)
        self._answer_s = max(1.0, fence_s / 3)
        self._heard_at = self._quiet_since = around.now()
        self._retry_at = 0.0
        self._pause_s = BACKOFF_FIRST_S
        self._one_by_one = False
        self._closing_until = 0.0
        self._under_way: list[Exchange] = []

    @property
    def alive(self) -> bool:
        """Its process runs and its job has not failed for it."""
        return not self.dead and not self.gone and self.failure is None

    @property
    def path(self) -> str:
        """The hot route."""
        return job_path(self.job.spec.name, "arrivals")

    def turn(self) -> None:
        """Say what is due, and ask to be woken when something is due again."""
        if self.dead or self.gone:
            return
        now = self._around.now()
        self._watch(now)
        for late in [exchange for exchange in self._under_way if now >= exchange.expires_at]:
            self._lost(late)
        if self.closing:
            self._leave(now)
        elif self.failure is None:
            while (due := self._next(now)) is not None:
                self._send(*due)
        self._around.wake_at(self, self._next_event(now))

    def close(self) -> None:
        """Nothing is held any more: say what is left to say and leave."""
        self.closing = True
        self._closing_until = self._around.now() + max(CLOSE_S_MIN, self._fence_s)
        for exchange in list(self._under_way):
            self._give_up(exchange)

    def die(self) -> None:
        """The process is killed."""
        self.dead = True
        for exchange in list(self._under_way):
            self._give_up(exchange)

    def answered(self, exchange: Exchange, status: int, body: bytes) -> None:
        """An answer has come."""
        if exchange.over or self.dead or self.gone:
            return
        exchange.over = True
        self._under_way.remove(exchange)
        letter = exchange.letter
        try:
            fields = decode(ADDRESS, "a rank's news", status, body)
            answer = read_answer(fields, self.rank)
        except ControllerUnavailableError:
            self._back_off(letter)
        except ControllerError as refused:
            self._refusal(letter, refused)
        else:
            if self.closing and letter.is_farewell:
                self.bade_farewell = True
                self._go()
                return
            self._heard_at = max(self._heard_at, exchange.sent_at)
            self._quiet_since = self._around.now()
            self._pause_s = BACKOFF_FIRST_S
            heard = self.talk.answered(letter, answer)
            for grant in heard.grants:
                self.program.take(grant)
            for request in heard.cuts:
                self.program.take_cut(request)
            if heard.grants or heard.cuts:
                self._around.granted(self, heard.grants)
            if heard.failure is not None and not self.closing:
                self._fail(heard.failure)
        self.turn()

    def broken(self, exchange: Exchange) -> None:
        """The connection broke before an answer came."""
        if not exchange.over and not self.dead and not self.gone:
            self._lost(exchange)
            self.turn()

    def next_to_issue(self) -> Grant | None:
        """The grant whose operation is issued next, if it has been heard."""
        return self.program.upcoming(self.issued) if self.alive else None

    def describe(self) -> str:
        """Where it stands, for a picture of who waits for whom."""
        state = "dead" if self.dead else "gone" if self.gone else "closing" if self.closing else "runs"
        failure = f", failed: {self.failure.problem}: {self.failure.detail}" if self.failure else ""
        opened = [f"{s}#{n}" for s, n in self.talk._open]
        held = [f"{s}#{n}" for s, runs in self.talk._held.items() for n in runs]
        return (
            f"{self.job.spec.name}/{self.incarnation} {state}{failure}; start {self.talk.start}; "
            f"open {opened}; held {held}; {self.program.describe()}; requests {len(self._under_way)}"
        )

    def _watch(self, now: float) -> None:
        silent_s = now - self._heard_at
        if self.failure is not None or self.closing:
            return
        if self.talk.holding and silent_s >= self._fence_s:
            self._fail(JobFailure(UNREACHABLE, f"silent for {silent_s:.1f} s while holding"))
        elif self.talk.waiting and silent_s >= self._deadline_s:
            self._fail(JobFailure(UNREACHABLE, f"silent for {silent_s:.1f} s while waiting"))

    def _next_event(self, now: float) -> float:
        if self.closing:
            due = [x.expires_at for x in self._under_way] or [self._retry_at]
            return max(now + 0.001, min(*due, self._closing_until))
        if self.failure is not None:
            return now + self._poll_s
        events = [exchange.expires_at for exchange in self._under_way]
        if self.talk.holding:
            events.append(self._heard_at + self._fence_s)
        elif self.talk.waiting:
            events.append(self._heard_at + self._deadline_s)
        if self._retry_at > now:
            events.append(self._retry_at)
        elif self.talk.has_news or self._is_full():
            pass
        elif not any(x.is_poll for x in self._under_way):
            events.append(self._quiet_since + LINGER_S)
        elif all(x.is_poll for x in self._under_way):
            events.append(self._overdue_at())
        return min(events, default=now + self._poll_s)

    def _next(self, now: float) -> tuple[Letter, float] | None:
        self._one_by_one = self._one_by_one and self.talk.untold > 0
        if now < self._retry_at or self._is_full():
            return None
        if self._one_by_one:
            return self.talk.compose(most=1), 0.0
        listens = self.talk.listens
        if self.talk.has_news:
            return self.talk.compose(), self._poll_s if listens else 0.0
        if any(exchange.is_poll for exchange in self._under_way):
            checks = any(not exchange.is_poll for exchange in self._under_way)
            return None if checks or now < self._overdue_at() else (self.talk.compose(), 0.0)
        if (not listens or self.talk.asked) and now < self._quiet_since + LINGER_S:
            return None
        return self.talk.compose(), self._poll_s

    def _is_full(self) -> bool:
        busy = self._one_by_one and any(exchange.letter.news for exchange in self._under_way)
        return busy or len(self._under_way) >= EXCHANGES_MAX

    def _overdue_at(self) -> float:
        return self._quiet_since + self._poll_s + self._fence_s / 15

    def _send(self, letter: Letter, wait_s: float) -> None:
        now = self._around.now()
        body = {"incarnation": self.incarnation, "seen_start": letter.start, "ranks": [letter.says]}
        exchange = Exchange(letter, now, now + wait_s + self._answer_s, wait_s > 0)
        self._under_way.append(exchange)
        self._around.send(self, exchange, json.dumps({**body, "wait_s": wait_s}).encode())

    def _leave(self, now: float) -> None:
        if now >= self._closing_until:
            self._go()
        elif not self._under_way and now >= self._retry_at:
            self._send(self.talk.compose(leave=True), 0.0)
            last = self._under_way[-1]
            last.expires_at = now + max(0.1, min(self._answer_s, self._closing_until - now))

    def _refusal(self, letter: Letter, refused: ControllerError) -> None:
        start = refused.data.get("start")
        if self.closing:
            self.talk.lost(letter)
            stale = refused.problem == Problem.STALE_START and isinstance(start, int)
            if stale and self.talk.restarted(start):
                return
            if judge(refused, 0) is Verdict.TRY_AGAIN:
                self._pause()
            else:
                self._go()
            return
        verdict = judge(refused, len(letter.news))
        if verdict is Verdict.DROP:
            self.talk.refused(letter)
        else:
            self.talk.lost(letter)
        if refused.problem == Problem.STALE_START and isinstance(start, int):
            self.talk.restarted(start)
            if letter.start < self.talk.start:
                return  # the new start gets the session at once
        if verdict is Verdict.TRY_AGAIN:
            self._pause()
        elif verdict is Verdict.SPLIT:
            self._one_by_one = True
        elif verdict is Verdict.END:
            rank = refused.data.get("rank")
            self._fail(JobFailure(refused.problem, refused.detail, rank if isinstance(rank, int) else None))
        else:
            raise ViolationError("refused", f"rank {self.rank}: one piece of news: {refused}")

    def _give_up(self, exchange: Exchange) -> None:
        exchange.over = True
        self._under_way.remove(exchange)
        self.talk.lost(exchange.letter)
        if exchange.hang_up is not None:
            exchange.hang_up()

    def _lost(self, exchange: Exchange) -> None:
        self._give_up(exchange)
        if self.closing and self.failure is not None:
            self._go()
        self._pause()

    def _back_off(self, letter: Letter) -> None:
        self.talk.lost(letter)
        self._pause()

    def _pause(self) -> None:
        self._retry_at = self._around.now() + self._pause_s * self._around.jitter()
        self._pause_s = min(2 * self._pause_s, BACKOFF_MAX_S, self._fence_s / 4)

    def _fail(self, failure: JobFailure) -> None:
        if self.failure is None:
            self.failure = failure
            for exchange in list(self._under_way):
                self._give_up(exchange)
            self._around.failed(self)

    def _go(self) -> None:
        self.gone = True
        self._around.left(self)
