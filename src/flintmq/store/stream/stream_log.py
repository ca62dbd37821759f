"""A stream's log: appending, the hot window, what is visible (see stream_log.pxd).

in: contents of the message path, finished writes of the log's writer. out: records of docs/FORMAT.md ("Logs of streams"),
offsets, contents ready to be sent.

I1  Offsets are dense in log order: a message's records stand together, and the next one gets its offset after them.
I2  `visible` never passes a message that is not durable; it never falls.
I3  The hot window holds at least every message that is not durable yet (perhaps without its content): that is how durable LSNs become
    offsets.
I4  Bytes in memory, and bytes that wait to become durable, are counted: what leaves a sum came into it before.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, gil, inline, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.ref import Py_DECREF
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_add64, at_load32, at_load64, at_store32, at_store64, at_sub32, at_sub64, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.byte_order import put64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import (
    CONTENT_SHARED, arena_new, arena_t, content_decref, content_header, content_incref, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.header_field import parts_of, parts_t
from cython.cimports.flintmq.queue.types import log_port_t
from cython.cimports.flintmq.store.log.log import (
    PIECE_MAX, content_copy_out, content_total, log_append, log_append_done, log_begin, log_end, log_room, log_t, log_time,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import RECORD_HEADER, SPLIT_ABOVE, align8, record_encode, set16, set32, set64
from cython.cimports.flintmq.store.log.writer import dirty_log_t, writer_dirty, writer_t
from cython.cimports.flintmq.store.stream.stream_batch import stream_batch_t, stream_filter_t
from cython.cimports.flintmq.store.stream.stream_containers import OFFSET_UNKNOWN
from cython.cimports.flintmq.store.stream.stream_content import (
    RECORD_STREAM_CHUNK, RECORD_STREAM_MARK, RECORD_STREAM_MESSAGE, STREAM_FIXED, STREAM_NO_FILTER, stream_content,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy, memmove, memset

STREAM_FAILED = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)

# entries of a new hot ring
RING_LEAST = declare(uint32_t, 64)
# hot messages that one read looks at: the lock is held for some microseconds
HOT_LOOK = declare(uint64_t, 1024)


# --- the hot window -----------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _hot(stream: pointer[stream_t], offset: uint64_t) -> pointer[hot_t]:
    return address(stream.hot[offset & (stream.hot_room - 1)])


@cfunc
@inline
@nogil
@exceptval(check=False)
def _hot_size(content: pointer[content_t]) -> uint64_t:
    return 64 + cast(uint64_t, content.body_len) + content.header_len + content.route_len


@cfunc
@nogil
@exceptval(check=False)
def _hot_grow(stream: pointer[stream_t]) -> bint:
    """Room for one more. hot_lock held."""
    room: uint32_t
    offset: uint64_t
    ring: pointer[hot_t]
    if stream.hot_end - stream.hot_first < stream.hot_room:
        return True
    room = stream.hot_room * 2 if stream.hot_room else RING_LEAST
    ring = cast(pointer[hot_t], malloc(room * sizeof(hot_t)))
    if ring == NULL:
        return False
    offset = stream.hot_first
    while offset < stream.hot_end:
        ring[offset & (room - 1)] = _hot(stream, offset)[0]
        offset += 1
    free(stream.hot)
    stream.hot = ring
    stream.hot_room = room
    return True


@cfunc
@nogil
@exceptval(check=False)
def _hot_shrink(stream: pointer[stream_t], most: uint64_t) -> void:
    """Lets the oldest contents go until the window holds no more than `most` bytes. hot_lock held."""
    entry: pointer[hot_t]
    size: uint64_t
    visible: uint64_t = stream.visible
    while stream.hot_bytes > most and stream.hot_kept < stream.hot_end:
        entry = _hot(stream, stream.hot_kept)
        if entry.content != NULL:
            size = _hot_size(entry.content)
            check(stream.hot_bytes >= size, b"stream_log I4 a message that leaves the window was counted", stream.hot_bytes, size)
            stream.hot_bytes -= size
            at_sub64(address(stream.space.hot_bytes), size)
            content_decref(entry.content)
            entry.content = NULL
        stream.hot_kept += 1
    while stream.hot_first < stream.hot_kept and stream.hot_first < visible:
        stream.hot_first += 1


def stream_hot_read(
    stream: pointer[stream_t],
    offset: uint64_t,
    count: uint32_t,
    bytes: uint64_t,
    filter: pointer[stream_filter_t],
    batch: pointer[stream_batch_t],
) -> c_int:
    next_offset: uint64_t = offset
    end: uint64_t
    entry: pointer[hot_t]
    value: pointer[cython.const[uint8_t]]
    taken: uint32_t = 0
    start: uint64_t = batch.bytes
    result: c_int = STREAM_FILTERED
    batch.next_offset = offset
    if at_load32(address(stream.closed)):
        return STREAM_GONE
    if offset < at_load64(address(stream.first)):
        batch.next_offset = at_load64(address(stream.first))
        return STREAM_TRUNCATED
    end = at_load64(address(stream.visible))
    if offset >= end:
        return STREAM_EMPTY
    spin_lock(address(stream.hot_lock))
    if offset < stream.hot_kept:
        spin_unlock(address(stream.hot_lock))
        return STREAM_COLD
    if end > offset + HOT_LOOK:
        end = offset + HOT_LOOK
    while next_offset < end and taken < count:
        entry = _hot(stream, next_offset)
        if entry.content == NULL:
            if taken == 0 and next_offset == offset:
                result = STREAM_COLD
            break
        if filter != NULL:
            value = content_header(entry.content) + entry.filter_at if entry.filter_at else NULL
            if not stream_filter_matches(filter, value, entry.filter_size):
                next_offset += 1
                continue
        if taken and batch.bytes - start + entry.content.body_len + entry.content.header_len > bytes:
            break
        if not stream_batch_put(batch, entry.content, next_offset):
            break
        content_incref(entry.content)
        taken += 1
        next_offset += 1
    spin_unlock(address(stream.hot_lock))
    batch.next_offset = next_offset
    return STREAM_MESSAGES if taken else result


# --- appending ----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _write_mark(stream: pointer[stream_t]) -> bint:
    """A Stream-Mark. append_lock and the log's lock held. It fits where one stood before, so the block that stood there is gone from
    the chain whatever follows."""
    lsn: uint64_t = 0
    length: uint32_t = RECORD_HEADER + 8
    record: pointer[uint8_t] = log_append(stream.dirty.log, length, address(lsn))
    if record == NULL:
        return False
    set64(record_encode(record, length, RECORD_STREAM_MARK, 0, 0, log_time(stream.dirty.log), 0, 0, 0), stream.next)
    log_append_done(stream.dirty.log, record, length, lsn)
    stream.in_mark = False
    return True


@cfunc
@nogil
@exceptval(check=False)
def _append_message(
    stream: pointer[stream_t],
    content: pointer[content_t],
    value: pointer[cython.const[uint8_t]],
    value_size: uint32_t,
    origin: uint64_t,
    start: pointer[uint64_t],
    end: pointer[uint64_t],
) -> bint:
    """Writes the records of one message. append_lock and the log's lock held; the latter is let go between chunks."""
    log: pointer[log_t] = stream.dirty.log
    total: uint32_t = content_total(content)
    piece: uint32_t = total
    fixed: uint32_t = STREAM_FIXED + value_size
    offset: uint32_t
    room: uint32_t
    length: uint32_t
    lsn: uint64_t = 0
    record: pointer[uint8_t]
    own: pointer[uint8_t]
    if stream.in_mark and not _write_mark(stream):
        return False
    if total + value_size > stream.split_above:
        room = log_room(log, RECORD_HEADER + fixed + stream.split_above // 4)
        if room < RECORD_HEADER + fixed + 64:
            return False
        piece = min(min(total, PIECE_MAX), room - RECORD_HEADER - fixed)
    length = RECORD_HEADER + fixed + piece
    record = log_append(log, length, start)
    if record == NULL:
        return False
    own = record_encode(record, length, RECORD_STREAM_MESSAGE, 0, 0, log_time(log), origin, 0, 0)
    set64(own, stream.next)
    set32(own + 8, content.body_len)
    set32(own + 12, content.header_len)
    set16(own + 16, content.route_len)
    own[18] = content.flags & ~cast(uint8_t, CONTENT_SHARED)
    own[19] = content.priority
    set32(own + 20, piece)
    set16(own + 24, cast(uint16_t, value_size) if value != NULL else STREAM_NO_FILTER)
    set16(own + 26, 0)
    if value_size:
        memcpy(own + STREAM_FIXED, value, value_size)
    content_copy_out(content, 0, piece, own + fixed)
    log_append_done(log, record, length, start[0])
    end[0] = start[0] + align8(length)
    if writer_dirty(stream.writer, address(stream.dirty)):
        stream_incref(stream)
    offset = piece
    while offset < total:
        log_end(log)
        log_begin(log)
        room = log_room(log, stream.split_above // 4)
        if room < RECORD_HEADER + 12 + 64:
            return False
        piece = min(min(total - offset, PIECE_MAX), room - RECORD_HEADER - 12)
        length = RECORD_HEADER + 12 + piece
        record = log_append(log, length, address(lsn))
        if record == NULL:
            return False
        own = record_encode(record, length, RECORD_STREAM_CHUNK, 0, 0, log_time(log), start[0], 0, 0)
        set64(own, stream.next)
        set32(own + 8, offset)
        content_copy_out(content, offset, piece, own + 12)
        log_append_done(log, record, length, lsn)
        end[0] = lsn + align8(length)
        if writer_dirty(stream.writer, address(stream.dirty)):
            stream_incref(stream)
        offset += piece
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _hot_add(stream: pointer[stream_t], offset: uint64_t, entry: pointer[hot_t]) -> void:
    """The window of the last messages goes on with the next one; others leave it when it is too large."""
    size: uint64_t = _hot_size(entry.content)
    most: uint64_t = (
        stream.space.hot_each if at_load64(address(stream.space.hot_bytes)) <= stream.space.hot_most else stream.space.hot_least
    )
    spin_lock(address(stream.hot_lock))
    check(
        stream.hot_end == offset and stream.hot_end - stream.hot_first < stream.hot_room,
        b"stream_log I3 the window goes on with the next offset",
        stream.hot_end,
        offset,
    )
    _hot(stream, offset)[0] = entry[0]
    stream.hot_end = offset + 1
    stream.hot_bytes += size
    at_add64(address(stream.space.hot_bytes), size)
    if stream.hot_bytes > most:
        _hot_shrink(stream, most)
    spin_unlock(address(stream.hot_lock))


def stream_append(stream: pointer[stream_t], content: pointer[content_t], origin: uint64_t, ticket: pointer[uint64_t]) -> uint64_t:
    log: pointer[log_t] = stream.dirty.log
    arena: pointer[arena_t] = cast(pointer[arena_t], stream_arena_slot()[0])
    hot: pointer[content_t]
    parts: parts_t
    byte: pointer[uint8_t] = NULL
    entry: hot_t
    value: pointer[cython.const[uint8_t]] = NULL
    filter_at: uint32_t = 0
    filter_size: uint32_t = 0
    offset: uint64_t
    start: uint64_t = 0
    end: uint64_t = 0
    taken: bint
    ticket[0] = 0
    if arena == NULL:
        arena = arena_new()
        if arena == NULL:
            return STREAM_FAILED
        stream_arena_slot()[0] = arena
    parts_of(content, address(parts))
    hot = stream_content(arena, address(parts), 0, address(byte), address(filter_at), address(filter_size))
    if hot == NULL:
        return STREAM_FAILED
    if filter_at:
        value = content_header(hot) + filter_at
    else:
        filter_size = 0
    spin_lock(address(stream.append_lock))
    spin_lock(address(stream.hot_lock))
    taken = not at_load32(address(stream.closed)) and not at_load32(address(stream.writer.failed)) and _hot_grow(stream)
    spin_unlock(address(stream.hot_lock))
    if not taken:
        spin_unlock(address(stream.append_lock))
        content_decref(hot)
        return STREAM_FAILED
    log_begin(log)
    taken = _append_message(stream, content, value, filter_size, origin, address(start), address(end))
    if not taken:
        # The log has failed. Or memory ran out in the middle of a long message: what is there of it is never completed, and readers
        # leave it out; the next message gets its offset.
        log_end(log)
        spin_unlock(address(stream.append_lock))
        content_decref(hot)
        return STREAM_FAILED
    offset = stream.next
    stream.next = offset + 1
    if byte != NULL:
        put64(byte, offset)
    if start >= stream.container_end:
        stream_learn(stream, start // log.container_size, offset, log.now_us)
        stream.container_end = (start // log.container_size + 1) * log.container_size
    at_add64(address(stream.space.unwritten), end - start)
    # The window's entry comes before the log's lock is released: once it is, the writer may make the message durable (I3).
    check(end > start, b"stream_log I1 a message has records", start, end)
    entry.start = start
    entry.end = end
    entry.filter_at = filter_at
    entry.filter_size = filter_size
    entry.content = hot
    _hot_add(stream, offset, address(entry))
    at_store64(address(stream.appended), stream.appended + 1)
    at_store64(address(stream.appended_bytes), stream.appended_bytes + content.body_len)
    # Last, behind writer_dirty: a ticket that the writer sees stands for a log that it sees, too.
    if stream.port != NULL:
        ticket[0] = at_add64(address(stream.port.stream_ticket), 1) + 1
    log_end(log)
    spin_unlock(address(stream.append_lock))
    return offset


@cfunc
@nogil
@exceptval(check=False)
def _moved(dirty: pointer[dirty_log_t]) -> void:
    """The writer made more of it durable: what that makes visible (I2, I3)."""
    stream: pointer[stream_t] = cast(pointer[stream_t], dirty)
    durable: uint64_t = at_load64(address(dirty.log.durable))
    written: uint64_t = 0
    entry: pointer[hot_t]
    visible: uint64_t
    spin_lock(address(stream.hot_lock))
    visible = stream.visible
    while visible < stream.hot_end:
        entry = _hot(stream, visible)
        if entry.end > durable:
            break
        check(entry.end >= entry.start, b"stream_log I1 the end of a message is behind its start", entry.start, entry.end)
        written += entry.end - entry.start
        stream.visible_start = entry.start
        visible += 1
    if written:
        check(visible <= stream.hot_end, b"stream_log I2 nothing is visible that was not appended", visible, stream.hot_end)
        at_store64(address(stream.visible), visible)
        while stream.hot_first < stream.hot_kept and stream.hot_first < visible:
            stream.hot_first += 1
    spin_unlock(address(stream.hot_lock))
    if not written:
        return
    check(
        at_sub64(address(stream.space.unwritten), written) >= written,
        b"stream_log I4 what became durable was counted as unwritten",
        visible,
        written,
    )
    spin_lock(address(stream.notify_lock))
    if stream.on_visible != NULL:
        stream.on_visible(stream.on_visible_context)
    spin_unlock(address(stream.notify_lock))


@cfunc
@nogil
@exceptval(check=False)
def _done(dirty: pointer[dirty_log_t]) -> void:
    stream_decref(cast(pointer[stream_t], dirty))


# --- small things -------------------------------------------------------------------------------------------------------------


def stream_visible(stream: pointer[stream_t]) -> uint64_t:
    return at_load64(address(stream.visible))


def stream_first(stream: pointer[stream_t]) -> uint64_t:
    return at_load64(address(stream.first))


def stream_listen(stream: pointer[stream_t], on_visible: stream_visible_t, context: p_void) -> void:
    spin_lock(address(stream.notify_lock))
    stream.on_visible = on_visible
    stream.on_visible_context = context
    spin_unlock(address(stream.notify_lock))


def stream_incref(stream: pointer[stream_t]) -> void:
    at_add32(address(stream.refs), 1)


def stream_decref(stream: pointer[stream_t]) -> void:
    owner: p_void = stream.owner
    if at_sub32(address(stream.refs), 1) == 1:
        with gil:
            Py_DECREF(cast(object, owner))


def stream_bytes(stream: pointer[stream_t]) -> uint64_t:
    log: pointer[log_t] = stream.dirty.log
    total: uint64_t = 0
    spin_lock(address(log.lock))
    if log.container_count:
        total = log.tail - log.first_sequence * log.container_size
    spin_unlock(address(log.lock))
    return total


def stream_learn(stream: pointer[stream_t], sequence: uint64_t, first_offset: uint64_t, first_us: uint64_t) -> void:
    index: uint64_t
    room: uint32_t
    firsts: pointer[container_first_t]
    spin_lock(address(stream.firsts_lock))
    if stream.firsts_count == 0:
        stream.firsts_base = stream.dirty.log.first_sequence
        if sequence < stream.firsts_base:
            stream.firsts_base = sequence
    if sequence >= stream.firsts_base:
        index = sequence - stream.firsts_base
        if index >= stream.firsts_room:
            room = stream.firsts_room * 2 if stream.firsts_room else 4
            while room <= index:
                room *= 2
            firsts = cast(pointer[container_first_t], realloc(stream.firsts, room * sizeof(container_first_t)))
            if firsts != NULL:
                stream.firsts = firsts
                stream.firsts_room = room
        if index < stream.firsts_room:  # else it is looked up again when it is wanted
            while stream.firsts_count <= index:
                stream.firsts[stream.firsts_count].first_offset = OFFSET_UNKNOWN
                stream.firsts[stream.firsts_count].first_us = 0
                stream.firsts_count += 1
            stream.firsts[index].first_offset = first_offset
            stream.firsts[index].first_us = first_us
    spin_unlock(address(stream.firsts_lock))


def stream_known(stream: pointer[stream_t], sequence: uint64_t, first_us: pointer[uint64_t]) -> uint64_t:
    offset: uint64_t = OFFSET_UNKNOWN
    first_us[0] = 0
    spin_lock(address(stream.firsts_lock))
    if sequence >= stream.firsts_base and sequence - stream.firsts_base < stream.firsts_count:
        offset = stream.firsts[sequence - stream.firsts_base].first_offset
        first_us[0] = stream.firsts[sequence - stream.firsts_base].first_us
    spin_unlock(address(stream.firsts_lock))
    return offset


def stream_forget_firsts(stream: pointer[stream_t], sequence: uint64_t) -> void:
    count: uint32_t
    spin_lock(address(stream.firsts_lock))
    if stream.firsts_count and sequence > stream.firsts_base:
        count = cast(uint32_t, min(sequence - stream.firsts_base, cast(uint64_t, stream.firsts_count)))
        memmove(stream.firsts, stream.firsts + count, (stream.firsts_count - count) * sizeof(container_first_t))
        check(count <= stream.firsts_count, b"stream_log I4 first offsets that go were counted", count, sequence)
        stream.firsts_count -= count
        stream.firsts_base += count
    spin_unlock(address(stream.firsts_lock))


def stream_cool(stream: pointer[stream_t]) -> void:
    # Not between the two sections of an append: the room that the first one made is the second one's.
    spin_lock(address(stream.append_lock))
    spin_lock(address(stream.hot_lock))
    _hot_shrink(stream, 0)
    if stream.hot_first == stream.hot_end:
        free(stream.hot)
        stream.hot = NULL
        stream.hot_room = 0
    spin_unlock(address(stream.hot_lock))
    spin_unlock(address(stream.append_lock))


def stream_mark(stream: pointer[stream_t]) -> bint:
    log: pointer[log_t] = stream.dirty.log
    marked: bint = False
    spin_lock(address(stream.append_lock))
    log_begin(log)
    if log.block == 0 and at_load64(address(log.durable)) >= log.tail and not at_load32(address(stream.closed)):
        marked = _write_mark(stream)
        if marked and writer_dirty(stream.writer, address(stream.dirty)):
            stream_incref(stream)
    log_end(log)
    spin_unlock(address(stream.append_lock))
    return marked


def stream_new(
    stream_id: uint64_t,
    log: pointer[log_t],
    writer: pointer[writer_t],
    port: pointer[log_port_t],
    space: pointer[stream_space_t],
    owner: p_void,
) -> pointer[stream_t]:
    stream: pointer[stream_t] = cast(pointer[stream_t], calloc(1, sizeof(stream_t)))
    if stream == NULL:
        return NULL
    stream.dirty.log = log
    stream.dirty.moved = _moved
    stream.dirty.done = _done
    stream.id = stream_id
    stream.writer = writer
    stream.port = port
    stream.space = space
    stream.owner = owner
    stream.split_above = min(SPLIT_ABOVE, cast(uint32_t, log.buffer_size // 4))
    return stream


def stream_abandon(stream: pointer[stream_t]) -> void:
    offset: uint64_t
    entry: pointer[hot_t]
    unwritten: uint64_t = 0
    spin_lock(address(stream.hot_lock))
    offset = stream.visible
    while offset < stream.hot_end:
        entry = _hot(stream, offset)
        unwritten += entry.end - entry.start
        entry.start = entry.end
        offset += 1
    spin_unlock(address(stream.hot_lock))
    check(
        at_sub64(address(stream.space.unwritten), unwritten) >= unwritten,
        b"stream_log I4 what is given up was counted as unwritten",
        stream.visible,
        unwritten,
    )


def stream_free(stream: pointer[stream_t]) -> void:
    stream_abandon(stream)
    stream_cool(stream)
    check(stream.hot_bytes == 0, b"stream_log I4 a stream that goes keeps nothing in memory", stream.id, stream.hot_bytes)
    free(stream.hot)
    free(stream.firsts)
    free(stream)


def stream_close(stream: pointer[stream_t]) -> void:
    spin_lock(address(stream.append_lock))
    log_begin(stream.dirty.log)
    at_store32(address(stream.closed), 1)
    log_end(stream.dirty.log)
    spin_unlock(address(stream.append_lock))
    stream_listen(stream, NULL, NULL)


@cclass
class StreamSpace:
    """What all streams of a store share: bytes not written yet, memory of hot windows. Args: bytes of one window, of all windows; what a
    window keeps when that is reached."""

    def __cinit__(self, each: int, most: int, least: int):
        memset(address(self.space), 0, sizeof(stream_space_t))
        self.space.hot_each = each
        self.space.hot_most = most
        self.space.hot_least = least

    @property
    def hot_bytes(self) -> int:
        """Bytes of all hot windows."""
        return at_load64(address(self.space.hot_bytes))

    @property
    def unwritten(self) -> int:
        """Bytes appended and not durable."""
        return at_load64(address(self.space.unwritten))
