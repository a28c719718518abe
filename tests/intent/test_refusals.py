"""Every request that the core refuses: its type, its words and data, and that nothing of it was done."""

from __future__ import annotations

import pytest

from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import STATUS, CoreError, Problem
from opus_sdn.intent.model import Arrival, CoreSettings, Place, RankNews, Stream
from opus_sdn.intent.views import connection_view
from tests.intent.bench import Bench
from tests.intent.refusals import REFUSED, RING, arrive, busy_bench, check_in, say
from tests.intent.snapshots import snapshot
from tests.intent.worlds import group, make_fabric, make_spec, places


@pytest.fixture
def bench() -> Bench:
    """The bench of the cases: a job with grants, open arrivals and a neighbour."""
    return busy_bench()


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_its_type_and_leaves_no_trace(name: str, bench: Bench) -> None:
    act, problem, words, data = REFUSED[name]
    before = snapshot(bench.engine)
    with pytest.raises(CoreError, match=words) as refused:
        act(bench)
    assert (refused.value.problem, refused.value.data) == (problem, data)
    assert refused.value.detail == str(refused.value)
    assert problem in STATUS
    assert snapshot(bench.engine) == before


def test_a_request_that_is_taken_does_leave_a_trace(bench: Bench) -> None:
    """The comparison would notice."""
    before = snapshot(bench.engine)
    bench.arrive(RING, 1, 1)
    assert snapshot(bench.engine) != before


PAIR_NAMES = [
    "line:1-0",
    "line:0-3",
    "line:0-0",
    "line:0",
    "line:",
    "line:a-b",
    "line:00-1",
    "line:0-1-2",
    ":0-1",
]


@pytest.mark.parametrize("name", [*PAIR_NAMES, "line:0-\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_pair_has_exactly_one_name(name: str, bench: Bench) -> None:
    """Marks are kept by name: two names for one pair would be two counts of the same messages."""
    before = snapshot(bench.engine)
    with pytest.raises(CoreError) as refused:
        arrive(Stream(name, 0, 1), 0)(bench)
    assert refused.value.problem is Problem.UNKNOWN_CONNECTION
    assert snapshot(bench.engine) == before


def test_looking_at_a_pair_does_not_make_it_count(bench: Bench) -> None:
    before = snapshot(bench.engine)
    assert connection_view(bench.engine, "job", "line:0-2").ranks == (0, 2)
    assert snapshot(bench.engine) == before


def test_an_unroutable_ring_is_refused_in_the_same_words_each_time(bench: Bench) -> None:
    """And never with the traceback of an earlier request, which would keep that request in memory."""
    depths = []
    for _ in range(3):
        with pytest.raises(CoreError) as refused:
            arrive(Stream("apart"), 0)(bench)
        depth, traceback = 0, refused.value.__traceback__
        while traceback is not None:
            depth, traceback = depth + 1, traceback.tb_next
        depths.append((depth, refused.value.detail))
    assert len(set(depths)) == 1


def test_a_group_over_the_front_end_needs_no_grants() -> None:
    bench = Bench(make_fabric(4))
    bench.job(make_spec(places(4), {"pp": 2, "dp": 2}), group("all", 0, 1, 2, 3))
    with pytest.raises(CoreError, match="group all is front-end"):
        arrive(Stream("all:0-1", 0, 1), 0)(bench)


@pytest.mark.parametrize(("hosts", "words"), [(20, r"h18, h19$"), (23, r"h18, h19 and 3 more$")])
def test_a_long_list_of_hosts_is_cut(hosts: int, words: str) -> None:
    bench = Bench(make_fabric(hosts))
    with pytest.raises(CoreError, match=words):
        bench.job(make_spec([Place("nowhere", 0)]))


def test_what_is_exactly_at_a_limit_is_taken(bench: Bench) -> None:
    say(RankNews(0, last_grant=1, arrivals=tuple(Arrival(RING, n) for n in range(5))))(bench)  # 4 are open
    arrive(Stream("line:0-2", 0, 2), 2)(bench)
    check_in(group("seventh", 0, 1), group("eighth", 0, 1))(bench)
    job = bench.engine.state.jobs["job"]
    assert (len(job.groups), len(job.ranks[0].open)) == (8, 4)
    arrive(Stream("line:0-2", 0, 2), 2, n=1)(bench)  # a connection that is there is no new one


def test_grants_that_are_never_acknowledged_count_as_open() -> None:
    """A rank that never says what it has heard would otherwise fill the memory."""
    bench = Bench(make_fabric(2, ports=1), CoreSettings(open_arrivals_max=4))
    bench.observe()
    bench.job(make_spec(places(2), {"dp": 2}), group("ring", 0, 1))
    for n in range(4):
        bench.arrive(RING, n, 0, 1)
        bench.play()
        bench.release(RING, n, 0, 1)
    with pytest.raises(CoreError, match="would have 5 open arrivals and grants not acknowledged"):
        bench.arrive(RING, 4, 0)
    bench.arrive(RING, 3, 0)  # a repeat is always taken
    bench.news(0, last_grant=3, arrivals=[Arrival(RING, 4)])


def test_a_lease_must_outlast_the_fence_and_the_abort() -> None:
    with pytest.raises(ValueError, match=r"lease_s 20 must exceed fence_s \+ abort_s \(15 \+ 5\)"):
        Engine(make_fabric(2), CoreSettings(lease_s=20.0, fence_s=15.0, abort_s=5.0), 1)
