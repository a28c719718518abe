"""What a reading of a switch shows that no step of ours explains, and what follows from it.

Differences are reported whoever made them. A circuit that vanishes under a lock is an alarm on its job, until
it is back or nobody needs it any more. Whoever takes down what we made again and again is named, and gets
longer and longer pauses instead of a fight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from opus_sdn.intent.changes import CircuitsObserved
from opus_sdn.intent.fabric import Circuit, CrossConnect, Terminal
from opus_sdn.intent.job import JobCore, Lost
from opus_sdn.intent.model import Alarm, RankKey
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.standing import Bar
from opus_sdn.intent.state import CoreState, make_event
from opus_sdn.intent.switches import Away, Foreign, ForeignKind, Rival, Seen, SwitchState

PAIRS_TOLD_MAX = 64  # in one event; the switch's representation has all of them
RIVAL_FROM = 2  # vanishing once may be an accident
ALARMS_MAX = 16  # told to one rank; the job's representation has all of them
RIVALS_MAX = 4096  # pairs remembered on one switch: more than a switch has


def take_observation(
    state: CoreState,
    now: float,
    switch: SwitchState,
    matching: Iterable[CrossConnect],
    dark: Mapping[CrossConnect, str] | None = None,
    own: Collection[CrossConnect] = (),
) -> None:
    """What the device holds now is the truth. `own`: pairs of the step that this reading settles.

    `dark`: pairs that the device holds and that pass no light, and why.
    """
    _is_back(state, now, switch)
    matching = frozenset(matching)
    seen = switch.observe(matching, _behind_shut(state, switch, matching) | dict(dark or {}))
    if seen is None:
        return
    switch.note_light(now)
    switch.made |= seen.appeared.intersection(own)
    undone = (seen.vanished & switch.made).difference(own)
    switch.made -= seen.vanished
    _name_foreign(state, now, switch)
    strange = replace(seen, appeared=seen.appeared.difference(own), vanished=seen.vanished.difference(own))
    _tell(state, switch, strange)
    for pair in sorted(undone):
        _count_undone(state, now, switch, pair)
    _look_after_circuits(state, now, switch, seen)
    name = switch.switch.name
    for manual in state.manual.values():
        manual.seen = manual.seen or (manual.switch == name and state.is_up(manual.circuit))
    state.ledger.add(_observed(switch))
    for job in state.active.values():
        rails = [rail.name for rail in state.fabric.rails if rail.switch == name and rail.name in job.rails]
        if rails and job.occupies_ports():
            state.refresh_topology(job, rails)
    state.dirty_switches[name] = None


def take_ports(state: CoreState, switch: SwitchState, shut: Mapping[Terminal, str]) -> None:
    """The device says of these ports that no light passes, and why; all its other ports are well.

    What needs one of them waits without holding anybody up, and goes on when the port does. Comes before the
    reading of the same moment, which tells what that means for circuits.
    """
    name = switch.switch.name
    before = {terminal: bar for terminal, bar in state.shut.items() if terminal.switch == name}
    now = {}
    for terminal, why in shut.items():
        port = state.fabric.port_at(name, terminal.position)
        if port is not None:
            data: dict[str, object] = {"switch": name, "position": terminal.position, "port": str(port)}
            now[terminal] = Bar(Because(Reason.PORT_FAILED, f"port {port}: {why}", data))
    if now == before:
        return
    _tell_ports(state, name, "port.failed", [bar for at, bar in now.items() if at not in before])
    _tell_ports(state, name, "port.back", [bar for at, bar in before.items() if at not in now])
    state.shut = {t: bar for t, bar in state.shut.items() if t.switch != name} | now
    state.dirty_switches[name] = None


def _tell_ports(state: CoreState, switch: str, kind: str, bars: Iterable[Bar]) -> None:
    ports = {str(bar.because.data["port"]): bar.because.detail for bar in bars}
    if ports:
        told = [[port, why] for port, why in ports.items()]
        state.ledger.event(kind, switch=switch, ports=told[:PAIRS_TOLD_MAX], count=len(told))


def _behind_shut(
    state: CoreState, switch: SwitchState, matching: Iterable[CrossConnect]
) -> dict[CrossConnect, str]:
    """Pairs of the matching that end on a port through which no light passes."""
    if not state.shut:
        return {}
    return {
        pair: state.shut[terminal].because.detail
        for pair in matching
        for terminal in switch.switch.terminals_of(pair)
        if terminal in state.shut
    }


def went_away(state: CoreState, now: float, switch: SwitchState, detail: str) -> None:
    """The switch does not answer: nothing is planned on it until it has been read again.

    What it has shown stays known: light goes through mirrors whether or not anybody can reach their control.
    """
    if switch.away is None:
        switch.away = Away(detail, now)
        state.ledger.event("switch.away", switch=switch.switch.name, detail=detail)
        state.dirty_switches[switch.switch.name] = None


def _is_back(state: CoreState, now: float, switch: SwitchState) -> None:
    if switch.away is not None:
        name, away_s = switch.switch.name, round(now - switch.away.since, 3)
        state.ledger.event("switch.back", switch=name, away_s=away_s)
        switch.away = None
        state.dirty_switches[name] = None


def why_unusable(switch: SwitchState) -> Because | None:
    """Why nothing can be planned on a switch at all; None when it can."""
    name = switch.switch.name
    if switch.away is not None:
        detail = f"switch {name} does not answer: {switch.away.detail}"
        return Because(Reason.SWITCH_AWAY, detail, {"switch": name, "since": switch.away.since})
    if not switch.observed:
        return Because(Reason.SWITCH_AWAY, f"switch {name} has not been read yet", {"switch": name})
    return None


def adopt(state: CoreState, circuits: Iterable[Circuit]) -> None:
    """What a rank uses is ours from now on, whoever made it; not where the rail is only observed."""
    for circuit in circuits:
        switch = state.switches[circuit.switch]
        only = state.fabric.observed_only(circuit.switch)
        theirs = [p for p in circuit.cross_connects if p in switch.foreign and p.ingress not in only]
        for pair in theirs:
            del switch.foreign[pair]
            switch.made.add(pair)
        if theirs:
            state.ledger.add(_observed(switch))


def _observed(switch: SwitchState) -> CircuitsObserved:
    matching, foreign = tuple(sorted(switch.matching)), tuple(sorted(switch.foreign))
    return CircuitsObserved(switch.switch.name, switch.generation, matching, foreign)


def kept_pairs(state: CoreState, switch: SwitchState) -> frozenset[CrossConnect]:
    """Foreign pairs that are never removed: a position is not ours, or their rail is only observed."""
    only = state.fabric.observed_only(switch.switch.name)
    return frozenset(
        pair
        for pair, foreign in switch.foreign.items()
        if foreign.kind is not ForeignKind.OWN_PORTS or not only.isdisjoint(pair)
    )


def held_off(now: float, switch: SwitchState) -> dict[CrossConnect, Because]:
    """Pairs that are left alone for now, because somebody keeps taking them down."""
    name = switch.switch.name
    return {
        pair: Because(
            Reason.CONTENDED,
            f"somebody else has taken {_text(pair)} of {name} down {rival.times} times since we made it; "
            f"made again after a pause of {rival.held_until - rival.last:g} s",
            {
                "switch": name,
                "pairs": [list(pair)],
                "times": rival.times,
                "since": rival.since,
                "retry_at": rival.held_until,
            },
        )
        for pair, rival in switch.rivals.items()
        if now < rival.held_until
    }


def losses(state: CoreState, job: JobCore) -> tuple[Lost, ...]:
    """The job's alarms: circuits that it holds and that are not there. Over once nobody holds them."""
    for name, lost in list(job.lost.items()):
        if state.live_circuit.get(lost.circuit.terminals[0]) != lost.circuit:
            del job.lost[name]
    return tuple(job.lost.values())


def alarms_of(state: CoreState, job: JobCore, rank: int) -> tuple[Alarm, ...]:
    """The alarms of what this rank holds, oldest first, the first few."""
    mine = (lost for lost in losses(state, job) if rank in ranks_on(job, lost.circuit))
    return tuple(Alarm(lost.circuit.id, lost.circuit.switch, lost.since) for lost in islice(mine, ALARMS_MAX))


def ranks_on(job: JobCore, circuit: Circuit) -> list[int]:
    """Ranks that hold a run over this circuit."""
    return sorted(
        {
            rank
            for stream in job.streams.values()
            if stream.held and circuit in stream.connection.circuits
            for run in stream.held.values()
            for rank in run.holders
        }
    )


def _name_foreign(state: CoreState, now: float, switch: SwitchState) -> None:
    owned = state.fabric.positions(switch.switch.name)
    before = switch.foreign
    switch.foreign = {
        pair: before.get(pair) or Foreign(_kind(owned, pair), now)
        for pair in switch.matching
        if pair not in switch.made
    }


def _kind(owned: Collection[int], pair: CrossConnect) -> ForeignKind:
    match sum(position in owned for position in pair):
        case 2:
            return ForeignKind.OWN_PORTS
        case 1:
            return ForeignKind.MIXED
        case _:
            return ForeignKind.OUTSIDE


def _tell(state: CoreState, switch: SwitchState, seen: Seen) -> None:
    """One event for all that a reading shows and we did not do."""
    name = switch.switch.name
    told: dict[str, object] = {
        "foreign": [
            [*pair, switch.foreign[pair].kind.value] for pair in sorted(switch.foreign)[:PAIRS_TOLD_MAX]
        ],
        "foreign_count": len(switch.foreign),
        "dark": [[*pair, why] for pair, why in sorted(switch.dark.items())[:PAIRS_TOLD_MAX]],
    }
    if seen.compared:
        told |= {"appeared": _listed(seen.appeared), "vanished": _listed(seen.vanished)}
    if seen.first:
        told["cross_connects"] = len(switch.matching)
        state.ledger.add(make_event("switch.adopted", None, None, name, told))
    elif seen.appeared or seen.vanished or seen.lighter:
        state.ledger.add(make_event("switch.drifted", None, None, name, told))


def _listed(pairs: Iterable[CrossConnect]) -> list[list[int]]:
    return [list(pair) for pair in sorted(pairs)[:PAIRS_TOLD_MAX]]


def _count_undone(state: CoreState, now: float, switch: SwitchState, pair: CrossConnect) -> None:
    """A pair of ours vanished. From the second time on it is no accident, and gets a pause."""
    settings, name = state.settings, switch.switch.name
    rival = switch.rivals.get(pair)
    if rival is None or now - rival.last > settings.contend_forget_s:
        rival = switch.rivals[pair] = Rival(0, now, now)
    while len(switch.rivals) > RIVALS_MAX:
        del switch.rivals[next(iter(switch.rivals))]
    rival.times += 1
    rival.last = now
    rival.instead = tuple(
        dict.fromkeys(
            switch.holder[terminal]
            for terminal in switch.switch.terminals_of(pair)
            if terminal in switch.holder
        )
    )
    if rival.times < RIVAL_FROM:
        return
    growth = 2.0 ** min(rival.times - RIVAL_FROM, 30)
    pause_s = min(settings.contend_max_s, settings.contend_min_s * growth)
    rival.held_until = now + pause_s
    state.ledger.event(
        "switch.contended",
        switch=name,
        pairs=[list(pair)],
        instead=[list(other) for other in rival.instead],
        times=rival.times,
        since=rival.since,
        pause_s=pause_s,
    )


def _look_after_circuits(state: CoreState, now: float, switch: SwitchState, seen: Seen) -> None:
    """Raise an alarm for every live circuit that this reading misses, and end those that are over."""
    missing = [circuit for circuit in _live_in(state, switch, seen) if not switch.is_up(circuit)]
    for job in state.active.values():
        for lost in losses(state, job):
            if lost.circuit.switch == switch.switch.name and switch.is_up(lost.circuit):
                del job.lost[lost.circuit.id]
                _alarm(state, job, "circuit.restored", lost.circuit, dark_s=round(now - lost.since, 3))
        for circuit in missing:
            if circuit.id not in job.lost and circuit.terminals[0] in job.terminals:
                job.lost[circuit.id] = Lost(circuit, now)
                _alarm(state, job, "circuit.lost", circuit)


def _live_in(state: CoreState, switch: SwitchState, seen: Seen) -> list[Circuit]:
    """Live circuits that a reading may have found missing: few, unless it is the first one."""
    if seen.first:
        terminals = [terminal for terminal in state.live_circuit if terminal.switch == switch.switch.name]
    else:
        changed = (*sorted(seen.vanished), *switch.dark)
        terminals = [terminal for pair in changed for terminal in switch.switch.terminals_of(pair)]
    return list(dict.fromkeys(state.live_circuit[t] for t in terminals if t in state.live_circuit))


def _alarm(state: CoreState, job: JobCore, kind: str, circuit: Circuit, **data: object) -> None:
    ranks = ranks_on(job, circuit)
    state.ledger.event(
        kind, job, rail=circuit.rail, switch=circuit.switch, circuit=circuit.id, ranks=ranks, **data
    )
    for rank in ranks:  # whoever polls is told now
        state.ledger.wake_on_commit(RankKey(job.spec.name, job.incarnation, rank))


def _text(pair: CrossConnect) -> str:
    return f"{pair.ingress}->{pair.egress}"
