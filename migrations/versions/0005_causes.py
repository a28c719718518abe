"""Whose fault a failure was, with its data, and whether anybody still holds something of a failed job.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Go forward. A failed job without locks is what an older program takes for one that holds nothing."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("cause_rank", BIG, nullable=True))
        jobs.add_column(sa.Column("cause_data", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("over", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(
        "UPDATE jobs SET over = (state = 'ended') OR "
        "(state = 'failed' AND job NOT IN (SELECT job FROM locks))"
    )


def downgrade() -> None:
    """Go back."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("over")
        jobs.drop_column("cause_data")
        jobs.drop_column("cause_rank")
