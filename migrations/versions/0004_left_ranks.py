"""Ranks that are done and gone while their job still runs.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Go forward."""
    op.create_table(
        "left_ranks",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("incarnation", BIG, nullable=False),
        sa.Column("rank", BIG, nullable=False),
        sa.ForeignKeyConstraint(
            ["job", "incarnation"],
            ["jobs.job", "jobs.incarnation"],
            name=op.f("fk_left_ranks_job_jobs"),
        ),
        sa.PrimaryKeyConstraint("job", "incarnation", "rank", name=op.f("pk_left_ranks")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Go back. A restarted controller waits for ranks that had left until their lease is over."""
    op.drop_table("left_ranks")
