"""Operations, memory traffic and messages of one microbatch on one rank, in closed form: preset `physical`.

A multiplication with its addition counts as two operations. Activations and weights have 2 bytes an element,
gradients are reduced with 4. A product of matrices moves its two factors and its result once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from opus_sdn.whatif.workload.models import Model
from opus_sdn.whatif.workload.plan import Batch, Parallelism

ELEMENT: Final = 2  # bytes of an activation or a weight
GRADIENT: Final = 4  # bytes of a gradient that is reduced
# Adam in mixed precision reads and writes a master weight and two moments of 4 bytes, reads the gradient and
# writes the weight.
OPTIMIZER_BYTES: Final = 2 * 3 * 4 + GRADIENT + ELEMENT
OPTIMIZER_OPS: Final = 12
NORM_OPS: Final = 5  # for each element


class Cost(NamedTuple):
    """Operations, and bytes to and from memory."""

    ops: int
    size: int

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, tuple)
        return Cost(self.ops + other[0], self.size + other[1])


@dataclass(frozen=True, slots=True)
class Costs:
    """Of a plan. `tokens` are those of a data and context parallel rank, `local` those that a rank has where
    the sequence is sharded.
    """

    model: Model
    plan: Parallelism
    batch: Batch

    @property
    def tokens(self) -> int:
        """Of a microbatch, on the ranks of one host together."""
        return (
            self.batch.size // self.plan.dp // self.batch.microbatches * self.batch.sequence // self.plan.cp
        )

    @property
    def local(self) -> int:
        """Of a microbatch, between the tensor-parallel parts of a layer."""
        return self.tokens // self.plan.tp if self.plan.sequence_parallel else self.tokens

    # --- messages, in bytes

    @property
    def message(self) -> int:
        """Activations, or their gradients, between stages; and the shard that a tensor group gathers."""
        return ELEMENT * self.local * self.model.hidden

    @property
    def partial(self) -> int:
        """What a tensor group reduces: a whole activation of which every rank has a part of the sum."""
        return ELEMENT * self.tokens * self.model.hidden

    @property
    def context(self) -> int:
        """Keys and values of a rank's part of the sequence."""
        own = self.model.latent
        if own is not None:
            return ELEMENT * self.tokens * (own.key_rank + own.rotary)
        return ELEMENT * self.tokens * 2 * self.model.key_width // self.plan.tp

    @property
    def routed(self) -> int:
        """Tokens on their way to experts, or back: each goes to as many as are active."""
        active = 0 if self.model.experts is None else self.model.experts.active
        return ELEMENT * self.local * active * self.model.hidden

    # --- computing

    def product(self, rows: int, inner: int, columns: int) -> Cost:
        """A product of two matrices."""
        return Cost(2 * rows * inner * columns, ELEMENT * (rows * inner + inner * columns + rows * columns))

    @property
    def norm(self) -> Cost:
        """A norm with the addition before it: two tensors in, two out."""
        elements = self.local * self.model.hidden
        return Cost(NORM_OPS * elements, 4 * ELEMENT * elements)

    @property
    def projection(self) -> Cost:
        """From a layer's input to queries, keys and values."""
        model, tp = self.model, self.plan.tp
        wide = model.score_width + model.value_width + (0 if model.latent else 2 * model.key_width)
        moved = self.tokens * model.hidden + (model.projection_parameters + self.tokens * wide) // tp
        return Cost(2 * self.tokens * model.projection_parameters // tp, ELEMENT * moved)

    @property
    def attention(self) -> Cost:
        """Scores and their weighted sums over the whole sequence, without a mask, as 12 L h s counts them."""
        model, tp = self.model, self.plan.tp
        wide = model.score_width + model.value_width
        ops = 2 * self.tokens * self.batch.sequence * wide // tp
        return Cost(ops, ELEMENT * self.tokens * (1 + self.plan.cp) * wide // tp)

    @property
    def output(self) -> Cost:
        """From what attention gives to a layer's output."""
        return self.product(self.tokens, self.model.value_width // self.plan.tp, self.model.hidden)

    @property
    def mlp_up(self) -> Cost:
        """Into the MLP, gate included."""
        width = (self.model.mlp_matrices - 1) * self.model.ffn // self.plan.tp
        return self.product(self.tokens, self.model.hidden, width)

    @property
    def mlp_down(self) -> Cost:
        """Out of the MLP."""
        return self.product(self.tokens, self.model.ffn // self.plan.tp, self.model.hidden)

    @property
    def head(self) -> Cost:
        """Logits of the vocabulary."""
        return self.product(self.tokens, self.model.hidden, self.model.vocab // self.plan.tp)

    @property
    def loss(self) -> Cost:
        """Logits read, their gradients written, with 4 bytes."""
        elements = self.tokens * self.model.vocab // self.plan.tp
        return Cost(NORM_OPS * elements, 2 * 4 * elements)

    @property
    def lookup(self) -> Cost:
        """Of embeddings: rows read and written."""
        elements = self.tokens * self.model.hidden // self.plan.tp
        return Cost(elements, 2 * ELEMENT * elements)

    # --- experts

    @property
    def router(self) -> Cost:
        """Which experts a token goes to."""
        assert self.model.experts is not None
        return self.product(self.local, self.model.hidden, self.model.experts.count)

    def experts(self, matrices: int) -> Cost:
        """So many matrices of a rank's experts, over the tokens that come in, as many to each expert."""
        own, plan = self.model.experts, self.plan
        assert own is not None
        split = 1 if plan.experts_over_host else plan.tp  # of a token's way through an expert
        rows = self.local * own.active * (plan.tp if not plan.experts_over_host else 1)
        held = own.count * split // (plan.experts_on_rail * plan.tp)
        width = matrices * own.width // split
        weights = held * self.model.hidden * width
        moved = rows * (self.model.hidden + width) + weights
        return Cost(2 * rows * self.model.hidden * width, ELEMENT * moved)

    def shared(self, matrices: int) -> Cost:
        """So many matrices of the experts that every token passes."""
        assert self.model.experts is not None
        width = matrices * self.model.experts.shared * self.model.experts.width // self.plan.tp
        return self.product(self.tokens, self.model.hidden, width)

    # --- weights on a rank

    def dense_weights(self, layer: int) -> int:
        """Of a layer, without its routed experts."""
        model = self.model
        whole = model.attention_parameters
        if model.is_dense(layer) or model.experts is None:
            return (whole + model.mlp_parameters) // self.plan.tp
        router = model.hidden * model.experts.count
        return (whole + model.experts.shared * model.expert_parameters) // self.plan.tp + router

    def expert_weights(self, layer: int) -> int:
        """Of a layer's routed experts."""
        model = self.model
        if model.is_dense(layer) or model.experts is None:
            return 0
        return model.experts.count * model.expert_parameters // (self.plan.experts_on_rail * self.plan.tp)

    @property
    def embedding_weights(self) -> int:
        """Of one embedding."""
        return self.model.vocab * self.model.hidden // self.plan.tp
