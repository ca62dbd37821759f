"""Changes of an operator while clients work: the limits of queues in use, the end of a virtual host, connections that are closed.

in: policies that changed, virtual hosts that were deleted, users who are gone. out: queues, routes and consumers that follow; connections
that are told why they end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.errors import ReplyCode
from flintmq.guard import guarded
from flintmq.routing.route_cache import DEST_BLOCK, DEST_DEAD_LETTERS, DEST_LIMITED, DEST_ONCE, DEST_REJECT_DEAD_LETTER, DEST_REJECT_OVER
from flintmq.session import handshake, publishing
from flintmq.vhost.arguments import BLOCK, DROPPING, REJECT_PUBLISH_DLX, RING
from flintmq.vhost.policy import QueuePolicy

if TYPE_CHECKING:
    from flintmq.queue.control import QueueHandle
    from flintmq.session.broker import Broker
    from flintmq.session.handlers import ConnectionHandler
    from flintmq.session.loop_port import LoopPort

# "any number" of QueueHandle's limits
_ANY = 2**64 - 1
# queues of a deleted virtual host that end in one slice
ENDS_AT_ONCE = 32
# connections that are told to go in one slice
CLOSES_AT_ONCE = 64


def configure(core: QueueHandle, policy: QueuePolicy) -> None:
    """Tells the core of a queue what its policy asks for: time to live, limits, dead letters, and the facts that routes copy."""
    core.dead_letters = policy.dead_letter_exchange is not None
    has_limit = policy.max_length is not None or policy.max_length_bytes is not None
    drops = policy.overflow in DROPPING and has_limit
    core.drops_lowest = policy.overflow == RING
    limit = -1 if policy.delivery_limit is None else policy.delivery_limit
    core.set_returns(policy.counts_deliveries, limit, drops, *policy.delayed_returns)
    core.consumer_timeout_ms = policy.consumer_timeout_ms or 0
    core.ttl_ms = min((one for one in (policy.message_ttl_ms, policy.maximum_ttl_ms) if one is not None), default=-1)
    core.ttl_least_ms = policy.minimum_ttl_ms or 0
    core.max_length = _ANY if policy.max_length is None else policy.max_length
    core.max_bytes = _ANY if policy.max_length_bytes is None else policy.max_length_bytes
    flags = 0
    if drops:
        flags = DEST_LIMITED | (DEST_DEAD_LETTERS if core.dead_letters else 0)
    elif has_limit and policy.overflow == BLOCK:
        flags = DEST_BLOCK
    elif has_limit:
        flags = DEST_REJECT_OVER
        if policy.overflow == REJECT_PUBLISH_DLX and core.dead_letters:
            flags |= DEST_REJECT_DEAD_LETTER
    core.destination_flags = flags | (DEST_ONCE if policy.deduplicates else 0)


def configure_shared(core: QueueHandle, policy: QueuePolicy) -> None:
    """The same of a shared queue, whose other facts are the service's."""
    core.ttl_ms = min((one for one in (policy.message_ttl_ms, policy.maximum_ttl_ms) if one is not None), default=-1)
    core.dead_letters = policy.dead_letter_exchange is not None
    core.set_returns(True, -1 if policy.delivery_limit is None else policy.delivery_limit, False)


def follow_policy(broker: Broker, queue: Any) -> None:
    """The policy of a queue in use changed. Under its virtual host's lock; the caller has the routes forgotten afterwards."""
    if queue.policy.is_stream:
        if broker.streams is not None:
            broker.streams.follow_policy(queue)
        return
    if queue.policy.is_shared:
        configure_shared(queue.core, queue.policy)
        if broker.shared is not None:
            broker.shared.follow_policy(queue)
    else:
        configure(queue.core, queue.policy)
        broker.follow(queue)
        broker.letters.queue_changed(queue)
    with broker.lock:
        consumers = list(broker.consumers.get(queue.queue_id, ()))
    for consumer in consumers:
        broker.on_loop_of(consumer.handler, partial(_tell, consumer))


def _tell(consumer: Any) -> None:
    """On the connection's loop: its consumer's deliveries are dead-lettered from now on, or no more."""
    state = consumer.handler.channels.get(consumer.channel)
    if not consumer.handler.ended and state is not None and state.consumers.get(consumer.tag) is consumer:
        tag = consumer.tag.encode("utf-8", "surrogateescape")
        consumer.handler.connection.set_dead_letters(consumer.channel, tag, consumer.queue.core)


def keep_limits(broker: Broker, queue: Any) -> None:
    """A queue that may be above a limit that is new. Not under a virtual host's lock."""
    if queue in broker.limited_queues and queue.core.over_limit():
        guarded("queue limits", f"queue {queue.name!r}", publishing.enforce_limits, broker, queue)


def close_connections(broker: Broker, which: Callable[[ConnectionHandler], bool], text: str) -> int:
    """Closes connections with 320 CONNECTION_FORCED and `text`, each on its own loop, in slices. Returns how many. Any thread."""
    broker.closings = object()
    chosen = [handler for handler in list(broker.connections.values()) if which(handler)]

    def some() -> bool:
        for _ in range(min(CLOSES_AT_ONCE, len(chosen))):
            handler = chosen.pop()
            broker.on_loop_of(handler, partial(guarded, "connections that are closed", handler.name, _close, handler, text))
        return not chosen

    count = len(chosen)
    if chosen:
        broker.in_slices(some)
    return count


def _close(handler: ConnectionHandler, text: str) -> None:
    if handler.ended or handler.state != handshake.RUNNING:
        return
    handler.close(ReplyCode.CONNECTION_FORCED, f"CONNECTION_FORCED - {text}")
    if handler.socket is not None:
        handler.loop.touch(handler.socket)


def end_vhost(broker: Broker, name: str, done: Callable[[bool], object]) -> None:
    """A virtual host whose definitions are gone: nobody opens it any more, its connections are closed with RabbitMQ's text, its queues
    end in
    slices; then `done`. Any thread."""
    vhost = broker.vhosts.pop(name, None)
    if vhost is None:
        done(True)
        return
    vhost.deleted = True
    broker.closings = object()
    left, lock = [len(broker.loops) or 1], threading.Lock()

    def closed(whole: bool) -> None:
        with lock:
            left[0] -= 1
            last = not left[0]
        if last:
            broker.in_slices(partial(vhost.end_some, ENDS_AT_ONCE), done)

    if not broker.loops:
        closed(True)
    # On its loop each connection is found, whether it was opened before or while this runs, and what it had sent is done with: no publish
    # is on its way to the queues when they end.
    for loop in broker.loops:
        loop.job(partial(_close_some, broker, loop, vhost), closed)


def _close_some(broker: Broker, loop: LoopPort, vhost: Any) -> bool:
    """On the loop: some of its connections in a deleted virtual host. True: there are no more."""
    found = [one for one in list(broker.connections.values()) if one.vhost is vhost and one.loop is loop and not one.ended]
    for handler in found[:CLOSES_AT_ONCE]:
        guarded("connections that are closed", handler.name, _close, handler, f"vhost '{vhost.name}' is deleted")
    return len(found) <= CLOSES_AT_ONCE
