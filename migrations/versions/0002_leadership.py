"""Who leads, how many transactions there were, and whether the last start ended in order.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Go forward. Whether a database that was used before was left in order has to be found out."""
    with op.batch_alter_table("meta") as meta:
        meta.add_column(sa.Column("commits", BIG, server_default=sa.text("0"), nullable=False))
        meta.add_column(sa.Column("incarnation_floor", BIG, server_default=sa.text("0"), nullable=False))
        meta.add_column(sa.Column("ended_clean", sa.Boolean(), server_default=sa.false(), nullable=False))
        meta.add_column(sa.Column("began_clean", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(
        "INSERT INTO meta (id, start_number, ended_clean) "
        "SELECT 1, 0, TRUE WHERE NOT EXISTS (SELECT 1 FROM meta)"
    )
    _note_whether_left_in_order()
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("renewals", BIG, nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("quiet_at", sa.Double(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_lease_single_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
    )


def _note_whether_left_in_order() -> None:
    """The program before this revision did not say. But if it has closed the file, and has written into it
    since the machine was switched on, then nothing of what it answered can be missing.
    """
    config = op.get_context().config
    since = config.attributes.get("closed_in_order_since") if config is not None else None
    newest = op.get_bind().execute(sa.text("SELECT max(at) FROM events")).scalar()
    if since is not None and newest is not None and newest >= since:
        op.execute("UPDATE meta SET ended_clean = TRUE")


def downgrade() -> None:
    """Go back. A database without a start has no row of its own there."""
    op.drop_table("lease")
    op.execute("DELETE FROM meta WHERE start_number = 0")
    with op.batch_alter_table("meta") as meta:
        meta.drop_column("began_clean")
        meta.drop_column("ended_clean")
        meta.drop_column("incarnation_floor")
        meta.drop_column("commits")
