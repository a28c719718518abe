"""What ranks do in the shim's tests; run in forked processes, by name."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from opus_sdn.demo.child import tell
from opus_sdn.demo.world import world
from opus_sdn.shim import torch_backend

TIMEOUT_S = 30.0


def _mine(rank: int, size: int = 4) -> Tensor:
    return torch.arange(size, dtype=torch.float32) + 10 * rank


def _collectives(rank: int, size: int) -> dict[str, Any]:
    """Every collective that torch.distributed offers, called as programs call it."""
    found: dict[str, Any] = {}

    def keep(name: str, *tensors: Tensor) -> None:
        found[name] = [tensor.tolist() for tensor in tensors]

    for op in ("SUM", "MAX", "AVG"):
        tensor = _mine(rank)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        keep(f"all_reduce {op}", tensor)
    tensor = _mine(rank)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() is True
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    keep("all_reduce async", tensor, *work.result())
    tensor = _mine(rank)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    keep("future", *future.wait())
    keep("future again", *future.value())
    tensor = _mine(rank)
    dist.broadcast(tensor, 1)
    keep("broadcast", tensor)
    tensor = _mine(rank)
    dist.reduce(tensor, 2)
    if rank == 2:
        keep("reduce", tensor)
    gathered = [torch.zeros(4) for _ in range(size)]
    dist.gather(_mine(rank), gathered if rank == 0 else None, dst=0)
    if rank == 0:
        keep("gather", *gathered)
    out = torch.zeros(4)
    dist.scatter(out, [_mine(r) for r in range(size)] if rank == 3 else None, src=3)
    keep("scatter", out)
    gathered = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(gathered, _mine(rank))
    keep("all_gather", *gathered)
    whole = torch.zeros(4 * size)
    dist.all_gather_into_tensor(whole, _mine(rank))
    keep("all_gather_into_tensor", whole)
    out = torch.zeros(4)
    dist.reduce_scatter(out, [_mine(rank) * k for k in range(size)])
    keep("reduce_scatter", out)
    out = torch.zeros(1)
    work = dist.reduce_scatter_tensor(out, _mine(rank), async_op=True)
    work.wait()
    keep("reduce_scatter_tensor", out)
    dist.barrier()
    dist.barrier(async_op=True).wait()
    return found


def _messages(rank: int, size: int) -> dict[str, Any]:
    """Around the ring, all the ways; neighbours only, as circuits join those."""
    found: dict[str, Any] = {}
    following, previous = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(4)
    if rank % 2 == 0:
        dist.send(_mine(rank), following)
        source = dist.recv(received, previous)
    else:
        source = dist.recv(received, previous)
        dist.send(_mine(rank), following)
    found["send and recv"] = [received.tolist(), source]
    received = torch.zeros(4)
    works = [dist.irecv(received, previous), dist.isend(_mine(rank) + 1, following)]
    for work in works:
        assert work is not None
        work.wait()
    found["isend and irecv"] = received.tolist()
    received = torch.zeros(4)
    batch = [
        dist.P2POp(dist.isend, _mine(rank) + 2, following),
        dist.P2POp(dist.irecv, received, previous),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    found["batch_isend_irecv"] = received.tolist()
    received = torch.zeros(1)
    works = [dist.isend(torch.full((1,), float(tag)), following, tag=tag) for tag in (5, 3)]
    found["tags in order"] = []
    for tag in (5, 3):
        dist.recv(received, previous, tag=tag)
        found["tags in order"].append(received.item())
    for work in works:
        assert work is not None
        work.wait()
    return found


def _functional(rank: int, size: int) -> dict[str, Any]:
    """Through C++: the functional collectives that compiled and DTensor code uses."""
    group = dist.group.WORLD
    assert group is not None
    found = {
        "fc all_reduce": functional.all_reduce(_mine(rank), "sum", group),
        "fc broadcast": functional.broadcast(_mine(rank), 1, group),
        "fc all_gather": functional.all_gather_tensor(_mine(rank), 0, group),
        "fc reduce_scatter": functional.reduce_scatter_tensor(_mine(rank), "sum", 0, group),
        "fc coalesced": functional.all_reduce_coalesced([_mine(rank), _mine(rank) + 1], "sum", group)[1],
    }
    return {name: tensor.tolist() for name, tensor in found.items()}


def _coalesced(rank: int, size: int) -> dict[str, Any]:
    tensors = [_mine(rank), _mine(rank) + 1]
    with distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    outs = [torch.zeros(4 * size), torch.zeros(4 * size)]
    with distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for out, tensor in zip(outs, tensors, strict=True):
            dist.all_gather_into_tensor(out, tensor)
    manager.wait()
    with contextlib.suppress(RuntimeError), distributed_c10d._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(torch.zeros(1))
    after = _mine(rank)
    dist.all_reduce(after)  # a refused coalescing that torch remembers would drop this one without a word
    return {"coalesced": [t.tolist() for t in tensors + outs], "after a refused coalescing": after.tolist()}


def _objects(rank: int, size: int) -> dict[str, Any]:
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank})
    said = [{"from": 1}] if rank == 1 else [None]
    dist.broadcast_object_list(said, src=1)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [[r] for r in range(size)] if rank == 0 else None, src=0)
    return {"objects": [everybody, said, mine]}


def _subgroups(rank: int, size: int) -> dict[str, Any]:
    """Two groups of the same ranks, and one of which this rank may be no member."""
    first, second = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    found = []
    if rank < 3:
        for group, factor in ((second, 2), (first, 1)):
            tensor = _mine(rank) * factor
            dist.all_reduce(tensor, group=group)
            found.append(tensor.tolist())
    return {"subgroups": found}


def _ddp(rank: int, size: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)), bucket_cap_mb=0.0001
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(100 * rank + step)
        loss = model(torch.randn(8, 4, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(repr(loss.item()))
    return {"ddp": [losses, [repr(p.sum().item()) for p in model.parameters()]]}


PARTS: tuple[Callable[[int, int], dict[str, Any]], ...] = (
    _collectives,
    _messages,
    _functional,
    _coalesced,
    _objects,
    _subgroups,
    _ddp,
)


def api_matrix(backend: str) -> dict[str, Any]:
    """Everything that a program can call; what every rank got."""
    found: dict[str, Any] = {}
    with world(backend, TIMEOUT_S) as rank:
        for part in PARTS:
            found |= part(rank, dist.get_world_size())
    return found


def all_reduces(backend: str, count: int, pause_s: float = 0.0) -> list[float]:
    """So many all-reduces of the default group."""
    found = []
    with world(backend, TIMEOUT_S) as rank:
        for number in range(count):
            tensor = torch.tensor([float(rank + number)])
            dist.all_reduce(tensor)
            found.append(tensor.item())
            time.sleep(pause_s)
    return found


@contextlib.contextmanager
def joined(backend: str, timeout_s: float) -> Any:
    """Be in the job without meeting at its end: for programs that some ranks do not reach."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["LAUNCHER_STORE_FILE"], size)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )
    try:
        yield rank
    finally:
        dist.destroy_process_group()


def _say(failed: BaseException) -> dict[str, Any]:
    """An error in plain values; the cause must be the same on all ranks."""
    return {
        "type": type(failed).__name__,
        "text": str(failed),
        **{k: getattr(failed, k) for k in ("problem", "rank", "incarnation") if hasattr(failed, k)},
    }


def until_it_fails(
    backend: str, kind: str, victim: int, manner: str, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Communicate until the job fails; the victim leaves in some manner in the middle of it."""
    with joined(backend, timeout_s) as rank:
        size = dist.get_world_size()
        pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
        pair = pairs[rank // 2]
        before: list[Any] = []
        try:
            for number in range(10_000):
                dist.all_reduce(torch.ones(4))
                if number == 3:
                    tell("going")
                if number >= 3 and rank == victim:
                    break
                _one_step(kind, rank, size, pair, before)
        except Exception as failed:  # noqa: BLE001 - whatever it is, the test looks at it
            again = []
            for attempt in (lambda: dist.all_reduce(torch.ones(1)), lambda: dist.barrier(group=pair)):
                try:
                    attempt()
                except Exception as next_one:  # noqa: BLE001 - as above
                    again.append(_say(next_one))
            said = {**_say(failed), "again": again}
        else:
            _depart(manner)
            raise AssertionError("the job did not fail")
    said["threads"] = [t.name for t in threading.enumerate() if t.name.startswith("opus")]
    return said


def _one_step(kind: str, rank: int, size: int, pair: Any, works: list[Any]) -> None:
    if kind == "collective":
        dist.all_reduce(torch.ones(4))
    elif kind == "message":
        # Rank 0 waits for rank 1, rank 1 for rank 2, ...: only the last one's partner can be the dead one.
        received = torch.zeros(4)
        work = dist.isend(torch.ones(4), (rank - 1) % size)
        dist.recv(received, (rank + 1) % size)
        work.wait()
    elif kind == "inside a host":
        dist.all_reduce(torch.ones(4), group=pair)
    elif kind == "future":
        dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()


def _depart(manner: str) -> None:
    if manner == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif manner == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif manner == "hangs":
        time.sleep(5.0)
    elif manner == "raises":
        raise ValueError("a bug in the program")
    elif manner == "aborts":
        distributed_c10d._abort_process_group()
        raise ValueError("aborted")


def refusals(backend: str) -> dict[str, Any]:
    """What circuits cannot carry is refused by name, one operation at a time."""
    attempts: dict[str, Callable[[int], object]] = {
        "all_to_all": lambda rank: dist.all_to_all_single(torch.zeros(4), _mine(rank)),
        "fc all_to_all": lambda rank: functional.all_to_all_single(_mine(rank), None, None, dist.group.WORLD),
        "receive from any": lambda rank: dist.recv(torch.zeros(4)),
        "across the ring": _message_across,
        "coalescing": _coalescing_of_messages,
    }
    found: dict[str, Any] = {}
    with world(backend, TIMEOUT_S) as rank:
        for name, attempt in attempts.items():
            try:
                attempt(rank)
                found[name] = "worked"
            except RuntimeError as refused:
                found[name] = _say(refused)
            tensor = _mine(rank)
            dist.all_reduce(tensor)
            found[f"after {name}"] = tensor.tolist()
    return found


def _message_across(rank: int) -> None:
    """Ranks 0 and 3 of this job sit on different rails."""
    if rank == 0:
        dist.send(_mine(rank), 3)
    if rank == 3:
        dist.recv(torch.zeros(4), 0)


def _coalescing_of_messages(rank: int) -> None:
    with distributed_c10d._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(_mine(rank))


def wrong_arguments(backend: str) -> dict[str, Any]:
    """A call that the inner backend refuses must raise its error and change nothing else."""
    with world(backend, TIMEOUT_S) as rank:
        try:
            dist.all_gather([torch.zeros(3)] * dist.get_world_size(), _mine(rank))
        except Exception as refused:  # noqa: BLE001 - the test looks at it
            error = _say(refused)
        tensor = _mine(rank)
        dist.all_reduce(tensor)
    return {"error": error, "after": tensor.tolist()}


def inside_a_host(backend: str) -> dict[str, Any]:
    """A pair of ranks on one host may do everything, and asks nobody."""
    with world(backend, TIMEOUT_S) as rank:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        pair, other = pairs[rank // 2], rank ^ 1
        exchanged = torch.zeros(2)
        dist.all_to_all_single(exchanged, torch.tensor([10.0 * rank, 10.0 * rank + 1]), group=pair)
        received = torch.zeros(1)
        if rank % 2:
            dist.send(torch.tensor([float(rank)]), other, group=pair)
            source = other
        else:
            source = dist.recv(received, group=pair)
        future = dist.all_reduce(torch.ones(1), group=pair, async_op=True).get_future()
        scattered = torch.zeros(1)
        work = dist.reduce_scatter_tensor(scattered, torch.ones(2), group=pair, async_op=True)
        reduced = work.get_future().wait()
        return {
            "all_to_all": exchanged.tolist(),
            "any": [received.item(), source],
            "futures": [future.wait()[0].item(), scattered.item(), len(reduced) > 0],
        }


def forks(backend: str) -> dict[str, Any]:
    """A child of a rank, as a data loader makes them: it cannot speak for the rank, nor spoil its sockets."""
    with world(backend, TIMEOUT_S):
        dist.all_reduce(torch.ones(1))
        loader = torch.utils.data.DataLoader(list(range(4)), num_workers=1, multiprocessing_context="fork")
        batches = [batch.item() for batch in loader]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                dist.all_reduce(torch.ones(1))
            except Exception as refused:  # noqa: BLE001 - the test looks at it
                said = type(refused).__name__
            os.write(writing, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(reading, 1000).decode()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return {"child": said, "batches": batches, "after": tensor.item()}


def leaves_without_destroying(backend: str, how: str) -> float:
    """End as programs do: with the group destroyed or not, with an operation nobody waited for."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["LAUNCHER_STORE_FILE"], size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    if how == "not waited for":
        dist.all_reduce(torch.ones(1), async_op=True)
    if how != "left as it is":
        dist.destroy_process_group()
    return tensor.item()


def joins_again(backend: str, times: int) -> list[float]:
    """Several lives in one process, over one store."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found = []
    for life in range(times):
        path = f"{os.environ['LAUNCHER_STORE_FILE']}-{life}"
        store = dist.FileStore(path, size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        tensor = torch.tensor([float(rank + life)])
        dist.all_reduce(tensor)
        found.append(tensor.item())
        dist.destroy_process_group()
    return found


def pretends_another_torch(backend: str, version: str, rank: int | None = None) -> str:
    """Initialise under a torch that calls itself otherwise, on one rank or on all."""
    if rank in (None, int(os.environ["RANK"])):
        torch.__version__ = version  # type: ignore[assignment]
    with world(backend, TIMEOUT_S):
        return dist.get_backend()


def initialises(backend: str) -> str:
    """Just join."""
    with world(backend, 2.0):
        return dist.get_backend()


def rings_and_messages(backend: str, steps: int) -> list[float]:
    """A ring of all the even ranks, one of all the odd ones, and messages between neighbours, in turn.

    With one port per rank each of them needs another circuit. Says each step's sum as it is known.
    """
    found = []
    with world(backend, TIMEOUT_S * 4) as rank:
        rings = [dist.new_group([first, first + 2]) for first in (0, 1)]
        lines = [dist.new_group([first, first + 1]) for first in (0, 2)]
        peer, line = rank ^ 1, lines[rank // 2]
        for step in range(steps):
            mine = torch.tensor([float(rank + step)])
            dist.all_reduce(mine, group=rings[rank % 2])
            theirs = torch.zeros(1)
            if rank < peer:
                dist.send(mine, peer, group=line)
                dist.recv(theirs, peer, group=line)
            else:
                dist.recv(theirs, peer, group=line)
                dist.send(mine, peer, group=line)
            found.append(float(mine + theirs))
            tell(step)
    return found


def recorded(backend: str) -> list[dict[str, Any]]:
    """What the operation log says of a few operations, as this rank saw them."""
    with world(backend, TIMEOUT_S) as rank:
        pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        log = torch_backend.operation_log()
        assert log is not None
        follower = log.follow()
        dist.all_reduce(torch.ones(4))
        gathered = dist.all_gather_into_tensor(torch.zeros(16), torch.ones(4), async_op=True)
        assert gathered is not None
        gathered.wait()
        dist.all_reduce(torch.ones(2), group=pair)
        if rank < 2:
            dist.send(torch.ones(8), rank + 2)
        else:
            dist.recv(torch.zeros(8), rank - 2)
        dist.barrier()
        taken = follower.take()
    return [
        {
            "kind": one.what.kind,
            "dimension": one.what.dimension,
            "gated": one.what.connection is not None,
            "ends": (one.what.source, one.what.destination),
            "peer": one.what.peer,
            "n": one.n,
            "bytes": one.bytes,
            "moments": [
                one.called_ns,
                one.arrived_ns,
                one.granted_ns,
                one.issued_ns,
                one.wait_begin_ns,
                one.wait_end_ns,
                one.finished_ns,
            ],
        }
        for one in taken
    ]
