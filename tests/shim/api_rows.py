"""Every way in which torch calls a process group, one row each: what it does, and how often it must ask.

`run` is what ranks do with it. A row's function gets rank, size and group and returns plain values; its count
is what each rank asks grants for in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d

from opus_sdn.demo.world import world
from opus_sdn.shim import torch_backend

TIMEOUT_S: Final = 30.0
Call = Callable[[int, int, Any], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """`gated`: operations that each rank declares, in a group across hosts. `on_gloo`: gloo has it too."""

    call: Call
    gated: int
    on_gloo: bool = True


def _mine(rank: int, size: int = 4) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32) + 10 * rank


def _all_reduce(op: str) -> Call:
    def call(rank: int, size: int, group: Any) -> Any:
        tensor = _mine(rank)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op), group=group)
        return tensor.tolist()

    return call


def _all_reduce_async(rank: int, size: int, group: Any) -> Any:
    tensor = _mine(rank)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert work is not None
    waited = [work.wait(), work.wait()]
    return [tensor.tolist(), waited, work.is_completed(), work.is_success(), work.exception()]


def _future(rank: int, size: int, group: Any) -> Any:
    work = dist.all_reduce(_mine(rank), group=group, async_op=True)
    assert work is not None
    future = work.get_future()
    return [future.wait()[0].tolist(), future.value()[0].tolist()]


def _broadcast(rank: int, size: int, group: Any) -> Any:
    tensor = _mine(rank)
    dist.broadcast(tensor, 1, group=group)
    return tensor.tolist()


def _reduce(rank: int, size: int, group: Any) -> Any:
    tensor = _mine(rank)
    dist.reduce(tensor, 2, group=group)
    return tensor.tolist() if rank == 2 else None


def _gather(rank: int, size: int, group: Any) -> Any:
    found = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    dist.gather(_mine(rank), found, dst=0, group=group)
    return [one.tolist() for one in found or ()]


def _scatter(rank: int, size: int, group: Any) -> Any:
    out = torch.zeros(4)
    dist.scatter(out, [_mine(r) for r in range(size)] if rank == 3 else None, src=3, group=group)
    return out.tolist()


def _all_gather(rank: int, size: int, group: Any) -> Any:
    found = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(found, _mine(rank), group=group)
    return [one.tolist() for one in found]


def _all_gather_into_tensor(rank: int, size: int, group: Any) -> Any:
    whole = torch.zeros(4 * size)
    dist.all_gather_into_tensor(whole, _mine(rank), group=group)
    return whole.tolist()


def _reduce_scatter(rank: int, size: int, group: Any) -> Any:
    out = torch.zeros(4)
    dist.reduce_scatter(out, [_mine(rank) * k for k in range(size)], group=group)
    return out.tolist()


def _reduce_scatter_tensor(rank: int, size: int, group: Any) -> Any:
    out = torch.zeros(1)
    work = dist.reduce_scatter_tensor(out, _mine(rank), group=group, async_op=True)
    assert work is not None
    work.wait()
    return out.tolist()


def _barrier(asynchronous: bool) -> Call:
    def call(rank: int, size: int, group: Any) -> Any:
        work = dist.barrier(group=group, async_op=asynchronous)
        return work.wait() if work is not None else None

    return call


def _all_to_all_single(rank: int, size: int, group: Any) -> Any:
    out = torch.zeros(4)
    dist.all_to_all_single(out, _mine(rank), group=group)
    return out.tolist()


def _all_to_all_uneven(rank: int, size: int, group: Any) -> Any:
    """Rank r sends (r + d) % 3 rows to rank d: some send nothing to some."""
    sends = [(rank + other) % 3 for other in range(size)]
    receives = list(sends)  # symmetric
    data = torch.arange(sum(sends) * 2, dtype=torch.int64).reshape(-1, 2) + 1000 * rank
    out = torch.zeros(sum(receives), 2, dtype=torch.int64)
    work = dist.all_to_all_single(out, data, receives, sends, group=group, async_op=True)
    assert work is not None
    work.wait()
    return out.tolist()


def _all_to_all(uneven: int) -> Call:
    def call(rank: int, size: int, group: Any) -> Any:
        sends = [torch.full((1 + uneven * other,), float(10 * rank + other)) for other in range(size)]
        receives = [torch.zeros(1 + uneven * rank) for _ in range(size)]
        dist.all_to_all(receives, sends, group=group)
        return [one.tolist() for one in receives]

    return call


def _send_and_receive(rank: int, size: int, group: Any) -> Any:
    received = torch.zeros(4)
    following, previous = (rank + 1) % size, (rank - 1) % size
    if rank % 2 == 0:
        dist.send(_mine(rank), following, group=group)
        source = dist.recv(received, previous, group=group)
    else:
        source = dist.recv(received, previous, group=group)
        dist.send(_mine(rank), following, group=group)
    return [received.tolist(), source]


def _isend_and_irecv(rank: int, size: int, group: Any) -> Any:
    received = torch.zeros(4)
    works = [
        dist.irecv(received, (rank - 1) % size, group=group),
        dist.isend(_mine(rank) + 1, (rank + 1) % size, group=group),
    ]
    for work in works:
        assert work is not None
        work.wait()
    return received.tolist()


def _batch(rank: int, size: int, group: Any) -> Any:
    received = torch.zeros(4)
    batch = [
        dist.P2POp(dist.isend, _mine(rank) + 2, (rank + 1) % size, group=group),
        dist.P2POp(dist.irecv, received, (rank - 1) % size, group=group),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return received.tolist()


def _tags_in_order(rank: int, size: int, group: Any) -> Any:
    following, previous = (rank + 1) % size, (rank - 1) % size
    works = [dist.isend(torch.full((1,), float(tag)), following, tag=tag, group=group) for tag in (5, 3)]
    found = []
    for tag in (5, 3):
        received = torch.zeros(1)
        dist.recv(received, previous, tag=tag, group=group)
        found.append(received.item())
    for work in works:
        assert work is not None
        work.wait()
    return found


def _functional(name: str, *rest: Any, many: bool = False) -> Call:
    """One of `torch.distributed._functional_collectives`."""

    def call(rank: int, size: int, group: Any) -> Any:
        given = [_mine(rank), _mine(rank) + 1] if many else _mine(rank)
        found = getattr(functional, name)(given, *rest, group)
        return [one.tolist() for one in found] if many else found.tolist()

    return call


def _with_gradients(rank: int, size: int, group: Any) -> Any:
    """The caller is below autograd, and the operation's tensors are views that it watches."""
    mine = _mine(rank).requires_grad_()
    whole = functional.all_gather_tensor_autograd(mine, 0, group)
    whole.square().sum().backward()
    assert mine.grad is not None
    return [whole.tolist(), mine.grad.tolist()]


def _in_inference_mode(rank: int, size: int, group: Any) -> Any:
    """Tensors that nobody may change outside of inference mode."""
    with torch.inference_mode():
        mine, whole = _mine(rank) + 1, torch.zeros(4 * size)
        found = [torch.zeros(4) for _ in range(size)]
        dist.all_reduce(mine, group=group)
        dist.all_gather_into_tensor(whole, mine, group=group)
        dist.all_gather(found, mine, group=group)
        exchanged = torch.zeros(4)
        dist.all_to_all_single(exchanged, mine, group=group)
        return [mine.tolist(), whole.tolist(), [one.tolist() for one in found], exchanged.tolist()]


def _functional_all_to_all(rank: int, size: int, group: Any) -> Any:
    return functional.all_to_all_single(_mine(rank), None, None, group).tolist()


def _into_given(name: str, *rest: Any) -> Call:
    """The functional forms with `out`, as compiled code calls them: C++ only."""

    def call(rank: int, size: int, group: Any) -> Any:
        grows = "gather" in name
        out = torch.zeros(4 * size if grows else 4 // size)
        found = getattr(torch.ops._c10d_functional, name)(_mine(rank), *rest, size, group.group_name, out=out)
        torch.ops._c10d_functional.wait_tensor(found)
        return out.tolist()

    return call


def _functional_messages(rank: int, size: int, group: Any) -> Any:
    operations: Any = torch.ops._c10d_functional
    received = torch.zeros(4)
    arriving = operations.irecv(received, (rank - 1) % size, 0, group.group_name)
    leaving = operations.isend(_mine(rank), (rank + 1) % size, 0, group.group_name)
    for one in (leaving, arriving):
        operations.wait_tensor(one)
    return received.tolist()


def _functional_batch(rank: int, size: int, group: Any) -> Any:
    operations: Any = torch.ops._c10d_functional
    received = torch.zeros(4)
    peers = [(rank + 1) % size, (rank - 1) % size]
    found = operations.batch_p2p_ops(
        ["isend", "irecv"], peers, [0, 0], [_mine(rank), received], group.group_name
    )
    for one in found:
        operations.wait_tensor(one)
    return received.tolist()


def _coalesced(what: str) -> Call:
    """Inside the coalescing manager: one operation, called once for all tensors."""

    def call(rank: int, size: int, group: Any) -> Any:
        data = [_mine(rank), _mine(rank) + 1]
        outs = [torch.zeros(4 * size if what == "all_gather" else 1) for _ in data]
        with distributed_c10d._coalescing_manager(group, async_ops=True) as manager:
            for out, tensor in zip(outs, data, strict=True):
                if what == "all_reduce":
                    dist.all_reduce(tensor, group=group)
                elif what == "all_gather":
                    dist.all_gather_into_tensor(out, tensor, group=group)
                else:
                    dist.reduce_scatter_tensor(out, tensor, group=group)
        manager.wait()
        return [one.tolist() for one in (data if what == "all_reduce" else outs)]

    return call


def _failed_coalescing(rank: int, size: int, group: Any) -> Any:
    """Left behind in torch, it would make it drop the all-reduce that follows without a word."""
    try:
        with distributed_c10d._coalescing_manager(group, device=torch.device("cpu")):
            dist.all_reduce(torch.zeros(1), group=group)
        refused = False
    except RuntimeError:
        refused = True
    tensor = _mine(rank)
    dist.all_reduce(tensor, group=group)
    return [refused, tensor.tolist()]


def _objects(rank: int, size: int, group: Any) -> Any:
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank}, group=group)
    said = [{"from": 1}] if rank == 1 else [None]
    dist.broadcast_object_list(said, src=1, group=group)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [[r] for r in range(size)] if rank == 0 else None, src=0, group=group)
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0, group=group)
    return [everybody, said, mine, gathered]


ROWS: Final[Mapping[str, Row]] = {
    "all_reduce SUM": Row(_all_reduce("SUM"), 1),
    "all_reduce MAX": Row(_all_reduce("MAX"), 1),
    "all_reduce AVG": Row(_all_reduce("AVG"), 1),
    "all_reduce async": Row(_all_reduce_async, 1),
    "future": Row(_future, 1),
    "broadcast": Row(_broadcast, 1),
    "reduce": Row(_reduce, 1),
    "gather": Row(_gather, 1),
    "scatter": Row(_scatter, 1),
    "all_gather": Row(_all_gather, 1),
    "all_gather_into_tensor": Row(_all_gather_into_tensor, 1),
    "reduce_scatter": Row(_reduce_scatter, 1),
    "reduce_scatter_tensor": Row(_reduce_scatter_tensor, 1),
    "barrier": Row(_barrier(False), 1),
    "barrier async": Row(_barrier(True), 1),
    "all_to_all_single": Row(_all_to_all_single, 1),
    "all_to_all_single uneven": Row(_all_to_all_uneven, 1),
    "all_to_all": Row(_all_to_all(0), 1),
    "all_to_all uneven": Row(_all_to_all(1), 1, on_gloo=False),
    "send, recv": Row(_send_and_receive, 2),
    "isend, irecv": Row(_isend_and_irecv, 2),
    "batch_isend_irecv": Row(_batch, 2),
    "tags in order": Row(_tags_in_order, 4),
    "functional all_reduce": Row(_functional("all_reduce", "sum"), 1),
    "functional broadcast": Row(_functional("broadcast", 1), 1),
    "functional all_gather_tensor": Row(_functional("all_gather_tensor", 0), 1),
    "functional reduce_scatter_tensor": Row(_functional("reduce_scatter_tensor", "sum", 0), 1),
    "functional all_gather_tensor with gradients": Row(_with_gradients, 2),
    "in inference mode": Row(_in_inference_mode, 4),
    "functional all_to_all_single": Row(_functional_all_to_all, 1),
    "functional all_reduce_coalesced": Row(_functional("all_reduce_coalesced", "sum", many=True), 1),
    "functional all_gather_into_tensor_coalesced": Row(
        _functional("all_gather_into_tensor_coalesced", many=True), 1
    ),
    "functional reduce_scatter_tensor_coalesced": Row(
        _functional("reduce_scatter_tensor_coalesced", "sum", [0, 0], many=True), 1
    ),
    "functional all_gather_into_tensor_out": Row(_into_given("all_gather_into_tensor_out"), 1),
    "functional reduce_scatter_tensor_out": Row(_into_given("reduce_scatter_tensor_out", "sum"), 1),
    "functional isend, irecv": Row(_functional_messages, 2),
    "functional batch_p2p_ops": Row(_functional_batch, 2),
    "coalesced all_reduce": Row(_coalesced("all_reduce"), 1),
    "coalesced all_gather": Row(_coalesced("all_gather"), 1),
    "coalesced reduce_scatter": Row(_coalesced("reduce_scatter"), 1),
    "a refused coalescing, then an all_reduce": Row(_failed_coalescing, 1, on_gloo=False),
    "objects": Row(_objects, 9),
}


MESSAGES: Final = frozenset(name for name in ROWS if "send" in name or "p2p" in name or "tags" in name)


def run(
    backend: str, groups: tuple[str, ...] = ("world",), leave_out: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Every other row on each of these groups: (values, operations that this rank asked grants for)."""
    found: dict[str, Any] = {}
    with world(backend, TIMEOUT_S) as rank:
        size = dist.get_world_size()
        made = {
            "world": dist.group.WORLD,
            "new_group": dist.new_group(list(range(size))) if "new_group" in groups else None,
        }
        for group in groups:
            for name, row in ROWS.items():
                if name not in leave_out and (row.on_gloo or backend != "gloo"):
                    before = asked()
                    values = row.call(rank, size, made[group])
                    found[f"{group}: {name}"] = (values, asked() - before)
    return found


def asked() -> int:
    """How many operations this rank has declared to the controller so far."""
    job = torch_backend._job
    return 0 if job is None else sum(job._next.values())
