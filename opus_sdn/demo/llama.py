"""A small Llama: RMSNorm, rotary attention, SwiGLU; cut into pipeline stages, tensor-parallel by plan.

Every weight is drawn from a generator of its own, seeded by its place in the whole model, so that it does
not depend on how the model is cut.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # the name everybody gives it
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from opus_sdn.demo.shapes import TrainConfig

ROPE_BASE = 10_000.0


class Attention(nn.Module):
    """Causal self-attention with rotary positions. Works on as many heads as its weights have here."""

    def __init__(self, width: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.register_buffer("cos_sin", rotary_table(self.head_width, sequence), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same."""
        q, k, v = (
            w(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        out = F.scaled_dot_product_attention(self._rotate(q), self._rotate(k), v, is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # nn.Module calls are untyped

    def _rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.get_buffer("cos_sin")
        even, odd = x.chunk(2, dim=-1)
        return torch.cat((even * cos - odd * sin, even * sin + odd * cos), dim=-1)


def rotary_table(head_width: int, sequence: int) -> Tensor:
    """Cosines and sines of all positions: (2, sequence, head_width / 2)."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(sequence, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to the same."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]  # as above


class Experts(nn.Module):
    """A mixture of experts as DeepSeek's: one that every token uses, and many of which a router picks a few.

    Routed experts are spread over the tensor-parallel ranks. Activations are whole there, so each rank adds
    what its own experts make of the tokens, and one all-reduce sums it up.
    """

    def __init__(self, width: int, hidden: int, experts: int, active: int) -> None:
        super().__init__()
        self.active = active
        self.router = nn.Linear(width, experts, bias=False)
        self.shared = FeedForward(width, hidden)
        self.w1 = nn.Parameter(torch.empty(experts, hidden, width))
        self.w2 = nn.Parameter(torch.empty(experts, width, hidden))
        self.w3 = nn.Parameter(torch.empty(experts, hidden, width))
        self.mesh: DeviceMesh | None = None

    def spread(self, mesh: DeviceMesh) -> None:
        """Keep only this rank's experts."""
        self.mesh = mesh
        for name in ("w1", "w2", "w3"):
            whole = getattr(self, name)
            self.register_parameter(name, nn.Parameter(distribute_tensor(whole.detach(), mesh, [Shard(0)])))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same."""
        tokens = x.flatten(0, 1)
        gates, chosen = self.router(tokens).softmax(dim=-1).topk(self.active, dim=-1)
        w1, w2, w3 = (_own(weight) for weight in (self.w1, self.w2, self.w3))
        first = 0
        if self.mesh is not None:
            first = self.mesh.get_local_rank() * len(w1)
            tokens, gates = (_with_summed_gradient(value, self.mesh) for value in (tokens, gates))
        out = torch.zeros_like(tokens)
        for own in range(len(w1)):
            which, place = (chosen == first + own).nonzero(as_tuple=True)
            mine = tokens[which]
            made = (F.silu(mine @ w1[own].T) * (mine @ w3[own].T)) @ w2[own].T
            out = out.index_add(0, which, made * gates[which, place].unsqueeze(-1))
        if self.mesh is not None:
            out = _SumValues.apply(out, self.mesh)  # type: ignore[no-untyped-call]  # torch does not type it
        return self.shared(x) + out.view_as(x)  # type: ignore[no-any-return]  # as above


def _with_summed_gradient(value: Tensor, mesh: DeviceMesh) -> Tensor:
    out: Tensor = _SumGradients.apply(value, mesh)  # type: ignore[no-untyped-call]  # as above
    return out


def _own(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


class _SumGradients(torch.autograd.Function):
    """The value as it is; its gradient summed over the ranks that each used it for a part."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, mesh: DeviceMesh) -> Tensor:
        ctx.mesh = mesh
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.mesh), None


class _SumValues(torch.autograd.Function):
    """The sum over the ranks; each gets the whole gradient."""

    @staticmethod
    def forward(_ctx: Any, value: Tensor, mesh: DeviceMesh) -> Tensor:
        return _summed(value, mesh)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _summed(value: Tensor, mesh: DeviceMesh) -> Tensor:
    value = value.contiguous().clone()
    dist.all_reduce(value, group=mesh.get_group())
    return value


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config.width, config.heads, config.sequence)
        self.feed_forward_norm = nn.RMSNorm(config.width)
        self.feed_forward: nn.Module = (
            Experts(config.width, config.hidden, config.experts, config.active_experts)
            if config.experts
            else FeedForward(config.width, config.hidden)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]  # as above


class Stage(nn.Module):
    """One pipeline stage: its share of the layers, the embedding if it is first, the output if it is last."""

    def __init__(self, config: TrainConfig, index: int) -> None:
        super().__init__()
        share = config.layers // config.stages
        layers = range(index * share, (index + 1) * share)
        self.embedding = nn.Embedding(config.vocabulary, config.width) if index == 0 else None
        self.blocks = nn.ModuleDict({str(layer): Block(config) for layer in layers})
        last = index == config.stages - 1
        self.norm = nn.RMSNorm(config.width) if last else None
        self.output = nn.Linear(config.width, config.vocabulary, bias=False) if last else None
        with torch.no_grad():
            for name, weight in self.named_parameters():
                _draw(name, weight, config.seed)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (batch, sequence) or activations in; activations or logits (..., vocabulary) out."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x


def _draw(name: str, weight: Tensor, seed: int) -> None:
    """Fill one weight: norms with ones, matrices from a normal distribution of the usual small width."""
    if weight.dim() == 1:
        weight.fill_(1.0)
        return
    place = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(place[:7], "big"))
    weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)


def parallelize(stage: Stage, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split the layers of a stage over the tensor-parallel mesh.

    Plain: whole activations everywhere, one all-reduce behind attention and one behind feed-forward. With
    `sequence_parallel` the layers of a stage hand on parts of the sequence: all-gather before, reduce-scatter
    behind; only what leaves the stage is whole again.
    """
    blocks = list(stage.blocks.values())
    feed_forward = "feed_forward"
    for block in blocks:
        if isinstance(block.feed_forward, Experts):
            block.feed_forward.spread(mesh)
            feed_forward = "feed_forward.shared"
    plan = _sequence_plan() if sequence_parallel else _plain_plan(feed_forward)
    for block in blocks:
        parallelize_module(block, mesh, plan)
    if sequence_parallel:
        whole, part = Replicate(), Shard(1)
        enter = PrepareModuleInput(
            input_layouts=(whole,), desired_input_layouts=(part,), use_local_output=True
        )
        parallelize_module(blocks[0], mesh, enter)
        parallelize_module(
            blocks[-1], mesh, PrepareModuleOutput(output_layouts=part, desired_output_layouts=whole)
        )


def _plain_plan(feed_forward: str = "feed_forward") -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {}
    for part in ("attention", feed_forward):  # one gradient all-reduce for the input, not one per matrix
        plan[part] = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    inner = ("attention.wq", "attention.wk", "attention.wv", f"{feed_forward}.w1", f"{feed_forward}.w3")
    for name in inner:
        plan[name] = ColwiseParallel()
    for name in ("attention.wo", f"{feed_forward}.w2"):
        plan[name] = RowwiseParallel()
    return plan


def _sequence_plan() -> dict[str, ParallelStyle]:
    plan = _plain_plan()
    for part in ("attention", "feed_forward"):
        plan[f"{part}_norm"] = SequenceParallel(use_local_output=True)
        plan[part] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan["attention.wo"] = RowwiseParallel(output_layouts=Shard(1))
    plan["feed_forward.w2"] = RowwiseParallel(output_layouts=Shard(1))
    return plan
