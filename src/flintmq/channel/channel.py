"""The channel's part of a message's way in: publish and settle (see channel.pxd).

in: calls of the protocol engine. out: enqueues and settlements on queues, confirms and returns in the output buffer.

A publish whose route is cached takes no lock but the queue's and never the GIL. What needs Python (a route that is not cached,
a property that is refused, a dead letter's address) is left in connection.slow, and the loop calls the handlers.

I1  A message that a confirm answers is in every queue of its route, and every log it was written to is durable.
I2  Every delivery that was acquired for this channel is in `unacked`, settled, or back in its queue.
I3  A body that is being received has room for the piece that is put into it.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.channel.deciding import channel_decide
from cython.cimports.flintmq.channel.placing import confirms_forget, publish_to_queues
from cython.cimports.flintmq.channel.scheduling import schedule_of
from cython.cimports.flintmq.channel.settlement import (
    SETTLE_MORE, SETTLE_SLOWLY, SETTLE_UNKNOWN, channel_settle, channel_settle_some, part_t, unacked_free,
)  # fmt: skip
from cython.cimports.flintmq.channel.slow import (
    SETTLING_MULTIPLE, SETTLING_REQUEUE, SLOW_DEAD_LETTER, SLOW_HEADER, SLOW_METHOD, SLOW_POLICY, SLOW_PUBLISH, SLOW_RESOLVE, SLOW_ROUTE,
)  # fmt: skip
from cython.cimports.flintmq.channel.traceparent import TRACED_FIREHOSE, trace_wanted
from cython.cimports.flintmq.channel.tracing import trace_published
from cython.cimports.flintmq.channel.tx_buffer import TX_NO_MEMORY, TX_TAKEN, TX_TOO_LARGE, tx_add_publish, tx_add_settle, tx_drop_some
from cython.cimports.flintmq.channel.types import (
    AUTHORIZED_MAX, CHANNELS_PAGE, DROP_REFUSED, PUBLISHED_EVER, PUBLISHED_NOW, SLOWLY_BY_CHANCE, SLOWLY_BY_CONTENT, SLOWLY_BY_MEMORY,
    SLOWLY_IN_PYTHON, SLOWLY_SCHEDULED, channel_t, connection_channel, connection_t, pending_confirm_t, tx_publish_t, tx_settle_t,
)  # fmt: skip
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64
from cython.cimports.flintmq.core.byte_order import get16
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.flintmq.core.content import (
    CONTENT_EXPIRES, CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY, CONTENT_REPLY_TO, content_body, content_decref, content_frame,
    content_grow, content_header, content_new, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.memory_account import MEMORY_CHANNELS, MEMORY_TX, memory_add
from cython.cimports.flintmq.core.utf8 import is_utf8
from cython.cimports.flintmq.protocol.v0_9_1.codec import EXPIRATION_INVALID, props_scan_t, scan_properties
from cython.cimports.flintmq.protocol.v0_9_1.engine import FEED_ERROR, FEED_MORE, FEED_PAUSE, sink_t
from cython.cimports.flintmq.protocol.v0_9_1.ids import BASIC_PUBLISH, BASIC_REJECT
from cython.cimports.flintmq.queue.owner_ids import owner_id_free
from cython.cimports.flintmq.routing.recent import recent_keep
from cython.cimports.flintmq.routing.route_cache import (
    exchange_decref, exchange_find, exchange_t, route_decref, route_incref, route_is_valid, route_t,
)  # fmt: skip
from cython.cimports.flintmq.routing.seen import seen_forget, seen_is_new, seen_mark_t, seen_t
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memcmp, memcpy, memset

# property flag bits of a content header (specification 1.8, class basic)
FLAG_DELIVERY_MODE = declare(uint16_t, 1 << 12)
FLAG_HEADERS = declare(uint16_t, 1 << 13)
FLAG_REPLY_TO = declare(uint16_t, 1 << 9)
FLAG_EXPIRATION = declare(uint16_t, 1 << 8)
FLAG_USER_ID = declare(uint16_t, 1 << 4)

# bytes; a body of more gets room as its frames arrive, so that what a header says takes no memory
EAGER_SIZE = declare(uint64_t, 4096)
# bytes of room for such a body at its header
FIRST_ROOM = declare(uint32_t, 8)

_generation = declare(uint64_t, 1)
_sink = declare(sink_t)


def authorization_changed() -> void:
    at_add64(address(_generation), 1)


# --- life -----------------------------------------------------------------------------------------------------------------


def channel_new(connection: pointer[connection_t], number: uint16_t) -> pointer[channel_t]:
    channel: pointer[channel_t] = cast(pointer[channel_t], calloc(1, sizeof(channel_t)))
    if channel != NULL:
        memory_add(MEMORY_CHANNELS, sizeof(channel_t))
        channel.connection = connection
        channel.number = number
        channel.open = True
        channel.authorized_generation = at_load64(address(_generation))
    return channel


def channel_set_route(channel: pointer[channel_t], route: pointer[route_t]) -> void:
    if channel.route != NULL:
        route_decref(channel.route)
    channel.route = route


def channel_release_some(channel: pointer[channel_t], tag: pointer[uint64_t], most: uint32_t) -> uint32_t:
    part: part_t
    part.most = tx_drop_some(channel, most)
    part.upto = channel.unacked.last_tag
    part.in_tx = True
    part.at = tag[0]
    if part.most:
        channel_settle_some(channel.connection, channel, BASIC_REJECT, True, address(part))  # with its client each delivery failed
        if part.at == 0 and channel.content != NULL:
            content_decref(channel.content)
            channel.content = NULL
    tag[0] = part.at
    return part.most


def channel_free(channel: pointer[channel_t]) -> void:
    i: c_int
    channel_set_route(channel, NULL)
    for i in range(AUTHORIZED_MAX):
        if channel.authorized[i] != NULL:
            exchange_decref(channel.authorized[i])
    unacked_free(address(channel.unacked))
    owner_id_free(channel.getter)
    memory_add(
        MEMORY_TX,
        -cast(int64_t, channel.tx_publish_size * sizeof(tx_publish_t) + channel.tx_settle_size * sizeof(tx_settle_t)),
    )
    memory_add(MEMORY_CHANNELS, -cast(int64_t, sizeof(channel_t) + channel.pending_size * sizeof(pending_confirm_t)))
    confirms_forget(channel)
    free(channel.pending)
    free(channel.tx_publishes)
    free(channel.tx_settles)
    free(channel)


def channels_add(connection: pointer[connection_t], channel: pointer[channel_t]) -> bint:
    page: uint32_t = channel.number // CHANNELS_PAGE
    pages: pointer[pointer[pointer[channel_t]]]
    if page >= connection.channel_pages:
        pages = cast(
            pointer[pointer[pointer[channel_t]]],
            realloc(connection.channels, (page + 1) * sizeof(p_void)),
        )
        if pages == NULL:
            return False
        memset(pages + connection.channel_pages, 0, (page + 1 - connection.channel_pages) * sizeof(p_void))
        memory_add(MEMORY_CHANNELS, (page + 1 - connection.channel_pages) * sizeof(p_void))
        connection.channels = pages
        connection.channel_pages = page + 1
    if connection.channels[page] == NULL:
        connection.channels[page] = cast(pointer[pointer[channel_t]], calloc(CHANNELS_PAGE, sizeof(p_void)))
        if connection.channels[page] == NULL:
            return False
        memory_add(MEMORY_CHANNELS, CHANNELS_PAGE * sizeof(p_void))
    connection.channels[page][channel.number % CHANNELS_PAGE] = channel
    channel.next_open = connection.open_channels
    if channel.next_open != NULL:
        channel.next_open.previous_open = channel
    connection.open_channels = channel
    return True


def channels_remove(connection: pointer[connection_t], channel: pointer[channel_t]) -> void:
    connection.channels[channel.number // CHANNELS_PAGE][channel.number % CHANNELS_PAGE] = NULL
    connection.last_channel = NULL
    if channel.next_open != NULL:
        channel.next_open.previous_open = channel.previous_open
    if channel.previous_open != NULL:
        channel.previous_open.next_open = channel.next_open
    else:
        connection.open_channels = channel.next_open


def channels_free(connection: pointer[connection_t]) -> void:
    page: uint32_t
    channel: pointer[channel_t]
    while connection.open_channels != NULL:
        channel = connection.open_channels
        channels_remove(connection, channel)
        channel_free(channel)
    for page in range(connection.channel_pages):
        if connection.channels[page] != NULL:
            memory_add(MEMORY_CHANNELS, -cast(int64_t, CHANNELS_PAGE * sizeof(p_void)))
        free(connection.channels[page])
    memory_add(MEMORY_CHANNELS, -cast(int64_t, connection.channel_pages * sizeof(p_void)))
    if connection.timed != NULL:
        route_decref(connection.timed)
        connection.timed = NULL
    free(connection.channels)
    connection.channels = NULL
    connection.channel_pages = 0


# --- publish --------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _on_publish(context: p_void, number: uint16_t, route: pointer[cython.const[uint8_t]], route_len: uint32_t, bits: uint8_t) -> c_int:
    connection: pointer[connection_t] = cast(pointer[connection_t], context)
    channel: pointer[channel_t] = connection_channel(connection, number)
    last: pointer[route_t] = channel.route
    exchange: pointer[exchange_t]
    known: pointer[route_t]
    i: c_int
    channel.publish_bits = bits
    if channel.authorized_generation == at_load64(address(_generation)):
        if last != NULL and last.key_len == route_len and route_is_valid(last) and memcmp(last.key, route, route_len) == 0:
            channel.slow_publish = last.how
            return FEED_MORE
        for i in range(AUTHORIZED_MAX):
            exchange = channel.authorized[i]
            if exchange != NULL and exchange.name_len == route[0] and memcmp(exchange.name, route + 1, route[0]) == 0:
                known = exchange_find(exchange, route, route_len, address(channel.slow_publish))
                if known != NULL:
                    channel_set_route(channel, known)
                    return FEED_MORE
                if at_load32(address(exchange.usable)) and is_utf8(route + 2 + route[0], route_len - 2 - route[0]):
                    connection.slow = SLOW_RESOLVE
                    connection.slow_exchange = exchange
                    connection.slow_channel = number
                    connection.slow_payload = route
                    connection.slow_size = route_len
                    return FEED_PAUSE
                break
    connection.slow = SLOW_ROUTE  # Connection.set_route says how it goes on
    connection.slow_channel = number
    connection.slow_payload = route
    connection.slow_size = route_len
    return FEED_PAUSE


@cfunc
@nogil
@exceptval(check=False)
def _refuse(connection: pointer[connection_t], number: uint16_t, code: c_int, text: p_char, method: uint32_t) -> c_int:
    connection.engine.error_code = code
    connection.engine.error_text = text
    connection.engine.error_channel = number
    connection.engine.error_method = method
    connection.engine.error_value = 0
    return FEED_ERROR


@cfunc
@nogil
@exceptval(check=False)
def _on_header(context: p_void, number: uint16_t, body_size: uint64_t, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
    connection: pointer[connection_t] = cast(pointer[connection_t], context)
    channel: pointer[channel_t] = connection_channel(connection, number)
    flags: uint16_t = get16(payload + 12)
    scan: props_scan_t
    room: uint32_t = cast(uint32_t, body_size) if body_size <= EAGER_SIZE else FIRST_ROOM
    content: pointer[content_t] = content_new(connection.arena, channel.route.key_len, size, room)
    if content == NULL:
        return _refuse(connection, 0, 506, b"no memory for the message", BASIC_PUBLISH)
    memcpy(content_route(content), channel.route.key, channel.route.key_len)
    memcpy(content_header(content), payload, size)
    channel.content = content
    channel.filled = 0
    channel.announced = cast(uint32_t, body_size)
    channel.expiration_ms = -1
    if flags == 0:
        if size != 14:
            return _refuse(connection, 0, 502, b"content header is longer than its properties", BASIC_PUBLISH)
    elif flags == FLAG_DELIVERY_MODE and size == 15:
        if payload[14] == 2:
            content.flags = CONTENT_PERSISTENT
        elif payload[14] != 1:
            channel.slow_publish |= SLOWLY_IN_PYTHON  # refused there
    else:
        if scan_properties(payload, size, address(scan)) != 0:
            connection.slow_payload = payload  # handlers.py looks what is wrong with it
            connection.slow_size = size
            return _refuse(connection, 0, 502, b"content header properties are malformed", BASIC_PUBLISH)
        if scan.delivery_mode == 2:
            content.flags |= CONTENT_PERSISTENT
        elif flags & FLAG_DELIVERY_MODE and scan.delivery_mode != 1:
            channel.slow_publish |= SLOWLY_IN_PYTHON
        if scan.priority != 0xFF or scan.flags & (1 << 11):
            content.priority = scan.priority
            content.flags |= CONTENT_PRIORITY
        if flags & FLAG_HEADERS:
            content.flags |= CONTENT_HEADERS
        if flags & FLAG_REPLY_TO:
            content.flags |= CONTENT_REPLY_TO
            if scan.reply_to_len == 21 and memcmp(scan.reply_to, b"amq.rabbitmq.reply-to", 21) == 0:
                if channel.reply_to_len == 0:
                    channel.slow_publish |= SLOWLY_IN_PYTHON  # refused there
                elif not _name_reply_queue(connection, channel, cast(uint32_t, scan.reply_to - payload) - 1, room):
                    return _refuse(connection, 0, 506, b"no memory for the message", BASIC_PUBLISH)
                content = channel.content
        if flags & FLAG_EXPIRATION:
            content.flags |= CONTENT_EXPIRES
            if scan.expiration_ms == EXPIRATION_INVALID:
                channel.slow_publish |= SLOWLY_IN_PYTHON  # refused there, with its value
            channel.expiration_ms = scan.expiration_ms
        if scan.has_cc:
            channel.slow_publish |= SLOWLY_BY_CONTENT
        if flags & FLAG_USER_ID and (
            scan.user_id_len != connection.user_len or memcmp(scan.user_id, connection.user, scan.user_id_len) != 0  # refused there
        ):
            channel.slow_publish |= SLOWLY_IN_PYTHON
        if (
            flags & FLAG_HEADERS
            and connection.traced
            and trace_wanted(scan.headers, scan.headers_len, at_load32(address(connection.traced)))
        ):
            channel.slow_publish |= SLOWLY_IN_PYTHON
        if scan.has_time:
            channel.slow_publish |= schedule_of(content, scan.headers - payload, scan.headers_len, address(channel.due_ms))
    if body_size == 0:
        return _complete(connection, channel)
    return FEED_MORE


@cfunc
@nogil
@exceptval(check=False)
def _name_reply_queue(connection: pointer[connection_t], channel: pointer[channel_t], offset: uint32_t, room: uint32_t) -> bint:
    """Direct reply-to: the property at `offset` of the header names the channel's reply queue in a new content. False: no memory."""
    old: pointer[content_t] = channel.content
    behind: uint32_t = offset + 1 + content_header(old)[offset]
    size: uint32_t = offset + 1 + channel.reply_to_len
    new: pointer[content_t] = content_new(connection.arena, old.route_len, size + old.header_len - behind, room)
    if new == NULL:
        return False
    memcpy(content_route(new), content_route(old), old.route_len)
    memcpy(content_header(new), content_header(old), offset)
    content_header(new)[offset] = channel.reply_to_len
    memcpy(content_header(new) + offset + 1, address(channel.reply_to[0]), channel.reply_to_len)
    memcpy(content_header(new) + size, content_header(old) + behind, old.header_len - behind)
    new.flags = old.flags
    new.priority = old.priority
    channel.content = new
    content_decref(old)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _on_body(context: p_void, number: uint16_t, payload: pointer[cython.const[uint8_t]], size: uint32_t, remaining: uint64_t) -> c_int:
    connection: pointer[connection_t] = cast(pointer[connection_t], context)
    channel: pointer[channel_t] = connection_channel(connection, number)
    if channel.content.body_len - channel.filled < size and not _make_room(connection, channel, size):
        return _refuse(connection, 0, 506, b"no memory for the message", BASIC_PUBLISH)
    check(
        channel.content.body_len - channel.filled >= size,
        b"channel I3 a piece of a body lies in its content",
        channel.filled,
        size,
    )
    memcpy(content_body(channel.content) + channel.filled, payload, size)
    channel.filled += size
    if remaining == 0:
        return _complete(connection, channel)
    return FEED_MORE


@cfunc
@nogil
@exceptval(check=False)
def _make_room(connection: pointer[connection_t], channel: pointer[channel_t], size: uint32_t) -> bint:
    """Room for `size` more body bytes, doubled at least, never more than was announced. False: no memory."""
    room: uint64_t = cast(uint64_t, channel.content.body_len) * 2
    grown: pointer[content_t]
    if room < cast(uint64_t, channel.filled) + size:
        room = cast(uint64_t, channel.filled) + size
    if room > channel.announced:
        room = channel.announced
    grown = content_grow(connection.arena, channel.content, channel.filled, cast(uint32_t, room))
    if grown == NULL:
        return False
    channel.content = grown
    return True


@cfunc
@nogil
@exceptval(check=False)
def _complete(connection: pointer[connection_t], channel: pointer[channel_t]) -> c_int:
    decided: pointer[route_t] = NULL
    result: c_int
    content_frame(channel.content)
    connection.publisher = PUBLISHED_EVER | PUBLISHED_NOW
    if channel.slow_publish and not channel.aimed:
        if channel.slow_publish == SLOWLY_SCHEDULED and connection.timed != NULL:
            return channel_schedule(connection, channel)
        if channel.slow_publish == SLOWLY_BY_MEMORY and _may_remember(connection, channel):
            return _accept_remembered(connection, channel)
        if channel.slow_publish == SLOWLY_BY_CONTENT or channel.slow_publish == SLOWLY_BY_CHANCE:
            decided = channel_decide(connection, channel)
        if decided == NULL:
            connection.slow = SLOW_PUBLISH
            connection.slow_channel = channel.number
            return FEED_PAUSE
        result = channel_accept(connection, channel, decided)
        route_decref(decided)
        return result
    return channel_accept(connection, channel, channel.route)


@cfunc
@nogil
@exceptval(check=False)
def _may_remember(connection: pointer[connection_t], channel: pointer[channel_t]) -> bint:
    return connection.kept_user != NULL and route_is_valid(channel.route)


@cfunc
@nogil
@exceptval(check=False)
def _accept_remembered(connection: pointer[connection_t], channel: pointer[channel_t]) -> c_int:
    """A message on a way with exchanges that remember messages: one that was seen before takes another way; what no queue took may come
    again. Messages of a transaction pass: they may be taken back, and what is remembered may not."""
    route: pointer[route_t] = channel.route
    taken: pointer[route_t] = route
    content: pointer[content_t] = channel.content
    seen: pointer[seen_t] = route.keeping.seen
    mark: seen_mark_t
    refused: uint64_t = connection.dropped[DROP_REFUSED]
    result: c_int
    if channel.tx:
        return channel_accept(connection, channel, route)
    mark.noted = False
    if seen != NULL and not seen_is_new(
        seen, content_header(content), content.header_len, connection.kept_user, monotonic_ns(), address(mark)
    ):
        taken = route.keeping.other
    recent_keep(taken.keeping.recents, taken.keeping.count, content, connection.kept_user)
    route_incref(route)
    result = channel_accept(connection, channel, taken)
    if mark.noted and (taken.count == 0 or connection.dropped[DROP_REFUSED] != refused):
        seen_forget(seen, address(mark))
    route_decref(route)
    return result


def channel_accept(connection: pointer[connection_t], channel: pointer[channel_t], route: pointer[route_t]) -> c_int:
    over: bint
    if at_load32(address(connection.traced)) & TRACED_FIREHOSE:
        over = trace_published(connection, channel.number, route, channel.content)
        return _after_trace(connection, channel, _accept(connection, channel, route), over)
    return _accept(connection, channel, route)


@cfunc
@nogil
@exceptval(check=False)
def _after_trace(connection: pointer[connection_t], channel: pointer[channel_t], result: c_int, over: bint) -> c_int:
    """What a copy that was made before a message adds to the message's own result."""
    if result == FEED_MORE and (over or connection.refused != NULL):
        result = FEED_PAUSE
    if result == FEED_PAUSE and connection.refused != NULL:
        connection.slow = SLOW_POLICY
        connection.slow_channel = channel.number
    return result


@cfunc
@inline
@nogil
@exceptval(check=False)
def _accept(connection: pointer[connection_t], channel: pointer[channel_t], route: pointer[route_t]) -> c_int:
    content: pointer[content_t] = channel.content
    channel.content = NULL
    if not channel.tx:
        return publish_to_queues(connection, channel, route, content, channel.publish_bits, channel.expiration_ms)
    route_incref(route)
    return _tx_answer(connection, channel, tx_add_publish(connection, channel, route, content), BASIC_PUBLISH, 0)


def channel_schedule(connection: pointer[connection_t], channel: pointer[channel_t]) -> c_int:
    over: bint
    if at_load32(address(connection.traced)) & TRACED_FIREHOSE:
        over = trace_published(connection, channel.number, NULL, channel.content)
        return _after_trace(connection, channel, _schedule(connection, channel), over)
    return _schedule(connection, channel)


@cfunc
@nogil
@exceptval(check=False)
def _schedule(connection: pointer[connection_t], channel: pointer[channel_t]) -> c_int:
    content: pointer[content_t] = channel.content
    result: c_int
    channel.content = NULL
    channel.publish_bits = 0  # whether a queue will want it is not known before its time
    if not channel.tx:
        return publish_to_queues(connection, channel, connection.timed, content, 0, channel.due_ms)
    route_incref(connection.timed)
    result = tx_add_publish(connection, channel, connection.timed, content)
    if result != TX_NO_MEMORY:
        channel.tx_publishes[channel.tx_publish_count - 1].due_ms = channel.due_ms
    return _tx_answer(connection, channel, result, BASIC_PUBLISH, 0)


@cfunc
@nogil
@exceptval(check=False)
def _tx_answer(connection: pointer[connection_t], channel: pointer[channel_t], result: c_int, method: uint32_t, tag: uint64_t) -> c_int:
    """Each of the errors closes the channel (or the connection), which rolls back."""
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


@cfunc
@nogil
@exceptval(check=False)
def _on_settle(context: p_void, number: uint16_t, method: uint32_t, tag: uint64_t, multiple: bint, requeue: bint) -> c_int:
    connection: pointer[connection_t] = cast(pointer[connection_t], context)
    channel: pointer[channel_t] = connection_channel(connection, number)
    settled: c_int
    if channel.tx:
        return _tx_answer(connection, channel, tx_add_settle(connection, channel, method, tag, multiple, requeue), method, tag)
    settled = channel_settle(connection, channel, method, tag, multiple, requeue)
    if settled == SETTLE_SLOWLY:
        return _settle_slowly(connection, number, method, tag, 0)
    if settled == SETTLE_MORE:
        return _settle_slowly(connection, number, method, tag, SETTLING_MULTIPLE | (SETTLING_REQUEUE if requeue else 0))
    if settled == SETTLE_UNKNOWN:
        _refuse(connection, number, 406, b"unknown delivery tag", method)
        connection.engine.error_value = tag
        return FEED_ERROR
    if connection.refused != NULL:
        connection.slow = SLOW_POLICY  # what came back is counted, or fills its queue over the limit
        connection.slow_channel = number
        return FEED_PAUSE
    return FEED_MORE


@cfunc
@nogil
@exceptval(check=False)
def _settle_slowly(connection: pointer[connection_t], number: uint16_t, method: uint32_t, tag: uint64_t, how: uint32_t) -> c_int:
    """Leaves a settlement to Python: of many deliveries it goes in slices, and what a dead letter needs to be known is found out there."""
    connection.slow = SLOW_DEAD_LETTER
    connection.slow_channel = number
    connection.slow_method = method
    connection.slow_tag = tag
    connection.slow_size = how
    return FEED_PAUSE


# --- the rest -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _on_method(context: p_void, number: uint16_t, method: uint32_t, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
    connection: pointer[connection_t] = cast(pointer[connection_t], context)
    connection.slow = SLOW_METHOD
    connection.slow_channel = number
    connection.slow_method = method
    connection.slow_payload = payload
    connection.slow_size = size
    return FEED_PAUSE


@cfunc
@nogil
@exceptval(check=False)
def _on_heartbeat(context: p_void) -> c_int:
    return FEED_MORE  # the loop counts every byte as a sign of life


@cfunc
@nogil
@exceptval(check=False)
def _on_protocol_header(context: p_void) -> c_int:
    cast(pointer[connection_t], context).slow = SLOW_HEADER
    return FEED_PAUSE


_sink.protocol_header = _on_protocol_header
_sink.publish = _on_publish
_sink.header = _on_header
_sink.body = _on_body
_sink.settle = _on_settle
_sink.method = _on_method
_sink.heartbeat = _on_heartbeat


def session_sink() -> pointer[sink_t]:
    return address(_sink)
