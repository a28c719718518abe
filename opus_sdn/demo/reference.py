"""The same training in one process without any communication: what every distributed run must come close to.

Sums are taken in another order here, so the last digits differ; a rank that missed a gradient or mixed up a
micro-batch is off by far more.
"""

from __future__ import annotations

import torch

from opus_sdn.demo.data import batch, mean_loss
from opus_sdn.demo.llama import Stage
from opus_sdn.demo.shapes import TrainConfig
from opus_sdn.demo.train import MAX_GRAD_NORM


def run(config: TrainConfig) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(Stage(config, index) for index in range(config.stages)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    records = []
    for step in range(config.steps):
        optimizer.zero_grad()
        shares = [batch(config, step, dp_rank) for dp_rank in range(config.shape.dp)]
        loss = torch.stack([mean_loss(model(tokens), targets) for tokens, targets in shares]).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        records.append((loss.item(), norm.item()))
    return records
