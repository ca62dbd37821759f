"""Publishes that the compiled path hands over: unknown routes, headers exchanges, CC/BCC, direct reply-to, user-id, dead letters.

in: a publish or a refused delivery that needs the routing table or the message's properties. out: routes for the cache, or the
message on its queues.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.protocol.v0_9_1.codec import Timestamp, decode_properties, encode_properties, scan_properties_of
from flintmq.session.verbs import REPLY_TO, authorize
from flintmq.vhost.dead_letter import EXPIRED, MAXLEN, REJECTED, dead_letter_headers, without_cycles
from flintmq.vhost.policy import DROP_HEAD

if TYPE_CHECKING:
    from flintmq.session.broker import Broker
    from flintmq.session.handlers import ConnectionHandler
    from flintmq.session.transaction import Transaction

log = logging.getLogger("flintmq.publishing")

BASIC_REJECT = 90
# reasons of a dequeue (queue/types.pxd)
REASON_EXPIRE = 3
REASON_DROP = 4
CONTENT_PERSISTENT = 1
CONTENT_HEADERS = 4
CONTENT_PRIORITY = 16
# protocol/v0_9_1/codec.pxd
EXPIRATION_INVALID = -2


def split_route(route: bytes) -> tuple[str, bytes]:
    """Exchange name and routing key of two shortstrs as they stand on the wire."""
    size = route[0]
    return route[1 : 1 + size].decode("utf-8", "surrogateescape"), route[2 + size :]


def find_route(handler: ConnectionHandler, channel: int, route: bytes) -> None:
    """Answers a publish whose route is not cached, or whose exchange this channel was not authorized for yet.

    Raises: PeerError 404 for an unknown exchange, 403 for one that is internal or not permitted.
    """
    exchange_name, key = split_route(route)
    broker, vhost = handler.broker, handler.vhost
    vhost.check_publish(exchange_name)
    # Also for a reply address: the channel counts as authorized for the whole exchange afterwards.
    authorize(handler, "basic.publish", exchange=exchange_name)
    while True:
        version = broker.routes_version
        cache = broker.route_cache(vhost, exchange_name)
        cacheable = vhost.route_is_cacheable(exchange_name)
        handles = broker.handles_for(vhost, exchange_name, key, None) if cacheable else []
        handler.connection.set_route(channel, cache, route, handles, cacheable)
        if version is broker.routes_version:
            return
        # Another loop changed a binding meanwhile and has cleared the cache already: what was just put may be stale.
        cache.forget(route)


def publish(handler: ConnectionHandler, channel: int) -> None:
    """A complete message whose properties decide: where it goes (headers, CC, BCC) or what it says (reply-to, user-id)."""
    connection, broker, vhost = handler.connection, handler.broker, handler.vhost
    exchange_bytes, key, header, _ = connection.message(channel)
    exchange_name = exchange_bytes.decode("utf-8", "surrogateescape")
    try:
        size, properties = decode_properties(header, broker.limits.table_depth_max, broker.limits.table_fields_max)
        user_id = properties.get("user_id")
        if user_id is not None and user_id != handler.user:
            raise PeerError(
                ReplyCode.PRECONDITION_FAILED,
                f"user_id property set to '{user_id}' but authenticated user was '{handler.user}'",
            )
        scanned = scan_properties_of(header)
        if scanned is not None and scanned["expiration_ms"] == EXPIRATION_INVALID:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, _invalid_expiration(str(properties["expiration"])))
        headers = properties.get("headers")
        headers = headers if isinstance(headers, dict) else {}
        changed = False
        if properties.get("reply_to") == REPLY_TO:
            queue = handler.channels[channel].reply_queue
            if queue is None:
                raise PeerError(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
            properties["reply_to"] = queue.name
            changed = True
        keys = [key, *extra_keys(headers, "CC"), *extra_keys(headers, "BCC")]
        if "BCC" in headers:
            properties["headers"] = {name: value for name, value in headers.items() if name != "BCC"}
            changed = True
        if changed:
            connection.replace_header(channel, encode_properties(size, properties))
    except PeerError:
        connection.discard(channel)
        raise
    handles: list[Any] = []
    for one in keys:
        handles += [handle for handle in broker.handles_for(vhost, exchange_name, one, headers) if handle not in handles]
    if connection.accept(channel, handles, keys[1:]):
        after_publish(handler)


def route_again(handler: ConnectionHandler, exchange_bytes: bytes, keys: list[bytes], header: bytes) -> list[Any]:
    """Queues of a message that found a queue of its route deleted, as the routing table says now. Authorized it was before.

    Args: header: content header payload when the message has headers, else empty. An exchange that is gone, too, leads nowhere.
    """
    broker, vhost = handler.broker, handler.vhost
    headers: dict[str, object] = {}
    if header:
        found = decode_properties(header, broker.limits.table_depth_max, broker.limits.table_fields_max)[1].get("headers")
        headers = found if isinstance(found, dict) else {}
    exchange_name = exchange_bytes.decode("utf-8", "surrogateescape")
    handles: list[Any] = []
    try:
        for one in keys:
            handles += [handle for handle in broker.handles_for(vhost, exchange_name, one, headers) if handle not in handles]
    except PeerError:
        return []
    return handles


def _invalid_expiration(value: str) -> str:
    """Says what is wrong with an expiration property that the scan refused, in RabbitMQ's words."""
    digits = len(value) - len(value.lstrip("-0123456789"))
    if value.isascii() and value.lstrip("-").isdigit():
        reason = f"{{value_{'negative' if value.startswith('-') else 'too_large'},{value}}}"
    else:
        reason = f'{{leftover_string,"{value[digits:]}"}}' if value[:digits].strip("-") else "no_integer"
    return f"invalid expiration '{value}': {reason}"


def extra_keys(headers: dict[str, object], name: str) -> list[bytes]:
    """Routing keys of a CC or BCC header (RabbitMQ's sender-selected distribution)."""
    value = headers.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str | bytes) for one in value):
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f'unsupported type in "{name}" header: an array of strings is expected')
    return [one if isinstance(one, bytes) else one.encode("utf-8", "surrogateescape") for one in value]


# --- dead letters -----------------------------------------------------------------------------------------------------------


def dead_letter_refused(handler: ConnectionHandler, channel: int, method_id: int, tag: int, multiple: bool) -> None:
    """reject or nack without requeue of deliveries whose queue has a dead-letter exchange: publish first, then settle."""
    connection, broker = handler.connection, handler.broker
    tags = connection.refused(channel, tag, multiple)
    if tags is None:
        raise PeerError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
    for one in tags:
        try:
            found = connection.unacked_message(channel, one)
        except (StoreError, KeyError) as error:
            # It goes back to its place instead: a delivery of it finds out whether it can be read then.
            broker.count_drop("unreadable_content")
            log.error("a refused message can't be read for its dead-letter exchange, it stays in its queue: %s", error)
            connection.settle(channel, method_id, one, True)
            continue
        queue = None if found is None else broker.queues.get(found[0])
        if found is not None and queue is not None:
            dead_letter(broker, queue, found[1:], REJECTED)
        connection.settle(channel, method_id, one, False)


def dead_letter(
    broker: Broker, queue: Any, message: tuple[bytes, bytes, bytes, bytes], reason: str, transaction: Transaction | None = None
) -> int:
    """Publishes a message that died in `queue` to its dead-letter exchange. The caller dequeues the original afterwards.

    Args: message: (exchange, routing key, content header, body); reason: rejected, expired, maxlen; transaction: publish as a part of
    it: it is seen when the transaction takes effect.
    Returns: queues it was put on; 0 when the queue has no dead-letter exchange, it is gone, or the message went in a circle.
    """
    target = queue.policy.dead_letter_exchange
    if target is None:
        return 0
    vhost = broker.vhosts[queue.vhost]
    if target not in vhost.exchanges:
        broker.count_drop("no_dead_letter_exchange")
        return 0
    exchange_bytes, key, header, body = message
    try:
        size, properties = decode_properties(header, broker.limits.table_depth_max, broker.limits.table_fields_max)
    except PeerError as error:
        # The publisher's mistake; whoever runs into it here (a consumer, the housekeeping) must not pay for it.
        broker.count_drop("unreadable_properties")
        log.warning("a message of queue %r is not dead-lettered, its properties can't be read: %s", queue.name, error)
        return 0
    headers = properties.get("headers")
    expiration = properties.pop("expiration", None)  # it has died of it, or must not die of it again (RabbitMQ)
    letter = dead_letter_headers(
        headers if isinstance(headers, dict) else None,
        queue=queue.name,
        reason=reason,
        exchange=exchange_bytes.decode("utf-8", "surrogateescape"),
        routing_key=key,
        time_s=broker.clock.wall_ms() // 1000,
        expiration=expiration if isinstance(expiration, str) else None,
        dead_letter_routing_key=queue.policy.dead_letter_routing_key,
        timestamp=Timestamp,
    )
    properties["headers"] = letter.headers
    new_header = encode_properties(size, properties)
    flags = CONTENT_HEADERS | (CONTENT_PERSISTENT if properties.get("delivery_mode") == 2 else 0)
    priority = properties.get("priority")
    if isinstance(priority, int):
        flags |= CONTENT_PRIORITY
    queues, cyclic = without_cycles(vhost.route_keys(target, letter.routing_keys, letter.headers), letter.headers, reason)
    for _ in cyclic:
        broker.count_drop("dead_letter_cycle")
    placed = 0
    for one in queues:
        core = one.core
        limited = core.ready_count() >= core.max_length or core.ready_bytes() + len(body) > core.max_bytes
        if limited and one.policy.overflow != DROP_HEAD:
            broker.count_drop("maxlen")
            continue
        expires_at = 0 if core.ttl_ms < 0 else broker.clock.wall_ms() + core.ttl_ms
        publish = core.publish if transaction is None else partial(transaction.hold, core)
        if publish(
            target.encode("utf-8", "surrogateescape"),
            letter.routing_keys[0],
            new_header,
            body,
            flags,
            priority if isinstance(priority, int) else 0,
            expires_at,
        ):
            placed += 1
            if broker.streams is not None and transaction is None:
                broker.streams.letter(one.queue_id)  # before the caller ends the original
        if limited:
            if transaction is None:
                enforce_limits(broker, one)
            else:
                transaction.limited.append(one)
    return placed


def after_publish(handler: ConnectionHandler) -> None:
    """What a publish or commit left to do: what reject-publish-dlx queues refused, or the transaction rejected, is dead-lettered;
    full queues drop their heads."""
    broker = handler.broker
    for queue_id, reason, message in handler.connection.take_refused():
        queue = broker.queues.get(queue_id)
        if queue is not None:
            dead_letter(broker, queue, message, MAXLEN if reason == REASON_DROP else REJECTED)
    apply_policies(broker)


def apply_policies(broker: Broker) -> None:
    """Brings queues with a length limit and a dead-letter exchange back under it (x-overflow drop-head)."""
    for queue in list(broker.limited_queues):
        enforce_limits(broker, queue)


def enforce_limits(broker: Broker, queue: Any) -> None:
    core = queue.core
    while True:
        with broker.limit_lock:
            if core.ready_count() <= core.max_length and core.ready_bytes() <= core.max_bytes:
                return
            unreadable = core.failed_count
            try:
                message = core.take_head(REASON_DROP, partial(dead_letter, broker, queue, reason=MAXLEN))
            except (StoreError, KeyError) as error:
                if core.failed_count == unreadable:
                    raise
                _unreadable(broker, queue, error)
                continue
        if message is None:
            return
        broker.count_drop("maxlen")


def _unreadable(broker: Broker, queue: Any, error: Exception) -> None:
    """A message whose content can't be read stays in the queue, out of the way, and is counted there."""
    broker.count_drop("unreadable_content")
    log.error("a message of queue %r can't be read: %s", queue.name, error)


def expire(broker: Broker, queue: Any, now_ms: int) -> None:
    """Takes expired messages out of a queue, to its dead-letter exchange when it has one."""
    core = queue.core
    while True:
        unreadable = core.failed_count
        try:
            message = core.take_expired(now_ms, REASON_EXPIRE, partial(dead_letter, broker, queue, reason=EXPIRED))
        except (StoreError, KeyError) as error:
            if core.failed_count == unreadable:
                raise
            _unreadable(broker, queue, error)
            continue
        if message is None:
            return
        broker.count_drop("expired")
