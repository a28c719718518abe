"""A stage's program as frameworks run it: one stream of compute in the order of the pipeline's schedule.

Every node of the stream follows the one before. Collectives follow what they depend on, beside the stream;
receives are posted when the pass before the one that needs them begins. Gradients are reduced once in a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opus_sdn.whatif.trace.model import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from opus_sdn.whatif.workload.costs import (
    ELEMENT,
    GRADIENT,
    OPTIMIZER_BYTES,
    OPTIMIZER_OPS,
    Cost,
    Costs,
)
from opus_sdn.whatif.workload.layout import CONTEXT, DATA, EXPERTS, REPLICAS, TENSOR, Layout
from opus_sdn.whatif.workload.models import Model
from opus_sdn.whatif.workload.pipeline import BACKWARD, FORWARD, Block, orders
from opus_sdn.whatif.workload.plan import (
    FULL,
    NO_SHARDING,
    ONE_F_ONE_B,
    OPTIMIZER,
    ZERO_BUBBLE,
    Batch,
    Parallelism,
)
from opus_sdn.whatif.workload.program import Builder, Key, Program

_LAST = "last"  # the place of what belongs to no layer
_MLP, _ATTENTION = "mlp", "attention"


def stage_programs(
    model: Model, plan: Parallelism, batch: Batch, pieces: Sequence[range]
) -> tuple[Program, ...]:
    """The program of every stage; `pieces` are the layers of each piece of the model."""
    schedule = plan.schedule or ONE_F_ONE_B
    blocks = orders(schedule, plan.pp, batch.microbatches, plan.virtual_stages)
    costs = Costs(model, plan, batch)
    return tuple(_Stage(costs, pieces, blocks, stage).program() for stage in range(plan.pp))


class _Stage:
    def __init__(
        self, costs: Costs, pieces: Sequence[range], blocks: Sequence[Sequence[Block]], stage: int
    ) -> None:
        self._costs, self._pieces, self._stage = costs, pieces, stage
        self._model, self._plan, self._batch = costs.model, costs.plan, costs.batch
        self._blocks = blocks
        self._sizes = Layout(self._plan).sizes()
        self._splits = self._plan.schedule == ZERO_BUBBLE
        self._build = Builder()
        self._mb = 0
        self._tail: Key | None = None  # the newest node of the compute stream
        self._mark: Key | None = None  # what it was when the layer before began
        self._begins: list[Key | None] = []  # what it was when each block began
        self._gradients: dict[object, Key] = {}  # place -> the node that makes its last gradient

    def program(self) -> Program:
        own = self._blocks[self._stage]
        for kind, piece, self._mb in own:
            self._begins.append(self._tail)
            if kind == FORWARD:
                self._forward(piece)
            elif kind == BACKWARD:
                self._backward(piece)
            else:
                self._weights(piece)
        self._end_of_step()
        self._receives()
        return self._build.program()

    # --- nodes

    def _key(self, place: object, name: str) -> Key:
        return (self._mb, place, name)

    def _name(self, place: object, name: str) -> str:
        where = f"layer{place}." if isinstance(place, int) else ""
        return f"mb{self._mb}.{where}{name}"

    def _compute(self, place: object, name: str, cost: Cost, deps: Iterable[Key] = ()) -> Key:
        """The next node of the compute stream."""
        before = [] if self._tail is None else [self._tail]
        key = self._key(place, name)
        self._build.compute(key, self._name(place, name), cost.size, cost.ops, [*deps, *before])
        self._tail = key
        return key

    def _collective(
        self, place: object, name: str, which: int, dimension: str, size: int, deps: Iterable[Key]
    ) -> Key:
        return self._build.collective(
            self._key(place, name), self._name(place, name), which, dimension, size, deps
        )

    def _gather(self, place: object, name: str, dep: Key) -> Key:
        """A sharded activation made whole on all ranks of a host."""
        if self._plan.tp == 1 or not self._plan.sequence_parallel:
            return dep
        return self._collective(place, name, ALL_GATHER, TENSOR, self._costs.message, [dep])

    def _reduce(self, place: object, name: str, dep: Key) -> Key:
        """A sum over the ranks of a host: sharded again, or whole on all."""
        if self._plan.tp == 1:
            return dep
        which = REDUCE_SCATTER if self._plan.sequence_parallel else ALL_REDUCE
        return self._collective(place, name, which, TENSOR, self._costs.partial, [dep])

    # --- passes

    def _forward(self, piece: int) -> None:
        costs = self._costs
        if piece == 0:
            found = self._compute(_LAST, "embedding", costs.lookup)
            x = self._reduce(_LAST, "embedding.sum", found)
        else:
            x = ("recv", FORWARD, piece, self._mb)
        for layer in self._pieces[piece]:
            x = self._layer_forward(layer, x)
        if piece + 1 < len(self._pieces):
            self._send(FORWARD, piece, piece + 1, x)
            return
        whole = self._gather(_LAST, "head.gather", x)
        self._compute(_LAST, "head", costs.head, [whole])
        self._compute(_LAST, "loss", costs.loss)

    def _backward(self, piece: int) -> None:
        costs = self._costs
        if piece + 1 < len(self._pieces):
            dy: Key = ("recv", BACKWARD, piece, self._mb)
        else:
            made = self._compute(_LAST, "head.dx", costs.head, [self._key(_LAST, "loss")])
            dy = self._reduce(_LAST, "head.dx.sum", made)
            if not self._splits:
                self._gradient("head", costs.head)
        for layer in reversed(self._pieces[piece]):
            dy = self._layer_backward(layer, dy)
        if piece:
            self._send(BACKWARD, piece, piece - 1, dy)
        else:
            whole = self._gather(_LAST, "embedding.d.gather", dy)
            self._gradients["embedding"] = self._compute(_LAST, "embedding.dw", costs.lookup, [whole])

    def _weights(self, piece: int) -> None:
        """Gradients of weights alone, of a pass whose gradients of inputs are done."""
        if piece + 1 == len(self._pieces):
            self._gradient("head", self._costs.head)
        for layer in reversed(self._pieces[piece]):
            for part in (_MLP, _ATTENTION):
                self._layer_weights(layer, part)

    def _gradient(self, place: object, cost: Cost, deps: Iterable[Key] = ()) -> None:
        self._gradients[place] = self._compute(place, "dw", cost, deps)

    # --- layers

    def _layer_forward(self, layer: int, x: Key) -> Key:
        costs = self._costs
        self._compute(layer, "norm1", costs.norm, [x, *self._whole_weights(layer, FORWARD)])
        whole = self._gather(layer, "projection.gather", self._key(layer, "norm1"))
        made = self._compute(layer, "projection", costs.projection, [whole])
        attended = self._attention(layer, "attention", costs.attention, [made], [made])
        made = self._compute(layer, "output", costs.output, [attended])
        summed = self._reduce(layer, "output.sum", made)
        normed = self._compute(layer, "norm2", costs.norm, [summed])
        if not self._model.is_dense(layer):
            return self._experts_forward(layer, normed)
        whole = self._gather(layer, "up.gather", normed)
        self._compute(layer, "up", costs.mlp_up, [whole])
        return self._reduce(layer, "down.sum", self._compute(layer, "down", costs.mlp_down))

    def _layer_backward(self, layer: int, dy: Key) -> Key:
        """Gradients of inputs; where they have no blocks of their own, those of weights as soon as can be."""
        costs = self._costs
        gathered = self._whole_weights(layer, BACKWARD)
        if self._model.is_dense(layer):
            whole = self._gather(layer, "down.d.gather", dy)
            self._compute(layer, "down.dx", costs.mlp_down, [whole, *gathered])
            summed = [self._reduce(layer, "up.dx.sum", self._compute(layer, "up.dx", costs.mlp_up))]
        else:
            summed = self._experts_backward(layer, dy, gathered)
        self._unless_split(layer, _MLP)
        normed = self._compute(layer, "norm2.dx", costs.norm, summed)
        whole = self._gather(layer, "output.d.gather", normed)
        self._compute(layer, "output.dx", costs.output, [whole])
        double = costs.attention + costs.attention
        attended = self._attention(layer, "attention.dx", double, [], [self._key(layer, "output.dx")])
        made = self._compute(layer, "projection.dx", costs.projection, [attended])
        summed = [self._reduce(layer, "projection.dx.sum", made)]
        self._unless_split(layer, _ATTENTION)
        return self._compute(layer, "norm1.dx", costs.norm, summed)

    def _unless_split(self, layer: int, part: str) -> None:
        if not self._splits:
            self._layer_weights(layer, part)

    def _layer_weights(self, layer: int, part: str) -> None:
        """The gradients of the weights of a part of a layer: as many operations as forward."""
        costs = self._costs
        if part == _ATTENTION:
            whole = self._gather(layer, "projection.again", self._key(layer, "output.dx"))
            self._compute(layer, "output.dw", costs.output)
            self._gradient(layer, costs.projection, [whole])
        elif self._model.is_dense(layer):
            whole = self._gather(layer, "up.again", self._key(layer, "down.dx"))
            self._compute(layer, "down.dw", costs.mlp_down)
            self._compute(layer, "up.dw", costs.mlp_up, [whole])
        else:
            self._experts_weights(layer)

    def _attention(
        self, layer: int, name: str, cost: Cost, exchanged: Iterable[Key], deps: Iterable[Key]
    ) -> Key:
        """Attention; around a ring of context-parallel ranks, the own part meanwhile and the rest after that.

        Forward, keys and values go round; backward, these and their gradients.
        """
        cp, size = self._plan.cp, self._costs.context
        if cp == 1:
            return self._compute(layer, name, cost, deps)
        around = self._collective(layer, f"{name}.ring", ALL_GATHER, CONTEXT, size, exchanged or deps)
        own = Cost(cost.ops // cp, cost.size // cp)
        self._compute(layer, f"{name}.own", own, deps)
        rest = Cost(cost.ops - own.ops, cost.size - own.size)
        done = self._compute(layer, name, rest, [around])
        if exchanged:
            return done
        return self._collective(layer, f"{name}.ring.sum", REDUCE_SCATTER, CONTEXT, size * cp, [done])

    # --- experts

    def _experts_forward(self, layer: int, normed: Key) -> Key:
        costs, up = self._costs, self._model.mlp_matrices - 1
        routed = self._compute(layer, "router", costs.router, [normed])
        there = self._to_experts(layer, "dispatch", routed)
        shared: list[Key] = []
        if self._plan.overlap_experts:
            shared = self._shared_forward(layer, normed)
        self._compute(layer, "experts.up", costs.experts(up), [there])
        back = self._from_experts(layer, "combine", self._compute(layer, "experts.down", costs.experts(1)))
        if not self._plan.overlap_experts:
            shared = self._shared_forward(layer, back)
        return self._compute(layer, "combined", costs.norm, [back, *shared])

    def _shared_forward(self, layer: int, dep: Key) -> list[Key]:
        assert self._model.experts is not None
        if not self._model.experts.shared:
            return []
        whole = self._gather(layer, "shared.gather", dep)
        self._compute(layer, "shared.up", self._costs.shared(self._model.mlp_matrices - 1), [whole])
        made = self._compute(layer, "shared.down", self._costs.shared(1))
        return [self._reduce(layer, "shared.sum", made)]

    def _experts_backward(self, layer: int, dy: Key, gathered: Sequence[Key]) -> list[Key]:
        costs = self._costs
        made = self._compute(layer, "combined.dx", costs.norm, [dy, *gathered])
        there = self._to_experts(layer, "combine.d", made)
        shared: list[Key] = []
        if self._plan.overlap_experts:
            shared = self._shared_backward(layer, made)
        done = self._compute(layer, "experts.dx", costs.experts(self._model.mlp_matrices), [there])
        back = self._from_experts(layer, "dispatch.d", done)
        if not self._plan.overlap_experts:
            shared = self._shared_backward(layer, back)
        return [self._compute(layer, "router.dx", costs.router, [back]), *shared]

    def _shared_backward(self, layer: int, dep: Key) -> list[Key]:
        assert self._model.experts is not None
        if not self._model.experts.shared:
            return []
        whole = self._gather(layer, "shared.d.gather", dep)
        made = self._compute(layer, "shared.dx", self._costs.shared(self._model.mlp_matrices), [whole])
        return [self._reduce(layer, "shared.dx.sum", made)]

    def _experts_weights(self, layer: int) -> None:
        costs, all_of_it = self._costs, self._model.mlp_matrices
        self._compute(layer, "experts.dw", costs.experts(all_of_it))
        if self._model.experts is not None and self._model.experts.shared:
            self._compute(layer, "shared.dw", costs.shared(all_of_it))
        self._compute(layer, "router.dw", costs.router)

    def _to_experts(self, layer: int, name: str, dep: Key) -> Key:
        """Tokens on their way: first to the right rail inside the host, then along it to the right host."""
        costs, plan = self._costs, self._plan
        if plan.experts_over_host and plan.tp > 1:
            dep = self._collective(layer, f"{name}.host", ALL_TO_ALL, TENSOR, costs.routed, [dep])
        if EXPERTS in self._sizes:
            dep = self._collective(layer, name, ALL_TO_ALL, EXPERTS, costs.routed, [dep])
        if plan.tp > 1 and not plan.experts_over_host:
            dep = self._collective(layer, f"{name}.gather", ALL_GATHER, TENSOR, costs.routed, [dep])
        return dep

    def _from_experts(self, layer: int, name: str, dep: Key) -> Key:
        """The same way back."""
        costs, plan = self._costs, self._plan
        if plan.tp > 1 and not plan.experts_over_host:
            size = costs.routed * plan.tp
            dep = self._collective(layer, f"{name}.sum", REDUCE_SCATTER, TENSOR, size, [dep])
        if EXPERTS in self._sizes:
            dep = self._collective(layer, name, ALL_TO_ALL, EXPERTS, costs.routed, [dep])
        if plan.experts_over_host and plan.tp > 1:
            dep = self._collective(layer, f"{name}.host", ALL_TO_ALL, TENSOR, costs.routed, [dep])
        return dep

    # --- weights over data-parallel ranks

    def _weight_sets(self, layer: int) -> list[tuple[str, int]]:
        """A layer's weights by the dimension over which they are equal: those of experts by their own."""
        experts = self._costs.expert_weights(layer)
        spread = EXPERTS in self._sizes
        found = [(DATA, self._costs.dense_weights(layer) + (0 if spread else experts))]
        if spread and experts:
            found.append((REPLICAS, experts))
        return [(dimension, weights) for dimension, weights in found if dimension in self._sizes]

    def _whole_weights(self, layer: int, way: str) -> list[Key]:
        """With full sharding: a layer's weights gathered, while the layer before computes.

        With a pipeline they are kept from the first microbatch on, as the frameworks do.
        """
        before, self._mark = self._mark, self._tail
        if self._plan.sharding != FULL or (self._plan.pp > 1 and (self._mb or way == BACKWARD)):
            return []
        deps = [] if before is None else [before]
        return [
            self._collective(
                layer,
                f"weights.{way}.{dimension}",
                ALL_GATHER,
                dimension,
                ELEMENT * weights // self._sizes[dimension],
                deps,
            )
            for dimension, weights in self._weight_sets(layer)
        ]

    def _end_of_step(self) -> None:
        """Gradients reduced, weights updated and, where only the optimizer is sharded, gathered."""
        plan, sizes = self._plan, self._sizes
        reduced: list[Key] = []
        sharded = 0
        held: list[tuple[object, str, int]] = []
        for place in self._gradients:
            own = self._weight_sets(place) if isinstance(place, int) else self._embedding_sets()
            held += [(place, dimension, weights) for dimension, weights in own]
        for place, dimension, weights in held:
            which = ALL_REDUCE if plan.sharding == NO_SHARDING else REDUCE_SCATTER
            key = ("gradient", place, dimension)
            name = f"{self._place(place)}.gradient.{dimension}"
            size = GRADIENT * weights
            self._build.collective(key, name, which, dimension, size, [self._gradients[place]])
            reduced.append(key)
            sharded += weights if plan.sharding == NO_SHARDING else weights // sizes[dimension]
        weights = sharded or sum(self._all_weights(place) for place in self._gradients)
        update: Key = "optimizer"
        cost = Cost(OPTIMIZER_OPS * weights, OPTIMIZER_BYTES * weights)
        deps = reduced or list(self._gradients.values())
        before = [] if self._tail is None else [self._tail]
        self._build.compute(update, "optimizer", cost.size, cost.ops, [*deps, *before])
        if plan.sharding == OPTIMIZER:
            for place, dimension, weights in held:
                name = f"{self._place(place)}.weights.{dimension}"
                shard = ELEMENT * weights // sizes[dimension]
                self._build.collective(
                    ("weights", place, dimension), name, ALL_GATHER, dimension, shard, [update]
                )

    def _embedding_sets(self) -> list[tuple[str, int]]:
        return [(DATA, self._costs.embedding_weights)] if DATA in self._sizes else []

    def _all_weights(self, place: object) -> int:
        if isinstance(place, int):
            return self._costs.dense_weights(place) + self._costs.expert_weights(place)
        return self._costs.embedding_weights

    @staticmethod
    def _place(place: object) -> str:
        return f"layer{place}" if isinstance(place, int) else str(place)

    # --- messages

    def _tag(self, way: str, piece: int, mb: int) -> int:
        """One for each message that a piece receives."""
        return (mb * len(self._pieces) + piece) * 2 + (way == FORWARD)

    def _send(self, way: str, piece: int, to: int, dep: Key) -> None:
        key: Key = ("send", way, piece, self._mb)
        name = self._name(_LAST, f"piece{piece}.{'forward' if way == FORWARD else 'backward'}.send")
        tag = self._tag(way, to, self._mb)
        self._build.send(key, name, self._costs.message, to % self._plan.pp, tag, [dep])

    def _receives(self) -> None:
        """Posted a pass ahead. Passes need messages of a stage in the order in which it sends them."""
        for index, (kind, piece, mb) in enumerate(self._blocks[self._stage]):
            sender = piece - 1 if kind == FORWARD else piece + 1
            if kind not in (FORWARD, BACKWARD) or not 0 <= sender < len(self._pieces):
                continue
            begin = self._begins[max(0, index - 1)]
            self._build.receive(
                ("recv", kind, piece, mb),
                f"mb{mb}.piece{piece}.{'forward' if kind == FORWARD else 'backward'}.recv",
                self._costs.message,
                sender % self._plan.pp,
                self._tag(kind, piece, mb),
                [] if begin is None else [begin],
            )
