"""Groups as programs make them, for the tests of how the controller knows them; run in forked ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from opus_sdn.demo.world import world

TIMEOUT_S = 30.0


def meshes(backend: str) -> dict[str, Any]:
    """As frameworks make them: one mesh of all ranks, cut into dimensions, some of them joined again."""
    found: dict[str, Any] = {}
    with world(backend, TIMEOUT_S) as rank:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp_shard", "tp"))
        flat = mesh["pp", "dp_shard"]._flatten("pp_dp")
        whole = init_device_mesh("cpu", (8,), mesh_dim_names=("fsdp",))
        found["whole is the default group"] = whole.get_group() is dist.group.WORLD
        groups = {
            "pp": mesh.get_group("pp"),
            "dp_shard": mesh.get_group("dp_shard"),
            "tp": mesh.get_group("tp"),
            "pp_dp": flat.get_group(),
            "world": whole.get_group(),
        }
        for name, group in groups.items():
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            found[name] = tensor.item()
    return found


def groups_that_nobody_names(backend: str) -> list[float]:
    """Plain groups: what is known of them is what they do first."""
    with world(backend, TIMEOUT_S) as rank:
        pair = dist.new_group([0, 1])
        gathers, sums, exchanges = (dist.new_group([0, 1, 2]) for _ in range(3))
        named = dist.new_group([1, 2], group_desc="EXPERTS")
        told = dist.new_group([0, 2])
        found = []
        if rank < 2:
            tensor = torch.ones(1)
            dist.send(tensor, 1, group=pair) if rank == 0 else dist.recv(tensor, 0, group=pair)
        if rank < 3:
            whole = torch.zeros(3)
            dist.all_gather_into_tensor(whole, torch.ones(1), group=gathers)
            dist.all_reduce(whole, group=sums)
            out = torch.zeros(3)
            dist.all_to_all_single(out, whole, group=exchanges)
            found += out.tolist()
        for group, ranks in ((named, (1, 2)), (told, (0, 2))):
            if rank in ranks:
                dist.barrier(group=group)
    return found


def splits(backend: str) -> dict[str, Any]:
    """`split_group`, which torch offers where an accelerator is bound: it is made to take gloo for one."""
    torch.accelerator.is_available = lambda: True  # type: ignore[assignment]
    torch.accelerator.current_accelerator = lambda *_: torch.device("cpu")  # type: ignore[assignment]
    with world(backend, TIMEOUT_S) as rank:
        everybody: Any = dist.group.WORLD
        everybody.bound_device_id = torch.device("cpu", 0)
        options: Any = object()  # torch copies NCCL's; gloo's cannot be copied
        child: Any = dist.split_group(
            everybody,
            [[0, 2], [1, 3]],
            timeout=timedelta(seconds=20),
            pg_options=options,
            group_desc="mesh_dp",
        )
        some: Any = dist.split_group(everybody, [[1, 2]], pg_options=options)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=child)
        if rank in (1, 2):
            dist.barrier(group=some)
        return {
            "type": type(child).__name__,
            "ranks": dist.get_process_group_ranks(child),
            "sum": tensor.item(),
            "member": some is not None,
        }
