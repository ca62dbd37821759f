"""Encodes content-bearing methods: the last step of a message's way before the socket.

in: a delivery from a queue. out: method frame, then the message's own header and body frames, copied as they were received; a large
body by reference (core/buffer.pxd).

Source: AMQP 0-9-1 specification 1.8.3.9 (deliver), 1.8.3.11 (get-ok), 1.8.3.8 (return), 2.3.5.2 (content framing).
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, char, exceptval, inline, nogil, pointer, size_t, void
from cython.cimports.flintmq.channel.types import connection_t, subscription_t
from cython.cimports.flintmq.core.buffer import out_refer, out_reserve
from cython.cimports.flintmq.core.byte_order import put16, put32, put64
from cython.cimports.flintmq.core.content import (
    FRAME_END, FRAME_HEADER_SIZE, FRAME_OVERHEAD, content_body, content_header, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.ids import BASIC_DELIVER, BASIC_GET_OK, BASIC_RETURN, FRAME_METHOD
from cython.cimports.flintmq.queue.types import delivery_t
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcpy, strlen


def subscription_set_prefix(
    subscription: pointer[subscription_t], channel: uint16_t, tag: pointer[cython.const[uint8_t]], tag_len: uint8_t
) -> void:
    p: pointer[uint8_t] = subscription.prefix
    p[0] = FRAME_METHOD
    put16(p + 1, channel)
    put32(p + 7, BASIC_DELIVER)
    p[11] = tag_len
    memcpy(p + 12, tag, tag_len)
    subscription.prefix_len = 12 + tag_len


@cfunc
@inline
@nogil
@exceptval(check=False)
def _content_size(connection: pointer[connection_t], content: pointer[content_t]) -> size_t:
    """Bytes of the header and body frames that _put_content copies into the output."""
    size: size_t = content.header_len
    size += FRAME_OVERHEAD
    if content.body_len == 0 or content.body_len >= REFER_SIZE:
        return size
    size += content.body_len
    if content.body_len <= connection.frame_size_max - FRAME_OVERHEAD:
        return size + FRAME_OVERHEAD
    return size + _body_frames(connection, content) * FRAME_OVERHEAD


@cfunc
@nogil
@exceptval(check=False)
def _body_frames(connection: pointer[connection_t], content: pointer[content_t]) -> size_t:
    most: uint32_t = connection.frame_size_max - FRAME_OVERHEAD
    return (content.body_len + most - 1) // most


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_content(connection: pointer[connection_t], channel: uint16_t, p: pointer[uint8_t], content: pointer[content_t]) -> bint:
    """The header frame and the body's frames, or a reference to them; all that comes before stands in the output already. False: no
    memory for that."""
    frames: pointer[uint8_t] = content_header(content) - FRAME_HEADER_SIZE
    header_size: size_t = content.header_len + FRAME_OVERHEAD
    if content.body_len == 0:
        memcpy(p, frames, header_size)
    elif content.body_len < REFER_SIZE and content.body_len <= connection.frame_size_max - FRAME_OVERHEAD:
        memcpy(p, frames, header_size + content.body_len + FRAME_OVERHEAD)
        put16(p + header_size + 1, channel)
    else:
        return _put_large(connection, channel, p, content)
    put16(p + 1, channel)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _put_large(connection: pointer[connection_t], channel: uint16_t, p: pointer[uint8_t], content: pointer[content_t]) -> bint:
    """_put_content of a body that needs several frames, or is not copied."""
    header_size: uint32_t = content.header_len + FRAME_OVERHEAD
    most: uint32_t = connection.frame_size_max - FRAME_OVERHEAD
    body: pointer[uint8_t] = content_body(content)
    remaining: uint32_t = content.body_len
    piece: uint32_t
    if content.body_len > connection.largest_out:
        connection.largest_out = content.body_len
    memcpy(p, content_header(content) - FRAME_HEADER_SIZE, header_size)
    put16(p + 1, channel)
    if content.body_len >= REFER_SIZE:
        return out_refer(address(connection.out), content, channel, most)
    p += header_size
    while remaining:
        piece = remaining if remaining < most else most
        p[0] = 3
        put16(p + 1, channel)
        put32(p + 3, piece)
        memcpy(p + 7, body, piece)
        p[7 + piece] = FRAME_END
        p += piece + FRAME_OVERHEAD
        body += piece
        remaining -= piece
    return True


def write_deliver(
    connection: pointer[connection_t], subscription: pointer[subscription_t], delivery: pointer[delivery_t], tag: uint64_t
) -> bint:
    content: pointer[content_t] = delivery.content
    route_len: uint32_t = content.route_len
    method_size: uint32_t = subscription.prefix_len - FRAME_HEADER_SIZE + 9 + route_len
    total: size_t = method_size + FRAME_OVERHEAD + _content_size(connection, content)
    p: pointer[uint8_t] = out_reserve(address(connection.out), total)
    if p == NULL:
        return False
    connection.out.end += total
    memcpy(p, subscription.prefix, subscription.prefix_len)
    put32(p + 3, method_size)
    p += subscription.prefix_len
    put64(p, tag)
    p[8] = 1 if delivery.redelivered else 0
    memcpy(p + 9, content_route(content), route_len)
    p[9 + route_len] = FRAME_END
    if not _put_content(connection, subscription.channel.number, p + 10 + route_len, content):
        connection.out.end -= total
        return False
    return True


def write_get_ok(
    connection: pointer[connection_t], channel: uint16_t, delivery: pointer[delivery_t], tag: uint64_t, remaining: uint32_t
) -> bint:
    content: pointer[content_t] = delivery.content
    route_len: uint32_t = content.route_len
    method_size: uint32_t = 4 + 9 + route_len + 4
    total: size_t = method_size + FRAME_OVERHEAD + _content_size(connection, content)
    p: pointer[uint8_t] = out_reserve(address(connection.out), total)
    if p == NULL:
        return False
    connection.out.end += total
    p[0] = FRAME_METHOD
    put16(p + 1, channel)
    put32(p + 3, method_size)
    put32(p + 7, BASIC_GET_OK)
    put64(p + 11, tag)
    p[19] = 1 if delivery.redelivered else 0
    memcpy(p + 20, content_route(content), route_len)
    put32(p + 20 + route_len, remaining)
    p[24 + route_len] = FRAME_END
    if not _put_content(connection, channel, p + 25 + route_len, content):
        connection.out.end -= total
        return False
    return True


def write_return(
    connection: pointer[connection_t], channel: uint16_t, code: uint16_t, text: pointer[cython.const[char]], content: pointer[content_t]
) -> bint:
    text_len: uint32_t = cast(uint32_t, strlen(text))
    route_len: uint32_t = content.route_len
    method_size: uint32_t = 4 + 2 + 1 + text_len + route_len
    total: size_t = method_size + FRAME_OVERHEAD + _content_size(connection, content)
    p: pointer[uint8_t] = out_reserve(address(connection.out), total)
    if p == NULL:
        return False
    connection.out.end += total
    p[0] = FRAME_METHOD
    put16(p + 1, channel)
    put32(p + 3, method_size)
    put32(p + 7, BASIC_RETURN)
    put16(p + 11, code)
    p[13] = cast(uint8_t, text_len)
    memcpy(p + 14, text, text_len)
    memcpy(p + 14 + text_len, content_route(content), route_len)
    p[14 + text_len + route_len] = FRAME_END
    if not _put_content(connection, channel, p + 15 + text_len + route_len, content):
        connection.out.end -= total
        return False
    return True


def write_confirm(connection: pointer[connection_t], channel: uint16_t, method: uint32_t, tag: uint64_t, multiple: bint) -> bint:
    p: pointer[uint8_t] = out_reserve(address(connection.out), 21)
    if p == NULL:
        return False
    connection.out.end += 21
    p[0] = FRAME_METHOD
    put16(p + 1, channel)
    put32(p + 3, 13)
    put32(p + 7, method)
    put64(p + 11, tag)
    # basic.nack has a requeue bit beside multiple; it means nothing to publishers and stays 0.
    p[19] = 1 if multiple else 0
    p[20] = FRAME_END
    return True
