"""The message log: Message-Start, -Chunk, -Enqueue, -Dequeue, -Delete as the message path writes them (see message_log.pxd).

in: enqueues and dequeues of the queue core, transactions of the store. out: records in the log's write buffers, LSNs.

I1  A message's id is the LSN of its Message-Start; it is in the container's live map before anybody else can know the id.
I2  A message that is not in the message list has exactly one place ever, and its Message-Enqueue directly follows its Message-Start.
I3  What ends a message (flag LAST, Message-Delete) is written under the same lock as its removal from the list and the live map.

Source: seed 003, "Message Log Records" and "In-Memory Objects"; layout in docs/FORMAT.md.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64, at_store32, at_store64
from cython.cimports.flintmq.core.content import (
    CONTENT_SHARED,
    content_body,
    content_frame,
    content_header,
    content_new,
    content_route,
    content_t,
)
from cython.cimports.flintmq.core.hash64 import map64_next, map64_put, map64_remove
from cython.cimports.flintmq.queue.types import (
    ENTRY_COUNT_SHIFT,
    MESSAGE_SPILLED_BIT,
    PRESSURE_BUFFERS,
    PRESSURE_DISK,
    PRESSURE_NONE,
    queue_t,
    slot_t,
)
from cython.cimports.flintmq.store.log.log import (
    LSN_NEVER,
    log_append,
    log_append_done,
    log_begin,
    log_dead,
    log_end,
    log_is_live,
    log_live,
    log_room,
    log_t,
    log_time,
    log_where,
)
from cython.cimports.flintmq.store.log.record import (
    CONTENT_FIXED,
    PLACE_SIZE,
    RECORD_CHUNK,
    RECORD_COPY,
    RECORD_DEQUEUE,
    RECORD_ENQUEUE,
    RECORD_EXPIRES,
    RECORD_HEADER,
    RECORD_LAST,
    RECORD_MESSAGE_DELETE,
    RECORD_PAGE_CONTENT,
    RECORD_START,
    RECORD_TRANSACTION,
    align8,
    le16,
    le32,
    record_encode,
    record_prefix,
    record_t,
    set16,
    set32,
    set64,
)
from cython.cimports.flintmq.store.log.writer import writer_kick
from cython.cimports.flintmq.store.message_list import (
    list_find,
    list_forget,
    list_new,
    location_t,
    message_add,
    message_drop,
    message_find,
    message_name,
    message_t,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import realloc
from cython.cimports.libc.string import memcpy

# bytes of content in one record of a long message: the lock is held for about 20 us each
PIECE_MAX = cython.declare(uint32_t, 65536)
# bytes of a Message-Enqueue with expiry and transaction
ENQUEUE_MOST = cython.declare(uint32_t, 56)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _ml(context: cython.p_void) -> cython.pointer(message_log_t):
    return cython.cast(cython.pointer(message_log_t), context)


# --- content ----------------------------------------------------------------------------------------------------------------


def content_total(content):
    return content.route_len + content.header_len + content.body_len


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy_out(content: cython.pointer(content_t), offset: uint32_t, size: uint32_t, out: cython.pointer(uint8_t)) -> cython.void:
    """Bytes [offset, offset + size) of the content: route, header, body one after the other."""
    part: uint32_t
    header_end: uint32_t = content.route_len + content.header_len
    if offset < content.route_len and size:
        part = min(size, content.route_len - offset)
        memcpy(out, content_route(content) + offset, part)
        out += part
        offset += part
        size -= part
    if offset < header_end and size:
        part = min(size, header_end - offset)
        memcpy(out, content_header(content) + (offset - content.route_len), part)
        out += part
        offset += part
        size -= part
    if size:
        memcpy(out, content_body(content) + (offset - header_end), size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy_in(content: cython.pointer(content_t), offset: uint32_t, size: uint32_t, data: cython.pointer(cython.const[uint8_t])) -> cython.void:
    part: uint32_t
    header_end: uint32_t = content.route_len + content.header_len
    if offset < content.route_len and size:
        part = min(size, content.route_len - offset)
        memcpy(content_route(content) + offset, data, part)
        data += part
        offset += part
        size -= part
    if offset < header_end and size:
        part = min(size, header_end - offset)
        memcpy(content_header(content) + (offset - content.route_len), data, part)
        data += part
        offset += part
        size -= part
    if size:
        memcpy(content_body(content) + (offset - header_end), data, size)


def content_from_record(arena, record, filled):
    data: cython.pointer(cython.const[uint8_t]) = record.data
    size: uint32_t = record.size
    places: uint64_t
    segment: uint32_t
    body_len: uint32_t
    header_len: uint32_t
    route_len: uint16_t
    content: cython.pointer(content_t)
    filled[0] = 0
    if record.type == RECORD_COPY:
        if size < 8:
            return cython.NULL
        places = 8 + cython.cast(uint64_t, le32(data)) * PLACE_SIZE
        if places > size:
            return cython.NULL
        data += places
        size -= cython.cast(uint32_t, places)
    if size < CONTENT_FIXED:
        return cython.NULL
    body_len = le32(data)
    header_len = le32(data + 4)
    route_len = le16(data + 8)
    segment = le32(data + 12)
    if segment != size - CONTENT_FIXED or segment > cython.cast(uint64_t, body_len) + header_len + route_len:
        return cython.NULL
    content = content_new(arena, route_len, header_len, body_len)
    if content == cython.NULL:
        return cython.NULL
    content.flags = data[10]
    content.priority = data[11]
    _copy_in(content, 0, segment, data + CONTENT_FIXED)
    content_frame(content)
    filled[0] = segment
    return content


def content_add_chunk(content, record):
    offset: uint64_t
    if record.size < 4:
        return False
    offset = le32(record.data)
    if offset + record.size - 4 > content_total(content):
        return False
    _copy_in(content, cython.cast(uint32_t, offset), record.size - 4, record.data + 4)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_content(
    log: cython.pointer(log_t), kind: uint8_t, split_above: uint32_t, follows: uint32_t, content: cython.pointer(content_t)
) -> uint64_t:
    """Writes Message-Start (or Page-Content) and its chunks, and marks it live. Log lock held; let go between chunks.

    follows: bytes of records that must fit behind an undivided one in the same window (I2). Returns its LSN, or LSN_NEVER.
    """
    total: uint32_t = content_total(content)
    piece: uint32_t = total
    offset: uint32_t
    room: uint32_t
    length: uint32_t
    size: uint64_t
    first: uint64_t = 0
    lsn: uint64_t = 0
    record: cython.pointer(uint8_t)
    own: cython.pointer(uint8_t)
    length = RECORD_HEADER + CONTENT_FIXED + total
    if total <= split_above:
        log_room(log, cython.cast(uint32_t, align8(length)) + follows)
    else:
        room = log_room(log, split_above // 4)
        if room < RECORD_HEADER + CONTENT_FIXED + 64:
            return LSN_NEVER
        piece = min(min(total, PIECE_MAX), room - RECORD_HEADER - CONTENT_FIXED)
        length = RECORD_HEADER + CONTENT_FIXED + piece
    record = log_append(log, length, cython.address(first))
    if record == cython.NULL:
        return LSN_NEVER
    own = record_encode(record, length, kind, 0, 0, log_time(log), 0, 0, 0)
    set32(own, content.body_len)
    set32(own + 4, content.header_len)
    set16(own + 8, content.route_len)
    own[10] = content.flags
    own[11] = content.priority
    set32(own + 12, piece)
    _copy_out(content, 0, piece, own + CONTENT_FIXED)
    log_append_done(log, record, length, first)
    size = align8(length)
    log_live(log, first, size + (follows if piece == total else total - piece))
    offset = piece
    while offset < total:
        log_end(log)
        log_begin(log)
        room = log_room(log, split_above // 4)
        if room < RECORD_HEADER + 4 + 64:
            return LSN_NEVER
        piece = min(min(total - offset, PIECE_MAX), room - RECORD_HEADER - 4)
        length = RECORD_HEADER + 4 + piece
        record = log_append(log, length, cython.address(lsn))
        if record == cython.NULL:
            return LSN_NEVER
        own = record_encode(record, length, RECORD_CHUNK, 0, 0, log_time(log), first, 0, 0)
        set32(own, offset)
        _copy_out(content, offset, piece, own + 4)
        log_append_done(log, record, length, lsn)
        offset += piece
    return first


# --- records ----------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_enqueue(
    log: cython.pointer(log_t), message_id: uint64_t, queue_id: uint64_t, position: uint64_t, expires_at_ms: int64_t, tx: uint64_t
) -> uint64_t:
    flags: uint16_t = (RECORD_EXPIRES if expires_at_ms else 0) | (RECORD_TRANSACTION if tx else 0)
    length: uint32_t = record_prefix(flags) + 16
    lsn: uint64_t = 0
    own: cython.pointer(uint8_t)
    record: cython.pointer(uint8_t) = log_append(log, length, cython.address(lsn))
    if record == cython.NULL:
        return LSN_NEVER
    own = record_encode(record, length, RECORD_ENQUEUE, 0, flags, log_time(log), message_id, tx, expires_at_ms)
    set64(own, queue_id)
    set64(own + 8, position)
    log_append_done(log, record, length, lsn)
    return lsn + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_dequeue(
    log: cython.pointer(log_t),
    message_id: uint64_t,
    queue_id: uint64_t,
    position: uint64_t,
    owner: uint32_t,
    reason: cython.int,
    delivered_us: uint64_t,
    delivery_count: uint32_t,
    tx: uint64_t,
    last: cython.bint,
) -> uint64_t:
    flags: uint16_t = (RECORD_TRANSACTION if tx else 0) | (RECORD_LAST if last else 0)
    length: uint32_t = record_prefix(flags) + 32
    lsn: uint64_t = 0
    own: cython.pointer(uint8_t)
    record: cython.pointer(uint8_t) = log_append(log, length, cython.address(lsn))
    if record == cython.NULL:
        return LSN_NEVER
    own = record_encode(record, length, RECORD_DEQUEUE, 0, flags, log_time(log), message_id, tx, 0)
    set64(own, queue_id)
    set64(own + 8, position)
    set64(own + 16, delivered_us)
    set32(own + 24, owner)
    set16(own + 28, cython.cast(uint16_t, delivery_count))
    own[30] = cython.cast(uint8_t, reason)
    own[31] = 0
    log_append_done(log, record, length, lsn)
    return lsn + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_delete(log: cython.pointer(log_t), message_id: uint64_t) -> uint64_t:
    lsn: uint64_t = 0
    record: cython.pointer(uint8_t) = log_append(log, RECORD_HEADER, cython.address(lsn))
    if record == cython.NULL:
        return LSN_NEVER
    record_encode(record, RECORD_HEADER, RECORD_MESSAGE_DELETE, 0, RECORD_LAST, log_time(log), message_id, 0, 0)
    log_append_done(log, record, RECORD_HEADER, lsn)
    return lsn + RECORD_HEADER


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _release_name(ml: cython.pointer(message_log_t), tx: uint64_t) -> cython.void:
    room: uint32_t
    released: cython.pointer(uint64_t)
    if ml.released_count == ml.released_room:
        room = ml.released_room * 2 if ml.released_room else 64
        released = cython.cast(cython.pointer(uint64_t), realloc(ml.released, room * cython.sizeof(uint64_t)))
        if released == cython.NULL:
            return  # the transaction's record stays until the next restart: space, not safety
        ml.released = released
        ml.released_room = room
    ml.released[ml.released_count] = tx
    at_store32(cython.address(ml.released_count), ml.released_count + 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _release_names(ml: cython.pointer(message_log_t), message: cython.pointer(message_t)) -> cython.void:
    """A dead message names its transactions no longer: they are told later, by who holds the GIL."""
    i: uint32_t
    for i in range(message.named_count):
        _release_name(ml, message.named[i])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _ended(ml: cython.pointer(message_log_t), message_id: uint64_t, message: cython.pointer(message_t), by: uint64_t) -> cython.void:
    """The message's life is over, by the record before LSN `by` (I3). `message`: its list entry or NULL."""
    log_dead(ml.log, log_where(ml.log, message_id), by)
    if ml.log.moved.count:
        map64_remove(cython.address(ml.log.moved), message_id)
    if message != cython.NULL:
        _release_names(ml, message)
        list_forget(cython.address(ml.messages), message)
    at_add64(cython.address(ml.deaths), 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _new_message(ml: cython.pointer(message_log_t), content: cython.pointer(content_t), listed: cython.bint, holds: uint32_t) -> uint64_t:
    """Writes the content; with `listed`, or when it is long, an entry in the message list. Log lock held. Its id, or LSN_NEVER."""
    message: cython.pointer(message_t)
    long_: cython.bint = content_total(content) > ml.split_above
    message_id: uint64_t = _write_content(ml.log, RECORD_START, ml.split_above, ENQUEUE_MOST, content)
    if message_id == LSN_NEVER:
        return LSN_NEVER
    if listed or long_:
        message = list_new(cython.address(ml.messages), message_id)
        if message == cython.NULL:
            log_dead(ml.log, message_id, _write_delete(ml.log, message_id))
            return LSN_NEVER
        message.holds = holds
    content.message_id = message_id
    return message_id


# --- ports of the message path ------------------------------------------------------------------------------------------------


def ml_enqueue(context, queue, position, slot, expires_at_ms):
    ml: cython.pointer(message_log_t) = _ml(context)
    content: cython.pointer(content_t) = slot.content
    message: cython.pointer(message_t)
    lsn: uint64_t = LSN_NEVER
    shared: cython.bint = content.flags & CONTENT_SHARED != 0
    message_id: uint64_t
    log_begin(ml.log)
    message_id = content.message_id
    if message_id == 0 or not shared:
        message_id = _new_message(ml, content, shared, 1 if shared else 0)
    if message_id != LSN_NEVER:
        slot.message_id = message_id
        message = list_find(cython.address(ml.messages), message_id)
        if message == cython.NULL or message_add(message, queue.id, position, expires_at_ms) != cython.NULL:
            lsn = _write_enqueue(ml.log, message_id, queue.id, position, expires_at_ms, 0)
            at_store64(cython.address(queue.logged_at), lsn)
    log_end(ml.log)
    return lsn


def ml_dequeue(context, queue, position, slot, owner, reason, delivered_us):
    return ml_dequeue_plain(
        _ml(context),
        queue.id,
        position,
        slot.message_id,
        owner,
        reason,
        delivered_us,
        cython.cast(uint32_t, (at_load64(cython.address(slot.state)) >> ENTRY_COUNT_SHIFT) & 0xFFFF),
    )


def ml_dequeue_plain(ml, queue_id, position, message_id, owner, reason, delivered_us, delivery_count):
    lsn: uint64_t
    location: cython.pointer(location_t)
    message: cython.pointer(message_t)
    last: cython.bint = True
    if message_id == 0:
        return LSN_NEVER  # its enqueue found a failed log
    log_begin(ml.log)
    message = list_find(cython.address(ml.messages), message_id)
    if message != cython.NULL:
        location = message_find(message, queue_id, position)
        if location == cython.NULL or location.dequeued_by:
            log_end(ml.log)
            return 0
        message_drop(message, location)
        last = message.count == 0 and message.holds == 0
    lsn = _write_dequeue(ml.log, message_id, queue_id, position, owner, reason, delivered_us, delivery_count, 0, last)
    if last:
        _ended(ml, message_id, message, lsn)
    log_end(ml.log)
    return lsn


def ml_placed(context, content):
    ml: cython.pointer(message_log_t) = _ml(context)
    message: cython.pointer(message_t)
    log_begin(ml.log)
    message = list_find(cython.address(ml.messages), content.message_id)
    if message != cython.NULL and message.holds:
        message.holds = 0
        if message.count == 0:
            _ended(ml, message.id, message, _write_delete(ml.log, message.id))
    log_end(ml.log)


def ml_spill(context, content):
    ml: cython.pointer(message_log_t) = _ml(context)
    lsn: uint64_t
    if ml.pages == cython.NULL or at_load32(cython.address(ml.disk_low)):
        return 0
    log_begin(ml.pages)
    lsn = _write_content(ml.pages, RECORD_PAGE_CONTENT, ml.split_above, 0, content)
    log_end(ml.pages)
    if lsn == LSN_NEVER:
        return 0
    return lsn | cython.cast(uint64_t, 1) << MESSAGE_SPILLED_BIT


def ml_unspill(context, message_id):
    ml: cython.pointer(message_log_t) = _ml(context)
    log_begin(ml.pages)
    log_dead(ml.pages, message_id & ~(cython.cast(uint64_t, 1) << MESSAGE_SPILLED_BIT), 0)
    log_end(ml.pages)


def ml_durable_lsn(context):
    return at_load64(cython.address(_ml(context).log.durable))


def ml_kick(context):
    writer_kick(_ml(context).writer)


def ml_pressure(context):
    ml: cython.pointer(message_log_t) = _ml(context)
    if at_load32(cython.address(ml.disk_low)):
        return PRESSURE_DISK
    if at_load32(cython.address(ml.log.buffers)) > ml.buffers_max:
        return PRESSURE_BUFFERS
    return PRESSURE_NONE


# --- the store's own calls ----------------------------------------------------------------------------------------------------


def ml_write_content(ml, content):
    message_id: uint64_t
    log_begin(ml.log)
    message_id = _new_message(ml, content, True, 1)
    log_end(ml.log)
    return message_id


def ml_enqueue_plain(ml, queue_id, position, message_id, expires_at_ms):
    lsn: uint64_t = 0
    message: cython.pointer(message_t)
    log_begin(ml.log)
    message = list_find(cython.address(ml.messages), message_id)
    if message != cython.NULL and message_find(message, queue_id, position) == cython.NULL:
        message.holds = 0
        if message_add(message, queue_id, position, expires_at_ms) != cython.NULL:
            lsn = _write_enqueue(ml.log, message_id, queue_id, position, expires_at_ms, 0)
    log_end(ml.log)
    return lsn


def ml_enqueue_tx(ml, tx, queue_id, position, slot, content, message_id, expires_at_ms):
    lsn: uint64_t = LSN_NEVER
    message: cython.pointer(message_t)
    location: cython.pointer(location_t)
    log_begin(ml.log)
    if message_id[0] == 0:
        message_id[0] = content.message_id
        if message_id[0] == 0:
            message_id[0] = _new_message(ml, content, True, 0)
    message = cython.NULL
    if message_id[0] != LSN_NEVER:
        message = list_find(cython.address(ml.messages), message_id[0])
    if message != cython.NULL:
        location = message_add(message, queue_id, position, expires_at_ms)
        if location != cython.NULL:
            message.holds = 0
            location.enqueued_by = tx
            message_name(message, tx)
            if slot != cython.NULL:
                slot.message_id = message_id[0]
            lsn = _write_enqueue(ml.log, message_id[0], queue_id, position, expires_at_ms, tx)
    log_end(ml.log)
    return lsn


def ml_dequeue_tx(ml, tx, queue_id, position, message_id, owner, reason, delivered_us, delivery_count):
    lsn: uint64_t = 0
    message: cython.pointer(message_t)
    location: cython.pointer(location_t)
    log_begin(ml.log)
    message = list_find(cython.address(ml.messages), message_id)
    if message == cython.NULL:
        # It had one plain place: the caller's. From now on it is listed.
        message = list_new(cython.address(ml.messages), message_id)
        if message != cython.NULL:
            message_add(message, queue_id, position, 0)
    location = cython.NULL
    if message != cython.NULL:
        location = message_find(message, queue_id, position)
    if location != cython.NULL and location.dequeued_by == 0:
        location.dequeued_by = tx
        message_name(message, tx)
        lsn = _write_dequeue(ml.log, message_id, queue_id, position, owner, reason, delivered_us, delivery_count, tx, False)
    log_end(ml.log)
    return lsn


def ml_give_position(ml, tx, message_id, queue_id, position):
    message: cython.pointer(message_t)
    i: uint32_t
    given: cython.bint = False
    log_begin(ml.log)
    message = list_find(cython.address(ml.messages), message_id)
    if message != cython.NULL:
        for i in range(message.count):
            if message.locations[i].enqueued_by == tx and message.locations[i].queue_id == queue_id and message.locations[i].position == 0:
                message.locations[i].position = position
                given = True
                break
    log_end(ml.log)
    return given


def ml_settle_tx(ml, tx, message_id, committed):
    message: cython.pointer(message_t)
    i: uint32_t = 0
    dead: cython.bint = False
    location: cython.pointer(location_t)
    log_begin(ml.log)
    message = list_find(cython.address(ml.messages), message_id)
    if message != cython.NULL:
        while i < message.count:
            location = cython.address(message.locations[i])
            if (location.dequeued_by == tx and committed) or (location.enqueued_by == tx and not committed):
                message_drop(message, location)
                continue
            if location.dequeued_by == tx:
                location.dequeued_by = 0
            if location.enqueued_by == tx:
                location.enqueued_by = 0
            i += 1
        dead = message.count == 0 and message.holds == 0
        if dead:
            _ended(ml, message_id, message, _write_delete(ml.log, message_id))
    log_end(ml.log)
    return dead


def ml_find_listed(ml, queue_id, position):
    cursor: uint64_t = 0
    key: uint64_t = 0
    word: uint64_t = 0
    found: uint64_t = 0
    message: cython.pointer(message_t)
    log_begin(ml.log)
    while found == 0 and map64_next(cython.address(ml.messages), cython.address(cursor), cython.address(key), cython.address(word)):
        message = cython.cast(cython.pointer(message_t), cython.cast(cython.p_void, word))
        if message_find(message, queue_id, position) != cython.NULL:
            found = key
    log_end(ml.log)
    return found


# --- copy-forward -------------------------------------------------------------------------------------------------------------


def ml_copy(ml, content, message_id, at, plain):
    message: cython.pointer(message_t)
    places: cython.pointer(location_t) = plain
    count: uint32_t = 1
    i: uint32_t
    fixed: uint32_t
    total: uint32_t = content_total(content)
    piece: uint32_t
    offset: uint32_t
    room: uint32_t
    length: uint32_t
    size: uint64_t
    first: uint64_t = 0
    lsn: uint64_t = 0
    record: cython.pointer(uint8_t)
    own: cython.pointer(uint8_t)
    log_begin(ml.log)
    if not log_is_live(ml.log, at) or log_where(ml.log, message_id) != at:
        log_end(ml.log)
        return 0
    message = list_find(cython.address(ml.messages), message_id)
    if message != cython.NULL:
        places = message.locations
        count = message.count
    fixed = RECORD_HEADER + 8 + count * PLACE_SIZE + CONTENT_FIXED
    room = log_room(ml.log, min(fixed + min(total, ml.split_above), cython.cast(uint32_t, ml.log.buffer_size - 1024)))
    if (places == cython.NULL and count) or room < fixed + 64:
        log_end(ml.log)
        return 0
    piece = total if total <= ml.split_above else min(min(total, PIECE_MAX), room - fixed)
    length = fixed + piece
    record = log_append(ml.log, length, cython.address(first))
    if record == cython.NULL:
        log_end(ml.log)
        return 0
    own = record_encode(record, length, RECORD_COPY, 0, 0, log_time(ml.log), message_id, 0, 0)
    set32(own, count)
    set32(own + 4, 0)
    own += 8
    for i in range(count):
        set64(own, places[i].queue_id)
        set64(own + 8, places[i].position)
        set64(own + 16, cython.cast(uint64_t, places[i].expires_at_ms))
        set64(own + 24, places[i].enqueued_by)
        set64(own + 32, places[i].dequeued_by)
        own += PLACE_SIZE
    set32(own, content.body_len)
    set32(own + 4, content.header_len)
    set16(own + 8, content.route_len)
    own[10] = content.flags
    own[11] = content.priority
    set32(own + 12, piece)
    _copy_out(content, 0, piece, own + CONTENT_FIXED)
    log_append_done(ml.log, record, length, first)
    size = align8(length) + total - piece
    offset = piece
    # One lock for all of it: the message must not change between its copy and the copy's last chunk.
    while offset < total:
        room = log_room(ml.log, ml.split_above // 4)
        if room < RECORD_HEADER + 4 + 64:
            log_end(ml.log)
            return 0
        piece = min(min(total - offset, PIECE_MAX), room - RECORD_HEADER - 4)
        length = RECORD_HEADER + 4 + piece
        record = log_append(ml.log, length, cython.address(lsn))
        if record == cython.NULL:
            log_end(ml.log)
            return 0
        own = record_encode(record, length, RECORD_CHUNK, 0, 0, log_time(ml.log), message_id, 0, 0)
        set32(own, offset)
        _copy_out(content, offset, piece, own + 4)
        log_append_done(ml.log, record, length, lsn)
        offset += piece
    if map64_put(cython.address(ml.log.moved), message_id, first):
        log_live(ml.log, first, size)
        log_dead(ml.log, at, ml.log.tail)
        ml.log.copied += size
        if message != cython.NULL:
            _release_decided(ml, message)
    else:
        size = 0
    log_end(ml.log)
    return size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _release_decided(ml: cython.pointer(message_log_t), message: cython.pointer(message_t)) -> cython.void:
    """After its copy a message names only the transactions that are still open in it."""
    i: uint32_t
    j: uint32_t
    kept: uint32_t = 0
    open_: cython.bint
    tx: uint64_t
    for i in range(message.named_count):
        tx = message.named[i]
        open_ = False
        for j in range(message.count):
            open_ = open_ or message.locations[j].enqueued_by == tx or message.locations[j].dequeued_by == tx
        if open_:
            message.named[kept] = tx
            kept += 1
        else:
            _release_name(ml, tx)
    message.named_count = kept
