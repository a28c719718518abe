"""What runs in the ranks: a training of the demonstration over gloo, watched by torch's own profiler."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from opus_sdn.demo import train
from opus_sdn.demo.results import StepRecord, TrainResult
from opus_sdn.demo.shapes import TrainConfig

_watched = profile(activities=[ProfilerActivity.CPU], record_shapes=True)


def run(config: TrainConfig, folder: str) -> TrainResult:
    """Train, and leave a trace of all steps but the first, `rank<R>_trace.json` (rank 0: gzipped)."""
    return train.run(config_with_hook(config, folder), "gloo")


def config_with_hook(config: TrainConfig, folder: str) -> TrainConfig:
    """The configuration, with the profiler switched on after the first step and off after the last."""
    from dataclasses import replace

    arguments = {"folder": folder, "last": config.steps - 1}
    return replace(config, after_step="tests.trace.profiled:after_step", after_step_args=arguments)


def after_step(record: StepRecord, folder: str, last: int) -> None:
    """torch writes ranks and groups of the run into a trace that begins when they are there."""
    if record.step == 0:
        _watched.start()
    if record.step == last:
        _watched.stop()
        rank = dist.get_rank()
        name = f"rank{rank}_trace.json" + (".gz" if rank == 0 else "")
        _watched.export_chrome_trace(str(Path(folder) / name))
