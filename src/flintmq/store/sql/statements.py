"""Every SQL statement of the definitions, made with SQLAlchemy Core and compiled to the driver's text once.

in: a dialect. out: name -> text with named parameters. SQLite's texts are kept in sqlite_text.py, so that a start with the default
database does not import SQLAlchemy (0.15 s, 20 MiB); a test compares them with the ones compiled here.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ClauseElement, Column, Dialect, Table, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from flintmq.store.sql.schema import bindings, exchanges, parameters, permissions, queues, store, users, version, vhosts


def compile_all(dialect: Dialect) -> dict[str, str]:
    """Name -> text of each statement. Raises: ValueError for a dialect other than sqlite and postgresql."""
    if dialect.name not in ("sqlite", "postgresql"):
        raise ValueError(f"no statements for {dialect.name}")
    return {name: str(statement.compile(dialect=dialect)) for name, statement in _build(dialect.name).items()}


def _build(dialect: str) -> dict[str, ClauseElement]:
    def save(table: Table, *key: str, skip: tuple[str, ...] = ()) -> ClauseElement:
        """Inserts, or replaces the row of the same key."""
        values: dict[str, Any] = {column.name: bindparam(column.name) for column in table.columns if column.name not in skip}
        upsert: Any = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
        upsert = upsert.values(values).inline()  # nobody asks for generated keys
        changed = {name: upsert.excluded[name] for name in values if name not in key}
        statement: ClauseElement = upsert.on_conflict_do_update(index_elements=list(key), set_=changed)
        return statement

    def by(statement: Any, *columns: Column[Any]) -> Any:
        for column in columns:
            statement = statement.where(column == bindparam(column.name))
        return statement

    built: dict[str, ClauseElement] = {
        "version": select(version.c.version_num),
        "stamp": insert(version).values(version_num=bindparam("version_num")),
        "create_store": insert(store).values({column.name: bindparam(column.name) for column in store.columns}),
        "load_store": select(store.c.uuid, store.c.format, store.c.queue_id_high_water),
        "reserve_queue_ids": update(store).values(queue_id_high_water=bindparam("high_water")),
        "save_vhost": save(vhosts, "name"),
        "delete_vhost": by(delete(vhosts), vhosts.c.name),
        "delete_vhost_parameters": delete(parameters).where(parameters.c.vhost == bindparam("name")),
        "load_vhosts": select(vhosts.c.name, vhosts.c.description),
        "save_user": save(users, "name"),
        "delete_user": by(delete(users), users.c.name),
        "delete_user_permissions": delete(permissions).where(permissions.c.username == bindparam("name")),
        "load_users": select(users.c.name, users.c.password_hash, users.c.tags),
        "save_permission": save(permissions, "vhost", "username"),
        "delete_permission": by(delete(permissions), permissions.c.vhost, permissions.c.username),
        "load_permissions": select(*(permissions.c[name] for name in ("username", "vhost", "configure", "write", "read"))),
        "save_parameter": save(parameters, "vhost", "component", "name"),
        "delete_parameter": by(delete(parameters), parameters.c.vhost, parameters.c.component, parameters.c.name),
        "load_parameters": by(select(parameters.c.vhost, parameters.c.name, parameters.c.value), parameters.c.component),
        "save_exchange": save(exchanges, "vhost", "name"),
        "delete_exchange": by(delete(exchanges), exchanges.c.vhost, exchanges.c.name),
        "load_exchanges": by(
            select(*(exchanges.c[name] for name in ("name", "kind", "auto_delete", "internal", "arguments"))), exchanges.c.vhost
        ).order_by(exchanges.c.name),
        "save_queue": save(queues, "vhost", "name"),
        "delete_queue": by(delete(queues), queues.c.vhost, queues.c.name),
        "load_queues": by(select(*(queues.c[name] for name in ("name", "queue_id", "auto_delete", "arguments"))), queues.c.vhost).order_by(
            queues.c.queue_id
        ),
        "save_binding": save(bindings, "vhost", "source", "identity", skip=("id",)),
        "delete_binding": by(delete(bindings), bindings.c.vhost, bindings.c.source, bindings.c.identity),
        "delete_bindings_from": by(delete(bindings), bindings.c.vhost, bindings.c.source),
        "delete_bindings_to": by(delete(bindings), bindings.c.vhost, bindings.c.destination_kind, bindings.c.destination),
        "load_bindings": by(
            select(*(bindings.c[name] for name in ("source", "destination_kind", "destination", "routing_key", "arguments"))),
            bindings.c.vhost,
        ).order_by(bindings.c.id),
    }
    return built
