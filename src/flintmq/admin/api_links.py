"""RabbitMQ's API: the state of shovels and of links of federation, and their end or new beginning.

in: calls. out: what links.service knows; URIs are shown without their logins.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from flintmq.admin.api_access import plain_list
from flintmq.admin.api_call import Call, Entry, not_found, nothing

SHOVEL = "shovel"


def _shovels(call: Call) -> list[dict[str, Any]]:
    """Of the virtual host of the path, or of those that the caller sees."""
    seen = {vhost.name for vhost in call.vhosts()}
    links = call.app.parts.links
    found = [] if links is None else links.shovels()
    return [{"node": call.app.node_name, **one} for one in found if one["vhost"] in seen]


async def shovels(call: Call) -> Response:
    return await plain_list(call, _shovels(call))


async def shovel(call: Call) -> Response:
    """A list of one, as RabbitMQ has it."""
    name = call.name("name")
    found = [one for one in _shovels(call) if one["name"] == name]
    if not found:
        raise not_found()
    return await plain_list(call, found)


async def delete(call: Call) -> Response:
    await call.change("delete_parameter", SHOVEL, call.name("vhost"), call.name("name"))
    return nothing()


async def restart(call: Call) -> Response:
    links = call.app.parts.links
    if links is None or not links.restart((SHOVEL, call.name("vhost"), call.name("name"), "")):
        raise not_found()
    return nothing()


async def federation(call: Call) -> Response:
    """Of the virtual host of the path, or of those that the caller sees."""
    seen = {vhost.name for vhost in call.vhosts()}
    links = call.app.parts.links
    found = [] if links is None else links.federation()
    return await plain_list(call, [{"node": call.app.node_name, **one} for one in found if one["vhost"] in seen])


async def restart_federation(call: Call) -> Response:
    links = call.app.parts.links
    key = None if links is None else links.find(call.name("vhost"), call.name("id"))
    if key is None or not links.restart(key):
        raise not_found()
    return nothing()


def entries() -> list[Entry]:
    """Paths, verbs of access.tags and handlers."""
    return [
        ("GET", "shovels", "node.look", shovels),
        ("GET", "shovels/{vhost}", "node.look", shovels),
        ("GET", "shovels/vhost/{vhost}/{name}", "node.look", shovel),
        ("GET", "shovels/{vhost}/{name}", "node.look", shovel),
        ("DELETE", "shovels/vhost/{vhost}/{name}", None, delete),
        ("DELETE", "shovels/{vhost}/{name}", None, delete),
        ("DELETE", "shovels/vhost/{vhost}/{name}/restart", "parameter.change", restart),
        ("DELETE", "shovels/{vhost}/{name}/restart", "parameter.change", restart),
        ("GET", "federation-links", "node.look", federation),
        ("GET", "federation-links/{vhost}", "node.look", federation),
        ("DELETE", "federation-links/vhost/{vhost}/{id}/restart", "parameter.change", restart_federation),
        ("DELETE", "federation-links/vhost/{vhost}/{id}/{node}/restart", "parameter.change", restart_federation),
    ]
