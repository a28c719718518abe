"""Which of a switch's cross-connects somebody else made.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward. What an older program has stored counts as ours, as it did for that program."""
    with op.batch_alter_table("circuits") as circuits:
        circuits.add_column(sa.Column("others", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    """Go back."""
    with op.batch_alter_table("circuits") as circuits:
        circuits.drop_column("others")
