"""What is trained: a transformer in the numbers that decide operations and traffic, and known cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from opus_sdn.whatif.errors import InputError

GATED: Final = "gated"  # three matrices, as Llama
PLAIN: Final = "plain"  # two, as GPT
MLPS: Final = (GATED, PLAIN)

STUDY: Final = (
    "study"  # what stands in the place of a file in messages about a plan that was not read from one
)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `active` of `count` experts of this `width` per token, and `shared` ones for all.

    The first `dense_layers` layers have the model's own MLP instead.
    """

    count: int
    active: int
    width: int
    shared: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True)
class Latent:
    """Attention through low-rank latents (MLA): ranks of queries and of keys, widths of a head."""

    query_rank: int
    key_rank: int
    rotary: int = 64
    plain: int = 128
    value: int = 128


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder. `ffn` is the width of the dense MLP; `kv_heads` None: as many as `heads`; `head_width` None:
    `hidden / heads`.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    kv_heads: int | None = None
    head_width: int | None = None
    mlp: str = GATED
    experts: Experts | None = None
    latent: Latent | None = None

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def width(self) -> int:
        """Of one head."""
        return self.hidden // self.heads if self.head_width is None else self.head_width

    @property
    def query_width(self) -> int:
        """Of all heads' queries together, and of what attention gives."""
        return self.heads * self.width

    @property
    def key_width(self) -> int:
        """Of all heads' keys together."""
        return self.key_heads * self.width

    @property
    def mlp_matrices(self) -> int:
        """How many matrices an MLP has."""
        return 3 if self.mlp == GATED else 2

    @property
    def score_width(self) -> int:
        """Of what queries and keys are multiplied in, over all heads."""
        return (
            self.query_width if self.latent is None else self.heads * (self.latent.plain + self.latent.rotary)
        )

    @property
    def value_width(self) -> int:
        """Of what attention gives, over all heads."""
        return self.query_width if self.latent is None else self.heads * self.latent.value

    @property
    def projection_parameters(self) -> int:
        """Of one layer's way from its input to queries, keys and values."""
        if self.latent is None:
            return self.hidden * (self.query_width + 2 * self.key_width)
        own, heads = self.latent, self.heads
        query = self.hidden * own.query_rank + own.query_rank * self.score_width
        return (
            query + self.hidden * (own.key_rank + own.rotary) + own.key_rank * heads * (own.plain + own.value)
        )

    @property
    def output_parameters(self) -> int:
        """Of one layer's way from what attention gives to its output."""
        return self.value_width * self.hidden

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        return self.projection_parameters + self.output_parameters

    @property
    def mlp_parameters(self) -> int:
        """Of one dense layer's MLP."""
        return self.mlp_matrices * self.hidden * self.ffn

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return 0 if self.experts is None else self.mlp_matrices * self.hidden * self.experts.width

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has the plain MLP rather than experts."""
        return self.experts is None or layer < self.experts.dense_layers

    def layer_parameters(self, layer: int, *, active: bool = False) -> int:
        """Matrices of a layer, `active` ones only: those a token passes."""
        if self.is_dense(layer) or self.experts is None:
            return self.attention_parameters + self.mlp_parameters
        experts = (self.experts.active if active else self.experts.count) + self.experts.shared
        router = self.hidden * self.experts.count
        return self.attention_parameters + router + experts * self.expert_parameters

    @property
    def parameters(self) -> int:
        """All matrices, both embeddings among them; norms are left out."""
        layers = sum(self.layer_parameters(layer) for layer in range(self.layers))
        return layers + 2 * self.vocab * self.hidden

    @property
    def active_parameters(self) -> int:
        """Matrices that a token is multiplied with: the input embedding is looked up, and does not count."""
        layers = sum(self.layer_parameters(layer, active=True) for layer in range(self.layers))
        return layers + self.vocab * self.hidden


def _cards(*models: Model) -> Mapping[str, Model]:
    return MappingProxyType({model.name: model for model in models})


# Llama 3: Grattafiori et al., arXiv 2407.21783, table 3. DeepSeek-V2: arXiv 2405.04434, section 3.1.2;
# DeepSeek-V3: arXiv 2412.19437, section 4.2. The two 80B models are those of the published simulations.
CARDS: Final = _cards(
    Model("llama3-8b", 32, 4096, 32, 14_336, 128_256, kv_heads=8),
    Model("llama3-70b", 80, 8192, 64, 28_672, 128_256, kv_heads=8),
    Model("llama3-405b", 126, 16_384, 128, 53_248, 128_256, kv_heads=8),
    Model("gpt-80b", 96, 8192, 64, 28_672, 32_000, mlp=PLAIN),
    Model("llama-80b", 96, 8192, 64, 28_672, 32_000, kv_heads=8),
    Model(
        "deepseek-v2-236b",
        60,
        5120,
        128,
        12_288,
        102_400,
        head_width=128,
        experts=Experts(160, 6, 1536, shared=2, dense_layers=1),
        latent=Latent(1536, 512),
    ),
    Model(
        "deepseek-v3",
        61,
        7168,
        128,
        18_432,
        129_280,
        head_width=128,
        experts=Experts(256, 8, 2048, shared=1, dense_layers=3),
        latent=Latent(1536, 512),
    ),
)


def model_card(name: str) -> Model:
    """The model of this name. Raises InputError that lists those known."""
    if name not in CARDS:
        raise InputError(f"known models are {', '.join(CARDS)}", file=STUDY, field="model", value=name)
    return CARDS[name]


def check_model(model: Model) -> None:
    """Raises InputError for a model that cannot be: the field, its value, and what would fit."""

    def refuse(field: str, value: object, why: str) -> InputError:
        return InputError(why, file=STUDY, field=f"model.{field}", value=value)

    for field in ("layers", "hidden", "heads", "ffn", "vocab"):
        value = getattr(model, field)
        if not 1 <= value <= 1 << 24:
            raise refuse(field, value, "it must lie between 1 and 2^24")
    if model.mlp not in MLPS:
        raise refuse("mlp", model.mlp, f"it must be one of {', '.join(MLPS)}")
    if model.head_width is None and model.hidden % model.heads:
        fitting = divisors(model.hidden)
        raise refuse("heads", model.heads, f"hidden {model.hidden} divides by {_few(fitting)}")
    if model.heads % max(1, model.key_heads) or model.key_heads < 1:
        raise refuse(
            "kv_heads", model.kv_heads, f"{model.heads} heads divide by {_few(divisors(model.heads))}"
        )
    experts = model.experts
    if experts is not None:
        if not 1 <= experts.active <= experts.count <= 1 << 16:
            why = f"from 1 to the count of experts, {experts.count}"
            raise refuse("experts.active", experts.active, why)
        if experts.width < 1 or experts.shared < 0 or not 0 <= experts.dense_layers <= model.layers:
            raise refuse("experts", experts, "width from 1, shared from 0, dense_layers at most all layers")


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return low + [number // n for n in reversed(low) if n * n != number]


def _few(numbers: list[int]) -> str:
    shown = [str(number) for number in numbers[:12]]
    return ", ".join(shown + (["..."] if len(numbers) > len(shown) else []))


def fitting(number: int, most: int = 1 << 20) -> str:
    """The divisors of `number` up to `most`, for a message that says what would do."""
    return _few([n for n in divisors(number) if n <= most])
