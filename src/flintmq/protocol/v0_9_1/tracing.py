"""The content header of a copy for the firehose: RabbitMQ's headers about a message, spliced of its wire bytes (see tracing.pxd).

in: a message as it was published or is delivered, and the facts about it. out: the content header payload of its copy.

The headers are exchange_name, routing_keys, properties (a table; the message's own headers keep their bytes), node, vhost, connection,
then channel, user and routed_queues of a publish, redelivered, channel and user of a delivery.

X1  No byte outside the payload is read, whatever it holds: properties that can't be read are an empty table.
X2  A copy's header has HEADER_MAX bytes at most: properties that are longer are an empty table, queues without room are not named.

tests/oracle/trace.py says the same in Python. Source: rabbit_trace.erl of RabbitMQ 3.10.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_char, pointer, sizeof, void
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.flintmq.core.byte_order import get16, get32, put16, put32, put64
from cython.cimports.flintmq.core.header_field import header_look, header_look_t, value_size
from cython.cimports.flintmq.core.utf8 import is_utf8
from cython.cimports.flintmq.protocol.v0_9_1.death import text_t
from cython.cimports.flintmq.protocol.v0_9_1.ids import CLASS_BASIC
from cython.cimports.flintmq.protocol.v0_9_1.scan import (
    CONTENT_HEADER_SIZE, PROP_CLUSTER_ID, PROP_CONTENT_TYPE, PROP_DELIVERY_MODE, PROP_HEADERS, PROP_PRIORITY, PROP_TIMESTAMP, PROP_UNKNOWN,
)  # fmt: skip
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcmp, memcpy, memset

from flintmq.config import Limits

# a header is one frame: eight bytes are around it
HEADER_MAX = declare(uint32_t, Limits().frame_size_max - 8)
# names of properties, in the order of their flags, each a shortstr; the type of its field follows
NAMES = declare(p_char[14])
NAMES[0] = b"\x0ccontent_typeS"
NAMES[1] = b"\x10content_encodingS"
NAMES[2] = b"\x07headersF"
NAMES[3] = b"\x0ddelivery_modeI"
NAMES[4] = b"\x08priorityI"
NAMES[5] = b"\x0ecorrelation_idS"
NAMES[6] = b"\x08reply_toS"
NAMES[7] = b"\x0aexpirationS"
NAMES[8] = b"\x0amessage_idS"
NAMES[9] = b"\x09timestampT"
NAMES[10] = b"\x04typeS"
NAMES[11] = b"\x07user_idS"
NAMES[12] = b"\x06app_idS"
NAMES[13] = b"\x0acluster_idS"


# --- writing, or measuring: `place` is NULL then ------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put(out: pointer[trace_out_t], data: pointer[cython.const[void]], size: uint32_t) -> void:
    if out.place != NULL:
        memcpy(out.place + out.used, data, size)
    out.used += size


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_number(out: pointer[trace_out_t], value: uint32_t) -> void:
    if out.place != NULL:
        put32(out.place + out.used, value)
    out.used += 4


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_text(out: pointer[trace_out_t], data: pointer[cython.const[uint8_t]], size: uint32_t) -> void:
    """A text behind its type."""
    _put_number(out, size)
    _put(out, data, size)


@cfunc
@nogil
@exceptval(check=False)
def _put_key(out: pointer[trace_out_t], data: pointer[cython.const[uint8_t]], size: uint32_t) -> void:
    _put(out, b"S", 1)
    _put_text(out, data, size)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _close(out: pointer[trace_out_t], start: uint32_t, behind: uint32_t) -> void:
    """Fills in the length at `start` of what ends here, and `behind` bytes later."""
    if out.place != NULL:
        put32(out.place + start, out.used - start - 4 + behind)


# --- the pieces of a header ---------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _put_properties(out: pointer[trace_out_t], header: text_t) -> bint:
    """The properties of a content header payload as fields. False: it can't be read."""
    offset: uint32_t = CONTENT_HEADER_SIZE
    flag: uint16_t = PROP_CONTENT_TYPE
    flags: uint16_t
    size: uint32_t
    index: uint32_t = 0
    if header.size < CONTENT_HEADER_SIZE:
        return False
    flags = get16(header.data + 12)
    if flags & PROP_UNKNOWN:
        return False
    while flag >= PROP_CLUSTER_ID:
        if flags & flag:
            if offset >= header.size:
                return False
            _put(out, NAMES[index], 2 + cast(uint32_t, cast(uint8_t, NAMES[index][0])))
            if flag == PROP_HEADERS:
                if header.size - offset < 4:
                    return False
                size = get32(header.data + offset)
                offset += 4
            elif flag == PROP_TIMESTAMP:
                size = 8
            elif flag == PROP_DELIVERY_MODE or flag == PROP_PRIORITY:
                size = 1
            else:
                size = header.data[offset]
                offset += 1
            if header.size - offset < size:
                return False
            if flag == PROP_TIMESTAMP:
                _put(out, header.data + offset, 8)
            elif flag == PROP_DELIVERY_MODE or flag == PROP_PRIORITY:
                _put_number(out, header.data[offset])
            else:
                _put_text(out, header.data + offset, size)
            offset += size
        flag >>= 1
        index += 1
    return offset == header.size


@cfunc
@nogil
@exceptval(check=False)
def _put_keys_of(out: pointer[trace_out_t], head: pointer[trace_head_t], name: p_char, name_size: uint32_t) -> void:
    """The routing keys in the header of that name: the texts of the first one, if that is an array."""
    look: header_look_t
    table: pointer[cython.const[uint8_t]] = head.header.data
    offset: uint32_t
    value: uint32_t
    end: uint32_t
    if table == NULL or not header_look(table, head.header.size, b"", NULL, address(look)) or look.table == 0:
        return
    offset = look.table + 4
    while offset < look.end:
        value = offset + 1 + table[offset]
        end = value + value_size(table + value, look.end - value)
        if table[offset] == name_size and memcmp(table + offset + 1, name, name_size) == 0:
            break
        offset = end
    if offset >= look.end or table[value] != 65:
        return
    offset = value + 5
    while offset < end:
        value = value_size(table + offset, end - offset)
        if value == 0:
            return
        if table[offset] == 83 and is_utf8(table + offset + 5, value - 5):
            _put(out, table + offset, value)
        offset += value


@cfunc
@nogil
@exceptval(check=False)
def _put_keys(out: pointer[trace_out_t], head: pointer[trace_head_t]) -> void:
    start: uint32_t
    offset: uint32_t = 0
    size: uint32_t
    _put(out, b"\x0crouting_keysA", 14)
    start = out.used
    _put_number(out, 0)
    _put_key(out, head.routing_key.data, head.routing_key.size)
    if head.keys.data == NULL:
        _put_keys_of(out, head, b"CC", 2)
        _put_keys_of(out, head, b"BCC", 3)
    while offset < head.keys.size:
        size = get32(head.keys.data + offset)
        _put_key(out, head.keys.data + offset + 4, size)
        offset += 4 + size
    _close(out, start, 0)


@cfunc
@nogil
@exceptval(check=False)
def _put_fields(out: pointer[trace_out_t], head: pointer[trace_head_t]) -> void:
    """All but the names of queues."""
    start: uint32_t
    _put(out, b"\x0dexchange_nameS", 15)
    _put_text(out, head.exchange.data, head.exchange.size)
    _put_keys(out, head)
    _put(out, b"\x0apropertiesF", 12)
    start = out.used
    _put_number(out, 0)
    if head.header.data != NULL:
        _put_properties(out, head.header)
    _close(out, start, 0)
    _put(out, head.place.data, head.place.size)
    if head.redelivered != TRACE_PUBLISHED:
        _put(out, b"\x0bredeliveredI", 13)
        _put_number(out, head.redelivered)
    _put(out, b"\x07channelI", 9)
    _put_number(out, head.channel)
    _put(out, head.user.data, head.user.size)
    if head.redelivered == TRACE_PUBLISHED:
        _put(out, b"\x0drouted_queuesA", 15)
        start = out.used
        _put_number(out, 0)
        _close(out, start, head.queues_size)


def trace_measure(head: pointer[trace_head_t]) -> void:
    out: trace_out_t
    out.place = NULL
    out.used = 0
    if not _put_properties(address(out), head.header):
        head.header.data = NULL  # X1
    out.used = CONTENT_HEADER_SIZE + 4
    head.queues_size = 0
    _put_fields(address(out), head)
    if out.used > HEADER_MAX and head.header.data != NULL:
        head.header.data = NULL  # X2
        head.keys.size = 0
        out.used = CONTENT_HEADER_SIZE + 4
        _put_fields(address(out), head)
    head.size = out.used


def trace_add_queue(head: pointer[trace_head_t], name: pointer[cython.const[uint8_t]]) -> bint:
    size: uint32_t = 5 + cast(uint32_t, name[0])
    if head.size + size > HEADER_MAX:
        return False
    head.size += size
    head.queues_size += size
    return True


def trace_write(head: pointer[trace_head_t], body_size: uint64_t, out: pointer[uint8_t]) -> pointer[uint8_t]:
    fields: trace_out_t
    fields.place = out
    fields.used = CONTENT_HEADER_SIZE + 4
    put16(out, CLASS_BASIC)
    put16(out + 2, 0)
    put64(out + 4, body_size)
    put16(out + 12, PROP_HEADERS)
    put32(out + CONTENT_HEADER_SIZE, head.size - CONTENT_HEADER_SIZE - 4)
    _put_fields(address(fields), head)
    return out + fields.used


def trace_put_queue(name: pointer[cython.const[uint8_t]], out: pointer[uint8_t]) -> pointer[uint8_t]:
    out[0] = 83
    put32(out + 1, name[0])
    memcpy(out + 5, name + 1, name[0])
    return out + 5 + name[0]


# --- for Python ---------------------------------------------------------------------------------------------------------------


@cfunc
def _text(data: bytes | None) -> text_t:
    text: text_t
    text.data = NULL
    text.size = 0
    if data is not None:
        text.data = cast(pointer[uint8_t], PyBytes_AS_STRING(data))
        text.size = cast(uint32_t, PyBytes_GET_SIZE(data))
    return text


def trace_header(
    message: tuple, keys: bytes | None, place: bytes, user: bytes, channel: int, redelivered: int | None, queues: list, body_size: int
) -> bytes:
    """The content header of a copy.

    Args: message: exchange, routing key and content header payload; keys: as route_t.more has them, None: those of CC and BCC; place,
    user: fields; redelivered: None: of a publish; queues: names, at most 255 bytes each; body_size: bytes.
    """
    head: trace_head_t
    out: pointer[uint8_t]
    name: bytes
    memset(address(head), 0, sizeof(trace_head_t))
    head.exchange = _text(message[0])
    head.routing_key = _text(message[1])
    head.header = _text(message[2])
    head.keys = _text(keys)
    head.place = _text(place)
    head.user = _text(user)
    head.channel = channel
    head.redelivered = TRACE_PUBLISHED if redelivered is None else redelivered
    trace_measure(address(head))
    named: list = []
    for one in queues:
        name = bytes([len(one)]) + one
        if not trace_add_queue(address(head), cast(pointer[uint8_t], PyBytes_AS_STRING(name))):
            break
        named.append(name)
    payload: bytes = PyBytes_FromStringAndSize(NULL, head.size)
    out = trace_write(address(head), body_size, cast(pointer[uint8_t], PyBytes_AS_STRING(payload)))
    for name in named:
        out = trace_put_queue(cast(pointer[uint8_t], PyBytes_AS_STRING(name)), out)
    return payload
