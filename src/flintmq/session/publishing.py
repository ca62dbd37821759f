"""Publishes that the compiled path hands over: unknown routes, headers exchanges, CC/BCC, properties that are refused, dead letters.

in: a publish or a refused delivery that needs the routing table or the message's properties. out: routes for the cache, or the
message on its queues.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.queue_limits import CASCADE_NS
from flintmq.broker.routes import REPLY_TO
from flintmq.broker.schedules import without_bcc
from flintmq.channel import scheduled_publish
from flintmq.channel.scheduling import due_of
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.guard import guarded
from flintmq.ports import DequeueReason, Verb
from flintmq.protocol.v0_9_1.codec import NOT_UTF8, decode_properties, scan_properties_of
from flintmq.protocol.v0_9_1.scan import EXPIRATION_INVALID
from flintmq.routing.message import MessageHeaders, keys_of
from flintmq.session.authorization import authorize, authorize_topic, keys_are_asked, may_use_key
from flintmq.vhost.arguments import BLOCK
from flintmq.vhost.dead_letter import MAXLEN, REJECTED

if TYPE_CHECKING:
    from flintmq.session.session_port import Session

log = logging.getLogger("flintmq.publishing")

# queues that a publish filled, or messages that it had refused, between two looks at the time
AFTER_AT_ONCE = 4


def split_route(route: bytes) -> tuple[str, bytes]:
    """Exchange name and routing key of two shortstrs as they stand on the wire."""
    size = route[0]
    return route[1 : 1 + size].decode("utf-8", "surrogateescape"), route[2 + size :]


def _is_text(name: str) -> bool:
    """Whether it was UTF-8."""
    return name.isascii() or not any("\udc80" <= one <= "\udcff" for one in name)


def find_route(handler: Session, channel: int, route: bytes) -> None:
    """Answers a publish whose route is not cached, or whose exchange this channel was not authorized for yet.

    Raises: PeerError 404 for an unknown exchange, 403 for one that is internal or not permitted, 501 for a name or key that is not UTF-8.
    """
    exchange_name, key = split_route(route)
    if not (_is_text(exchange_name) and _is_text(key.decode("utf-8", "surrogateescape"))):
        raise PeerError(ReplyCode.FRAME_ERROR, NOT_UTF8)
    if handler.door is not None:
        _find_aimed(handler, channel, exchange_name, route)
        return
    broker, vhost = handler.broker, handler.vhost
    vhost.check_publish(exchange_name)
    # Also for a reply address: the channel counts as authorized for the whole exchange afterwards.
    authorize(handler, "basic.publish", exchange=exchange_name)
    own = keys_are_asked(handler, exchange_name)
    while True:
        version = broker.routes.version
        if own:
            cache = broker.routes.cache_of_user(vhost, exchange_name, handler.user)
            cacheable = cache.usable and may_use_key(handler, Verb.WRITE, exchange_name, key)
            handler.keep_cache(exchange_name, cache)
        else:
            cache = broker.routes.cache(vhost, exchange_name)
            cacheable = cache.usable
        handles = broker.routes.resolve(vhost, exchange_name, key, cache) if cacheable else []
        handler.connection.set_route(channel, cache, route, handles, cacheable)
        if version is broker.routes.version:
            return
        # Another loop changed a binding meanwhile and has cleared the cache already: what was just put may be stale.
        cache.forget(route)
        own = keys_are_asked(handler, exchange_name)


def _find_aimed(handler: Session, channel: int, exchange_name: str, route: bytes) -> None:
    """The route of a channel that another node aimed at a queue: whatever exchange and key a message names, they stay with it, and it goes
    there. Raises: PeerError 404: this node owns the queue no more; 403: the channel is aimed at none."""
    aim = handler.channels[channel].aim
    if aim is None:
        requests = handler.vhost.request_routes(exchange_name)
        if requests is not None:
            handler.connection.set_route(channel, requests, route, [], False)  # each comes to `publish`
            return
        raise PeerError(ReplyCode.ACCESS_REFUSED, "a node publishes by channels that are aimed at a queue, and this one is not")
    cache = aim.cache(exchange_name)
    handler.connection.set_route(channel, cache, route, [aim.core], True)
    if aim.is_over:  # and its routes were dropped before this one was kept
        cache.clear()


def publish(handler: Session, channel: int) -> None:
    """A complete message whose properties decide: where it goes (headers, CC, BCC) or that it is refused (reply-to, user-id)."""
    connection, broker, vhost = handler.connection, handler.broker, handler.vhost
    if handler.door is not None:
        vhost.request(handler, channel)
        return
    exchange_bytes, key, header, _ = connection.message(channel)
    exchange_name = exchange_bytes.decode("utf-8", "surrogateescape")
    connection.know_user(vhost.kept, handler.user)
    version, found_by = broker.routes.version, connection.found_by(channel)
    try:
        _, properties = decode_properties(header, broker.limits.table_depth_max, broker.limits.table_fields_max)
        user_id = properties.get("user_id")
        if user_id is not None and user_id != handler.user:
            raise PeerError(
                ReplyCode.PRECONDITION_FAILED,
                f"user_id property set to '{user_id}' but authenticated user was '{handler.user}'",
            )
        if properties.get("delivery_mode") not in (None, 1, 2):
            text = f"invalid message: {{delivery_mode_unknown,{properties['delivery_mode']}}}"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
        scanned = scan_properties_of(header)
        if scanned is not None and scanned["expiration_ms"] == EXPIRATION_INVALID:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, _invalid_expiration(str(properties["expiration"])))
        table = properties.get("headers")
        content = None if connection.is_tx(channel) else partial(connection.message, channel)  # what is taken back must leave no trace
        headers = MessageHeaders(table if isinstance(table, dict) else {}, lambda: properties, content, user=handler.user)
        keys = keys_of(key, headers, partial(authorize_topic, handler, Verb.WRITE, exchange_name))
        due_ms = scheduled_publish.due(connection, channel)
        if due_ms < 0:
            due_ms, changed = due_of(header, broker.clock.wall_ms() + 1)
            if changed is not header:
                header = changed
                connection.replace_header(channel, header)
        if properties.get("reply_to") == REPLY_TO:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
        span = None
        if broker.spans is not None and "traceparent" in headers:
            span, header = _begin_span(handler, channel, exchange_name, key, header)
        # BCC of a scheduled message leaves when it is routed.
        if "BCC" in headers and not due_ms:
            connection.replace_header(channel, without_bcc(header) or header)
    except PeerError:
        connection.discard(channel)
        raise
    if due_ms:
        scheduled_publish.schedule(handler, channel, due_ms)
        if span is not None and broker.spans is not None:
            broker.spans.published(handler, span, [], due_ms)
        return
    try:
        cores = broker.routes.cores_of_keys(vhost, exchange_name, keys, headers)
    except PeerError:
        connection.discard(channel)
        headers.refused()
        raise
    broker.counters.add_drops(connection.take_drops() if headers.undo else {})
    has_work = connection.accept(channel, cores, keys[1:], found_by if version is broker.routes.version else b"")
    if headers.undo:
        drops = connection.take_drops()
        broker.counters.add_drops(drops)
        if not cores or "refused" in drops:
            headers.refused()
    if span is not None and broker.spans is not None:
        broker.spans.published(handler, span, cores)
    if has_work:
        after_publish(handler)


def _begin_span(handler: Session, channel: int, exchange_name: str, key: bytes, header: bytes) -> tuple[Any, bytes]:
    """The span of a message that may be traced, or None, and its content header, which names the span."""
    assert handler.broker.spans is not None
    span, changed = handler.broker.spans.received(exchange_name, key, header)
    if changed is not header:
        handler.connection.replace_header(channel, changed)
    return span, changed


def route_again(handler: Session, exchange_bytes: bytes, keys: list[bytes], header: bytes) -> list[Any]:
    """Queues of a message that found a queue of its route deleted, as the routing table says now. Authorized it was before.

    Args: header: content header payload when the message has headers, else empty. An exchange that is gone, too, leads nowhere.
    Raises: PeerError 406: more bindings than can be looked at (Limits.topic_steps_max).
    """
    broker, vhost = handler.broker, handler.vhost
    properties = decode_properties(header, broker.limits.table_depth_max, broker.limits.table_fields_max)[1] if header else {}
    table = properties.get("headers")
    headers = MessageHeaders(table if isinstance(table, dict) else {}, lambda: properties, is_replay=True)
    exchange_name = exchange_bytes.decode("utf-8", "surrogateescape")
    try:
        return broker.routes.cores_of_keys(vhost, exchange_name, keys, headers)
    except PeerError as error:
        if error.code != ReplyCode.NOT_FOUND:
            raise  # where it goes can't be found out: it is refused
        return []


def _invalid_expiration(value: str) -> str:
    """Says what is wrong with an expiration property that the scan refused, in RabbitMQ's words."""
    digits = len(value) - len(value.lstrip("-0123456789"))
    if value.isascii() and value.lstrip("-").isdigit():
        reason = f"{{value_{'negative' if value.startswith('-') else 'too_large'},{value}}}"
    else:
        reason = f'{{leftover_string,"{value[digits:]}"}}' if value[:digits].strip("-") else "no_integer"
    return f"invalid expiration '{value}': {reason}"


# --- dead letters -----------------------------------------------------------------------------------------------------------


def dead_letter_one(handler: Session, channel: int, method_id: int, tag: int) -> None:
    """reject or nack without requeue of a delivery whose queue has a dead-letter exchange: publish first, then settle. The caller calls
    `after_publish`."""
    connection, broker = handler.connection, handler.broker
    try:
        message = connection.unacked_message(channel, tag)
    except (StoreError, KeyError) as error:
        # It goes back to its place instead: a delivery of it finds out whether it can be read then.
        broker.counters.drop("unreadable_content")
        log.error("a refused message can't be read for its dead-letter exchange, it stays in its queue: %s", error)
        connection.settle(channel, method_id, tag, True)
        return
    queue = None if message is None else broker.queues.get(message[0])
    if queue is not None and queue.policy.keeps_letters:
        position = connection.pass_on(channel, tag)
        if position:
            broker.letters.bury(queue, position, REJECTED)
        return
    # Not done: the node is short of something, so it stays in its queue.
    kept = False
    if message is not None and queue is not None:
        position, holder, delivered_us = connection.unacked_place(channel, tag)
        original = (queue.core, position, holder, DequeueReason.REJECT, delivered_us)
        kept = not guarded("dead letters", queue.name, broker.dead_letters.publish, queue, message[1:], REJECTED, None, original)
    connection.settle(channel, method_id, tag, kept)


def after_publish(handler: Session) -> None:
    """What a publish or commit left to do: what reject-publish-dlx queues refused, or the transaction rejected, is dead-lettered; queues
    that it filled over their limit drop their heads. Only its own queues are looked at; a publish may have reached many: what one slice
    has no time for is long work of the connection."""
    if not _after_some(handler):
        handler.works.add(handler, partial(_after_some, handler), _nothing)


def _after_some(handler: Session) -> bool:
    """A slice. True: nothing is left."""
    clock = handler.broker.clock
    until_ns = 0
    while True:
        taken = handler.connection.take_refused(AFTER_AT_ONCE)
        for queue_id, reason, message in taken:
            _after(handler, queue_id, reason, message)
        if len(taken) < AFTER_AT_ONCE:
            return True
        until_ns = until_ns or clock.monotonic_ns() + CASCADE_NS
        if clock.monotonic_ns() >= until_ns:
            return False


def _after(handler: Session, queue_id: int, reason: int, message: tuple[bytes, bytes, bytes, bytes] | None) -> None:
    broker = handler.broker
    queue = broker.queues.get(queue_id)
    if queue is None:
        return
    if message is None:
        broker.queue_limits.count_returns(queue)
        broker.queue_limits.enforce(queue)
        # One full queue would stop all that another node publishes.
        if (queue.policy.overflow == BLOCK or queue.policy.is_shared) and handler.door is None:
            broker.flow.block(handler, queue)
    else:
        guarded(
            "dead letters", queue.name, broker.dead_letters.publish, queue, message, MAXLEN if reason == DequeueReason.DROP else REJECTED
        )


def _nothing() -> None:
    """A work without an answer."""
