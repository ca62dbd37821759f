"""Copy-forward of one message (see message_copy.pxd).

in: a live message and its content. out: Message-Copy at the tail; from then on its id resolves there.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.hash64 import map64_put
from cython.cimports.flintmq.store.content_codec import PIECE_MAX, content_copy_out, content_total
from cython.cimports.flintmq.store.log.log import (
    log_append,
    log_append_done,
    log_begin,
    log_dead,
    log_end,
    log_is_live,
    log_live,
    log_room,
    log_time,
    log_where,
)
from cython.cimports.flintmq.store.log.record import (
    CONTENT_FIXED,
    COPY_PUBLISHED,
    PLACE_SIZE,
    RECORD_CHUNK,
    RECORD_COPY,
    RECORD_HEADER,
    align8,
    record_encode,
    set16,
    set32,
    set64,
)
from cython.cimports.flintmq.store.message_list import PLACE_FREED, list_find, location_t, message_t
from cython.cimports.flintmq.store.message_log import ml_release_name
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t

# bytes of content that the first record of a copy has room for at least
LEAST_PIECE = cython.declare(uint32_t, 64)


def ml_copy(ml, content, message_id, at, plain, published_us):
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
        if plain != cython.NULL:  # it was listed by a transaction, which does not know when it expires
            for i in range(count):
                if places[i].queue_id == plain.queue_id and places[i].position == plain.position and places[i].expires_at_ms == 0:
                    places[i].expires_at_ms = plain.expires_at_ms
    fixed = RECORD_HEADER + 8 + count * PLACE_SIZE + (8 if published_us else 0) + CONTENT_FIXED
    room = log_room(ml.log, min(fixed + max(min(total, ml.split_above), LEAST_PIECE), cython.cast(uint32_t, ml.log.buffer_size - 1024)))
    if (places == cython.NULL and count) or room < fixed + LEAST_PIECE:
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
    set32(own + 4, COPY_PUBLISHED if published_us else 0)
    own += 8
    for i in range(count):
        set64(own, places[i].queue_id)
        set64(own + 8, places[i].position)
        set64(own + 16, cython.cast(uint64_t, places[i].expires_at_ms))
        set64(own + 24, places[i].enqueued_by)
        set64(own + 32, places[i].dequeued_by & ~PLACE_FREED)
        own += PLACE_SIZE
    if published_us:
        set64(own, published_us)
        own += 8
    set32(own, content.body_len)
    set32(own + 4, content.header_len)
    set16(own + 8, content.route_len)
    own[10] = content.flags
    own[11] = content.priority
    set32(own + 12, piece)
    content_copy_out(content, 0, piece, own + CONTENT_FIXED)
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
        content_copy_out(content, offset, piece, own + 4)
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
            open_ = open_ or message.locations[j].enqueued_by == tx or message.locations[j].dequeued_by & ~PLACE_FREED == tx
        if open_:
            message.named[kept] = tx
            kept += 1
        else:
            ml_release_name(ml, tx)
    message.named_count = kept
