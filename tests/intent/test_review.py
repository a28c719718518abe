"""What an adversary tried: late copies, one job's fault that must stay its own, growth, early causes."""

from __future__ import annotations

import dataclasses

import pytest

from opus_sdn.intent import planner, stepping
from opus_sdn.intent.changes import EventAppended, JobState
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CircuitKind
from opus_sdn.intent.model import Arrival, CoreSettings, Dimension, Hint, PortChoice, RankNews, Stream
from opus_sdn.intent.reasons import Reason
from tests.intent.bench import START, Bench
from tests.intent.rows import AB, pairs, row
from tests.intent.worlds import group, make_fabric, make_spec, places

RING = Stream("ring")


def ring_of_two(settings: CoreSettings | None = None) -> Bench:
    """Two ranks and their ring."""
    bench = Bench(make_fabric(4), settings)
    bench.observe()
    bench.job(make_spec(places(2), {"dp": 2}), group("ring", 0, 1))
    bench.play()
    return bench


# --- declarations


def test_a_late_copy_of_an_old_declaration_does_not_end_the_life_that_replaced_it() -> None:
    bench = ring_of_two()
    old = bench.engine.state.jobs["job"].spec
    bench.engine.put_job(bench.now, make_spec(places(2), {"dp": 2}, nonce="second"))
    with pytest.raises(CoreError, match="every init of the ranks needs a fresh nonce") as refused:
        bench.engine.put_job(bench.now, old)
    assert refused.value.problem is Problem.STALE_INCARNATION
    assert bench.engine.state.jobs["job"].incarnation == 2
    assert bench.engine.state.jobs["job"].running


def test_a_declaration_from_before_a_restart_is_known_as_such() -> None:
    spec = make_spec(places(2), {"dp": 2}, nonce="first")
    engine = Engine(make_fabric(2), CoreSettings(), START, nonces={"job": ["first"]}, generations={"ocs0": 9})
    with pytest.raises(CoreError) as refused:
        engine.put_job(0.0, dataclasses.replace(spec, placement=places(1), dimensions=()))
    assert refused.value.problem is Problem.STALE_INCARNATION
    engine.observe(0.0, "ocs0", frozenset())
    assert engine.state.switches["ocs0"].generation == 10, "generations never go back"


@pytest.mark.parametrize(
    ("names", "wrong"),
    [(("dp", "dp"), "'dp' twice"), (("pp", "pipeline"), "two pipelines, pp and pipeline")],
)
def test_dimensions_are_named_once(names: tuple[str, str], wrong: str) -> None:
    bench = Bench(make_fabric(4))
    spec = make_spec(places(4), {})
    spec = dataclasses.replace(spec, dimensions=tuple(Dimension(name, 2) for name in names))
    with pytest.raises(CoreError, match=wrong) as refused:
        bench.engine.put_job(bench.now, spec)
    assert refused.value.problem is Problem.INVALID_REQUEST


def test_ended_jobs_are_remembered_up_to_a_limit_and_cost_nothing_in_a_pass() -> None:
    bench = Bench(make_fabric(2), CoreSettings(settled_jobs_max=3))
    bench.observe()
    for number in range(5):
        spec = dataclasses.replace(make_spec(places(2), {"dp": 2}), name=f"job{number}")
        bench.engine.put_job(bench.now, spec)
        bench.engine.end_job(bench.now, spec.name, 1)
    bench.play()
    assert list(bench.engine.state.jobs) == ["job2", "job3", "job4"]
    assert bench.engine.state.active == {}
    again = dataclasses.replace(make_spec(places(2), {"dp": 2}, nonce="again"), name="job0")
    assert bench.engine.put_job(bench.now, again) == (2, True), "numbers go on for forgotten jobs too"


# --- repeats and hints


def test_a_repeat_of_an_arrival_may_say_that_the_host_waits_now_and_nothing_else() -> None:
    bench = Bench(make_fabric(3, ports=1))
    bench.observe()
    bench.job(make_spec(places(3), {"dp": 3}), group("ring", 0, 1), group("line", 1, 2))
    message = Stream("line:1-2", 1, 2)
    bench.news(1, arrivals=[Arrival(message, 0, tag=7)])
    bench.news(1, arrivals=[Arrival(message, 0, tag=9, blocking=True)])
    (arrived,) = bench.engine.state.jobs["job"].streams[message].intents[0].arrived.values()
    assert (arrived.arrival.tag, arrived.arrival.blocking) == (7, True)
    bench.news(2, arrivals=[Arrival(message, 0, tag=7)])
    bench.play()
    assert bench.grants(2) == [("line:1-2[1>2]", 0)]


def test_the_newest_hint_of_a_rank_is_kept_until_it_arrives_there() -> None:
    bench = ring_of_two()
    rank = bench.engine.state.jobs["job"].ranks[0]
    news = RankNews(0, hints=(Hint(RING, 4), Hint(RING, 0)))
    bench.engine.news(bench.now, "job", 1, START, [news])
    assert rank.hint == Hint(RING, 0)
    bench.arrive(RING, 0, 0)
    assert rank.hint is None


# --- causes are told when they are written down


def test_a_cause_is_told_only_when_it_is_stored() -> None:
    bench = ring_of_two()
    bench.engine.abort(bench.now, "job", 1, 0, "enough")
    assert not bench.engine.has_news_for("job", 1, 1, 0)
    bench.pump(store=False)
    assert bench.answer(1).failure is None
    woken = bench.engine.committed(bench.engine.state.ledger.open_batch - 1)
    assert {key.rank for key in woken} == {0, 1}
    assert bench.engine.has_news_for("job", 1, 1, 0)
    failure = bench.answer(1).failure
    assert failure is not None
    assert failure.problem is Problem.ABORTED


def test_an_answer_of_a_job_that_has_failed_but_is_not_stored_shows_no_grants_to_come() -> None:
    bench = ring_of_two()
    bench.arrive(RING, 0, 0, 1)
    bench.engine.abort(bench.now, "job", 1, None, "enough")
    answer = bench.answer(0, [Arrival(RING, 0)])
    assert (answer.arrivals, answer.grants) == ((), ())


# --- one job's fault stays its own


def test_a_plan_that_the_checker_refuses_stops_its_own_job_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planner is made to add a circuit outside of the switch for one job's intents."""
    bench = Bench(make_fabric(4, ports=1))
    bench.observe()
    bad = dataclasses.replace(make_spec(places(2), {"dp": 2}), name="bad")
    good = dataclasses.replace(make_spec(places(2, first_host=2), {"dp": 2}), name="good")
    for spec in (bad, good):
        bench.job(spec, group("ring", 0, 1))
    sound = planner.plan

    def unsound(*given: object) -> planner.Plan:
        made = sound(*given)  # type: ignore[arg-type]
        if any(key.startswith("bad/") for key in made.causes):
            return dataclasses.replace(made, add=(*made.add, made.add[0]), remove=tuple(made.add))
        return made

    monkeypatch.setattr(stepping, "plan", unsound)
    for name in ("bad", "good"):
        for rank in (0, 1):
            bench.news(rank, arrivals=[Arrival(RING, 0)], job=name)
    bench.play()
    assert [g.n for g in bench.engine.answer("good", 1, 0, 0).grants] == [0]
    (waiting,) = bench.engine.answer("bad", 1, 0, 0).arrivals
    assert waiting.because is not None
    assert waiting.because.reason is Reason.PLAN_REFUSED
    assert {event.job for event in bench.events("plan.refused")} == {"bad"}


def test_an_initial_topology_that_the_checker_refuses_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(make_fabric(2))
    bench.observe()
    sound = planner.plan
    monkeypatch.setattr(
        stepping,
        "plan",
        lambda *given: (made := sound(*given)) and dataclasses.replace(made, remove=made.add),
    )
    bench.job(make_spec(places(2), {"dp": 2}, initial_topology="0"))
    bench.play()
    assert bench.engine.state.jobs["job"].seed is None
    assert bench.steps == []


@pytest.mark.parametrize("kind", CircuitKind)
def test_a_port_is_never_joined_to_itself(kind: CircuitKind) -> None:
    bench = Bench(make_fabric(2, ports=1, kind=kind))
    bench.observe()
    with pytest.raises(CoreError, match="which takes two ports per GPU") as refused:
        bench.job(make_spec(places(2), {"dp": 2}, initial_topology="0"))
    assert refused.value.data["field"] == "initial_topology"
    assert bench.engine.state.jobs == {}


# --- the initial topology is what was asked for


def test_an_initial_topology_takes_down_what_an_earlier_life_left_on_the_jobs_own_ports() -> None:
    bench = Bench(make_fabric(4))
    bench.observe()
    for life, wanted in enumerate(("11", "00", "11", "00")):
        spec = make_spec(
            places(4),
            {"pp": 2, "dp": 2},
            nonce=f"life{life}",
            initial_topology=wanted,
            port_choice=PortChoice.SPREAD,  # rings and pairs are on different ports, so neither is in the way
        )
        bench.engine.put_job(bench.now, spec)
        bench.play()
        assert bench.engine.state.jobs["job"].topology == {"rail0": wanted}


def test_an_initial_topology_leaves_what_reaches_beyond_the_jobs_ports() -> None:
    bench = Bench(make_fabric(3))
    bench.lit["ocs0"] = pairs((0, 4))  # left of h0 to left of h2, which is no place of the job
    bench.observe()
    bench.job(make_spec(places(2), {"dp": 2}, initial_topology="1"))
    bench.play()
    assert pairs((0, 4)) <= bench.lit["ocs0"]


# --- events


def test_a_step_leaves_its_events_under_its_job_and_at_the_time_they_happened() -> None:
    bench = row()
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    planned_at = bench.now
    bench.now += 1
    step = bench.start()
    assert step is not None
    started_at = bench.now
    bench.now += 1
    bench.settle(step)
    bench.pump()
    events = {c.kind: c for c in bench.changes if isinstance(c, EventAppended) and c.kind.startswith("step.")}
    assert {event.job for event in events.values()} == {"job"}
    assert events["step.started"].at == started_at > planned_at
    assert events["step.done"].at is None, "that of its batch"


def test_a_failed_job_ends_when_its_last_lock_is_gone_and_is_then_only_remembered() -> None:
    bench = ring_of_two()
    bench.arrive(RING, 0, 0, 1)
    bench.play()
    bench.engine.abort(bench.now, "job", 1, None, "enough")
    assert "job" in bench.engine.state.active
    bench.release(RING, 0, 0, 1)
    assert bench.engine.state.active == {}
    assert bench.engine.state.jobs["job"].state is JobState.FAILED
