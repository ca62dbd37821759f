"""RabbitMQ's API: definitions files, whole and of one virtual host, read and written.

in: files of RabbitMQ, LavinMQ and ours. out: the same form; objects that are declared, in the order in which they need each other.

D1  An import adds and replaces, and deletes nothing. A file with an object that lacks a member changes nothing; else every object is taken
    that can be. Importing the same file again is no error.
D2  What RabbitMQ passes over (bindings of things that are not in the file), and what it takes and we can't, is passed over: with a line of
    the log and an entry in the answer, 200 then. What RabbitMQ refuses, too, makes the answer an error that names the first and counts
    the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.responses import Response

from flintmq import __version__
from flintmq.access.hashes import algorithm_of, is_known
from flintmq.admin.answers import answer
from flintmq.admin.api_access import (
    VHOST_LIMITS,
    all_parameters,
    hashed,
    shown_permission,
    shown_policy,
    shown_topic,
    shown_user,
    shown_vhost,
)
from flintmq.admin.api_call import Call, check_table, flags_of, nothing
from flintmq.admin.api_names import declare_shared
from flintmq.admin.api_schemas import BODY_FILE
from flintmq.admin.http_refusals import HttpError, bad, rabbit_refusal
from flintmq.admin.json_out import Rows
from flintmq.admin.operations import Operation, rabbit
from flintmq.definitions.change_line import Refused
from flintmq.definitions.checks import is_queue_type, members
from flintmq.definitions.verbs import GLOBAL, OPERATOR_POLICY, POLICY, TOPIC
from flintmq.errors import PeerError, ReplyCode
from flintmq.vhost.names import RESERVED_PREFIX, SCHEDULE

log = logging.getLogger("flintmq.definitions")

# the RabbitMQ whose API and files this is
COMPATIBLE = "3.10.8"
# declarations that are under way at a time: they share the database's transactions
_AT_ONCE = 256
# objects that did not come, which the answer and the log name
_TOLD_MAX = 1_000


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
        for kind, rows in (await asyncio.to_thread(_things, vhost)).items():
            things[kind] += [(vhost.name, one) for one in rows]
    for kind, owned in things.items():
        sections[kind] = owned, lambda item: {**item[1], "vhost": item[0]}
    return answer(_head() | {name: Rows(records, show) for name, (records, show) in sections.items()}, 200, _attachment(call))


def _attachment(call: Call) -> dict[str, str]:
    name = "".join(one for one in call.query.get("download", "") if one.isalnum() or one in "._-")[:100]
    return {"content-disposition": f"attachment; filename={name}"} if name else {}


# --- in ---------------------------------------------------------------------------------------------------------------------


class Pass(Exception):
    """An object, or a part of one, that is passed over. `str`: why."""


@dataclass(slots=True)
class Outcome:
    """What did not come of a file (D2). passed: objects that are passed over; refused: the first of those that nobody takes."""

    passed: list[dict[str, str]] = field(default_factory=list)
    count: int = 0
    refused: HttpError | None = None
    refusals: int = 0

    def pass_over(self, call: Call, section: str, value: Mapping[str, Any], why: str) -> None:
        notice = {"section": section, "name": _name_of(value), "vhost": str(value.get("vhost", ""))[:255], "reason": why}
        self.count += 1
        if len(self.passed) < _TOLD_MAX:
            self.passed.append(notice)
            log.warning("user %r at %s imports: %s %r in vhost %r is passed over: %s", call.caller.user, call.actor.peer, *notice.values())

    def refuse(self, call: Call, section: str, value: Mapping[str, Any], error: HttpError) -> None:
        self.refusals += 1
        text = f"{section}: {_name_of(value)!r}: {error.reason}"
        if self.refused is None:
            self.refused = HttpError(error.status, error.error, text)
        if self.refusals <= _TOLD_MAX:
            log.warning("user %r at %s imports: refused: %s", call.caller.user, call.actor.peer, text)

    def answer(self) -> Response:
        """Raises: HttpError, with the first refusal."""
        if self.refused is None:
            return answer({"passed_over": self.passed, "passed_over_count": self.count}) if self.count else nothing()
        others = f"; {self.refusals - 1} more are refused" if self.refusals > 1 else ""
        passed = f"; {self.count} are passed over" if self.count else ""
        raise HttpError(self.refused.status, self.refused.error, f"{self.refused.reason}{others}{passed}; all other objects are taken")


def _name_of(value: Mapping[str, Any]) -> str:
    names = [value[key] for key in ("name", "source", "user", "destination") if value.get(key) not in (None, "")]
    return " -> ".join(str(one)[:255] for one in names[:2])


def as_object(value: Any) -> Any:
    """An object that RabbitMQ may have written as Erlang's list of pairs: [["max-length", 5]], [{"max-length": 5}], [] for none."""
    if not isinstance(value, list):
        return value
    pairs = [next(iter(one.items())) if isinstance(one, dict) and len(one) == 1 else one for one in value]
    if all(isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str) for one in pairs):
        return dict(pairs)
    return value


async def read(call: Call) -> Response:
    """POST definitions, definitions/{vhost}"""
    file = await call.json()
    only = call.vhost().name if "vhost" in call.request.path_params else None
    sections: list[tuple[str, tuple[str, ...], Callable[..., Awaitable[object]]]] = [
        ("users", ("name", "tags"), _user),
        ("vhosts", ("name",), _vhost),
        ("permissions", ("user", "vhost", "configure", "write", "read"), _permission),
        ("topic_permissions", ("user", "vhost", "exchange", "write", "read"), _topic),
        ("parameters", ("component", "name", "value"), _parameter),
        ("global_parameters", ("name", "value"), _global),
        ("policies", ("vhost", "name", "pattern", "definition"), _policy),
        ("exchanges", ("vhost", "name", "type"), _exchange),
        ("queues", ("vhost", "name"), _queue),
        ("bindings", ("vhost", "source", "destination", "destination_type"), _binding),
    ]
    if only is not None:
        sections = [one for one in sections if one[0] in ("parameters", "policies", "exchanges", "queues", "bindings")]
    objects = {name: _objects(file, name, needed, only) for name, needed, _ in sections}
    outcome = Outcome()
    for name, _, put in sections:
        for start in range(0, len(objects[name]), _AT_ONCE):
            await _some(call, name, put, objects[name][start : start + _AT_ONCE], outcome)
    return outcome.answer()


def _objects(file: Mapping[str, Any], section: str, needed: Sequence[str], only: str | None) -> list[dict[str, Any]]:
    """The objects of a section. Raises: HttpError 400 before anything of the file is done: D1."""
    objects = [] if file.get(section) is None else file[section]
    if only is not None:
        objects = [{**one, "vhost": only} for one in objects]
    for one in objects:
        try:
            members(one, needed)
        except Refused as error:
            raise bad(f"{section}: {_name_of(one)!r}: {error.reason}") from None
    return objects


async def _some(
    call: Call, section: str, put: Callable[..., Awaitable[object]], objects: Sequence[dict[str, Any]], result: Outcome
) -> None:
    """Changes of the service keep their order; verbs of virtual hosts share transactions. Raises: what is the node's condition."""
    outcomes = await asyncio.gather(*(put(call, one) for one in objects), return_exceptions=True)
    for value, outcome in zip(objects, outcomes, strict=True):
        if isinstance(outcome, Pass):
            result.pass_over(call, section, value, str(outcome))
        elif isinstance(outcome, Exception):
            refused = rabbit_refusal(outcome)
            if refused is None or refused.status >= 500:
                raise outcome
            result.refuse(call, section, value, refused)
        elif isinstance(outcome, BaseException):
            raise outcome


async def _user(call: Call, value: dict[str, Any]) -> None:
    name, tags = value["name"], value["tags"]
    text, password, algorithm = value.get("password_hash") or "", value.get("password") or "", value.get("hashing_algorithm") or ""
    if not all(isinstance(one, str) for one in (name, text, password, algorithm)):
        raise bad("'name', 'password', 'password_hash' and 'hashing_algorithm' must be texts")
    lost = ""
    if text:
        algorithm = algorithm or algorithm_of(text)
        if not is_known(algorithm):
            lost = f"its password hash is of '{algorithm[:80]}', which is not known here: set a password"
            known = call.broker.users.get(name)
            text, algorithm = ("", "") if known is None else (known.password_hash, "")
    elif password:
        text, algorithm = await hashed(call, name, password), ""
    await call.change("put_user", name, tags, password_hash=text, algorithm=algorithm if text else "")
    limits = as_object(value.get("limits"))
    for limit, most in limits.items() if isinstance(limits, dict) else ():
        await call.change("put_limit", "user", name, limit, most)
    if lost:
        raise Pass(lost)


async def _vhost(call: Call, value: dict[str, Any]) -> None:
    metadata = as_object(value.get("metadata"))
    fields = {**(metadata if isinstance(metadata, dict) else {}), **value}
    kept = {key: one for key in ("description", "tags", "default_queue_type") if (one := fields.get(key)) is not None}
    kind = kept.get("default_queue_type")
    lost = isinstance(kind, str) and not is_queue_type(kind)
    if lost:
        del kept["default_queue_type"]
    await call.change("put_vhost", value["name"], kept)
    limits = as_object(value.get("limits"))
    for limit, most in limits.items() if isinstance(limits, dict) else ():
        await call.change("put_limit", "vhost", value["name"], limit, most)
    if lost:
        raise Pass(f"its default queue type '{str(kind)[:80]}' is not known here")


async def _permission(call: Call, value: dict[str, Any]) -> None:
    await call.change("put_permission", value["vhost"], value["user"], value)


async def _topic(call: Call, value: dict[str, Any]) -> None:
    await call.change("put_topic", value["vhost"], value["user"], value["exchange"], value)


async def _parameter(call: Call, value: dict[str, Any]) -> None:
    component, name, content = value["component"], value["name"], value["value"]
    vhost = value.get("vhost", "")
    if component in (VHOST_LIMITS, OPERATOR_POLICY):
        content = as_object(content)
    if component == VHOST_LIMITS:
        for limit, most in content.items() if isinstance(content, dict) else ():
            await call.change("put_limit", "vhost", vhost, limit, most)
    elif component == OPERATOR_POLICY:
        if not isinstance(content, dict):
            raise bad("the value of an operator policy must be an object")
        await call.change("put_policy", vhost, name, _with_definition(content), operator=True)
    else:
        await call.change("put_parameter", component, vhost, name, content)


async def _global(call: Call, value: dict[str, Any]) -> None:
    await call.change("put_global", value["name"], value["value"])


async def _policy(call: Call, value: dict[str, Any]) -> None:
    await call.change("put_policy", value["vhost"], value["name"], _with_definition(value))


def _with_definition(value: Mapping[str, Any]) -> dict[str, Any]:
    return {**value, "definition": as_object(value.get("definition"))}


def _place(call: Call, value: dict[str, Any], *names: str) -> tuple[Any, dict[str, Any]]:
    vhost = call.broker.vhosts.get(value["vhost"]) if isinstance(value["vhost"], str) else None
    if vhost is None:
        raise bad(f"vhost '{str(value['vhost'])[:255]}' does not exist")
    if not all(isinstance(value[name], str) for name in names):
        raise bad(f"{', '.join(names)} must be texts")
    limits = call.app.limits
    return vhost, check_table(as_object(value.get("arguments")) or {}, limits.table_depth_max, limits.table_fields_max)


async def _exchange(call: Call, value: dict[str, Any]) -> None:
    vhost, arguments = _place(call, value, "name", "type")
    name = value["name"]
    if name in vhost.exchanges and (not name or name.startswith(RESERVED_PREFIX)):
        return  # the broker's own
    if name.startswith(RESERVED_PREFIX):
        raise Pass("names with 'amq.' are the broker's, and this exchange is none of them")
    flags = flags_of(value, "durable", "auto_delete", "internal")
    await call.perform(vhost, vhost.declare_exchange(name, value["type"], arguments=arguments, **flags))


async def _queue(call: Call, value: dict[str, Any]) -> None:
    vhost, arguments = _place(call, value, "name")
    name, kind = value["name"], value.get("type")
    flags = flags_of(value, "durable", "auto_delete")
    if "x-queue-type" not in arguments and (kind in ("quorum", "stream") or vhost.default_queue_type is not None):
        arguments["x-queue-type"] = kind if kind in ("quorum", "stream") else "classic"  # what it was, not what a new one would be
    if name == SCHEDULE or not name:
        raise Pass("the broker has this queue of its own")
    # One that the broker named is a queue as others in a file.
    own = {"name": "", "server_name": name} if name.startswith(RESERVED_PREFIX) else {"name": name}
    await declare_shared(call, vhost, name, arguments, flags)
    await call.perform(vhost, vhost.declare_queue(arguments=arguments, **own, **flags))


async def _binding(call: Call, value: dict[str, Any]) -> None:
    vhost, arguments = _place(call, value, "source", "destination", "destination_type")
    if not value["source"]:
        return  # every queue's place in the default exchange
    verb = vhost.bind_queue if value["destination_type"] == "queue" else vhost.bind_exchange
    key = (value.get("routing_key") or "").encode("utf-8", "surrogateescape")
    try:
        await call.perform(vhost, verb(value["destination"], value["source"], key, arguments))
    except PeerError as error:
        # Files have bindings of objects that are in no file: exclusive queues, exchanges that are internal to a plugin.
        if error.code not in (ReplyCode.NOT_FOUND, ReplyCode.RESOURCE_LOCKED):
            raise
        raise Pass(error.text) from None


def operations() -> list[Operation]:
    """The rows of this module."""
    return [
        rabbit("GET", "definitions", "definitions.export", export),
        rabbit("GET", "definitions/{vhost}", "definitions.export", export),
        rabbit("POST", "definitions", "definitions.import", read, BODY_FILE, "http_definitions_bytes_max"),
        rabbit("POST", "definitions/{vhost}", "definitions.import", read, BODY_FILE, "http_definitions_bytes_max"),
    ]
