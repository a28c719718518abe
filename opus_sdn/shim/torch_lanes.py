"""The two kinds of inner backends and what differs between them: when an operation has been waited for.

gloo: `wait()` blocks the host until the operation is done, and may be called once only for messages. NCCL:
the call enqueues, `wait()` makes the current stream wait, and completion is seen by asking (`torch_cuda`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName

POISON_TAG = 0x7FFFFFF0
POISON_WAIT = timedelta(milliseconds=1)

# A call of an inner backend with its arguments bound; gives the inner Work, or None.
Call = Callable[[], Any]

# gloo has one exception type for everything: what it says tells a broken connection from a wrong argument.
_BROKEN_SIGNS = ("gloo/transport/", "Application timeout caused pair closure", "Connection closed by peer")


class Lane(Protocol):
    """How operations of one device type are issued later and observed."""

    wait_blocks_host: bool

    def capture(self, call: Call, tensors: list[torch.Tensor]) -> Call:
        """Bind what the call depends on now (device, stream), to be issued from another thread."""

    def finish(self, inner: Any) -> None:
        """Block until the operation has finished on the device; raises what the backend raised."""


class HostLane:
    """gloo: the operation is done when `wait()` returns, and only a thread that waits sees messages end."""

    wait_blocks_host = True

    def capture(self, call: Call, tensors: list[torch.Tensor]) -> Call:
        """Nothing but the arguments matters."""
        return call

    def finish(self, inner: Any) -> None:
        """The one `wait()` that this Work gets."""
        if inner is not None:
            inner.wait()


def build_inner(options: Any, backend_options: Any, life: str) -> dict[str, Any]:
    """The inner backends of a group by device type: gloo always, NCCL where torch and the machine have it.

    Collective: gloo connects all members here. `life` is the same on all of them and new after a restart: a
    launcher may start ranks again over the same store, and gloo would read the addresses of the dead there.
    Raises what the backends raise.
    """
    store = dist.PrefixStore(f"inner/{life}", options.store)
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("cpu", store), rank, size, timeout=timeout)
    _name(gloo.options, options)
    gloo._set_sequence_number_for_group()
    backends: dict[str, Any] = {"cpu": gloo}
    if torch.cuda.is_available() and dist.is_nccl_available():
        chosen = backend_options if backend_options is not None else dist.ProcessGroupNCCL.Options()
        chosen._timeout = timeout
        _name(chosen, options)
        nccl = dist.ProcessGroupNCCL(dist.PrefixStore("cuda", store), rank, size, chosen)
        nccl._set_sequence_number_for_group()
        backends["cuda"] = nccl
    return backends


def wrap_inner(options: Any, backends: dict[str, Any]) -> dist.ProcessGroup:
    """One process group over the inner backends: it finds the right one by the tensors' device."""
    inner = dist.ProcessGroup(
        dist.PrefixStore("inner", options.store), options.group_rank, options.group_size
    )
    kinds = {"cpu": dist.ProcessGroup.BackendType.GLOO, "cuda": dist.ProcessGroup.BackendType.NCCL}
    inner._set_default_backend(kinds["cuda" if "cuda" in backends else "cpu"])
    for device, backend in backends.items():
        inner._register_backend(torch.device(device), kinds[device], backend)
    inner._set_group_name(GroupName(f"{options.group_id}/inner"))
    return inner


def poison(backend: Any, rank: int, size: int) -> None:
    """Make every operation of a gloo group raise, those that other threads are blocked in too.

    gloo's own `abort` wakes nobody. A receive that times out closes all connections of its group: ask for a
    message that nobody sends.
    """
    if size < 2:
        return
    try:
        backend.recv([torch.empty(1)], (rank + 1) % size, POISON_TAG).wait(POISON_WAIT)
    except RuntimeError:
        return


def is_broken_connection(failed: BaseException) -> bool:
    """Whether an inner error says that the group is dead, and not that the call was wrong."""
    if isinstance(failed, dist.DistBackendError):
        return True
    return isinstance(failed, RuntimeError) and any(sign in str(failed) for sign in _BROKEN_SIGNS)


def tensors_in(arguments: Any) -> tuple[list[torch.Tensor], int]:
    """All tensors of a call, however nested in lists, and the bytes of its larger side.

    The larger side is what is gathered, or what is scattered. Every operation comes by here.
    """
    found: list[torch.Tensor] = []
    largest = 0
    for item in arguments:
        if isinstance(item, torch.Tensor):
            found.append(item)
            size = item.nbytes
        elif isinstance(item, (list, tuple)):
            size = _add_nested(item, found)
        else:
            continue
        if size > largest:
            largest = size
    return found, largest


def _add_nested(items: Any, found: list[torch.Tensor]) -> int:
    size = 0
    for item in items:
        if isinstance(item, torch.Tensor):
            found.append(item)
            size += item.nbytes
        elif isinstance(item, (list, tuple)):
            size += _add_nested(item, found)
    return size


def _name(inner_options: Any, options: Any) -> None:
    inner_options.global_ranks_in_group = list(options.global_ranks_in_group)
    inner_options.group_name = options.group_id
