"""The first schema: vhosts, users, permissions, exchanges, queues, bindings, policies, parameters, and the store's own row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _vhost_key(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["vhost"], ["vhosts.name"], name=f"{table}_vhost_fk", ondelete="CASCADE")


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"{table}_pk")


def upgrade() -> None:
    """From an empty database."""
    op.create_table(
        "parameters",
        *_text("vhost", "component", "name", "value"),
        _key("parameters", "vhost", "component", "name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "store",
        sa.Column("id", sa.SmallInteger, sa.CheckConstraint("id = 1", name="store_one_row_check"), nullable=False, autoincrement=False),
        sa.Column("uuid", sa.LargeBinary(16), nullable=False),
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("queue_id_high_water", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        _key("store", "id"),
    )
    op.create_table("users", *_text("name", "password_hash", "tags"), _key("users", "name"), sqlite_with_rowid=False)
    op.create_table("vhosts", *_text("name", "description"), _key("vhosts", "name"), sqlite_with_rowid=False)
    op.create_table(
        "bindings",
        sa.Column("id", _id, nullable=False, autoincrement=True),
        *_text("vhost", "source"),
        sa.Column(
            "destination_kind",
            sa.Text,
            sa.CheckConstraint("destination_kind IN ('queue', 'exchange')", name="bindings_kind_check"),
            nullable=False,
        ),
        *_text("destination"),
        sa.Column("routing_key", sa.LargeBinary, nullable=False),
        *_text("arguments"),
        sa.Column("identity", sa.LargeBinary(32), nullable=False),
        _key("bindings", "id"),
        sa.UniqueConstraint("vhost", "source", "identity", name="bindings_vhost_source_identity_key"),
        _vhost_key("bindings"),
        sqlite_autoincrement=True,
    )
    op.create_index("bindings_destination", "bindings", ["vhost", "destination_kind", "destination"])
    flags = [sa.Column(name, sa.Boolean, nullable=False) for name in ("auto_delete", "internal")]
    op.create_table(
        "exchanges",
        *_text("vhost", "name", "kind"),
        *flags,
        *_text("arguments"),
        _key("exchanges", "vhost", "name"),
        _vhost_key("exchanges"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "permissions",
        *_text("vhost", "username", "configure", "write", "read"),
        _key("permissions", "vhost", "username"),
        _vhost_key("permissions"),
        sqlite_with_rowid=False,
    )
    op.create_index("permissions_username", "permissions", ["username"])
    op.create_table(
        "policies",
        *_text("vhost", "name", "pattern", "apply_to"),
        sa.Column("priority", sa.Integer, nullable=False),
        *_text("definition"),
        _key("policies", "vhost", "name"),
        _vhost_key("policies"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "queues",
        sa.Column("queue_id", _id, sa.CheckConstraint("queue_id > 0", name="queues_queue_id_check"), nullable=False, autoincrement=False),
        *_text("vhost", "name"),
        sa.Column("auto_delete", sa.Boolean, nullable=False),
        *_text("arguments"),
        _key("queues", "queue_id"),
        sa.UniqueConstraint("vhost", "name", name="queues_vhost_name_key"),
        _vhost_key("queues"),
    )
