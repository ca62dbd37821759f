"""Messages in few bytes: the shapes that a log remembers, and Message records that name them (see shapes.pxd).

in: contents with one plain place. out: Message-Shape and Message in the log.

S1  The Message-Shape that a Message names stands before it in the same container: containers come and go one by one.
S2  A shape is written with its second message in a container, so headers that no other message has make none.
S3  The bytes that are remembered are counted, and have a bound.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import arena_t, content_body, content_frame, content_header, content_new, content_route, content_t
from cython.cimports.flintmq.core.crc32c import crc32c
from cython.cimports.flintmq.core.memory_account import MEMORY_ROUTES, memory_add
from cython.cimports.flintmq.store.log.log import LSN_NEVER, content_total, log_append, log_append_done, log_live, log_room, log_t, log_time
from cython.cimports.flintmq.store.log.record import (
    BRIEF_FIXED, CONTENT_FIXED, RECORD_EXPIRES, RECORD_HEADER, RECORD_MESSAGE, RECORD_SHAPE, SHAPE_PLACE, align8, record_encode,
    record_prefix, record_t, set16, set32, set64, shape_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcmp, memcpy

# one in so many new shapes takes the place of one that was seen once
RELENT = declare(uint64_t, 4)


def shapes_free(shapes: pointer[shapes_t]) -> void:
    i: uint32_t
    if shapes.table == NULL:
        return
    for i in range(SHAPES):
        _forget(shapes, address(shapes.table[i]))
    free(shapes.table)
    free(shapes.marks)
    shapes.table = NULL
    shapes.marks = NULL
    shapes.last = NULL
    memory_add(MEMORY_ROUTES, -cast(int64_t, SHAPES * (sizeof(known_shape_t) + 4)))


@cfunc
@nogil
@exceptval(check=False)
def _make_table(shapes: pointer[shapes_t]) -> bint:
    shapes.table = cast(pointer[known_shape_t], calloc(SHAPES, sizeof(known_shape_t)))
    shapes.marks = cast(pointer[uint32_t], calloc(SHAPES, 4))
    if shapes.table == NULL or shapes.marks == NULL:
        free(shapes.table)
        free(shapes.marks)
        shapes.table = NULL
        shapes.marks = NULL
        return False
    memory_add(MEMORY_ROUTES, SHAPES * (sizeof(known_shape_t) + 4))
    return True


@cfunc
@nogil
@exceptval(check=False)
def _forget(shapes: pointer[shapes_t], shape: pointer[known_shape_t]) -> void:
    """Its bytes go; the place in the table is the caller's."""
    if shape.bytes == NULL:
        return
    check(shapes.bytes >= shape.room, b"shapes S3 bytes that go were counted", shapes.bytes, shape.room)
    shapes.bytes -= shape.room
    memory_add(MEMORY_ROUTES, -cast(int64_t, shape.room))
    free(shape.bytes)
    shape.bytes = NULL
    shape.lsn = 0


@cfunc
@nogil
@exceptval(check=False)
def _keep(shapes: pointer[shapes_t], shape: pointer[known_shape_t], content: pointer[content_t], queue_id: uint64_t) -> bint:
    """Copies what the messages share. False: there is no room or no memory for it."""
    room: uint32_t = content.route_len + content.header_len
    if shapes.bytes + room > SHAPES_BYTES_MAX:
        return False
    shape.bytes = cast(pointer[uint8_t], malloc(room))
    if shape.bytes == NULL:
        return False
    shape.room = room
    shapes.bytes += room
    memory_add(MEMORY_ROUTES, room)
    memcpy(shape.bytes, content_route(content), content.route_len)
    memcpy(shape.bytes + content.route_len, content_header(content), content.header_len)
    shape.queue_id = queue_id
    shape.header_len = content.header_len
    shape.route_len = content.route_len
    shape.flags = content.flags
    shape.priority = content.priority
    shape.lsn = 0
    return True


@cfunc
@nogil
@exceptval(check=False)
def _is(shape: pointer[known_shape_t], content: pointer[content_t], queue_id: uint64_t) -> bint:
    """Whether the content is of this shape: compared byte by byte, as a hash proves nothing."""
    return (
        shape.queue_id == queue_id
        and shape.header_len == content.header_len
        and shape.route_len == content.route_len
        and shape.flags == content.flags
        and shape.priority == content.priority
        and memcmp(shape.bytes, content_route(content), content.route_len) == 0
        and memcmp(shape.bytes + content.route_len, content_header(content), content.header_len) == 0
    )


@cfunc
@nogil
@exceptval(check=False)
def _place_for(shapes: pointer[shapes_t], first: uint32_t, floor: uint64_t, tail: uint64_t) -> pointer[known_shape_t]:
    """A place for a new shape, its bytes gone: one that is free or that this container has not seen; sometimes the one that was seen once,
    longest ago. NULL: none; those with a Message-Shape stay until the container is full."""
    i: uint32_t
    best: pointer[known_shape_t] = NULL
    shape: pointer[known_shape_t]
    for i in range(first, first + SHAPE_WAYS):
        shape = address(shapes.table[i])
        if shape.seen < floor:
            best = shape
            break
        if shape.bytes == NULL and (best == NULL or shape.seen < best.seen):
            best = shape
    # More shapes that take turns than there are places would else put each other out, each before its second message.
    if best == NULL or (best.seen >= floor and (tail >> 5) % RELENT):
        return NULL
    _forget(shapes, best)
    return best


@cfunc
@nogil
@exceptval(check=False)
def _find(shapes: pointer[shapes_t], log: pointer[log_t], content: pointer[content_t], queue_id: uint64_t) -> pointer[known_shape_t]:
    """The shape of a message, if this container has seen it before; NULL: it has now (S2)."""
    i: uint32_t
    mark: uint32_t
    first: uint32_t
    shape: pointer[known_shape_t] = shapes.last
    if shape != NULL and shape.seen >= log.shape_floor and shape.bytes != NULL and _is(shape, content, queue_id):
        return shape
    shape = NULL
    mark = crc32c(cast(uint32_t, queue_id), content_route(content), content.route_len)
    mark = crc32c(mark, content_header(content), content.header_len) | 1
    first = (mark >> 1) % (SHAPES // SHAPE_WAYS) * SHAPE_WAYS
    for i in range(first, first + SHAPE_WAYS):
        if shapes.marks[i] == mark:
            shape = address(shapes.table[i])
            if shape.seen < log.shape_floor:
                break
            if shape.bytes == NULL:
                return shape if _keep(shapes, shape, content, queue_id) else NULL
            if _is(shape, content, queue_id):
                return shape
            _forget(shapes, shape)
            break
    else:
        shape = _place_for(shapes, first, log.shape_floor, log.tail)
    if shape != NULL:
        shapes.marks[cast(uint64_t, shape - shapes.table)] = mark
        shape.seen = log.tail
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _write_shape(log: pointer[log_t], shape: pointer[known_shape_t], position: uint64_t) -> bint:
    """False: the log has failed."""
    total: uint32_t = shape.route_len + shape.header_len
    length: uint32_t = RECORD_HEADER + SHAPE_PLACE + CONTENT_FIXED + total
    lsn: uint64_t = 0
    own: pointer[uint8_t]
    record: pointer[uint8_t] = log_append(log, length, address(lsn))
    if record == NULL:
        return False
    own = record_encode(record, length, RECORD_SHAPE, 0, 0, log_time(log), 0, 0, 0)
    set64(own, shape.queue_id)
    set64(own + 8, position)
    own += SHAPE_PLACE
    set32(own, 0)
    set32(own + 4, shape.header_len)
    set16(own + 8, shape.route_len)
    own[10] = shape.flags
    own[11] = shape.priority
    set32(own + 12, total)
    memcpy(own + CONTENT_FIXED, shape.bytes, total)
    log_append_done(log, record, length, lsn)
    shape.lsn = lsn
    shape.position = position
    return True


def shapes_write(
    shapes: pointer[shapes_t],
    log: pointer[log_t],
    content: pointer[content_t],
    queue_id: uint64_t,
    position: uint64_t,
    expires_at_ms: int64_t,
    follows: uint32_t,
    end: pointer[uint64_t],
) -> uint64_t:
    flags: uint16_t = RECORD_EXPIRES if expires_at_ms else 0
    length: uint32_t = record_prefix(flags) + BRIEF_FIXED + content.body_len
    size: uint32_t = cast(uint32_t, align8(length))
    lsn: uint64_t = 0
    own: pointer[uint8_t]
    record: pointer[uint8_t]
    shape: pointer[known_shape_t]
    if content.route_len + content.header_len > SHAPE_MAX or (shapes.table == NULL and not _make_table(shapes)):
        return 0
    shape = _find(shapes, log, content, queue_id)
    if shape == NULL:
        return 0
    # A level of its own, or 2^32 positions on: its shape is written anew.
    if shape.lsn < log.shape_floor or (position - shape.position) >> 32:
        shape.lsn = 0
        follows += cast(uint32_t, align8(RECORD_HEADER + SHAPE_PLACE + CONTENT_FIXED + shape.route_len + shape.header_len))
    if not log_room(log, size + follows):
        return 0
    if shape.seen < log.shape_floor:  # making room went on to the next container
        shape.seen = log.tail
        return 0
    if shape.lsn == 0 and not _write_shape(log, shape, position):
        return LSN_NEVER
    record = log_append(log, length, address(lsn))
    if record == NULL:
        return LSN_NEVER
    check(
        shape.lsn >= log.shape_floor and shape.lsn < lsn,
        b"shapes S1 a message's shape stands before it in its container",
        lsn,
        shape.lsn,
    )
    own = record_encode(record, length, RECORD_MESSAGE, 0, flags, log_time(log), shape.lsn, 0, expires_at_ms)
    shapes.last = shape
    set32(own, cast(uint32_t, position - shape.position))
    memcpy(own + BRIEF_FIXED, content_body(content), content.body_len)
    log_append_done(log, record, length, lsn)
    log_live(log, lsn, align8(COPY_OF_ONE + content_total(content)))
    end[0] = lsn + length
    return lsn


def content_from_brief(arena: pointer[arena_t], record: pointer[record_t], shape: pointer[shape_t]) -> pointer[content_t]:
    content: pointer[content_t] = content_new(arena, shape.head.route_len, shape.head.header_len, record.size - BRIEF_FIXED)
    if content == NULL:
        return NULL
    content.flags = shape.head.flags
    content.priority = shape.head.priority
    memcpy(content_route(content), shape.head.run, shape.head.route_len)
    memcpy(content_header(content), shape.head.run + shape.head.route_len, shape.head.header_len)
    memcpy(content_body(content), record.data + BRIEF_FIXED, content.body_len)
    content_frame(content)
    return content
