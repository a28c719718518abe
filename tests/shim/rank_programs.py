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
from torch import Tensor
from torch.distributed import distributed_c10d

from opus_sdn.demo.child import tell
from opus_sdn.demo.world import world
from opus_sdn.shim import torch_backend

TIMEOUT_S = 30.0


def _mine(rank: int, size: int = 4) -> Tensor:
    return torch.arange(size, dtype=torch.float32) + 10 * rank


def groups_of_the_same_ranks(backend: str) -> list[list[float]]:
    """Two groups of the same ranks, used in another order than they were made; one rank is no member."""
    with world(backend, TIMEOUT_S) as rank:
        first, second = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
        found = []
        if rank < 3:
            for group, factor in ((second, 2), (first, 1)):
                tensor = _mine(rank) * factor
                dist.all_reduce(tensor, group=group)
                found.append(tensor.tolist())
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
        "heard": tuple(one for heard in getattr(failed, "data", {}).get("heard_s_ago", ()) for one in heard),
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
        "across rails": _message_across,
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
    """Ranks 2 and 3 of this job sit on different rails."""
    if rank == 2:
        dist.send(_mine(rank), 3)
    if rank == 3:
        dist.recv(torch.zeros(4), 2)


def tags_out_of_order(backend: str) -> dict[str, Any]:
    """Circuits deliver in order: receiving the second message first ends the job, for all ranks alike."""
    with joined(backend, TIMEOUT_S) as rank:
        try:
            if rank == 0:
                for work in [dist.isend(torch.ones(1), 1, tag=tag) for tag in (5, 3)]:
                    assert work is not None
                    work.wait()
            if rank == 1:
                dist.recv(torch.zeros(1), 0, tag=3)
            dist.barrier()
        except RuntimeError as failed:
            return _say(failed)
    raise AssertionError("the job did not fail")


def sizes_that_disagree(backend: str) -> dict[str, Any]:
    """Rank 0 sends more than rank 1 expects: both say so, and the group stays usable."""
    with world(backend, TIMEOUT_S) as rank:
        out, data = torch.zeros(3 if rank else 2), torch.zeros(3)
        try:
            splits = ([1, 2], [1, 2]) if rank else ([1, 1], [1, 2])
            dist.all_to_all_single(out, data, *splits)
            said: dict[str, Any] = {}
        except RuntimeError as refused:
            said = _say(refused)
        tensor = _mine(rank)
        dist.all_reduce(tensor)
    return {**said, "after": tensor.tolist()}


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
