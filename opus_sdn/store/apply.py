"""What each change does to the tables.

Within a transaction the changes that come in numbers (groups, locks, marks, intents, events) are collected
and written as one bulk statement per table and kind, however many batches the transaction holds. Everything
else is rare and written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Delete,
    Insert,
    Table,
    Update,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from opus_sdn.intent.changes import (
    Batch,
    Change,
    CircuitsObserved,
    CircuitsOwned,
    DirectiveGiven,
    DirectiveWithdrawn,
    EventAppended,
    GroupChecked,
    IntentMoved,
    IntentState,
    JobLetGo,
    JobSettled,
    JobStarted,
    JobState,
    LocksReleased,
    RankLeft,
    RunCut,
    RunGranted,
    StepMoved,
    StepPlanned,
    StepState,
)
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.store import codec, rules
from opus_sdn.store.rows import (
    GRANTED_MARK,
    CircuitRow,
    DirectiveRow,
    EventRow,
    FabricRow,
    GroupRow,
    IntentRow,
    JobRow,
    LeftRow,
    LockRow,
    MarkRow,
    MetaRow,
    OwnerRow,
    PortRow,
    RailRow,
    StepRow,
    SwitchRow,
    table,
)
from opus_sdn.store.rules import Retention

UNFINISHED = [StepState.PLANNED.value, StepState.STARTED.value]

Key = tuple[str | int, ...]
Values = dict[str, Any]


_JOBS, _GROUPS, _LEFT, _LOCKS, _MARKS, _INTENTS = (
    table(row) for row in (JobRow, GroupRow, LeftRow, LockRow, MarkRow, IntentRow)
)
_STEPS, _SWITCHES, _CIRCUITS, _EVENTS = (table(row) for row in (StepRow, SwitchRow, CircuitRow, EventRow))
_OWNERS = table(OwnerRow)
_DIRECTIVES = table(DirectiveRow)
_WORK = (_GROUPS, _LEFT, _LOCKS, _MARKS, _OWNERS, _INTENTS)  # of an incarnation, while it works
_META, _FABRIC, _PORTS, _RAILS = (table(row) for row in (MetaRow, FabricRow, PortRow, RailRow))


def _key_names(of: Table) -> tuple[str, ...]:
    return tuple(column.name for column in of.primary_key)


def _delete_by_key(of: Table) -> Delete:
    return delete(of).where(*(column == bindparam(column.name) for column in of.primary_key))


def _update(of: Table, by: Sequence[str], column: str) -> Update:
    """Set a column of all rows that have these parts of their keys."""
    at = [of.c[name] == bindparam(f"at_{name}") for name in by]
    return update(of).where(*at).values({column: bindparam("to")})


_LOCK_KEY, _MARK_KEY, _INTENT_KEY = (_key_names(of) for of in (_LOCKS, _MARKS, _INTENTS))
_CIRCUIT_KEY = _key_names(_CIRCUITS)
_LOCK_GONE, _INTENT_GONE, _CIRCUIT_GONE = (_delete_by_key(of) for of in (_LOCKS, _INTENTS, _CIRCUITS))
_DIRECTIVE_GONE = _delete_by_key(_DIRECTIVES)
_LOCK_CUT, _INTENT_CUT = (_update(of, _INTENT_KEY, "length") for of in (_LOCKS, _INTENTS))
_MARK_BACK = _update(_MARKS, _MARK_KEY, "mark")
_LOCK_NEW, _EVENT_NEW, _STEP_NEW, _CIRCUIT_NEW = (insert(of) for of in (_LOCKS, _EVENTS, _STEPS, _CIRCUITS))


def _changed(names: Sequence[str], values: Mapping[Key, int]) -> list[Values]:
    """Parameters of an update by key: keys cannot be named as their columns are there."""
    return [
        {**{f"at_{name}": part for name, part in zip(names, key, strict=True)}, "to": value}
        for key, value in values.items()
    ]


class Statements:
    """What databases write in different words: an insert that finds the row there already."""

    def __init__(self, new: Callable[[Table], Any]) -> None:
        self._new = new
        self.job, self.group, self.intent, self.switch, self.fabric, self.owner = (
            self._upsert(of) for of in (_JOBS, _GROUPS, _INTENTS, _SWITCHES, _FABRIC, _OWNERS)
        )
        self.directive = self._upsert(_DIRECTIVES)
        self.left: Insert = new(_LEFT).on_conflict_do_nothing(index_elements=list(_LEFT.primary_key))
        raised = new(_MARKS)
        self.mark: Insert = raised.on_conflict_do_update(
            index_elements=list(_MARKS.primary_key),
            set_={"mark": raised.excluded.mark},
            where=raised.excluded.mark > _MARKS.c.mark,
        )

    def _upsert(self, of: Table) -> Insert:
        statement = self._new(of)
        others = {
            column.name: statement.excluded[column.name] for column in of.columns if not column.primary_key
        }
        made: Insert = statement.on_conflict_do_update(index_elements=list(of.primary_key), set_=others)
        return made


statements_of = cache(Statements)


class Applier:
    """Applies changes on the one writing connection. Used by one thread; a failure leaves it unusable."""

    def __init__(self, connection: Connection, statements: Statements, retention: Retention) -> None:
        self._connection = connection
        self._statements = statements
        self._retention = retention
        read = connection.execute
        self._incarnations: dict[str, int] = {
            row.job: row.incarnation for row in read(select(_JOBS.c.job, _JOBS.c.incarnation))
        }
        observed: dict[str, set[tuple[CrossConnect, bool]]] = {}
        for switch, ingress, egress, others in read(select(_CIRCUITS)):
            observed.setdefault(switch, set()).add((CrossConnect(ingress, egress), others))
        self._observed = {switch: frozenset(pairs) for switch, pairs in observed.items()}
        # One at a time: then both ends of the table itself are read, and damage there is found at the start.
        self._last_event: int = read(select(func.max(_EVENTS.c.seq))).scalar() or 0
        self._first_event: int = read(select(func.min(_EVENTS.c.seq))).scalar() or 1
        self._steps_count: int = read(select(func.count()).select_from(_STEPS)).scalar_one()
        self._last_step: int = read(select(func.max(_STEPS.c.step))).scalar() or 0
        ended = read(select(_JOBS.c.job).where(_JOBS.c.over))
        self._ended: set[str] = set(ended.scalars())
        self._now = 0.0
        self._look_for_old_at = 0.0
        self._forget_collected()

    def _forget_collected(self) -> None:
        self._groups: dict[Key, Values] = {}
        self._left: dict[Key, Values] = {}
        self._locks_gone: set[Key] = set()
        self._locks: dict[Key, Values] = {}
        self._marks: dict[Key, int] = {}
        self._marks_back: dict[Key, int] = {}
        self._runs_cut: dict[Key, int] = {}
        self._owners: dict[Key, Values] = {}
        self._intents_gone: set[Key] = set()
        self._intents: dict[Key, Values] = {}
        self._events: list[Values] = []

    def batch(self, batch: Batch) -> int:
        """Apply a batch; the number of the last event so far. StoreError when it contradicts the store."""
        self._now = max(self._now, batch.at)
        for change in batch.changes:
            self._change(change, batch.at)
        return self._last_event

    def put_fabric(
        self, document: str, ports: Sequence[tuple[str, str, str, int]], rails: Sequence[tuple[str, str]]
    ) -> int:
        """Replace the fabric when its document differs; the generation it has now."""
        stored = self._connection.execute(select(_FABRIC.c.generation, _FABRIC.c.document)).first()
        if stored is not None and stored.document == document:
            return int(stored.generation)
        generation = 1 if stored is None else stored.generation + 1
        self._connection.execute(
            self._statements.fabric, {"id": 1, "generation": generation, "document": document}
        )
        self._connection.execute(delete(_PORTS))
        self._connection.execute(delete(_RAILS))
        self._many(insert(_RAILS), [{"rail": rail, "switch": switch} for rail, switch in rails])
        self._many(
            insert(_PORTS),
            [
                {"port": port, "rail": rail, "switch": switch, "position": position}
                for port, rail, switch, position in ports
            ],
        )
        return int(generation)

    def flush(self) -> None:
        """Write what was collected: what goes before what comes, so that a key may do both."""
        self._many(self._statements.group, list(self._groups.values()))
        self._many(self._statements.left, list(self._left.values()))
        self._many(_LOCK_GONE, [dict(zip(_LOCK_KEY, key, strict=True)) for key in self._locks_gone])
        self._many(_LOCK_NEW, list(self._locks.values()))
        self._many(_LOCK_CUT, _changed(_INTENT_KEY, self._runs_cut))
        self._many(_MARK_BACK, _changed(_MARK_KEY, self._marks_back))
        self._many(
            self._statements.mark,
            [{**dict(zip(_MARK_KEY, key, strict=True)), "mark": mark} for key, mark in self._marks.items()],
        )
        self._many(self._statements.owner, list(self._owners.values()))
        self._many(_INTENT_GONE, [dict(zip(_INTENT_KEY, key, strict=True)) for key in self._intents_gone])
        self._many(self._statements.intent, list(self._intents.values()))
        self._many(_INTENT_CUT, _changed(_INTENT_KEY, self._runs_cut))
        self._many(_EVENT_NEW, self._events)
        if self._events:
            self._trim_events()
        self._forget_collected()

    def _newest(self, job: str) -> int:
        return self._incarnations.get(job, 0)

    def _many(self, statement: Delete | Insert | Update, rows: list[Values]) -> None:
        if rows:
            self._connection.execute(statement, rows)

    def _change(self, change: Change, at: float) -> None:
        match change:
            case RunGranted() | RunCut() | LocksReleased():
                self._change_of_run(change)
            case CircuitsOwned():
                self._owned(change)
            case EventAppended():
                self._event(change, at if change.at is None else change.at)
            case IntentMoved():
                self._intent_moved(change)
            case StepPlanned() | StepMoved() | CircuitsObserved():
                self._change_of_switch(change, at)
            case GroupChecked():
                self._group_checked(change)
            case RankLeft():
                self._rank_left(change)
            case DirectiveGiven() | DirectiveWithdrawn():
                self._directive(change)
            case JobStarted():
                self._job_started(change, at)
            case JobSettled() | JobLetGo():
                self._job_settled(change, at)

    def _change_of_run(self, change: RunGranted | RunCut | LocksReleased) -> None:
        match change:
            case RunGranted():
                self._granted(change)
            case RunCut():
                self._cut(change)
            case LocksReleased():
                self._released(change)

    def _change_of_switch(self, change: StepPlanned | StepMoved | CircuitsObserved, at: float) -> None:
        match change:
            case StepPlanned():
                self._step_planned(change, at)
            case StepMoved():
                self._step_moved(change, at)
            case CircuitsObserved():
                self._observed_now(change, at)

    # --- runs

    def _granted(self, change: RunGranted) -> None:
        rules.must_act(self._newest(change.job), change.job, change.incarnation)
        stream = (change.job, change.incarnation, *codec.stream_key(change.stream))
        for rank, grant_no in change.locks:
            key = (*stream, change.n, rank)
            if key in self._locks:
                raise rules.granted_twice(change.stream, change.n, rank)
            self._locks[key] = {
                **dict(zip(_LOCK_KEY, key, strict=True)),
                "length": change.length,
                "grant_no": grant_no,
                "locked_at": change.granted_at,
            }
        self._raise((*stream, GRANTED_MARK), change.n + change.length)
        run = (*stream, change.n)
        self._intents[run] = {
            **dict(zip(_INTENT_KEY, run, strict=True)),
            "length": change.length,
            "state": IntentState.GRANTED.value,
            "complete_at": change.complete_at,
            "granted_at": change.granted_at,
        }

    def _cut(self, change: RunCut) -> None:
        if not rules.may_act(self._newest(change.job), change.job, change.incarnation):
            return
        stream = (change.job, change.incarnation, *codec.stream_key(change.stream))
        self._runs_cut[(*stream, change.n)] = change.length
        mark = (*stream, GRANTED_MARK)
        self._marks[mark] = self._marks_back[mark] = change.n + change.length  # the only mark that goes back

    def _released(self, change: LocksReleased) -> None:
        if not rules.may_act(self._newest(change.job), change.job, change.incarnation):
            return
        stream = (change.job, change.incarnation, *codec.stream_key(change.stream))
        for rank in change.ranks:
            key = (*stream, change.n, rank)
            self._locks.pop(key, None)
            self._locks_gone.add(key)
            self._raise((*stream, rank), change.n + change.length)

    def _owned(self, change: CircuitsOwned) -> None:
        if not rules.may_act(self._newest(change.job), change.job, change.incarnation):
            return
        for circuit in change.circuits:
            self._owners[change.job, change.incarnation, circuit] = {
                "job": change.job,
                "incarnation": change.incarnation,
                "circuit": circuit,
                "digit": change.digit,
            }

    def _raise(self, key: Key, mark: int) -> None:
        self._marks[key] = max(mark, self._marks.get(key, mark))

    def _intent_moved(self, change: IntentMoved) -> None:
        if not rules.may_act(self._newest(change.job), change.job, change.incarnation):
            return
        if change.state in {IntentState.RELEASED, IntentState.FAILED}:
            key = (change.job, change.incarnation, *codec.stream_key(change.stream), change.n)
            self._intents.pop(key, None)
            self._intents_gone.add(key)

    def _event(self, change: EventAppended, at: float) -> None:
        self._last_event += 1
        self._events.append(
            {
                "seq": self._last_event,
                "at": at,
                "kind": change.kind,
                "job": change.job,
                "incarnation": change.incarnation,
                "rail": change.rail,
                "switch": change.switch,
                "data": codec.to_json(change.data, f"data of event {change.kind!r}"),
            }
        )

    def _trim_events(self) -> None:
        count = self._last_event - self._first_event + 1
        drop = rules.events_to_drop(count, self._retention.events_max)
        if self._now >= self._look_for_old_at:
            self._look_for_old_at = self._now + rules.LOOK_FOR_OLD_EVERY_S
            drop = max(drop, rules.old_events_to_drop(self._first_young_event() - self._first_event))
        if drop:
            self._first_event += drop
            self._connection.execute(delete(_EVENTS).where(_EVENTS.c.seq < self._first_event))

    def _first_young_event(self) -> int:
        """The oldest event that age lets stay: the newest one stays always, as numbers go on from it."""
        young = select(_EVENTS.c.seq).where(_EVENTS.c.at >= self._now - self._retention.events_age_s)
        first = self._connection.execute(young.order_by(_EVENTS.c.seq).limit(1)).scalar()
        return self._last_event if first is None else int(first)

    # --- jobs

    def _job_started(self, change: JobStarted, at: float) -> None:
        rules.must_be_newer(self._newest(change.job), change.job, change.incarnation)
        self._forget_work(change.job)
        job = {
            "job": change.job,
            "incarnation": change.incarnation,
            "spec": codec.spec_to_json(change.spec),
            "state": JobState.RUNNING.value,
            "cause": None,
            "detail": None,
            "started_at": at,
            "settled_at": None,
            "cause_rank": None,
            "cause_data": None,
            "over": False,
        }
        self._connection.execute(self._statements.job, job)
        self._incarnations[change.job] = change.incarnation
        self._ended.discard(change.job)

    def _job_settled(self, change: JobSettled | JobLetGo, at: float) -> None:
        if not rules.may_act(self._newest(change.job), change.job, change.incarnation):
            return
        if isinstance(change, JobLetGo):
            self._over(change.job)
            return
        data = codec.to_json(change.data, f"data of job {change.job!r}") if change.data else None
        self._connection.execute(
            update(_JOBS)
            .where(_JOBS.c.job == change.job)
            .values(
                state=change.state.value,
                cause=change.cause,
                detail=codec.text(change.detail),
                cause_rank=change.rank,
                cause_data=data,
                settled_at=at,
                over=False,
            )
        )
        self._ended.discard(change.job)
        if change.state is JobState.ENDED:
            self._over(change.job)

    def _over(self, job: str) -> None:
        """Only how a job ended is kept of it, and of many only the newest."""
        self._forget_work(job)
        self._connection.execute(update(_JOBS).where(_JOBS.c.job == job).values(over=True))
        self._ended.add(job)
        self._trim_jobs()

    def _trim_jobs(self) -> None:
        """Forget the jobs that ended longest ago, but not how far incarnations were numbered."""
        drop = rules.jobs_to_drop(len(self._ended), self._retention.jobs_max)
        if not drop:
            return
        ended = select(_JOBS.c.job, _JOBS.c.incarnation).where(_JOBS.c.over)
        oldest = self._connection.execute(ended.order_by(_JOBS.c.settled_at)).all()
        gone = [row.job for row in oldest[:drop]]
        floor = max(row.incarnation for row in oldest[:drop])
        for of in (*_WORK, _JOBS):  # an older program may have left work of them
            self._connection.execute(delete(of).where(of.c.job.in_(gone)))
        lower = update(_META).where(_META.c.incarnation_floor < floor)
        self._connection.execute(lower.values(incarnation_floor=floor))
        self._ended.difference_update(gone)
        for job in gone:
            del self._incarnations[job]

    def _forget_work(self, job: str) -> None:
        """Remove what an incarnation works with, once nobody works in its name any more."""
        self.flush()
        for of in _WORK:
            self._connection.execute(delete(of).where(of.c.job == job))

    def _group_checked(self, change: GroupChecked) -> None:
        rules.must_act(self._newest(change.job), change.job, change.incarnation)
        self._groups[(change.job, change.group)] = {
            "job": change.job,
            "incarnation": change.incarnation,
            "group": change.group,
            "ranks": codec.numbers_to_json(change.ranks),
            "dimension": change.dimension,
            "ordinal": change.ordinal,
            "domain": change.domain.value,
        }

    def _rank_left(self, change: RankLeft) -> None:
        may = rules.may_act(self._newest(change.job), change.job, change.incarnation)
        if may and change.job not in self._ended:
            left = {"job": change.job, "incarnation": change.incarnation, "rank": change.rank}
            self._left[(change.job, change.rank)] = left

    # --- operators

    def _directive(self, change: DirectiveGiven | DirectiveWithdrawn) -> None:
        key = {"kind": change.kind.value, "name": change.name}
        if isinstance(change, DirectiveWithdrawn):
            self._connection.execute(_DIRECTIVE_GONE, key)
            return
        data = codec.to_json(change.data, f"data of {change.kind} {change.name!r}")
        row = {**key, "number": change.number, "given_at": change.at, "data": data}
        self._connection.execute(self._statements.directive, row)

    # --- switches

    def _step_planned(self, change: StepPlanned, at: float) -> None:
        step = {
            "step": change.step,
            "switch": change.switch,
            "generation": change.generation,
            "remove": codec.pairs_to_json(change.remove),
            "add": codec.pairs_to_json(change.add),
            "causes": codec.texts_to_json(change.causes),
            "disturbed": codec.texts_to_json(change.disturbed),
            "state": StepState.PLANNED.value,
            "detail": None,
            "planned_at": at,
            "moved_at": at,
        }
        rules.step_must_be_newer(self._last_step, change.step)
        self._connection.execute(_STEP_NEW, step)
        self._last_step = change.step
        self._steps_count += 1
        if self._steps_count > self._retention.steps_max:
            self._trim_steps()

    def _step_moved(self, change: StepMoved, at: float) -> None:
        moved = self._connection.execute(
            update(_STEPS)
            .where(_STEPS.c.step == change.step, _STEPS.c.state.in_(UNFINISHED))
            .values(state=change.state.value, detail=codec.text(change.detail), moved_at=at)
        )
        if moved.rowcount != 1:
            raise rules.unknown_step(change.step, change.switch)

    def _trim_steps(self) -> None:
        """Forget old finished steps; the newest stays, as its number must not be given again."""
        kept_from = self._last_step - rules.steps_to_keep(self._retention.steps_max)
        gone = self._connection.execute(
            delete(_STEPS).where(_STEPS.c.step < kept_from, _STEPS.c.state.not_in(UNFINISHED))
        )
        self._steps_count -= gone.rowcount

    def _observed_now(self, change: CircuitsObserved, at: float) -> None:
        seen = {"switch": change.switch, "generation": change.generation, "observed_at": at}
        self._connection.execute(self._statements.switch, seen)
        before = self._observed.get(change.switch, frozenset())
        foreign = frozenset(change.foreign)
        after = frozenset((pair, pair in foreign) for pair in change.matching)
        gone, new = _circuit_rows(change.switch, before - after), _circuit_rows(change.switch, after - before)
        self._many(_CIRCUIT_GONE, [{name: row[name] for name in _CIRCUIT_KEY} for row in gone])
        self._many(_CIRCUIT_NEW, new)
        self._observed[change.switch] = after


def _circuit_rows(switch: str, pairs: frozenset[tuple[CrossConnect, bool]]) -> list[Values]:
    return [
        {"switch": switch, "ingress": pair.ingress, "egress": pair.egress, "others": others}
        for pair, others in pairs
    ]
