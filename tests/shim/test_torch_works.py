"""The Works and lanes by themselves: what a caller sees, on the host and on a stand-in for CUDA."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch

from opus_sdn.intent.model import Stream
from opus_sdn.shim.errors import OpusError, OpusJobFailed, OpusRefusedError
from opus_sdn.shim.operations import Operation, OperationLog, What
from opus_sdn.shim.torch_cuda import CudaLane
from opus_sdn.shim.torch_issue import Finishing
from opus_sdn.shim.torch_lanes import HostLane, Lane, is_broken_connection, tensors_in
from opus_sdn.shim.torch_works import DirectWork, GatedWork

pytestmark = pytest.mark.torch

STREAM = Stream("ring")
FAILED = OpusJobFailed("rank-lost", "rank 3 died", 3, 1)
BROKEN = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
WAIT_S = 30.0


def record() -> Operation:
    return OperationLog().begin(What("allreduce", "ring", "", "dp"), 8)


class Owner:
    """Notes what a Work asks of its job."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def block(self, work: GatedWork) -> None:
        self.notes.append("block")

    def turn_to(self, operation: Operation) -> None:
        self.notes.append("turn to")

    def begin(self, work: GatedWork) -> None:
        self.notes.append("begin")

    def end(self, work: GatedWork) -> None:
        self.notes.append("end")

    def explain(self, failed: BaseException, work: GatedWork | None) -> BaseException:
        self.notes.append(f"explain {type(failed).__name__}")
        return FAILED

    def watch(self, work: Finishing) -> None:
        threading.Thread(target=work.finish, daemon=True).start()


class Inner:
    """An inner Work: done when `waits` returns; raises what it is given."""

    def __init__(self, error: Exception | None = None, waits: Callable[[], object] = lambda: None) -> None:
        self.error, self.waits = error, waits
        self.wait_calls = 0
        self.completed = threading.Event()

    def wait(self, *timeout: timedelta) -> bool:
        self.wait_calls += 1
        self.waits()
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        return self.completed.is_set()

    def exception(self) -> Exception | None:
        return self.error


def gated(
    inner: Inner | Exception, lane: Lane | None = None, owner: Owner | None = None
) -> tuple[GatedWork, Owner]:
    owner = owner or Owner()

    def call() -> Inner:
        if isinstance(inner, Exception):
            raise inner
        return inner

    return GatedWork(owner, lane or HostLane(), call, [torch.ones(2)], STREAM, 0, record()), owner


def run(work: GatedWork) -> None:
    if work.issue():
        work.finish()


def test_a_granted_operation_is_begun_issued_waited_for_once_and_ended() -> None:
    inner = Inner()
    work, owner = gated(inner)
    assert not work.is_completed()
    run(work)
    assert owner.notes == ["begin", "end"]
    assert inner.wait_calls == 1
    assert work.wait()
    assert work.wait()
    assert inner.wait_calls == 1  # a second wait for a message of gloo would never return
    assert (work.is_completed(), work.is_success(), work.exception()) == (True, True, None)
    assert work.result()[0].tolist() == [1.0, 1.0]


def test_a_future_may_be_asked_for_before_during_and_after() -> None:
    work, _ = gated(Inner())
    before = work.get_future()
    assert not before.done()
    run(work)
    for future in (before, work.get_future()):
        assert future.wait()[0].tolist() == [1.0, 1.0]


def test_a_failed_operation_raises_from_wait_with_its_own_type_and_from_the_future_with_its_text() -> None:
    work, owner = gated(Inner(BROKEN))
    future = work.get_future()
    run(work)
    assert owner.notes == ["begin", "explain RuntimeError"]  # its circuits are not given back
    for _ in range(2):
        with pytest.raises(OpusJobFailed, match="rank 3 died") as raised:
            work.wait()
        assert raised.value is not FAILED  # each thread gets a traceback of its own
    assert not work.is_success()
    assert work.exception() is FAILED
    for asked in (future, work.get_future()):
        with pytest.raises(RuntimeError, match="OpusJobFailed: rank-lost: rank 3 died"):
            asked.wait()


@pytest.mark.parametrize(
    ("error", "raised", "notes"),
    [
        (BROKEN, OpusJobFailed, ["begin", "explain RuntimeError"]),
        (ValueError("wrong shape"), ValueError, ["begin", "end"]),
    ],
)
def test_a_call_that_fails_gives_its_circuits_back_unless_the_connection_is_broken(
    error: Exception, raised: type[Exception], notes: list[str]
) -> None:
    work, owner = gated(error)
    run(work)
    assert owner.notes == notes
    with pytest.raises(raised):
        work.wait()


@pytest.mark.parametrize("on_cuda", [False, True])
def test_a_job_that_fails_wakes_whoever_waits_for_a_grant_and_nothing_is_issued_any_more(
    on_cuda: bool,
) -> None:
    work, owner = gated(Inner(), CudaLane(FakeCuda()) if on_cuda else HostLane())
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            work.wait()
        except OpusJobFailed as failed:
            raised.append(failed)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    assert work.settle(FAILED)
    waiter.join(WAIT_S)
    assert [str(error) for error in raised] == [str(FAILED)]
    assert not work.issue()
    assert not work.settle(None)
    assert "begin" not in owner.notes


def test_what_finishes_after_the_job_has_failed_is_not_released() -> None:
    inner = Inner()
    work, owner = gated(inner)
    assert work.issue()
    work.settle(FAILED)
    work.finish()
    assert owner.notes == ["begin"]


def test_a_wait_with_a_timeout_ends_with_it_and_harms_nothing() -> None:
    work, owner = gated(Inner())
    with pytest.raises(OpusError, match="was not done within"):
        work.wait(timedelta(milliseconds=5))
    assert owner.notes == ["block"]
    run(work)
    assert work.wait(timedelta(milliseconds=5))


def test_an_ungated_work_waits_once_and_explains_what_breaks() -> None:
    inner, owner = Inner(), Owner()
    work = DirectWork(owner, HostLane(), inner, [torch.ones(1)], record())
    assert work.wait()
    assert work.wait()
    assert inner.wait_calls == 1
    broken = DirectWork(owner, HostLane(), Inner(BROKEN), [], record())
    for _ in range(2):
        with pytest.raises(OpusJobFailed, match="rank 3 died"):
            broken.wait()
    assert owner.notes == ["turn to", "turn to", "explain RuntimeError"]
    assert DirectWork(
        owner, HostLane(), None, [], record()
    ).wait()  # NCCL gives no Work for what it did at once


def test_the_future_of_an_ungated_work_completes_without_anybody_waiting() -> None:
    owner = Owner()
    work = DirectWork(owner, HostLane(), Inner(), [torch.ones(1)], record())
    assert work.get_future().wait()[0].tolist() == [1.0]
    assert work.get_future().done()
    broken = DirectWork(owner, HostLane(), Inner(BROKEN), [], record())
    with pytest.raises(RuntimeError, match="rank 3 died"):
        broken.get_future().wait()


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (BROKEN, True),
        (RuntimeError("Application timeout caused pair closure"), True),
        (torch.distributed.DistBackendError("NCCL error"), True),
        (RuntimeError("invalid tensor type at index 1"), False),
        (ValueError("Connection closed by peer"), False),
    ],
)
def test_a_broken_connection_is_told_from_a_wrong_call(error: Exception, broken: bool) -> None:
    assert is_broken_connection(error) is broken


def test_tensors_are_found_however_nested() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    found, size = tensors_in(([[a, b]], [c], 3, None))
    assert [id(one) for one in found] == [id(a), id(b), id(c)]
    assert size == a.nbytes + b.nbytes


# --- CUDA, by a stand-in that notes what is asked of it


class FakeCuda:
    """Streams and events as torch.cuda has them, with a note of every call."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.capturing = False
        self._current = "caller"
        fake = self

        class Event:
            def record(self, stream: object) -> None:
                fake.notes.append(f"record on {stream}")

        class Stream:
            def __init__(self, device: object) -> None:
                fake.notes.append(f"new stream on {device}")

            def __str__(self) -> str:
                return "own"

            def wait_event(self, event: object) -> None:
                fake.notes.append("own waits for the event")

        self.Event, self.Stream = Event, Stream

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self, device: object) -> str:
        return self._current

    @contextmanager
    def device(self, device: object) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        before, self._current = self._current, str(stream)
        yield
        self._current = before


def test_on_cuda_an_operation_is_issued_behind_what_the_caller_had_enqueued() -> None:
    cuda = FakeCuda()
    inner = Inner()
    issued_on: list[str] = []

    def call() -> Any:
        issued_on.append(cuda.current_stream(None))
        return inner

    owner = Owner()
    lane = CudaLane(cuda)
    works = [GatedWork(owner, lane, call, [torch.ones(1)], STREAM, n, record()) for n in range(2)]
    assert cuda.notes == ["record on caller"] * 2
    for work in works:
        assert work.issue()
    assert issued_on == ["own", "own"]
    assert cuda.notes[2:] == ["new stream on cpu", "own waits for the event", "own waits for the event"]
    assert cuda.current_stream(None) == "caller"


def test_on_cuda_waiting_is_for_the_issue_and_ending_is_for_the_device() -> None:
    inner = Inner()
    work, owner = gated(inner, CudaLane(FakeCuda()))
    assert work.issue()
    assert work.wait()
    assert work.wait()
    assert inner.wait_calls == 2  # each makes the caller's current stream wait
    assert owner.notes == ["begin"]
    assert not work.is_completed()
    finishing = threading.Thread(target=work.finish, daemon=True)
    finishing.start()
    inner.completed.set()
    finishing.join(WAIT_S)
    assert owner.notes == ["begin", "end"]
    assert work.is_completed()


def test_on_cuda_a_kernel_that_failed_is_explained() -> None:
    inner = Inner(RuntimeError("NCCL watchdog"))
    inner.completed.set()
    work, owner = gated(inner, CudaLane(FakeCuda()))
    run(work)
    assert owner.notes == ["begin", "explain RuntimeError"]
    with pytest.raises(OpusJobFailed):
        work.wait()


def test_on_cuda_an_operation_in_a_graph_is_refused() -> None:
    cuda = FakeCuda()
    cuda.capturing = True
    with pytest.raises(OpusRefusedError, match="cannot be captured in a CUDA graph"):
        gated(Inner(), CudaLane(cuda))
    assert cuda.notes == []  # an event recorded there would break the capture
