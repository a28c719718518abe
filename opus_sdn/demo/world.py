"""How a launched rank joins the others and leaves them: the only place that calls `init_process_group`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

DEFAULT_TIMEOUT_S: Final = 60.0


@contextmanager
def world(backend: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[int]:
    """Be rank RANK of WORLD_SIZE inside the block; yields the rank.

    Everybody meets once after joining and once before leaving, at the store and not through a group: a gloo
    rank that is gone while another still connects makes that one fail. After an exception nothing is waited
    for.
    """
    torch.set_num_threads(1)  # several threads would sum in an order of their own
    torch.use_deterministic_algorithms(True)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _store(rank, size)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    meeting = dist.PrefixStore("launcher", store)
    _meet(meeting, "joined", size, timeout)
    yield rank
    _meet(meeting, "done", size, timeout)
    dist.destroy_process_group()
    if rank == 0:
        meeting.wait(["left"], timeout)  # it may hold the store that the others are still reading
    elif meeting.add("leaving", 1) == size - 1:
        meeting.set("left", "yes")


def _meet(store: dist.Store, place: str, size: int, timeout: timedelta) -> None:
    """Wait until all ranks have come here."""
    if store.add(f"{place}/count", 1) == size:
        store.set(f"{place}/all", "yes")
    store.wait([f"{place}/all"], timeout)


def _store(rank: int, size: int) -> dist.Store:
    """The rendezvous that the launcher prepared: a file, or a socket that already listens in rank 0."""
    path = os.environ.get("LAUNCHER_STORE_FILE")
    if path is not None:
        return dist.FileStore(path, size)
    listening = os.environ.get("LAUNCHER_STORE_FD")
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=None if listening is None else int(listening),
    )
