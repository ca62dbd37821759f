"""/api/v1, messages that wait for their time: which there are, and cancel them. For monitoring users and administrators: a schedule has the
messages of all users of its virtual host.

in: calls that were authorized. out: JSON, without bodies.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call
from flintmq.admin.api_names import purge, settled, shown
from flintmq.admin.http_refusals import HttpError
from flintmq.admin.moving import position_of
from flintmq.errors import StoreError
from flintmq.ports import DequeueReason


def _some(core: Any, position: int, most: int) -> tuple[list[dict[str, Any]], int]:
    """Messages from a position on, in the order in which they were published, and where the next call goes on (0: the end)."""
    messages: list[dict[str, Any]] = []
    position = core.next_available(position)
    while position and len(messages) < most:
        facts = core.entry_facts(position)
        try:
            exchange, key, _, body = core.message_at(position)
        except (KeyError, StoreError):  # it is being routed, or can't be read now
            facts = None
        if facts is not None:
            messages.append(
                {
                    "position": str(position),
                    "due_ms": facts[2],
                    "exchange": shown(exchange.decode("utf-8", "surrogateescape")),
                    "routing_key": shown(key.decode("utf-8", "surrogateescape")),
                    "body_bytes": len(body),
                    "on_disk": facts[0],
                }
            )
        position = core.next_available(position + 1)
    return messages, position


async def look(call: Call) -> Response:
    """GET schedules/{vhost}"""
    vhost = call.vhost()
    values = call.params
    start = position_of(values["position"]) if values.get("position") else 0
    queue = vhost.schedule
    if queue is None:
        return answer({"vhost": shown(vhost.name), "messages_count": 0, "message_bytes": 0, "messages": [], "next": None})
    core = queue.core
    with call.turn():
        messages, position = await asyncio.to_thread(_some, core, start, values.get("count", 10))
    figures = {"messages_count": core.ready_count(), "message_bytes": core.ready_bytes()}
    return answer({"vhost": shown(vhost.name), **figures, "messages": messages, "next": str(position) if position else None})


async def cancel(call: Call) -> Response:
    """DELETE schedules/{vhost}/{position}"""
    vhost = call.vhost()
    queue, position = vhost.schedule, position_of(call.name("position"))
    if queue is None or not queue.core.hold(position):
        fix = "it was routed or cancelled; GET /api/v1/schedules shows what waits"
        raise HttpError(404, "not_found", f"no scheduled message at position {position} in vhost '{vhost.name}'", fix)
    queue.core.settle_held(position, DequeueReason.PURGE, False)
    await settled(call)
    return answer({"cancelled": 1})


async def cancel_all(call: Call) -> Response:
    """DELETE schedules/{vhost}"""
    queue, before = call.vhost().schedule, 0
    if queue is not None:
        before = queue.core.ready_count()
        await purge(call, queue.core)
        call.app.parts.broker.schedules.purged(queue.vhost)
    return answer({"cancelled": before})
