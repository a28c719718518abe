"""In which order a pipeline's stages take forward and backward passes of microbatches.

A piece is a run of layers: piece q belongs to stage q modulo the stages, so that a stage of an interleaved
pipeline has several.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from opus_sdn.whatif.workload.plan import GPIPE, INTERLEAVED, ZERO_BUBBLE

FORWARD: Final = "F"
BACKWARD: Final = "B"  # the gradients of inputs, and of weights unless these have blocks of their own
WEIGHTS: Final = "W"  # the gradients of weights alone


class Block(NamedTuple):
    """One pass of a microbatch through a piece of the model."""

    kind: str
    piece: int
    microbatch: int


def orders(schedule: str, stages: int, microbatches: int, virtual_stages: int = 1) -> list[list[Block]]:
    """The blocks of each stage in the order in which it computes them."""
    if schedule == INTERLEAVED:
        return [_interleaved(stage, stages, microbatches, virtual_stages) for stage in range(stages)]
    if schedule == ZERO_BUBBLE:
        return [_zero_bubble(stage, stages, microbatches) for stage in range(stages)]
    ahead = microbatches if schedule == GPIPE else 0
    return [_one_by_one(stage, stages, microbatches, ahead) for stage in range(stages)]


def _one_by_one(stage: int, stages: int, microbatches: int, ahead: int = 0) -> list[Block]:
    """1F1B: as many forward passes ahead as stages follow, and one more; at least `ahead`."""
    forward = [Block(FORWARD, stage, mb) for mb in range(microbatches)]
    backward = [Block(BACKWARD, stage, mb) for mb in range(microbatches)]
    return _alternate(forward, backward, min(max(ahead, stages - stage), microbatches))


def _alternate(forward: list[Block], backward: list[Block], ahead: int) -> list[Block]:
    """`ahead` forward passes, then one backward and one forward in turn, then what is left."""
    found = forward[:ahead]
    for index, block in enumerate(backward):
        found.append(block)
        found += forward[ahead + index : ahead + index + 1]
    return found


def _interleaved(stage: int, stages: int, microbatches: int, virtual: int) -> list[Block]:
    """Megatron's order: as many microbatches as stages through each piece in turn."""
    total = microbatches * virtual

    def block(kind: str, count: int) -> Block:
        round_, within = divmod(count, stages * virtual)
        chunk, offset = divmod(within, stages)
        if kind == BACKWARD:
            chunk = virtual - 1 - chunk
        return Block(kind, chunk * stages + stage, round_ * stages + offset)

    ahead = total if microbatches == stages else (stages - stage - 1) * 2 + (virtual - 1) * stages + 1
    forward = [block(FORWARD, count) for count in range(total)]
    backward = [block(BACKWARD, count) for count in range(total)]
    return _alternate(forward, backward, min(ahead, total))


def _zero_bubble(stage: int, stages: int, microbatches: int) -> list[Block]:
    """The hand-made schedule ZB-H1: 1F1B whose stage s leaves the weights of s microbatches for the end."""
    weights = [Block(WEIGHTS, stage, mb) for mb in range(microbatches)]
    found: list[Block] = []
    for block in _one_by_one(stage, stages, microbatches):
        found.append(block)
        due = block.microbatch - stage
        if block.kind == BACKWARD and due >= 0:
            found.append(weights[due])
    return found + weights[max(0, microbatches - stage) :]
