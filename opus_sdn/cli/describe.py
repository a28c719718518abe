"""`opus describe`: one thing and what hangs together with it, for people: who waits for whom, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from opus_sdn.cli.controller import DEFAULT_CONTROLLER as HERE
from opus_sdn.cli.controller import (
    CaFileOption,
    Controller,
    ControllerOption,
    CurlOption,
    TokenFileOption,
)
from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.get import FormatOption, JobOption, KindArgument, everything, one, route_of
from opus_sdn.cli.kinds import (
    KINDS,
    Item,
    kind_named,
    pairs_text,
    ranks_text,
    reason_text,
    stream_text,
)
from opus_sdn.cli.output import Format, columns, message, print_facts, print_json, print_line, print_section

RANKS_SHOWN = 64  # of one job; `opus get job NAME -o json` has them all

RANK_COLUMNS = columns(
    rank="rank",
    host="host",
    slot="slot",
    stage="stage",
    grants="grants",
    open="open",
    barrier_wait_ms="barrier_wait_ms",
    exposed_wait_ms="exposed_wait_ms",
    last_heard="last_heard",
    state=lambda rank: "stopped" if rank.get("stopped") else "",
)
TRANSITION_COLUMNS = columns(
    before="before",
    after="after",
    grants="grants",
    changes="changes",
    hits="hits",
    exposed_wait_ms="exposed_wait_ms",
    exposed_change_ms="exposed_change_ms",
    hidden_change_ms="hidden_change_ms",
)
CUT_COLUMNS = columns(
    connection="connection",
    n="n",
    length="length",
    decided=lambda cut: "decided" if cut.get("decided") else "asked",
    issued=lambda cut: ", ".join(f"{rank}: {said}" for rank, said in (cut.get("issued") or {}).items()),
    holders=lambda cut: ranks_text(cut.get("holders")),
)
WAITING_COLUMNS = columns(
    operation=stream_text,
    state="state",
    arrived=lambda item: ranks_text(item.get("arrived")),
    missing=lambda item: ranks_text(item.get("missing")),
    why=reason_text,
)
ALARM_COLUMNS = columns(
    circuit="circuit", switch="switch", since="since", ranks=lambda alarm: ranks_text(alarm.get("ranks"))
)
FOREIGN_COLUMNS = columns(pair=lambda pair: pairs_text([pair]), kind="kind", since="since")
CONTENDED_COLUMNS = columns(
    pair=lambda pair: pairs_text([pair]),
    times="times",
    since="since",
    instead=lambda pair: pairs_text(pair.get("instead")),
    held_until="held_until",
)
POINT_COLUMNS = columns(
    semantics="semantics",
    mode="mode",
    delay_ms="delay_ms",
    latency_ns="latency_ns",
    bandwidth_gbps="bandwidth_gbps",
    step_ms=lambda point: "cannot finish" if point.get("finish_ns") is None else point.get("step_ms"),
    exposed_ms=lambda point: point["exposed_delay_ns"] / 1e6 if "exposed_delay_ns" in point else None,
    reconfigurations=lambda point: len(point["reconfigurations"]) if "reconfigurations" in point else None,
)
CYCLE_COLUMNS = columns(
    rank="rank", waits_for="waits_for", operation="operation", connection="connection", why="reason"
)
DARK_COLUMNS = columns(pair=lambda pair: pairs_text([pair]), detail="detail")
Place = tuple[str, int]  # a switch's name and a position on it

HELD_COLUMNS = columns(rank="rank", operation=stream_text, age_ms="age_ms", circuits="circuits")


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(describe)


def describe(
    kind: KindArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which one, as `opus get KIND` names it.")],
    job: JobOption = None,
    form: FormatOption = Format.TABLE,
    curl: CurlOption = False,
    controller: ControllerOption = HERE,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show one thing with what it waits for, what waits for it, and why."""
    wanted = kind_named(kind)
    if wanted is None or wanted.name == "events":
        remedy = "opus get fabric" if wanted is None else "opus events"
        raise CliError(f"KIND: is {kind!r}, which has no names to describe; use `{remedy}`", ExitCode.USAGE)
    with Controller(controller, token_file, ca_file) as asked:
        if curl:
            print_line(asked.curl(*route_of(wanted, name, job)))
            return
        item = one(asked, wanted, name, job)
        if form is Format.JSON:
            print_json(item)
        else:
            _DESCRIBED.get(wanted.name, _anything)(asked, item)


def _job(asked: Controller, job: Item) -> None:
    name = job["job"]
    failure = job.get("failure")
    print_facts(
        {
            "Job": name,
            "Owner": job.get("owner"),
            "State": job.get("state"),
            "Failure": f"{failure['type'].rpartition(':')[2]}: {failure['detail']}" if failure else None,
            "Incarnation": job.get("incarnation"),
            "Started": job.get("started_at"),
            "Ranks": job.get("world_size"),
            "Dimensions": " x ".join(f"{d['name']} {d['size']}" for d in job.get("dimensions") or ()),
            "Port choice": job.get("port_choice"),
            "World group": job.get("world_group"),
            "Deadline": f"{job.get('deadline_s')} s from the first arrival of an operation",
            "Topology": job.get("topology"),
            "Topology changes": job.get("topology_changes"),
            "Grants": job.get("grants"),
            "Operations": f"{job.get('operations')} granted, {job.get('runs_cut')} runs cut",
            "Exposed wait": f"{job.get('exposed_wait_ms')} ms over all grants",
        }
    )
    if job.get("alarms"):
        print_section("Alarms: circuits lost under a lock", job["alarms"], ALARM_COLUMNS)
    if job.get("transitions"):
        print_section("Transitions between dimensions", job["transitions"], TRANSITION_COLUMNS)
    if job.get("cuts"):
        print_section("Runs that a member has left", job["cuts"], CUT_COLUMNS)
    ranks = job.get("ranks") or []
    print_section("Ranks", ranks[:RANKS_SHOWN], RANK_COLUMNS)
    if len(ranks) > RANKS_SHOWN:
        message(f"{len(ranks) - RANKS_SHOWN} more ranks: `opus get job {name} -o json` has them all")
    _waiting(asked, "Waiting", _all, name)
    _held(asked, "Held", _all, name)


def _link_up(rail: Item) -> str | None:
    measured = rail.get("link_up")
    if not measured:
        return None
    return f"{measured['last_s']:.3g} s, at worst {measured['worst_s']:.3g} s ({measured['times']} seen)"


def _rail(asked: Controller, rail: Item) -> None:
    print_facts(
        {
            "Rail": rail["name"],
            "Switch": rail.get("switch"),
            "GPU slots": rail.get("slots"),
            "Generation": rail.get("generation"),
            "Topology": rail.get("topology"),
            "Cross-connects": pairs_text(rail.get("matching")),
            "Moving": rail.get("moving"),
            "Drift policy": rail.get("drift"),
            "Carrier": rail.get("carrier"),
            "Link-up": _link_up(rail),
            "Held up": reason_text(rail) or None,
            "Stalled": rail.get("stalled"),
        }
    )
    if rail.get("foreign"):
        print_section("Foreign", rail["foreign"], FOREIGN_COLUMNS)
    print_section("Observed", rail.get("observed") or [], KINDS["circuits"].columns)
    desired = [{"id": circuit} for circuit in rail.get("desired") or ()]
    print_section("Desired", desired, columns(id="id"))
    circuits = {circuit["id"] for circuit in rail.get("observed") or ()}
    _held(asked, "Held", lambda lock: bool(circuits & set(lock.get("circuits") or ())))


def _switch(_: Controller, switch: Item) -> None:
    print_facts(
        {
            "Switch": switch["name"],
            "Driver": switch.get("driver"),
            "Positions": switch.get("size"),
            "Sided": switch.get("sided"),
            "Generation": switch.get("generation"),
            "Cross-connects": pairs_text(switch.get("matching")),
            "Held up": reason_text(switch) or None,
            "Stalled": switch.get("stalled"),
        }
    )
    print_section("Steps", switch.get("steps") or [], KINDS["steps"].columns)
    for title, name, shape in (
        ("Foreign", "foreign", FOREIGN_COLUMNS),
        ("Taken down by somebody else", "contended", CONTENDED_COLUMNS),
        ("Without light", "dark", DARK_COLUMNS),
    ):
        if switch.get(name):
            print_section(title, switch[name], shape)


def _lock(asked: Controller, lock: Item) -> None:
    print_facts(
        {
            "Lock": lock["id"],
            "Held by": f"rank {lock.get('rank')} of job {lock.get('job')}, "
            f"incarnation {lock.get('incarnation')}",
            "Operation": stream_text(lock),
            "Grant": f"number {lock.get('no')} of the rank",
            "Since": lock.get("since"),
            "For": f"{lock.get('age_ms')} ms",
            "Circuits": lock.get("circuits"),
        }
    )
    circuits = set(lock.get("circuits") or ())
    places = {place for place, circuit in _circuit_at(asked).items() if circuit in circuits}
    _waiting(asked, "Waiting for it", lambda intent: _blocked_at(intent) in places)


def _intent(asked: Controller, intent: Item) -> None:
    reason = intent.get("reason") or {}
    print_facts(
        {
            "Intent": intent["id"],
            "Job": f"{intent.get('job')}, incarnation {intent.get('incarnation')}",
            "Operation": stream_text(intent),
            "State": intent.get("state"),
            "First arrival": intent.get("first_at"),
            "All arrived": intent.get("complete_at"),
            "Arrived": ranks_text(intent.get("arrived")),
            "Missing": ranks_text(intent.get("missing")),
            "Overtaken": f"{intent.get('overtaken')} times",
            "Waits because": f"{reason.get('code')}: {reason.get('detail')}" if reason else None,
            **{f"  {name}": value for name, value in (reason.get("data") or {}).items()},
        }
    )
    blocked_at = _blocked_at(intent)
    if blocked_at is not None:
        circuit = _circuit_at(asked).get(blocked_at)
        _held(asked, "Held in its way", lambda lock: circuit in (lock.get("circuits") or ()))


def _simulation(_: Controller, simulation: Item) -> None:
    result = simulation.get("result") or []
    points = [result] if isinstance(result, dict) else result
    shown = {column.title.capitalize(): column.cell(simulation) for column in KINDS["simulations"].columns}
    print_facts(
        {
            **shown,
            "Inputs": simulation.get("inputs"),
            "Ranges": simulation.get("sweep"),
            "Started at": simulation.get("started_at"),
            "Ended at": simulation.get("ended_at"),
        }
    )
    if points:
        print_section("Result", points, POINT_COLUMNS)
    for point in points:
        if point.get("cycle"):
            print_section(
                f"Cannot finish: {point['semantics']} {point['mode']} {point['delay_ms']:g} ms",
                point["cycle"],
                CYCLE_COLUMNS,
            )


def _anything(_: Controller, item: Item) -> None:
    print_facts({name.replace("_", " ").capitalize(): value for name, value in item.items()})


def _waiting(asked: Controller, title: str, wanted: Callable[[Item], bool], job: str | None = None) -> None:
    print_section(title, _found(asked, "intents", wanted, job), WAITING_COLUMNS)


def _held(asked: Controller, title: str, wanted: Callable[[Item], bool], job: str | None = None) -> None:
    print_section(title, _found(asked, "locks", wanted, job), HELD_COLUMNS)


def _found(
    asked: Controller, kind: str, wanted: Callable[[Item], bool], job: str | None = None
) -> list[Item]:
    path, params = route_of(KINDS[kind], None, job)
    return [item for item in everything(asked, KINDS[kind], path, params)[kind] if wanted(item)]


def _all(_: Item) -> bool:
    return True


def _blocked_at(intent: Item) -> Place | None:
    """The switch and position that an intent waits for, where its reason names one."""
    data = (intent.get("reason") or {}).get("data") or {}
    return (data["switch"], data["position"]) if {"switch", "position"} <= set(data) else None


def _circuit_at(asked: Controller) -> dict[Place, str | None]:
    """Which circuit is up at each position of each switch."""
    ports = _found(asked, "ports", _all)
    return {(port["switch"], port["position"]): port["circuit"] for port in ports}


_DESCRIBED: dict[str, Callable[[Controller, Item], None]] = {
    "jobs": _job,
    "rails": _rail,
    "switches": _switch,
    "locks": _lock,
    "intents": _intent,
    "simulations": _simulation,
}
