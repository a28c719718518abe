"""What `opus get` and `opus describe` know of each kind of thing: its route, its name, its columns."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.output import Column, cell_text, columns

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. `key` is the field that names an item; `of_job` kinds are listed for one job at a time.

    `single`: the API has a route for one item, `<kind>/<name>`; else it is picked out of the list.
    """

    name: str
    one: str
    key: str
    columns: tuple[Column, ...]
    single: bool = False
    of_job: bool = False
    by_job: bool = False  # the list takes a job, and does without


def stream_text(item: Item) -> str:
    """An operation's name as people read it: connection, direction where it is a message, number."""
    name = str(item.get("connection"))
    if item.get("source") is not None:
        name += f"[{item['source']}>{item.get('destination')}]"
    length = item.get("length") or 1
    last = f"..{item['n'] + length - 1}" if length > 1 else ""
    return f"{name}#{item.get('n')}{last}"


def ranks_text(ranks: list[int] | None) -> str:
    """Ranks, neighbours joined: 0-3, 8."""
    spans: list[list[int]] = []
    for rank in ranks or []:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def pairs_text(pairs: list[Item] | None) -> str:
    """Cross-connects as switch operators write them."""
    return ", ".join(f"{pair['ingress']}->{pair['egress']}" for pair in pairs or [])


def reason_text(item: Item) -> str:
    """Why something waits, in the controller's own words."""
    reason = item.get("reason") or {}
    return f"{reason.get('code')}: {reason.get('detail')}" if reason else ""


def _simulation_text(item: Item) -> str:
    """What was asked for, as `replay 10 ms on-demand peer`; `sweep` for ranges."""
    replay = item.get("replay")
    if replay is None:
        return "sweep"
    return f"replay {replay['delay_ms']:g} ms {replay['mode']} {replay['semantics']}"


def _progress_text(item: Item) -> str:
    progress = item.get("progress") or {}
    return f"{progress.get('phase')} {progress.get('done')}/{progress.get('points')}"


def _flags(*names: str) -> Callable[[Item], str]:
    return lambda item: ", ".join(name for name in names if item.get(name))


def _count(name: str) -> Callable[[Item], int]:
    return lambda item: len(item.get(name) or ())


def _change_text(item: Item) -> str:
    """What a plan is for, as `drain h0:0:1` or `circuit h0:0:0 h3:0:0`."""
    change = item.get("change") or {}
    named = (change.get(name) for name in ("port", "a", "b", "circuit", "job"))
    return " ".join(str(word) for word in (change.get("kind"), *named) if word is not None)


def _event_text(item: Item) -> str:
    about = {"rail": item.get("rail"), "switch": item.get("switch"), **(item.get("data") or {})}
    return " ".join(f"{name}={cell_text(value)}" for name, value in about.items() if value is not None)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "switches",
            "switch",
            "name",
            columns(
                name="name",
                driver="driver",
                size="size",
                generation="generation",
                cross_connects=_count("matching"),
                steps=_count("steps"),
                foreign=_count("foreign"),
                contended=_count("contended"),
                reason=reason_text,
            ),
            single=True,
        ),
        Kind(
            "rails",
            "rail",
            "name",
            columns(
                name="name",
                switch="switch",
                slots="slots",
                circuits=_count("observed"),
                desired=_count("desired"),
                moving="moving",
                topology="topology",
                drift="drift",
                foreign=_count("foreign"),
                stalled=_count("stalled"),
                reason=reason_text,
            ),
            single=True,
        ),
        Kind(
            "ports",
            "port",
            "port",
            columns(
                port="port",
                rail="rail",
                switch="switch",
                position="position",
                job="job",
                rank="rank",
                circuit="circuit",
                state=_flags("moving", "drained", "failed"),
            ),
        ),
        Kind(
            "circuits",
            "circuit",
            "id",
            columns(id="id", rail="rail", job="job", digit="digit", state=_flags("live", "moving")),
        ),
        Kind(
            "jobs",
            "job",
            "job",
            columns(
                job="job",
                owner="owner",
                incarnation="incarnation",
                state="state",
                ranks="world_size",
                topology="topology",
                grants="grants",
                topology_changes="topology_changes",
                exposed_wait_ms="exposed_wait_ms",
                alarms=_count("alarms"),
            ),
            single=True,
        ),
        Kind(
            "groups",
            "group",
            "name",
            columns(
                name="name",
                dimension="dimension",
                domain="domain",
                ranks=lambda item: ranks_text(item.get("ranks")),
                circuits=lambda item: len((item.get("connection") or {}).get("circuits") or ()),
            ),
            of_job=True,
        ),
        Kind(
            "connections",
            "connection",
            "id",
            columns(
                id="id",
                pattern="pattern",
                ranks=lambda item: ranks_text(item.get("ranks")),
                circuits=lambda item: [circuit["id"] for circuit in item.get("circuits") or ()],
            ),
            single=True,
            of_job=True,
        ),
        Kind(
            "intents",
            "intent",
            "id",
            columns(
                id="id",
                state="state",
                first_at="first_at",
                missing=lambda item: ranks_text(item.get("missing")),
                reason=reason_text,
            ),
            by_job=True,
        ),
        Kind(
            "locks",
            "lock",
            "id",
            columns(
                id="id",
                job="job",
                rank="rank",
                operation=stream_text,
                age_ms="age_ms",
                circuits="circuits",
            ),
            by_job=True,
        ),
        Kind(
            "directives",
            "directive",
            "name",
            columns(
                kind="kind",
                name="name",
                by="by",
                since="since",
                force="force",
                done="done",
                detail="detail",
                reason=reason_text,
            ),
        ),
        Kind(
            "queue",
            "queued",
            "job",
            columns(
                position="position",
                job="job",
                owner="owner",
                ranks="world_size",
                since="since",
                reason=reason_text,
            ),
        ),
        Kind(
            "plans",
            "plan",
            "id",
            columns(
                id="id",
                change=_change_text,
                by="by",
                made_at="made_at",
                applied_at="applied_at",
                steps=_count("steps"),
                disturbed=_count("disturbed"),
                refusal=lambda item: (item.get("refusal") or {}).get("detail"),
            ),
            single=True,
        ),
        Kind(
            "steps",
            "step",
            "step",
            columns(
                step="step",
                switch="switch",
                state="state",
                remove=lambda item: pairs_text(item.get("remove")),
                add=lambda item: pairs_text(item.get("add")),
                causes="causes",
                disturbed="disturbed",
            ),
        ),
        Kind(
            "simulations",
            "simulation",
            "id",
            columns(
                id="id",
                label="label",
                what=_simulation_text,
                state="state",
                progress=_progress_text,
                created_at="created_at",
                failure=lambda item: (item.get("failure") or {}).get("detail"),
            ),
            single=True,
        ),
        Kind(
            "events",
            "event",
            "seq",
            columns(seq="seq", at="at", kind="kind", job="job", what=_event_text),
        ),
    )
}
FABRIC = "fabric"
KNOWN = (FABRIC, *KINDS)


def kind_named(name: str) -> Kind | None:
    """The kind, by its plural or singular; None for the one fabric. CliError for a name that is no kind."""
    wanted = name.lower()
    if wanted == FABRIC:
        return None
    found = KINDS.get(wanted) or next((kind for kind in KINDS.values() if kind.one == wanted), None)
    if found is None:
        near = difflib.get_close_matches(wanted, [*KNOWN, *(kind.one for kind in KINDS.values())], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise CliError(f"KIND: is {name!r}; {hint}known: {', '.join(KNOWN)}", ExitCode.USAGE)
    return found
