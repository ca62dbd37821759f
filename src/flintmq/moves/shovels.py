"""Parameters of dynamic shovels: what they may say, and what follows from them.

in: the value of a parameter `shovel`. out: errors as lines; the plan of one link for the process that moves messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.arguments import is_whole
from flintmq.moves import values
from flintmq.moves.values import Rule, boolean, members, number, one_of, shown_value, table, text, uris, whole

ACK_MODES = ("no-ack", "on-publish", "on-confirm")
RECONNECT_S, PREFETCH = 5, 1_000
_PROPERTIES = [
    *(Rule(name, text) for name in ("content_type", "content_encoding")),
    Rule("delivery_mode", whole(1, 2)),
    Rule("priority", whole(0, 255)),
    *(Rule(name, text) for name in ("correlation_id", "reply_to", "expiration", "message_id")),
    Rule("timestamp", whole(0, 2**63 - 1)),
    *(Rule(name, text) for name in ("type", "user_id", "app_id", "cluster_id")),
]


def _properties(name: str, value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return f"{name} should be an object, actually was {shown_value(value)}"
    return next(iter(members(name, _PROPERTIES, value)), None)


def _delete_after(name: str, value: Any) -> str | None:
    if value in ("never", "queue-length") or is_whole(value, 0, 2**63 - 1):
        return None
    return f'{name} should be a number greater than or equal to 0, "never" or "queue-length", actually was {shown_value(value)}'


_RULES = [
    Rule("reconnect-delay", number()),
    Rule("ack-mode", one_of(*ACK_MODES)),
    Rule("src-protocol", one_of("amqp091")),
    Rule("dest-protocol", one_of("amqp091")),
    Rule("src-uri", uris, True),
    *(Rule(name, text) for name in ("src-exchange", "src-exchange-key", "src-queue")),
    Rule("src-queue-args", table),
    Rule("src-consumer-args", table),
    Rule("prefetch-count", whole(0, 65_535)),
    Rule("src-prefetch-count", whole(0, 65_535)),
    Rule("src-predeclared", boolean),
    Rule("delete-after", _delete_after),
    Rule("src-delete-after", _delete_after),
    Rule("dest-uri", uris, True),
    *(Rule(name, text) for name in ("dest-exchange", "dest-exchange-key", "dest-queue")),
    Rule("dest-queue-args", table),
    Rule("dest-predeclared", boolean),
    *(Rule(name, boolean) for name in ("add-forward-headers", "add-timestamp-header")),
    *(Rule(name, boolean) for name in ("dest-add-forward-headers", "dest-add-timestamp-header")),
    Rule("publish-properties", _properties),
    Rule("dest-publish-properties", _properties),
]


def check(name: str, value: Any) -> list[str]:
    """The mistake in the value of parameter `shovel` `name`, in RabbitMQ's words."""
    if not isinstance(value, Mapping):
        return [f"the value of {values.shown_value(name)} should be an object"]
    wrong = []
    places = sum(one in value for one in ("src-exchange", "src-queue"))
    if places != 1:
        wrong.append("Must specify 'src-exchange' or 'src-queue'" if not places else "Cannot specify 'src-exchange' and 'src-queue'")
    if isinstance(_either(value, "delete-after", "src-delete-after", None), int) and value.get("ack-mode") == "no-ack":
        wrong.append("Cannot specify 'no-ack' and numerical 'delete-after'")
    if "dest-exchange" in value and "dest-queue" in value:
        wrong.append("Cannot specify 'dest-exchange' and 'dest-queue'")
    return wrong + members(name, _RULES, value)


def _either(value: Mapping[str, Any], old: str, new: str, default: Any) -> Any:
    """The value of a name, or of the name that it had in older releases."""
    return value.get(new, value.get(old, default))


def plan(name: str, vhost: str, cluster: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """What a link does, for `flintmq.shovel.links.Plan`. Args: value: one that `check` found right."""
    own = {"shovelled-by": cluster, "shovel-type": "dynamic", "shovel-name": name, "shovel-vhost": vhost}
    source = {key: value[key] for key in ("src-exchange", "src-exchange-key", "src-queue") if key in value}
    if "src-exchange" in source:
        source.setdefault("src-exchange-key", "")
    dest = {key: value[key] for key in ("dest-exchange", "dest-exchange-key", "dest-queue") if key in value}
    return {
        "ack-mode": value.get("ack-mode", "on-confirm"),
        "reconnect-s": float(value.get("reconnect-delay", RECONNECT_S)),
        "src-uris": values.uris_of(value["src-uri"]),
        "dest-uris": values.uris_of(value["dest-uri"]),
        "src-queue": value.get("src-queue"),
        "src-exchange": value.get("src-exchange"),
        "src-exchange-key": value.get("src-exchange-key", ""),
        "src-queue-args": value.get("src-queue-args", {}),
        "src-consumer-args": value.get("src-consumer-args", {}),
        "src-predeclared": value.get("src-predeclared", False),
        "prefetch": _either(value, "prefetch-count", "src-prefetch-count", PREFETCH),
        "delete-after": _either(value, "delete-after", "src-delete-after", "never"),
        "dest-queue": value.get("dest-queue"),
        "dest-exchange": value.get("dest-exchange"),
        "dest-exchange-key": value.get("dest-exchange-key"),
        "dest-queue-args": value.get("dest-queue-args", {}),
        "dest-predeclared": value.get("dest-predeclared", False),
        "forward-headers": own | source | dest if _either(value, "add-forward-headers", "dest-add-forward-headers", False) else None,
        "timestamp-header": _either(value, "add-timestamp-header", "dest-add-timestamp-header", False),
        "properties": _either(value, "publish-properties", "dest-publish-properties", {}),
    }


def shown(value: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a status that come from the parameter, with RabbitMQ's names."""
    names = {
        "src_queue": "src-queue",
        "src_exchange": "src-exchange",
        "src_exchange_key": "src-exchange-key",
        "dest_queue": "dest-queue",
        "dest_exchange": "dest-exchange",
        "dest_exchange_key": "dest-exchange-key",
    }
    members = {name: value[key] for name, key in names.items() if key in value}
    return {"src_protocol": "amqp091", "dest_protocol": "amqp091", **members}
