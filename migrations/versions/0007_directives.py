"""What operators have told: drained ports, circuits of their own, queued jobs, plans.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Go forward."""
    op.create_table(
        "directives",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("number", BIG, nullable=False),
        sa.Column("given_at", sa.Double(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_directives")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Go back. Ports are drained no longer, and circuits of operators are nobody's."""
    op.drop_table("directives")
