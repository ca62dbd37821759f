"""Every SQL statement of the definitions: name -> text with named parameters (`:name`), the same for SQLite and PostgreSQL.

in: nothing. out: texts for the standard library's sqlite3, and for psycopg.
"""

from __future__ import annotations

import re


def _insert(table: str, columns: str) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(f':{name}' for name in columns.split(', '))})"


def _save(table: str, columns: str, key: str) -> str:
    """Inserts the row, or replaces the one of the same key."""
    values = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", ") if name not in key.split(", "))
    return f"{_insert(table, columns)} ON CONFLICT ({key}) DO UPDATE SET {values}"


STATEMENTS: dict[str, str] = {
    "version": "SELECT version_num FROM alembic_version",
    "stamp": "INSERT INTO alembic_version (version_num) VALUES (:version_num)",
    "create_store": _insert("store", "id, uuid, format, queue_id_high_water, created_ms"),
    "load_store": "SELECT uuid, format, queue_id_high_water FROM store",
    "reserve_queue_ids": "UPDATE store SET queue_id_high_water = :high_water",
    "save_vhost": _save("vhosts", "name, description", "name"),
    "delete_vhost": "DELETE FROM vhosts WHERE name = :name",
    "delete_vhost_parameters": "DELETE FROM parameters WHERE vhost = :name",
    "load_vhosts": "SELECT name, description FROM vhosts",
    "save_user": _save("users", "name, password_hash, tags", "name"),
    "delete_user": "DELETE FROM users WHERE name = :name",
    "delete_user_permissions": "DELETE FROM permissions WHERE username = :name",
    "load_users": "SELECT name, password_hash, tags FROM users",
    "save_permission": _save("permissions", "vhost, username, configure, write, read", "vhost, username"),
    "delete_permission": "DELETE FROM permissions WHERE vhost = :vhost AND username = :username",
    "load_permissions": "SELECT username, vhost, configure, write, read FROM permissions",
    "save_parameter": _save("parameters", "vhost, component, name, value", "vhost, component, name"),
    "delete_parameter": "DELETE FROM parameters WHERE vhost = :vhost AND component = :component AND name = :name",
    "load_parameters": "SELECT vhost, name, value FROM parameters WHERE component = :component",
    "save_exchange": _save("exchanges", "vhost, name, kind, auto_delete, internal, arguments", "vhost, name"),
    "delete_exchange": "DELETE FROM exchanges WHERE vhost = :vhost AND name = :name",
    "load_exchanges": "SELECT name, kind, auto_delete, internal, arguments FROM exchanges WHERE vhost = :vhost ORDER BY name",
    "save_queue": _save("queues", "queue_id, vhost, name, auto_delete, arguments", "vhost, name"),
    "delete_queue": "DELETE FROM queues WHERE vhost = :vhost AND name = :name",
    "load_queues": "SELECT name, queue_id, auto_delete, arguments FROM queues WHERE vhost = :vhost ORDER BY queue_id",
    "save_binding": _save(
        "bindings", "vhost, source, destination_kind, destination, routing_key, arguments, identity", "vhost, source, identity"
    ),
    "delete_binding": "DELETE FROM bindings WHERE vhost = :vhost AND source = :source AND identity = :identity",
    "delete_bindings_from": "DELETE FROM bindings WHERE vhost = :vhost AND source = :source",
    "delete_bindings_to": (
        "DELETE FROM bindings WHERE vhost = :vhost AND destination_kind = :destination_kind AND destination = :destination"
    ),
    # where there is one virtual host: in the order of the table, without an index and a sort, which take a good third of the time
    "load_all_queues": "SELECT name, queue_id, auto_delete, arguments FROM queues ORDER BY queue_id",
    "load_all_bindings": "SELECT source, destination_kind, destination, routing_key, arguments FROM bindings ORDER BY id",
    "load_queue_ids": "SELECT queue_id FROM queues",
    "load_bindings": (
        "SELECT source, destination_kind, destination, routing_key, arguments FROM bindings WHERE vhost = :vhost ORDER BY id"
    ),
}


def for_psycopg() -> dict[str, str]:
    """The statements with psycopg's names of parameters."""
    return {name: re.sub(r":(\w+)", r"%(\1)s", text) for name, text in STATEMENTS.items()}
