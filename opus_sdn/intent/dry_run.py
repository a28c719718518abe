"""What a change would do, without doing it: its steps, whom they disturb, what stands in the way, refusals.

Nothing here changes the state. What is answered holds for the generations that it names: applied while these
are current and the same is answered again, the change does exactly this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from opus_sdn.intent import admission, directives, refit, seeding
from opus_sdn.intent.causes import SEED, live_against, told_want, wants_on
from opus_sdn.intent.directives import Operator
from opus_sdn.intent.errors import CoreError
from opus_sdn.intent.fabric import CrossConnect, Fabric
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import JobSpec
from opus_sdn.intent.planner import Blocked, SwitchFacts, Want, plan
from opus_sdn.intent.ranks import Layout
from opus_sdn.intent.requests import check_job
from opus_sdn.intent.standing import Drain, ManualCircuit, Told
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.stepping import disturbed_by, facts_of
from opus_sdn.intent.topology_id import circuits_of

UNNUMBERED = 0  # of a directive that is only looked at


@dataclass(frozen=True, slots=True)
class DrainPort:
    """No circuit for a port."""

    port: str


@dataclass(frozen=True, slots=True)
class UndrainPort:
    """A port may be used again."""

    port: str


@dataclass(frozen=True, slots=True)
class KeepCircuit:
    """A circuit is kept up."""

    a: str
    b: str


@dataclass(frozen=True, slots=True)
class DropCircuit:
    """A circuit is kept up no longer."""

    circuit: str


@dataclass(frozen=True, slots=True)
class AdmitJob:
    """A job is declared. With `queue` it waits for ports that are not free."""

    spec: JobSpec
    queue: bool = False


@dataclass(frozen=True, slots=True)
class ChangeFabric:
    """Another fabric comes into force."""

    fabric: Fabric


Change = DrainPort | UndrainPort | KeepCircuit | DropCircuit | AdmitJob | ChangeFabric


@dataclass(frozen=True, slots=True)
class StepMade:
    """One device transaction that the change would cause at once."""

    switch: str
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a change would do. `generations`: of the switches concerned, on which this was worked out."""

    generations: dict[str, int]
    steps: tuple[StepMade, ...] = ()
    disturbed: tuple[str, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    refusal: CoreError | None = None


def look(state: CoreState, now: float, change: Change, who: Operator) -> Outcome:
    """What this change, told by this operator, would do now."""
    try:
        return _look(state, now, change, who)
    except CoreError as refusal:
        return Outcome(_generations(state, _switches(state, change)), refusal=refusal)


def _look(state: CoreState, now: float, change: Change, who: Operator) -> Outcome:
    told = Told(UNNUMBERED, now, who.name, who.detail, who.force)
    match change:
        case DrainPort():
            port, terminals, _, _ = directives.check_drain(state, change.port, who)
            switch = state.fabric.attachment(port).switch
            return _by_directive(state, now, Drain(told, port, switch, terminals))
        case KeepCircuit():
            circuit, _, _ = directives.check_circuit(state, change.a, change.b, who)
            return _by_directive(state, now, ManualCircuit(told, circuit))
        case UndrainPort():
            port = directives.port_named(state.fabric, change.port)
            return Outcome(_generations(state, [state.fabric.attachment(port).switch]))
        case DropCircuit():
            manual = directives.kept_circuit(state, change.circuit)
            return Outcome(_generations(state, [manual.switch]))
        case AdmitJob():
            return _by_job(state, now, change)
        case _:
            return _by_fabric(state, change.fabric)


def _by_directive(state: CoreState, now: float, directive: Drain | ManualCircuit) -> Outcome:
    want = told_want(state, directive)
    live = live_against(state, [directive])
    facts = facts_of(state, now, state.switches[directive.switch], live)
    return _outcome(state, [_made(state, facts, want)])


def _by_job(state: CoreState, now: float, change: AdmitJob) -> Outcome:
    """The steps of its initial topology; what its ranks will need moves when they need it."""
    spec = change.spec
    check_job(state, spec)
    refusal = admission.why_not(state, spec, state.queue.values())
    if refusal is not None and not change.queue:
        raise refusal
    if refusal is not None:
        waits = Blocked(spec.name, f"job {spec.name}", admission.because_of(refusal))
        return Outcome(_generations(state, _switches(state, change)), blocked=(waits,))
    wanted = spec.initial_topology
    layout = Layout(spec.dimensions, len(spec.placement))
    circuits = {} if wanted is None else dict(circuits_of(state.fabric, spec, layout, wanted))
    job = JobCore(state.fabric, state.settings, spec, 0, now)
    seed = seeding.seed_of(state, job, circuits)
    made = []
    for switch in dict.fromkeys(job.switch_of):
        mine = () if seed is None else tuple(c for c in seed.circuits if c.switch == switch)
        clear = () if seed is None else tuple(pair for at, pair in seed.leftovers if at == switch)
        facts = facts_of(state, now, state.switches[switch], state.live_circuit)
        made.append(_made(state, facts, Want(f"{spec.name}/{SEED}", mine, clear)))
    return _outcome(state, made)


def _by_fabric(state: CoreState, fabric: Fabric) -> Outcome:
    """Nothing moves on its own; circuits whose ports go or move are nobody's any more."""
    refusal = refit.why_not(state, fabric)
    generations = _generations(state, state.switches)
    if refusal is not None:
        return Outcome(generations, refusal=refusal)
    left: dict[str, None] = {}
    for name, switch in state.switches.items():
        for pair in sorted(switch.matching):
            circuit = state.fabric.circuit_of(name, pair)
            ends = () if circuit is None else (circuit.a, circuit.b)
            if circuit is not None and any(refit.changed(state.fabric, fabric, port) for port in ends):
                left[circuit.id] = None
    return Outcome(generations, disturbed=tuple(left))


@dataclass(frozen=True, slots=True)
class _Made:
    generation: int
    step: StepMade
    blocked: tuple[Blocked, ...]


def _made(state: CoreState, facts: SwitchFacts, want: Want) -> _Made:
    """The step for one want more, after all that waits on the switch already."""
    switch = facts.switch.name
    wants, _ = wants_on(state, switch)
    others = [other for other in wants if other.key != want.key]
    first = want.key.startswith("directive/")
    made = plan(facts, [want, *others] if first else [*others, want], {want.key})
    blocked = tuple(replace(item, key=want.key) for item in made.blocked)
    return _Made(facts.generation, StepMade(switch, made.remove, made.add), blocked)


def _outcome(state: CoreState, made: Iterable[_Made]) -> Outcome:
    made = list(made)
    steps = tuple(each.step for each in made if each.step.remove or each.step.add)
    disturbed = dict.fromkeys(
        name for step in steps for name in disturbed_by(state, step.switch, step.remove)
    )
    return Outcome(
        {each.step.switch: each.generation for each in made},
        steps,
        tuple(disturbed),
        tuple(blocked for each in made for blocked in each.blocked),
    )


def _generations(state: CoreState, switches: Iterable[str]) -> dict[str, int]:
    return {name: state.switches[name].generation for name in switches}


def _switches(state: CoreState, change: Change) -> list[str]:
    """Switches that a refused change is about, as far as they are known."""
    match change:
        case DrainPort() | UndrainPort():
            names = [change.port]
        case KeepCircuit():
            names = [change.a, change.b]
        case AdmitJob():
            names = [f"{place.host}:{place.slot}:0" for place in change.spec.placement]
        case _:
            names = []
    found: dict[str, None] = {}
    for name in names:
        try:
            found[state.fabric.attachment(directives.port_named(state.fabric, name)).switch] = None
        except CoreError:
            continue
    return list(found)
