"""`python -m benchmarks.shim`: what backend `opus` costs beside plain gloo, where no circuits change.

Two real ranks, a real controller. A step is a few hundred all-reduces, so that after a few steps each step is
one granted run, and the calls in it ask nobody. Per call: with an inner backend that does nothing, beside the
same one bare. In a 1 KB all-reduce: gloo beside gloo, in turns.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.world import world
from opus_sdn.fabric_file import generate_fabric
from opus_sdn.shim import torch_backend

STEPS_TO_LEARN = 6
PAIRS = 20
CALLS = 400
ROUNDS = 30
PER_CALL_US = 1.0
RATIO = 1.15


def gloo_beside_gloo() -> list[float]:
    """Ratios of the tenth percentiles of 1 KB all-reduces, `opus` to plain gloo, a pair of blocks each."""
    with world("opus"):
        plain = dist.new_group([0, 1], backend="gloo")
        tensor = torch.zeros(256)

        for _ in range(STEPS_TO_LEARN):
            _tenth(tensor, None)
            torch_backend.end_step()
        ratios = []
        for pair in range(PAIRS):
            first, second = (plain, None) if pair % 2 else (None, plain)
            figures = {group: _tenth(tensor, group) for group in (first, second)}
            torch_backend.end_step()
            ratios.append(figures[None] / figures[plain])
    return ratios


def _tenth(tensor: torch.Tensor, group: Any) -> float:
    """Seconds of an all-reduce, the tenth percentile: on a busy machine the mean is about the others."""
    taken = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        taken.append(time.perf_counter() - begin)
    return quantiles(taken, n=10)[0]


def calls_that_do_nothing(kind: str) -> float:
    """Microseconds per call, the best round's: `plain`, `gated` inside a run, or `ungated`."""
    if kind != "plain":
        torch_backend.build_inner = _build_nothing
    os.environ["OPUS_WORLD_GROUP"] = "front-end" if kind == "ungated" else "rail"
    tensor, best = torch.zeros(1), float("inf")
    with world("fake" if kind == "plain" else "opus"):
        for step in range(STEPS_TO_LEARN + ROUNDS):
            dist.all_reduce(tensor)  # the first of a step waits for its grant
            begin = time.thread_time()  # of a processor: others at work on the machine do not count
            for _ in range(CALLS):
                dist.all_reduce(tensor)
            taken = (time.thread_time() - begin) / CALLS
            if kind != "plain":
                torch_backend.end_step()
            if step >= STEPS_TO_LEARN:
                best = min(best, taken)
    return best * 1e6


def _build_nothing(options: Any, *_: Any) -> dict[str, Any]:
    """An inner backend whose operations are done at once."""
    return {"cpu": FakeProcessGroup._create_internal(options.group_rank, options.group_size)}  # noqa: SLF001


def main() -> int:
    """Print the figures as JSON, and whether they are within bounds."""
    with tempfile.TemporaryDirectory(prefix="opus-bench-") as folder, Zygote() as ranks:
        fabric = generate_fabric(hosts=2, gpus_per_host=1, delay_ms=0)
        with Controller(fabric, Path(folder)) as controller:

            def run(what: Callable[..., Any], *args: str) -> list[Any]:
                print(f"{what.__name__} {' '.join(args)} ...", file=sys.stderr)
                return ranks.run(
                    f"benchmarks.shim:{what.__name__}",
                    2,
                    args=args,
                    environment={"OPUS_CONTROLLER": controller.url, "OPUS_JOB": "bench-" + "-".join(args)},
                    rank_environment=lambda rank: {"OPUS_HOST": f"host{rank}", "OPUS_GPU_SLOT": "0"},
                    deadline_s=300.0,
                )

            ratio = median(run(gloo_beside_gloo)[0])
            per_call = {kind: min(run(calls_that_do_nothing, kind)) for kind in ("plain", "gated", "ungated")}
    over = {kind: round(per_call[kind] - per_call["plain"], 2) for kind in ("gated", "ungated")}
    print(json.dumps({"p10_ratio_1kb": round(ratio, 3), "us_over_plain": over, "us": per_call}, indent=2))
    within = ratio <= RATIO and max(over.values()) <= PER_CALL_US
    print(f"{'within' if within else 'ABOVE'} {RATIO} and {PER_CALL_US} us", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
