"""What reads of a stream fill, and which messages they want (see stream_batch.pxd).

in: contents of hot and cold reads, filters of consumers. out: batches of counted references; matches.
"""

from __future__ import annotations

import cython
from cython import NULL, bint, cast, declare, p_char, p_void, pointer, sizeof, void
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.content import content_body, content_decref, content_header, content_route, content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcmp, memcpy

# bytes in the account of memory of a filter, and of one of its values beside its octets: its number, its pointer, its piece of memory
FILTER_BYTES = declare(int64_t, 128)
VALUE_BYTES = declare(int64_t, 48)


def stream_batch_clear(batch: pointer[stream_batch_t]) -> void:
    i: uint32_t
    for i in range(batch.count):
        content_decref(batch.items[i].content)
    batch.count = 0
    batch.bytes = 0
    batch.io_ns = 0
    batch.error = 0


def stream_batch_free(batch: pointer[stream_batch_t]) -> void:
    stream_batch_clear(batch)
    memory_add(MEMORY_STREAMS, -cast(int64_t, batch.room * sizeof(stream_item_t)))
    free(batch.items)
    batch.items = NULL
    batch.room = 0


def stream_batch_put(batch: pointer[stream_batch_t], content: pointer[content_t], offset: uint64_t) -> bint:
    """Takes the reference. False: no memory, the reference stays the caller's."""
    room: uint32_t
    items: pointer[stream_item_t]
    if batch.count == batch.room:
        room = batch.room * 2 if batch.room else 32
        items = cast(pointer[stream_item_t], realloc(batch.items, room * sizeof(stream_item_t)))
        if items == NULL:
            return False
        memory_add(MEMORY_STREAMS, (room - batch.room) * sizeof(stream_item_t))
        batch.items = items
        batch.room = room
    batch.items[batch.count].content = content
    batch.items[batch.count].offset = offset
    batch.count += 1
    batch.bytes += content.body_len + content.header_len
    return True


def stream_batch_items(batch: pointer[stream_batch_t]) -> list:
    """What a batch holds, as Python values; the batch is freed."""
    i: uint32_t
    result: list = []
    content: pointer[content_t]
    route: pointer[uint8_t]
    for i in range(batch.count):
        content = batch.items[i].content
        route = content_route(content)
        result.append(
            (
                batch.items[i].offset,
                PyBytes_FromStringAndSize(cast(p_char, route + 1), route[0]),
                PyBytes_FromStringAndSize(cast(p_char, route + 2 + route[0]), route[1 + route[0]]),
                PyBytes_FromStringAndSize(cast(p_char, content_header(content)), content.header_len),
                PyBytes_FromStringAndSize(cast(p_char, content_body(content)), content.body_len) if content.body_len else b"",
            )
        )
    stream_batch_free(batch)
    return result


def stream_filter_new(values: object, unfiltered: bint) -> pointer[stream_filter_t]:
    made: pointer[stream_filter_t] = cast(pointer[stream_filter_t], calloc(1, sizeof(stream_filter_t)))
    i: uint32_t = 0
    count: uint32_t = len(values)
    if made == NULL:
        raise MemoryError
    memory_add(MEMORY_STREAMS, FILTER_BYTES)
    made.unfiltered = unfiltered
    made.sizes = cast(pointer[uint32_t], calloc(count + 1, sizeof(uint32_t)))
    made.values = cast(pointer[pointer[uint8_t]], calloc(count + 1, sizeof(p_void)))
    if made.sizes == NULL or made.values == NULL:
        stream_filter_free(made)
        raise MemoryError
    for value in values:
        text: bytes = value
        made.values[i] = cast(pointer[uint8_t], malloc(len(text) + 1))
        if made.values[i] == NULL:
            stream_filter_free(made)
            raise MemoryError
        memcpy(made.values[i], cast(p_char, text), len(text))
        memory_add(MEMORY_STREAMS, VALUE_BYTES + len(text))
        made.sizes[i] = len(text)
        i += 1
        made.count = i
    return made


def stream_filter_free(filter: pointer[stream_filter_t]) -> void:
    i: uint32_t
    if filter == NULL:
        return
    memory_add(MEMORY_STREAMS, -FILTER_BYTES)
    if filter.values != NULL:
        for i in range(filter.count):
            memory_add(MEMORY_STREAMS, -(VALUE_BYTES + filter.sizes[i]))
            free(filter.values[i])
    free(filter.values)
    free(filter.sizes)
    free(filter)


def stream_filter_matches(filter: pointer[stream_filter_t], value: pointer[cython.const[uint8_t]], size: uint32_t) -> bint:
    i: uint32_t
    if filter == NULL:
        return True
    if value == NULL:
        return filter.unfiltered
    for i in range(filter.count):
        if filter.sizes[i] == size and memcmp(filter.values[i], value, size) == 0:
            return True
    return False
