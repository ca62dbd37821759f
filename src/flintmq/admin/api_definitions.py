"""RabbitMQ's API: definitions files, whole and of one virtual host, read and written.

in: files of RabbitMQ, LavinMQ and ours. out: the same form; objects that are declared, in the order in which they need each other.

D1  An import adds and replaces, and deletes nothing. It ends at the first object that is refused, with its name and the reason; what came
    before it stays. Importing the same file again is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from flintmq import __version__
from flintmq.admin.answers import answer
from flintmq.admin.api_access import VHOST_LIMITS, all_parameters, shown_permission, shown_policy, shown_topic, shown_user, shown_vhost
from flintmq.admin.api_call import ApiError, Call, Entry, bad, check_table, member, nothing, of_error
from flintmq.admin.api_names import make_shared, told_shared
from flintmq.admin.json_out import Rows
from flintmq.definitions.checks import members
from flintmq.definitions.service import GLOBAL, OPERATOR_POLICY, POLICY, TOPIC
from flintmq.vhost.names import RESERVED_PREFIX

# the RabbitMQ whose API and files this is
COMPATIBLE = "3.10.8"
# declarations that are under way at a time: they share the database's transactions
_AT_ONCE = 256


# --- out --------------------------------------------------------------------------------------------------------------------


def _is_text(name: str) -> bool:
    """Names that are no UTF-8 are in no file."""
    return name.isascii() or not any("\ud800" <= one <= "\udfff" for one in name)


def _things(vhost: Any) -> dict[str, list[dict[str, Any]]]:
    """Durable queues, exchanges and bindings."""
    queues = [one for one in list(vhost.queues.values()) if one.durable and _is_text(one.name)]
    exchanges = [one for one in list(vhost.exchanges.values()) if one.durable and _is_text(one.name)]
    own = [one for one in exchanges if one.name and not one.name.startswith(RESERVED_PREFIX)]
    bindings = [one for exchange in exchanges for one in list(exchange.bindings.values()) if one.durable and _is_text(one.destination.name)]
    return {
        "queues": [
            {"name": one.name, "durable": True, "auto_delete": one.auto_delete, "arguments": one.arguments}
            for one in sorted(queues, key=lambda one: one.name)
        ],
        "exchanges": [
            {
                "name": one.name,
                "type": one.kind,
                "durable": True,
                "auto_delete": one.auto_delete,
                "internal": one.internal,
                "arguments": one.arguments,
            }
            for one in sorted(own, key=lambda one: one.name)
        ],
        "bindings": [
            {
                "source": one.source.name,
                "destination": one.destination.name,
                "destination_type": one.destination.destination_kind,
                "routing_key": one.routing_key.decode("utf-8", "replace"),
                "arguments": one.arguments,
            }
            for one in bindings
        ],
    }


def _head() -> dict[str, Any]:
    return {"rabbit_version": COMPATIBLE, "rabbitmq_version": COMPATIBLE, "product_name": "FlintMQ", "product_version": __version__}


async def export(call: Call) -> Response:
    """GET definitions, definitions/{vhost}"""
    if "vhost" in call.request.path_params:
        vhost = call.vhost()
        value = _head() | {
            "parameters": all_parameters(call, vhost.name),
            "policies": list(map(shown_policy, call.service.of(POLICY, vhost.name))),
        }
        value |= await asyncio.to_thread(_things, vhost)
        for kind in ("parameters", "policies"):
            value[kind] = [{name: one for name, one in each.items() if name != "vhost"} for each in value[kind]]
        return answer(value, 200, _attachment(call))
    users = [record for record in map(call.broker.users.get, call.broker.users.names()) if record is not None]
    sections: dict[str, tuple[Sequence[Any], Callable[[Any], dict[str, Any]]]] = {
        "users": (users, partial(shown_user, call)),
        "vhosts": (sorted(call.service.vhosts), partial(shown_vhost, call)),
        "permissions": (call.broker.permissions.records(), shown_permission),
        "topic_permissions": (call.service.of(TOPIC), shown_topic),
        "parameters": (all_parameters(call, None), dict),
        "global_parameters": (call.service.of(GLOBAL), lambda record: {"name": record.name, "value": record.value}),
        "policies": (call.service.of(POLICY), shown_policy),
    }
    things: dict[str, list[Any]] = {"queues": [], "exchanges": [], "bindings": []}
    for vhost in call.vhosts():
        for kind, found in (await asyncio.to_thread(_things, vhost)).items():
            things[kind] += [(vhost.name, one) for one in found]
    for kind, owned in things.items():
        sections[kind] = owned, lambda item: {**item[1], "vhost": item[0]}
    return answer(_head() | {name: Rows(records, show) for name, (records, show) in sections.items()}, 200, _attachment(call))


def _attachment(call: Call) -> dict[str, str]:
    name = "".join(one for one in call.query.get("download", "") if one.isalnum() or one in "._-")[:100]
    return {"content-disposition": f"attachment; filename={name}"} if name else {}


# --- in ---------------------------------------------------------------------------------------------------------------------


async def read(call: Call) -> Response:
    """POST definitions, definitions/{vhost}"""
    file = await call.json(call.app.limits.http_definitions_bytes_max)
    only = call.vhost().name if "vhost" in call.request.path_params else None
    sections: list[tuple[str, Callable[..., Awaitable[object]]]] = [
        ("users", _user),
        ("vhosts", _vhost),
        ("permissions", _permission),
        ("topic_permissions", _topic),
        ("parameters", _parameter),
        ("global_parameters", _global),
        ("policies", _policy),
        ("exchanges", _exchange),
        ("queues", _queue),
        ("bindings", _binding),
    ]
    if only is not None:
        sections = [(name, put) for name, put in sections if name in ("parameters", "policies", "exchanges", "queues", "bindings")]
    for name, put in sections:
        objects = file.get(name, [])
        if not isinstance(objects, list) or not all(isinstance(one, dict) for one in objects):
            raise bad(f"'{name}' must be a list of objects")
        if only is not None:
            objects = [{**one, "vhost": only} for one in objects]
        for start in range(0, len(objects), _AT_ONCE):
            await _all(call, name, put, objects[start : start + _AT_ONCE])
    return nothing()


async def _all(call: Call, section: str, put: Callable[..., Awaitable[object]], objects: Sequence[dict[str, Any]]) -> None:
    """D1. Changes of the service keep their order; verbs of virtual hosts share transactions."""
    outcomes = await asyncio.gather(*(put(call, one) for one in objects), return_exceptions=True)
    for value, outcome in zip(objects, outcomes, strict=True):
        if isinstance(outcome, Exception):
            refused = of_error(outcome)
            if refused is None:
                raise outcome
            name = value.get("name", value.get("source", value.get("user", "")))
            raise ApiError(refused.status, refused.error, f"{section}: {str(name)[:255]!r}: {refused.reason}")
        if isinstance(outcome, BaseException):
            raise outcome


async def _user(call: Call, value: dict[str, Any]) -> None:
    name, tags = members(value, ("name", "tags"))
    algorithm = value.get("hashing_algorithm") or "rabbit_password_hashing_sha256"
    text = value.get("password_hash") or ""
    if not isinstance(text, str) or not isinstance(algorithm, str):
        raise bad("'password_hash' and 'hashing_algorithm' must be texts")
    await call.change("put_user", name, tags, password_hash=text, algorithm=algorithm if text else "")
    for limit, most in (value.get("limits") or {}).items() if isinstance(value.get("limits"), dict) else ():
        await call.change("put_limit", "user", name, limit, most)


async def _vhost(call: Call, value: dict[str, Any]) -> None:
    (name,) = members(value, ("name",))
    kept = {key: one for key in ("description", "tags") if (one := value.get(key)) is not None}
    await call.change("put_vhost", name, kept)


async def _permission(call: Call, value: dict[str, Any]) -> None:
    user, vhost = members(value, ("user", "vhost"))
    await call.change("put_permission", vhost, user, value)


async def _topic(call: Call, value: dict[str, Any]) -> None:
    user, vhost, exchange = members(value, ("user", "vhost", "exchange"))
    await call.change("put_topic", vhost, user, exchange, value)


async def _parameter(call: Call, value: dict[str, Any]) -> None:
    component, name, found = members(value, ("component", "name", "value"))
    vhost = value.get("vhost", "")
    if component == VHOST_LIMITS:
        for limit, most in found.items() if isinstance(found, dict) else ():
            await call.change("put_limit", "vhost", vhost, limit, most)
    elif component == OPERATOR_POLICY:
        if not isinstance(found, dict):
            raise bad("the value of an operator policy must be an object")
        await call.change("put_policy", vhost, name, found, operator=True)
    else:
        await call.change("put_parameter", component, vhost, name, found)


async def _global(call: Call, value: dict[str, Any]) -> None:
    name, found = members(value, ("name", "value"))
    await call.change("put_global", name, found)


async def _policy(call: Call, value: dict[str, Any]) -> None:
    vhost, name = members(value, ("vhost", "name"))
    await call.change("put_policy", vhost, name, value)


def _place(call: Call, value: dict[str, Any], *names: str) -> tuple[Any, dict[str, Any]]:
    members(value, ("vhost", *names))
    vhost = call.broker.vhosts.get(value["vhost"])
    if vhost is None:
        raise bad(f"vhost '{value['vhost']}' does not exist")
    if not all(isinstance(value[name], str) for name in names):
        raise bad(f"{', '.join(names)} must be texts")
    limits = call.app.limits
    return vhost, check_table(value.get("arguments") or {}, limits.table_depth_max, limits.table_fields_max)


async def _exchange(call: Call, value: dict[str, Any]) -> None:
    vhost, arguments = _place(call, value, "name", "type")
    if not value["name"] or value["name"].startswith(RESERVED_PREFIX):
        return  # they are there
    flags = {flag: member(value, flag, bool, False) for flag in ("durable", "auto_delete", "internal")}
    await call.perform(vhost, partial(vhost.declare_exchange, value["name"], value["type"], arguments=arguments, **flags))


async def _queue(call: Call, value: dict[str, Any]) -> None:
    vhost, arguments = _place(call, value, "name")
    flags = {flag: member(value, flag, bool, False) for flag in ("durable", "auto_delete")}
    await make_shared(call, vhost, value["name"], arguments, flags)
    await call.perform(vhost, partial(vhost.declare_queue, value["name"], arguments=arguments, **flags))


async def _binding(call: Call, value: dict[str, Any]) -> None:
    vhost, arguments = _place(call, value, "source", "destination", "destination_type")
    if not value["source"]:
        return  # every queue's place in the default exchange
    verb = vhost.bind_queue if value["destination_type"] == "queue" else vhost.bind_exchange
    key = member(value, "routing_key", str, "").encode("utf-8", "surrogateescape")
    await call.perform(vhost, partial(verb, value["destination"], value["source"], key, arguments))
    if value["destination_type"] == "queue":
        await told_shared(call, vhost, value["destination"])


def entries() -> list[Entry]:
    """Paths, verbs of access.tags and handlers."""
    return [
        ("GET", "definitions", "definitions.export", export),
        ("GET", "definitions/{vhost}", "definitions.export", export),
        ("POST", "definitions", "definitions.import", read),
        ("POST", "definitions/{vhost}", "definitions.import", read),
    ]
