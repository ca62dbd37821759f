"""The tables of the definitions database (SQLAlchemy Core). A change here needs a migration, and `python -m tools.gen_sqlite_text`.

in: nothing. out: `metadata`, the tables, `create_statements`.

I1  Names in columns are text of values.encode_name, argument columns text of values.encode_table.
I2  What belongs to a vhost goes with it (ON DELETE CASCADE). A binding's ends are no foreign keys: predeclared exchanges, which may be
    an end, are in no table. Permissions may be there before their user.
I3  Queue ids come from store.queue_id_high_water, binding ids from the database; neither is ever used twice.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.schema import CreateIndex, CreateTable

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "fk": "%(table_name)s_%(column_0_name)s_fk",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

# SQLite gives 64-bit keys only to columns that are spelled INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")


def _vhost() -> Column[str]:
    return Column("vhost", Text, ForeignKey("vhosts.name", ondelete="CASCADE"), primary_key=True)


# One row: what this store is.
store = Table(
    "store",
    metadata,
    Column("id", SmallInteger, CheckConstraint("id = 1", name="one_row"), primary_key=True, autoincrement=False),
    Column("uuid", LargeBinary(16), nullable=False),  # also in every log container: definitions and log that belong together
    Column("format", Integer, nullable=False),  # of the log beside it (docs/FORMAT.md)
    Column("queue_id_high_water", BigInteger, nullable=False),  # no queue id above it was ever given out
    Column("created_ms", BigInteger, nullable=False),  # Unix epoch, milliseconds
)

vhosts = Table(
    "vhosts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("description", Text, nullable=False),
    sqlite_with_rowid=False,
)

users = Table(
    "users",
    metadata,
    Column("name", Text, primary_key=True),
    Column("password_hash", Text, nullable=False),
    Column("tags", Text, nullable=False),  # JSON list
    sqlite_with_rowid=False,
)

permissions = Table(
    "permissions",
    metadata,
    _vhost(),
    Column("username", Text, primary_key=True),
    Column("configure", Text, nullable=False),
    Column("write", Text, nullable=False),
    Column("read", Text, nullable=False),
    Index("permissions_username", "username"),
    sqlite_with_rowid=False,
)

exchanges = Table(
    "exchanges",
    metadata,
    _vhost(),
    Column("name", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("auto_delete", Boolean, nullable=False),
    Column("internal", Boolean, nullable=False),
    Column("arguments", Text, nullable=False),
    sqlite_with_rowid=False,
)

queues = Table(
    "queues",
    metadata,
    Column("queue_id", _Id, CheckConstraint("queue_id > 0", name="queue_id"), primary_key=True, autoincrement=False),
    Column("vhost", Text, ForeignKey("vhosts.name", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("auto_delete", Boolean, nullable=False),
    Column("arguments", Text, nullable=False),
    UniqueConstraint("vhost", "name"),
)

bindings = Table(
    "bindings",
    metadata,
    Column("id", _Id, primary_key=True),  # the order they were made in
    Column("vhost", Text, ForeignKey("vhosts.name", ondelete="CASCADE"), nullable=False),
    Column("source", Text, nullable=False),
    Column("destination_kind", Text, CheckConstraint("destination_kind IN ('queue', 'exchange')", name="kind"), nullable=False),
    Column("destination", Text, nullable=False),
    Column("routing_key", LargeBinary, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("identity", LargeBinary(32), nullable=False),  # values.binding_identity: key and arguments may be too long to index
    UniqueConstraint("vhost", "source", "identity"),
    Index("bindings_destination", "vhost", "destination_kind", "destination"),
    sqlite_autoincrement=True,
)

policies = Table(
    "policies",
    metadata,
    _vhost(),
    Column("name", Text, primary_key=True),
    Column("pattern", Text, nullable=False),
    Column("apply_to", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("definition", Text, nullable=False),
    sqlite_with_rowid=False,
)

# vhost "" is the node itself, hence no foreign key.
parameters = Table(
    "parameters",
    metadata,
    Column("vhost", Text, primary_key=True),
    Column("component", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Alembic's own table, so that its tools see the same version. Not in `metadata`: it is not ours to migrate.
version = Table(
    "alembic_version",
    MetaData(naming_convention={"pk": "%(table_name)s_pkc"}),
    Column("version_num", String(32), primary_key=True),
)


def create_statements(dialect: Dialect) -> list[str]:
    """The DDL of an empty database, in order."""
    texts = []
    for table in (*metadata.sorted_tables, version):
        texts.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        indexes = sorted(table.indexes, key=lambda index: index.name or "")
        texts += [str(CreateIndex(index).compile(dialect=dialect)).strip() for index in indexes]
    return ["\n".join(line.rstrip() for line in text.replace("\t", "    ").splitlines()) for text in texts]
