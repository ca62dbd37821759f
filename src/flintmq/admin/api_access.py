"""RabbitMQ's API: users, permissions, limits, virtual hosts, policies, parameters: what the definitions service changes.

in: calls. out: what is kept, as RabbitMQ shows it; changes by the service, which asks for authorization.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from starlette.responses import Response

from flintmq.access.hashes import shown_hash
from flintmq.access.tags import sees_everything
from flintmq.admin.api_call import Call, nothing
from flintmq.admin.api_lists import Listing, listed, one
from flintmq.admin.api_schemas import BODY_LIMIT, BODY_PERMISSION, BODY_POLICY, BODY_TOPIC, BODY_USER, BODY_USERS, BODY_VALUE, BODY_VHOST
from flintmq.admin.counts import MESSAGES, STATS, counted, sums_of
from flintmq.admin.http_refusals import bad, missing, not_found
from flintmq.admin.operations import Access, Operation, rabbit
from flintmq.definitions.checks import COMPONENTS
from flintmq.definitions.verbs import GLOBAL, KEPT, OPERATOR_POLICY, POLICY, TOPIC, VHOST_METADATA
from flintmq.moves.uri import masked_values
from flintmq.ports import ParameterRecord, PermissionRecord, UserRecord

T = TypeVar("T")


async def plain_list(call: Call, records: Iterable[T], show: Callable[[Any], dict[str, Any]] = dict) -> Response:
    """A list without pages. Args: records: cheap to gather; show: one of them as a dict, asked for in pieces (api_lists.G2)."""
    return await listed(Listing(list(records), show, str), call.query, paged=False)


# --- users ------------------------------------------------------------------------------------------------------------------


def shown_user(call: Call, record: UserRecord) -> dict[str, Any]:
    text, algorithm = shown_hash(record.password_hash)
    limits = call.broker.quotas.of("user", record.name)
    return {"name": record.name, "password_hash": text, "hashing_algorithm": algorithm, "tags": list(record.tags), "limits": limits}


def _users(call: Call) -> list[UserRecord]:
    return [record for record in map(call.broker.users.get, call.broker.users.names()) if record is not None]


async def users(call: Call) -> Response:
    return await plain_list(call, _users(call), partial(shown_user, call))


async def users_without_permissions(call: Call) -> Response:
    having = {record.user for record in call.broker.permissions.records()}
    return await plain_list(call, (record for record in _users(call) if record.name not in having), partial(shown_user, call))


def _user(call: Call) -> UserRecord:
    record: UserRecord | None = call.broker.users.get(call.name("user"))
    if record is None:
        raise missing("user", call.name("user"))
    return record


async def user(call: Call) -> Response:
    return one(shown_user(call, _user(call)), call.query)


async def put_user(call: Call) -> Response:
    """A password is hashed here, off the loop; `password_hash` may be one of RabbitMQ. With neither the user can't log in by password."""
    value, exists = await call.json(), call.exists()
    if "tags" not in value:
        raise bad("'tags' is missing: a list of tags, or a text with commas; an empty one for none")
    call.service.allow(call.actor, "user.change")  # before the work of a hash
    text, algorithm = await _password(call, value)
    return nothing(await call.change("put_user", call.name("user"), value["tags"], password_hash=text, algorithm=algorithm, exists=exists))


async def _password(call: Call, value: Mapping[str, Any]) -> tuple[str, str]:
    """(hash, its algorithm as definitions files name it) of the body's password or password_hash; ("", ""): it has neither."""
    text, password = value.get("password_hash") or "", value.get("password")
    if text:
        return text, "rabbit_password_hashing_sha256" if value.get("hashing_algorithm") is None else value["hashing_algorithm"]
    return (await hashed(call, call.name("user"), password) if password else ""), ""


async def patch_user(call: Call) -> Response:
    """Tags, or a password, of a user that is there; the body's other members stay as they are, whoever changes them at the same time. A
    null password, or an empty one, takes the password away."""
    value = await call.json()
    call.service.allow(call.actor, "user.change")
    text, algorithm = (KEPT, "") if {"password", "password_hash"}.isdisjoint(value) else await _password(call, value)
    await call.change("put_user", call.name("user"), value.get("tags", KEPT), password_hash=text, algorithm=algorithm, exists=True)
    return nothing()


async def hashed(call: Call, name: str, password: str) -> str:
    """The hash of a new password. Raises: HttpError 400."""
    if len(password) > call.app.limits.login_password_max:
        raise bad(f"a password has at most {call.app.limits.login_password_max} characters")
    return str(await asyncio.to_thread(call.broker.users.stored, name, password))


async def delete_user(call: Call) -> Response:
    await call.change("delete_users", [call.name("user")])
    return nothing()


async def delete_users(call: Call) -> Response:
    names = (await call.json()).get("users")
    if names is None:
        raise bad("'users' must be a list of names")
    if names:
        await call.change("delete_users", list(dict.fromkeys(names)))
    return nothing()


# --- permissions ------------------------------------------------------------------------------------------------------------


def shown_permission(record: PermissionRecord) -> dict[str, Any]:
    members = {name: getattr(record, name) for name in ("configure", "write", "read")}
    return {"user": record.user, "vhost": record.vhost, **members}


def shown_topic(record: ParameterRecord) -> dict[str, Any]:
    user_name, exchange = json.loads(record.name)
    return {"user": user_name, "vhost": record.vhost, "exchange": exchange, **record.value}


def _of_path(call: Call, records: list[T], user_of: Callable[[T], str]) -> list[T]:
    """Those of the virtual host, or user, of the path. Raises: HttpError 404."""
    if "vhost" in call.request.path_params:
        name = call.vhost().name
        records = [record for record in records if record.vhost == name]  # type: ignore[attr-defined]
    if "user" in call.request.path_params:
        name = _user(call).name
        records = [record for record in records if user_of(record) == name]
    return records


async def permissions(call: Call) -> Response:
    return await plain_list(call, _of_path(call, call.broker.permissions.records(), attrgetter("user")), shown_permission)


async def permission(call: Call) -> Response:
    record = call.broker.permissions.record(call.name("user"), call.name("vhost"))
    if record is None:
        raise not_found(f"no permissions of user '{call.name('user')}' in vhost '{call.name('vhost')}'")
    return one(shown_permission(record), call.query)


async def put_permission(call: Call) -> Response:
    return nothing(await call.change("put_permission", call.name("vhost"), call.name("user"), await call.json()))


async def delete_permission(call: Call) -> Response:
    await call.change("clear_permission", call.name("vhost"), call.name("user"))
    return nothing()


async def topics(call: Call) -> Response:
    records = _of_path(call, call.service.of(TOPIC), lambda record: str(json.loads(record.name)[0]))
    if not records and {"vhost", "user"} <= call.request.path_params.keys():
        raise not_found(f"no topic permissions of user '{call.name('user')}' in vhost '{call.name('vhost')}'")
    return await plain_list(call, records, shown_topic)


async def put_topic(call: Call) -> Response:
    value = await call.json()
    exchange = value.get("exchange")
    if exchange is None:
        raise bad("'exchange' is missing")
    return nothing(await call.change("put_topic", call.name("vhost"), call.name("user"), exchange, value))


async def delete_topics(call: Call) -> Response:
    exchange = call.name("exchange") if "exchange" in call.request.path_params else None
    await call.change("clear_topics", call.name("vhost"), call.name("user"), exchange)
    return nothing()


# --- limits -----------------------------------------------------------------------------------------------------------------


def limits_of(call: Call, kind: str) -> list[dict[str, Any]]:
    """All limits of "vhost" or "user" that are set."""
    return [{kind: record.name, "value": dict(record.limits)} for record in call.broker.quotas.records() if record.kind == kind]


async def vhost_limits(call: Call) -> Response:
    limits = limits_of(call, "vhost")
    if "vhost" in call.request.path_params:
        name = call.vhost().name
        return await plain_list(call, (value for value in limits if value["vhost"] == name))
    return await plain_list(call, (value for value in limits if call.sees(value["vhost"])))


async def user_limits(call: Call) -> Response:
    """Lists the limits of all users. A caller without the right to see everything gets its own limits alone; a request for another user
    is answered with an empty list, because a 404 would tell that caller which users exist."""
    limits = limits_of(call, "user")
    if not sees_everything(call.tags):
        limits = [value for value in limits if value["user"] == call.caller.user]
    if "user" in call.request.path_params:
        name = call.name("user")
        if name == call.caller.user or sees_everything(call.tags):
            _user(call)  # 404
        limits = [value for value in limits if value["user"] == name]
    return await plain_list(call, limits)


async def put_limit(call: Call) -> Response:
    value = await call.json()
    if "value" not in value:
        raise bad("'value' is missing")
    if value["value"] is None:
        raise bad("'value' must be a number")
    await _limit(call, value["value"])
    return nothing()


async def delete_limit(call: Call) -> Response:
    await _limit(call, None)
    return nothing()


async def _limit(call: Call, value: Any) -> None:
    kind = "vhost" if "vhost" in call.request.path_params else "user"
    await call.change("put_limit", kind, call.name(kind), call.name("limit"), value)


# --- virtual hosts ----------------------------------------------------------------------------------------------------------


def shown_vhost(call: Call, name: str, sums: Mapping[str, Mapping[str, int]] | None = None) -> dict[str, Any]:
    record = call.service.vhosts.get(name)
    metadata = call.service.value(VHOST_METADATA, name, "metadata") or {}
    description = "" if record is None else record.description
    tags, kind = metadata.get("tags", []), metadata.get("default_queue_type")
    return {
        "name": name,
        "description": description,
        "tags": tags,
        "default_queue_type": kind or "undefined",
        "metadata": {"description": description, "tags": tags, **({"default_queue_type": kind} if kind else {})},
        "tracing": name in call.broker.vhosts and call.broker.vhosts[name].tracing,
        "cluster_state": {call.app.node_name: "running"},
        **_counts(call, name, sums),
    }


def _counts(call: Call, name: str, sums: Mapping[str, Mapping[str, int]] | None) -> dict[str, Any]:
    """Messages of a virtual host's queues. Args: sums: of api_node.Totals; None: they are not asked for."""
    if sums is None or name not in sums or call.query.get("disable_stats") == "true":
        return {}
    rates, own = call.app.rates, sums[name]
    return {
        **counted(rates, ("vhost", "lengths", name), sums_of(MESSAGES, own)),
        "message_stats": counted(rates, ("vhost", "stats", name), sums_of(STATS, own)),
    }


async def vhosts(call: Call) -> Response:
    sums = await call.app.totals.by_vhost(call.broker)
    return await plain_list(call, call.vhosts(), lambda vhost: shown_vhost(call, vhost.name, sums))


async def vhost(call: Call) -> Response:
    return one(shown_vhost(call, call.vhost().name, await call.app.totals.by_vhost(call.broker)), call.query)


async def put_vhost(call: Call) -> Response:
    return nothing(await call.change("put_vhost", call.name("vhost"), await call.json(), exists=call.exists()))


async def delete_vhost(call: Call) -> Response:
    await call.change("delete_vhost", call.name("vhost"))
    return nothing()


# --- policies ---------------------------------------------------------------------------------------------------------------


def shown_policy(record: ParameterRecord) -> dict[str, Any]:
    return {"vhost": record.vhost, "name": record.name, **record.value}


def _component(call: Call) -> str:
    return OPERATOR_POLICY if call.request.url.path.startswith("/api/operator-policies") else POLICY


async def policies(call: Call) -> Response:
    seen = {vhost.name for vhost in call.vhosts()}
    return await plain_list(call, (record for record in call.service.of(_component(call)) if record.vhost in seen), shown_policy)


async def policy(call: Call) -> Response:
    component, vhost_name, name = _component(call), call.name("vhost"), call.name("name")
    value = call.service.value(component, vhost_name, name)
    if value is None:
        raise missing(component.replace("_", " "), name, vhost_name)
    return one(shown_policy(ParameterRecord(component, vhost_name, name, value)), call.query)


async def put_policy(call: Call) -> Response:
    operator = _component(call) == OPERATOR_POLICY
    return nothing(await call.change("put_policy", call.name("vhost"), call.name("name"), await call.json(), operator=operator))


async def delete_policy(call: Call) -> Response:
    await call.change("delete_policy", call.name("vhost"), call.name("name"), operator=_component(call) == OPERATOR_POLICY)
    return nothing()


VHOST_LIMITS = "vhost-limits"


# --- parameters -------------------------------------------------------------------------------------------------------------


def shown_parameter(record: ParameterRecord) -> dict[str, Any]:
    """Passwords in URIs are not shown."""
    value = masked_values(record.value) if record.component in COMPONENTS else record.value
    return {"value": value, "vhost": record.vhost, "component": record.component, "name": record.name}


def _whole(record: ParameterRecord) -> dict[str, Any]:
    return {"value": record.value, "vhost": record.vhost, "component": record.component, "name": record.name}


def all_parameters(call: Call, vhost: str | None, show: Callable[[ParameterRecord], dict[str, Any]] = _whole) -> list[dict[str, Any]]:
    """Of one virtual host, or of all: operator policies and limits of virtual hosts are parameters, as RabbitMQ has them. Unless `show`
    says otherwise they are whole, with passwords: a definitions file, which administrators alone get, is made of them."""
    records = [record for component in (*COMPONENTS, OPERATOR_POLICY) for record in call.service.of(component, vhost)]
    limits = [
        {"value": one["value"], "vhost": one["vhost"], "component": VHOST_LIMITS, "name": "limits"}
        for one in limits_of(call, "vhost")
        if vhost in (None, one["vhost"])
    ]
    return [*map(show, records), *limits]


async def parameters(call: Call) -> Response:
    component = call.name("component") if "component" in call.request.path_params else None
    seen = {vhost.name for vhost in call.vhosts()}
    values = sorted((value for value in all_parameters(call, None, shown_parameter) if value["vhost"] in seen), key=itemgetter("vhost"))
    return await plain_list(call, (value for value in values if component in (None, value["component"])))


async def parameter(call: Call) -> Response:
    component, vhost_name, name = call.name("component"), call.name("vhost"), call.name("name")
    value = call.service.value(component, vhost_name, name) if component in COMPONENTS else None
    if value is None:
        raise missing(f"parameter of component '{component}',", name, vhost_name)
    return one(shown_parameter(ParameterRecord(component, vhost_name, name, value)), call.query)


async def put_parameter(call: Call) -> Response:
    value = _value(await call.json())
    return nothing(await call.change("put_parameter", call.name("component"), call.name("vhost"), call.name("name"), value))


def _value(body: Mapping[str, Any]) -> Any:
    if "value" not in body:
        raise bad("'value' is missing")
    return body["value"]


async def delete_parameter(call: Call) -> Response:
    await call.change("delete_parameter", call.name("component"), call.name("vhost"), call.name("name"))
    return nothing()


async def global_parameters(call: Call) -> Response:
    return await plain_list(call, call.service.of(GLOBAL), lambda record: {"name": record.name, "value": record.value})


async def global_parameter(call: Call) -> Response:
    name = call.name("name")
    if (GLOBAL, "", name) not in call.service.parameters:
        raise missing("global parameter", name)
    return one({"value": call.service.value(GLOBAL, "", name), "name": name}, call.query)


async def put_global(call: Call) -> Response:
    return nothing(await call.change("put_global", call.name("name"), _value(await call.json())))


async def delete_global(call: Call) -> Response:
    await call.change("delete_global", call.name("name"))
    return nothing()


def operations() -> list[Operation]:
    """The rows of this module."""
    rows: list[Operation] = [
        rabbit("GET", "users", "user.look", users),
        rabbit("GET", "users/without-permissions", "user.look", users_without_permissions),
        rabbit("POST", "users/bulk-delete", Access.SERVICE, delete_users, BODY_USERS),
        rabbit("GET", "users/{user}", "user.look", user),
        rabbit("PUT", "users/{user}", Access.SERVICE, put_user, BODY_USER),
        rabbit("PATCH", "users/{user}", Access.SERVICE, patch_user, BODY_USER),
        rabbit("DELETE", "users/{user}", Access.SERVICE, delete_user),
        rabbit("GET", "users/{user}/permissions", "user.look", permissions),
        rabbit("GET", "users/{user}/topic-permissions", "user.look", topics),
        rabbit("GET", "permissions", "user.look", permissions),
        rabbit("GET", "permissions/{vhost}/{user}", "user.look", permission),
        rabbit("PUT", "permissions/{vhost}/{user}", Access.SERVICE, put_permission, BODY_PERMISSION),
        rabbit("DELETE", "permissions/{vhost}/{user}", Access.SERVICE, delete_permission),
        rabbit("GET", "topic-permissions", "user.look", topics),
        rabbit("GET", "topic-permissions/{vhost}/{user}", "user.look", topics),
        rabbit("PUT", "topic-permissions/{vhost}/{user}", Access.SERVICE, put_topic, BODY_TOPIC),
        rabbit("DELETE", "topic-permissions/{vhost}/{user}", Access.SERVICE, delete_topics),
        rabbit("DELETE", "topic-permissions/{vhost}/{user}/{exchange}", Access.SERVICE, delete_topics),
        rabbit("GET", "vhosts/{vhost}/permissions", "user.look", permissions),
        rabbit("GET", "vhosts/{vhost}/topic-permissions", "user.look", topics),
        rabbit("GET", "vhost-limits", "look", vhost_limits),
        rabbit("GET", "vhost-limits/{vhost}", "vhost.look", vhost_limits),
        rabbit("PUT", "vhost-limits/{vhost}/{limit}", Access.SERVICE, put_limit, BODY_LIMIT),
        rabbit("DELETE", "vhost-limits/{vhost}/{limit}", Access.SERVICE, delete_limit),
        rabbit("GET", "user-limits", "look", user_limits),
        rabbit("GET", "user-limits/{user}", "look", user_limits),
        rabbit("PUT", "user-limits/{user}/{limit}", Access.SERVICE, put_limit, BODY_LIMIT),
        rabbit("DELETE", "user-limits/{user}/{limit}", Access.SERVICE, delete_limit),
        rabbit("GET", "vhosts", "look", vhosts),
        rabbit("GET", "vhosts/{vhost}", "user.look", vhost),
        rabbit("PUT", "vhosts/{vhost}", Access.SERVICE, put_vhost, BODY_VHOST),
        rabbit("DELETE", "vhosts/{vhost}", Access.SERVICE, delete_vhost),
        rabbit("GET", "parameters", "parameter.look", parameters),
        rabbit("GET", "parameters/{component}", "parameter.look", parameters),
        rabbit("GET", "parameters/{component}/{vhost}", "parameter.look", parameters),
        rabbit("GET", "parameters/{component}/{vhost}/{name}", "parameter.look", parameter),
        rabbit("PUT", "parameters/{component}/{vhost}/{name}", Access.SERVICE, put_parameter, BODY_VALUE),
        rabbit("DELETE", "parameters/{component}/{vhost}/{name}", Access.SERVICE, delete_parameter),
        rabbit("GET", "global-parameters", "parameter.look", global_parameters),
        rabbit("GET", "global-parameters/{name}", "parameter.look", global_parameter),
        rabbit("PUT", "global-parameters/{name}", Access.SERVICE, put_global, BODY_VALUE),
        rabbit("DELETE", "global-parameters/{name}", Access.SERVICE, delete_global),
    ]
    for path in ("policies", "operator-policies"):
        rows += [
            rabbit("GET", path, "look", policies),
            rabbit("GET", f"{path}/{{vhost}}", "vhost.use", policies),
            rabbit("GET", f"{path}/{{vhost}}/{{name}}", "policy.look", policy),
            rabbit("PUT", f"{path}/{{vhost}}/{{name}}", Access.SERVICE, put_policy, BODY_POLICY),
            rabbit("DELETE", f"{path}/{{vhost}}/{{name}}", Access.SERVICE, delete_policy),
        ]
    return rows
