"""A stage's program in the accounting of the published trace generator.

One operation is a multiplication with its addition, one element a byte, and a node's traffic its output.
There are no operations that grow with the square of the sequence: attention is bound by memory. Nothing
orders the compute but the data, and gradients are reduced for every microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opus_sdn.whatif.trace.model import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from opus_sdn.whatif.workload.models import GATED, Model
from opus_sdn.whatif.workload.plan import Batch, Parallelism
from opus_sdn.whatif.workload.program import Builder, Key, Program

_NORM, _ATTENTION, _ATTENTION_BACK = 5, 3, 6  # operations for each element of the output


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Elements of a microbatch on one rank; `full` are those that tensor parallelism has not yet summed."""

    act: int
    full: int
    query: int
    keys: int
    inner: int
    logits: int
    embedding: int
    qkv_ops: int
    out_ops: int
    mlp_ops: int
    vocab_ops: int
    qkv_weights: int
    out_weights: int
    mlp_weights: int

    @classmethod
    def of(cls, model: Model, plan: Parallelism, batch: Batch) -> _Sizes:
        tp, hidden = plan.tp, model.hidden
        tokens = batch.size // plan.dp // batch.microbatches * batch.sequence
        wide = model.query_width + 2 * model.key_width
        return cls(
            act=tokens * hidden // tp,
            full=tokens * hidden,
            query=tokens * model.query_width // tp,
            keys=tokens * model.key_width // tp,
            inner=tokens * model.ffn // tp,
            logits=tokens * model.vocab // tp,
            embedding=model.vocab * hidden,
            qkv_ops=tokens * hidden * wide // tp,
            out_ops=tokens * hidden * model.query_width // tp,
            mlp_ops=tokens * hidden * model.ffn // tp,
            vocab_ops=tokens * hidden * model.vocab // tp,
            qkv_weights=hidden * wide // tp,
            out_weights=hidden * model.query_width // tp,
            mlp_weights=hidden * model.ffn // tp,
        )


def stage_program(model: Model, plan: Parallelism, batch: Batch, layers: range, stage: int) -> Program:
    """The program of the stage that has these layers."""
    return _Stage(model, plan, batch, layers, stage).program()


class _Stage:
    def __init__(self, model: Model, plan: Parallelism, batch: Batch, layers: range, stage: int) -> None:
        self._model, self._plan, self._batch = model, plan, batch
        self._layers, self._stage = layers, stage
        self._is_first, self._is_last = stage == 0, stage == plan.pp - 1
        self._sizes = _Sizes.of(model, plan, batch)
        self._grouped = model.key_heads < model.heads
        self._gated = model.mlp == GATED
        self._build = Builder()
        self._mb = 0

    def program(self) -> Program:
        for mb in range(self._batch.microbatches):
            self._mb = mb
            for layer in self._layers:
                self._layer(layer)
            if self._is_last:
                self._output_embedding()
            if self._is_first:
                self._input_embedding()
        self._updates()
        self._messages()
        return self._build.program()

    # --- helpers: keys are (microbatch, place, name)

    def _key(self, place: object, name: str) -> Key:
        return (self._mb, place, name)

    def _name(self, place: object, name: str) -> str:
        where = f"layer{place}" if isinstance(place, int) else str(place)
        return f"mb{self._mb}.{where}.{name}"

    def _compute(self, place: object, name: str, size: int, ops: int, *deps: Key) -> Key:
        return self._build.compute(self._key(place, name), self._name(place, name), size, ops, deps)

    def _tensor(self, place: object, name: str, which: int, size: int, *deps: Key) -> Key:
        """A collective of the tensor-parallel group; without one, what would go into it."""
        if self._plan.tp == 1:
            return self._compute(place, name, 1, 1, *deps)
        return self._build.collective(
            self._key(place, name), self._name(place, name), which, "tp", size, deps
        )

    def _before(self, layer: int) -> Key:
        """What gives a layer its input."""
        if layer > self._layers.start:
            return self._key(layer - 1, "ffn_res.y")
        return self._key("in_emb", "y") if self._is_first else self._key("fwd", "recv")

    def _behind(self, layer: int) -> Key:
        """What gives a layer its gradient."""
        if layer + 1 < self._layers.stop:
            return self._key(layer + 1, "input_norm.dx")
        return self._key("out_emb", "dx") if self._is_last else self._key("bwd", "recv")

    # --- nodes, in the order of the published ids

    def _layer(self, layer: int) -> None:
        n = self._sizes
        before, behind = self._before(layer), self._behind(layer)

        def key(name: str) -> Key:
            return self._key(layer, name)

        self._compute(layer, "input_norm.y", n.act, _NORM * n.act, before)
        self._compute(layer, "input_norm.dy", n.act, n.act, key("mha.dx"), key("post_attn_norm.dx"))
        self._compute(layer, "input_norm.dx", n.act, _NORM * n.act, key("input_norm.dy"))
        self._attention(layer)
        self._compute(layer, "mha_res.y", n.act, n.act, key("mha.o"), before)
        self._compute(layer, "post_attn_norm.y", n.act, _NORM * n.act, key("mha_res.y"))
        self._compute(layer, "post_attn_norm.dy", n.act, n.act, key("ffn.dx0"), behind)
        self._compute(layer, "post_attn_norm.dx", n.act, _NORM * n.act, key("post_attn_norm.dy"))
        weights = self._gated_mlp(layer, behind) if self._gated else self._plain_mlp(layer, behind)
        self._compute(layer, "ffn_res.y", n.act, n.act, key("mha_res.y"), key("ffn.xdown"))
        if self._plan.dp > 1:
            made = [key("mha.dwo"), key("mha.dwqkv"), *weights]
            name = self._name(layer, "gradient")
            size = self._layer_weights
            self._build.collective(key("gradient"), name, ALL_REDUCE, "dp", size, made)

    @property
    def _layer_weights(self) -> int:
        n = self._sizes
        return n.qkv_weights + n.out_weights + self._model.mlp_matrices * n.mlp_weights

    def _attention(self, layer: int) -> None:
        n = self._sizes

        def key(name: str) -> Key:
            return self._key(layer, name)

        wide = n.query + 2 * n.keys
        kernel = "attn_kernel."
        self._compute(layer, "mha.qkv", wide, n.qkv_ops, key("mha.qkv.gather"))
        self._tensor(layer, "mha.qkv.gather", ALL_GATHER, n.act, key("input_norm.y"))
        for name, size in (("q", n.query), ("k", n.keys), ("v", n.keys)):
            self._compute(layer, f"mha.{name}", size, size, key("mha.qkv"))
        self._compute(layer, "mha.o1", n.full, n.out_ops, key(kernel + "qkv"))
        self._tensor(layer, "mha.o", REDUCE_SCATTER, n.full, key("mha.o1"))
        self._tensor(layer, "mha.do1", ALL_GATHER, n.act, key("post_attn_norm.dx"))
        self._compute(layer, "mha.dattn", n.query, n.out_ops, key("mha.do1"))
        self._compute(layer, "mha.dwo", n.out_weights, n.out_ops, key("mha.do1"), key(kernel + "qkv"))
        self._compute(layer, "mha.dkv", 2 * n.keys, 2 * n.keys, key(kernel + "dk"), key(kernel + "dv"))
        self._compute(layer, "mha.dqkv", wide, wide, key("mha.dkv"), key(kernel + "dq"))
        self._compute(layer, "mha.dwqkv", n.qkv_weights, n.qkv_ops, key("mha.dqkv"), key("mha.dwqkv.gather"))
        self._tensor(layer, "mha.dwqkv.gather", ALL_GATHER, n.act, key("input_norm.y"))
        self._compute(layer, "mha.dx1", n.full, n.qkv_ops, key("mha.dqkv"))
        self._tensor(layer, "mha.dx", REDUCE_SCATTER, n.full, key("mha.dx1"))
        back = _ATTENTION_BACK * n.query
        made = [key(f"mha.{name}") for name in "qkv"]
        self._compute(layer, kernel + "qkv", n.query, _ATTENTION * n.query, *made)
        self._compute(layer, kernel + "dq", n.query, back, key("mha.dattn"))
        if not self._grouped:
            for name in ("dk", "dv"):
                self._compute(layer, kernel + name, n.query, back, key("mha.dattn"))
            return
        for name in ("dk", "dv"):
            self._compute(layer, f"{kernel}{name}1", n.query, back, key("mha.dattn"))
        for name in ("dk", "dv"):
            self._compute(layer, kernel + name, n.keys, n.keys, key(f"{kernel}{name}1"))

    def _plain_mlp(self, layer: int, behind: Key) -> list[Key]:
        """Two matrices; returns what makes the gradients of the weights."""
        n = self._sizes

        def key(name: str) -> Key:
            return self._key(layer, f"ffn.{name}")

        self._tensor(layer, "ffn.x00", ALL_GATHER, n.act, self._key(layer, "post_attn_norm.y"))
        self._compute(layer, "ffn.xgate", n.inner, n.mlp_ops, key("x00"))
        self._compute(layer, "ffn.xdown1", n.full, n.mlp_ops, key("xgate"))
        self._tensor(layer, "ffn.xdown", REDUCE_SCATTER, n.full, key("xdown1"))
        self._tensor(layer, "ffn.dxdown2", ALL_GATHER, n.act, behind)
        self._compute(layer, "ffn.dwdown", n.mlp_weights, n.mlp_ops, key("xgate"), key("dxdown2"))
        self._compute(layer, "ffn.dxgate", n.inner, n.mlp_ops, key("dxdown2"))
        self._tensor(layer, "ffn.x01", ALL_GATHER, n.act, self._key(layer, "post_attn_norm.y"))
        self._compute(layer, "ffn.dwgate", n.mlp_weights, n.mlp_ops, key("dxgate"), key("x01"))
        self._compute(layer, "ffn.dx000", n.full, n.mlp_ops, key("dxgate"))
        self._tensor(layer, "ffn.dx0", REDUCE_SCATTER, n.full, key("dx000"))
        return [key("dwdown"), key("dwgate")]

    def _gated_mlp(self, layer: int, behind: Key) -> list[Key]:
        """Three matrices; returns what makes the gradients of the weights."""
        n = self._sizes

        def key(name: str) -> Key:
            return self._key(layer, f"ffn.{name}")

        self._tensor(layer, "ffn.x00", ALL_GATHER, n.act, self._key(layer, "post_attn_norm.y"))
        for name in ("xup", "xgate"):
            self._compute(layer, f"ffn.{name}", n.inner, n.mlp_ops, key("x00"))
        self._compute(layer, "ffn.xupgate", n.inner, n.inner, key("xup"), key("xgate"))
        self._compute(layer, "ffn.xdown1", n.full, n.mlp_ops, key("xupgate"))
        self._tensor(layer, "ffn.xdown", REDUCE_SCATTER, n.full, key("xdown1"))
        self._tensor(layer, "ffn.dxdown2", ALL_GATHER, n.act, behind)
        self._compute(layer, "ffn.dwdown", n.mlp_weights, n.mlp_ops, key("xupgate"), key("dxdown2"))
        self._compute(layer, "ffn.dxupgate", n.inner, n.mlp_ops, key("dxdown2"))
        self._compute(layer, "ffn.dxup", n.inner, n.inner, key("xgate"), key("dxupgate"))
        self._compute(layer, "ffn.dxgate", n.inner, n.inner, key("xup"), key("dxupgate"))
        self._tensor(layer, "ffn.x01", ALL_GATHER, n.act, self._key(layer, "post_attn_norm.y"))
        self._compute(layer, "ffn.dwup", n.mlp_weights, n.mlp_ops, key("dxup"), key("x01"))
        self._compute(layer, "ffn.dwgate", n.mlp_weights, n.mlp_ops, key("dxgate"), key("x01"))
        self._compute(layer, "ffn.dx00", n.full, n.mlp_ops, key("dxup"))
        self._compute(layer, "ffn.dx01", n.full, n.mlp_ops, key("dxgate"))
        self._compute(layer, "ffn.dx000", n.full, n.full, key("dx00"), key("dx01"))
        self._tensor(layer, "ffn.dx0", REDUCE_SCATTER, n.full, key("dx000"))
        return [key("dwdown"), key("dwup"), key("dwgate")]

    def _input_embedding(self) -> None:
        n = self._sizes
        back = self._key(self._layers.start, "input_norm.dx")
        self._compute("in_emb", "y", n.act, n.vocab_ops)
        self._compute("in_emb", "dw", n.embedding, n.vocab_ops, back)
        self._compute("in_emb", "dx", n.logits, n.vocab_ops, back)

    def _output_embedding(self) -> None:
        n = self._sizes
        last = self._key(self._layers.stop - 1, "ffn_res.y")
        self._compute("out_emb", "y", n.logits, n.vocab_ops, last)
        self._compute("out_emb", "dw", n.embedding, n.vocab_ops, last, self._key("loss", "dy"))
        self._compute("out_emb", "dx", n.act, n.vocab_ops, self._key("loss", "dy"))
        self._compute("loss", "loss", n.act, _NORM * n.act, self._key("out_emb", "y"))
        self._compute("loss", "dy", n.act, _NORM * n.act, self._key("loss", "loss"))

    # --- the end of the step

    def _updates(self) -> None:
        """Gradients of all microbatches added, then weights; an embedding is reduced in between."""
        add, n, size = self._build.compute, self._sizes, self._layer_weights
        embeddings = [name for name, has in (("in_emb", self._is_first), ("out_emb", self._is_last)) if has]
        microbatches = range(self._batch.microbatches)
        for layer in self._layers:
            made = [key for mb in microbatches for key in self._layer_gradients(mb, layer)]
            add(("sum", layer), f"layer{layer}.gradient", size, size, made)
        for name in embeddings:
            made = [(mb, name, "dw") for mb in microbatches]
            add(("sum", name), f"{name}.gradient", n.embedding, n.embedding, made)
        for layer in self._layers:
            add(("update", layer), f"layer{layer}.weights", size, size, [("sum", layer)])
        for name in embeddings:
            reduced: list[tuple[str, str]] = [
                (f"reduce-{dimension}", dimension)
                for dimension, ranks in (("dp", self._plan.dp), ("tp", self._plan.tp))
                if ranks > 1
            ]
            chain: list[Key] = [("sum", name), *((step, name) for step, _ in reduced)]
            add(("update", name), f"{name}.weights", n.embedding, n.embedding, chain[-1:])
            for place, (step, dimension) in enumerate(reduced):
                self._build.collective(
                    (step, name), f"{name}.{step}", ALL_REDUCE, dimension, n.embedding, [chain[place]]
                )

    def _layer_gradients(self, mb: int, layer: int) -> Iterator[Key]:
        """Of one microbatch: reduced over the data-parallel ranks where there are some."""
        if self._plan.dp > 1:
            yield (mb, layer, "gradient")
            return
        weights = (
            "mha.dwo",
            "mha.dwqkv",
            "ffn.dwdown",
            *(("ffn.dwup",) if self._gated else ()),
            "ffn.dwgate",
        )
        for name in weights:
            yield (mb, layer, name)

    def _messages(self) -> None:
        """Activations and gradients between stages, for one receiving stage after the other."""
        for receiver in range(self._plan.pp):
            for mb in range(self._batch.microbatches):
                for sender in (receiver - 1, receiver + 1):
                    if 0 <= sender < self._plan.pp:
                        self._message(sender, receiver, mb)

    def _message(self, sender: int, receiver: int, mb: int) -> None:
        forward = sender < receiver
        way = "fwd" if forward else "bwd"
        tag = (mb * self._plan.pp + sender) * 2 + forward
        size = self._sizes.act
        if self._stage == sender:
            last = (mb, self._layers.stop - 1, "ffn_res.y")
            made: Key = last if forward else (mb, self._layers.start, "input_norm.dx")
            self._build.send((mb, way, "send"), f"mb{mb}.{way}.send", size, receiver, tag, [made])
        elif self._stage == receiver:
            self._build.receive((mb, way, "recv"), f"mb{mb}.{way}.recv", size, sender, tag)
