"""Changes of definitions as data: Save and Delete of a record, and the SQL operations of each.

in: records of ports.py. out: operations (statement name, parameters) for a driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from flintmq.ports import (
    BindingRecord,
    ExchangeRecord,
    LimitsRecord,
    ParameterRecord,
    PermissionRecord,
    QueueRecord,
    UserRecord,
    VhostRecord,
)
from flintmq.slotted import slotted
from flintmq.store.sql.driver import Operation
from flintmq.store.sql.values import binding_identity, encode_name, encode_table

Record = VhostRecord | UserRecord | PermissionRecord | LimitsRecord | ParameterRecord | ExchangeRecord | QueueRecord | BindingRecord


@slotted()
class Save:
    """Creates the record, or replaces the one of the same identity."""

    record: Record


@slotted()
class Delete:
    """Deletes what has the record's identity (its other fields do not matter), with all that hangs on it; unknown is no error."""

    record: Record


Change = Save | Delete


def save_vhost(record: VhostRecord) -> list[Operation]:
    return [("save_vhost", {"name": encode_name(record.name), "description": encode_name(record.description)})]


def delete_vhost(name: str) -> list[Operation]:
    key = {"name": encode_name(name)}
    return [("delete_vhost", key), ("delete_vhost_parameters", key)]


def save_user(record: UserRecord) -> list[Operation]:
    tags = json.dumps(record.tags)
    return [("save_user", {"name": encode_name(record.name), "password_hash": record.password_hash, "tags": tags})]


def delete_user(name: str) -> list[Operation]:
    key = {"name": encode_name(name)}
    return [("delete_user", key), ("delete_user_permissions", key), *save_limits(LimitsRecord("user", name))]


def save_permission(record: PermissionRecord) -> list[Operation]:
    patterns = {name: encode_name(getattr(record, name)) for name in ("configure", "write", "read")}
    return [("save_permission", {"vhost": encode_name(record.vhost), "username": encode_name(record.user), **patterns})]


def delete_permission(user: str, vhost: str) -> list[Operation]:
    return [("delete_permission", {"vhost": encode_name(vhost), "username": encode_name(user)})]


# Where RabbitMQ keeps limits of virtual hosts; those of users are parameters of the node (vhost "").
LIMIT_COMPONENTS = {"vhost": "vhost-limits", "user": "user-limits"}
VHOST_LIMITS_NAME = "limits"


def save_limits(record: LimitsRecord) -> list[Operation]:
    name = encode_name(record.name)
    vhost, name = (name, VHOST_LIMITS_NAME) if record.kind == "vhost" else ("", name)
    key = {"vhost": vhost, "component": LIMIT_COMPONENTS[record.kind], "name": name}
    if not record.limits:
        return [("delete_parameter", key)]
    return [("save_parameter", {**key, "value": json.dumps(dict(record.limits), sort_keys=True)})]


def _parameter_key(record: ParameterRecord) -> dict[str, str]:
    return {"vhost": encode_name(record.vhost), "component": record.component, "name": encode_name(record.name)}


def save_parameter(record: ParameterRecord) -> list[Operation]:
    return [("save_parameter", {**_parameter_key(record), "value": json.dumps(record.value, sort_keys=True)})]


def delete_parameter(record: ParameterRecord) -> list[Operation]:
    return [("delete_parameter", _parameter_key(record))]


def save_exchange(record: ExchangeRecord) -> list[Operation]:
    parameters = {
        "vhost": encode_name(record.vhost),
        "name": encode_name(record.name),
        "kind": encode_name(record.kind),
        "auto_delete": record.auto_delete,
        "internal": record.internal,
        "arguments": encode_table(record.arguments),
    }
    return [("save_exchange", parameters)]


def delete_exchange(vhost: str, name: str) -> list[Operation]:
    vhost, name = encode_name(vhost), encode_name(name)
    return [
        ("delete_exchange", {"vhost": vhost, "name": name}),
        ("delete_bindings_from", {"vhost": vhost, "source": name}),
        ("delete_bindings_to", {"vhost": vhost, "destination_kind": "exchange", "destination": name}),
    ]


def save_queue(record: QueueRecord) -> list[Operation]:
    parameters = {
        "queue_id": record.queue_id,
        "vhost": encode_name(record.vhost),
        "name": encode_name(record.name),
        "auto_delete": record.auto_delete,
        "arguments": encode_table(record.arguments),
    }
    return [("save_queue", parameters)]


def delete_queue(vhost: str, name: str) -> list[Operation]:
    vhost, name = encode_name(vhost), encode_name(name)
    return [
        ("delete_queue", {"vhost": vhost, "name": name}),
        ("delete_bindings_to", {"vhost": vhost, "destination_kind": "queue", "destination": name}),
    ]


def save_binding(record: BindingRecord) -> list[Operation]:
    parameters = {
        "vhost": encode_name(record.vhost),
        "source": encode_name(record.source),
        "destination_kind": record.destination_kind,
        "destination": encode_name(record.destination),
        "routing_key": record.routing_key,
        "arguments": encode_table(record.arguments),
        "identity": binding_identity(record),
    }
    return [("save_binding", parameters)]


def delete_binding(record: BindingRecord) -> list[Operation]:
    key = {"vhost": encode_name(record.vhost), "source": encode_name(record.source), "identity": binding_identity(record)}
    return [("delete_binding", key)]


_Maker = Callable[[Any], list[Operation]]
_SAVE: dict[type, _Maker] = {
    VhostRecord: save_vhost,
    UserRecord: save_user,
    PermissionRecord: save_permission,
    LimitsRecord: save_limits,
    ParameterRecord: save_parameter,
    ExchangeRecord: save_exchange,
    QueueRecord: save_queue,
    BindingRecord: save_binding,
}
_DELETE: dict[type, _Maker] = {
    VhostRecord: lambda record: delete_vhost(record.name),
    UserRecord: lambda record: delete_user(record.name),
    PermissionRecord: lambda record: delete_permission(record.user, record.vhost),
    LimitsRecord: lambda record: save_limits(LimitsRecord(record.kind, record.name)),
    ParameterRecord: delete_parameter,
    ExchangeRecord: lambda record: delete_exchange(record.vhost, record.name),
    QueueRecord: lambda record: delete_queue(record.vhost, record.name),
    BindingRecord: delete_binding,
}


def operations_of(changes: Iterable[Change]) -> list[Operation]:
    """The operations of several changes, in order. Raises: TypeError for a value that no table can hold."""
    operations: list[Operation] = []
    for change in changes:
        makers = _SAVE if isinstance(change, Save) else _DELETE
        operations += makers[type(change.record)](change.record)
    return operations
