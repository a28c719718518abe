"""Runs the migrations, on the connection that opus_sdn.store.migrate hands in or as alembic.ini says."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine
from sqlmodel import AutoString

from opus_sdn.store.rows import Row


def render(kind: str, item: object, _context: object) -> str | bool:
    """Write SQLModel's text type as SQLAlchemy's, so that revisions need nothing of SQLModel."""
    return "sa.String()" if kind == "type" and isinstance(item, AutoString) else False


def run(connection: Connection) -> None:
    """Migrate within the transaction that the caller has begun and will end."""
    context.configure(
        connection=connection,
        target_metadata=Row.metadata,
        compare_type=True,
        render_item=render,
        # SQLite cannot alter most of a table: Alembic copies it instead.
        render_as_batch=True,
    )
    context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = context.config.get_main_option("sqlalchemy.url")
    if url is None:
        raise RuntimeError(
            "sqlalchemy.url is not set: use `opus db upgrade`, or the alembic.ini beside this file"
        )
    engine = create_engine(url)
    with engine.begin() as connection:
        run(connection)
    engine.dispose()
