"""RabbitMQ's API: a message published to an exchange, messages got from a queue, the aliveness test.

in: calls. out: messages on queues, on disk when they are to be; messages that were taken, or looked at and given back.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call, check_table, waited
from flintmq.admin.api_names import authorize_topic, queue_of, shown
from flintmq.admin.api_schemas import BODY_GET, BODY_PUBLISH
from flintmq.admin.figures import is_healthy
from flintmq.admin.forwarding import FORWARDED, TAKEN, at_owner
from flintmq.admin.getting import Getting, Row
from flintmq.admin.http_refusals import HttpError, bad
from flintmq.admin.json_out import Body, Members
from flintmq.admin.messages import Part, message_of, properties_of
from flintmq.admin.operations import Operation, rabbit
from flintmq.admin.pools import take
from flintmq.admin.publish import durable, expiry_on, is_full, schedule, to_shared
from flintmq.arguments import is_whole
from flintmq.broker.schedules import without_bcc
from flintmq.channel.scheduling import due_of
from flintmq.core.content import bytes_mapped
from flintmq.core.content_view import ContentView
from flintmq.definitions.checks import members
from flintmq.errors import PeerError, ReplyCode
from flintmq.ports import Verb
from flintmq.protocol.v0_9_1.codec import decode_properties
from flintmq.pulls.requests import place, publishers_wait
from flintmq.routing.message import MessageHeaders, keys_of

_ACKMODES = {
    "ack_requeue_true": True,
    "reject_requeue_true": True,
    "ack_requeue_false": False,
    "reject_requeue_false": False,
}
# seconds in which an I/O loop gives a turn
_ALIVE_S = 10


def _payload(value: Mapping[str, Any]) -> bytes:
    text, encoding = members(value, ("payload", "payload_encoding"))
    if not isinstance(text, str) or encoding not in ("string", "base64"):
        raise bad("'payload' must be a text, and 'payload_encoding' string or base64")
    try:
        return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode("utf-8")
    except (binascii.Error, ValueError):
        raise bad("not_base64" if encoding == "base64" else "the payload is no text that UTF-8 can say") from None


async def publish(call: Call) -> Response:
    """POST exchanges/{vhost}/{exchange}/publish"""
    vhost, exchange, value = call.vhost(), call.exchange_name(), await call.json()
    members(value, ("properties", "routing_key", "payload", "payload_encoding"))
    body = _payload(value)
    key = (value.get("routing_key") or "").encode("utf-8", "surrogateescape")
    if len(key) > 255:
        raise bad("'routing_key' has more than 255 bytes")
    call.authorize(vhost, "basic.publish", exchange=exchange)
    return answer({"routed": await place_message(call, vhost, exchange, key, value["properties"] or {}, body)})


async def place_message(call: Call, vhost: Any, exchange: str, key: bytes, properties: Any, body: bytes) -> bool:
    """Publishes; True when a queue took it, on disk when it is persistent and the queue durable. Raises: HttpError, PeerError."""
    limits, broker = call.app.limits, call.broker
    if isinstance(properties, dict):  # numbers as RabbitMQ's own tools send them
        properties = {name: str(one) if name == "expiration" else one for name, one in properties.items()}
    user_id = properties.pop("user_id", None) if isinstance(properties, dict) else None
    if user_id not in (None, call.caller.user):
        raise bad(f"user_id property set to '{user_id}' but authenticated user was '{call.caller.user}'")
    message = message_of(body, properties, limits)
    try:
        vhost.check_publish(exchange)
    except PeerError as error:
        if error.code != ReplyCode.NOT_FOUND:
            raise
        raise bad(f"404 {error.reply_text}") from None
    if publishers_wait(broker.log) or bytes_mapped() > call.app.parts.memory_limit:
        raise HttpError(503, "busy", "the broker is low on memory or disk: publishers are blocked", headers={"retry-after": "1"})
    headers = properties.get("headers") or {}
    keys = keys_of(key, headers, partial(authorize_topic, call, vhost, Verb.WRITE, exchange))
    due_ms, header = due_of(message.header, broker.clock.wall_ms() + 1)
    if due_ms:
        route = exchange.encode("utf-8", "surrogateescape"), key
        position, _ = await schedule(call.app.parts, vhost, call.caller.user, route, message._replace(header=header), due_ms)
        return position != 0
    message = message._replace(header=without_bcc(message.header) or message.header) if "BCC" in headers else message
    routed = False
    waits: list[tuple[int, int]] = []
    routed_headers = MessageHeaders(
        check_table(headers, limits.table_depth_max, limits.table_fields_max),
        lambda: decode_properties(message.header, limits.table_depth_max, limits.table_fields_max)[1],
        lambda: (exchange.encode("utf-8", "surrogateescape"), key, message.header, body),
        user=call.caller.user,
    )
    for queue in vhost.route_keys(exchange, keys, routed_headers):
        if is_full(queue, len(body)):
            broker.counters.drop("refused")
            routed_headers.refused()
            continue
        expires_at = expiry_on(queue.core, message.expiration_ms, broker.clock.wall_ms())
        name = exchange.encode("utf-8", "surrogateescape")
        fields = name, key, message.header, body, message.flags, message.priority or 0
        if queue.policy.is_shared:
            if not await to_shared(call.app.parts, queue, fields, expires_at):
                raise HttpError(503, "not_taken", "the engine of shared queues does not take the message")
            routed = True
            continue
        position, lsn, ticket = place(queue.core, broker.log, fields, expires_at)
        if position:
            routed = True
            waits.append((lsn, ticket))
            broker.queue_limits.settle(queue)
    for lsn, ticket in waits:
        await durable(call.app.parts, lsn, ticket)
    return routed


async def get(call: Call) -> Response:
    """POST queues/{vhost}/{queue}/get"""
    vhost, queue = call.vhost(), queue_of(call)
    call.authorize(vhost, "basic.get", queue=queue.name)
    elsewhere = await at_owner(call, queue)
    if elsewhere is not None:
        return elsewhere
    value = await call.json()
    count, mode, encoding = members(value, ("count", "ackmode", "encoding"))
    if isinstance(count, str) and count.isascii() and count.isdigit() and len(count) < 9:
        count = int(count)
    if not is_whole(count, 1):
        raise bad("'count' must be a whole number above 0")
    if mode not in _ACKMODES or encoding not in ("auto", "base64"):
        raise bad(f"'ackmode' is one of {', '.join(_ACKMODES)}, and 'encoding' auto or base64")
    cut = value.get("truncate")
    if isinstance(cut, str):
        raise bad("'truncate' must be a int")
    if queue.policy.browse_only:
        raise bad(f"basic.get takes messages, and queue '{queue.name}' in vhost '{vhost.name}' is for browsers")
    if queue.policy.is_stream:
        raise bad(f"basic.get not supported by stream queues queue '{queue.name}' in vhost '{vhost.name}'")
    vhost.queue(queue.name, 0)
    if queue.policy.is_shared and call.broker.shared is not None:
        await waited(partial(call.broker.shared.opened, queue.queue_id))
    most = None if cut is None or cut < 0 else cut
    with take(call.pools.gets, call.who, "messages are being got"):
        few = call.app.limits.cluster_forward_get_bytes_max if FORWARDED in call.request.scope else None
        call.request.scope[TAKEN] = True
        got = Getting(call.broker, queue, count, _ACKMODES[mode], mode.startswith("reject"), most, few)
        return await got.answer(call, partial(_show, encoding, most, call.app.limits))


def _show(encoding: str, cut: int | None, limits: Any, row: Row) -> Members:
    return Members(_members(Body(row[0], encoding, cut), limits, *row))


def _members(body: Body, limits: Any, message: Part | ContentView, redelivered: bool, behind: int) -> Iterator[tuple[str, Any]]:
    yield "payload_bytes", message.body_bytes
    yield "redelivered", redelivered
    yield "exchange", shown(message.exchange.decode("utf-8", "surrogateescape"))
    yield "routing_key", shown(message.routing_key.decode("utf-8", "surrogateescape"))
    yield "message_count", behind
    yield "properties", properties_of(message.header, limits.table_depth_max, limits.table_fields_max)
    yield from body.look()
    yield "payload", body
    yield "payload_encoding", "string" if body.kind == "text" else body.kind


async def aliveness(call: Call) -> Response:
    """GET aliveness-test/{vhost}: each I/O loop gives a turn, and the disk works. Nothing is declared or published, as by any GET."""
    vhost = call.vhost()
    call.authorize(vhost, "basic.publish", exchange="")
    if not is_healthy(call.app.parts):
        raise HttpError(503, "aliveness_test_failed", "the broker stops, or its disk failed")
    try:
        async with asyncio.timeout(_ALIVE_S):
            await asyncio.gather(*(waited(partial(_turn, loop)) for loop in call.broker.loops))
    except TimeoutError:
        raise HttpError(503, "aliveness_test_failed", f"an I/O loop gave no turn in {_ALIVE_S} s") from None
    return answer({"status": "ok"})


def _turn(loop: Any, done: Callable[[Any, Exception | None], None]) -> None:
    """done is called when the loop has given a turn."""
    loop.job(lambda: True, lambda whole: done(None, None if whole else HttpError(503, "closing", "the broker stops", "see docs/HTTP.md")))


def operations() -> list[Operation]:
    """The rows of this module."""
    return [
        rabbit("POST", "exchanges/{vhost}/{exchange}/publish", "vhost.use", publish, BODY_PUBLISH),
        rabbit("POST", "queues/{vhost}/{queue}/get", "vhost.use", get, BODY_GET),
        rabbit("GET", "aliveness-test/{vhost}", "vhost.use", aliveness),
    ]
