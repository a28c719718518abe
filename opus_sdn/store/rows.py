"""The tables. Rows are never used as objects on the hot path: statements are built from `table(...)`."""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlmodel import Field, SQLModel

# SQLite numbers rows by a column of type INTEGER only; elsewhere 32 bits would be too few.
BIG = BigInteger().with_variant(Integer(), "sqlite")

# Whose mark a row of `marks` is: this for the stream itself (granted), a rank for that rank (released).
GRANTED_MARK = -1

GIVEN = {"autoincrement": False}  # the writer numbers these itself
CLUSTERED = {"sqlite_with_rowid": False}  # one tree instead of two for tables found by their whole key


class Row(SQLModel):
    """Common base: metadata of its own, with names for all constraints so that migrations can change them."""

    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class MetaRow(Row, table=True):
    """Facts about the whole database, in one row."""

    __tablename__ = "meta"
    __table_args__ = (CheckConstraint("id = 1", name="single_row"),)

    id: int = Field(primary_key=True, sa_type=Integer)
    start_number: int = Field(sa_type=BIG)
    # Transactions so far. One that was cut off while it committed is known to be there, or not, by it.
    commits: int = Field(sa_type=BIG, sa_column_kwargs={"server_default": text("0")})
    # Incarnations of jobs whose rows are gone were numbered up to here.
    incarnation_floor: int = Field(sa_type=BIG, sa_column_kwargs={"server_default": text("0")})
    # Whether the newest start has ended in order, and whether the one before it had.
    ended_clean: bool = Field(sa_type=Boolean, sa_column_kwargs={"server_default": false()})
    began_clean: bool = Field(sa_type=Boolean, sa_column_kwargs={"server_default": false()})


class LeaseRow(Row, table=True):
    """Who leads, in one row. Times are the database server's, in seconds since 1970."""

    __tablename__ = "lease"
    __table_args__ = (CheckConstraint("id = 1", name="single_row"),)

    id: int = Field(primary_key=True, sa_type=Integer)
    epoch: int = Field(sa_type=BIG)
    holder: str
    address: str
    renewals: int = Field(sa_type=BIG)
    renewed_at: float = Field(sa_type=Double)
    expires_at: float = Field(sa_type=Double)
    quiet_at: float = Field(sa_type=Double)


class FabricRow(Row, table=True):
    """The fabric document as it was given, in one row."""

    __tablename__ = "fabric"
    __table_args__ = (CheckConstraint("id = 1", name="single_row"),)

    id: int = Field(primary_key=True, sa_type=Integer)
    generation: int = Field(sa_type=BIG)
    document: str = Field(sa_type=Text)


class RailRow(Row, table=True):
    """A rail of the stored fabric."""

    __tablename__ = "rails"

    rail: str = Field(primary_key=True)
    switch: str


class PortRow(Row, table=True):
    """A NIC port of the stored fabric and the switch position it sits on."""

    __tablename__ = "ports"
    __table_args__ = (
        ForeignKeyConstraint(["rail"], ["rails.rail"]),
        UniqueConstraint("switch", "position"),
    )

    port: str = Field(primary_key=True)
    rail: str
    switch: str
    position: int = Field(sa_type=BIG)


class SwitchRow(Row, table=True):
    """The last observation of a switch."""

    __tablename__ = "switches"

    switch: str = Field(primary_key=True)
    generation: int = Field(sa_type=BIG)
    observed_at: float = Field(sa_type=Double)


class CircuitRow(Row, table=True):
    """One cross-connect that the last observation of its switch showed. `others` = somebody else made it."""

    __tablename__ = "circuits"
    __table_args__ = (ForeignKeyConstraint(["switch"], ["switches.switch"]), CLUSTERED)

    switch: str = Field(primary_key=True)
    ingress: int = Field(primary_key=True, sa_type=BIG)
    egress: int = Field(primary_key=True, sa_type=BIG)
    others: bool = Field(sa_type=Boolean, sa_column_kwargs={"server_default": false()})


class JobRow(Row, table=True):
    """The newest incarnation of a job name."""

    __tablename__ = "jobs"
    __table_args__ = (UniqueConstraint("job", "incarnation"),)

    job: str = Field(primary_key=True)
    incarnation: int = Field(sa_type=BIG)
    spec: str = Field(sa_type=Text)
    state: str
    cause: str | None
    detail: str | None = Field(sa_type=Text)
    started_at: float = Field(sa_type=Double)
    settled_at: float | None = Field(sa_type=Double)
    cause_rank: int | None = Field(sa_type=BIG)
    cause_data: str | None = Field(sa_type=Text)
    over: bool = Field(sa_type=Boolean, sa_column_kwargs={"server_default": false()})


def _of_newest_incarnation() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["job", "incarnation"], ["jobs.job", "jobs.incarnation"])


class GroupRow(Row, table=True):
    """A process group that checked in."""

    __tablename__ = "groups"
    __table_args__ = (_of_newest_incarnation(),)

    job: str = Field(primary_key=True)
    incarnation: int = Field(primary_key=True, sa_type=BIG)
    group: str = Field(primary_key=True)
    ranks: str = Field(sa_type=Text)
    dimension: str
    ordinal: int = Field(sa_type=BIG)
    domain: str


class LeftRow(Row, table=True):
    """A rank that is done and gone while its job still runs."""

    __tablename__ = "left_ranks"
    __table_args__ = (_of_newest_incarnation(), CLUSTERED)

    job: str = Field(primary_key=True)
    incarnation: int = Field(primary_key=True, sa_type=BIG)
    rank: int = Field(primary_key=True, sa_type=BIG)


class IntentRow(Row, table=True):
    """A granted run. What is not granted has no row: ranks repeat their arrivals."""

    __tablename__ = "intents"
    __table_args__ = (_of_newest_incarnation(), CLUSTERED)

    job: str = Field(primary_key=True)
    incarnation: int = Field(primary_key=True, sa_type=BIG)
    connection: str = Field(primary_key=True)
    source: int = Field(primary_key=True, sa_type=BIG)
    destination: int = Field(primary_key=True, sa_type=BIG)
    n: int = Field(primary_key=True, sa_type=BIG)
    length: int = Field(sa_type=BIG)
    state: str
    complete_at: float = Field(sa_type=Double)
    granted_at: float = Field(sa_type=Double)


class LockRow(Row, table=True):
    """One rank's hold on one run."""

    __tablename__ = "locks"
    __table_args__ = (_of_newest_incarnation(), CLUSTERED)

    job: str = Field(primary_key=True)
    incarnation: int = Field(primary_key=True, sa_type=BIG)
    connection: str = Field(primary_key=True)
    source: int = Field(primary_key=True, sa_type=BIG)
    destination: int = Field(primary_key=True, sa_type=BIG)
    n: int = Field(primary_key=True, sa_type=BIG)
    rank: int = Field(primary_key=True, sa_type=BIG)
    length: int = Field(sa_type=BIG)
    grant_no: int = Field(sa_type=BIG)
    locked_at: float = Field(sa_type=Double)


class MarkRow(Row, table=True):
    """A high-water mark: granted for the stream (rank GRANTED_MARK), released for a rank."""

    __tablename__ = "marks"
    __table_args__ = (_of_newest_incarnation(), CLUSTERED)

    job: str = Field(primary_key=True)
    incarnation: int = Field(primary_key=True, sa_type=BIG)
    connection: str = Field(primary_key=True)
    source: int = Field(primary_key=True, sa_type=BIG)
    destination: int = Field(primary_key=True, sa_type=BIG)
    rank: int = Field(primary_key=True, sa_type=BIG)
    mark: int = Field(sa_type=BIG)


class OwnerRow(Row, table=True):
    """Which dimension a circuit counts for."""

    __tablename__ = "circuit_owners"
    __table_args__ = (_of_newest_incarnation(), CLUSTERED)

    job: str = Field(primary_key=True)
    incarnation: int = Field(primary_key=True, sa_type=BIG)
    circuit: str = Field(primary_key=True)
    digit: int | None = Field(sa_type=BIG)


class DirectiveRow(Row, table=True):
    """What an operator has told and what holds until it is withdrawn."""

    __tablename__ = "directives"
    __table_args__ = (CLUSTERED,)

    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    number: int = Field(sa_type=BIG)
    given_at: float = Field(sa_type=Double)
    data: str = Field(sa_type=Text)


class StepRow(Row, table=True):
    """A device step of a plan, journaled before it starts."""

    __tablename__ = "steps"

    step: int = Field(primary_key=True, sa_type=BIG, sa_column_kwargs=GIVEN)
    switch: str
    generation: int = Field(sa_type=BIG)
    remove: str = Field(sa_type=Text)
    add: str = Field(sa_type=Text)
    causes: str = Field(sa_type=Text)
    disturbed: str = Field(sa_type=Text)
    state: str
    detail: str | None = Field(sa_type=Text)
    planned_at: float = Field(sa_type=Double)
    moved_at: float = Field(sa_type=Double)


class EventRow(Row, table=True):
    """One line of history."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "job", "seq"),)

    seq: int = Field(primary_key=True, sa_type=BIG, sa_column_kwargs=GIVEN)
    at: float = Field(sa_type=Double)
    kind: str
    job: str | None
    incarnation: int | None = Field(sa_type=BIG)
    rail: str | None
    switch: str | None
    data: str = Field(sa_type=Text)


def table(row: type[Row]) -> Table:
    """The SQL table behind a row class."""
    return Row.metadata.tables[str(row.__tablename__)]
