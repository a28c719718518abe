"""What may have changed between planning a step and starting it (rule 9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opus_sdn.intent import drift
from opus_sdn.intent.causes import Cause, causes_of, circuits_of, live_against
from opus_sdn.intent.fabric import Circuit, CrossConnect, Terminal
from opus_sdn.intent.hints import HintedMoves
from opus_sdn.intent.job import JobCore, Lost
from opus_sdn.intent.order import in_order
from opus_sdn.intent.planner import in_grace
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.switches import Step, SwitchState


def why_not_start(state: CoreState, now: float, switch: SwitchState, step: Step) -> str | None:
    """What has changed since planning that forbids this step; None when it may start."""
    causes = [(job, cause) for job, _, cause in causes_of(state, step)]
    if not causes:
        return "what it was planned for no longer waits"
    hinted = {c for _, cause in causes if isinstance(cause, HintedMoves) for c in cause.circuits}
    stale = next((circuit for circuit in step.hinted if circuit not in hinted), None)
    if stale is not None:
        return f"no rank expects to need {stale.id} next any more"
    unusable = drift.why_unusable(switch)
    if unusable is not None:
        return unusable.detail
    gone = _gone(state, switch, step)
    if gone is not None:
        return gone
    obstacle = _closed(state, step) or _traffic(
        live_against(state, [cause for _, cause in causes]), switch, step
    )
    if obstacle is not None:
        return obstacle
    kept = drift.kept_pairs(state, switch)
    removed = set(step.remove)
    for terminal in switch.terminals_of_step(step):
        if terminal in switch.moving:
            return f"position {terminal.position} is moving"
        holder = switch.holder.get(terminal)
        if holder is not None and (holder not in removed or holder in kept):
            return f"position {terminal.position} has been taken by {holder.ingress}->{holder.egress}"
    return _protected(state, now, switch, step, causes)


def _gone(state: CoreState, switch: SwitchState, step: Step) -> str | None:
    """A pair to be removed that is not there any more, or may be in use after a restart."""
    for pair in step.remove:
        if pair not in switch.matching:
            return f"{pair.ingress}->{pair.egress} is no longer there"
        for terminal in switch.switch.terminals_of(pair):
            if terminal in state.graced:
                return in_grace(terminal).detail
    return None


def _closed(state: CoreState, step: Step) -> str | None:
    """A broken port of what the step makes, or an operator who does not want it."""
    circuits = (state.fabric.circuit_of(step.switch, pair) for pair in step.add)
    because = state.bar_against(circuit for circuit in circuits if circuit is not None)
    return because.detail if because is not None else None


def _traffic(live: Mapping[Terminal, Circuit], switch: SwitchState, step: Step) -> str | None:
    """A live circuit that the step would take down or block."""
    for pairs, ours in ((step.remove, False), (step.add, True)):
        for pair in pairs:
            for terminal in switch.switch.terminals_of(pair):
                held = live.get(terminal)
                if held is not None and (pair in held.cross_connects) is not ours:
                    return (
                        f"{_name(pair)} carries traffic now"
                        if not ours
                        else (f"position {terminal.position} carries traffic of {held.id} now")
                    )
    return None


def _protected(
    state: CoreState,
    now: float,
    switch: SwitchState,
    step: Step,
    causes: list[tuple[JobCore | None, Cause]],
) -> str | None:
    """Whether a removed pair is up for a complete intent ordered before every cause of its removal."""
    for job in state.active.values():
        ordered = in_order(job.complete.values(), now, state.settings, state.is_up)
        position = {id(intent): at for at, intent in enumerate(ordered)}
        for pair in step.remove:
            terminals = set(switch.switch.terminals_of(pair))
            first_cause = min(
                (
                    0 if isinstance(cause, Lost) else position.get(id(cause), len(ordered))
                    for owner, cause in causes
                    if owner is job and _needs(cause, terminals)
                ),
                default=len(ordered),
            )
            for intent in ordered[:first_cause]:
                if intent.yields or state.bar_against(intent.connection.circuits) is not None:
                    continue  # planning keeps nothing for it either
                for circuit in intent.connection.circuits:
                    if circuit.switch == step.switch and pair in circuit.cross_connects:
                        return f"{_name(pair)} is needed by {intent.key}, which goes first"
    return None


def _needs(cause: Cause, terminals: Iterable[Terminal]) -> bool:
    """Whether a cause wants any of these positions, on whichever side."""
    positions = {(t.switch, t.position) for t in terminals}
    return any((t.switch, t.position) in positions for c in circuits_of(cause) for t in c.terminals)


def _name(pair: CrossConnect) -> str:
    return f"{pair.ingress}->{pair.egress}"
