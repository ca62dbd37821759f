"""Publishes that the compiled path hands over: unknown routes, headers exchanges, CC/BCC, direct reply-to, user-id, dead letters.

in: a publish or a refused delivery that needs the routing table or the message's properties. out: routes for the cache, or the
message on its queues.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.config import Limits
from flintmq.core.content import CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.guard import caught, guarded
from flintmq.ports import DequeueReason, Verb
from flintmq.protocol.v0_9_1.codec import NOT_UTF8, decode_properties, decode_table, scan_properties_of
from flintmq.protocol.v0_9_1.scan import EXPIRATION_INVALID
from flintmq.protocol.v0_9_1.splice import join_properties, join_table, split_properties, split_table
from flintmq.queue.last_value import last_value_replaced
from flintmq.routing.exchange import erlang_term
from flintmq.routing.message import MessageHeaders
from flintmq.session import scheduled_publish, shared_queues
from flintmq.session.authorization import REPLY_TO, authorize, authorize_topic, each_key
from flintmq.session.placing import drop_over
from flintmq.session.scheduling import due_of
from flintmq.vhost.arguments import BLOCK, DROPPING
from flintmq.vhost.dead_letter import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, Deaths, dead_letter_headers, without_cycles

if TYPE_CHECKING:
    from flintmq.session.broker import Broker
    from flintmq.session.handlers import ConnectionHandler
    from flintmq.session.transaction import Transaction

log = logging.getLogger("flintmq.publishing")

# entries that are counted before the next look
RETURNS_AT_ONCE = 256
SHORTSTR_MAX = 255
_KEYS_MAX = Limits().message_keys_max
# What is decoded of a dead letter's headers for a headers exchange: they were within the limits of a publish before they grew.
LETTER_DEPTH_MAX = 256
LETTER_FIELDS_MAX = 2**20
# messages that end between two looks at the time: some 30 us
EXPIRE_AT_ONCE = 128
# what dead_letter_to_all answers for a letter without a target: no queue has this id
NO_ROUTE = 0
# queues, the first one that came first
Queues = collections.OrderedDict[Any, None]
# queues that a publish filled, or messages that it had refused, between two looks at the time
AFTER_AT_ONCE = 4
# nanoseconds of a slice of a cascade of full queues, but for one letter
CASCADE_NS = 50_000


def split_route(route: bytes) -> tuple[str, bytes]:
    """Exchange name and routing key of two shortstrs as they stand on the wire."""
    size = route[0]
    return route[1 : 1 + size].decode("utf-8", "surrogateescape"), route[2 + size :]


def _is_text(name: str) -> bool:
    """Whether it was UTF-8."""
    return name.isascii() or not any("\udc80" <= one <= "\udcff" for one in name)


def find_route(handler: ConnectionHandler, channel: int, route: bytes) -> None:
    """Answers a publish whose route is not cached, or whose exchange this channel was not authorized for yet.

    Raises: PeerError 404 for an unknown exchange, 403 for one that is internal or not permitted, 501 for a name or key that is not UTF-8.
    """
    exchange_name, key = split_route(route)
    if not (_is_text(exchange_name) and _is_text(key.decode("utf-8", "surrogateescape"))):
        raise PeerError(ReplyCode.FRAME_ERROR, NOT_UTF8)
    broker, vhost = handler.broker, handler.vhost
    vhost.check_publish(exchange_name)
    # Also for a reply address: the channel counts as authorized for the whole exchange afterwards.
    authorize(handler, "basic.publish", exchange=exchange_name)
    while True:
        version = broker.routes_version
        cache = broker.route_cache(vhost, exchange_name)
        cacheable = vhost.route_is_cacheable(exchange_name) and not each_key(handler, exchange_name)
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
        told = properties.get("headers")
        content = None if connection.is_tx(channel) else partial(connection.message, channel)  # what is taken back must leave no trace
        headers = MessageHeaders(told if isinstance(told, dict) else {}, lambda: properties, content, user=handler.user)
        keys = keys_of(key, headers, partial(authorize_topic, handler, Verb.WRITE, exchange_name))
        due_ms, reply_to = scheduled_publish.due(connection, channel), None
        if due_ms < 0:
            due_ms, changed = due_of(header, broker.clock.wall_ms() + 1)
            if changed is not header:
                header = changed
                connection.replace_header(channel, header)
        if properties.get("reply_to") == REPLY_TO:
            queue = handler.channels[channel].reply_queue
            if queue is None:
                raise PeerError(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
            reply_to = queue.name
        span = None
        if broker.spans is not None and "traceparent" in headers:
            span, header = _begin_span(handler, channel, exchange_name, key, header)
        # BCC of a scheduled message leaves when it is routed.
        if reply_to is not None or ("BCC" in headers and not due_ms):
            connection.replace_header(channel, _changed(header, reply_to, due_ms > 0))
    except PeerError:
        connection.discard(channel)
        raise
    if due_ms:
        if vhost.tracing:
            broker.tracer.published(handler, channel, connection.message(channel), keys, properties, {})
        scheduled_publish.schedule(handler, channel, due_ms)
        if span is not None and broker.spans is not None:
            broker.spans.published(handler, span, [], due_ms)
        return
    try:
        found = broker.handles_for_keys(vhost, exchange_name, keys, headers)
    except PeerError:
        connection.discard(channel)
        headers.refused()
        raise
    if vhost.tracing:
        broker.tracer.published(handler, channel, connection.message(channel), keys, properties, found)
    broker.add_drops(connection.take_drops() if headers.undo else {})
    again = connection.accept(channel, found, keys[1:])
    if headers.undo:
        drops = connection.take_drops()
        broker.add_drops(drops)
        if not found or "refused" in drops:
            headers.refused()
    if span is not None and broker.spans is not None:
        broker.spans.published(handler, span, found)
    if again:
        after_publish(handler)


def _begin_span(handler: ConnectionHandler, channel: int, exchange_name: str, key: bytes, header: bytes) -> tuple[Any, bytes]:
    """The span of a message that may be traced, or None, and its content header, which names the span."""
    assert handler.broker.spans is not None
    span, changed = handler.broker.spans.received(exchange_name, key, header)
    if changed is not header:
        handler.connection.replace_header(channel, changed)
    return span, changed


def route_again(handler: ConnectionHandler, exchange_bytes: bytes, keys: list[bytes], header: bytes) -> list[Any]:
    """Queues of a message that found a queue of its route deleted, as the routing table says now. Authorized it was before.

    Args: header: content header payload when the message has headers, else empty. An exchange that is gone, too, leads nowhere.
    Raises: PeerError 406: more bindings than can be looked at (Limits.topic_steps_max).
    """
    broker, vhost = handler.broker, handler.vhost
    properties = decode_properties(header, broker.limits.table_depth_max, broker.limits.table_fields_max)[1] if header else {}
    told = properties.get("headers")
    headers = MessageHeaders(told if isinstance(told, dict) else {}, lambda: properties, again=True)
    exchange_name = exchange_bytes.decode("utf-8", "surrogateescape")
    try:
        return broker.handles_for_keys(vhost, exchange_name, keys, headers)
    except PeerError as error:
        if error.code != ReplyCode.NOT_FOUND:
            raise  # where it goes can't be found out: it is refused
        return []


def _changed(header: bytes, reply_to: str | None, keeps_bcc: bool) -> bytes:
    """The content header without BCC (unless it is kept) and with another reply-to (None: as it is); everything else keeps its bytes."""
    size, parts = split_properties(header)
    if reply_to is not None:
        octets = reply_to.encode("utf-8", "surrogateescape")
        parts["reply_to"] = bytes([len(octets)]) + octets
    if "headers" in parts and not keeps_bcc:
        parts["headers"] = join_table([field for field in split_table(parts["headers"]) if field[0] != b"BCC"])
    return join_properties(size, parts)


def _invalid_expiration(value: str) -> str:
    """Says what is wrong with an expiration property that the scan refused, in RabbitMQ's words."""
    digits = len(value) - len(value.lstrip("-0123456789"))
    if value.isascii() and value.lstrip("-").isdigit():
        reason = f"{{value_{'negative' if value.startswith('-') else 'too_large'},{value}}}"
    else:
        reason = f'{{leftover_string,"{value[digits:]}"}}' if value[:digits].strip("-") else "no_integer"
    return f"invalid expiration '{value}': {reason}"


def keys_of(key: bytes, headers: Mapping[str, object], allow: Callable[[list[bytes]], object] | None) -> list[bytes]:
    """All routing keys of a message: its own, those of CC and of BCC. Every way of publishing gets them here, and with them the permission.

    Args: allow: asks for the permission for keys of the exchange (authorize_topic); None: it was asked for when the message was published.
    Raises: PeerError 403; 406: a header that is no list, too many keys.
    """
    keys = [key, *_extra_keys(headers, "CC"), *_extra_keys(headers, "BCC")]
    if len(keys) > _KEYS_MAX:
        text = f"a message has {len(keys)} routing keys with those of CC and BCC, the limit is {_KEYS_MAX}: send it several times"
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
    if allow is not None:
        allow(keys)
    return keys


def _extra_keys(headers: Mapping[str, object], name: str) -> list[bytes]:
    """Routing keys of a CC or BCC header (RabbitMQ's sender-selected distribution)."""
    if name not in headers:
        return []
    value = headers[name]
    if not isinstance(value, list):
        text = f'invalid message: {{unacceptable_type_in_header,"{name}",{erlang_term(value)[0]}}}'
        raise PeerError(ReplyCode.PRECONDITION_FAILED, text)
    return [one.encode("utf-8", "surrogateescape") for one in value if isinstance(one, str)]  # what is no string is no key


# --- dead letters -----------------------------------------------------------------------------------------------------------


def dead_letter_one(handler: ConnectionHandler, channel: int, method_id: int, tag: int) -> None:
    """reject or nack without requeue of a delivery whose queue has a dead-letter exchange: publish first, then settle. The caller calls
    `after_publish`."""
    connection, broker = handler.connection, handler.broker
    try:
        found = connection.unacked_message(channel, tag)
    except (StoreError, KeyError) as error:
        # It goes back to its place instead: a delivery of it finds out whether it can be read then.
        broker.count_drop("unreadable_content")
        log.error("a refused message can't be read for its dead-letter exchange, it stays in its queue: %s", error)
        connection.settle(channel, method_id, tag, True)
        return
    queue = None if found is None else broker.queues.get(found[0])
    if queue is not None and queue.policy.keeps_letters:
        position = connection.pass_on(channel, tag)
        if position:
            broker.letters.bury(queue, position, REJECTED)
        return
    # Not done: the node is short of something, so it stays in its queue.
    kept = (
        found is not None and queue is not None and not guarded("dead letters", queue.name, dead_letter, broker, queue, found[1:], REJECTED)
    )
    connection.settle(channel, method_id, tag, kept)


def dead_letter(
    broker: Broker, queue: Any, message: tuple[bytes, bytes, bytes, bytes], reason: str, transaction: Transaction | None = None
) -> int:
    """Publishes a message that died in `queue` to its dead-letter exchange. The caller dequeues the original afterwards.

    Args: message: (exchange, routing key, content header, body); reason: rejected, expired, maxlen, delivery_limit; transaction: publish
    as a part of it: it is seen when the transaction takes effect.
    Returns: queues it was put on; 0 when the queue has no dead-letter exchange, it is gone, the message went in a circle, or nothing
    can be made of it: that is the publisher's doing, and whoever runs into it here (a consumer, the housekeeping) must not pay for it.
    Raises: StoreError, MemoryError: the node's condition, not the message's: it is to be kept.
    """
    if queue.policy.dead_letter_exchange is None:
        return 0
    if not exchange_is_there(broker, queue):
        broker.count_drop("no_dead_letter_exchange")
        return 0
    letter, queues, cyclic = addressed(broker, queue, message, reason)
    if letter is None:
        return 0
    if cyclic:
        broker.count_drops("dead_letter_cycle", cyclic)
    broker.dead_lettered[reason] += 1
    return sum(_place(broker, one, letter, transaction) for one in queues)


class Attempt:
    """An attempt to give a letter to all its targets. done: ids of those that have it."""

    __slots__ = ("done",)

    def __init__(self, done: set[int] | None = None) -> None:
        self.done: set[int] = set() if done is None else done

    def waits(self, target: int) -> bool:
        """Whether the letter has to stay behind others that wait for that target."""
        return False

    def taken(self, target: int) -> None:
        """A shared queue has the letter for good. Any thread."""


def dead_letter_to_all(
    broker: Broker,
    queue: Any,
    message: tuple[bytes, bytes, bytes, bytes],
    reason: str,
    attempt: Attempt,
    transaction: Transaction | None = None,
) -> int | None:
    """x-dead-letter-strategy at-least-once: publishes a message that died to those targets that do not have it yet
    (`attempt.done`, which grows).

    Returns None when the original may go: all its targets have it, or nothing can be made of it. Else what it waits for: NO_ROUTE: the
    exchange is not there, it leads nowhere or only round in a circle; or the id of the first target that refuses it.
    Raises: StoreError, MemoryError.
    """
    if not exchange_is_there(broker, queue):
        return NO_ROUTE
    letter, queues, cyclic = addressed(broker, queue, message, reason)
    if letter is None:
        return None
    if not queues:
        return NO_ROUTE
    refuses = None
    for one in queues:
        number = one.queue_id
        if one.policy.is_shared:
            expires_at = expires_on(broker, one.core)
            placed = shared_queues.place_surely(broker, one, letter.message, expires_at, attempt.done, attempt.taken)
        else:
            placed = number in attempt.done or (
                not attempt.waits(number) and not is_full(one, letter) and _place(broker, one, letter, transaction) > 0
            )
            if placed:
                attempt.done.add(number)
        if not placed and refuses is None:
            refuses = number
    if refuses is None:
        broker.dead_lettered[reason] += 1
        if cyclic:
            broker.count_drops("dead_letter_cycle", cyclic)
    return refuses


def exchange_is_there(broker: Broker, queue: Any) -> bool:
    """Whether the dead-letter exchange of a queue exists."""
    vhost = broker.vhosts.get(queue.vhost)
    return vhost is not None and queue.policy.dead_letter_exchange in vhost.exchanges


def addressed(broker: Broker, queue: Any, message: tuple[bytes, bytes, bytes, bytes], reason: str) -> tuple[Letter | None, list[Any], int]:
    """A dead letter, the queues that it goes to, and how many more would close a circle. None: nothing can be made of the message, which is
    counted."""
    target = queue.policy.dead_letter_exchange
    letter = None
    try:
        vhost = broker.vhosts[queue.vhost]
        letter = _letter(broker, queue, message, reason)
        headers = None if broker.route_cache(vhost, target).cacheable else _letter_headers(letter)
        queues, cyclic = without_cycles(vhost.route_keys(target, letter.routing_keys, headers), letter.deaths, reason)
    except (StoreError, MemoryError):
        raise
    except PeerError as error:
        broker.count_drop("unreadable_properties" if letter is None else "dead_letter_failed")
        caught("dead letters", f"a message of queue {queue.name!r}", error)
        return None, [], 0
    except Exception as error:
        broker.count_drop("dead_letter_failed")
        caught("dead letters", f"a message of queue {queue.name!r}", error)
        return None, [], 0
    return letter, queues, len(cyclic)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, ready to be put on queues. headers: a table without its length; exchange, routing_keys[0]: as it is published."""

    exchange: bytes
    routing_keys: tuple[bytes, ...]
    headers: bytes
    deaths: Deaths
    header: bytes
    body: bytes
    flags: int
    priority: int

    @property
    def message(self) -> tuple[bytes, bytes, bytes, bytes, int, int]:
        return self.exchange, self.routing_keys[0], self.header, self.body, self.flags, self.priority


def _letter(broker: Broker, queue: Any, message: tuple[bytes, bytes, bytes, bytes], reason: str) -> Letter:
    """Raises: PeerError when the properties can't be read, ValueError when the result fits no message."""
    exchange, key, header, body = message
    size, parts = split_properties(header)
    expiration = parts.pop("expiration", None)  # it has died of it, or must not die of it again (RabbitMQ)
    found = dead_letter_headers(
        parts.get("headers", b""),
        queue=queue.name.encode("utf-8", "surrogateescape"),
        reason=reason,
        exchange=exchange,
        routing_key=key,
        time_s=broker.clock.wall_ms() // 1000,
        expiration=None if expiration is None else expiration[1:],
        dead_letter_routing_key=queue.policy.dead_letter_routing_key,
    )
    if len(found.routing_keys[0]) > SHORTSTR_MAX:
        raise ValueError(f"a dead-letter routing key of {len(found.routing_keys[0])} bytes, at most {SHORTSTR_MAX}")
    parts["headers"] = found.headers
    header = join_properties(size, parts)
    flags = CONTENT_HEADERS | (CONTENT_PERSISTENT if parts.get("delivery_mode") == b"\x02" else 0)
    priority = parts.get("priority")
    if priority is not None:
        flags |= CONTENT_PRIORITY
    target = queue.policy.dead_letter_exchange.encode("utf-8", "surrogateescape")
    return Letter(target, found.routing_keys, found.headers, found.deaths, header, body, flags, priority[0] if priority else 0)


def _letter_headers(letter: Letter) -> MessageHeaders:
    """Raises: PeerError when they can't be read."""

    def properties() -> dict[str, object]:
        return decode_properties(letter.header, LETTER_DEPTH_MAX, LETTER_FIELDS_MAX)[1]

    def content() -> tuple[bytes, bytes, bytes, bytes]:
        return letter.exchange, letter.routing_keys[0], letter.header, letter.body

    return MessageHeaders(decode_table(letter.headers, LETTER_DEPTH_MAX, LETTER_FIELDS_MAX), properties, content)


def is_full(queue: Any, letter: Letter) -> bool:
    """Whether a queue (not a shared one) refuses a letter because of its limit."""
    return queue.policy.overflow not in DROPPING and bool(queue.core.refuses(len(letter.body)))


def _place(broker: Broker, queue: Any, letter: Letter, transaction: Transaction | None) -> int:
    """Puts a dead letter on one queue. Returns 1, or 0 when it was refused there. Raises: StoreError, MemoryError."""
    core = queue.core
    expires_at = expires_on(broker, core)
    if queue.policy.is_shared:
        return 1 if shared_queues.place(broker, queue, letter.message, expires_at) else 0
    if is_full(queue, letter):
        broker.count_drop("maxlen")
        return 0
    publish = core.publish if transaction is None else partial(transaction.hold, core)
    placed = publish(*letter.message, expires_at)
    if placed and broker.streams is not None and transaction is None:
        broker.streams.letter(queue.queue_id)  # before the caller ends the original
    if transaction is None:
        settle_limits(broker, queue)
    elif queue in broker.limited_queues:
        transaction.limited.append(queue.queue_id)
    return 1 if placed else 0


def expires_on(broker: Broker, core: Any) -> int:
    """When a dead letter expires on a queue, wall clock, milliseconds; 0: never."""
    return 0 if core.ttl_ms < 0 else broker.clock.wall_ms() + core.ttl_ms


def after_publish(handler: ConnectionHandler) -> None:
    """What a publish or commit left to do: what reject-publish-dlx queues refused, or the transaction rejected, is dead-lettered; queues
    that it filled over their limit drop their heads. Only its own queues are looked at; a publish may have reached many: what one slice
    has no time for is long work of the connection."""
    if not _after_some(handler):
        handler.works.add(handler, partial(_after_some, handler), _nothing)


def _after_some(handler: ConnectionHandler) -> bool:
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


def _after(handler: ConnectionHandler, queue_id: int, reason: int, message: tuple[bytes, bytes, bytes, bytes] | None) -> None:
    broker = handler.broker
    queue = broker.queues.get(queue_id)
    if queue is None:
        return
    if message is None:
        count_returns(broker, queue)
        enforce_limits(broker, queue)
        if queue.policy.overflow == BLOCK:
            broker.flow.block(handler, queue)
    else:
        guarded("dead letters", queue.name, dead_letter, broker, queue, message, MAXLEN if reason == DequeueReason.DROP else REJECTED)


def _nothing() -> None:
    """A work without an answer."""


def settle_many(broker: Broker, queue_ids: Iterable[int]) -> None:
    """settle_limits of many queues, in slices."""
    waiting = collections.deque(queue_ids)
    step = partial(_settle_some, broker, waiting)
    if waiting and not step():
        broker.in_slices(step)


def _settle_some(broker: Broker, waiting: collections.deque[int]) -> bool:
    until_ns = broker.clock.monotonic_ns() + CASCADE_NS
    while waiting:
        queue = broker.queues.get(waiting.popleft())
        if queue is not None:
            guarded("queue limits", f"queue {queue.name!r}", settle_limits, broker, queue)
        if broker.clock.monotonic_ns() >= until_ns:
            break
    return not waiting


_cascade = threading.local()  # pending: queues that the enforcement under way on this thread has still to look at


def enforce_limits(broker: Broker, queue: Any) -> None:
    """Brings a queue back under its limit, and then those that its dead letters filled: in a row, not one inside the other. What fails
    ends the work on that queue only; the housekeeping tries again.

    What is over by more than a few messages (a limit of 10, and 200,000 that came back) is brought back in slices of the loop: each takes
    from the queues in turn.
    """
    pending: Queues | None = getattr(_cascade, "pending", None)
    if pending is not None:
        pending[queue] = None
        return
    pending = collections.OrderedDict({queue: None})
    if not _enforce_some(broker, pending):
        broker.over_limits.update(pending)
        _enforce_on(broker)


def _enforce_on(broker: Broker) -> None:
    """What is left goes on as a job, one for all queues."""
    if not broker.enforcing:
        broker.enforcing = True
        broker.in_slices(partial(_enforce_some, broker, broker.over_limits), partial(_enforced, broker))


def _enforced(broker: Broker, done: bool) -> None:
    broker.enforcing = False
    if done and broker.over_limits:  # another loop's, noted while the last slice ended
        _enforce_on(broker)


def _enforce_some(broker: Broker, pending: Queues) -> bool:
    """A slice for the first of the queues. True: all are within their limits, or can't be brought there now."""
    until_ns = broker.clock.monotonic_ns() + CASCADE_NS
    left: list[bool] = []
    _cascade.pending = pending
    try:
        while pending:
            queue, _none = pending.popitem(last=False)
            left.clear()
            guarded("queue limits", f"queue {queue.name!r}", lambda one: left.append(not _enforce(broker, one, until_ns)), queue)
            if left == [True]:
                pending[queue] = None  # behind the others
            if broker.clock.monotonic_ns() >= until_ns:
                break
        return not pending
    finally:
        _cascade.pending = None


def settle_limits(broker: Broker, queue: Any) -> None:
    """After an arrival: brings a queue back under its limit, unless its consumers have their turn first (queue/limits.py)."""
    if queue in broker.limited_queues and queue.core.over_limit() and not queue.core.limit_waits():
        enforce_limits(broker, queue)


def _enforce(broker: Broker, queue: Any, until_ns: int) -> bool:
    """Some of what is too much in a queue goes. True: nothing is left to do."""
    core = queue.core
    if queue.policy.overflow not in DROPPING:
        return True  # what came back may fill it above its limit, and stays
    if not core.dead_letters:
        dropped = drop_over(core)
        if dropped:
            broker.count_drops("maxlen", dropped)
        return not dropped or not core.over_limit()
    letter = partial(dead_letter, broker, queue, reason=MAXLEN)
    while True:
        with broker.limit_lock:
            if not core.over_limit():
                return True
            message = _taken(broker, queue, core.take_over, DequeueReason.DROP, letter)
        if message is None:
            return True
        if message is not _UNREADABLE:
            broker.count_drop("maxlen")
        if broker.clock.monotonic_ns() >= until_ns:
            return False


def count_returns(broker: Broker, queue: Any) -> None:
    """What came back to a queue that counts deliveries: the counts of logged entries are noted; who came back once too often is
    dead-lettered, or dropped; who has to wait before its next delivery does so. What was replaced meanwhile ends. Any thread."""
    core = queue.core
    while core.returned_count:
        for position, count, over, logged, delayed in core.take_returns(RETURNS_AT_ONCE):
            if (over or delayed) and last_value_replaced(core, position):
                core.settle_held(position, DequeueReason.DROP, False)
            elif not over:
                if queue.policy.is_shared:
                    if broker.shared is not None:
                        broker.shared.note_count(queue.queue_id, position, count)
                elif logged and broker.delivery_counts is not None:
                    guarded("delivery counts", f"queue {queue.name!r}", broker.delivery_counts.note, queue.queue_id, position, count)
                if delayed:
                    broker.retries.add(queue, position, count)
            elif not guarded("delivery limits", f"queue {queue.name!r}", _end_over_limit, broker, queue, position):
                core.release_held(position)  # the node is short of something: it comes back once more


def _end_over_limit(broker: Broker, queue: Any, position: int) -> None:
    """Raises: StoreError, MemoryError, KeyError: it could not be read or dead-lettered, and is held still."""
    if queue.policy.keeps_letters:
        broker.letters.bury(queue, position, DELIVERY_LIMIT)
        return
    if queue.policy.dead_letter_exchange is not None:
        dead_letter(broker, queue, queue.core.message_at(position), DELIVERY_LIMIT)
    queue.core.settle_held(position, DequeueReason.REJECT, False)
    broker.count_drop("delivery_limit")


def _unreadable(broker: Broker, queue: Any, error: Exception) -> None:
    """A message whose content can't be read stays in the queue, out of the way, and is counted there."""
    broker.count_drop("unreadable_content")
    log.error("a message of queue %r can't be read: %s", queue.name, error)


# what _taken answers when there was a message, and it can't be read
_UNREADABLE = object()


def _taken(broker: Broker, queue: Any, take: Callable[..., Any], *arguments: Any) -> Any:
    """The message that a take of the queue's core brings, None when there is none, _UNREADABLE when it can't be read: then it is out of the
    way. Raises: StoreError, KeyError when the message stays where it is."""
    unreadable = queue.core.failed_count
    try:
        return take(*arguments)
    except (StoreError, KeyError) as error:
        if queue.core.failed_count == unreadable:
            raise
        _unreadable(broker, queue, error)
        return _UNREADABLE


def expire(broker: Broker, queue: Any, now_ms: int, until_ns: int = 0) -> bool:
    """Takes expired messages out of a queue, to its dead-letter exchange when it has one.

    Args: now_ms: wall clock; until_ns: monotonic time after which it stops (after one message at least), 0 = never.
    Returns: whether all of them are gone.
    """
    core = queue.core
    while not core.dead_letters:
        ended = core.expire_many(now_ms, EXPIRE_AT_ONCE)
        if ended:
            broker.count_drops("expired", ended)
        if ended < EXPIRE_AT_ONCE:
            return True
        if until_ns and broker.clock.monotonic_ns() >= until_ns:
            return False
    while queue.policy.keeps_letters:
        position = core.hold_expired(now_ms)
        if not position:
            return True
        broker.letters.bury(queue, position, EXPIRED)
        if until_ns and broker.clock.monotonic_ns() >= until_ns:
            return False
    while True:
        letter = partial(dead_letter, broker, queue, reason=EXPIRED)
        message = _taken(broker, queue, core.take_expired, now_ms, DequeueReason.EXPIRE, letter)
        if message is None:
            return True
        if message is _UNREADABLE:
            continue
        broker.count_drop("expired")
        if until_ns and broker.clock.monotonic_ns() >= until_ns:
            return False
