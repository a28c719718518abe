"""NCCL inside the backend: streams, events, devices and graph capture. Not run on a GPU yet.

Written against torch's stream and event interface and tested with a stand-in of it (`torch.cuda` is an
argument everywhere). NCCL enqueues and returns: `wait()` makes the current stream wait, completion is an
event that has to be asked, and what is enqueued under a graph capture never asks anybody again.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opus_sdn.shim.errors import OpusRefusedError
from opus_sdn.shim.ring_shift import Shifts
from opus_sdn.shim.torch_all_to_all import AllToAll, Chunks, Message
from opus_sdn.shim.torch_lanes import Call

POLL_S = 0.0001  # between two questions whether a kernel has finished
CAPTURE_MODE_RELAXED = 2  # cudaStreamCaptureModeRelaxed

log = logging.getLogger(__name__)


class CudaLane:
    """NCCL: issued on a stream of the shim's own, behind what the caller had enqueued when it called.

    On the caller's stream itself the operation would also wait for what the caller enqueued since.
    """

    wait_blocks_host = False

    def __init__(self, cuda: Any = torch.cuda, relax: Callable[[], None] | None = None) -> None:
        self._cuda = cuda
        self._streams: dict[Any, Any] = {}
        self._relax = relax or relax_capture_mode
        self._thread = threading.local()

    def capture(self, call: Call, tensors: list[torch.Tensor]) -> Call:
        """Remember device and stream position of the caller. Refuses while a CUDA graph is captured.

        The device is the tensors', never the one that a rank's number suggests; a barrier's the current one.
        """
        cuda = self._cuda
        if cuda.is_current_stream_capturing():
            raise OpusRefusedError(
                "captured-operation",
                "an operation that needs a grant cannot be captured in a CUDA graph: a replay would not ask "
                "for its circuits; capture the step without communication across hosts",
            )
        device = tensors[0].device if tensors else torch.device("cuda", cuda.current_device())
        ready = cuda.Event()
        ready.record(cuda.current_stream(device))

        def issue() -> Any:
            with cuda.device(device):
                if device not in self._streams:
                    self._streams[device] = cuda.Stream(device)
                stream = self._streams[device]
                stream.wait_event(ready)
                with cuda.stream(stream):
                    return call()

        return issue

    def finish(self, inner: Any) -> None:
        """Ask until the kernel's end event has passed; waiting for the event would keep the GIL busy."""
        if not getattr(self._thread, "relaxed", False):
            self._thread.relaxed = True
            self._relax()
        while inner is not None and not inner.is_completed():
            time.sleep(POLL_S)
        failure = inner.exception() if inner is not None else None
        if failure is not None:
            raise failure if isinstance(failure, BaseException) else RuntimeError(str(failure))


def gpu_names(index: int, cuda: Any = torch.cuda) -> list[str]:
    """PCI address and UUID of a GPU that this process sees; none where there is no such GPU."""
    if not cuda.is_available() or index >= cuda.device_count():
        return []
    of = cuda.get_device_properties(index)
    names = []
    if hasattr(of, "pci_bus_id"):
        names.append(f"{of.pci_domain_id:04x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0")
    if hasattr(of, "uuid"):
        names.append(f"GPU-{of.uuid}")
    return names


def relax_capture_mode(library: Any = None) -> None:
    """Let this thread ask for events while another one captures a graph: CUDA fails that capture otherwise.

    The mode is the calling thread's own. Where the runtime library cannot be found, nothing is done.
    """
    try:
        if library is None:
            library = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
        mode = ctypes.c_int(CAPTURE_MODE_RELAXED)
        library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    except (OSError, AttributeError) as missing:
        log.debug("capture mode of the thread stays as it is: %r", missing)


class GroupedCarrier:
    """NCCL: sends and receives of one exchange are one group, as neither would end without the other."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __call__(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Enqueue; the current stream waits for it."""
        if not sends and not receives:
            return
        self._backend._start_coalescing()
        for peer, tensor in receives:
            self._backend.recv([tensor], peer, 0)
        for peer, tensor in sends:
            self._backend.send([tensor], peer, 0)
        self._backend._end_coalescing().wait()


class StreamWork:
    """All that a stream holds now, as a Work."""

    def __init__(self, cuda: Any, keep: object) -> None:
        self._cuda = cuda
        self._keep = keep  # memory that kernels on the way still use
        self._over = cuda.Event()
        self._over.record(cuda.current_stream())

    def wait(self) -> bool:
        """Make the caller's current stream wait."""
        self._cuda.current_stream().wait_event(self._over)
        return True

    def is_completed(self) -> bool:
        """Whether the device has come so far."""
        return bool(self._over.query())

    def exception(self) -> None:
        """None: a kernel that fails shows at the next call of CUDA, and to NCCL's own watch."""


def device_call(
    shifts: Shifts, me: int, tables: Any, backend: Any, chunks: tuple[Chunks, Chunks], cuda: Any = torch.cuda
) -> Callable[[], Any]:
    """The call that enqueues a whole all-to-all, in grant order as everything else, and gives its Work.

    Sizes are exchanged over `tables`, gloo on the front-end network, before the first kernel is enqueued.
    """

    def call() -> StreamWork:
        exchange = AllToAll(shifts, me, tables, *chunks)
        exchange.run(GroupedCarrier(backend))
        return StreamWork(cuda, exchange)

    return call
