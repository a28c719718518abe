"""What is checked before anything of a request takes effect, so that a refusal leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Fabric
from opus_sdn.intent.job import JobCore, check_participant
from opus_sdn.intent.model import Arrival, GroupSpec, JobSpec, RankNews, Session, Stream, StreamMark
from opus_sdn.intent.ranks import Layout, check_dimensions
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.topology_id import circuits_of

SHOWN_MAX = 20  # names listed in one message


def check_job(state: CoreState, spec: JobSpec) -> None:
    """A job's ports exist, and its dimensions fit."""
    if not spec.placement:
        raise CoreError(
            Problem.INVALID_REQUEST, "placement is empty; a job has at least one rank", field="placement"
        )
    check_dimensions(spec)
    check_places(state.fabric, spec)
    if spec.initial_topology is not None:
        layout = Layout(spec.dimensions, len(spec.placement))
        circuits_of(state.fabric, spec, layout, spec.initial_topology)


def check_places(fabric: Fabric, spec: JobSpec) -> None:
    """Every rank is on a GPU slot of the fabric, and on its own."""
    at: dict[tuple[str, int], int] = {}
    for rank, place in enumerate(spec.placement):
        if not fabric.has_gpu(place.host, place.slot):
            if place.host in fabric.hosts:
                known = f"host {place.host} has GPU slots 0 to {fabric.gpus_per_host - 1}"
            else:
                more = "" if len(fabric.hosts) <= SHOWN_MAX else f" and {len(fabric.hosts) - SHOWN_MAX} more"
                known = f"the fabric has hosts {', '.join(fabric.hosts[:SHOWN_MAX])}{more}"
            raise CoreError(
                Problem.UNKNOWN_PLACE,
                f"rank {rank} is placed on host {place.host!r} slot {place.slot}, which is not "
                f"there: {known}",
                rank=rank,
                host=place.host,
                slot=place.slot,
            )
        first = at.setdefault((place.host, place.slot), rank)
        if first != rank:
            raise CoreError(
                Problem.PORTS_OVERLAP,
                f"ranks {first} and {rank} are both placed on host {place.host} slot {place.slot}; "
                "each rank needs its own GPU slot",
                ranks=[first, rank],
                host=place.host,
                slot=place.slot,
            )


def check_group(job: JobCore, spec: GroupSpec) -> None:
    """A group's ranks are ranks of the job, each once, and its name means one rank list."""
    if not spec.ranks:
        raise CoreError(
            Problem.INVALID_REQUEST, f"group {spec.name} has no ranks; it needs at least one", field="ranks"
        )
    seen: set[int] = set()
    for rank in spec.ranks:
        check_rank(job, rank)
        if rank in seen:
            raise CoreError(
                Problem.INVALID_REQUEST,
                f"group {spec.name} lists rank {rank} twice; each member is listed once, in group order",
                field="ranks",
                rank=rank,
            )
        seen.add(rank)
    known = job.groups.get(spec.name)
    if known is not None and (known.spec.ranks, known.spec.ordinal) != (spec.ranks, spec.ordinal):
        raise CoreError(
            Problem.GROUP_CONFLICT,
            f"group {spec.name} is known with ranks {list(known.spec.ranks)[:SHOWN_MAX]} and ordinal "
            f"{known.spec.ordinal}, not {list(spec.ranks)[:SHOWN_MAX]} and {spec.ordinal}; "
            "another group needs another name",
            group=spec.name,
        )


def check_group_count(job: JobCore, groups: Sequence[GroupSpec]) -> None:
    """The job's groups stay within their limit, and one request does not contradict itself."""
    new = {group.name: group for group in groups if group.name not in job.groups}
    if len(job.groups) + len(new) > job.settings.groups_max:
        raise CoreError(
            Problem.LIMIT_EXCEEDED,
            f"job {job.spec.name} would have {len(job.groups) + len(new)} groups; the limit is "
            f"{job.settings.groups_max}",
            limit=job.settings.groups_max,
        )
    for group in groups:
        twin = new.get(group.name)
        if twin is not None and (twin.ranks, twin.ordinal) != (group.ranks, group.ordinal):
            raise CoreError(
                Problem.GROUP_CONFLICT,
                f"the request names group {group.name} twice with different ranks",
                group=group.name,
            )


def check_rank(job: JobCore, rank: int) -> None:
    """The rank is one of the job's."""
    if not 0 <= rank < len(job.ranks):
        raise CoreError(
            Problem.UNKNOWN_RANK,
            f"rank {rank} is not a rank of job {job.spec.name}, which has ranks 0 to {len(job.ranks) - 1}",
            rank=rank,
        )


def check_news(job: JobCore, news: Sequence[RankNews]) -> None:
    """Everything about a request that does not depend on what other ranks have said."""
    seen: set[int] = set()
    pairs: set[str] = set()
    for item in news:
        check_rank(job, item.rank)
        if item.rank in seen:
            raise CoreError(
                Problem.INVALID_REQUEST,
                f"the request names rank {item.rank} twice; put all its news in one entry",
                field="ranks",
                rank=item.rank,
            )
        seen.add(item.rank)
        _check_rank_news(job, item, pairs)
    if pairs and len(job.connections) + len(pairs) > job.settings.connections_max:
        raise CoreError(
            Problem.LIMIT_EXCEEDED,
            f"job {job.spec.name} would have {len(job.connections) + len(pairs)} connections; the limit is "
            f"{job.settings.connections_max}",
            limit=job.settings.connections_max,
        )


def _check_rank_news(job: JobCore, item: RankNews, pairs: set[str]) -> None:
    """One rank's part; connections that the job does not have yet are added to `pairs`."""
    state = job.ranks[item.rank]
    if state.stopped:
        if item.arrivals and job.running:
            raise CoreError(
                Problem.UNKNOWN_RANK,
                f"rank {item.rank} has left job {job.spec.name}; it starts again with a new incarnation",
                rank=item.rank,
            )
        return  # it may hear the job's cause, or once more that it has left; nothing is taken from it
    # Of the others only they themselves know what they were granted; of a job that had failed, nobody asks.
    known = item.rank not in job.awaited and (job.running or not job.recovered)
    if item.last_grant > state.issued and known:
        raise CoreError(
            Problem.INVALID_REQUEST,
            f"rank {item.rank} acknowledges grant {item.last_grant}, but has been given {state.issued}",
            field="last_grant",
            rank=item.rank,
        )
    if item.session is not None:
        check_session(job, item.rank, item.session, pairs, first=not known)
    arrivals = open_in(item)
    asked = (arrival.stream for arrival in arrivals)
    for named in [*asked, *(hint.stream for hint in item.hints), *(cut.stream for cut in item.cuts)]:
        connection = check_participant(job, named, item.rank)
        if connection.id not in job.connections:
            pairs.add(connection.id)
    fresh = 0
    for arrival in arrivals:
        stream = job.streams.get(arrival.stream)
        fresh += stream is None or stream.standing(item.rank, arrival.n) is None
    # A grant stays in memory until it is acknowledged, so it counts until then.
    untold = min(len(state.unacknowledged), max(0, state.issued - item.last_grant))
    outstanding = len(state.open) + untold + fresh
    if fresh and outstanding > job.settings.open_arrivals_max:
        raise CoreError(
            Problem.LIMIT_EXCEEDED,
            f"rank {item.rank} would have {outstanding} open arrivals and grants not acknowledged by "
            f"last_grant; the limit is {job.settings.open_arrivals_max}",
            rank=item.rank,
            limit=job.settings.open_arrivals_max,
        )
    _check_releases(job, item)


def open_in(item: RankNews) -> tuple[Arrival, ...]:
    """All that the rank has arrived at: what its session says is open, and its news."""
    return (*item.session.open, *item.arrivals) if item.session is not None else item.arrivals


def check_session(job: JobCore, rank: int, session: Session, pairs: set[str], first: bool) -> None:
    """A session is of one piece: the held runs fill the marks, and the open arrivals follow on them.

    The `first` one that a rank says to this start may prove more than is known here, up to a limit.
    """
    marks = _check_marks(job, rank, session, pairs, first)
    through = {stream: mark.released for stream, mark in marks.items()}
    for grant in sorted(session.held, key=lambda grant: grant.n):
        expected = through.get(grant.stream)
        if expected != grant.n:
            raise _broken(
                rank,
                f"holds operation {grant.n} of {grant.stream}, where its marks and runs ask for {expected}",
                "held",
            )
        through[grant.stream] = grant.n + grant.length
        if not 0 < grant.no <= session.last_grant:
            raise _broken(
                rank, f"holds grant {grant.no}, but its last one is {session.last_grant}", "last_grant"
            )
    for stream, mark in marks.items():
        if through[stream] != mark.granted:
            raise _broken(
                rank,
                f"was granted all of {stream} below {mark.granted}, but its runs end at {through[stream]}",
                "marks",
            )
    numbers = [grant.no for grant in session.held]
    if len(set(numbers)) != len(numbers):
        raise _broken(rank, "holds two runs under one grant number", "held")
    for arrival in session.open:
        check_participant(job, arrival.stream, rank)
        expected = through.get(arrival.stream, 0)
        if arrival.n != expected:
            raise _broken(
                rank,
                f"has arrived at operation {arrival.n} of {arrival.stream}, where {expected} is next",
                "open",
            )
        through[arrival.stream] = arrival.n + 1


def _check_marks(
    job: JobCore, rank: int, session: Session, pairs: set[str], first: bool
) -> dict[Stream, StreamMark]:
    marks: dict[Stream, StreamMark] = {}
    proven = 0
    for mark in session.marks:
        connection = check_participant(job, mark.stream, rank)
        if connection.id not in job.connections:
            pairs.add(connection.id)
        if mark.stream in marks:
            raise _broken(rank, f"names its marks of {mark.stream} twice", "marks")
        marks[mark.stream] = mark
        known = job.streams.get(mark.stream)
        # A late copy may come from before a run was cut short.
        proven += max(0, mark.granted - (max(known.granted, known.granted_once) if known is not None else 0))
    if proven and not first:
        raise _broken(rank, f"was granted {proven} operations more than this start has granted", "marks")
    if proven > job.settings.proven_max:
        raise CoreError(
            Problem.LIMIT_EXCEEDED,
            f"rank {rank} was granted {proven} operations that this controller does not know; the limit is "
            f"{job.settings.proven_max}",
            rank=rank,
            limit=job.settings.proven_max,
        )
    return marks


def _broken(rank: int, what: str, field: str) -> CoreError:
    return CoreError(
        Problem.INVALID_REQUEST,
        f"the session of rank {rank} contradicts itself or this controller: it {what}",
        field=f"session.{field}",
        rank=rank,
    )


def _check_releases(job: JobCore, item: RankNews) -> None:
    through: dict[Stream, int] = {}
    for release in item.releases:
        check_participant(job, release.stream, item.rank)
        stream = job.streams.get(release.stream)
        granted = stream.granted if stream else 0
        done = through.get(release.stream, stream.released[item.rank] if stream else 0)
        end = release.n + release.length
        if end > granted or release.n > done:
            raise CoreError(
                Problem.RELEASE_NOT_HELD,
                f"rank {item.rank} releases operations {release.n} to {end - 1} of {release.stream}, but has "
                f"released {done} and been granted {granted}; release in order, and only what was granted",
                rank=item.rank,
                connection=release.stream.connection,
                n=release.n,
                released=done,
                granted=granted,
            )
        through[release.stream] = max(done, end)


def difference(known: JobSpec, new: JobSpec) -> str:
    """The first field in which two declarations of a job differ."""
    return next(name for name in JobSpec.__dataclass_fields__ if getattr(known, name) != getattr(new, name))
