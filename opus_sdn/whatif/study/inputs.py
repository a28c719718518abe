"""How far the overhead moves when one input of a study is halved or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.study.prepare import Job
from opus_sdn.whatif.study.runs import Runs, Setting

FACTORS = (0.5, 2.0)
FABRIC = (("switch_ms", "ms"), ("control_ms", "ms"), ("link_up_ms", "ms"), ("scale_out_gbps", "GB/s"))


@dataclass(frozen=True, slots=True)
class Moved:
    """The headline with one input changed. `refused`: why there is no such study."""

    input: str
    value: str
    step_ms: float | None
    reference_ms: float | None
    overhead_percent: float | None
    refused: str | None = None


def moved_by_inputs(runs: Runs, setting: Setting, mode: Mode, done: Callable[[], None]) -> list[Moved]:
    """The headline as studied, then with each input halved and doubled. `done()` after each."""
    job = runs.prepared.job
    found = [_moved(runs, setting, mode, "as studied", "")]
    base = replace(setting, scale_out_gbps=setting.scale_out_gbps or job.scale_out_gbps)
    for name, unit in FABRIC:
        value = getattr(base, name)
        for factor in FACTORS if value else ():
            changed: dict[str, Any] = {name: factor * value}
            found.append(
                _moved(runs, replace(setting, **changed), mode, name, f"{factor * value:.4g} {unit}")
            )
        done()
    for name, shown, other in _other_jobs(job):
        try:
            prepared = other.prepared()
            changed_runs = Runs(prepared, reference=runs.reference, options=runs.options)
            found.append(_moved(changed_runs, setting, mode, name, shown))
        except InputError as error:
            found.append(Moved(name, shown, None, None, None, error.why))
        done()
    return found


def _other_jobs(job: Job) -> Iterator[tuple[str, str, Job]]:
    for factor in FACTORS:
        # Compute times are those of a GPU that is so many times as fast.
        gpu = replace(job.gpu, tflops=job.gpu.tflops * factor, memory_gbps=job.gpu.memory_gbps * factor)
        yield "GPU speed", f"x {factor:g}", replace(job, gpu=gpu)
    for factor in FACTORS:
        batch = job.batch
        parts = int(batch.microbatches * factor)
        if parts >= 1 and parts != batch.microbatches:
            yield "microbatches", f"{parts}", replace(job, batch=replace(batch, microbatches=parts))
    for factor in FACTORS:
        batch = replace(job.batch, sequence=int(job.batch.sequence * factor))
        yield "sequence", f"{batch.sequence} tokens", replace(job, batch=batch)


def _moved(runs: Runs, setting: Setting, mode: Mode, name: str, shown: str) -> Moved:
    step = runs.step(setting, mode)
    why = "the step cannot finish" if step.stuck else None
    return Moved(name, shown, step.step_ms, step.reference_ms, step.overhead_percent, why)
