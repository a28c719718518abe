"""What ranks do in the tests of runs of several operations; run in forked processes, by name.

Every program repeats its step until phase tables are there, and says where steps end.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from opus_sdn.demo.world import world
from opus_sdn.shim.torch_backend import end_step, statistics

TIMEOUT_S = 60.0


def alternates(backend: str, steps: int, pause_s: float) -> dict[str, Any]:
    """Steps of two phases on circuits that exclude each other, each after a computation of `pause_s`."""
    with world(backend, TIMEOUT_S * 2) as rank:
        rows = [dist.new_group([first, first + 1]) for first in (0, 2)]
        columns = [dist.new_group([first, first + 2]) for first in (0, 1)]
        mine = torch.tensor([float(rank)])
        for _ in range(steps):
            for group in (rows[rank // 2], columns[rank % 2]):
                time.sleep(pause_s)
                dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=group)
            end_step()
        return {"value": mine.item(), **(statistics() or {})}


def coupled_by_tensor_parallelism(backend: str, steps: int) -> float:
    """C2: R and Q in a ring, S beside R, R' and S' on their hosts; each waits for the next in a circle."""
    with world(backend, TIMEOUT_S) as rank:
        ring, pair, other_pair = (dist.new_group(ranks) for ranks in ([0, 4], [0, 2], [1, 3]))
        hosts = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        value = torch.tensor([1.0])
        for _ in range(steps):
            received = torch.zeros(1)
            if rank == 0:
                sent = dist.isend(value, 2, group=pair)
                dist.all_reduce(value, group=ring)
                dist.all_reduce(value, group=hosts[0])
                dist.all_reduce(value, group=ring)
                assert sent is not None
                sent.wait()
            elif rank == 4:
                dist.all_reduce(value, group=ring)
                dist.all_reduce(value, group=ring)
            elif rank == 2:
                dist.recv(received, 0, group=pair)
                dist.all_reduce(value, group=hosts[1])
            elif rank == 3:
                dist.all_reduce(value, group=hosts[1])
                dist.send(value, 1, group=other_pair)
            else:
                dist.recv(received, 3, group=other_pair)
                dist.all_reduce(value, group=hosts[0])
            end_step()
            value = torch.tensor([1.0])
    return received.item()


def ring_and_messages(backend: str, steps: int) -> float:
    """C7: ranks 0 and 1 in a ring and in a pair, and a third one that sends to 1 on the ports of the pair."""
    with world(backend, TIMEOUT_S) as rank:
        ring, pair, third = (dist.new_group(ranks) for ranks in ([0, 1], [0, 1], [1, 2]))
        value = torch.tensor([1.0])
        for _ in range(steps):
            works = []
            if rank == 2:
                works = [dist.isend(value, 1, group=third)]
            else:
                if rank == 0:
                    works = [dist.isend(value, 1, group=pair)]
                else:
                    works = [
                        dist.irecv(torch.zeros(1), 2, group=third),
                        dist.irecv(torch.zeros(1), 0, group=pair),
                    ]
                for _ in range(3):
                    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=ring)
            for work in works:
                assert work is not None
                work.wait()
            end_step()
    return value.item()


def leaves_a_run(backend: str, steps: int, who: tuple[int, ...], waits: bool) -> list[float]:
    """C4: ranks 0 and 1 in a ring; in the last but one step `who` turn to messages of ranks 2 and 3 inside.

    Whoever does not leave `waits` for those who did, before its next operation of the ring, or goes on.
    """
    found = []
    with world(backend, TIMEOUT_S) as rank:
        store = distributed_c10d._get_default_store()
        ring, *pairs = (dist.new_group(ranks) for ranks in ([0, 1], [0, 2], [1, 3]))
        for step in range(steps):
            deviates = step == steps - 2
            value = torch.tensor([float(rank + step)])
            for number in range(4):
                if deviates and number == 2 and rank < 2:
                    if rank in who:
                        if not waits:
                            store.wait(["gone ahead"])
                        dist.recv(torch.zeros(1), rank + 2, group=pairs[rank])
                        store.set(f"{rank} is back", "yes")
                    elif waits:
                        store.wait([f"{one} is back" for one in who])
                    else:
                        works = [dist.all_reduce(value, group=ring, async_op=True) for _ in range(2)]
                        store.set("gone ahead", "yes")
                        for work in works:
                            assert work is not None
                            work.wait()
                        break
                if rank < 2:
                    dist.all_reduce(value, group=ring)
            if deviates and rank - 2 in who:
                dist.send(value, rank - 2, group=pairs[rank - 2])
            if deviates and not waits:
                dist.barrier()  # nobody gets beyond this point
            end_step()
            found.append(value.item())
    return found


def evaluates(backend: str, steps: int, every: int, first: int) -> dict[str, Any]:
    """FSDP2 over `dp`, losses sent along `pp`; from `first` on an evaluation before each `every`-th step."""
    with world(backend, TIMEOUT_S * 2) as rank:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        torch.manual_seed(1 + rank // 2)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh["dp"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(rank)
        pair, found = mesh.get_group("pp"), []
        for step in range(steps):
            if step >= first and step % every == 0:
                with torch.no_grad():
                    mean = model(torch.randn(8, 4, generator=generator)).square().mean()
                dist.all_reduce(mean, group=mesh.get_group("dp"))
                found.append(repr(mean.item()))
            loss = model(torch.randn(8, 4, generator=generator)).square().mean()
            loss.backward()
            said = loss.detach().clone()
            if rank < 2:
                dist.send(said, rank + 2, group=pair)
            else:
                dist.recv(said, rank - 2, group=pair)
            found += [repr(loss.item()), repr(said.item())]
            optimizer.step()
            optimizer.zero_grad()
        return {"losses": found, "said": statistics()}


def distributed_data_parallel(backend: str, steps: int) -> dict[str, Any]:
    """DDP over the whole world, with buffers and small buckets: futures, from C++, all on one ring."""
    with world(backend, TIMEOUT_S) as rank:
        torch.manual_seed(1)
        layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        model = DistributedDataParallel(layers, bucket_cap_mb=0.0001)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4, generator=generator)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(repr(loss.item()))
        return {"losses": losses, "said": statistics()}
