"""RabbitMQ's API: the state of shovels and of links of federation, and their end or new beginning.

in: calls. out: what links.service knows; URIs are shown without their logins.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from flintmq.admin.api_access import plain_list
from flintmq.admin.api_call import Call, nothing
from flintmq.admin.http_refusals import missing
from flintmq.admin.operations import Access, Operation, rabbit

SHOVEL = "shovel"


def _shovels(call: Call) -> list[dict[str, Any]]:
    """Of the virtual host of the path, or of those that the caller sees."""
    seen = {vhost.name for vhost in call.vhosts()}
    links = call.app.parts.links
    shovels = [] if links is None else links.shovels()
    return [{"node": call.app.node_name, **one} for one in shovels if one["vhost"] in seen]


async def shovels(call: Call) -> Response:
    return await plain_list(call, _shovels(call))


async def shovel(call: Call) -> Response:
    """A list of one, as RabbitMQ has it."""
    name = call.name("name")
    shovels = [one for one in _shovels(call) if one["name"] == name]
    if not shovels:
        raise missing("shovel", name, call.vhost().name)
    return await plain_list(call, shovels)


async def delete(call: Call) -> Response:
    await call.change("delete_parameter", SHOVEL, call.name("vhost"), call.name("name"))
    return nothing()


async def restart(call: Call) -> Response:
    links = call.app.parts.links
    if links is None or not links.restart((SHOVEL, call.name("vhost"), call.name("name"), "")):
        raise missing("shovel", call.name("name"), call.name("vhost"))
    return nothing()


async def federation(call: Call) -> Response:
    """Of the virtual host of the path, or of those that the caller sees."""
    seen = {vhost.name for vhost in call.vhosts()}
    links = call.app.parts.links
    states = [] if links is None else links.federation()
    return await plain_list(call, [{"node": call.app.node_name, **one} for one in states if one["vhost"] in seen])


async def restart_federation(call: Call) -> Response:
    links = call.app.parts.links
    key = None if links is None else links.find(call.name("vhost"), call.name("id"))
    if key is None or not links.restart(key):
        raise missing("link of federation", call.name("id"), call.name("vhost"))
    return nothing()


def operations() -> list[Operation]:
    """The rows of this module."""
    return [
        rabbit("GET", "shovels", "node.look", shovels),
        rabbit("GET", "shovels/{vhost}", "node.look", shovels),
        rabbit("GET", "shovels/vhost/{vhost}/{name}", "node.look", shovel),
        rabbit("GET", "shovels/{vhost}/{name}", "node.look", shovel),
        rabbit("DELETE", "shovels/vhost/{vhost}/{name}", Access.SERVICE, delete),
        rabbit("DELETE", "shovels/{vhost}/{name}", Access.SERVICE, delete),
        rabbit("DELETE", "shovels/vhost/{vhost}/{name}/restart", "parameter.change", restart),
        rabbit("DELETE", "shovels/{vhost}/{name}/restart", "parameter.change", restart),
        rabbit("GET", "federation-links", "node.look", federation),
        rabbit("GET", "federation-links/{vhost}", "node.look", federation),
        rabbit("DELETE", "federation-links/vhost/{vhost}/{id}/restart", "parameter.change", restart_federation),
        rabbit("DELETE", "federation-links/vhost/{vhost}/{id}/{node}/restart", "parameter.change", restart_federation),
    ]
