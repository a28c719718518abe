"""Small models trained in the ways that torch offers, one after the other in one set of eight ranks.

Each returns what was learned, to the last bit, and how many operations it asked grants for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from opus_sdn.demo.world import world
from tests.shim.api_rows import asked

TIMEOUT_S: Final = 60.0
STEPS: Final = 8  # a phase table is learned from five: what follows goes on in runs
WIDTH: Final = 8
Program = Callable[[int], dict[str, Any]]


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.down(torch.relu(self.up(value)))


def _data(step: int, part: int, rows: int = 8) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1000 * step + part))


def _local(value: Tensor) -> Tensor:
    return (value.to_local() if isinstance(value, DTensor) else value).detach()


def _learn(
    model: nn.Module, loss_of: Callable[[int], Tensor], after: Callable[[], None] = lambda: None
) -> Any:
    """A few steps of SGD: losses, norms of this rank's gradients, and a digest of its parameters."""
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.05)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        after()
        norms.append(repr(_norm(weights)))
        optimizer.step()
        losses.append(repr(loss.item()))
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(_local(weight).numpy().tobytes())
    return {"losses": losses, "norms": norms, "checksum": digest.hexdigest()}


def _norm(weights: Iterable[Tensor]) -> float:
    grads = [_local(weight.grad).double().square().sum() for weight in weights if weight.grad is not None]
    assert grads
    return torch.stack(grads).sum().sqrt().item()


def ddp(rank: int) -> dict[str, Any]:
    """Buffers to broadcast, many buckets, rebuilt after the first step; over the whole world."""
    torch.manual_seed(1)
    inner = nn.Sequential(Block(), nn.BatchNorm1d(WIDTH), Block())
    model = DistributedDataParallel(inner, bucket_cap_mb=0.0005)
    return _learn(model, lambda step: model(_data(step, rank)).square().mean())


def ddp_as_a_script(backend: str) -> dict[str, Any]:
    """As a user's script does it, with nobody meeting anybody before the end."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["LAUNCHER_STORE_FILE"], size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    learned = ddp(rank)
    dist.destroy_process_group()
    return learned


def hsdp(rank: int) -> dict[str, Any]:
    """Sharded over one dimension and replicated over another: two topologies per layer."""
    torch.manual_seed(2)
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = nn.Sequential(Block(), Block(), Block())
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _learn(model, lambda step: model(_data(step, rank)).square().mean())


def tp_and_fsdp2(reshard: bool) -> Program:
    """Tensor parallelism inside the host, shards across hosts."""

    def program(rank: int) -> dict[str, Any]:
        torch.manual_seed(3)
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
        model = nn.Sequential(Block(), Block())
        for block in model:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh["dp"], reshard_after_forward=reshard)
        return _learn(model, lambda step: model(_data(step, rank // 2)).square().mean())

    return program


def context_parallel(rank: int) -> dict[str, Any]:
    """The sequence is cut over hosts; keys and values are gathered, their gradients scattered back."""
    torch.manual_seed(4)
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("cp", "tp"))
    group = mesh.get_group("cp")
    attention = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")})

    def loss_of(step: int) -> Tensor:
        mine = _data(step, rank, rows=4)
        keys = functional.all_gather_tensor_autograd(attention["k"](mine), 0, group)
        values = functional.all_gather_tensor_autograd(attention["v"](mine), 0, group)
        scores = attention["q"](mine) @ keys.T / WIDTH**0.5
        return attention["out"](scores.softmax(-1) @ values).square().mean()

    def average() -> None:
        for weight in attention.parameters():
            assert weight.grad is not None
            dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG, group=group)

    return _learn(attention, loss_of, average)


def expert_parallel(whole_world: bool) -> Program:
    """Rows go to the expert that a router names and come back: uneven splits, forward and backward."""

    def program(rank: int) -> dict[str, Any]:
        torch.manual_seed(5)
        router, shared = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        torch.manual_seed(50 + rank)
        expert = Block()
        if whole_world:
            group: Any = dist.group.WORLD
        else:
            group = init_device_mesh("cpu", (4, 2), mesh_dim_names=("ep", "tp")).get_group("ep")
        experts = group.size()

        def loss_of(step: int) -> Tensor:
            rows = shared(_data(step, rank))
            chosen = router(rows).argmax(-1) % experts
            order = chosen.argsort(stable=True)
            sends = torch.bincount(chosen, minlength=experts)
            receives = torch.empty_like(sends)
            dist.all_to_all_single(receives, sends, group=group)
            there, here = receives.tolist(), sends.tolist()
            arrived = functional.all_to_all_single_autograd(rows[order].contiguous(), there, here, group)
            back = functional.all_to_all_single_autograd(expert(arrived), here, there, group)
            return back.square().mean()

        return _learn(nn.ModuleList([shared, expert]), loss_of)

    return program


PROGRAMS: Final[Mapping[str, Program]] = {
    "DDP": ddp,
    "HSDP": hsdp,
    "TP + FSDP2": tp_and_fsdp2(reshard=True),
    "TP + FSDP2, not resharded": tp_and_fsdp2(reshard=False),
    "context parallel": context_parallel,
    "expert parallel": expert_parallel(whole_world=False),
    "expert parallel over all hosts and GPUs": expert_parallel(whole_world=True),
}


def run(backend: str) -> dict[str, Any]:
    """All programs: what was learned, and the operations that this rank asked grants for."""
    found: dict[str, Any] = {}
    with world(backend, TIMEOUT_S) as rank:
        for name, program in PROGRAMS.items():
            before = asked()
            found[name] = (program(rank), asked() - before)
    return found
