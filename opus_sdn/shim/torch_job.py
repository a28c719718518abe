"""One rank's part in a job: numbers its operations, has them granted, issued and released, and ends as one.

There is one per process, made with the default group. It knows its groups by weak references only: a group
that torch has destroyed must not live on, for its gloo threads would outlive the interpreter.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from opus_sdn.intent.errors import Problem
from opus_sdn.intent.model import CutRequest, Grant, Stream
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.enrolment import Enrolment
from opus_sdn.shim.errors import (
    ControllerError,
    ControllerUnavailableError,
    OpusError,
    OpusJobFailed,
    OpusRefusedError,
)
from opus_sdn.shim.group_settings import label_of
from opus_sdn.shim.held_run import Fate, HeldRun
from opus_sdn.shim.links import LinkProbe
from opus_sdn.shim.naming import rank_list
from opus_sdn.shim.nccl_fit import check_nccl
from opus_sdn.shim.operations import STEP, Operation, OperationLog
from opus_sdn.shim.phase_file import save_table
from opus_sdn.shim.phase_tracker import PhaseTracker
from opus_sdn.shim.phases import PhaseTable
from opus_sdn.shim.program import NO_OFFER, Program
from opus_sdn.shim.session import UNREACHABLE, RankSession
from opus_sdn.shim.settings import Mode, NcclCheck, ShimSettings
from opus_sdn.shim.statistics import GrantWaits
from opus_sdn.shim.torch_issue import Finishing, IssueQueue
from opus_sdn.shim.torch_lanes import Call, Lane
from opus_sdn.shim.torch_works import GatedWork
from opus_sdn.shim.verdict import FATAL
from opus_sdn.shim.watchdog import Watchdog
from opus_sdn.shim.wire import GroupAnswer, connection_path, job_path, read_circuits, read_group
from opus_sdn.shim.witness_client import WitnessClient, WitnessError

DRAIN_S = 5.0  # how long `destroy_process_group` lets operations finish that nobody waited for
JOIN_S = 1.0
END_S = 5.0  # for stopping device work and leaving, after a failure
RETRY_SLICE_S = 1.0
REPORT_DELAY_S = 0.25
LOOKS_PER_FENCE = 8
CAUSE_S = 15.0  # the controller looks for a dead rank for 12 s before it names another cause

log = logging.getLogger(__name__)


class _Lives:
    """Tells a process from the one that it was forked from, without asking the system at every operation."""

    process = 0

    def fork(self) -> None:
        """This is another process now."""
        self.process += 1


_lives = _Lives()
os.register_at_fork(after_in_child=_lives.fork)


@runtime_checkable
class Abortable(Protocol):
    """A process group whose operations can be made to raise."""

    def break_off(self) -> None:
        """Make every inner operation of the group raise, in all threads."""


class OneByOne:
    """Several operations to be seen to their end by one thread."""

    def __init__(self, works: list[GatedWork]) -> None:
        self._works = works

    def finish(self) -> None:
        """Wait for each of them."""
        for work in self._works:
            work.finish()


class RankJob:
    """The owner of all Works of this process."""

    def __init__(
        self,
        settings: ShimSettings,
        client: ControllerClient,
        enrolment: Enrolment,
        rank: int,
        table: PhaseTable | None = None,
    ) -> None:
        self.rank = rank
        self.world = len(enrolment.hosts)
        self.incarnation = enrolment.incarnation
        self.nonce = enrolment.nonce
        self.log = OperationLog()
        self.on_close: list[Callable[[], None]] = []  # while the controller can still be asked
        self._settings = settings
        self._client = client
        self._enrolment = enrolment
        self._pid = os.getpid()
        self._process = _lives.process
        self._order = threading.Lock()  # numbering and arrival are one act: program order is stream order
        self._next: dict[Stream, int] = {}
        self._ungranted: dict[tuple[Stream, int], GatedWork] = {}
        self._live: set[GatedWork] = set()
        self._ordinals: dict[tuple[int, ...], int] = {}
        self._groups: weakref.WeakSet[Abortable] = weakref.WeakSet()
        self._circuits: dict[str, tuple[str, ...]] = {}
        self._doubted: set[str] = set()
        self._witness = WitnessClient(settings.witness) if settings.witness is not None else None
        self._failed: OpusJobFailed | None = None
        self._has_failed = threading.Event()
        self._reported = False
        self._closed = False
        self._ending = threading.Thread(target=self._end_badly, name=f"opus-abort-{rank}", daemon=True)
        self._queue = IssueQueue(f"opus-issue-{rank}")
        self._links = (
            LinkProbe(client, settings.job, enrolment.incarnation, rank, dict(settings.links), settings.sysfs)
            if settings.links
            else None
        )
        self._session = RankSession(
            client,
            settings.job,
            enrolment.incarnation,
            enrolment.start,
            rank,
            on_grant=self._granted,
            on_failed=self._fail,
            on_refused=self._refused,
            on_cut=self._cut,
            fence_s=settings.fence_s,
            deadline_s=enrolment.deadline_s,
            watchdog=Watchdog.start(settings.fence_s / LOOKS_PER_FENCE) if settings.watchdog else None,
        )
        tracker = PhaseTracker(settings.profile_steps, table)
        self._program: Program[GatedWork] = Program(
            tracker, self._session, says_hints=settings.mode is Mode.PROVISION
        )
        self._waits = GrantWaits()
        self._groups_known = 0  # to torch
        self._runs_over = threading.Condition(self._order)
        self._steps = register_optimizer_step_post_hook(lambda *_: self.end_step())

    # --- groups

    def register(self, group: Abortable, ranks: tuple[int, ...], is_default: bool = False) -> int:
        """Take a new group in; returns its ordinal among groups of the same ranks."""
        with self._order:
            self._groups.add(group)
            ordinal = self._ordinals.get(ranks, 0)
            self._ordinals[ranks] = ordinal + 1
            if len(ranks) > 1 and not is_default:  # torch makes a default group for programs that need none
                self._program.has_group(ranks, ordinal)
        return ordinal

    def uses(self, ranks: tuple[int, ...], ordinal: int) -> None:
        """The first operation of a group."""
        with self._order:
            self._program.uses_group(ranks, ordinal)

    def check_in(self, name: str, ranks: tuple[int, ...], dimension: str, ordinal: int) -> GroupAnswer:
        """Ask the controller how the group's traffic travels. Raises OpusJobFailed, OpusRefusedError."""
        group = {
            "name": name,
            "ranks": rank_list(ranks, self.world),
            "dimension": dimension,
            "ordinal": ordinal,
        }
        body = {"incarnation": self.incarnation, "groups": [group]}
        deadline = time.monotonic() + self._enrolment.deadline_s
        while True:
            self.require_usable()
            try:
                path = job_path(self._settings.job, "groups")
                answer = read_group(self._client.request("POST", path, body, retry_s=RETRY_SLICE_S))
                break
            except ControllerError as refused:
                raise self._refusal(refused) from None
            except ControllerUnavailableError as absent:
                if time.monotonic() >= deadline:
                    raise OpusJobFailed(UNREACHABLE, str(absent), None, self.incarnation) from None
        if answer.ring is not None:
            self._circuits[answer.ring.id] = answer.ring.circuits
        return answer

    def shares_host(self, other: int) -> bool:
        """Whether messages with this rank stay inside the host, and need no grant."""
        hosts = self._enrolment.hosts
        return hosts[other] == hosts[self.rank] and not self._enrolment.force_scale_out

    def label_of(self, ranks: Sequence[int]) -> str | None:
        """The dimension that the operator's file gives these ranks."""
        return label_of(self._settings.labels, ranks, self.world)

    def require_fit(self, ranks: Sequence[int], circuits: Sequence[str]) -> None:
        """NCCL must talk along these circuits. Raises OpusRefusedError; lesser doubts are logged once."""
        if self._settings.nccl_check is NcclCheck.OFF:
            return
        for finding in check_nccl(os.environ, ranks, self.places(ranks), circuits):
            if finding.refuse and self._settings.nccl_check is NcclCheck.REFUSE:
                raise OpusRefusedError(
                    "nccl-does-not-fit",
                    f"group of ranks {list(ranks)}: {finding}, or OPUS_NCCL_CHECK=warn to try it as it is",
                )
            if finding.variable not in self._doubted:
                self._doubted.add(finding.variable)
                log.warning("NCCL may leave the circuits rank=%d: %s", self.rank, finding)

    def places(self, ranks: Sequence[int]) -> list[tuple[str, int]]:
        """Host and GPU slot of each of these ranks."""
        return [(self._enrolment.hosts[rank], self._enrolment.slots[rank]) for rank in ranks]

    # --- operations

    def submit(
        self,
        lane: Lane,
        call: Call,
        tensors: list[torch.Tensor],
        stream: Stream,
        operation: Operation,
        tag: int | None = None,
        blocking: bool = False,
    ) -> GatedWork:
        """The next operation of a stream: declared, and issued once it is granted, or issued now.

        Never blocks for a grant. An operation that a held run covers needs none; it is issued by this thread.
        """
        self.require_usable()
        is_here = False
        with self._order:
            n = self._next.get(stream, 0)
            work = GatedWork(self, lane, call, tensors, stream, n, operation)
            called = self._program.call(operation, stream, n, work)
            if called.fate is Fate.ARRIVE:
                self._arrive(work, tag, blocking, called.closed, called.quiet)
            elif called.fate is Fate.ISSUE:
                operation.granted_ns = operation.called_ns
                is_here = self._queue.claim()
                if not is_here:
                    self._queue.put(work)
            self._next[stream] = n + 1
            self._live.add(work)
        if self._failed is not None:  # it may have failed before this work was in the list
            work.settle(self._failed)
        if is_here and called.run is not None:
            self._issue_here(work, called.run, blocking)
        return work

    def _arrive(self, work: GatedWork, tag: int | None, blocking: bool, closed: int, quiet: int) -> None:
        """Ask for an operation. With the lock held."""
        self._ungranted[work.stream, work.n] = work
        work.operation.arrived_ns = time.monotonic_ns()
        try:
            self._session.arrive(work.stream, work.n, tag, blocking, closed, quiet)
        except BaseException:
            del self._ungranted[work.stream, work.n]
            raise

    def _issue_here(self, work: GatedWork, run: HeldRun[GatedWork], blocking: bool) -> None:
        """Issue an operation of a held run in the program's own thread, as nothing is before it.

        The last one has the others seen to their end, also when the program never waits for them.
        """
        try:
            issued = work.issue()
        finally:
            self._queue.yield_turn()
        if issued:
            work.is_here = True  # not before: whoever finds it waits for what was issued
            run.here.append(work)
        if not (run.is_complete or run.is_cut):
            return
        if blocking and issued and work.waits_here:
            work.finish()
        with self._order:
            works, run.here = run.here, []
        self._see_out([work for work in works if not work.is_completed()])

    def _see_out(self, works: list[GatedWork]) -> None:
        """Have a thread wait for operations that were issued by others."""
        if works:
            self._queue.watch(OneByOne(works))

    def turn_to(self, operation: Operation) -> None:
        """The program waits for an operation that needed no grant."""
        if self._program.holds_runs:
            with self._order:
                self._program.wait(operation.what.group)

    def note(self, operation: Operation) -> None:
        """The program calls an operation that needs no grant."""
        with self._order:
            self._program.turn(operation)

    def end_step(self) -> None:
        """The program's optimizer has made a step."""
        if os.getpid() != self._pid or self._closed:
            return
        with self._order:
            self._program.is_bypassed = self._has_unseen_groups()
            if not self._program.tracker.at_step_end:  # several optimizers make one step
                operation = self.log.begin(STEP, 0)
                operation.finished_ns = operation.called_ns
                self._program.turn(operation)

    def _has_unseen_groups(self) -> bool:
        """Whether the program made groups with another backend: their operations and waits are not seen."""
        made = distributed_c10d._world.pg_map
        if len(made) == self._groups_known:
            return self._program.is_bypassed
        self._groups_known = len(made)
        return any(
            not isinstance(group, Abortable) and group.size() > 1 and backend != "fake"
            for group, (backend, _) in made.items()
        )

    def block(self, work: GatedWork) -> None:
        """The host waits for this operation."""
        if self._program.holds_runs:
            with self._order:
                self._program.wait(work.stream.connection)
        self._session.block(work.stream, work.n)

    def begin(self, work: GatedWork) -> None:
        """Tell the witness, if there is one, before the operation is issued."""
        if self._witness is None:
            return
        self._tell_witness(
            lambda witness: witness.begin(
                self._witness_id(work), self._circuits_of(work.stream.connection), self.rank
            )
        )

    def end(self, work: GatedWork) -> None:
        """The operation is over: tell the witness, then the controller."""
        if self._witness is not None:
            self._tell_witness(lambda witness: witness.end(self._witness_id(work)))
        with self._order:
            self._live.discard(work)
            first = self._program.finished(work.stream, work.n)
            if first is not None:
                self._release(work.stream, first)

    def _release(self, stream: Stream, n: int) -> None:
        """A run is over: give its circuits back, and say what comes next. With the lock held."""
        self._session.release(stream, n, self._program.hint(self._next))
        self._runs_over.notify_all()

    def watch(self, work: Finishing) -> None:
        """Have a thread see an operation finish."""
        self._queue.watch(work)

    def explain(self, failed: BaseException, work: GatedWork | None) -> BaseException:
        """Report a broken operation and wait until the controller names the cause to all ranks.

        Where it names none in time, this rank's own error becomes the cause, here alone.
        """
        with self._order:
            first, self._reported = not self._reported, True
        text = f"{type(failed).__name__}: {failed}"
        # A rank that has just died may have a request on its way that makes it look alive: let that pass.
        if first and not self._has_failed.wait(REPORT_DELAY_S):
            log.info("operation failed rank=%d work=%r error=%s", self.rank, work, text)
            self._session.report_failure(work.stream if work else None, work.n if work else None, text)
        if not self._has_failed.wait(max(self._settings.fence_s, CAUSE_S)):
            detail = f"an operation of rank {self.rank} failed, and the controller named no cause: {text}"
            self._fail(OpusJobFailed(Problem.OPERATION_FAILED, detail, None, self.incarnation))
        assert self._failed is not None
        return self._failed

    def statistics(self) -> dict[str, Any]:
        """What this rank asked for and how long it waited, so far."""
        with self._order:
            program, tracker = self._program, self._program.tracker
            return {
                "mode": self._settings.mode.value,
                "operations": self.log.begun,
                "grants": program.grants,
                "longer_runs": program.longer_runs,
                "operations_in_longer_runs": program.operations_in_longer_runs,
                "runs_cut": program.runs_cut,
                "hints": program.hints,
                "tables_learned": tracker.learned,
                "tables_dropped": tracker.dropped,
                "follows_a_table": tracker.is_following,
                "waits": self._waits.said(),
            }

    def require_usable(self) -> None:
        """No operation in a forked child; each new one of a failed job raises the job's cause."""
        if _lives.process != self._process:
            self._session.require_own_process()
        if self._failed is not None:
            raise self._failed.again()

    # --- the end

    def abort(self, detail: str) -> None:
        """End the job for all ranks, as `ProcessGroup.abort` asks. Does not wait for them."""
        if os.getpid() == self._pid and not self._closed and self._failed is None:
            self._session.abort(detail)
            self._fail(
                OpusJobFailed(
                    Problem.ABORTED,
                    f"rank {self.rank} aborted the job: {detail}",
                    self.rank,
                    self.incarnation,
                )
            )

    def drain(self, group: str | None = None, timeout_s: float = DRAIN_S) -> None:
        """Let operations finish that nobody waited for; of one group, or all."""
        deadline = time.monotonic() + timeout_s
        with self._order:
            works = [w for w in self._live if group in (None, w.stream.connection.partition(":")[0])]
        self._see_out([work for work in works if work.is_here])
        for work in works:
            work.wait_done(max(0.0, deadline - time.monotonic()))

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Leave the job: nothing is on its way afterwards, and no thread of the shim is left."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        self._steps.remove()
        if self._failed is None:
            self._leave_runs(drain_s)
            self.drain(timeout_s=drain_s)
        with self._order:
            left, failed = list(self._live), self._failed
            self._live.clear()
        if failed is not None:
            self._ending.join(END_S)
        elif left:
            self._break_off()
        for work in left:
            work.settle(OpusError(f"rank {self.rank} left the job before {work} was done"))
        self._tell_what_was_learned()
        for leave in self.on_close:
            leave()
        self._session.close()
        if self._links is not None:
            self._links.close()
        if not self._queue.close(JOIN_S):
            log.warning("an operation does not end; its thread is left behind rank=%d", self.rank)
        if self._witness is not None:
            self._witness.close()
        self._client.close()

    def _tell_what_was_learned(self) -> None:
        log.info("leaving the job rank=%d %s", self.rank, self.statistics())
        pattern, table = self._settings.phase_table_save, self._program.tracker.table
        if pattern is None or table is None or table.coarse:
            return
        try:
            save_table(pattern, self.rank, table)
        except OSError as failed:
            log.warning("the phase table is not saved rank=%d error=%s", self.rank, failed)

    def _leave_runs(self, timeout_s: float) -> None:
        """Cut what this rank holds and will not use; the others have to know how far it came."""
        deadline = time.monotonic() + timeout_s
        with self._order:
            self._program.leave()
            here = [work for run in self._program.runs for work in run.here]
        self._see_out(here)
        with self._runs_over:
            while self._program.holds_runs and self._failed is None and time.monotonic() < deadline:
                self._runs_over.wait(deadline - time.monotonic())

    # --- what the session tells, on its thread

    def _granted(self, grant: Grant) -> None:
        now = time.monotonic_ns()
        with self._order:
            works = []
            for n in range(grant.n, grant.n + grant.length):
                work = self._ungranted.pop((grant.stream, n), None)
                if work is None:
                    break
                works.append(work)
            self._program.granted(grant, len(works))
            if works:
                self._waits.granted(works[0].operation, now)
            self._issue_all(works, now)

    def _issue_all(self, works: list[GatedWork], now: int) -> None:
        """Put operations in the queue. With the lock held: no call of the program may come between."""
        for work in works:
            work.operation.granted_ns = now
            self._queue.put(work)

    def _cut(self, request: CutRequest) -> None:
        """A run is being cut: say how far this rank is in it, or go on up to its end."""
        with self._order:
            if request.length is None:
                run = self._program.asked(request.stream, request.n)
                here = run.here if run is not None else []
            else:
                here = []
                told = self._program.told(request.stream, request.n, request.length)
                if told is not None:
                    run, going, rest = told
                    here = run.here
                    self._issue_all(going, time.monotonic_ns())
                    for work in rest:
                        self._arrive(work, None, bool(work.operation.wait_begin_ns), *NO_OFFER)
                    first = self._program.over(run)
                    if first is not None:
                        self._release(run.stream, first)
        self._see_out(list(here))

    def _refused(self, stream: Stream, n: int, refused: ControllerError) -> None:
        with self._order:
            work = self._ungranted.pop((stream, n), None)
            if work is not None:
                self._live.discard(work)
                self._program.finished(stream, n)
        if work is not None:
            work.settle(OpusRefusedError(refused.problem, refused.detail))

    def _fail(self, failed: OpusJobFailed) -> None:
        with self._order:
            if self._failed is not None:
                return
            self._failed = failed
            works = list(self._live)
            self._live.clear()
            self._ungranted.clear()
            self._runs_over.notify_all()
            self._ending.start()
        self._has_failed.set()
        log.warning("job failed rank=%d cause=%s", self.rank, failed)
        for work in works:
            work.settle(failed)

    # --- helpers

    def _end_badly(self) -> None:
        """After a failure: stop device work, then let the controller know that this rank holds nothing."""
        self._break_off()
        self._session.close()

    def _break_off(self) -> None:
        """Stop unfinished device work, and wake every thread that is blocked in it."""
        with self._order:
            groups = list(self._groups)
        for group in groups:
            group.break_off()

    def _refusal(self, refused: ControllerError) -> OpusError:
        if refused.problem in FATAL:
            rank = refused.data.get("rank")
            named = rank if isinstance(rank, int) else None
            return OpusJobFailed(refused.problem, refused.detail, named, self.incarnation)
        return OpusRefusedError(refused.problem, refused.detail)

    def _tell_witness(self, what: Callable[[WitnessClient], None]) -> None:
        """A witness that is gone has gone with its switch: the job's own cause says what happened."""
        if self._witness is None:
            return
        try:
            what(self._witness)
        except WitnessError as gone:
            log.warning("traffic witness does not answer rank=%d error=%s", self.rank, gone)

    def _witness_id(self, work: GatedWork) -> str:
        return f"{self._settings.job}/{self.incarnation}/{work.stream}#{work.n}/rank{self.rank}"

    def _circuits_of(self, connection: str) -> tuple[str, ...]:
        """Circuits of a connection; those of a ring came with the check-in."""
        known = self._circuits.get(connection)
        if known is None:
            path = connection_path(self._settings.job, connection)
            known = read_circuits(self._client.request("GET", path, retry_s=RETRY_SLICE_S))
            self._circuits[connection] = known
        return known
