"""The links of NIC ports, as their hosts see them: light through a switch is not yet a link.

Where a rail's grants wait for carrier, a circuit is usable when both its ports have reported their link up
since the light came; or before it, if nobody has reported it down for so long that it cannot have gone.
Measured on every rail whose ports are reported, for the transport must outlast it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Circuit, Port
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import JobSpec
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.state import CoreState, Link, LinkUp


def take_links(
    state: CoreState, now: float, job: JobCore, rank: int, reports: Mapping[int, tuple[bool, str]]
) -> None:
    """A rank's host says of its ports, by index, whether their link is up, and in which words.

    Raises CoreError, and takes nothing, when the GPU has no port of an index.
    """
    place = job.spec.placement[rank]
    for index in reports:
        if index >= state.fabric.ports_per_gpu:
            raise CoreError(
                Problem.INVALID_REQUEST,
                f"ports: index {index} of rank {rank}; a GPU of this fabric has ports 0 to "
                f"{state.fabric.ports_per_gpu - 1}",
                field="ports",
                rank=rank,
            )
    for index, (up, detail) in reports.items():
        port = Port(place.host, place.slot, index)
        before = state.links.get(port)
        changed = before is None or before.up is not up
        state.links[port] = Link(up, now if changed or before is None else before.since, detail)
        if changed and up:
            _measure(state, port)
    state.touch(job)


def why_no_carrier(state: CoreState, now: float, job: JobCore, circuits: Iterable[Circuit]) -> Because | None:
    """Why circuits that are connected and lit cannot be used yet; None when they can."""
    missing: list[Port] = []
    details: list[str] = []
    for circuit in circuits:
        if not state.fabric.awaits_carrier(circuit.rail):
            continue
        lit_at = _lit_at(state, now, circuit)
        settled_at = lit_at + state.settings.carrier_drop_s
        for port in (circuit.a, circuit.b):
            link = state.links.get(port)
            if link is not None and link.up and (link.since >= lit_at or now >= settled_at):
                continue
            missing.append(port)
            if link is None:
                details.append(f"{port}: nothing was reported; set OPUS_LINKS on its rank")
            elif link.up:
                details.append(f"{port}: up since before the light")
                job.look_at = min(settled_at, job.look_at if job.look_at is not None else settled_at)
            else:
                details.append(f"{port}: {link.detail}")
    if not missing:
        return None
    return Because(
        Reason.CARRIER,
        f"connected and lit, but without a link: {'; '.join(details[:8])}",
        {"ports": [str(port) for port in missing]},
    )


def check_budget(state: CoreState, spec: JobSpec, rails: Iterable[str]) -> list[dict[str, object]]:
    """Rails whose links have taken longer to come up than the job's transport waits for a dark path.

    Raises CoreError `retry-budget` for a rail whose grants do not wait for carrier: messages would be sent
    into the dark. For the others it is a warning.
    """
    if spec.retry_budget is None:
        return []
    budget_s = spec.retry_budget.seconds
    warnings: list[dict[str, object]] = []
    for rail in rails:
        measured = state.link_up.get(rail)
        if measured is None or budget_s >= measured.worst_s:
            continue
        figures: dict[str, object] = {
            "rail": rail,
            "retry_budget_s": round(budget_s, 3),
            "link_up_s": round(measured.worst_s, 3),
        }
        if not state.fabric.awaits_carrier(rail):
            raise CoreError(
                Problem.RETRY_BUDGET,
                f"retry_budget: timeout {spec.retry_budget.timeout} and retry {spec.retry_budget.retry} "
                f"outlast a dark path of {budget_s:.3g} s, but links of rail {rail} took up to "
                f"{measured.worst_s:.3g} s to come up, and its grants do not wait for them; "
                "raise the timeout, or write carrier: required for the rail",
                **figures,
            )
        warnings.append(figures)
    return warnings


def tick(state: CoreState, now: float) -> None:
    """Look again at jobs whose links count as settled by now."""
    for job in state.active.values():
        if job.look_at is not None and now >= job.look_at:
            job.look_at = None
            state.touch(job)


def next_deadline(state: CoreState) -> float | None:
    """When `tick` next has something to decide; None when nothing is due at any time."""
    moments = (job.look_at for job in state.active.values())
    return min((moment for moment in moments if moment is not None), default=None)


def _lit_at(state: CoreState, now: float, circuit: Circuit) -> float:
    """When the last cross-connect of a circuit was seen with light for the first time."""
    lit_at = state.switches[circuit.switch].lit_at
    return max(lit_at.get(pair, now) for pair in circuit.cross_connects)


def _measure(state: CoreState, port: Port) -> None:
    """A link came up: if it was the second one of a circuit, note how long that took after the light."""
    at = state.fabric.attachment(port)
    switch = state.switches[at.switch]
    terminals = (t for t in state.fabric.terminals_of(port.host, port.slot) if t.position == at.position)
    pair = next((switch.holder[t] for t in terminals if t in switch.holder), None)
    circuit = None if pair is None else state.fabric.circuit_of(at.switch, pair)
    if circuit is None or not switch.is_up(circuit):
        return
    links = [state.links.get(end) for end in (circuit.a, circuit.b)]
    lit_at = max(switch.lit_at[pair] for pair in circuit.cross_connects)
    sinces = [link.since for link in links if link is not None and link.up]
    if len(sinces) == len(links) and max(sinces) > lit_at:
        state.link_up.setdefault(circuit.rail, LinkUp()).note(max(sinces) - lit_at)
