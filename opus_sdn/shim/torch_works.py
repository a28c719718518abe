"""The two Works that callers get: one that waits for a grant first, one around an ungated inner Work.

C++ callers reach only `wait` and `get_future` of a python Work: functional collectives and FSDP2 wait, DDP
takes the future. A failed future must be the child of one whose callback raises: an exception set on a future
directly is invisible to C++, or kills it. A C++ caller of the future sees the text only, in a RuntimeError.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from opus_sdn.intent.model import Stream
from opus_sdn.shim.errors import OpusError, OpusJobFailed, OpusRefusedError
from opus_sdn.shim.operations import Operation
from opus_sdn.shim.torch_issue import Finishing
from opus_sdn.shim.torch_lanes import Call, Lane, is_broken_connection

NO_TIMEOUT = timedelta(0)  # what C++ passes for none


class Owner(Protocol):
    """What a Work needs of its job."""

    def block(self, work: GatedWork) -> None:
        """The host waits for this operation."""

    def turn_to(self, operation: Operation) -> None:
        """The program waits for an operation that needed no grant."""

    def begin(self, work: GatedWork) -> None:
        """The operation is about to be issued."""

    def end(self, work: GatedWork) -> None:
        """The operation has finished, or was never issued: its circuits are free for others."""

    def explain(self, failed: BaseException, work: GatedWork | None) -> BaseException:
        """The error to raise for an inner one: the cause that the controller names to all ranks."""

    def watch(self, work: Finishing) -> None:
        """Have a thread call `finish`."""


_outcomes = threading.Lock()  # of all Works: it is held for a few instructions, and costs each Work nothing


class OpusWork(dist.Work):
    """What both kinds share: an outcome that is settled once, and a future made when somebody asks."""

    def __init__(self, owner: Owner, lane: Lane, tensors: list[torch.Tensor], operation: Operation) -> None:
        super().__init__()
        self.operation = operation
        self._owner = owner
        self._lane = lane
        self._tensors = tensors
        self._inner: Any = None
        self._is_done = False
        self._done: threading.Event | None = None  # made when a thread has to wait for it
        self._error: BaseException | None = None
        self._base: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None

    def is_completed(self) -> bool:
        """Whether the operation has finished on the device, or failed."""
        return self._is_done

    def is_success(self) -> bool:
        """Whether it has finished without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error that `wait` raises, if it has failed."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors of the operation."""
        return self._tensors

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`, which on CUDA blocks the current stream once the operation is issued."""
        self.wait()

    def wait_done(self, timeout_s: float) -> None:
        """Block until the operation has finished or failed, at most so long; raises nothing."""
        self._wait_done(timeout_s)

    def _wait_done(self, timeout_s: float | None) -> bool:
        """Block until it is settled; False when it is not in time."""
        with _outcomes:
            if self._is_done:
                return True
            done = self._done = self._done or threading.Event()
        return done.wait(timeout_s)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors; callable before the operation is issued."""
        self.operation.has_future = True
        with _outcomes:
            if self._future is None:
                devices = (
                    [] if self._lane.wait_blocks_host else sorted({str(t.device) for t in self._tensors})
                )
                self._base = torch.futures.Future(devices=list(devices))
                self._future = self._base.then(_unwrap)
            base = None
            if self._is_done:
                base, self._base = self._base, None
        self._fill(base)
        return self._future

    def settle(self, error: BaseException | None) -> bool:
        """Record the outcome and wake whoever waits. False when it was settled before."""
        with _outcomes:
            if self._is_done:
                return False
            self._error = error
            self.operation.failed = error is not None
            self.operation.finished_ns = time.monotonic_ns()
            self._is_done = True
            base, self._base, done = self._base, None, self._done
        if done is not None:
            done.set()
        self._fill(base)
        return True

    def _begin_wait(self) -> None:
        """The program waits; only its first wait is recorded."""
        if not self.operation.wait_begin_ns:
            self.operation.wait_begin_ns = time.monotonic_ns()

    def _end_wait(self) -> None:
        if not self.operation.wait_end_ns:
            self.operation.wait_end_ns = time.monotonic_ns()

    def _fill(self, base: torch.futures.Future[Any] | None) -> None:
        """Complete the future that somebody asked for."""
        if base is not None:
            base.set_result(self._error if self._error is not None else self._tensors)

    def _raise(self) -> None:
        if isinstance(self._error, OpusJobFailed):
            raise self._error.again()
        if self._error is not None:
            raise self._error


class GatedWork(OpusWork):
    """An operation that is issued by the job's issue queue once it has been granted.

    One that a held run covers is issued by the thread that calls it, and `is_here` then: its end is seen by
    whoever waits for it first, the program or a thread of the job.
    """

    def __init__(
        self,
        owner: Owner,
        lane: Lane,
        call: Call,
        tensors: list[torch.Tensor],
        stream: Stream,
        n: int,
        operation: Operation,
    ) -> None:
        super().__init__(owner, lane, tensors, operation)
        self.stream = stream
        self.n = operation.n = n
        self._call: Call | None = lane.capture(call, tensors)
        self._issued = None if lane.wait_blocks_host else threading.Event()
        self._finishing = threading.Lock()
        self.is_here = False

    def __repr__(self) -> str:
        return f"GatedWork({self.stream}#{self.n})"

    @property
    def waits_here(self) -> bool:
        """Whether a thread that waits for it sees its end, as the host is blocked until then."""
        return self._lane.wait_blocks_host

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until the operation is done (on CUDA: is issued, and the current stream waits for it).

        Raises OpusJobFailed, the inner backend's error, or OpusError after a `timeout` that is not zero.
        """
        self._begin_wait()
        if self.is_here and self.waits_here:
            self.finish()
        elif not self._has_ended_for_host:
            self._owner.block(self)
            if not self._wait_for_host(timeout.total_seconds() or None):
                raise OpusError(f"operation {self.n} of {self.stream} was not done within {timeout}")
        self._raise()
        if not self._lane.wait_blocks_host and self._inner is not None:
            self._inner.wait()
        self._end_wait()
        return True

    def issue(self) -> bool:
        """Hand the operation to the inner backend; called in the order of grants. False: it has failed."""
        call, self._call = self._call, None
        if self._is_done or call is None:
            return False  # the job failed between the grant and now
        try:
            self._owner.begin(self)
            self.operation.issued_ns = time.monotonic_ns()
            # The caller was below autograd, or in inference mode; this thread knows nothing of either.
            with torch.inference_mode():
                self._inner = call()
        except Exception as failed:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for this Work
            if is_broken_connection(failed):
                self.settle(self._owner.explain(failed, self))
            else:
                self._end(failed)
            return False
        if self._issued is not None:
            self._issued.set()
        return True

    def finish(self) -> None:
        """Block until the operation has finished on the device; then release it and wake whoever waits."""
        with self._finishing:
            if self._is_done:
                return
            try:
                self._lane.finish(self._inner)
            except OpusRefusedError as refused:  # found while it ran, on all members alike
                self._end(refused)
            except Exception as failed:  # noqa: BLE001 - see `issue`
                self.settle(self._owner.explain(failed, self))
            else:
                self._end(None)

    def is_completed(self) -> bool:
        """Whether the operation has finished on the device, or failed."""
        if self.is_here and not self._is_done and self._inner is not None and self._inner.is_completed():
            self.finish()
        return self._is_done

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors; callable before the operation is issued."""
        asked_before = self._future is not None
        future = super().get_future()
        if self.is_here and not asked_before:
            self._owner.watch(self)
        return future

    def _end(self, outcome: BaseException | None) -> None:
        """Give the circuits back, unless the job has failed meanwhile; then wake whoever waits."""
        try:
            if not self._is_done:
                self._owner.end(self)
        except Exception as failed:  # noqa: BLE001 - it must not kill the thread that others depend on
            outcome = outcome or failed
        self.settle(outcome)

    def settle(self, error: BaseException | None) -> bool:
        """Record the outcome; whoever waits for the grant has nothing more to wait for either."""
        news = super().settle(error)
        if self._issued is not None:
            self._issued.set()
        return news

    @property
    def _has_ended_for_host(self) -> bool:
        """Done, or on CUDA issued, from when on the stream waits."""
        return self._is_done if self._issued is None else self._issued.is_set()

    def _wait_for_host(self, timeout_s: float | None) -> bool:
        return self._wait_done(timeout_s) if self._issued is None else self._issued.wait(timeout_s)


class DirectWork(OpusWork):
    """An operation that needed no grant: the inner Work, with its errors explained by the controller."""

    def __init__(
        self, owner: Owner, lane: Lane, inner: Any, tensors: list[torch.Tensor], operation: Operation
    ) -> None:
        super().__init__(owner, lane, tensors, operation)
        operation.issued_ns = operation.called_ns
        self._inner = inner
        self._once = threading.Lock()  # a second wait for a message of gloo would never return

    def is_completed(self) -> bool:
        """Whether the operation has finished; gloo knows that of a message only after `wait`."""
        return self._is_done or self._inner is None or bool(self._inner.is_completed())

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until the operation is done (on CUDA: the current stream waits for it)."""
        self._begin_wait()
        if not self._is_done:
            self._owner.turn_to(self.operation)
        if self._inner is None:
            self.settle(None)
        elif not self._lane.wait_blocks_host:
            self._inner.wait()
        else:
            with self._once:
                if not self._is_done:
                    self._wait_inner(timeout)
            self._raise()
        self._end_wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors; on the host a thread of the job waits for the operation then."""
        if not self._lane.wait_blocks_host and self._inner is not None:
            future: torch.futures.Future[Any] = self._inner.get_future()
            return future
        asked_before = self._future is not None
        future = super().get_future()
        if not asked_before:
            self._owner.watch(self)
        return future

    def source_rank(self) -> int:
        """The sender of a message received from any."""
        return int(self._inner._source_rank())

    _source_rank = source_rank

    def finish(self) -> None:
        """As `wait`, for the thread that completes the future: the error goes there."""
        with self._once:
            if not self._is_done:
                self._wait_inner(NO_TIMEOUT)

    def _wait_inner(self, timeout: timedelta) -> None:
        try:
            if self._inner is not None:
                self._inner.wait(timeout) if timeout else self._inner.wait()
        except RuntimeError as failed:
            self.settle(self._owner.explain(failed, None))
        else:
            self.settle(None)


def _unwrap(base: torch.futures.Future[Any]) -> Any:
    value = base.value()
    if isinstance(value, BaseException):
        raise value
    return value
