"""The first schema.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLES = (
    "meta",
    "fabric",
    "rails",
    "ports",
    "switches",
    "circuits",
    "jobs",
    "groups",
    "intents",
    "locks",
    "marks",
    "steps",
    "events",
)


def upgrade() -> None:
    """Make all tables."""
    _fabric()
    _jobs()
    _runs()
    _history()


def downgrade() -> None:
    """Remove all tables, those that point at others first."""
    for name in reversed(TABLES):
        op.drop_table(name)


def _fabric() -> None:
    op.create_table(
        "meta",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("start_number", BIG, nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_meta_single_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_meta")),
    )
    op.create_table(
        "fabric",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("generation", BIG, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_fabric_single_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fabric")),
    )
    op.create_table(
        "rails",
        sa.Column("rail", sa.String(), nullable=False),
        sa.Column("switch", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("rail", name=op.f("pk_rails")),
    )
    op.create_table(
        "ports",
        sa.Column("port", sa.String(), nullable=False),
        sa.Column("rail", sa.String(), nullable=False),
        sa.Column("switch", sa.String(), nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.ForeignKeyConstraint(["rail"], ["rails.rail"], name=op.f("fk_ports_rail_rails")),
        sa.PrimaryKeyConstraint("port", name=op.f("pk_ports")),
        sa.UniqueConstraint("switch", "position", name=op.f("uq_ports_switch_position")),
    )
    op.create_table(
        "switches",
        sa.Column("switch", sa.String(), nullable=False),
        sa.Column("generation", BIG, nullable=False),
        sa.Column("observed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("switch", name=op.f("pk_switches")),
    )
    op.create_table(
        "circuits",
        sa.Column("switch", sa.String(), nullable=False),
        sa.Column("ingress", BIG, nullable=False),
        sa.Column("egress", BIG, nullable=False),
        sa.ForeignKeyConstraint(["switch"], ["switches.switch"], name=op.f("fk_circuits_switch_switches")),
        sa.PrimaryKeyConstraint("switch", "ingress", "egress", name=op.f("pk_circuits")),
        sqlite_with_rowid=False,
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("incarnation", BIG, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_jobs")),
        sa.UniqueConstraint("job", "incarnation", name=op.f("uq_jobs_job_incarnation")),
    )
    op.create_table(
        "groups",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("incarnation", BIG, nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("ranks", sa.Text(), nullable=False),
        sa.Column("dimension", sa.String(), nullable=False),
        sa.Column("ordinal", BIG, nullable=False),
        sa.Column("domain", sa.String(), nullable=False),
        _of_newest_incarnation("groups"),
        sa.PrimaryKeyConstraint("job", "incarnation", "group", name=op.f("pk_groups")),
    )


def _runs() -> None:
    stream = ("job", "incarnation", "connection", "source", "destination")
    op.create_table(
        "intents",
        *_stream_columns(),
        sa.Column("n", BIG, nullable=False),
        sa.Column("length", BIG, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("complete_at", sa.Double(), nullable=False),
        sa.Column("granted_at", sa.Double(), nullable=False),
        _of_newest_incarnation("intents"),
        sa.PrimaryKeyConstraint(*stream, "n", name=op.f("pk_intents")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "locks",
        *_stream_columns(),
        sa.Column("n", BIG, nullable=False),
        sa.Column("rank", BIG, nullable=False),
        sa.Column("length", BIG, nullable=False),
        sa.Column("grant_no", BIG, nullable=False),
        sa.Column("locked_at", sa.Double(), nullable=False),
        _of_newest_incarnation("locks"),
        sa.PrimaryKeyConstraint(*stream, "n", "rank", name=op.f("pk_locks")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "marks",
        *_stream_columns(),
        sa.Column("rank", BIG, nullable=False),
        sa.Column("mark", BIG, nullable=False),
        _of_newest_incarnation("marks"),
        sa.PrimaryKeyConstraint(*stream, "rank", name=op.f("pk_marks")),
        sqlite_with_rowid=False,
    )


def _history() -> None:
    op.create_table(
        "steps",
        sa.Column("step", BIG, autoincrement=False, nullable=False),
        sa.Column("switch", sa.String(), nullable=False),
        sa.Column("generation", BIG, nullable=False),
        sa.Column("remove", sa.Text(), nullable=False),
        sa.Column("add", sa.Text(), nullable=False),
        sa.Column("causes", sa.Text(), nullable=False),
        sa.Column("disturbed", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("planned_at", sa.Double(), nullable=False),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("step", name=op.f("pk_steps")),
    )
    op.create_table(
        "events",
        sa.Column("seq", BIG, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=True),
        sa.Column("incarnation", BIG, nullable=True),
        sa.Column("rail", sa.String(), nullable=True),
        sa.Column("switch", sa.String(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job_seq"), "events", ["job", "seq"])


def _stream_columns() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("incarnation", BIG, nullable=False),
        sa.Column("connection", sa.String(), nullable=False),
        sa.Column("source", BIG, nullable=False),
        sa.Column("destination", BIG, nullable=False),
    )


def _of_newest_incarnation(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_job_incarnation_jobs"
    return sa.ForeignKeyConstraint(["job", "incarnation"], ["jobs.job", "jobs.incarnation"], name=op.f(name))
