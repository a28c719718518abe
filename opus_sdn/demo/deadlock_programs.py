"""The programs of `opus_sdn.demo.deadlock_cases`, written with torch.distributed on explicit groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from opus_sdn.demo.deadlock_cases import CASES
from opus_sdn.demo.world import DEFAULT_TIMEOUT_S, world

Groups = Mapping[str, Any]
_POLL_S: Final = 0.001


def run(name: str, backend: str = "gloo", timeout_s: float = DEFAULT_TIMEOUT_S) -> list[float]:
    """Run one of `CASES` in this rank and return its values."""
    case = CASES[name]
    with world(backend, timeout_s) as rank:
        groups = {key: dist.new_group(list(ranks)) for key, ranks in case.groups.items()}
        return _BODIES[name](rank, groups)


def _value(number: float) -> Tensor:
    return torch.tensor([float(number)])


def _all_reduce(number: float, group: Any) -> float:
    tensor = _value(number)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def _async_all_reduce(tensor: Tensor, group: Any) -> dist.Work:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert isinstance(work, dist.Work), "a member gets a Work"
    return work


def _receive(source: int, group: Any) -> float:
    tensor = _value(0)
    dist.recv(tensor, source, group=group)
    return tensor.item()


def _async_receive(tensor: Tensor, source: int, group: Any) -> dist.Work:
    work = dist.irecv(tensor, source, group=group)
    assert work is not None, "a member gets a Work"
    return work


def _async_before_send(rank: int, groups: Groups) -> list[float]:
    """A gate that blocks the host before an asynchronous operation keeps rank 0 from its send."""
    ring, pair = groups["ring"], groups["pair"]
    if rank == 0:
        tensor = _value(1)
        work = _async_all_reduce(tensor, ring)
        dist.send(_value(7), 1, group=pair)
        work.wait()
        return [tensor.item()]
    if rank == 1:
        return [_receive(0, pair), _all_reduce(2, ring)]
    return [_all_reduce(4, ring)] if rank == 2 else []


def _receive_waited_inside_a_run(rank: int, groups: Groups) -> list[float]:
    """No member issues anything between the two all-reduces, yet they are not one run: rank 1 waits there."""
    ring, pair = groups["ring"], groups["pair"]
    if rank == 0:
        return [_all_reduce(1, ring), _all_reduce(10, ring)]
    if rank == 1:
        message = _value(0)
        work = _async_receive(message, 2, pair)
        first = _all_reduce(2, ring)
        work.wait()
        return [first, message.item(), _all_reduce(20, ring)]
    dist.send(_value(7), 1, group=pair)
    return []


def _fused_against_single(rank: int, groups: Groups) -> list[float]:
    """Rank 0 fuses send and receive; a gate on the whole batch waits for what rank 1 sends later."""
    pair = groups["pair"]
    if rank == 0:
        return [_exchange(1, 5, pair)]
    if rank == 1:
        received = _receive(0, pair)
        dist.send(_value(received + 1), 0, group=pair)
        return [received]
    return []


def _fused_around_a_ring(rank: int, groups: Groups) -> list[float]:
    """Both sides fuse, and a ring of rank 1 may complete between the two messages."""
    ring, pair = groups["ring"], groups["pair"]
    if rank == 0:
        return [_exchange(1, 5, pair)]
    if rank == 1:
        tensor = _value(2)
        work = _async_all_reduce(tensor, ring)
        received = _exchange(0, 6, pair)
        work.wait()
        return [received, tensor.item()]
    return [_all_reduce(4, ring)]


def _fused_in_a_circle(rank: int, groups: Groups) -> list[float]:
    """Everybody fuses a send to the next one and a receive from the one before, as some pipelines do."""
    if rank > 2:
        return []
    return [_exchange((rank + 1) % 3, 10 + rank, groups["circle"], source=(rank - 1) % 3)]


def _exchange(peer: int, number: float, group: Any, source: int | None = None) -> float:
    """One fused batch: send to `peer` and receive from it, or from another `source`."""
    received = _value(0)
    batch = [
        dist.P2POp(dist.isend, _value(number), peer, group=group),
        dist.P2POp(dist.irecv, received, peer if source is None else source, group=group),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return received.item()


def _two_communicators(rank: int, groups: Groups) -> list[float]:
    """Two groups of the same ranks, everything asynchronous: all members must issue in one order."""
    if rank > 1:
        return []
    works, tensors = [], []
    for k in range(8):
        for key in ("x", "y"):
            tensor = _value((rank + 1) * (k + 1) * (1 if key == "x" else 100))
            works.append(_async_all_reduce(tensor, groups[key]))
            tensors.append(tensor)
    for work in works:
        work.wait()
    return [tensor.item() for tensor in tensors]


def _receive_never_waited(rank: int, groups: Groups) -> list[float]:
    """Rank 1 never waits for its receive; the ring that follows needs the port all the same."""
    ring, pair = groups["ring"], groups["pair"]
    if rank == 0:
        dist.send(_value(7), 1, group=pair)
        return []
    if rank == 2:
        return [_all_reduce(4, ring)]
    message = _value(0)
    work = _async_receive(message, 0, pair)
    reduced = _all_reduce(2, ring)
    while message.item() == 0.0:  # nobody waits for `work`, so the value itself says that it is there
        time.sleep(_POLL_S)
    del work
    return [reduced, message.item()]


_BODIES: Final[Mapping[str, Callable[[int, Groups], list[float]]]] = {
    "async-before-send": _async_before_send,
    "C1": _receive_waited_inside_a_run,
    "C5a": _fused_against_single,
    "C5b": _fused_around_a_ring,
    "C5c": _fused_in_a_circle,
    "C6": _two_communicators,
    "C17": _receive_never_waited,
}
