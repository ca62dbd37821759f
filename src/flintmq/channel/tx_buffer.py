"""The open transaction of a channel: what the client sent since the last commit (see tx_buffer.pxd).

in: publishes and settlements of a transactional channel. out: the same as records, until commit or rollback.

I1  A delivery has in_tx set exactly while one record names it: neither recover nor another settlement sees it.
I2  Nothing of a transaction is on a queue before its commit.

Source: AMQP 0-9-1 specification 1.9 (class tx).
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.channel.letters import note_refused
from cython.cimports.flintmq.channel.placing import ROUTE_ATTEMPTS, publish_to_queues, route_anew
from cython.cimports.flintmq.channel.settlement import (
    SETTLE_DONE, channel_settle, channel_settle_item, unacked_content, unacked_find, unacked_next,
)  # fmt: skip
from cython.cimports.flintmq.channel.types import channel_t, connection_t, tx_publish_t, tx_settle_t, unacked_t
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import CONTENT_EXPIRES, content_decref, content_header, content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_TX, memory_add
from cython.cimports.flintmq.protocol.v0_9_1.codec import props_scan_t, scan_properties
from cython.cimports.flintmq.protocol.v0_9_1.ids import BASIC_ACK
from cython.cimports.flintmq.queue.types import REASON_REJECT
from cython.cimports.flintmq.routing.route_cache import route_decref, route_has_gone, route_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import realloc


def tx_add_publish(
    connection: pointer[connection_t], channel: pointer[channel_t], route: pointer[route_t], content: pointer[content_t]
) -> c_int:
    items: pointer[tx_publish_t]
    size: uint32_t
    if channel.tx_publish_count == channel.tx_publish_size:
        size = channel.tx_publish_size * 2 if channel.tx_publish_size else 16
        items = cast(pointer[tx_publish_t], realloc(channel.tx_publishes, size * sizeof(tx_publish_t)))
        if items == NULL:
            route_decref(route)
            content_decref(content)
            return TX_NO_MEMORY
        memory_add(MEMORY_TX, (size - channel.tx_publish_size) * sizeof(tx_publish_t))
        channel.tx_publishes = items
        channel.tx_publish_size = size
    check(
        channel.tx_publish_count < channel.tx_publish_size,
        b"tx_buffer I2 there is room for a publish",
        channel.number,
        channel.tx_publish_count,
    )
    items = address(channel.tx_publishes[channel.tx_publish_count])
    items.route = route
    items.content = content
    items.bits = channel.publish_bits
    items.due_ms = 0
    channel.tx_publish_count += 1
    channel.tx_bytes += content.body_len + content.header_len + 64
    return TX_TOO_LARGE if channel.tx_bytes > connection.tx_bytes_max else TX_TAKEN


def tx_add_settle(
    connection: pointer[connection_t], channel: pointer[channel_t], method: uint32_t, tag: uint64_t, multiple: bint, requeue: bint
) -> c_int:
    item: pointer[unacked_t]
    number: uint64_t = tag
    is_known: bint = False
    if multiple:
        if tag > channel.unacked.last_tag:
            return TX_UNKNOWN_TAG
        number = unacked_next(address(channel.unacked), 1)
    while number and (not multiple or number <= tag or tag == 0):
        item = unacked_find(address(channel.unacked), number)
        if (
            item == NULL
            and not multiple
            and channel.late
            and channel_settle(connection, channel, method, tag, False, requeue) == SETTLE_DONE
        ):
            is_known = True
        elif item != NULL and item.lost:
            channel_settle_item(connection, channel, number, method, requeue)  # it is no part of anything
            is_known = True
        elif item != NULL and not item.in_tx:
            if not _add_record(channel, number, method, requeue):
                return TX_NO_MEMORY
            item.in_tx = 1
            is_known = True
        if not multiple:
            break
        number = unacked_next(address(channel.unacked), number + 1)
    if not is_known and not (multiple and (tag == 0 or channel.late)):
        return TX_UNKNOWN_TAG
    return TX_TOO_LARGE if channel.tx_bytes > connection.tx_bytes_max else TX_TAKEN


@cfunc
@nogil
@exceptval(check=False)
def _add_record(channel: pointer[channel_t], tag: uint64_t, method: uint32_t, requeue: bint) -> bint:
    items: pointer[tx_settle_t]
    size: uint32_t
    if channel.tx_settle_count == channel.tx_settle_size:
        size = channel.tx_settle_size * 2 if channel.tx_settle_size else 16
        items = cast(pointer[tx_settle_t], realloc(channel.tx_settles, size * sizeof(tx_settle_t)))
        if items == NULL:
            return False
        memory_add(MEMORY_TX, (size - channel.tx_settle_size) * sizeof(tx_settle_t))
        channel.tx_settles = items
        channel.tx_settle_size = size
    check(channel.tx_settle_count < channel.tx_settle_size, b"tx_buffer I1 there is room for a settlement", tag, channel.tx_settle_count)
    items = address(channel.tx_settles[channel.tx_settle_count])
    items.tag = tag
    items.method = method
    items.requeue = 1 if requeue else 0
    channel.tx_settle_count += 1
    channel.tx_bytes += sizeof(tx_settle_t)
    return True


def tx_route_anew(connection: pointer[connection_t], channel: pointer[channel_t]) -> void:
    i: uint32_t
    attempts: uint32_t
    publish: pointer[tx_publish_t]
    fresh: pointer[route_t]
    for i in range(channel.tx_publish_count):
        publish = address(channel.tx_publishes[i])
        attempts = 0
        while attempts < ROUTE_ATTEMPTS and route_has_gone(publish.route):
            attempts += 1
            fresh = route_anew(connection, publish.route, publish.content)
            if fresh == NULL:
                break
            route_decref(publish.route)
            publish.route = fresh


def tx_apply(connection: pointer[connection_t], channel: pointer[channel_t]) -> void:
    i: uint32_t
    publish: pointer[tx_publish_t]
    settle: pointer[tx_settle_t]
    item: pointer[unacked_t]
    content: pointer[content_t]
    message_id: uint64_t = 0
    expiration_ms: int64_t
    for i in range(channel.tx_publish_count):
        publish = address(channel.tx_publishes[i])
        expiration_ms = publish.due_ms if publish.due_ms else expiration_of(publish.content)
        publish_to_queues(connection, channel, publish.route, publish.content, publish.bits, expiration_ms)
        route_decref(publish.route)
    channel.tx_publish_count = 0
    for i in range(channel.tx_settle_count):
        settle = address(channel.tx_settles[i])
        item = unacked_find(address(channel.unacked), settle.tag)
        check(item != NULL and item.in_tx != 0, b"tx_buffer I1 a settlement that is applied has its delivery", settle.tag, i)
        if settle.method != BASIC_ACK and not settle.requeue and item.dead_letters:
            # A content that is not in memory is in a log, and such a transaction does not come here (Transaction).
            content = unacked_content(item, address(message_id))
            if content != NULL:
                note_refused(connection, item.queue, content, REASON_REJECT)
                content_decref(content)
        channel_settle_item(connection, channel, settle.tag, settle.method, settle.requeue)
    tx_clear(channel)


def tx_rollback(channel: pointer[channel_t]) -> void:
    i: uint32_t
    item: pointer[unacked_t]
    for i in range(channel.tx_settle_count):
        item = unacked_find(address(channel.unacked), channel.tx_settles[i].tag)
        check(
            item != NULL and item.in_tx != 0,
            b"tx_buffer I1 a settlement that is taken back has its delivery",
            channel.tx_settles[i].tag,
            i,
        )
        item.in_tx = 0
    tx_clear(channel)


def tx_clear(channel: pointer[channel_t]) -> void:
    while channel.tx_publish_count:
        tx_drop_some(channel, channel.tx_publish_count)
    channel.tx_settle_count = 0
    channel.tx_bytes = 0


def tx_drop_some(channel: pointer[channel_t], most: uint32_t) -> uint32_t:
    while channel.tx_publish_count and most:
        channel.tx_publish_count -= 1
        route_decref(channel.tx_publishes[channel.tx_publish_count].route)
        content_decref(channel.tx_publishes[channel.tx_publish_count].content)
        most -= 1
    return most


def expiration_of(content: pointer[content_t]) -> int64_t:
    scan: props_scan_t
    if not content.flags & CONTENT_EXPIRES or scan_properties(content_header(content), content.header_len, address(scan)) != 0:
        return -1
    return scan.expiration_ms
