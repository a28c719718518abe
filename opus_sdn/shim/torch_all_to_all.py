"""All-to-all over rings of circuits, where only neighbours on a rail reach each other.

All members first tell each other how much everybody sends and expects, so that whoever passes a chunk on
knows its size, and a wrong call is the same error on all of them. Then chunks travel as `ring_shift` says:
around a ring of k members in k - 1 rounds, of which each hands on one chunk less.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed.distributed_c10d import AllgatherOptions

from opus_sdn.shim.errors import OpusRefusedError
from opus_sdn.shim.ring_shift import Shifts

TAG_FIRST = 0x60000000  # of messages of the shim's own, on the inner backend; one tag for each operation
TAGS = 1 << 24

Chunks = list[torch.Tensor]
Message = tuple[int, torch.Tensor]  # peer, flat tensor


class Carrier(Protocol):
    """Sends and receives at once, as the device type does it."""

    def __call__(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Exchange; what is enqueued afterwards, or what the host does then, sees the received tensors."""


class HostCarrier:
    """gloo: the host waits for each message."""

    def __init__(self, backend: Any, tag: int) -> None:
        self._backend = backend
        self._tag = tag

    def __call__(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """All messages are on their way before the first one is waited for."""
        works = [self._backend.recv([tensor], peer, self._tag) for peer, tensor in receives]
        works += [self._backend.send([tensor], peer, self._tag) for peer, tensor in sends]
        for work in works:
            work.wait()


class AllToAll:
    """One operation: `sends[m]` goes to member m, `receives[m]` comes from it. Flat after `start`.

    The table of sizes goes over `tables`, a gloo backend, and is on its way after `start`, so that the order
    of collectives is that of the calls; `run` blocks the host until it is there.
    """

    def __init__(self, shifts: Shifts, me: int, tables: Any, sends: Chunks, receives: Chunks) -> None:
        self._shifts = shifts
        self._me = me
        self._sends, self._receives = sends, receives
        size = len(sends)
        self._said = torch.tensor([t.numel() for t in (*sends, *receives)], dtype=torch.int64)
        self._table = torch.empty(size * 2 * size, dtype=torch.int64)
        self._telling = tables._allgather_base(self._table, self._said, AllgatherOptions())

    def run(self, carry: Carrier) -> None:
        """Exchange. Raises OpusRefusedError, on all members alike, where two disagree about a size."""
        self._telling.wait()
        with torch.inference_mode():  # neither gradients nor an inference tensor of the caller's may object
            self._exchange(carry)

    def _exchange(self, carry: Carrier) -> None:
        size = len(self._sends)
        table = self._table.view(size, 2, size).tolist()
        for source in range(size):
            for target in range(size):
                sent, expected = table[source][0][target], table[target][1][source]
                if sent != expected:
                    raise OpusRefusedError(
                        "size-mismatch",
                        f"all-to-all: member {source} of the group sends {sent} elements to member {target}, "
                        f"which expects {expected}; split sizes must agree",
                    )
        self._deliver(self._along_the_rail(self._inside_the_host(table, carry), table, carry))

    def _inside_the_host(self, table: Any, carry: Carrier) -> dict[tuple[int, int], torch.Tensor]:
        """Bring chunks to the rail of their destination; the chunks that are on this member's rail then."""
        me, rings = self._me, self._shifts.rings
        here = self._shifts.hosts[me]
        chunks = {(me, target): self._flat(target) for target in rings[me]}
        sends = [(peer, torch.cat([self._flat(t) for t in rings[peer]])) for peer in here if peer != me]
        receives = [
            (peer, self._empty(sum(table[peer][0][t] for t in rings[me]))) for peer in here if peer != me
        ]
        carry(_not_empty(sends), _not_empty(receives))
        for peer, whole in receives:
            parts = torch.split(whole, [table[peer][0][target] for target in rings[me]])
            chunks |= {(peer, target): part for target, part in zip(rings[me], parts, strict=True)}
        return chunks

    def _along_the_rail(
        self, chunks: dict[tuple[int, int], torch.Tensor], table: Any, carry: Carrier
    ) -> dict[tuple[int, int], torch.Tensor]:
        """Hand on what is for others, keep what is for this member; all chunks that are for it."""
        me, shifts = self._me, self._shifts
        ring, here = shifts.rings[me], shifts.hosts[me]
        previous, following = shifts.neighbours(me)
        mine = {(source, me): chunks[source, me] for source in here}
        train = [torch.cat([chunks[source, target] for source in here]) for target in shifts.train(me, 1)]
        for distance in range(1, len(ring)):
            origin = ring[(ring.index(me) - distance) % len(ring)]
            sources = shifts.hosts[origin]
            sizes = [sum(table[s][0][t] for s in sources) for t in shifts.train(origin, distance)]
            arriving = self._empty(sum(sizes))
            leaving = torch.cat(train) if train else self._empty(0)
            carry(_not_empty([(following, leaving)]), _not_empty([(previous, arriving)]))
            first, *rest = torch.split(arriving, sizes)
            parts = torch.split(first, [table[source][0][me] for source in sources])
            mine |= {(source, me): part for source, part in zip(sources, parts, strict=True)}
            train = list(rest)
        return mine

    def _deliver(self, mine: dict[tuple[int, int], torch.Tensor]) -> None:
        for source, into in enumerate(self._receives):
            into.copy_(mine[source, self._me].view(into.shape))

    def _flat(self, target: int) -> torch.Tensor:
        return self._sends[target].reshape(-1)

    def _empty(self, elements: int) -> torch.Tensor:
        like = self._receives[0]
        return torch.empty(elements, dtype=like.dtype, device=like.device)


class HostAllToAll:
    """The Work of one on the host. It goes on by itself, as the program may wait for something else first."""

    def __init__(self, exchange: AllToAll, carrier: HostCarrier) -> None:
        self._failed: Exception | None = None
        self._thread = threading.Thread(
            target=self._run, args=(exchange, carrier), name="opus-all-to-all", daemon=True
        )
        self._thread.start()

    def is_completed(self) -> bool:
        """Whether it has been done, or has failed."""
        return not self._thread.is_alive()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it is done; raises what it raised."""
        self._thread.join(timeout.total_seconds() if timeout else None)
        if self._failed is not None:
            raise self._failed
        return True

    def _run(self, exchange: AllToAll, carrier: HostCarrier) -> None:
        try:
            exchange.run(carrier)
        except Exception as failed:  # noqa: BLE001 - whatever it is, it belongs to whoever waits
            self._failed = failed


def chunks_of(name: str, args: Sequence[Any], size: int) -> tuple[Chunks, Chunks]:
    """What goes to and comes from each member, from the arguments of torch's call: (sends, receives)."""
    if name == "alltoall":
        receives, sends = list(args[0]), list(args[1])
        if len(receives) != size or len(sends) != size:
            raise ValueError(
                f"all_to_all: {len(receives)} output and {len(sends)} input tensors; wanted {size} of each"
            )
        return sends, receives
    output, data, output_splits, input_splits = args[:4]
    return _split("input", data, input_splits, size), _split("output", output, output_splits, size)


def tag_of(number: int) -> int:
    """The tag of the group's all-to-all of this number."""
    return TAG_FIRST + number % TAGS


def host_call(
    shifts: Shifts, me: int, backend: Any, number: int, chunks: tuple[Chunks, Chunks]
) -> Callable[[], Any]:
    """The call that starts one on the host, and gives its Work."""
    return lambda: HostAllToAll(AllToAll(shifts, me, backend, *chunks), HostCarrier(backend, tag_of(number)))


def _split(what: str, whole: torch.Tensor, splits: Sequence[int], size: int) -> Chunks:
    rows = whole.shape[0] if whole.dim() else 0
    if not splits:
        if rows % size:
            raise ValueError(
                f"all_to_all_single: {what} has {rows} rows, no multiple of the group's size {size}; "
                "give split sizes"
            )
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(
            f"all_to_all_single: {what} split sizes {list(splits)} for {rows} rows and {size} members; "
            "wanted one for each member, and their sum the rows"
        )
    return list(torch.split(whole, list(splits)))


def _not_empty(messages: Sequence[Message]) -> list[Message]:
    return [(peer, tensor) for peer, tensor in messages if tensor.numel()]
