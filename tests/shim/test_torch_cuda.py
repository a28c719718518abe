"""The parts for CUDA against a stand-in of streams, events and NCCL: none of this has run on a GPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode

from opus_sdn.intent.model import Domain, Stream
from opus_sdn.shim.errors import OpusRefusedError
from opus_sdn.shim.operations import OperationLog
from opus_sdn.shim.ring_shift import Shifts
from opus_sdn.shim.torch_cuda import (
    CAPTURE_MODE_RELAXED,
    CudaLane,
    GroupedCarrier,
    StreamWork,
    device_call,
    relax_capture_mode,
)
from opus_sdn.shim.torch_group import OpusGroup
from opus_sdn.shim.wire import GroupAnswer, Ring
from tests.shim.test_torch_works import FakeCuda

pytestmark = pytest.mark.torch

RING = Ring("ranks-0-1.0", ("host0:0:1--host1:0:0",))


class Events(FakeCuda):
    """With events that pass when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = False
        events, base = self, self.Event

        class Event(base):  # type: ignore[misc, valid-type]
            def query(self) -> bool:
                return events.passed

        class Current:
            def wait_event(self, event: object) -> None:
                events.notes.append("current stream waits for the event")

            def __str__(self) -> str:
                return "caller"

        self.Event = Event
        self.here = Current()

    def current_stream(self, device: object = None) -> Any:
        return self.here

    def current_device(self) -> int:
        return 3


class Nccl:
    """Notes what is asked of it; its messages travel between the members at once."""

    def __init__(self, me: int, boxes: dict[tuple[int, int], list[torch.Tensor]]) -> None:
        self.me, self.boxes = me, boxes
        self.notes: list[str] = []
        self._receives: list[tuple[int, torch.Tensor]] = []

    def _start_coalescing(self) -> None:
        self.notes.append("start")

    def send(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> None:
        self.notes.append(f"send to {peer}")
        self.boxes.setdefault((self.me, peer), []).append(tensors[0].clone())

    def recv(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> None:
        self.notes.append(f"recv from {peer}")
        self._receives.append((peer, tensors[0]))

    def _end_coalescing(self) -> Any:
        self.notes.append("end")
        return self

    def wait(self) -> None:
        self.notes.append("wait")
        for peer, tensor in self._receives:
            tensor.copy_(self.boxes[peer, self.me].pop(0))
        self._receives.clear()


def test_the_device_is_the_tensors_else_the_current_one_never_the_ranks() -> None:
    cuda = Events()
    seen: list[object] = []
    cuda.current_stream = lambda device=None: seen.append(device) or cuda.here  # type: ignore[assignment, func-returns-value]
    lane = CudaLane(cuda)
    lane.capture(lambda: None, [torch.ones(1)])
    lane.capture(lambda: None, [])
    assert seen == [torch.device("cpu"), torch.device("cuda", 3)]


def test_a_thread_that_asks_for_events_spoils_no_capture_of_others_and_says_so_once() -> None:
    relaxed: list[str] = []
    lane = CudaLane(Events(), relax=lambda: relaxed.append(threading.current_thread().name))
    threads = [
        threading.Thread(target=lambda: [lane.finish(None), lane.finish(None)], name=name)
        for name in ("one", "two")
    ]
    for thread in threads:
        thread.start()
        thread.join(30.0)
    assert relaxed == ["one", "two"]


def test_the_capture_mode_is_set_where_the_runtime_is_there() -> None:
    class Runtime:
        def __init__(self) -> None:
            self.modes: list[int] = []

        def cudaThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
            self.modes.append(ctypes.cast(mode, ctypes.POINTER(ctypes.c_int))[0])
            return 0

    runtime = Runtime()
    relax_capture_mode(runtime)
    assert runtime.modes == [CAPTURE_MODE_RELAXED]
    relax_capture_mode(object())  # a library without it
    relax_capture_mode()  # no library here at all


def test_messages_of_one_exchange_are_one_group_and_none_is_none() -> None:
    nccl = Nccl(0, {(1, 0): [torch.full((1,), 7.0)]})
    received = torch.zeros(1)
    GroupedCarrier(nccl)([], [])
    assert nccl.notes == []
    GroupedCarrier(nccl)([(1, torch.ones(2))], [(1, received)])
    assert nccl.notes == ["start", "recv from 1", "send to 1", "end", "wait"]
    assert received.item() == 7.0


def test_a_stream_work_is_done_when_the_device_has_come_so_far() -> None:
    cuda = Events()
    work = StreamWork(cuda, keep=None)
    assert cuda.notes == ["record on caller"]
    assert not work.is_completed()
    assert work.wait()
    assert cuda.notes[1:] == ["current stream waits for the event"]
    cuda.passed = True
    assert work.is_completed()
    assert work.exception() is None


def test_an_all_to_all_on_cuda_enqueues_its_rounds_and_gives_one_work() -> None:
    """Three hosts on one rail: everybody's round 1 is enqueued before anybody's round 2 here."""

    class Tables:
        """Sizes are told at once: everybody sends one element to everybody."""

        def _allgather_base(self, table: torch.Tensor, said: torch.Tensor, options: object) -> Tables:
            assert said.tolist() == [1] * 6
            table.fill_(1)
            return self

        def wait(self) -> None:
            pass

    ring = (0, 1, 2)
    shifts = Shifts((ring,) * 3, ((0,), (1,), (2,)))
    sends = [[torch.tensor([10.0 * me + other]) for other in ring] for me in ring]
    # What rank 1 receives around the ring 2 -> 0 -> 1: rank 0's train, then rank 2's chunk for it.
    boxes = {(0, 1): [torch.tensor([1.0, 2.0]), torch.tensor([21.0])]}
    nccl, cuda = Nccl(1, boxes), Events()
    receives = [torch.zeros(1) for _ in ring]
    work = device_call(shifts, 1, Tables(), nccl, (sends[1], receives), cuda)()
    assert [one.item() for one in receives] == [1.0, 11.0, 21.0]
    assert nccl.notes == ["start", "recv from 0", "send to 2", "end", "wait"] * 2
    assert [one.tolist() for one in boxes[1, 2]] == [[12.0, 10.0], [2.0]]
    assert isinstance(work, StreamWork)
    assert cuda.notes == ["record on caller"]


# --- a group of a job with GPUs


class Job:
    """Notes what a group asks of its job."""

    rank = 0

    def __init__(self) -> None:
        self.log = OperationLog()
        self.notes: list[str] = []
        self.misfit = False

    def register(self, group: object, ranks: tuple[int, ...], is_default: bool) -> int:
        return 0

    def uses(self, ranks: tuple[int, ...], ordinal: int) -> None:
        pass

    def note(self, operation: object) -> None:
        pass

    def label_of(self, ranks: Sequence[int]) -> None:
        return None

    def check_in(self, name: str, ranks: object, dimension: str, ordinal: int) -> GroupAnswer:
        self.notes.append(f"check in {name} {dimension}")
        return GroupAnswer(name, Domain.SCALE_OUT, RING)

    def require_fit(self, ranks: Sequence[int], circuits: Sequence[str]) -> None:
        self.notes.append(f"fit {' '.join(circuits)}")
        if self.misfit:
            raise OpusRefusedError("nccl-does-not-fit", "set NCCL_ALGO=Ring")

    def require_usable(self) -> None:
        pass

    def submit(
        self, lane: object, call: Any, tensors: object, stream: Stream, operation: object, **rest: Any
    ) -> Any:
        self.notes.append(f"submit {stream.connection} on {type(lane).__name__}")
        return call()


class Inner:
    """The inner group: notes its calls, and whether they were asked to give a Work."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def allreduce(self, tensors: Sequence[torch.Tensor], options: Any) -> str:
        self.notes.append(f"allreduce on {tensors[0].device.type} asyncOp={options.asyncOp}")
        return "work"

    def barrier(self, options: Any) -> str:
        self.notes.append(f"barrier on {options.device} asyncOp={options.asyncOp}")
        return "work"


@pytest.fixture
def group() -> Iterator[tuple[OpusGroup, Job, Inner]]:
    gloo = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    job, inner = Job(), Inner()
    made = OpusGroup(job, (0, 1), 0, inner, {"cpu": gloo, "cuda": gloo})  # type: ignore[arg-type]
    yield made, job, inner
    made._inner = None  # nothing to shut down


def all_reduce(group: OpusGroup, device: str, asynchronous: bool) -> Any:
    options = dist.AllreduceOptions()
    options.asyncOp = asynchronous
    with FakeTensorMode():
        tensor = torch.empty(4, device=device)
    return group.allreduce([tensor], options)  # type: ignore[attr-defined]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tensors_of_gpus_ask_and_nccl_always_gives_a_work(
    group: tuple[OpusGroup, Job, Inner], asynchronous: bool
) -> None:
    """A synchronous NCCL call gives none, which C++ callers of ours would take for an address."""
    opus, job, inner = group
    assert all_reduce(opus, "cuda", asynchronous) == "work"
    assert job.notes == [
        "check in ranks-0-1.0 dp",
        "fit host0:0:1--host1:0:0",
        "submit ranks-0-1.0 on CudaLane",
    ]
    assert inner.notes == ["allreduce on cuda asyncOp=True"]


def test_tensors_of_hosts_take_the_front_end_and_ask_nobody(group: tuple[OpusGroup, Job, Inner]) -> None:
    """Object collectives, checkpoints and logs of a job with GPUs."""
    opus, job, inner = group
    work = all_reduce(opus, "cpu", asynchronous=False)
    assert type(work).__name__ == "DirectWork"
    assert (job.notes, inner.notes) == ([], ["allreduce on cpu asyncOp=False"])


@pytest.mark.parametrize(
    ("device", "asked"), [(torch.device("cpu"), False), (torch.device("cuda", 0), True), (None, True)]
)
def test_a_barrier_is_where_torch_puts_it_and_asks_on_gpus(
    group: tuple[OpusGroup, Job, Inner], device: torch.device | None, asked: bool
) -> None:
    opus, job, inner = group
    options = dist.BarrierOptions()
    if device is not None:
        options.device = device
    opus.barrier(options)  # type: ignore[attr-defined]
    assert (job.notes[-1:] == ["submit ranks-0-1.0 on CudaLane"]) == asked
    assert len(inner.notes) == 1


def test_a_group_that_nccl_would_take_off_its_circuits_is_refused_every_time(
    group: tuple[OpusGroup, Job, Inner],
) -> None:
    opus, job, inner = group
    job.misfit = True
    for _ in range(2):
        with pytest.raises(OpusRefusedError, match="set NCCL_ALGO=Ring"):
            all_reduce(opus, "cuda", asynchronous=True)
    assert inner.notes == []
