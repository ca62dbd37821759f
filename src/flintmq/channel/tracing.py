"""The firehose on the message path (see tracing.pxd).

in: messages that a traced connection publishes, and that it is given. out: their copies on the queues that are bound to the exchange.

T1  Off it costs one look at a bit of the connection for each message. On no message needs Python after the first one of its exchange or
    queue: what is not known here (a route, a queue's name) is asked for once.
T2  A copy is on its queues before its message is on the queues of its own route, and after a delivery was written. It is placed by the
    code that places a publish: the limits of the queues it comes to bound what copies hold.
T3  Messages of the exchange itself are not traced. Nothing is made while no queue or exchange is bound for the key.
T4  A copy of a body above TRACE_COPY_MAX, and one whose headers decide its route, are broker/trace.py's.
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.flintmq.channel.deciding import route_by_key
from cython.cimports.flintmq.channel.placing import place_copy
from cython.cimports.flintmq.channel.traceparent import TRACED_FIREHOSE, trace_wanted
from cython.cimports.flintmq.channel.types import connection_t, tracer_t
from cython.cimports.flintmq.core.atomics import at_load32, at_load_ptr
from cython.cimports.flintmq.core.content import (
    CONTENT_HEADERS, content_body, content_decref, content_frame, content_header, content_new, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.memory_account import MEMORY_CHANNELS, memory_add
from cython.cimports.flintmq.protocol.v0_9_1.death import text_t
from cython.cimports.flintmq.protocol.v0_9_1.tracing import (
    TRACE_PUBLISHED, trace_add_queue, trace_head_t, trace_measure, trace_put_queue, trace_write,
)  # fmt: skip
from cython.cimports.flintmq.queue.control import content_tuple
from cython.cimports.flintmq.queue.queue_core import queue_get_id
from cython.cimports.flintmq.queue.types import queue_t
from cython.cimports.flintmq.routing.route_cache import RouteCache, exchange_decref, exchange_incref, exchange_t, route_decref, route_t
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcmp, memcpy

# of a hidden queue behind a direct reply-to, which is not traced
REPLY_PREFIX = declare(p_char, b"amq.rabbitmq.reply-to.")
REPLY_PREFIX_SIZE = declare(uint32_t, 22)


# --- what a connection knows --------------------------------------------------------------------------------------------------


def tracer_new(cache: RouteCache, place: bytes | None, user: bytes | None) -> pointer[tracer_t]:
    size: uint32_t = sizeof(tracer_t) + len(place) + len(user)
    tracer: pointer[tracer_t] = cast(pointer[tracer_t], malloc(size))
    octets: pointer[uint8_t]
    if tracer == NULL:
        raise MemoryError("no memory for the firehose of a connection")
    octets = cast(pointer[uint8_t], tracer + 1)
    memcpy(octets, PyBytes_AS_STRING(place), len(place))
    memcpy(octets + len(place), PyBytes_AS_STRING(user), len(user))
    tracer.place = octets
    tracer.place_size = len(place)
    tracer.user = octets + len(place)
    tracer.user_size = len(user)
    tracer.exchange = cache.exchange
    exchange_incref(cache.exchange)
    memory_add(MEMORY_CHANNELS, size)
    return tracer


def tracer_free(tracer: pointer[tracer_t]) -> void:
    if tracer != NULL:
        memory_add(MEMORY_CHANNELS, -cast(int64_t, sizeof(tracer_t) + tracer.place_size + tracer.user_size))
        exchange_decref(tracer.exchange)
        free(tracer)


# --- one copy -----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _write_key(exchange: pointer[exchange_t], kind: p_char, kind_size: uint32_t, name: text_t, key: pointer[uint8_t]) -> uint32_t:
    """The route of a copy: the exchange, and the key `kind` and name, cut at 255 bytes. Returns its size."""
    size: uint32_t = kind_size + name.size
    size = size if size < 255 else 255
    key[0] = cast(uint8_t, exchange.name_len)
    memcpy(key + 1, exchange.name, exchange.name_len)
    key += 1 + exchange.name_len
    key[0] = cast(uint8_t, size)
    memcpy(key + 1, kind, kind_size)
    memcpy(key + 1 + kind_size, name.data, size - kind_size)
    return 2 + exchange.name_len + size


@cfunc
@nogil
@exceptval(check=False)
def _find_route(connection: pointer[connection_t], key: pointer[uint8_t], size: uint32_t) -> pointer[route_t]:
    """The route of a copy, with a reference. NULL: its headers decide it (T4)."""
    exchange: pointer[exchange_t] = connection.tracer.exchange
    how: uint8_t = 0
    route: pointer[route_t] = route_by_key(exchange, key, size, address(how))
    if route == NULL and how == 0 and at_load32(address(exchange.usable)):
        with gil:
            try:
                handler = cast(object, connection.owner).handler
                place: uint32_t = 2 + exchange.name_len
                text: bytes = PyBytes_FromStringAndSize(cast(p_char, cast(p_void, key + place)), size - place)
                handler.broker.tracer.learn(handler.vhost, text)
            except Exception:
                logging.getLogger("flintmq.trace").exception("internal error: where copies of messages go is not found out")
        route = route_by_key(exchange, key, size, address(how))
    return route


@cfunc
@nogil
@exceptval(check=False)
def _name_of(connection: pointer[connection_t], queue: pointer[queue_t]) -> pointer[uint8_t]:
    """A queue's name as a shortstr. NULL: it is gone."""
    name: pointer[uint8_t] = cast(pointer[uint8_t], at_load_ptr(address(queue.name)))
    if name == NULL:
        with gil:
            try:
                cast(object, connection.owner).handler.broker.tracer.name_queue(queue_get_id(queue))
            except Exception:
                logging.getLogger("flintmq.trace").exception("internal error: the name of a queue is not found out")
        name = cast(pointer[uint8_t], at_load_ptr(address(queue.name)))
    return name


@cfunc
@nogil
@exceptval(check=False)
def _is_own(exchange: pointer[exchange_t], message: pointer[uint8_t]) -> bint:
    """T3."""
    return message[0] == exchange.name_len and memcmp(message + 1, exchange.name, exchange.name_len) == 0


@cfunc
@nogil
@exceptval(check=False)
def _set_facts(
    connection: pointer[connection_t], channel: uint16_t, content: pointer[content_t], redelivered: c_int, head: pointer[trace_head_t]
) -> void:
    message: pointer[uint8_t] = content_route(content)
    head.exchange.data = message + 1
    head.exchange.size = message[0]
    head.routing_key.data = message + 2 + message[0]
    head.routing_key.size = message[1 + message[0]]
    head.keys.data = message  # none
    head.keys.size = 0
    head.header.data = content_header(content)
    head.header.size = content.header_len
    head.place.data = connection.tracer.place
    head.place.size = connection.tracer.place_size
    head.user.data = connection.tracer.user
    head.user.size = connection.tracer.user_size
    head.channel = channel
    head.redelivered = redelivered


@cfunc
@nogil
@exceptval(check=False)
def _send(
    connection: pointer[connection_t], head: pointer[trace_head_t], content: pointer[content_t], key: pointer[uint8_t], size: uint32_t,
    queues: pointer[route_t], copied: pointer[route_t],
) -> bint:  # fmt: skip
    """Makes the copy of a message and places it. queues: whose names it lists, NULL: of none; copied: its route, NULL: T4. True: the
    connection has had its turn."""
    copy: pointer[content_t]
    place: pointer[uint8_t]
    name: pointer[uint8_t]
    body_len: uint32_t = content.body_len if copied != NULL and content.body_len <= TRACE_COPY_MAX else 0
    named: uint32_t = 0
    i: uint32_t
    over: bint = False
    trace_measure(head)
    while queues != NULL and named < queues.count:
        name = _name_of(connection, queues.destinations[named].queue)
        if name == NULL or not trace_add_queue(head, name):
            break
        named += 1
    copy = content_new(connection.arena, size, head.size, body_len)
    if copy == NULL:
        return False
    memcpy(content_route(copy), key, size)
    place = trace_write(head, content.body_len, content_header(copy))
    for i in range(named):
        name = cast(pointer[uint8_t], at_load_ptr(address(queues.destinations[i].queue.name)))
        place = trace_put_queue(name, place)
    if body_len:
        memcpy(content_body(copy), content_body(content), body_len)
    content_frame(copy)
    copy.flags = CONTENT_HEADERS
    if body_len == content.body_len and copied != NULL:
        over = place_copy(connection, copied, copy)
    else:
        _leave(connection, copy, content)
    content_decref(copy)
    return over


@cfunc
@nogil
@exceptval(check=False)
def _leave(connection: pointer[connection_t], copy: pointer[content_t], content: pointer[content_t]) -> void:
    """T4."""
    with gil:
        try:
            handler = cast(object, connection.owner).handler
            handler.broker.tracer.send(handler.vhost.name, content_tuple(copy), content_tuple(content)[3])
        except Exception:
            logging.getLogger("flintmq.trace").exception("internal error: a message is not traced")


# --- events -------------------------------------------------------------------------------------------------------------------


def trace_published(connection: pointer[connection_t], channel: uint16_t, route: pointer[route_t], content: pointer[content_t]) -> bint:
    head: trace_head_t
    key: uint8_t[512]
    size: uint32_t
    copied: pointer[route_t]
    over: bint = False
    if _is_own(connection.tracer.exchange, content_route(content)):
        return False
    _set_facts(connection, channel, content, TRACE_PUBLISHED, address(head))
    size = _write_key(connection.tracer.exchange, b"publish.", 8, head.exchange, key)
    copied = _find_route(connection, key, size)
    if route == NULL:
        head.keys.data = NULL
    elif route.more_len:
        head.keys.data = route.more
        head.keys.size = route.more_len
    if copied == NULL or copied.count:
        over = _send(connection, address(head), content, key, size, route, copied)
    if copied != NULL:
        route_decref(copied)
    return over


@cfunc
@nogil
@exceptval(check=False)
def _trace_delivered(
    connection: pointer[connection_t], channel: uint16_t, queue: pointer[queue_t], redelivered: bint, content: pointer[content_t]
) -> void:
    head: trace_head_t
    key: uint8_t[512]
    size: uint32_t
    copied: pointer[route_t]
    name: text_t
    known: pointer[uint8_t]
    if _is_own(connection.tracer.exchange, content_route(content)):
        return
    known = _name_of(connection, queue)
    if known == NULL or (known[0] > REPLY_PREFIX_SIZE and memcmp(known + 1, REPLY_PREFIX, REPLY_PREFIX_SIZE) == 0):
        return
    name.data = known + 1
    name.size = known[0]
    _set_facts(connection, channel, content, 1 if redelivered else 0, address(head))
    size = _write_key(connection.tracer.exchange, b"deliver.", 8, name, key)
    copied = _find_route(connection, key, size)
    if copied == NULL or copied.count:
        _send(connection, address(head), content, key, size, NULL, copied)
    if copied != NULL:
        route_decref(copied)
    if connection.refused != NULL:
        _look_after(connection)


@cfunc
@nogil
@exceptval(check=False)
def _look_after(connection: pointer[connection_t]) -> void:
    """Queues that a copy filled, with dead letters that the message path has no time for."""
    with gil:
        try:
            handler = cast(object, connection.owner).handler
            handler.loop.call(handler.after_publish)
        except Exception:
            logging.getLogger("flintmq.trace").exception("internal error: a queue stays above its limit until the next look")


def note_delivery(
    connection: pointer[connection_t], channel: uint16_t, queue: pointer[queue_t], redelivered: bint, content: pointer[content_t]
) -> void:
    bits: uint32_t = at_load32(address(connection.traced))
    if bits & TRACED_FIREHOSE:
        _trace_delivered(connection, channel, queue, redelivered, content)
    if content.flags & CONTENT_HEADERS and trace_wanted(content_header(content), content.header_len, bits):
        with gil:
            try:
                header: bytes = PyBytes_FromStringAndSize(cast(p_char, content_header(content)), content.header_len)
                cast(object, connection.owner).handler.spanned(queue_get_id(queue), redelivered, header)
            except Exception:
                logging.getLogger("flintmq.trace").exception("internal error: a delivery has no span")
