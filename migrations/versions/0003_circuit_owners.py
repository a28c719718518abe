"""Which dimension the circuits of a running job count for.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Go forward. Of jobs that run, it is worked out from who has used them."""
    op.create_table(
        "circuit_owners",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("incarnation", BIG, nullable=False),
        sa.Column("circuit", sa.String(), nullable=False),
        sa.Column("digit", BIG, nullable=True),
        sa.ForeignKeyConstraint(
            ["job", "incarnation"],
            ["jobs.job", "jobs.incarnation"],
            name=op.f("fk_circuit_owners_job_jobs"),
        ),
        sa.PrimaryKeyConstraint("job", "incarnation", "circuit", name=op.f("pk_circuit_owners")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Go back."""
    op.drop_table("circuit_owners")
