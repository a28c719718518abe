"""Reading stored rows back as the store's records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, func, or_, select

from opus_sdn.intent.changes import DirectiveGiven, DirectiveKind, IntentState, JobState, StepState
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Domain, Stream
from opus_sdn.store import codec
from opus_sdn.store.apply import UNFINISHED
from opus_sdn.store.base import (
    EventRecord,
    GroupRecord,
    IntentRecord,
    JobRecord,
    LeftRecord,
    LockRecord,
    MarkRecord,
    OwnerRecord,
    Snapshot,
    StepRecord,
    SwitchRecord,
)
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
    StepRow,
    SwitchRow,
    table,
)

_EVENTS = table(EventRow)
_STEPS = table(StepRow)


def read_snapshot(connection: Connection) -> Snapshot:
    """Everything current, in key order. The caller's transaction makes it one moment."""
    meta = connection.execute(select(table(MetaRow))).mappings().one()
    fabric = next(iter(_rows(connection, table(FabricRow))), None)
    circuits: dict[str, list[CrossConnect]] = {}
    foreign: dict[str, list[CrossConnect]] = {}
    for row in _rows(connection, table(CircuitRow)):
        pair = CrossConnect(row["ingress"], row["egress"])
        circuits.setdefault(row["switch"], []).append(pair)
        if row["others"]:
            foreign.setdefault(row["switch"], []).append(pair)
    steps = select(_STEPS).where(_STEPS.c.state.in_(UNFINISHED)).order_by(_STEPS.c.step)
    return Snapshot(
        start=meta["start_number"],
        fabric=None if fabric is None else fabric["document"],
        fabric_generation=0 if fabric is None else fabric["generation"],
        jobs=tuple(_job(row) for row in _rows(connection, table(JobRow))),
        groups=tuple(_group(row) for row in _rows(connection, table(GroupRow))),
        left=tuple(LeftRecord(**row) for row in _rows(connection, table(LeftRow))),
        locks=tuple(_lock(row) for row in _rows(connection, table(LockRow))),
        marks=_marks(_rows(connection, table(MarkRow))),
        intents=tuple(_intent(row) for row in _rows(connection, table(IntentRow))),
        steps=tuple(_step(row) for row in connection.execute(steps).mappings()),
        switches=tuple(
            SwitchRecord(
                row["switch"],
                row["generation"],
                tuple(circuits.get(row["switch"], ())),
                tuple(foreign.get(row["switch"], ())),
            )
            for row in _rows(connection, table(SwitchRow))
        ),
        last_step=connection.execute(select(func.max(_STEPS.c.step))).scalar() or 0,
        last_event=connection.execute(select(func.max(_EVENTS.c.seq))).scalar() or 0,
        clean=meta["began_clean"],
        incarnation_floor=meta["incarnation_floor"],
        owners=tuple(OwnerRecord(**row) for row in _rows(connection, table(OwnerRow))),
        directives=tuple(sorted(map(_directive, _rows(connection, table(DirectiveRow))), key=_number)),
    )


def read_events(
    connection: Connection, since: int, limit: int, job: str | None, kind: str | None
) -> list[EventRecord]:
    """Events with seq > since, oldest first; `kind` names a kind or the dotted beginning of some."""
    query = select(_EVENTS).where(_EVENTS.c.seq > since).order_by(_EVENTS.c.seq).limit(limit)
    if job is not None:
        query = query.where(_EVENTS.c.job == job)
    if kind is not None:
        # LIKE would ignore case on some databases and read `_` as a wildcard.
        beginning = func.substr(_EVENTS.c.kind, 1, len(kind) + 1) == f"{kind}."
        query = query.where(or_(_EVENTS.c.kind == kind, beginning))
    return [_event(row) for row in connection.execute(query).mappings()]


def _rows(connection: Connection, of: Table) -> list[RowMapping]:
    """All rows in key order: sorted here, as databases sort text each in an order of its own."""
    key = [column.name for column in of.primary_key]
    return sorted(connection.execute(select(of)).mappings(), key=lambda row: [row[name] for name in key])


def _stream(row: Mapping[Any, Any]) -> Stream:
    return codec.stream_of(row["connection"], row["source"], row["destination"])


def _job(row: RowMapping) -> JobRecord:
    return JobRecord(
        job=row["job"],
        incarnation=row["incarnation"],
        spec=codec.spec_from_json(row["spec"], row["job"]),
        state=JobState(row["state"]),
        cause=row["cause"],
        detail=row["detail"],
        started_at=row["started_at"],
        settled_at=row["settled_at"],
        rank=row["cause_rank"],
        data=codec.data_from_json(row["cause_data"] or "{}", f"data of job {row['job']!r}"),
        over=row["over"],
    )


def _directive(row: RowMapping) -> DirectiveGiven:
    return DirectiveGiven(
        kind=DirectiveKind(row["kind"]),
        name=row["name"],
        number=row["number"],
        at=row["given_at"],
        data=codec.data_from_json(row["data"], f"data of {row['kind']} {row['name']!r}"),
    )


def _number(given: DirectiveGiven) -> int:
    return given.number


def _group(row: RowMapping) -> GroupRecord:
    return GroupRecord(
        job=row["job"],
        incarnation=row["incarnation"],
        group=row["group"],
        ranks=codec.numbers_from_json(row["ranks"], f"ranks of group {row['group']!r}"),
        dimension=row["dimension"],
        ordinal=row["ordinal"],
        domain=Domain(row["domain"]),
    )


def _lock(row: RowMapping) -> LockRecord:
    return LockRecord(
        job=row["job"],
        incarnation=row["incarnation"],
        stream=_stream(row),
        rank=row["rank"],
        n=row["n"],
        length=row["length"],
        no=row["grant_no"],
        at=row["locked_at"],
    )


def _marks(rows: list[RowMapping]) -> tuple[MarkRecord, ...]:
    """One record per stream; the rows of a stream come together, its own mark (rank GRANTED_MARK) first."""
    granted: dict[tuple[str, int, Stream], int] = {}
    released: dict[tuple[str, int, Stream], list[tuple[int, int]]] = {}
    for row in rows:
        key = (row["job"], row["incarnation"], _stream(row))
        granted.setdefault(key, 0)
        if row["rank"] == GRANTED_MARK:
            granted[key] = row["mark"]
        else:
            released.setdefault(key, []).append((row["rank"], row["mark"]))
    return tuple(
        MarkRecord(*key, granted=mark, released=tuple(released.get(key, ()))) for key, mark in granted.items()
    )


def _intent(row: RowMapping) -> IntentRecord:
    return IntentRecord(
        job=row["job"],
        incarnation=row["incarnation"],
        stream=_stream(row),
        n=row["n"],
        length=row["length"],
        state=IntentState(row["state"]),
        complete_at=row["complete_at"],
        granted_at=row["granted_at"],
    )


def _step(row: RowMapping) -> StepRecord:
    what = f"of step {row['step']}"
    return StepRecord(
        step=row["step"],
        switch=row["switch"],
        generation=row["generation"],
        remove=codec.pairs_from_json(row["remove"], f"removals {what}"),
        add=codec.pairs_from_json(row["add"], f"additions {what}"),
        causes=codec.texts_from_json(row["causes"], f"causes {what}"),
        disturbed=codec.texts_from_json(row["disturbed"], f"disturbed circuits {what}"),
        state=StepState(row["state"]),
        detail=row["detail"],
    )


def _event(row: RowMapping) -> EventRecord:
    return EventRecord(
        seq=row["seq"],
        at=row["at"],
        kind=row["kind"],
        job=row["job"],
        incarnation=row["incarnation"],
        rail=row["rail"],
        switch=row["switch"],
        data=codec.data_from_json(row["data"], f"data of event {row['seq']}"),
    )
