"""Requests that the core must refuse: each with its type, its words and its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opus_sdn.intent.errors import Problem
from opus_sdn.intent.model import Arrival, CoreSettings, GroupSpec, JobSpec, Place, RankNews, Release, Stream
from tests.intent.bench import START, Bench
from tests.intent.worlds import group, make_fabric, make_spec, places

Act = Callable[[Bench], object]
RING, THERE = Stream("ring"), Stream("line:0-1", 0, 1)
SETTINGS = CoreSettings(open_arrivals_max=4, connections_max=3, groups_max=8)

NEIGHBOUR = make_spec(places(1, first_host=5), name="neighbour")
JOB = make_spec([*places(4), Place("h4", 1)], {"pp": 5})


def busy_bench() -> Bench:
    """A job of five ranks with operation 0 of its ring granted and open arrivals, and a neighbour.

    Rank 4 sits on another rail. Hosts h0 to h6, two slots each, one port per GPU.
    """
    bench = Bench(make_fabric(7, gpus=2, ports=1), SETTINGS)
    bench.observe()
    bench.job(NEIGHBOUR)
    bench.job(
        JOB,
        group("ring", 0, 1),
        group("line", 0, 1, 2),
        group("three", 1, 2, 3),
        group("apart", 0, 4),
        group("alone", 3),
        group("all", 0, 1, 2, 3, 4),
    )
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.arrive(RING, 1, 0)
    bench.arrive(THERE, 0, 1)
    return bench


def put(**changed: Any) -> Act:
    """Declare the job again with something else."""
    fields = {name: getattr(JOB, name) for name in JobSpec.__dataclass_fields__} | changed
    return lambda bench: bench.engine.put_job(bench.now, JobSpec(**fields))


def check_in(*groups: GroupSpec, incarnation: int = 1, job: str = "job") -> Act:
    """Check in these groups."""
    return lambda bench: bench.engine.check_in(bench.now, job, incarnation, groups)


def say(*news: RankNews, seen_start: int = START, incarnation: int = 1, job: str = "job") -> Act:
    """Send this news."""
    return lambda bench: bench.engine.news(bench.now, job, incarnation, seen_start, news)


def arrive(stream: Stream, rank: int, n: int = 0) -> Act:
    """One rank arrives."""
    return say(RankNews(rank, arrivals=(Arrival(stream, n),)))


def release(stream: Stream, rank: int, n: int = 0, length: int = 1) -> Act:
    """One rank releases."""
    return say(RankNews(rank, releases=(Release(stream, n, length),)))


UNKNOWN_HOSTS = "the fabric has hosts h0, h1, h2, h3, h4, h5, h6"

# act, problem, words, data
REFUSED: dict[str, tuple[Act, Problem, str, dict[str, object]]] = {
    # --- jobs
    "an empty placement": (
        put(nonce="new", placement=()),
        Problem.INVALID_REQUEST,
        "placement is empty",
        {"field": "placement"},
    ),
    "dimensions of another world": (
        put(nonce="new", placement=places(4)),
        Problem.INVALID_REQUEST,
        "dimensions pp=5 multiply to 5, but the job has 4 ranks",
        {"field": "dimensions"},
    ),
    "an unknown host": (
        put(nonce="new", placement=(*places(4), Place("h9", 0))),
        Problem.UNKNOWN_PLACE,
        f"rank 4 is placed on host 'h9' slot 0, which is not there: {UNKNOWN_HOSTS}",
        {"rank": 4, "host": "h9", "slot": 0},
    ),
    "an unknown slot": (
        put(nonce="new", placement=(*places(4), Place("h4", 2))),
        Problem.UNKNOWN_PLACE,
        "which is not there: host h4 has GPU slots 0 to 1",
        {"rank": 4, "host": "h4", "slot": 2},
    ),
    "two ranks on one slot": (
        put(nonce="new", placement=(*places(4), Place("h1", 0))),
        Problem.PORTS_OVERLAP,
        "ranks 1 and 4 are both placed on host h1 slot 0",
        {"ranks": [1, 4], "host": "h1", "slot": 0},
    ),
    "ports of another job": (
        put(nonce="new", placement=(*places(4), Place("h5", 0))),
        Problem.PORTS_OVERLAP,
        "rank 4 is placed on host h5 slot 0, whose ports job neighbour uses",
        {"rank": 4, "host": "h5", "slot": 0, "job": "neighbour"},
    ),
    "the same job with another placement": (
        put(placement=(*places(4), Place("h6", 1))),
        Problem.JOB_CONFLICT,
        "job job with nonce 'first' was declared with another placement",
        {"job": "job", "field": "placement"},
    ),
    "the same job with another deadline": (
        put(deadline_s=1.0),
        Problem.JOB_CONFLICT,
        "another deadline_s; a changed job needs a fresh nonce",
        {"job": "job", "field": "deadline_s"},
    ),
    "a running job of somebody else": (
        put(nonce="new", owner="thief"),
        Problem.JOB_CONFLICT,
        "job job belongs to owner 'owner' and still runs; owner 'thief' needs another job name",
        {"job": "job", "field": "owner"},
    ),
    "an initial topology that cannot be": (
        put(nonce="new", initial_topology="00"),
        Problem.INVALID_REQUEST,
        "initial_topology '00' has 2 digits; the job has 5 pipeline stages",
        {"field": "initial_topology"},
    ),
    # --- groups
    "a group of an unknown job": (
        check_in(group("g", 0), job="nobody"),
        Problem.UNKNOWN_JOB,
        "there is no job 'nobody'",
        {"job": "nobody"},
    ),
    "a group of another incarnation": (
        check_in(group("g", 0), incarnation=2),
        Problem.STALE_INCARNATION,
        "job job is at incarnation 1; incarnation 2 can do nothing",
        {"job": "job", "incarnation": 1},
    ),
    "a group without ranks": (
        check_in(group("new", 0, 1), group("g")),
        Problem.INVALID_REQUEST,
        "group g has no ranks",
        {"field": "ranks"},
    ),
    "a group with an unknown rank": (
        check_in(group("new", 0, 1), group("g", 0, 5)),
        Problem.UNKNOWN_RANK,
        "rank 5 is not a rank of job job, which has ranks 0 to 4",
        {"rank": 5},
    ),
    "a group with a negative rank": (
        check_in(group("g", -1)),
        Problem.UNKNOWN_RANK,
        "rank -1 is not a rank",
        {"rank": -1},
    ),
    "a group with a rank twice": (
        check_in(group("g", 0, 1, 0)),
        Problem.INVALID_REQUEST,
        "group g lists rank 0 twice",
        {"field": "ranks", "rank": 0},
    ),
    "a known group with other ranks": (
        check_in(group("new", 0, 1), group("ring", 1, 0)),
        Problem.GROUP_CONFLICT,
        r"group ring is known with ranks \[0, 1\] and ordinal 0, not \[1, 0\] and 0",
        {"group": "ring"},
    ),
    "a known group with another ordinal": (
        check_in(group("ring", 0, 1, ordinal=1)),
        Problem.GROUP_CONFLICT,
        "group ring is known",
        {"group": "ring"},
    ),
    "a group twice in one request": (
        check_in(group("g", 0, 1), group("g", 1, 0)),
        Problem.GROUP_CONFLICT,
        "the request names group g twice with different ranks",
        {"group": "g"},
    ),
    "too many groups": (
        check_in(group("a", 0, 1), group("b", 0, 1), group("c", 0, 1)),
        Problem.LIMIT_EXCEEDED,
        "job job would have 9 groups; the limit is 8",
        {"limit": 8},
    ),
    # --- news
    "news to an older controller": (
        say(RankNews(0), seen_start=START - 1),
        Problem.STALE_START,
        f"the request speaks to controller start {START - 1}; this is start {START}",
        {"seen_start": START - 1, "start": START},
    ),
    "news of an unknown job": (
        say(RankNews(0), job="nobody"),
        Problem.UNKNOWN_JOB,
        "no job 'nobody'",
        {"job": "nobody"},
    ),
    "news of another incarnation": (
        say(RankNews(0), incarnation=9),
        Problem.STALE_INCARNATION,
        "incarnation 9 can do nothing",
        {"job": "job", "incarnation": 1},
    ),
    "news of an unknown rank": (
        say(RankNews(0, arrivals=(Arrival(RING, 2),)), RankNews(5)),
        Problem.UNKNOWN_RANK,
        "rank 5 is not a rank",
        {"rank": 5},
    ),
    "news of one rank twice": (
        say(RankNews(0, arrivals=(Arrival(RING, 2),)), RankNews(0)),
        Problem.INVALID_REQUEST,
        "the request names rank 0 twice",
        {"field": "ranks", "rank": 0},
    ),
    "a grant acknowledged that was never given": (
        say(RankNews(0, last_grant=2)),
        Problem.INVALID_REQUEST,
        "rank 0 acknowledges grant 2, but has been given 1",
        {"field": "last_grant", "rank": 0},
    ),
    "a connection of an unknown group": (
        arrive(Stream("nothing"), 0),
        Problem.UNKNOWN_CONNECTION,
        "connection 'nothing' belongs to no checked-in group",
        {"connection": "nothing"},
    ),
    "a pair of an unknown group": (
        arrive(Stream("nothing:0-1", 0, 1), 0),
        Problem.UNKNOWN_CONNECTION,
        "belongs to no checked-in group",
        {"connection": "nothing:0-1"},
    ),
    "a group that never leaves its host": (
        arrive(Stream("alone"), 3),
        Problem.UNKNOWN_CONNECTION,
        "group alone is scale-up",
        {"connection": "alone"},
    ),
    "a rank that takes no part": (
        arrive(RING, 2),
        Problem.NOT_A_MEMBER,
        r"rank 2 takes no part in connection ring \(ranks \[0, 1\]\)",
        {"rank": 2, "connection": "ring"},
    ),
    "a ring with a source": (
        arrive(Stream("ring", 0, 1), 0),
        Problem.INVALID_REQUEST,
        "connection ring is a ring: source and destination must be left out",
        {"field": "source"},
    ),
    "a receive from any rank": (
        arrive(Stream("line:0-1", None, 1), 1),
        Problem.RECEIVE_FROM_ANY,
        "receiving from any source is not possible across hosts",
        {"field": "source"},
    ),
    "a pair without ends": (
        arrive(Stream("line:0-1"), 1),
        Problem.RECEIVE_FROM_ANY,
        "source and destination must both name a rank",
        {"field": "source"},
    ),
    "a pair with a foreign end": (
        arrive(Stream("line:0-1", 1, 2), 1),
        Problem.INVALID_REQUEST,
        r"source 1 and destination 2 must be its two ranks \[0, 1\]",
        {"field": "source"},
    ),
    "a ring that its rails do not connect": (
        arrive(Stream("apart"), 0),
        Problem.UNROUTABLE,
        r"connection apart: the rails of ranks \[0, 4\] do not join their hosts",
        {"connection": "apart", "ranks": [0, 4]},
    ),
    "a pair that its rails do not connect": (
        arrive(Stream("apart:0-4", 0, 4), 4),
        Problem.UNROUTABLE,
        "connection apart:0-4",
        {"connection": "apart:0-4", "ranks": [0, 4]},
    ),
    "a ring of three over one port": (
        arrive(Stream("three"), 2),
        Problem.UNROUTABLE,
        r"a ring of 3 ranks \[1, 2, 3\] on one rail needs two ports",
        {"ranks": [1, 2, 3]},
    ),
    "too many open arrivals": (
        say(RankNews(0, arrivals=tuple(Arrival(RING, n) for n in range(5)))),
        Problem.LIMIT_EXCEEDED,
        "rank 0 would have 5 open arrivals and grants not acknowledged by last_grant; the limit is 4",
        {"rank": 0, "limit": 4},
    ),
    "too many connections": (
        say(
            RankNews(0, arrivals=(Arrival(THERE, 0), Arrival(Stream("line:0-2", 0, 2), 0))),
            RankNews(2, arrivals=(Arrival(Stream("line:1-2", 1, 2), 0),)),
        ),
        Problem.LIMIT_EXCEEDED,
        "job job would have 4 connections; the limit is 3",
        {"limit": 3},
    ),
    "a release of what was not granted": (
        say(RankNews(1, arrivals=(Arrival(RING, 1),), releases=(Release(RING, 0), Release(RING, 1)))),
        Problem.RELEASE_NOT_HELD,
        "rank 1 releases operations 1 to 1 of ring, but has released 1 and been granted 1",
        {"rank": 1, "connection": "ring", "n": 1, "released": 1, "granted": 1},
    ),
    "a release longer than what was granted": (
        release(RING, 0, length=2),
        Problem.RELEASE_NOT_HELD,
        "rank 0 releases operations 0 to 1 of ring, but has released 0 and been granted 1",
        {"rank": 0, "connection": "ring", "n": 0, "released": 0, "granted": 1},
    ),
    "a release of a stream that nobody has used": (
        release(Stream("line:1-2", 1, 2), 1),
        Problem.RELEASE_NOT_HELD,
        "but has released 0 and been granted 0",
        {"rank": 1, "connection": "line:1-2", "n": 0, "released": 0, "granted": 0},
    ),
    "a release by a rank that takes no part": (
        release(RING, 3),
        Problem.NOT_A_MEMBER,
        "rank 3 takes no part",
        {"rank": 3, "connection": "ring"},
    ),
    # --- the rest
    "a failure of an unknown rank": (
        lambda b: b.engine.operation_failed(b.now, "job", 1, 7, None, None, "boom"),
        Problem.UNKNOWN_RANK,
        "rank 7 is not a rank",
        {"rank": 7},
    ),
    "an abort by an unknown rank": (
        lambda b: b.engine.abort(b.now, "job", 1, 7, "enough"),
        Problem.UNKNOWN_RANK,
        "rank 7 is not a rank",
        {"rank": 7},
    ),
    "an unknown rank among the dead": (
        lambda b: b.engine.report_dead(b.now, "job", 1, [0, 7], "gone"),
        Problem.UNKNOWN_RANK,
        "rank 7 is not a rank",
        {"rank": 7},
    ),
    "the end of another incarnation": (
        lambda b: b.engine.end_job(b.now, "job", 2),
        Problem.STALE_INCARNATION,
        "incarnation 2 can do nothing",
        {"job": "job", "incarnation": 1},
    ),
    "an answer for an unknown rank": (
        lambda b: b.engine.answer("job", 1, 5, 0),
        Problem.UNKNOWN_RANK,
        "rank 5 is not a rank",
        {"rank": 5},
    ),
}
