"""The smallest demonstration: two data-parallel ranks on one host, a handful of all-reduces.

The first all-reduce needs a circuit, so it waits for the switch once; the others find it up.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from opus_sdn.demo.child import tell
from opus_sdn.demo.results import TwoRanksResult
from opus_sdn.demo.world import DEFAULT_TIMEOUT_S, world


def run(
    backend: str = "gloo",
    operations: int = 5,
    elements: int = 1024,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> TwoRanksResult:
    """All-reduce `operations` times over the default group of `backend`."""
    values, seconds = [], []
    with world(backend, timeout_s) as rank:
        for k in range(operations):
            tensor = torch.full((elements,), float((rank + 1) * (k + 1)))
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - begin)
            values.append(tensor[0].item())
            tell({"operation": k, "value": values[-1], "seconds": seconds[-1], "ended_at": time.time()})
    return TwoRanksResult(rank, tuple(values), tuple(seconds))
