"""The process group that programs get: every operation across hosts asks for its circuits first.

A python subclass of `dist.ProcessGroup`: C++ callers (DDP, functional collectives, FSDP2) reach the methods
through torch's trampolines, python callers by attribute. The inner backends are real gloo and NCCL ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import GroupName

from opus_sdn.intent.model import Domain, Stream
from opus_sdn.shim.errors import OpusError, OpusRefusedError
from opus_sdn.shim.naming import UNKNOWN, dimension, dimension_by_use, group_name, pair_stream
from opus_sdn.shim.operations import What
from opus_sdn.shim.ring_shift import Shifts, plan_shifts
from opus_sdn.shim.torch_all_to_all import chunks_of, host_call
from opus_sdn.shim.torch_cuda import CudaLane, device_call
from opus_sdn.shim.torch_job import RankJob
from opus_sdn.shim.torch_lanes import (
    HostLane,
    Lane,
    build_inner,
    is_broken_connection,
    poison,
    tensors_in,
    wrap_inner,
)
from opus_sdn.shim.torch_out import plug
from opus_sdn.shim.torch_works import DirectWork
from opus_sdn.shim.wire import GroupAnswer

# Collectives, under all names by which torch 2.13 calls them.
COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "_allgather_base",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "barrier",
)
ALL_TO_ALLS = ("all_to_all_single", "alltoall_base", "alltoall")


class OpusGroup(dist.ProcessGroup):
    """A group of ranks. `job` is None with mode off: everything goes to the inner backends.

    The default group is the last that torch shuts down; the rank leaves its job then.
    """

    def __init__(
        self,
        job: RankJob | None,
        ranks: tuple[int, ...],
        rank: int,
        inner: dist.ProcessGroup,
        backends: dict[str, Any],
        is_default: bool = False,
    ) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg]  # the stub has another constructor
        self._job = job
        self._ranks = ranks
        self._inner: dist.ProcessGroup | None = inner
        self._backends = backends
        self._is_default = is_default
        self._gated_device = "cuda" if "cuda" in backends else "cpu"
        self._lanes: dict[str, Lane] = {"cpu": HostLane()}
        if "cuda" in backends:
            self._lanes["cuda"] = CudaLane()
        self._description = ""
        self._label = ""
        self._checking_in = threading.Lock()
        self._answer: GroupAnswer | None = None
        self._ring: Stream | None = None
        self._shifts: Shifts | None = None
        self._exchanges = 0  # all-to-alls across hosts; all members count alike
        self._ordinal = job.register(self, ranks, is_default) if job is not None else 0
        self._kinds: dict[tuple[str, int | None, str | None], What] = {}
        if job is not None:
            plug(_is_gated)
        for device, backend in backends.items():
            # The C++ base has a name, a timeout and an allocator only through registered backends.
            custom = dist.ProcessGroup.BackendType.CUSTOM
            dist.ProcessGroup._register_backend(self, torch.device(device), custom, backend)

    # --- operations

    def _collective(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Issue now what needs no grant; declare what does."""
        inner, job = self._require_inner(), self._job
        if job is None:
            return getattr(inner, name)(*args, **kwargs)
        tensors, size = tensors_in(args)
        answer = None if self._is_for_hosts(args, kwargs) else self._domain_of(tensors, name)
        if answer is None:
            return self._direct(name, args, kwargs, tensors, size)
        if name in ALL_TO_ALLS and answer.ring is not None:
            call = self._shifting(name, args, answer.ring.circuits)
        else:
            call = self._bind(inner, name, args, kwargs)
        stream = self._ring
        if stream is None:
            stream = self._ring = Stream(answer.ring.id if answer.ring is not None else answer.name)
        operation = job.log.begin(self._what(name, stream), size)
        return job.submit(
            self._lanes[self._gated_device],
            call,
            tensors,
            stream,
            operation,
            blocking=_is_blocking(args, kwargs),
        )

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Any:
        """Send to a member, by its rank in the group."""
        return self._message("send", tensors, dst, tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Any:
        """Receive from a member, by its rank in the group."""
        return self._message("recv", tensors, src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        """Receive from whichever member sends: only where no circuit has to be chosen for it."""
        inner = self._require_inner()
        if self._job is None:
            return inner.recv_anysource(tensors, tag)
        if self._domain_of(tensors, "recv") is not None:
            raise OpusRefusedError(
                "receive-from-any",
                f"receive from any of ranks {list(self._ranks)}, which are on several hosts: circuits are "
                "made for a known pair; name the source",
            )
        return self._direct("recv_anysource", (tensors, tag), {}, tensors, _bytes(tensors))

    def _message(self, name: str, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        inner = self._require_inner()
        if self._job is None:
            return getattr(inner, name)(tensors, peer, tag)
        me, other = self._job.rank, self._ranks[peer]
        answer = None if me == other or self._job.shares_host(other) else self._domain_of(tensors, name)
        if answer is None:
            return self._direct(name, (tensors, peer, tag), {}, tensors, _bytes(tensors), other)
        ends = (me, other) if name == "send" else (other, me)
        stream = pair_stream(answer.name, self._ranks, *ends)
        call = self._bind(inner, name, (tensors, peer, tag), {})
        operation = self._job.log.begin(self._what(name, stream, other), _bytes(tensors))
        return self._job.submit(self._lanes[self._gated_device], call, list(tensors), stream, operation, tag)

    def _bind(
        self, inner: dist.ProcessGroup, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        method = getattr(inner, name)
        if self._gated_device == "cuda":
            for options in (*args, *kwargs.values()):
                if hasattr(options, "asyncOp"):
                    options.asyncOp = True  # else NCCL runs on the current stream and gives no Work
        return lambda: method(*args, **kwargs)

    def _what(self, kind: str, stream: Stream | None = None, peer: int | None = None) -> What:
        """The record that all operations of a kind share."""
        connection = stream.connection if stream is not None else None
        key = (kind, peer, connection)
        what = self._kinds.get(key)
        if what is None:
            if self._job is not None and not self._kinds:
                self._job.uses(self._ranks, self._ordinal)
            ends = (None, None) if stream is None else (stream.source, stream.destination)
            name = group_name(self._ranks, self._ordinal)
            label = self._dimension(kind)
            what = What(kind, name, self._description, label, self._ranks, connection, *ends, peer)
            self._kinds[key] = what
        return what

    def _shifting(self, name: str, args: tuple[Any, ...], circuits: tuple[str, ...]) -> Callable[[], Any]:
        """The call of an all-to-all over circuits. Raises OpusRefusedError, ValueError."""
        assert self._job is not None
        if self._shifts is None:
            self._shifts = plan_shifts(self._ranks, self._job.places(self._ranks), circuits)
        chunks = chunks_of(name, args, len(self._ranks))
        me, host = self.rank(), self._backends["cpu"]
        if self._gated_device == "cuda":
            return device_call(self._shifts, me, host, self._backends["cuda"], chunks)
        self._exchanges += 1
        return host_call(self._shifts, me, host, self._exchanges, chunks)

    def _direct(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        size: int,
        peer: int | None = None,
    ) -> Any:
        """An operation that needs no grant; its errors get the job's cause."""
        job, inner = self._job, self._require_inner()
        assert job is not None
        job.require_usable()
        operation = job.log.begin(self._what(name, peer=peer), size)
        job.note(operation)
        try:
            work = getattr(inner, name)(*args, **kwargs)
        except RuntimeError as failed:
            if is_broken_connection(failed):
                raise job.explain(failed, None) from failed
            raise
        return DirectWork(job, self._lane_of(tensors, args, kwargs), work, tensors, operation)

    def _lane_of(self, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lane:
        """The lane that an ungated operation takes inside."""
        if self._gated_device == "cpu":
            return self._lanes["cpu"]
        on_host = self._is_for_hosts(args, kwargs)
        device = tensors[0].device.type if tensors else "cpu" if on_host else self._gated_device
        return self._lanes.get(device, self._lanes["cpu"])

    def _domain_of(self, tensors: list[torch.Tensor], kind: str) -> GroupAnswer | None:
        """The group's check-in, if these tensors need grants; host tensors of a GPU job use the front end."""
        if len(self._ranks) < 2 or (tensors and tensors[0].device.type != self._gated_device):
            return None
        answer = self._answer
        if answer is None:
            answer = self._check_in(kind)
        return answer if answer.domain is Domain.SCALE_OUT else None

    def _is_for_hosts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """A barrier of a GPU job that torch has put on the host: its options say it, as it has no tensors."""
        if self._gated_device == "cpu":
            return False
        devices = [getattr(options, "device", None) for options in (*args, *kwargs.values())]
        return any(isinstance(d, torch.device) and d.type == "cpu" for d in devices)

    def _check_in(self, kind: str) -> GroupAnswer:
        """Make the group known, at its first operation: torch describes a group only after it was made."""
        assert self._job is not None
        with self._checking_in:
            if self._answer is None:
                name = group_name(self._ranks, self._ordinal)
                label = self._dimension(kind)
                answer = self._job.check_in(name, self._ranks, label, self._ordinal)
                if self._gated_device == "cuda" and answer.ring is not None:
                    self._job.require_fit(self._ranks, answer.ring.circuits)
                self._answer = answer
            return self._answer

    def _dimension(self, kind: str) -> str:
        """By the operator's file, else as torch's description says, else by the group's first operation."""
        if not self._label:
            assert self._job is not None
            said = self._job.label_of(self._ranks) or dimension(self._description)
            self._label = dimension_by_use(kind) if said == UNKNOWN else said
        return self._label

    # --- the rest of what torch asks of a group

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name of the backend."""
        return "opus"

    def size(self) -> int:
        """Number of members."""
        return len(self._ranks)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in self._backends]

    def _get_backend(self, device: torch.device) -> Any:
        return self._require_inner()._get_backend(device)

    def get_group_store(self) -> dist.Store:
        """The store of the inner group."""
        return self._require_inner().get_group_store()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of the inner backends."""
        self._require_inner().set_timeout(timeout)

    def _set_group_desc(self, desc: str) -> None:
        super()._set_group_desc(desc)
        self._description = desc

    def _set_sequence_number_for_group(self) -> None:
        """The inner backends have theirs from the beginning."""

    def _get_sequence_number_for_group(self) -> int:
        number: int = self._require_inner()._get_sequence_number_for_group()  # type: ignore[attr-defined]
        return number

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        if self._job is not None and self._answer is not None:
            self._job.drain(self._answer.name)

    def _start_coalescing(self, device: torch.device) -> None:
        """Pass on, where nothing has to be granted; torch must forget about it when it is refused."""
        try:
            nothing = torch.empty(0, device=device)
            if self._job is not None and self._domain_of([nothing], "coalesced") is not None:
                raise OpusRefusedError(
                    "not-supported",
                    f"coalesced operations on ranks {list(self._ranks)}, which are on several hosts; issue "
                    "them one by one",
                )
            self._require_inner()._start_coalescing(device)
        except Exception:
            # Left behind, it would make torch drop every later collective of this group without a word.
            distributed_c10d._world.pg_coalesce_state.pop(self, None)
            raise

    def _end_coalescing(self, device: torch.device) -> Any:
        return self._require_inner()._end_coalescing(device)

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> OpusGroup | None:
        """The group of these members, by their ranks in this one; None to others. Made anew, not split.

        torch would split the inner communicator, and the child would use the rails without asking.
        """
        if self.rank() not in ranks:
            return None
        options = SimpleNamespace(
            store=dist.PrefixStore(f"split/{group_name}", self.get_group_store()),
            group_rank=ranks.index(self.rank()),
            group_size=len(ranks),
            timeout=timeout or distributed_c10d.default_pg_timeout,
            group_id=group_name,
            global_ranks_in_group=[self._ranks[member] for member in ranks],
        )
        backends = build_inner(options, opts, life_of(self._job))
        inner = wrap_inner(options, backends)
        members = tuple(options.global_ranks_in_group)
        child = OpusGroup(self._job, members, options.group_rank, inner, backends)
        child._set_group_name(GroupName(str(group_name)))
        child._set_group_desc(group_desc or "undefined")
        return child

    def shutdown(self) -> None:
        """Let operations finish, drop the inner backends; the default group leaves the job."""
        inner, self._inner = self._inner, None
        if inner is None:
            return
        if self._job is not None:
            self._wait_for_pending_works()
            if self._is_default:
                self._job.close()
        for backend in self._backends.values():
            backend.shutdown()
        self._backends = {}

    def abort(self) -> None:
        """End the job for all ranks; operations under way raise here at once."""
        if self._job is not None:
            self._job.abort("the process group was aborted")
        self.break_off()

    def break_off(self) -> None:
        """Make every inner operation of the group raise, in all threads."""
        for device, backend in list(self._backends.items()):
            if device == "cpu":
                poison(backend, self.rank(), len(self._ranks))
            else:
                backend.abort()

    def _require_inner(self) -> dist.ProcessGroup:
        if self._inner is None:
            raise OpusError(f"the process group of ranks {list(self._ranks)} has been destroyed")
        return self._inner


def life_of(job: RankJob | None) -> str:
    """What the members of all groups of this life have in common, and those of an earlier one had not."""
    return "" if job is None else job.nonce


def _is_gated(group: Any) -> bool:
    return isinstance(group, OpusGroup)


def _is_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the caller will wait at once, as torch's options say; they come last."""
    if args and getattr(args[-1], "asyncOp", True) is False:
        return True
    return any(getattr(options, "asyncOp", True) is False for options in kwargs.values())


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _add_collective(name: str) -> None:
    def method(self: OpusGroup, *args: Any, **kwargs: Any) -> Any:
        return self._collective(name, args, kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{name}` of the inner backend, granted first where it crosses hosts."
    setattr(OpusGroup, name, method)


for _name in COLLECTIVES + ALL_TO_ALLS:
    _add_collective(_name)
