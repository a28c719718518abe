"""Five all-reduces over backend opus and how long each took; the rank's part of `two_gpus.sh`."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

OPERATIONS = 5
ELEMENTS = 1 << 20


def main() -> None:
    """Sum over both ranks, and check the sums."""
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= 2
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:opus,cuda:opus" if on_gpus else "opus")
    rank = dist.get_rank()
    for operation in range(OPERATIONS):
        tensor = torch.full((ELEMENTS,), float((rank + 1) * (operation + 1)), device=device)
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        if on_gpus:
            torch.cuda.synchronize(device)
        took_ms = (time.perf_counter() - begin) * 1e3
        wanted = 3.0 * (operation + 1)
        if tensor[0].item() != wanted:
            raise SystemExit(f"operation {operation}: the sum is {tensor[0].item()}, wanted {wanted}")
        if rank == 0:
            print(f"all-reduce {operation} on {device.type}: {took_ms:.1f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
