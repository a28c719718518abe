"""The one operation that reaches no method of a group in python: an all-gather into a given tensor, from C++.

`_c10d_functional.all_gather_into_tensor_out`, which compiled code uses, goes from C++ to the backend that is
registered for the device, past the group. Its kernel in torch's dispatcher is replaced, for the whole
process; the kernel sees the inner groups' and other backends' calls too, and hands those on.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

OPERATION = "_allgather_base_"
DEVICES = ("CPU", "CUDA")

_once = threading.Lock()
_library: list[torch.library.Library] = []  # the kernels live as long as it does


class Done(dist.Work):
    """The Work of what was done at once, for which NCCL gives none."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Nothing to wait for."""
        return True


def plug(is_ours: Callable[[Any], bool]) -> None:
    """Send this operation of the groups for which `is_ours` to their method. Once per process."""
    with _once:
        if _library:
            return
        library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        _library.append(library)

    def kernel(
        output: torch.Tensor, data: torch.Tensor, boxed: Any, asynchronous: bool = True, timeout_ms: int = -1
    ) -> tuple[torch.Tensor, Any]:
        group: Any = dist.ProcessGroup.unbox(boxed)
        options = AllgatherOptions()
        options.asyncOp = asynchronous
        options.timeout = timedelta(milliseconds=timeout_ms)
        if is_ours(group):
            work = group.all_gather_single(output, data, options)
        else:
            backend: Any = group._get_backend(data.device)
            work = backend._allgather_base(output, data, options)
        return output, (Done() if work is None else work).boxed()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that a kernel is replaced: that is the aim
        for device in DEVICES:
            library.impl(OPERATION, kernel, device, allow_override=True)  # type: ignore[no-untyped-call]
