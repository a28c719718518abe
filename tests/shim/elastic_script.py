"""A user's script under torchrun: one rank dies in the first life of the job, the second life trains on.

Ranks sit on other hosts after the restart, as they do when agents meet again in another order. Writes what it
found to the folder that it is given.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from opus_sdn.demo.world import world

Learned = tuple[list[str], list[str]]


def train(rank: int, dies: bool) -> Learned:
    """Four steps of DDP: losses and sums of the parameters."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        if dies and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * step + rank)
        loss = model(torch.randn(8, 4, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(repr(loss.item()))
    return losses, [repr(weight.sum().item()) for weight in model.parameters()]


def undisturbed(backend: str) -> Learned:
    """The same in a forked rank."""
    with world(backend) as rank:
        return train(rank, dies=False)


def main() -> None:
    """As torchrun starts it."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    os.environ["OPUS_HOST"] = f"host{(rank + life) % size}"
    os.environ["OPUS_GPU_SLOT"] = "0"
    torch.set_num_threads(1)
    dist.init_process_group("opus")
    learned = train(rank, dies=(rank, life) == (1, 0))
    dist.destroy_process_group()
    (Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps([life, *learned]))


if __name__ == "__main__":
    main()
