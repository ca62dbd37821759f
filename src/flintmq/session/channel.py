"""The channel's part of a message's way in: publish and settle (see channel.pxd).

in: calls of the protocol engine. out: enqueues and settlements on queues, confirms and returns in the output buffer.

A publish whose route is cached takes no lock but the queue's and never the GIL. What needs Python (a route that is not cached,
a headers exchange, CC, reply-to, dead-lettering) is left in connection.slow, and the loop calls the handlers.

I1  A message that a confirm answers is in every queue of its route, and every log it was written to is durable.
I2  Every delivery that was acquired for this channel is in `unacked`, settled, or back in its queue.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64
from cython.cimports.flintmq.core.buffer import get16
from cython.cimports.flintmq.core.content import (
    CONTENT_EXPIRES,
    CONTENT_HEADERS,
    CONTENT_PERSISTENT,
    CONTENT_PRIORITY,
    CONTENT_REPLY_TO,
    content_body,
    content_decref,
    content_frame,
    content_grow,
    content_header,
    content_new,
    content_route,
    content_t,
)
from cython.cimports.flintmq.core.memory_account import MEMORY_CHANNELS, MEMORY_TX, memory_add
from cython.cimports.flintmq.protocol.v0_9_1.codec import EXPIRATION_INVALID, props_scan_t, scan_properties
from cython.cimports.flintmq.protocol.v0_9_1.engine import FEED_ERROR, FEED_MORE, FEED_PAUSE, sink_t
from cython.cimports.flintmq.queue.owner_ids import owner_id_free
from cython.cimports.flintmq.routing.route_cache import exchange_decref, exchange_find, exchange_t, route_decref, route_incref, route_t
from cython.cimports.flintmq.session.placing import publish_to_queues
from cython.cimports.flintmq.session.settlement import (
    SETTLE_AT_ONCE,
    SETTLE_MORE,
    SETTLE_UNKNOWN,
    channel_settle,
    channel_settle_some,
    part_t,
)
from cython.cimports.flintmq.session.types import (
    AUTHORIZED_MAX,
    CHANNELS_PAGE,
    PUBLISHED_EVER,
    PUBLISHED_NOW,
    SLOW_DEAD_LETTER,
    SLOW_POLICY,
    SLOW_HEADER,
    SLOW_METHOD,
    SLOW_PUBLISH,
    SLOW_RESOLVE,
    SLOW_ROUTE,
    channel_t,
    connection_channel,
    connection_t,
    pending_confirm_t,
    tx_publish_t,
    tx_settle_t,
    unacked_t,
)
from cython.cimports.flintmq.session.tx_buffer import TX_NO_MEMORY, TX_TAKEN, TX_TOO_LARGE, tx_add_publish, tx_add_settle, tx_drop_some
from cython.cimports.flintmq.session.unacked import unacked_find, unacked_free, unacked_next
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memcmp, memcpy, memset

BASIC_ACK = cython.declare(cython.int, 80)
BASIC_REJECT = cython.declare(cython.int, 90)
# slow_size of SLOW_DEAD_LETTER, bits
SETTLING_MULTIPLE = cython.declare(uint32_t, 1)
SETTLING_REQUEUE = cython.declare(uint32_t, 2)
BASIC_NACK = cython.declare(cython.int, 120)
# property flag bits of a content header (specification 1.8, class basic)
FLAG_DELIVERY_MODE = cython.declare(uint16_t, 1 << 12)
FLAG_HEADERS = cython.declare(uint16_t, 1 << 13)
FLAG_REPLY_TO = cython.declare(uint16_t, 1 << 9)
FLAG_EXPIRATION = cython.declare(uint16_t, 1 << 8)
FLAG_USER_ID = cython.declare(uint16_t, 1 << 4)

# bytes; a body of more gets room as its frames arrive, so that what a header says takes no memory
EAGER_SIZE = cython.declare(uint64_t, 4096)
# bytes of room for such a body at its header
FIRST_ROOM = cython.declare(uint32_t, 8)

_generation = cython.declare(uint64_t, 1)
_sink = cython.declare(sink_t)


def authorization_changed():
    at_add64(cython.address(_generation), 1)


# --- life -----------------------------------------------------------------------------------------------------------------


def channel_new(connection, number):
    channel: cython.pointer(channel_t) = cython.cast(cython.pointer(channel_t), calloc(1, cython.sizeof(channel_t)))
    if channel != cython.NULL:
        memory_add(MEMORY_CHANNELS, cython.sizeof(channel_t))
        channel.connection = connection
        channel.number = number
        channel.open = True
        channel.authorized_generation = at_load64(cython.address(_generation))
    return channel


def channel_set_route(channel, route):
    if channel.route != cython.NULL:
        route_decref(channel.route)
    channel.route = route


def channel_release_some(channel, at, most):
    part: part_t
    part.most = tx_drop_some(channel, most)
    part.upto = channel.unacked.last_tag
    part.in_tx = True
    part.at = at[0]
    if part.most:
        channel_settle_some(channel.connection, channel, BASIC_NACK, True, cython.address(part))
        if part.at == 0 and channel.content != cython.NULL:
            content_decref(channel.content)
            channel.content = cython.NULL
    at[0] = part.at
    return part.most


def channel_free(channel):
    i: cython.int
    channel_set_route(channel, cython.NULL)
    for i in range(AUTHORIZED_MAX):
        if channel.authorized[i] != cython.NULL:
            exchange_decref(channel.authorized[i])
    unacked_free(cython.address(channel.unacked))
    owner_id_free(channel.getter)
    memory_add(
        MEMORY_TX,
        -cython.cast(int64_t, channel.tx_publish_size * cython.sizeof(tx_publish_t) + channel.tx_settle_size * cython.sizeof(tx_settle_t)),
    )
    memory_add(MEMORY_CHANNELS, -cython.cast(int64_t, cython.sizeof(channel_t) + channel.pending_size * cython.sizeof(pending_confirm_t)))
    free(channel.pending)
    free(channel.tx_publishes)
    free(channel.tx_settles)
    free(channel)


def channels_add(connection, channel):
    page: uint32_t = channel.number // CHANNELS_PAGE
    pages: cython.pointer(cython.pointer(cython.pointer(channel_t)))
    if page >= connection.channel_pages:
        pages = cython.cast(
            cython.pointer(cython.pointer(cython.pointer(channel_t))),
            realloc(connection.channels, (page + 1) * cython.sizeof(cython.p_void)),
        )
        if pages == cython.NULL:
            return False
        memset(pages + connection.channel_pages, 0, (page + 1 - connection.channel_pages) * cython.sizeof(cython.p_void))
        memory_add(MEMORY_CHANNELS, (page + 1 - connection.channel_pages) * cython.sizeof(cython.p_void))
        connection.channels = pages
        connection.channel_pages = page + 1
    if connection.channels[page] == cython.NULL:
        connection.channels[page] = cython.cast(
            cython.pointer(cython.pointer(channel_t)), calloc(CHANNELS_PAGE, cython.sizeof(cython.p_void))
        )
        if connection.channels[page] == cython.NULL:
            return False
        memory_add(MEMORY_CHANNELS, CHANNELS_PAGE * cython.sizeof(cython.p_void))
    connection.channels[page][channel.number % CHANNELS_PAGE] = channel
    channel.next_open = connection.open_channels
    if channel.next_open != cython.NULL:
        channel.next_open.previous_open = channel
    connection.open_channels = channel
    return True


def channels_remove(connection, channel):
    connection.channels[channel.number // CHANNELS_PAGE][channel.number % CHANNELS_PAGE] = cython.NULL
    connection.last_channel = cython.NULL
    if channel.next_open != cython.NULL:
        channel.next_open.previous_open = channel.previous_open
    if channel.previous_open != cython.NULL:
        channel.previous_open.next_open = channel.next_open
    else:
        connection.open_channels = channel.next_open


def channels_free(connection):
    page: uint32_t
    channel: cython.pointer(channel_t)
    while connection.open_channels != cython.NULL:
        channel = connection.open_channels
        channels_remove(connection, channel)
        channel_free(channel)
    for page in range(connection.channel_pages):
        if connection.channels[page] != cython.NULL:
            memory_add(MEMORY_CHANNELS, -cython.cast(int64_t, CHANNELS_PAGE * cython.sizeof(cython.p_void)))
        free(connection.channels[page])
    memory_add(MEMORY_CHANNELS, -cython.cast(int64_t, connection.channel_pages * cython.sizeof(cython.p_void)))
    free(connection.channels)
    connection.channels = cython.NULL
    connection.channel_pages = 0


# --- publish --------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_publish(
    context: cython.p_void, number: uint16_t, route: cython.pointer(cython.const[uint8_t]), route_len: uint32_t, bits: uint8_t
) -> cython.int:
    connection: cython.pointer(connection_t) = cython.cast(cython.pointer(connection_t), context)
    channel: cython.pointer(channel_t) = connection_channel(connection, number)
    last: cython.pointer(route_t) = channel.route
    exchange: cython.pointer(exchange_t)
    found: cython.pointer(route_t)
    i: cython.int
    channel.publish_bits = bits
    channel.slow_publish = False
    if channel.authorized_generation == at_load64(cython.address(_generation)):
        if (
            last != cython.NULL
            and last.key_len == route_len
            and at_load32(cython.address(last.valid))
            and memcmp(last.key, route, route_len) == 0
        ):
            return FEED_MORE
        for i in range(AUTHORIZED_MAX):
            exchange = channel.authorized[i]
            if exchange != cython.NULL and exchange.name_len == route[0] and memcmp(exchange.name, route + 1, route[0]) == 0:
                found = exchange_find(exchange, route, route_len)
                if found != cython.NULL:
                    channel_set_route(channel, found)
                    return FEED_MORE
                if at_load32(cython.address(exchange.usable)):
                    connection.slow = SLOW_RESOLVE
                    connection.slow_exchange = exchange
                    connection.slow_channel = number
                    connection.slow_payload = route
                    connection.slow_size = route_len
                    return FEED_PAUSE
                break
    connection.slow = SLOW_ROUTE
    connection.slow_channel = number
    connection.slow_payload = route
    connection.slow_size = route_len
    return FEED_PAUSE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _refuse(
    connection: cython.pointer(connection_t), number: uint16_t, code: cython.int, text: cython.p_char, method: uint32_t
) -> cython.int:
    connection.engine.error_code = code
    connection.engine.error_text = text
    connection.engine.error_channel = number
    connection.engine.error_method = method
    connection.engine.error_value = 0
    return FEED_ERROR


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_header(
    context: cython.p_void, number: uint16_t, body_size: uint64_t, payload: cython.pointer(cython.const[uint8_t]), size: uint32_t
) -> cython.int:
    connection: cython.pointer(connection_t) = cython.cast(cython.pointer(connection_t), context)
    channel: cython.pointer(channel_t) = connection_channel(connection, number)
    flags: uint16_t = get16(payload + 12)
    scan: props_scan_t
    room: uint32_t = cython.cast(uint32_t, body_size) if body_size <= EAGER_SIZE else FIRST_ROOM
    content: cython.pointer(content_t) = content_new(connection.arena, channel.route.key_len, size, room)
    if content == cython.NULL:
        return _refuse(connection, 0, 506, b"no memory for the message", 60 << 16 | 40)
    memcpy(content_route(content), channel.route.key, channel.route.key_len)
    memcpy(content_header(content), payload, size)
    channel.content = content
    channel.filled = 0
    channel.announced = cython.cast(uint32_t, body_size)
    channel.expiration_ms = -1
    if flags == 0:
        if size != 14:
            return _refuse(connection, 0, 502, b"content header is longer than its properties", 60 << 16 | 40)
    elif flags == FLAG_DELIVERY_MODE and size == 15:
        if payload[14] == 2:
            content.flags = CONTENT_PERSISTENT
    else:
        if scan_properties(payload, size, cython.address(scan)) != 0:
            connection.slow_payload = payload  # handlers.py looks what is wrong with it
            connection.slow_size = size
            return _refuse(connection, 0, 502, b"content header properties are malformed", 60 << 16 | 40)
        if scan.delivery_mode == 2:
            content.flags |= CONTENT_PERSISTENT
        if scan.priority != 0xFF or scan.flags & (1 << 11):
            content.priority = scan.priority
            content.flags |= CONTENT_PRIORITY
        if flags & FLAG_HEADERS:
            content.flags |= CONTENT_HEADERS
        if flags & FLAG_REPLY_TO:
            content.flags |= CONTENT_REPLY_TO
            if scan.reply_to_len == 21 and memcmp(scan.reply_to, b"amq.rabbitmq.reply-to", 21) == 0:
                channel.slow_publish = True
        if flags & FLAG_EXPIRATION:
            content.flags |= CONTENT_EXPIRES
            if scan.expiration_ms == EXPIRATION_INVALID:
                channel.slow_publish = True  # refused there, with its value
            channel.expiration_ms = scan.expiration_ms
        if scan.has_cc or flags & FLAG_USER_ID:
            channel.slow_publish = True
    if body_size == 0:
        return _complete(connection, channel)
    return FEED_MORE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_body(
    context: cython.p_void, number: uint16_t, payload: cython.pointer(cython.const[uint8_t]), size: uint32_t, left: uint64_t
) -> cython.int:
    connection: cython.pointer(connection_t) = cython.cast(cython.pointer(connection_t), context)
    channel: cython.pointer(channel_t) = connection_channel(connection, number)
    if channel.content.body_len - channel.filled < size and not _make_room(connection, channel, size):
        return _refuse(connection, 0, 506, b"no memory for the message", 60 << 16 | 40)
    memcpy(content_body(channel.content) + channel.filled, payload, size)
    channel.filled += size
    if left == 0:
        return _complete(connection, channel)
    return FEED_MORE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _make_room(connection: cython.pointer(connection_t), channel: cython.pointer(channel_t), size: uint32_t) -> cython.bint:
    """Room for `size` more body bytes, doubled at least, never more than was announced. False: no memory."""
    room: uint64_t = cython.cast(uint64_t, channel.content.body_len) * 2
    grown: cython.pointer(content_t)
    if room < cython.cast(uint64_t, channel.filled) + size:
        room = cython.cast(uint64_t, channel.filled) + size
    if room > channel.announced:
        room = channel.announced
    grown = content_grow(connection.arena, channel.content, channel.filled, cython.cast(uint32_t, room))
    if grown == cython.NULL:
        return False
    channel.content = grown
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _complete(connection: cython.pointer(connection_t), channel: cython.pointer(channel_t)) -> cython.int:
    content_frame(channel.content)
    connection.publisher = PUBLISHED_EVER | PUBLISHED_NOW
    if channel.slow_publish:
        connection.slow = SLOW_PUBLISH
        connection.slow_channel = channel.number
        return FEED_PAUSE
    return channel_accept(connection, channel, channel.route)


def channel_accept(connection, channel, route):
    content: cython.pointer(content_t) = channel.content
    channel.content = cython.NULL
    if not channel.tx:
        return publish_to_queues(connection, channel, route, content, channel.publish_bits, channel.expiration_ms)
    route_incref(route)
    return _tx_answer(connection, channel, tx_add_publish(connection, channel, route, content), 40, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _tx_answer(
    connection: cython.pointer(connection_t), channel: cython.pointer(channel_t), result: cython.int, method: uint32_t, tag: uint64_t
) -> cython.int:
    """Each of the errors closes the channel (or the connection), which rolls back."""
    method |= 60 << 16
    if result == TX_TAKEN:
        return FEED_MORE
    if result == TX_TOO_LARGE:
        return _refuse(connection, channel.number, 406, b"transaction is larger than the limit", method)
    if result == TX_NO_MEMORY:
        return _refuse(connection, 0, 506, b"no memory for the transaction", method)
    _refuse(connection, channel.number, 406, b"unknown delivery tag", method)
    connection.engine.error_value = tag
    return FEED_ERROR


# --- settle ---------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_settle(
    context: cython.p_void, number: uint16_t, method: cython.int, tag: uint64_t, multiple: cython.bint, requeue: cython.bint
) -> cython.int:
    connection: cython.pointer(connection_t) = cython.cast(cython.pointer(connection_t), context)
    channel: cython.pointer(channel_t) = connection_channel(connection, number)
    settled: cython.int
    if channel.tx:
        return _tx_answer(connection, channel, tx_add_settle(connection, channel, method, tag, multiple, requeue), method, tag)
    if method != BASIC_ACK and not requeue and _may_dead_letter(channel, tag, multiple):
        return _settle_slowly(connection, number, method, tag, SETTLING_MULTIPLE if multiple else 0)
    settled = channel_settle(connection, channel, method, tag, multiple, requeue)
    if settled == SETTLE_MORE:
        return _settle_slowly(connection, number, method, tag, SETTLING_MULTIPLE | (SETTLING_REQUEUE if requeue else 0))
    if settled == SETTLE_UNKNOWN:
        _refuse(connection, number, 406, b"unknown delivery tag", 60 << 16 | method)
        connection.engine.error_value = tag
        return FEED_ERROR
    if connection.refused != cython.NULL:
        connection.slow = SLOW_POLICY  # what came back is counted, or fills its queue over the limit
        connection.slow_channel = number
        return FEED_PAUSE
    return FEED_MORE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _settle_slowly(
    connection: cython.pointer(connection_t), number: uint16_t, method: cython.int, tag: uint64_t, how: uint32_t
) -> cython.int:
    """What is dead-lettered needs Python; so do the slices of what is too much for one piece."""
    connection.slow = SLOW_DEAD_LETTER
    connection.slow_channel = number
    connection.slow_method = method
    connection.slow_tag = tag
    connection.slow_size = how
    return FEED_PAUSE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _may_dead_letter(channel: cython.pointer(channel_t), tag: uint64_t, multiple: cython.bint) -> cython.bint:
    """Whether the first of them, those that would be settled at once, have to be dead-lettered."""
    item: cython.pointer(unacked_t)
    at: uint64_t
    most: cython.int = SETTLE_AT_ONCE
    if not multiple:
        item = unacked_find(cython.address(channel.unacked), tag)
        return item != cython.NULL and item.dead_letters
    at = unacked_next(cython.address(channel.unacked), 1)
    while at and (at <= tag or tag == 0) and most:
        if unacked_find(cython.address(channel.unacked), at).dead_letters:
            return True
        most -= 1
        at = unacked_next(cython.address(channel.unacked), at + 1)
    return False


# --- the rest -------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_method(
    context: cython.p_void, number: uint16_t, method: uint32_t, payload: cython.pointer(cython.const[uint8_t]), size: uint32_t
) -> cython.int:
    connection: cython.pointer(connection_t) = cython.cast(cython.pointer(connection_t), context)
    connection.slow = SLOW_METHOD
    connection.slow_channel = number
    connection.slow_method = method
    connection.slow_payload = payload
    connection.slow_size = size
    return FEED_PAUSE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_heartbeat(context: cython.p_void) -> cython.int:
    return FEED_MORE  # the loop counts every byte as a sign of life


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_protocol_header(context: cython.p_void) -> cython.int:
    cython.cast(cython.pointer(connection_t), context).slow = SLOW_HEADER
    return FEED_PAUSE


_sink.protocol_header = _on_protocol_header
_sink.publish = _on_publish
_sink.header = _on_header
_sink.body = _on_body
_sink.settle = _on_settle
_sink.method = _on_method
_sink.heartbeat = _on_heartbeat


def session_sink():
    return cython.address(_sink)
