"""Remembered messages of a recent-history exchange, sent to a destination that is bound to it; in slices, before the bind is answered.

in: a binding that is new. out: entries on queues.

Y1  It is put on queues as a dead letter is: by the queue's own limits and time to live, and the message's expiration anew.
Y2  What is published meanwhile may come before the last of it: RabbitMQ says no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flintmq.broker.outbox import Put
from flintmq.core.content import CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY
from flintmq.errors import PeerError
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1.codec import decode_properties
from flintmq.protocol.v0_9_1.scan import scan_properties_of
from flintmq.routing.binding import QUEUE
from flintmq.routing.history import RecentHistoryExchange
from flintmq.routing.message import Content, MessageHeaders

if TYPE_CHECKING:
    from flintmq.broker.state import NodeState

# messages that are put on a queue in one slice, some 10 us each
REPLAYED_AT_ONCE = 8


def replay(state: NodeState, put: Put, vhost: Any, source: str, kind: str, destination: str, done: Callable[[], object]) -> None:
    """Calls `done` when the destination has what the exchange remembers: before this returns when that is little. Any thread."""
    exchange = vhost.exchanges.get(source)
    kept = exchange.kept() if isinstance(exchange, RecentHistoryExchange) else []
    going = (True for content in kept for _ in _give(state, put, vhost, kind, destination, content))

    def step() -> bool:
        return not all(next(going, False) for _ in range(REPLAYED_AT_ONCE))

    if not kept or (state.loops.is_current() and step()):
        done()
    else:
        state.loops.in_slices(step, lambda _: done())


def _give(state: NodeState, put: Put, vhost: Any, kind: str, destination: str, content: Content) -> Iterator[None]:
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
    for queue in _queues(state, vhost, kind, destination, key, header):
        level = 0 if priority == 0xFF else priority
        guarded("recent history", f"queue {queue.name!r}", put, queue, content, flags, level, scanned["expiration_ms"])
        yield


def _queues(state: NodeState, vhost: Any, kind: str, destination: str, key: bytes, header: bytes) -> list[Any]:
    if kind == QUEUE:
        queue = vhost.queues.get(destination)
        return [] if queue is None else [queue]
    limits = state.limits
    try:
        properties = decode_properties(header, limits.table_depth_max, limits.table_fields_max)[1]
        headers = properties.get("headers")
        message = MessageHeaders(headers if isinstance(headers, dict) else {}, lambda: properties, is_replay=True)
        queues: list[Any] = vhost.route(destination, key, message)
    except PeerError:  # it is gone, has more patterns than may be looked at, or the message grew as a dead letter
        state.counters.drop("unroutable")
        return []
    return queues
