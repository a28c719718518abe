"""Generates the steps of jobs that do not exist yet: from a model and a plan to operation graphs.

workload = generate(model_card("llama3-8b"), Parallelism(dp=2, pp=2, tp=4), Batch(16, 8192, 4))
gpu = accelerator("h200")
step = workload.step(gpu)
schedules = workload.schedules(gpu.scale_out_gbps, gpu.scale_up_gbps)
"""

from __future__ import annotations

from opus_sdn.whatif.workload.accelerators import ACCELERATORS, Accelerator, accelerator
from opus_sdn.whatif.workload.generate import Workload, generate
from opus_sdn.whatif.workload.models import CARDS, Experts, Latent, Model, model_card
from opus_sdn.whatif.workload.plan import Batch, Parallelism

__all__ = [
    "ACCELERATORS",
    "CARDS",
    "Accelerator",
    "Batch",
    "Experts",
    "Latent",
    "Model",
    "Parallelism",
    "Workload",
    "accelerator",
    "generate",
    "model_card",
]
