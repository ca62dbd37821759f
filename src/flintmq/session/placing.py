"""One message onto the queues of its route: expiry, length limits, immediate, mandatory, confirm.

in: a complete message and its route. out: entries on queues; returns and confirms noted; what a full queue refuses or drops.

I1  A message that a confirm answers is in every queue of its route, and every log it was written to is durable.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_load64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.clock import wall_ms
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, CONTENT_SHARED, content_decref, content_incref
from cython.cimports.flintmq.protocol.v0_9_1.engine import FEED_MORE, FEED_PAUSE
from cython.cimports.flintmq.queue.queue_core import (
    queue_dequeue,
    queue_enqueue,
    queue_enqueue_immediate,
    queue_incref,
    queue_is_deleted,
    queue_ready_bytes,
    queue_ready_count,
    queue_take_head,
)
from cython.cimports.flintmq.queue.types import REASON_DROP, delivery_t
from cython.cimports.flintmq.routing.route_cache import (
    DEST_DEAD_LETTERS,
    DEST_LIMITED,
    DEST_REJECT_DEAD_LETTER,
    DEST_REJECT_OVER,
    DEST_STREAM,
    destination_t,
    route_decref,
)
from cython.cimports.flintmq.session.confirms import channel_note_confirm
from cython.cimports.flintmq.session.delivery import write_return
from cython.cimports.flintmq.session.types import DROP_MAXLEN, DROP_REFUSED, DROP_UNROUTABLE, SLOW_POLICY, refused_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc

_drop_lock = cython.declare(uint32_t, 0)
PUBLISH_MANDATORY = cython.declare(uint8_t, 1)
PUBLISH_IMMEDIATE = cython.declare(uint8_t, 2)
# milliseconds; a TTL of 0 means "to a consumer now, or not at all": what a pass of the loop may take until the consumer's turn
ZERO_TTL_MS = cython.declare(int64_t, 20)


def publish_to_queues(connection, channel, route, content, bits, expiration_ms):
    i: uint32_t
    destination: cython.pointer(destination_t)
    lsn: uint64_t = 0
    ticket: uint64_t = 0
    position: uint64_t
    placed: uint32_t = 0
    refused: cython.bint = False
    policy: cython.bint = False
    expires_at: int64_t
    channel.published += 1
    if route.count > 1 and connection.port != cython.NULL and content.flags & CONTENT_PERSISTENT:
        content.flags |= CONTENT_SHARED  # nobody else has the content yet
    for i in range(route.count):
        destination = cython.address(route.destinations[i])
        if destination.flags & DEST_STREAM:
            # Whether it is read at once or in a year: `immediate` asks nothing of a stream, and nothing in it expires.
            if place_on_stream(connection.port, destination.queue, content, cython.address(ticket)):
                placed += 1
            else:
                refused = True
                connection.dropped[DROP_REFUSED] += 1
            continue
        expires_at = expiry_on(destination, expiration_ms)
        if destination.flags & DEST_REJECT_OVER and (
            queue_ready_count(destination.queue) >= destination.max_length
            or queue_ready_bytes(destination.queue) + content.body_len > destination.max_bytes
        ):
            refused = True
            connection.dropped[DROP_REFUSED] += 1
            if destination.flags & DEST_REJECT_DEAD_LETTER:
                policy = note_refused(connection, destination.queue, content, REASON_DROP) or policy
            continue
        if bits & PUBLISH_IMMEDIATE:
            position = queue_enqueue_immediate(destination.queue, content, 0, expires_at, cython.address(lsn))
        else:
            position = queue_enqueue(destination.queue, content, 0, expires_at, cython.address(lsn))
        if position:
            placed += 1
        if destination.flags & DEST_LIMITED:
            if not destination.flags & DEST_DEAD_LETTERS:
                connection.dropped[DROP_MAXLEN] += drop_head(destination)
            elif (
                queue_ready_count(destination.queue) > destination.max_length
                or queue_ready_bytes(destination.queue) > destination.max_bytes
            ):
                policy = True
    if bits & PUBLISH_IMMEDIATE and placed == 0 and route.count:
        write_return(connection, channel.number, 313, b"NO_CONSUMERS", content)
        channel.returned += 1
    elif bits & (PUBLISH_MANDATORY | PUBLISH_IMMEDIATE) and route.count == 0:
        write_return(connection, channel.number, 312, b"NO_ROUTE", content)
        channel.returned += 1
    elif route.count == 0:
        connection.dropped[DROP_UNROUTABLE] += 1
    if lsn > connection.logged:
        connection.logged = lsn
    if ticket and connection.logged == 0:
        connection.logged = 1
    if ticket or (lsn and channel.confirm):
        connection.awaited = True
    if content.message_id and content.flags & CONTENT_SHARED:
        connection.port.placed(connection.port.context, content)
    if channel.confirm:
        channel_note_confirm(connection, channel, lsn, ticket, refused)
    route_decref(route)
    content_decref(content)
    if policy:
        connection.slow = SLOW_POLICY
        connection.slow_channel = channel.number
        return FEED_PAUSE
    return FEED_MORE


def place_on_stream(port, stream, content, ticket):
    if queue_enqueue(stream, content, 0, 0, cython.NULL) == 0:
        return queue_is_deleted(stream)  # no refusal, as for every queue that goes while a message is on its way there
    # Its own ticket, or a later one of another thread.
    ticket[0] = at_load64(cython.address(port.stream_ticket))
    return True


def note_refused(connection, queue, content, reason):
    refused: cython.pointer(refused_t) = cython.cast(cython.pointer(refused_t), calloc(1, cython.sizeof(refused_t)))
    if refused == cython.NULL:
        return False
    queue_incref(queue)
    content_incref(content)
    refused.reason = reason
    refused.queue = queue
    refused.content = content
    if connection.refused == cython.NULL:
        connection.refused = refused
    else:
        connection.refused_last.next = refused
    connection.refused_last = refused
    return True


def expiry_on(destination, expiration_ms):
    if destination.ttl_ms >= 0 and (expiration_ms < 0 or destination.ttl_ms < expiration_ms):
        expiration_ms = destination.ttl_ms
    if expiration_ms < 0:
        return 0
    return wall_ms() + (expiration_ms if expiration_ms else ZERO_TTL_MS)


def drop_head(destination):
    dropped: uint32_t = 0
    delivery: delivery_t
    over: cython.bint
    taken: cython.bint
    while queue_ready_count(destination.queue) > destination.max_length or queue_ready_bytes(destination.queue) > destination.max_bytes:
        # One at a time, or two loops would each drop a message for the same excess.
        spin_lock(cython.address(_drop_lock))
        over = queue_ready_count(destination.queue) > destination.max_length or queue_ready_bytes(destination.queue) > destination.max_bytes
        taken = over and queue_take_head(destination.queue, cython.address(delivery))
        spin_unlock(cython.address(_drop_lock))
        if not taken:
            return dropped
        dropped += 1
        queue_dequeue(destination.queue, delivery.slot, delivery.position, 0, REASON_DROP)
    return dropped
