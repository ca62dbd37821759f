"""Bodies of RabbitMQ's API: what each operation takes. Members that are not named pass, as with RabbitMQ; so does null for those that may
be left out.

in: nothing. out: schemas, which the rows of the table of operations name.
"""

from __future__ import annotations

from typing import Any

from flintmq.admin.schema import Schema


def _maybe(*types: str, **rules: Any) -> Schema:
    """A member that may be left out, or null."""
    return {"type": [*types, "null"], **rules}


def _record(**members: Schema) -> Schema:
    return {"type": "object", "properties": members}


TEXT: Schema = {"type": "string"}
ANY: Schema = {}
_TEXT, _OBJECT = _maybe("string"), _maybe("object")
# PHP's empty object is a list
_TABLE = {"oneOf": [_OBJECT, {"type": "array", "maxItems": 0}]}
# RabbitMQ takes texts for flags and whole numbers
_FLAG = {"oneOf": [_maybe("boolean"), {"type": "string", "enum": ["true", "false"]}]}
_TAGS = {"oneOf": [_maybe("string"), {"type": "array", "items": TEXT}]}
_NUMBER = {"oneOf": [{"type": "integer"}, {"type": "string", "pattern": "-?[0-9]{1,18}"}]}
_LIMIT = {"type": ["integer", "string", "number", "boolean", "null", "array", "object"]}  # the reason is RabbitMQ's
BODY_QUEUE = _record(durable=_FLAG, auto_delete=_FLAG, arguments=_TABLE, node=_TEXT)
BODY_EXCHANGE = _record(type=_TEXT, durable=_FLAG, auto_delete=_FLAG, internal=_FLAG, arguments=_TABLE)
BODY_USER = _record(password=_TEXT, password_hash=_TEXT, hashing_algorithm=_TEXT, tags=_TAGS)
BODY_PERMISSION = _record(configure=TEXT, write=TEXT, read=TEXT)
BODY_TOPIC = _record(exchange=TEXT, write=TEXT, read=TEXT)
BODY_POLICY = _record(pattern=ANY, definition=ANY, priority=ANY, **{"apply-to": {"type": ["string", "null"]}})
BODY_VHOST = _record(description=_TEXT, tags=_TAGS, tracing=_FLAG, default_queue_type=_TEXT, metadata=_OBJECT)
BODY_PUBLISH = _record(
    properties=_TABLE,
    routing_key=_TEXT,
    payload=TEXT,
    payload_encoding=TEXT,
)
BODY_GET = _record(count=_NUMBER, ackmode=TEXT, encoding=TEXT, truncate={"oneOf": [_NUMBER, {"type": "null"}]}, requeue=_FLAG)
BODY_BINDING = _record(routing_key=_TEXT, arguments=_TABLE)
BODY_VALUE = _record(value=ANY)


def _list(**members: Schema) -> Schema:
    return _maybe("array", items=_record(**members))


BODY_FILE = _record(
    users=_list(name=TEXT, password_hash=_TEXT, hashing_algorithm=_TEXT, tags=_TAGS, limits={}),
    vhosts=_list(name=TEXT, description=_TEXT, tags=_TAGS, metadata=_OBJECT),
    permissions=_list(user=TEXT, vhost=TEXT, configure=TEXT, write=TEXT, read=TEXT),
    topic_permissions=_list(user=TEXT, vhost=TEXT, exchange=TEXT, write=TEXT, read=TEXT),
    parameters=_list(component=TEXT, name=TEXT, vhost=_TEXT),
    global_parameters=_list(name=TEXT),
    policies=_list(vhost=_TEXT, name=TEXT),
    exchanges=_list(name=TEXT, vhost=_TEXT, type=TEXT, durable=_FLAG, auto_delete=_FLAG, internal=_FLAG, arguments=_TABLE),
    queues=_list(name=TEXT, vhost=_TEXT, durable=_FLAG, auto_delete=_FLAG, arguments=_TABLE),
    bindings=_list(source=TEXT, vhost=_TEXT, destination=TEXT, destination_type=TEXT, routing_key=_TEXT, arguments=_TABLE),
)
BODY_USERS = _record(users={"type": "array", "items": TEXT})
BODY_LIMIT = _record(value=_LIMIT)
BODY_ACTION = _record(action=TEXT)
BODY_NAME = _record(name=TEXT)
BODY_PASSWORD = _record(password=TEXT)
