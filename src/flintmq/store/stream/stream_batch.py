"""What reads of a stream fill, and which messages they want (see stream_batch.pxd).

in: contents of hot and cold reads, filters of consumers. out: batches of counted references; matches.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.content import content_body, content_decref, content_header, content_route, content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcmp, memcpy

# bytes in the account of memory of a filter, and of one of its values beside its octets: its number, its pointer, its piece of memory
FILTER_BYTES = cython.declare(int64_t, 128)
VALUE_BYTES = cython.declare(int64_t, 48)


def stream_batch_clear(batch):
    i: uint32_t
    for i in range(batch.count):
        content_decref(batch.items[i].content)
    batch.count = 0
    batch.bytes = 0
    batch.io_ns = 0
    batch.error = 0


def stream_batch_free(batch):
    stream_batch_clear(batch)
    memory_add(MEMORY_STREAMS, -cython.cast(int64_t, batch.room * cython.sizeof(stream_item_t)))
    free(batch.items)
    batch.items = cython.NULL
    batch.room = 0


def stream_batch_put(batch, content, offset):
    """Takes the reference. False: no memory, the reference stays the caller's."""
    room: uint32_t
    items: cython.pointer(stream_item_t)
    if batch.count == batch.room:
        room = batch.room * 2 if batch.room else 32
        items = cython.cast(cython.pointer(stream_item_t), realloc(batch.items, room * cython.sizeof(stream_item_t)))
        if items == cython.NULL:
            return False
        memory_add(MEMORY_STREAMS, (room - batch.room) * cython.sizeof(stream_item_t))
        batch.items = items
        batch.room = room
    batch.items[batch.count].content = content
    batch.items[batch.count].offset = offset
    batch.count += 1
    batch.bytes += content.body_len + content.header_len
    return True


def stream_batch_items(batch):
    """What a batch holds, as Python values; the batch is freed."""
    i: uint32_t
    result: list = []
    content: cython.pointer(content_t)
    route: cython.pointer(uint8_t)
    for i in range(batch.count):
        content = batch.items[i].content
        route = content_route(content)
        result.append(
            (
                batch.items[i].offset,
                PyBytes_FromStringAndSize(cython.cast(cython.p_char, route + 1), route[0]),
                PyBytes_FromStringAndSize(cython.cast(cython.p_char, route + 2 + route[0]), route[1 + route[0]]),
                PyBytes_FromStringAndSize(cython.cast(cython.p_char, content_header(content)), content.header_len),
                PyBytes_FromStringAndSize(cython.cast(cython.p_char, content_body(content)), content.body_len) if content.body_len else b"",
            )
        )
    stream_batch_free(batch)
    return result


def stream_filter_new(values, unfiltered):
    made: cython.pointer(stream_filter_t) = cython.cast(cython.pointer(stream_filter_t), calloc(1, cython.sizeof(stream_filter_t)))
    i: uint32_t = 0
    count: uint32_t = len(values)
    if made == cython.NULL:
        raise MemoryError
    memory_add(MEMORY_STREAMS, FILTER_BYTES)
    made.unfiltered = unfiltered
    made.sizes = cython.cast(cython.pointer(uint32_t), calloc(count + 1, cython.sizeof(uint32_t)))
    made.values = cython.cast(cython.pointer(cython.pointer(uint8_t)), calloc(count + 1, cython.sizeof(cython.p_void)))
    if made.sizes == cython.NULL or made.values == cython.NULL:
        stream_filter_free(made)
        raise MemoryError
    for value in values:
        text: bytes = value
        made.values[i] = cython.cast(cython.pointer(uint8_t), malloc(len(text) + 1))
        if made.values[i] == cython.NULL:
            stream_filter_free(made)
            raise MemoryError
        memcpy(made.values[i], cython.cast(cython.p_char, text), len(text))
        memory_add(MEMORY_STREAMS, VALUE_BYTES + len(text))
        made.sizes[i] = len(text)
        i += 1
        made.count = i
    return made


def stream_filter_free(filter):
    i: uint32_t
    if filter == cython.NULL:
        return
    memory_add(MEMORY_STREAMS, -FILTER_BYTES)
    if filter.values != cython.NULL:
        for i in range(filter.count):
            memory_add(MEMORY_STREAMS, -(VALUE_BYTES + filter.sizes[i]))
            free(filter.values[i])
    free(filter.values)
    free(filter.sizes)
    free(filter)


def stream_filter_matches(filter, value, size):
    i: uint32_t
    if filter == cython.NULL:
        return True
    if value == cython.NULL:
        return filter.unfiltered
    for i in range(filter.count):
        if filter.sizes[i] == size and memcmp(filter.values[i], value, size) == 0:
            return True
    return False
