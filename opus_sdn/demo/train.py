"""A training run with pipeline, data (FSDP2) and tensor parallelism at once, small enough for one machine.

Every collective of a step goes through a group of the device mesh; the world's group is used only to join
and to leave. Arithmetic is single-threaded and in fixed order, so that two runs agree in every bit whatever
carries the bytes.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor

from opus_sdn.demo.child import resolve, tell
from opus_sdn.demo.data import batch, mean_loss
from opus_sdn.demo.llama import Stage, parallelize
from opus_sdn.demo.results import StepRecord, TrainResult
from opus_sdn.demo.shapes import Crash, TrainConfig
from opus_sdn.demo.world import world

MAX_GRAD_NORM: Final = 1.0


def run(config: TrainConfig, backend: str = "gloo") -> TrainResult:
    """Train in this rank; all ranks of the world call it with the same configuration."""
    with world(backend, config.timeout_s) as rank:
        trainer = _Trainer(config, rank)
        hook = resolve(config.after_step) if config.after_step else None
        records = []
        for step in range(config.steps):
            record = trainer.step(step)
            records.append(record)
            tell(record)
            if hook is not None:
                hook(record, **config.after_step_args)
        checksum = trainer.checksum()
    return TrainResult(rank, tuple(records), checksum)


class _Trainer:
    """Model, schedule and optimizer of one rank."""

    def __init__(self, config: TrainConfig, rank: int) -> None:
        torch.manual_seed(config.seed)
        self._config = config
        names, sizes = zip(*config.shape.dimensions, strict=True)
        self._mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        self._dims = names
        pp_rank = self._mesh.get_local_rank("pp")
        self._dp_rank = self._mesh.get_local_rank("dp") if "dp" in names else 0
        indices = config.stages_of(pp_rank)
        self._modules = [self._build(index) for index in indices]
        self._first = 0 in indices
        self._last = config.stages - 1 in indices
        self._forwards = 0
        self._step = 0
        if config.crash is not None and config.crash.rank == rank:
            self._modules[0].register_forward_pre_hook(lambda *_: self._count_towards(config.crash))
        self._schedule = self._build_schedule(indices)
        self._parameters = [weight for module in self._modules for weight in module.parameters()]
        self._optimizer = torch.optim.AdamW(
            [{"params": group} for group in _by_mesh(self._parameters)], lr=config.learning_rate, fused=True
        )

    def _build(self, index: int) -> Stage:
        config = self._config
        stage = Stage(config, index)
        if "tp" in self._dims:
            parallelize(stage, self._mesh["tp"], sequence_parallel=config.sequence_parallel)
        if "dp" in self._dims:
            how: dict[str, Any] = {
                "mesh": self._mesh["dp"],
                "reshard_after_forward": config.reshard_after_forward,
            }
            for block in stage.blocks.values():
                fully_shard(block, **how)
            fully_shard(stage, **how)
        return stage

    def _build_schedule(self, indices: Iterable[int]) -> Any:
        config = self._config
        device = torch.device("cpu")
        stages = [
            PipelineStage(module, index, config.stages, device, group=self._mesh.get_group("pp"))
            for module, index in zip(self._modules, indices, strict=True)
        ]
        schedule: Any = get_schedule_class(config.schedule_class)
        many = issubclass(schedule, PipelineScheduleMulti)
        return schedule(stages if many else stages[0], config.microbatches, loss_fn=mean_loss)

    def step(self, step: int) -> StepRecord:
        """One optimizer step on the data of this step."""
        begin = time.perf_counter()
        config = self._config
        self._step, self._forwards = step, 0
        self._optimizer.zero_grad()
        inputs, targets = batch(config, step, self._dp_rank)
        losses: list[Tensor] = []
        self._schedule.step(
            *((inputs,) if self._first else ()),
            **({"target": targets, "losses": losses} if self._last else {}),
            return_outputs=False,
        )
        norm = self._clip()
        self._optimizer.step()
        mean = self._mean_over_dp(torch.stack(losses).mean().detach()) if self._last else None
        return StepRecord(step, mean, norm, time.perf_counter() - begin, time.time())

    def checksum(self) -> str:
        """Digest of this rank's parts of the parameters, to the last bit."""
        digest = hashlib.sha256()
        for weight in self._parameters:
            digest.update(_local(weight).numpy().tobytes())
        return digest.hexdigest()

    def _clip(self) -> float:
        """Clip the gradients by their norm over the whole model; returns the norm before."""
        # one sum for gradients that are split over tp, one for those that all its ranks have whole
        squares = torch.zeros(2, dtype=torch.float64)
        for weight in self._parameters:
            if weight.grad is not None:
                squares[0 if _is_split(weight, "tp") else 1] += _local(weight.grad).double().square().sum()
        split, shared = squares[:1], squares[1:]
        self._sum_over("tp", split)
        total = split + shared
        self._sum_over("dp", total)
        self._sum_over("pp", total)
        norm = total.sqrt().item()
        if norm > MAX_GRAD_NORM:
            for weight in self._parameters:
                if weight.grad is not None:
                    _local(weight.grad).mul_(MAX_GRAD_NORM / norm)
        return norm

    def _mean_over_dp(self, value: Tensor) -> float:
        self._sum_over("dp", value)
        return value.item() / self._config.shape.dp

    def _sum_over(self, dimension: str, value: Tensor) -> None:
        if dimension in self._dims:
            dist.all_reduce(value, group=self._mesh.get_group(dimension))

    def _count_towards(self, crash: Crash) -> None:
        """Count a forward of this step; at the one that `crash` names, die as a lost node does."""
        if (self._step, self._forwards) == (crash.step, crash.forward):
            os.kill(os.getpid(), signal.SIGKILL)
        self._forwards += 1


def _local(value: Tensor) -> Tensor:
    """This rank's part of a parameter or gradient, without its history."""
    return (value.to_local() if isinstance(value, DTensor) else value).detach()


def _is_split(weight: nn.Parameter, dimension: str) -> bool:
    """Whether the parameter is split along the mesh dimension, as opposed to repeated along it."""
    data = weight.data
    if not isinstance(data, DTensor):
        return False
    names = data.device_mesh.mesh_dim_names or ()
    return any(n == dimension and p.is_shard() for n, p in zip(names, data.placements, strict=True))


def _by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by device mesh: one fused optimizer call works on one mesh."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for weight in parameters:
        mesh = weight.device_mesh if isinstance(weight, DTensor) else None
        groups.setdefault(mesh, []).append(weight)
    return list(groups.values())
