"""The published steps as plans, for our own generator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from opus_sdn.whatif.workload import Batch, Parallelism, Workload, generate, model_card
from tests.whatif.cases import EIGHT, LLAMA, MICROBATCHES

PLANS = {
    EIGHT: (model_card("gpt-80b"), Parallelism(dp=2, pp=2, tp=2), Batch(256, 4096)),
    LLAMA: (model_card("llama-80b"), Parallelism(dp=4, pp=4, tp=8), Batch(256, 4096)),
    MICROBATCHES: (
        replace(model_card("llama-80b"), layers=8),
        Parallelism(dp=4, pp=4, tp=2),
        Batch(64, 4096, 4),
    ),
}


@cache
def published(case: str) -> Workload:
    """The step of a published case, generated."""
    return generate(*PLANS[case], preset="stg")
