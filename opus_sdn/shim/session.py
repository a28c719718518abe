"""A rank's conversation with the controller: one thread that says news at once and listens for grants.

While something is open or held a long poll stands; news go out on a second connection without waiting for
it, and the controller ends the older poll. With nothing to wait for, the same poll is the heartbeat. What a
request said is said again until it has been answered, so a lost reply or a restart costs time only.

The thread never gives up on the job by itself while it holds nothing, short of the job's deadline. While it
holds granted operations and no answer comes for `fence_s`, it fails the job locally: whoever listens to
`on_failed` aborts the device work then, for the controller may give the circuits to others once the lease has
run out. A process that is stopped cannot do so: its watchdog ends it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from opus_sdn.intent.errors import Problem
from opus_sdn.intent.model import CutRequest, Grant, Stream
from opus_sdn.shim.client import BACKOFF_FIRST_S, BACKOFF_MAX_S, ControllerClient, jittered
from opus_sdn.shim.conversation import Conversation, JobFailure, Kind, Letter
from opus_sdn.shim.errors import (
    ControllerError,
    ControllerUnavailableError,
    ForkedProcessError,
    OpusError,
    OpusJobFailed,
)
from opus_sdn.shim.exchange import Exchange, Exchanges
from opus_sdn.shim.verdict import Verdict, judge
from opus_sdn.shim.watchdog import Watchdog
from opus_sdn.shim.wire import job_path, read_answer, stream_fields

UNREACHABLE = "controller-unreachable"
EXCHANGES_MAX = 4  # requests under way at once; more would only repeat the same news
LINGER_S = 0.05  # quiet time before a poll with nothing to wait for: the next news usually come sooner
POLL_S_MAX = 10.0  # a third of the controller's default lease
CLOSE_S_MIN = 3.0  # a farewell is tried for at least so long
REPORT_S_MAX = 5.0
WATCHDOG_SHARE = 1 / 6  # of the fence time: what a rank that runs has for aborting its device work

log = logging.getLogger(__name__)


def answer_within_s(fence_s: float, controllers: int) -> float:
    """What an answer may take beyond the wait asked for, in seconds.

    A leader that hangs answers nobody. Where there are other `controllers` to go on to, that is found out in
    time to hear the next one before the fence, also when it has to be asked more than once.
    """
    return max(1.0, fence_s / (3 if controllers == 1 else 6))


def _no_runs(request: CutRequest) -> None:
    """Of a rank that never offers more than one operation: it is never asked about any."""


class RankSession:
    """One rank's session with the controller, from registration to `close`.

    The callbacks run on the session's thread and must not block. `on_grant` gets every grant once, in the
    order of the rank's grant numbers. `on_cut` gets, after the grants of the same answer, what is asked and
    told about runs that this rank holds: the question until `cut` has answered it, the end once. `on_refused`
    gets one operation that the controller will not have. `on_failed` is called at most once, with the cause
    that all ranks get; nothing is granted after it.
    """

    def __init__(
        self,
        client: ControllerClient,
        job: str,
        incarnation: int,
        start: int,
        rank: int,
        *,
        on_grant: Callable[[Grant], None],
        on_failed: Callable[[OpusJobFailed], None],
        on_refused: Callable[[Stream, int, ControllerError], None],
        on_cut: Callable[[CutRequest], None] = _no_runs,
        fence_s: float = 15.0,
        deadline_s: float = 1620.0,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.job = job
        self.incarnation = incarnation
        self.rank = rank
        self._client = client
        self._on_grant = on_grant
        self._on_failed = on_failed
        self._on_refused = on_refused
        self._on_cut = on_cut
        self._fence_s = fence_s
        self._deadline_s = deadline_s
        self._watchdog = watchdog
        self._poll_s = min(POLL_S_MAX, fence_s / 3)
        self._answer_s = answer_within_s(fence_s, client.where.count)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._talk = Conversation(rank, start)
        self._failed: OpusJobFailed | None = None
        self._closing_until: float | None = None
        self._gone = False
        self._signalled = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        # The rest belongs to the thread alone.
        self._exchanges = Exchanges(client, job_path(job, "arrivals"), self._answer_s)
        self._heard_at = self._quiet_since = time.monotonic()
        self._retry_at = self._warned_at = 0.0
        self._pause_s = BACKOFF_FIRST_S
        self._one_by_one = False  # a request was refused: find out which of its news is to blame
        self._thread = threading.Thread(target=self._run, name=f"opus-session-{rank}", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> OpusJobFailed | None:
        """Why the job has failed, if it has."""
        return self._failed

    def arrive(
        self,
        stream: Stream,
        n: int,
        tag: int | None = None,
        blocking: bool = False,
        closed: int = 1,
        quiet: int = 1,
    ) -> None:
        """Declare operation n of the stream. Never blocks; the grant comes through `on_grant`.

        `closed`, `quiet`: the rank offers a run of so many operations, until its first wait for anything else
        and until its next issue elsewhere. What the grant covers may have been declared too, or not.
        Raises OpusJobFailed once the job has failed, OpusError after `close`.
        """
        self.require_own_process()
        with self._lock:
            self._require_open()
            self._talk.arrive(stream, n, tag, blocking, closed, quiet)
            self._signal()

    def block(self, stream: Stream, n: int) -> None:
        """The host waits for this operation now; the controller is told, sometimes in a request for that."""
        self.require_own_process()
        with self._lock:
            self._talk.block(stream, n)
            self._signal_news()

    def offer(self, stream: Stream, n: int, closed: int, quiet: int) -> None:
        """Offer a shorter run with an arrival that is not granted yet; of no effect on one that is."""
        self.require_own_process()
        with self._lock:
            self._talk.offer(stream, n, closed, quiet)
            self._signal_news()

    def cut(self, stream: Stream, n: int, issued: int) -> None:
        """Leave the held run that begins at n, or answer how far this rank is in it. Never blocks.

        `issued`: operations of the run that the program has called, which go out without a further step of
        the host. No more of them may be called until `on_cut` says where the run ends; from then on this is
        said again whenever another one was called, before whatever the program declares next.
        """
        self.require_own_process()
        with self._lock:
            self._talk.cut(stream, n, issued)
            self._signal_news()

    def release(self, stream: Stream, n: int, hint: tuple[Stream, int] | None = None) -> None:
        """The run that begins at n has finished on this rank's device. Nothing happens after a failure.

        `hint`: the operation that this rank expects to need next, said in the same request.
        """
        self.require_own_process()
        with self._lock:
            if self._failed is None and not self._gone:
                self._talk.release(stream, n)
                if hint is not None:
                    self._talk.hint(*hint)
                self._signal()

    def report_failure(self, stream: Stream | None, n: int | None, detail: str) -> None:
        """Tell the controller that an operation raised here; it names the cause to all ranks in a while.

        Blocks for a few seconds at most. An unreachable controller is left to the session's own watch.
        """
        body: dict[str, object] = {"incarnation": self.incarnation, "rank": self.rank, "detail": detail}
        if stream is not None:
            body |= stream_fields(stream)
        if n is not None:
            body["n"] = n
        self._tell("failures", body)

    def abort(self, detail: str) -> None:
        """End the job for all its ranks at once, with cause `aborted`. Blocks for a few seconds at most."""
        self._tell("abort", {"incarnation": self.incarnation, "rank": self.rank, "detail": detail})

    def require_own_process(self) -> None:
        """Raise ForkedProcessError in a child that was forked from the rank."""
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"process {os.getpid()} was forked from rank {self.rank} of job {self.job} and cannot use "
                f"its process groups; communicate in the rank, process {self._pid}, or start the child "
                "with spawn and let it make groups of its own"
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Say what is left to say and leave; the rank must hold nothing any more.

        For `timeout_s` at most: without it as long as a controller may be away under a rank that holds
        something, as one that is not heard of counts as lost, and its job with it.
        """
        if timeout_s is None:
            timeout_s = max(CLOSE_S_MIN, self._fence_s)
        if os.getpid() != self._pid:
            return
        if self._watchdog is not None:
            self._watchdog.rest()
        with self._lock:
            if self._closing_until is None:
                self._closing_until = time.monotonic() + timeout_s
            self._signal()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s + self._answer_s)

    def _require_open(self) -> None:
        if self._failed is not None:
            raise self._failed.again()
        if self._closing_until is not None or self._gone:
            raise OpusError(
                f"rank {self.rank} of job {self.job} has left the job: its process group is destroyed"
            )

    def _signal(self) -> None:
        """Wake the thread; one byte however often. Called with the lock held."""
        if not self._signalled and not self._gone:
            self._signalled = True
            os.write(self._wake_write, b"\0")

    def _signal_news(self) -> None:
        """Wake the thread if there is something to say. Called with the lock held."""
        if self._failed is None and self._talk.has_news:
            self._signal()

    def _tell(self, route: str, body: dict[str, object]) -> None:
        self.require_own_process()
        try:
            self._client.request(
                "POST",
                job_path(self.job, route),
                body,
                timeout_s=self._answer_s,
                retry_s=min(REPORT_S_MAX, self._fence_s),
            )
        except (ControllerError, ControllerUnavailableError) as failed:
            log.warning(
                "controller did not take the report route=%s rank=%d error=%s", route, self.rank, failed
            )

    # --- the thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as bug:
            log.exception("session thread failed rank=%d", self.rank)
            self._fail(
                JobFailure(Problem.INTERNAL, f"rank {self.rank}: its session failed: {bug!r}", self.rank)
            )
        finally:
            with self._lock:
                self._gone = True
                os.close(self._wake_read)
                os.close(self._wake_write)
            self._exchanges.close()
            if self._watchdog is not None:
                self._watchdog.close()

    def _turn(self) -> bool:
        """Send what is due, sleep until something happens, take it in. False when there is no more to do."""
        now = time.monotonic()
        self._watch(now)
        self._tell_watchdog()
        with self._lock:
            closing_until = self._closing_until
        if closing_until is not None:
            return self._leave(closing_until)
        while self._failed is None and (letter := self._next(now)) is not None:
            self._send(letter)
        for exchange in self._exchanges.wait(self._wake_read, self._next_event(now)):
            self._receive(exchange)
        self._drain_wake()
        for late in self._exchanges.overdue(time.monotonic()):
            self._lost(late, f"no answer within {late.expires_at - late.sent_at:.1f} s")
        return True

    def _watch(self, now: float) -> None:
        """Give up when the silence has become too long for what this rank holds or waits for."""
        silent_s = now - self._heard_at
        with self._lock:
            holding, waiting = self._talk.holding, self._talk.waiting
        if holding and silent_s >= self._fence_s:
            what = f"with {holding} operations unfinished, whose device work is aborted"
        elif waiting and silent_s >= self._deadline_s:
            what = f"with {waiting} operations waiting"
        else:
            return
        detail = f"rank {self.rank}: controller at {self._client.address} silent for {silent_s:.1f} s {what}"
        self._fail(JobFailure(UNREACHABLE, detail, None))

    def _tell_watchdog(self) -> None:
        """With something held, this process is to be gone soon after it should have fenced itself."""
        if self._watchdog is None or self._failed is not None:
            return  # after a failure the last word counts, until the device work is aborted
        with self._lock:
            if self._closing_until is None and self._talk.holding:
                self._watchdog.end_at(self._heard_at + self._fence_s * (1 + WATCHDOG_SHARE))
            else:
                self._watchdog.rest()

    def _next_event(self, now: float) -> float:
        """When the thread has something to do again, if nothing is heard."""
        if self._failed is not None:
            return now + self._poll_s
        under_way = self._exchanges.under_way
        events = [exchange.expires_at for exchange in under_way]
        with self._lock:
            holding, waiting, has_news = self._talk.holding, self._talk.waiting, self._talk.has_news
        if holding:
            events.append(self._heard_at + self._fence_s)
        elif waiting:
            events.append(self._heard_at + self._deadline_s)
        if self._retry_at > now:
            events.append(self._retry_at)
        elif has_news or self._is_full():
            pass  # a moment that has passed would be asked for again and again
        elif not any(exchange.is_poll for exchange in under_way):
            events.append(self._quiet_since + LINGER_S)
        elif all(exchange.is_poll for exchange in under_way):
            events.append(self._overdue_at())
        return min(events, default=now + self._poll_s)

    def _next(self, now: float) -> tuple[Letter, float] | None:
        """The request that is due now, with the seconds it may wait for its answer."""
        under_way = self._exchanges.under_way
        with self._lock:
            self._one_by_one = self._one_by_one and self._talk.untold > 0
            if now < self._retry_at or self._is_full():
                return None
            if self._one_by_one:
                return self._talk.compose(most=1), 0.0
            listens = self._talk.listens
            if not self._talk.has_news:
                if any(exchange.is_poll for exchange in under_way):
                    checks = any(not exchange.is_poll for exchange in under_way)
                    return None if checks or now < self._overdue_at() else (self._talk.compose(), 0.0)
                if (not listens or self._talk.asked) and now < self._quiet_since + LINGER_S:
                    return None  # with a question unanswered, every poll would be answered at once
                return self._talk.compose(), self._poll_s
            letter = self._talk.compose()
            return letter, self._poll_s if listens else 0.0

    def _is_full(self) -> bool:
        """Nothing more is sent before an answer comes, or one of the requests is given up."""
        under_way = self._exchanges.under_way
        busy = self._one_by_one and any(exchange.letter.news for exchange in under_way)
        return busy or len(under_way) >= EXCHANGES_MAX

    def _overdue_at(self) -> float:
        """When a poll has waited for its answer for too long: then another request asks beside it.

        A poll that gets lost without a trace would be given up when the fence is hardly any time away.
        """
        return self._quiet_since + self._poll_s + self._fence_s / 15

    def _send(self, due: tuple[Letter, float]) -> None:
        letter, wait_s = due
        failed = self._exchanges.send(letter, self._body(letter), wait_s)
        if failed is not None:
            with self._lock:
                self._talk.lost(letter)
            self._back_off(str(failed))

    def _body(self, letter: Letter) -> dict[str, object]:
        return {"incarnation": self.incarnation, "seen_start": letter.start, "ranks": [letter.says]}

    def _receive(self, exchange: Exchange) -> None:
        letter = exchange.letter
        try:
            answer = read_answer(self._exchanges.receive(exchange), self.rank)
        except ControllerUnavailableError as failed:
            self._lost(exchange, str(failed))
            return
        except ControllerError as refused:
            self._refusal(letter, refused)
            return
        self._heard_at = max(self._heard_at, exchange.sent_at)
        self._quiet_since = time.monotonic()
        self._pause_s = BACKOFF_FIRST_S
        with self._lock:
            heard = self._talk.answered(letter, answer)
        if heard.restarted:
            log.warning("controller restarted rank=%d start=%d", self.rank, answer.start)
        for alarm in heard.alarms:
            log.warning(
                "circuit lost under this rank rank=%d circuit=%s switch=%s: operations over it may break",
                *(self.rank, alarm.circuit, alarm.switch),
            )
        self._tell_watchdog()
        for grant in heard.grants:
            self._on_grant(grant)
        for request in heard.cuts:
            self._on_cut(request)
        if heard.failure is not None:
            self._fail(heard.failure)

    def _lost(self, exchange: Exchange, why: str) -> None:
        with self._lock:
            self._talk.lost(exchange.letter)
        if not exchange.on_kept_connection:
            self._back_off(why)

    def _refusal(self, letter: Letter, refused: ControllerError) -> None:
        verdict = judge(refused, len(letter.news))
        start = refused.data.get("start")
        with self._lock:
            if verdict is Verdict.DROP:
                self._talk.refused(letter)
            else:
                self._talk.lost(letter)
            if refused.problem == Problem.STALE_START and isinstance(start, int):
                if self._talk.restarted(start):
                    log.warning("controller restarted rank=%d start=%d", self.rank, start)
                if letter.start < self._talk.start:
                    return  # the new start gets the session at once
        if verdict is Verdict.TRY_AGAIN:
            self._back_off(str(refused))
        elif verdict is Verdict.SPLIT:
            self._one_by_one = True
        elif verdict is Verdict.END:
            rank = refused.data.get("rank")
            self._fail(JobFailure(refused.problem, refused.detail, rank if isinstance(rank, int) else None))
        else:
            (subject,) = letter.news
            log.warning(
                "controller refused %s of %s#%d: %s", subject.kind, subject.stream, subject.n, refused
            )
            if subject.kind is Kind.ARRIVAL:
                self._on_refused(subject.stream, subject.n, refused)

    def _back_off(self, why: str) -> None:
        log.info("controller does not answer rank=%d error=%s", self.rank, why)
        silent_s = time.monotonic() - self._heard_at
        if silent_s >= self._fence_s and self._warned_at < self._heard_at + silent_s / 2:
            self._warned_at = time.monotonic()  # again when the silence has doubled
            log.warning(
                "the controller has not answered for %.0f s; the job ends after its deadline of %.0f s "
                "rank=%d controller=%s error=%s",
                silent_s,
                self._deadline_s,
                self.rank,
                self._client.address,
                why,
            )
        self._retry_at = time.monotonic() + jittered(self._pause_s)
        self._pause_s = min(2 * self._pause_s, BACKOFF_MAX_S, self._fence_s / 4)

    def _fail(self, failure: JobFailure) -> None:
        with self._lock:
            if self._failed is not None:
                return
            failed = OpusJobFailed(
                failure.problem, failure.detail, failure.rank, self.incarnation, failure.data
            )
            self._failed = failed
        self._exchanges.close()
        self._on_failed(failed)

    def _drain_wake(self) -> None:
        with self._lock:
            if self._signalled:
                self._signalled = False
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 16)

    def _leave(self, until: float) -> bool:
        """Say the last news and leave; once, after a failure. False when that is done or time is up."""
        now = time.monotonic()
        if now >= until:
            return False
        if now >= self._retry_at:
            with self._lock:
                letter = self._talk.compose(leave=True)
            answer_s = max(0.1, min(self._answer_s, until - now))
            try:
                body = {**self._body(letter), "wait_s": 0.0}
                path = job_path(self.job, "arrivals")
                answer = read_answer(self._client.request("POST", path, body, timeout_s=answer_s), self.rank)
                if letter.is_farewell:
                    return False
                with self._lock:
                    self._talk.answered(letter, answer)
                return True
            except ControllerError as refused:
                return self._leave_again(letter, refused)
            except ControllerUnavailableError as failed:
                if self._failed is not None:
                    return False
                with self._lock:
                    self._talk.lost(letter)
                self._back_off(str(failed))
        time.sleep(max(0.0, min(self._retry_at, until) - time.monotonic()))
        return True

    def _leave_again(self, letter: Letter, refused: ControllerError) -> bool:
        """Whether a refused farewell has to be said again, perhaps to a new start of the controller.

        Else the incarnation is over, or the controller does not know it: it is left.
        """
        start = refused.data.get("start")
        with self._lock:
            self._talk.lost(letter)
            if refused.problem == Problem.STALE_START and isinstance(start, int):
                return self._talk.restarted(start)
        if judge(refused, 0) is not Verdict.TRY_AGAIN:
            return False
        self._back_off(str(refused))
        return True
