"""The training data and the loss: the same for every way of training the model."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody gives it
from torch import Tensor

from opus_sdn.demo.shapes import TrainConfig


def batch(config: TrainConfig, step: int, dp_rank: int) -> tuple[Tensor, Tensor]:
    """Tokens and their successors for one data-parallel rank.

    A sequence counts up by a stride of its own, so a few steps are enough to learn something.
    """
    generator = torch.Generator().manual_seed((config.seed + step) * config.shape.dp + dp_rank)
    start = torch.randint(config.vocabulary, (config.batch, 1), generator=generator)
    stride = torch.randint(1, 4, (config.batch, 1), generator=generator)
    tokens = (start + stride * torch.arange(config.sequence + 1)) % config.vocabulary
    return tokens[:, :-1], tokens[:, 1:]


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
