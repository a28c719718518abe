"""How it is trained: the parallelism, the batch, and whether they go together with the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.network import MAX_RANKS
from opus_sdn.whatif.workload.models import STUDY, Model, check_model, divisors, fitting

DATAFLOW: Final = "dataflow"
GPIPE: Final = "gpipe"
ONE_F_ONE_B: Final = "1f1b"
INTERLEAVED: Final = "interleaved"
ZERO_BUBBLE: Final = "zero-bubble"
SCHEDULES: Final = (DATAFLOW, GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE)

NO_SHARDING: Final = "none"
OPTIMIZER: Final = "optimizer"
FULL: Final = "full"
SHARDINGS: Final = (NO_SHARDING, OPTIMIZER, FULL)

HOST: Final = "host"
RAIL: Final = "rail"
RAILS: Final = "rails"
PLACEMENTS: Final = (HOST, RAIL, RAILS)

STG: Final = "stg"
PHYSICAL: Final = "physical"
PRESETS: Final = (STG, PHYSICAL)

MAX_STAGES: Final = 64
MAX_MICROBATCHES: Final = 4096
MAX_PASSES: Final = 1 << 15  # of layers by microbatches on a rank: a million operations and more
MAX_TOKENS: Final = 1 << 32
_STG_SUPPORTS: Final = "the published generator's accounting knows dp, pp and tp only; use preset physical"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the dimensions, and how each is used. Ranks are laid out pp, tp, cp, dp; dp innermost.

    `sharding` of data parallelism: none, optimizer (ZeRO-1) or full (FSDP). `schedule` of the pipeline; None
    is the preset's own. `virtual_stages`: pieces of the model that an interleaved stage has.
    `sequence_parallel`: activations between the tensor-parallel parts are sharded. `expert_placement`: all
    experts of a layer on one host (`host`, ep = tp), on one rail (`rail`), or on all rails of several hosts
    (`rails`). `overlap_experts`: tokens travel while the shared experts compute.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    sharding: str = NO_SHARDING
    schedule: str | None = None
    virtual_stages: int = 1
    sequence_parallel: bool = True
    expert_placement: str = RAIL
    overlap_experts: bool = False

    @property
    def ranks(self) -> int:
        """Of the whole job."""
        return self.dp * self.pp * self.tp * self.cp

    @property
    def line(self) -> int:
        """Ranks that hold the same weights: data and context parallel ones."""
        return self.dp * self.cp

    @property
    def experts_on_rail(self) -> int:
        """Over how many ranks of one rail a layer's experts are spread."""
        if self.expert_placement == RAIL:
            return self.ep
        return max(1, self.ep // self.tp)

    @property
    def experts_over_host(self) -> bool:
        """Whether the ranks of a host have different experts, rather than parts of the same ones."""
        return self.ep > 1 and self.expert_placement != RAIL


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of a step over all ranks, tokens of a sequence, and in how many parts a rank takes them."""

    size: int
    sequence: int
    microbatches: int = 1


def refused(field: str, value: object, why: str) -> InputError:
    """What a plan that does not work raises."""
    return InputError(why, file=STUDY, field=field, value=value)


def check_plan(model: Model, plan: Parallelism, batch: Batch, preset: str) -> None:
    """Raises InputError with the field, its value and what would fit."""
    if preset not in PRESETS:
        raise refused("preset", preset, f"it must be one of {', '.join(PRESETS)}")
    check_model(model)
    _check_choices(plan)
    _check_sizes(model, plan)
    _check_experts(model, plan)
    _check_batch(model, plan, batch)
    if preset == STG:
        _check_stg(model, plan)
    else:
        _check_schedule(plan, batch)


def _check_choices(plan: Parallelism) -> None:
    for field, value, choices in (
        ("sharding", plan.sharding, SHARDINGS),
        ("schedule", plan.schedule, (None, *SCHEDULES)),
        ("expert_placement", plan.expert_placement, PLACEMENTS),
    ):
        if value not in choices:
            known = ", ".join(str(choice) for choice in choices if choice is not None)
            raise refused(f"parallelism.{field}", value, f"it must be one of {known}")


def _check_sizes(model: Model, plan: Parallelism) -> None:
    for field in ("dp", "pp", "tp", "cp", "ep", "virtual_stages"):
        value = getattr(plan, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise refused(f"parallelism.{field}", value, "it must be an integer of at least 1")
    if plan.ranks > MAX_RANKS:
        raise refused("parallelism", plan.ranks, f"at most {MAX_RANKS} ranks: dp x pp x tp x cp")
    if model.heads % plan.tp or model.ffn % plan.tp:
        common = [n for n in divisors(model.heads) if model.ffn % n == 0]
        why = f"{model.heads} heads and an MLP of {model.ffn} divide by {', '.join(map(str, common))}"
        raise refused("parallelism.tp", plan.tp, why)
    pieces = plan.pp * plan.virtual_stages
    if pieces > model.layers:
        why = f"the model has {model.layers} layers, and each of pp x virtual_stages pieces needs one"
        raise refused("parallelism.pp", plan.pp, why)
    if plan.pp > MAX_STAGES:
        raise refused("parallelism.pp", plan.pp, f"at most {MAX_STAGES} stages")


def _check_experts(model: Model, plan: Parallelism) -> None:
    if model.experts is not None and plan.tp > 1 and not plan.sequence_parallel:
        why = "a model with experts shards the sequence over tensor-parallel ranks"
        raise refused("parallelism.sequence_parallel", False, why)
    if plan.ep == 1:
        return
    if model.experts is None:
        raise refused("parallelism.ep", plan.ep, f"{model.name} has no experts: ep is 1")
    if model.experts.count % plan.ep:
        why = f"{model.experts.count} experts divide by {fitting(model.experts.count)}"
        raise refused("parallelism.ep", plan.ep, why)
    if plan.expert_placement == HOST and plan.ep != plan.tp:
        raise refused("parallelism.ep", plan.ep, f"on one host, ep is tp: {plan.tp}")
    if plan.expert_placement == RAILS and plan.ep % plan.tp:
        raise refused(
            "parallelism.ep", plan.ep, f"over all rails of hosts, ep is a multiple of tp, {plan.tp}"
        )
    if plan.line % plan.experts_on_rail:
        factor = plan.tp if plan.expert_placement == RAILS else 1
        fits = [n * factor for n in divisors(plan.line) if model.experts.count % (n * factor) == 0]
        why = f"dp x cp is {plan.line}: with placement {plan.expert_placement} ep may be {fits}"
        raise refused("parallelism.ep", plan.ep, why)


def _check_batch(model: Model, plan: Parallelism, batch: Batch) -> None:
    if batch.sequence < 1 or batch.sequence % (plan.cp * plan.tp):
        why = f"a multiple of cp x tp, {plan.cp * plan.tp}"
        raise refused("batch.sequence", batch.sequence, why)
    if not 1 <= batch.microbatches <= MAX_MICROBATCHES:
        raise refused("batch.microbatches", batch.microbatches, f"from 1 to {MAX_MICROBATCHES}")
    layers = -(-model.layers // plan.pp)
    if layers * batch.microbatches > MAX_PASSES:
        most = MAX_PASSES // layers
        why = f"with {layers} layers to a stage, at most {most} are simulated"
        raise refused("batch.microbatches", batch.microbatches, why)
    if batch.size * batch.sequence > MAX_TOKENS:
        raise refused("batch.size", batch.size, f"at most {MAX_TOKENS // batch.sequence} such sequences")
    parts = plan.dp * batch.microbatches
    if batch.size < 1 or batch.size % parts:
        below = batch.size // parts * parts
        fits = [n for n in (below, below + parts) if n]
        why = f"it divides among dp x microbatches, {plan.dp} x {batch.microbatches}: {fits} would"
        raise refused("batch.size", batch.size, why)


def _check_schedule(plan: Parallelism, batch: Batch) -> None:
    if plan.schedule == DATAFLOW and plan.pp * batch.microbatches > 1:
        raise refused("parallelism.schedule", plan.schedule, "dataflow is that of preset stg")
    if plan.schedule == INTERLEAVED:
        if plan.virtual_stages < 2:
            raise refused(
                "parallelism.virtual_stages", plan.virtual_stages, "interleaved pipelines have 2 or more"
            )
        if plan.pp == 1:
            raise refused("parallelism.pp", plan.pp, "an interleaved pipeline has 2 stages or more")
        if batch.microbatches % plan.pp:
            why = f"an interleaved pipeline takes a multiple of its {plan.pp} stages"
            raise refused("batch.microbatches", batch.microbatches, why)
    elif plan.virtual_stages > 1:
        why = "only the interleaved schedule has more than 1"
        raise refused("parallelism.virtual_stages", plan.virtual_stages, why)


def _check_stg(model: Model, plan: Parallelism) -> None:
    for field, value, wanted in (
        ("cp", plan.cp, 1),
        ("ep", plan.ep, 1),
        ("sharding", plan.sharding, NO_SHARDING),
        ("sequence_parallel", plan.sequence_parallel, True),
        ("virtual_stages", plan.virtual_stages, 1),
    ):
        if value != wanted:
            raise refused(f"parallelism.{field}", value, _STG_SUPPORTS)
    if plan.schedule not in (None, DATAFLOW):
        raise refused("parallelism.schedule", plan.schedule, _STG_SUPPORTS)
    if model.experts is not None or model.latent is not None:
        raise refused("model", model.name, _STG_SUPPORTS)
    if model.key_width % plan.tp:
        raise refused(
            "parallelism.tp", plan.tp, f"keys of width {model.key_width} divide by {fitting(model.key_width)}"
        )
