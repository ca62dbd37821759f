"""Remembered messages of a recent-history exchange, sent to a destination that is bound to it; in slices, before the bind is answered.

in: a binding that is new. out: entries on queues.

Y1  It is put on queues as a dead letter is: by the queue's own limits and time to live, and the message's expiration anew.
Y2  What is published meanwhile may come before the last of it: RabbitMQ says no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flintmq.core.content import CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY
from flintmq.errors import PeerError
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1.codec import decode_properties
from flintmq.protocol.v0_9_1.scan import scan_properties_of
from flintmq.routing.binding import QUEUE
from flintmq.routing.history import RecentHistoryExchange
from flintmq.routing.message import Content, MessageHeaders
from flintmq.session.publishing import settle_limits
from flintmq.session.sweeps import LateAnswer
from flintmq.vhost.arguments import DROPPING

if TYPE_CHECKING:
    from flintmq.session.broker import Broker
    from flintmq.session.handlers import ConnectionHandler

# messages that are put on a queue in one slice, some 10 us each
REPLAYED_AT_ONCE = 8


def replay(broker: Broker, vhost: Any, source: str, kind: str, destination: str, done: Callable[[], object]) -> None:
    """Calls `done` when the destination has what the exchange remembers: before this returns when that is little. Any thread."""
    exchange = vhost.exchanges.get(source)
    kept = exchange.kept() if isinstance(exchange, RecentHistoryExchange) else []
    going = (True for content in kept for _ in _give(broker, vhost, kind, destination, content))

    def step() -> bool:
        return not all(next(going, False) for _ in range(REPLAYED_AT_ONCE))

    if not kept or (any(loop.is_current() for loop in broker.loops) and step()):
        done()
    else:
        broker.in_slices(step, lambda _: done())


def _give(broker: Broker, vhost: Any, kind: str, destination: str, content: Content) -> Iterator[None]:
    """Puts a message on its queues, one each time it is asked."""
    _, key, header, _ = content
    scanned = scan_properties_of(header)
    if scanned is None:
        return
    flags = CONTENT_PERSISTENT if scanned["delivery_mode"] == 2 else 0
    if scanned["headers"] is not None:
        flags |= CONTENT_HEADERS
    priority: Any = scanned["priority"]
    if priority != 0xFF:
        flags |= CONTENT_PRIORITY
    for queue in _queues(broker, vhost, kind, destination, key, header):
        level = 0 if priority == 0xFF else priority
        guarded("recent history", f"queue {queue.name!r}", put_message, broker, queue, content, flags, level, scanned["expiration_ms"])
        yield


def _queues(broker: Broker, vhost: Any, kind: str, destination: str, key: bytes, header: bytes) -> list[Any]:
    if kind == QUEUE:
        queue = vhost.queues.get(destination)
        return [] if queue is None else [queue]
    limits = broker.limits
    try:
        properties = decode_properties(header, limits.table_depth_max, limits.table_fields_max)[1]
        headers = properties.get("headers")
        found = MessageHeaders(headers if isinstance(headers, dict) else {}, lambda: properties, again=True)
        queues: list[Any] = vhost.route(destination, key, found)
    except PeerError:  # it is gone, has more patterns than may be looked at, or the message grew as a dead letter
        broker.count_drop("unroutable")
        return []
    return queues


def put_message(broker: Broker, queue: Any, content: Content, flags: int, priority: int, expiration_ms: Any) -> None:
    """The broker's own publish to one queue, by the queue's limits; what it refuses is counted."""
    exchange, key, header, body = content
    core = queue.core
    if queue.policy.overflow not in DROPPING and core.refuses(len(body)):
        broker.count_drop("maxlen")
        return
    own = max(expiration_ms, core.ttl_least_ms) if expiration_ms >= 0 else -1
    times = [time for time in (core.ttl_ms, own) if time >= 0]
    expires_at = broker.clock.wall_ms() + min(times) if times else 0
    if core.publish(exchange, key, header, body, flags, priority, expires_at):
        settle_limits(broker, queue)


def before_answer(
    handler: ConnectionHandler, number: int, source: str, kind: str, destination: str, answer: Callable[[Any], None]
) -> Callable[[Any], None]:
    """`answer` of a bind, after the destination has what the source remembers. Nothing more of the connection is read until then."""

    def bound(new: Any) -> None:
        exchange = handler.vhost.exchanges.get(source)
        if not new or not isinstance(exchange, RecentHistoryExchange):
            answer(new)
            return
        pending = LateAnswer(handler, lambda: answer(new) if number in handler.channels else None)
        replay(handler.broker, handler.vhost, source, kind, destination, pending.finish)
        pending.wait()

    return bound
