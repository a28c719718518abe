"""Another fabric while jobs run: in force at once where no port in use changes, refused where one does."""

from __future__ import annotations

from collections.abc import Mapping

from opus_sdn.intent import directives
from opus_sdn.intent.changes import StepMoved, StepState
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Fabric, Port
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.state import CoreState, step_event
from opus_sdn.intent.switches import SwitchState


def why_not(state: CoreState, fabric: Fabric) -> CoreError | None:
    """The first port in use that another fabric does not have, or has elsewhere. None: it can come."""
    for job in state.active.values():
        for rank, place in enumerate(job.spec.placement):
            for index in range(state.fabric.ports_per_gpu):
                found = changed(state.fabric, fabric, Port(place.host, place.slot, index))
                if found is not None:
                    return CoreError(
                        Problem.PORT_IN_USE,
                        f"job {job.spec.name} runs, and its rank {rank} uses port {place.host}:{place.slot}:"
                        f"{index}, {found}; end the job first, or leave what it uses as it is",
                        job=job.spec.name,
                        rank=rank,
                        port=f"{place.host}:{place.slot}:{index}",
                    )
    for manual in state.manual.values():
        for port in (manual.circuit.a, manual.circuit.b):
            found = changed(state.fabric, fabric, port)
            if found is not None:
                return CoreError(
                    Problem.PORT_IN_USE,
                    f"{manual.told.by} keeps the circuit {manual.circuit.id} up on port {port}, {found}; "
                    "take that back first, or leave what it uses as it is",
                    circuit=manual.circuit.id,
                    port=str(port),
                )
    return None


def changed(old: Fabric, new: Fabric, port: Port) -> str | None:
    """What becomes of a port; None when it stays as it is."""
    before = old.attachment(port)
    try:
        after = new.attachment(port)
    except KeyError:
        return "which would be gone"
    if after != before:
        was, would = (f"rail {at.rail}, {at.switch}:{at.position}" for at in (before, after))
        return f"which would move from {was} to {would}"
    if (new.circuit_kind, new.ports_per_gpu) != (old.circuit_kind, old.ports_per_gpu):
        return "whose circuits would be of another kind"
    if new.switch(after.switch) != old.switch(before.switch):
        return f"whose switch {after.switch} would be declared otherwise"
    return None


def change(state: CoreState, fabric: Fabric, generations: Mapping[str, int]) -> tuple[JobCore, ...]:
    """Go on with a fabric that `why_not` has nothing against. Answers the settled jobs, which are forgotten.

    `generations`: of every switch that there ever was. No step of any switch may be on its device.
    """
    stays = {at.port for at in set(fabric.attachments).intersection(state.fabric.attachments)}
    state.links = {port: link for port, link in state.links.items() if port in stays}
    state.fabric = fabric
    before = state.switches
    state.switches = {}
    for switch in fabric.switches:
        known = before.get(switch.name)
        if known is not None and known.switch == switch:
            state.switches[switch.name] = before.pop(switch.name)
            continue
        state.switches[switch.name] = SwitchState(switch, generations.get(switch.name, 0))
        if known is not None:
            state.switches[switch.name].remember(known.matching, known.foreign)
    for gone in before.values():
        _give_up_steps(state, gone)
    settled = tuple(job for name, job in state.jobs.items() if name not in state.active)
    for job in settled:
        del state.jobs[job.spec.name]
    for job in state.active.values():
        job.fabric = fabric
    directives.fit(state)
    state.dirty_switches = dict.fromkeys(state.switches)
    return settled


def _give_up_steps(state: CoreState, switch: SwitchState) -> None:
    """What was planned on a switch that is gone, or is another one now."""
    for progress in switch.progress.values():
        step, detail = progress.step, f"switch {switch.switch.name} is not in the fabric as it was"
        state.ledger.add(StepMoved(step.id, step.switch, StepState.DROPPED, detail))
        state.ledger.add(step_event("step.dropped", step, detail=detail))
