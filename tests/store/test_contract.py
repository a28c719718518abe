"""What every store promises; each test runs on the SQL store and on its in-memory twin."""

from __future__ import annotations

import itertools

import pytest

from opus_sdn.intent.changes import (
    Change,
    CircuitsObserved,
    CircuitsOwned,
    DirectiveGiven,
    DirectiveKind,
    DirectiveWithdrawn,
    EventAppended,
    IntentState,
    JobLetGo,
    JobState,
    RankLeft,
    RunCut,
    StepMoved,
    StepState,
)
from opus_sdn.intent.errors import Failure, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Domain
from opus_sdn.store.base import (
    EventRecord,
    GroupRecord,
    IntentRecord,
    JobRecord,
    LeftRecord,
    LockRecord,
    MarkRecord,
    OwnerRecord,
    StepRecord,
    Store,
    StoreError,
    SwitchRecord,
)
from opus_sdn.store.rules import Retention
from tests.store.conftest import OpenStore
from tests.store.world import (
    BACK,
    FORTH,
    RING,
    batch,
    checked,
    granted,
    moved,
    planned,
    released,
    settled,
    spec,
    started,
)

PORTS = (("h0:0:0", "r0", "sw0", 0), ("h1:0:0", "r0", "sw0", 1))
RAILS = (("r0", "sw0"),)


def write(store: Store, *changes: Change, at: float = 100.0) -> int:
    return store.submit(batch(1, *changes, at=at)).result(timeout=60)


def test_a_new_store_is_empty(store: Store) -> None:
    seen = store.snapshot()
    assert (seen.start, seen.fabric, seen.fabric_generation, seen.last_step, seen.last_event) == (
        0,
        None,
        0,
        0,
        0,
    )
    assert not any((seen.jobs, seen.groups, seen.locks, seen.marks, seen.intents, seen.steps, seen.switches))
    assert store.events(0, 10) == []


def test_the_start_number_rises_by_one_each_time(store: Store) -> None:
    assert [store.raise_start() for _ in range(3)] == [1, 2, 3]
    assert store.snapshot().start == 3


def test_the_fabrics_generation_rises_only_when_the_document_differs(store: Store) -> None:
    assert store.put_fabric("one", PORTS, RAILS) == 1
    assert store.put_fabric("one", PORTS, RAILS) == 1
    assert store.put_fabric("two", PORTS[:1], RAILS) == 2
    assert store.put_fabric("one", PORTS, RAILS) == 3
    assert (store.snapshot().fabric, store.snapshot().fabric_generation) == ("one", 3)


@pytest.mark.parametrize(
    ("ports", "rails", "said"),
    [
        (PORTS, (("r1", "sw0"),), "port h0:0:0 is on rail 'r0'"),
        ((PORTS[0], PORTS[0]), RAILS, "port h0:0:0 is there twice"),
        ((PORTS[0], ("h1:0:0", "r0", "sw0", 0)), RAILS, "both sit on sw0:0"),
        (PORTS, RAILS * 2, "two rails of one name"),
    ],
)
def test_a_fabric_that_contradicts_itself_is_refused_and_harms_nothing(
    store: Store,
    ports: tuple[tuple[str, str, str, int], ...],
    rails: tuple[tuple[str, str], ...],
    said: str,
) -> None:
    with pytest.raises(StoreError, match=said):
        store.put_fabric("one", ports, rails)
    assert store.put_fabric("two", PORTS, RAILS) == 1


def test_directives_hold_by_number_until_they_are_withdrawn(store: Store) -> None:
    drain = DirectiveGiven(DirectiveKind.DRAIN, "h0:0:0", 2, 7.25, {"by": "ann", "force": False})
    circuit = DirectiveGiven(DirectiveKind.CIRCUIT, "h0:0:0", 1, 7.0, {"by": "b\u00f6b", "ends": ["a", "b"]})
    write(store, drain, circuit, DirectiveWithdrawn(DirectiveKind.QUEUED, "never given"))
    assert store.snapshot().directives == (circuit, drain)
    again = DirectiveGiven(DirectiveKind.DRAIN, "h0:0:0", 3, 8.0, {"by": "eve", "force": True})
    write(store, again, DirectiveWithdrawn(DirectiveKind.CIRCUIT, "h0:0:0"))
    assert store.snapshot().directives == (again,)


def test_a_grant_stores_every_lock_the_mark_and_the_intent(store: Store) -> None:
    write(store, started(), granted(RING, n=4, length=3, locks=((1, 7), (0, 9))))
    seen = store.snapshot()
    assert seen.locks == (
        LockRecord("llama", 1, RING, rank=0, n=4, length=3, no=9, at=10.5),
        LockRecord("llama", 1, RING, rank=1, n=4, length=3, no=7, at=10.5),
    )
    assert seen.marks == (MarkRecord("llama", 1, RING, granted=7, released=()),)
    assert seen.intents == (
        IntentRecord("llama", 1, RING, 4, 3, IntentState.GRANTED, complete_at=10.25, granted_at=10.5),
    )


def test_a_release_frees_the_named_ranks_only_and_raises_their_marks(store: Store) -> None:
    write(store, started(), granted(n=4, length=3), granted(n=0))
    write(store, released((1,), n=4, length=3))
    seen = store.snapshot()
    assert [(lock.rank, lock.n) for lock in seen.locks] == [(0, 0), (1, 0), (0, 4)]
    assert seen.marks == (MarkRecord("llama", 1, RING, granted=7, released=((1, 7),)),)
    assert [intent.n for intent in seen.intents] == [0, 4]


def test_marks_never_go_down(store: Store) -> None:
    write(store, started(), granted(n=9), released((0, 1), n=9))
    write(store, granted(n=2), released((0, 1), n=2))
    assert store.snapshot().marks == (MarkRecord("llama", 1, RING, 10, ((0, 10), (1, 10))),)


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "apart"])
def test_a_run_that_is_cut_has_shorter_locks_and_is_the_only_thing_that_takes_a_mark_back(
    store: Store, together: bool
) -> None:
    told = (started(), granted(n=4, length=3), RunCut("llama", 1, RING, 4, 2))
    if together:
        write(store, *told)
    else:
        for change in told:
            write(store, change)
    seen = store.snapshot()
    assert {(lock.rank, lock.n, lock.length) for lock in seen.locks} == {(0, 4, 2), (1, 4, 2)}
    assert [(intent.n, intent.length) for intent in seen.intents] == [(4, 2)]
    assert seen.marks == (MarkRecord("llama", 1, RING, granted=6, released=()),)
    write(store, released((0, 1), n=4, length=2), granted(n=6, locks=((0, 2), (1, 2))))
    seen = store.snapshot()
    assert [(lock.rank, lock.n, lock.length) for lock in seen.locks] == [(0, 6, 1), (1, 6, 1)]
    assert seen.marks == (MarkRecord("llama", 1, RING, 7, ((0, 6), (1, 6))),)


def test_the_directions_of_a_pair_are_apart(store: Store) -> None:
    write(store, started(), granted(FORTH), granted(BACK, n=5))
    write(store, released((0,), FORTH))
    seen = store.snapshot()
    assert [(lock.stream, lock.rank, lock.n) for lock in seen.locks] == [
        (FORTH, 1, 0),
        (BACK, 0, 5),
        (BACK, 1, 5),
    ]
    assert [(mark.stream, mark.granted, mark.released) for mark in seen.marks] == [
        (FORTH, 1, ((0, 1),)),
        (BACK, 6, ()),
    ]


@pytest.mark.parametrize("over", [IntentState.RELEASED, IntentState.FAILED])
def test_an_intent_that_is_over_has_no_row(store: Store, over: IntentState) -> None:
    write(store, started(), granted(n=0), granted(n=1))
    write(store, moved(over, n=0))
    assert [intent.n for intent in store.snapshot().intents] == [1]


@pytest.mark.parametrize("early", [IntentState.DECLARED, IntentState.COMPLETE, IntentState.INSTALLING])
def test_an_intent_that_is_not_granted_yet_has_no_row_as_ranks_repeat_arrivals(
    store: Store, early: IntentState
) -> None:
    write(store, started(), moved(early))
    assert store.snapshot().intents == ()


def test_taking_and_letting_go_in_one_batch_leaves_only_the_marks(store: Store) -> None:
    write(store, started(), granted(), released((0, 1)), moved(IntentState.RELEASED))
    seen = store.snapshot()
    assert (seen.locks, seen.intents) == ((), ())
    assert seen.marks == (MarkRecord("llama", 1, RING, 1, ((0, 1), (1, 1))),)


def test_a_lock_that_was_let_go_may_be_taken_again(store: Store) -> None:
    write(store, started(), granted())
    write(store, released((0, 1)), granted(locks=((0, 5), (1, 5))))
    assert [(lock.rank, lock.no) for lock in store.snapshot().locks] == [(0, 5), (1, 5)]


def test_a_job_is_stored_as_declared(store: Store) -> None:
    write(store, started("gpt"), started("llama"))
    assert store.snapshot().jobs == (
        JobRecord("gpt", 1, spec("gpt"), JobState.RUNNING, None, None, 100.0),
        JobRecord("llama", 1, spec("llama"), JobState.RUNNING, None, None, 100.0),
    )


def test_a_settled_job_is_stored_with_when_and_why(store: Store) -> None:
    write(store, started(), settled(JobState.FAILED, cause="rank-lost"))
    (job,) = store.snapshot().jobs
    assert (job.state, job.cause, job.started_at, job.settled_at) == (
        JobState.FAILED,
        "rank-lost",
        100.0,
        100.0,
    )


def test_of_a_failed_job_that_is_let_go_only_how_it_ended_is_kept(store: Store) -> None:
    write(store, started(), checked("dp0"), granted(), settled(JobState.FAILED, cause="rank-lost"))
    assert (store.snapshot().jobs[0].over, len(store.snapshot().locks)) == (False, 2)
    write(store, JobLetGo("llama", 1), RankLeft("llama", 1, 0))
    seen = store.snapshot()
    assert (seen.locks, seen.groups, seen.marks, seen.left) == ((), (), (), ())
    (job,) = seen.jobs
    assert (job.state, job.over) == (JobState.FAILED, True)
    assert job.failure == Failure(Problem.RANK_LOST, "because of rank-lost", 1, {"n": 1, "ranks": [1, 2]})


def test_circuits_count_for_who_owned_them_last_until_the_job_has_ended(store: Store) -> None:
    write(store, started(), CircuitsOwned("llama", 1, 1, ("a--b", "c--d")))
    write(store, CircuitsOwned("llama", 1, None, ("a--b",)), CircuitsOwned("llama", 1, 2, ("e--f",)))
    assert store.snapshot().owners == (
        OwnerRecord("llama", 1, "a--b", None),
        OwnerRecord("llama", 1, "c--d", 1),
        OwnerRecord("llama", 1, "e--f", 2),
    )
    write(store, settled(JobState.ENDED))
    assert store.snapshot().owners == ()


def test_a_group_is_stored_with_its_ranks_in_group_order(store: Store) -> None:
    write(store, started(), checked("dp0"), checked("a"), checked("dp0"))
    assert store.snapshot().groups == (
        GroupRecord("llama", 1, "a", (1, 0), "dp", 3, Domain.SCALE_OUT),
        GroupRecord("llama", 1, "dp0", (1, 0), "dp", 3, Domain.SCALE_OUT),
    )


def test_a_rank_that_has_left_is_remembered_until_its_job_is_over(store: Store) -> None:
    write(store, started(), RankLeft("llama", 1, 3), RankLeft("llama", 1, 1), RankLeft("llama", 1, 3))
    assert store.snapshot().left == (LeftRecord("llama", 1, 1), LeftRecord("llama", 1, 3))
    write(store, started(incarnation=2, nonce="n2"), RankLeft("llama", 1, 0), RankLeft("llama", 2, 2))
    assert store.snapshot().left == (LeftRecord("llama", 2, 2),)
    write(store, settled(JobState.ENDED, incarnation=2))
    assert store.snapshot().left == ()


def test_a_new_incarnation_takes_the_place_of_the_old_one(store: Store) -> None:
    write(store, started(), checked(), granted(), released((0,)), started("gpt"), granted(job="gpt"))
    write(store, started(incarnation=2, nonce="n2"))
    seen = store.snapshot()
    assert [(job.job, job.incarnation, job.spec.nonce) for job in seen.jobs] == [
        ("gpt", 1, "n1"),
        ("llama", 2, "n2"),
    ]
    assert seen.groups == ()
    assert {lock.job for lock in seen.locks} == {"gpt"}
    assert {mark.job for mark in seen.marks} == {"gpt"}
    assert {intent.job for intent in seen.intents} == {"gpt"}


def test_nothing_that_is_said_of_a_superseded_incarnation_changes_anything(store: Store) -> None:
    write(store, started(), granted())
    write(store, started(incarnation=2), granted(n=0, incarnation=2))
    before = store.snapshot()
    write(
        store,
        released((0, 1), incarnation=1),
        moved(IntentState.RELEASED, incarnation=1),
        settled(JobState.FAILED, incarnation=1, cause="superseded"),
    )
    assert store.snapshot() == before


def test_a_failed_job_keeps_its_locks_as_its_ranks_may_still_transmit(store: Store) -> None:
    write(store, started(), checked(), granted())
    write(store, settled(JobState.FAILED, cause="rank-lost"))
    seen = store.snapshot()
    assert [(job.state, job.cause, job.detail) for job in seen.jobs] == [
        (JobState.FAILED, "rank-lost", "because of rank-lost")
    ]
    assert [lock.rank for lock in seen.locks] == [0, 1]
    assert [group.group for group in seen.groups] == ["dp0"]


def test_an_ended_job_keeps_nothing_but_its_row(store: Store) -> None:
    write(store, started(), checked(), granted(), settled(JobState.FAILED, cause="rank-lost"))
    write(store, settled(JobState.ENDED))
    seen = store.snapshot()
    assert [(job.state, job.cause) for job in seen.jobs] == [(JobState.ENDED, None)]
    assert (seen.groups, seen.locks, seen.marks, seen.intents) == ((), (), (), ())


def test_steps_are_current_until_they_are_over(store: Store) -> None:
    write(store, planned(1), planned(2), planned(3))
    write(store, StepMoved(1, "sw0", StepState.STARTED), StepMoved(2, "sw0", StepState.DROPPED))
    seen = store.snapshot()
    assert [(step.step, step.state) for step in seen.steps] == [
        (1, StepState.STARTED),
        (3, StepState.PLANNED),
    ]
    assert seen.steps[0] == StepRecord(
        step=1,
        switch="sw0",
        generation=7,
        remove=(CrossConnect(2, 4),),
        add=(CrossConnect(2, 5), CrossConnect(5, 2)),
        causes=("dp0#3",),
        disturbed=("a--c",),
        state=StepState.STARTED,
        detail=None,
    )
    write(store, StepMoved(1, "sw0", StepState.FAILED, "no light"), StepMoved(3, "sw0", StepState.DROPPED))
    assert (store.snapshot().steps, store.snapshot().last_step) == ((), 3)


def test_the_last_observation_of_a_switch_is_kept_whole(store: Store) -> None:
    first = (CrossConnect(3, 1), CrossConnect(0, 5), CrossConnect(1, 3))
    write(store, CircuitsObserved("sw1", 4, first), CircuitsObserved("sw0", 1, ()))
    assert store.snapshot().switches == (
        SwitchRecord("sw0", 1, ()),
        SwitchRecord("sw1", 4, (CrossConnect(0, 5), CrossConnect(1, 3), CrossConnect(3, 1))),
    )
    again = (CrossConnect(0, 5), CrossConnect(2, 2))
    write(store, CircuitsObserved("sw1", 5, again))
    assert store.snapshot().switches[1] == SwitchRecord("sw1", 5, again)
    write(store, CircuitsObserved("sw1", 6, again, again[:1]))
    assert store.snapshot().switches[1] == SwitchRecord("sw1", 6, again, again[:1])
    write(store, CircuitsObserved("sw1", 7, again))
    assert store.snapshot().switches[1] == SwitchRecord("sw1", 7, again)


def test_events_are_numbered_from_1_and_carry_the_batches_time(store: Store) -> None:
    first = EventAppended("job.started", "llama", 1, data={"b": (1, 2), "a": {"x": None}})
    assert write(store, first, EventAppended("switch.read", rail="r0", switch="sw0"), at=7.5) == 2
    assert write(store) == 2
    assert write(store, EventAppended("later"), at=8.0) == 3
    assert store.events(0, 10) == [
        EventRecord(1, 7.5, "job.started", "llama", 1, None, None, {"a": {"x": None}, "b": [1, 2]}),
        EventRecord(2, 7.5, "switch.read", None, None, "r0", "sw0", {}),
        EventRecord(3, 8.0, "later", None, None, None, None, {}),
    ]
    assert store.snapshot().last_event == 3


KINDS = ("job", "job.started", "job.started.late", "jobs.started", "Job.started", "j_b.started", "job.ended")


@pytest.mark.parametrize(
    ("since", "limit", "job", "kind", "wanted"),
    [
        (0, 1000, None, None, [1, 2, 3, 4, 5, 6, 7]),
        (2, 3, None, None, [3, 4, 5]),
        (7, 10, None, None, []),
        (0, 0, None, None, []),
        (0, 10, "llama", None, [1, 3, 5, 7]),
        (3, 1, "llama", None, [5]),
        (0, 10, "nobody", None, []),
        (0, 10, None, "job", [1, 2, 3, 7]),
        (0, 10, None, "job.started", [2, 3]),
        (0, 10, None, "job.start", []),
        (0, 10, None, "j_b", [6]),
        (0, 2, "llama", "job", [1, 3]),
    ],
)
def test_events_are_selected_by_number_job_and_dotted_kind(
    store: Store, since: int, limit: int, job: str | None, kind: str | None, wanted: list[int]
) -> None:
    jobs = itertools.cycle(["llama", "gpt"])
    write(store, *(EventAppended(name, next(jobs), 1) for name in KINDS))
    assert [event.seq for event in store.events(since, limit, job, kind)] == wanted


@pytest.mark.parametrize("limit", [-1, 1001])
def test_a_page_of_events_has_a_limit(store: Store, limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit is {limit}: use 0 to 1000"):
        store.events(0, limit)


def test_only_the_newest_events_are_kept_and_numbers_go_on(open_store: OpenStore) -> None:
    store = open_store(retention=Retention(events_max=100))
    for _ in range(50):
        write(store, *(EventAppended("tick"),) * 7)
        assert len(store.events(0, 1000)) <= 100
    kept = [event.seq for event in store.events(0, 1000)]
    assert kept == list(range(351 - len(kept), 351))
    assert len(kept) >= 90
    assert store.snapshot().last_event == 350


REFUSED: list[tuple[str, tuple[Change, ...]]] = [
    ("incarnation 0 here, but a change names 1", (granted(job="nobody"),)),
    ("incarnation 1 here, but a change names 2", (released((0,), incarnation=2),)),
    ("incarnation 2 here: 1 may not act", (started(incarnation=2), granted(n=3, incarnation=1))),
    ("incarnation 2 here: 1 may not act", (started(incarnation=2), checked(incarnation=1))),
    ("incarnation 1 here: a new one is numbered above it, not 1", (started(),)),
    ("holds run 3 of dp0 already", (granted(n=3), granted(n=3))),
    ("step 1 is planned after step 1", (planned(1), planned(1))),
    ("step 9 of switch 'sw0' is finished or was never planned", (StepMoved(9, "sw0", StepState.DONE),)),
    (
        "step 1 of switch 'sw0' is finished",
        (planned(), StepMoved(1, "sw0", StepState.DONE), StepMoved(1, "sw0", StepState.STARTED)),
    ),
    ("data of event 'x' is .* which is not JSON", (EventAppended("x", data={"a": {1, 2}}),)),
    ("data of event 'x' is .* which is not JSON", (EventAppended("x", data={"a": float("nan")}),)),
]


@pytest.mark.parametrize(("said", "changes"), REFUSED)
def test_a_batch_that_contradicts_the_store_is_refused_whole_and_nothing_after_it_is_taken(
    store: Store, said: str, changes: tuple[Change, ...]
) -> None:
    write(store, started(), granted(), EventAppended("before"))
    before = store.snapshot(), store.events(0, 10)
    first = (EventAppended("torn"), granted(n=2), CircuitsObserved("sw0", 1, ()), released((0,)))
    with pytest.raises(StoreError, match=said):
        write(store, *first, *changes)
    with pytest.raises(StoreError, match=said):
        write(store, EventAppended("after"))
    with pytest.raises(StoreError, match=said):
        store.raise_start()
    assert (store.snapshot(), store.events(0, 10)) == before


def test_a_run_that_is_held_cannot_be_granted_again_later(store: Store) -> None:
    write(store, started(), granted(n=3))
    with pytest.raises(StoreError):
        write(store, granted(n=3))
    assert len(store.snapshot().locks) == 2


def test_a_closed_store_takes_and_tells_nothing(store: Store) -> None:
    store.close()
    store.close()
    assert isinstance(store.submit(batch(1)).exception(timeout=60), StoreError)
    for call in (store.raise_start, store.snapshot, lambda: store.events(0, 1)):
        with pytest.raises(StoreError, match="closed"):
            call()
