"""Copy-forward of one message (see message_copy.pxd).

in: a live message and its content. out: Message-Copy at the tail; from then on its id resolves there.

I1  A copy stands behind what it replaces, and lives from the step on in which that dies.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.hash64 import map64_put
from cython.cimports.flintmq.store.log.log import (
    PIECE_MAX, content_copy_out, content_total, log_append, log_append_done, log_begin, log_dead, log_end, log_live, log_may_copy, log_room,
    log_time, log_where,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import (
    CONTENT_FIXED, COPY_PUBLISHED, PLACE_SIZE, RECORD_CHUNK, RECORD_COPY, RECORD_HEADER, align8, record_encode, set16, set32, set64,
)  # fmt: skip
from cython.cimports.flintmq.store.message_log import PLACE_FREED, list_find, location_t, message_log_t, message_t, ml_release_name
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t

# bytes of content that the first record of a copy has room for at least
LEAST_PIECE = declare(uint32_t, 64)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_places(own: pointer[uint8_t], places: pointer[location_t], count: uint32_t, published_us: uint64_t) -> pointer[uint8_t]:
    """What a Message-Copy has before its content: the places of the message, and when it was published. Returns what is behind it."""
    i: uint32_t
    set32(own, count)
    set32(own + 4, COPY_PUBLISHED if published_us else 0)
    own += 8
    for i in range(count):
        set64(own, places[i].queue_id)
        set64(own + 8, places[i].position)
        set64(own + 16, cast(uint64_t, places[i].expires_at_ms))
        set64(own + 24, places[i].enqueued_by)
        set64(own + 32, places[i].dequeued_by & ~PLACE_FREED)
        own += PLACE_SIZE
    if published_us:
        set64(own, published_us)
        own += 8
    return own


@cfunc
@nogil
@exceptval(check=False)
def _put_chunks(ml: pointer[message_log_t], content: pointer[content_t], message_id: uint64_t, offset: uint32_t) -> bint:
    """The content from `offset` on, which a Message-Copy had no room for. False: the log has none."""
    total: uint32_t = content_total(content)
    piece: uint32_t
    room: uint32_t
    length: uint32_t
    lsn: uint64_t = 0
    record: pointer[uint8_t]
    own: pointer[uint8_t]
    while offset < total:
        room = log_room(ml.log, ml.split_above // 4)
        if room < RECORD_HEADER + 4 + 64:
            return False
        piece = min(min(total - offset, PIECE_MAX), room - RECORD_HEADER - 4)
        length = RECORD_HEADER + 4 + piece
        record = log_append(ml.log, length, address(lsn))
        if record == NULL:
            return False
        own = record_encode(record, length, RECORD_CHUNK, 0, 0, log_time(ml.log), message_id, 0, 0)
        set32(own, offset)
        content_copy_out(content, offset, piece, own + 4)
        log_append_done(ml.log, record, length, lsn)
        offset += piece
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _learn_expiry(places: pointer[location_t], count: uint32_t, plain: pointer[location_t]) -> void:
    """A place that a transaction listed does not know when its entry expires; the queue says it."""
    i: uint32_t
    for i in range(count):
        if places[i].queue_id == plain.queue_id and places[i].position == plain.position and places[i].expires_at_ms == 0:
            places[i].expires_at_ms = plain.expires_at_ms


def ml_copy(
    ml: pointer[message_log_t],
    content: pointer[content_t],
    message_id: uint64_t,
    to_lsn: uint64_t,
    plain: pointer[location_t],
    published_us: uint64_t,
) -> uint64_t:
    message: pointer[message_t]
    places: pointer[location_t] = plain
    count: uint32_t = 1
    fixed: uint32_t
    total: uint32_t = content_total(content)
    piece: uint32_t
    room: uint32_t
    length: uint32_t
    size: uint64_t
    first: uint64_t = 0
    record: pointer[uint8_t]
    own: pointer[uint8_t]
    log_begin(ml.log)
    if not log_may_copy(ml.log, to_lsn) or log_where(ml.log, message_id) != to_lsn:
        log_end(ml.log)
        return 0
    message = list_find(address(ml.messages), message_id)
    if message != NULL:
        places = message.locations
        count = message.count
        if plain != NULL:
            _learn_expiry(places, count, plain)
    fixed = RECORD_HEADER + 8 + count * PLACE_SIZE + (8 if published_us else 0) + CONTENT_FIXED
    room = log_room(ml.log, min(fixed + max(min(total, ml.split_above), LEAST_PIECE), cast(uint32_t, ml.log.buffer_size - 1024)))
    if (places == NULL and count) or room < fixed + LEAST_PIECE:
        log_end(ml.log)
        return 0
    piece = total if total <= ml.split_above else min(min(total, PIECE_MAX), room - fixed)
    length = fixed + piece
    record = log_append(ml.log, length, address(first))
    if record == NULL:
        log_end(ml.log)
        return 0
    own = record_encode(record, length, RECORD_COPY, 0, 0, log_time(ml.log), message_id, 0, 0)
    own = _put_places(own, places, count, published_us)
    set32(own, content.body_len)
    set32(own + 4, content.header_len)
    set16(own + 8, content.route_len)
    own[10] = content.flags
    own[11] = content.priority
    set32(own + 12, piece)
    content_copy_out(content, 0, piece, own + CONTENT_FIXED)
    log_append_done(ml.log, record, length, first)
    size = align8(length) + total - piece
    # One lock for all of it: the message must not change between its copy and the copy's last chunk.
    if not _put_chunks(ml, content, message_id, piece):
        log_end(ml.log)
        return 0
    if map64_put(address(ml.log.moved), message_id, first):
        check(first > to_lsn, b"message_copy I1 a copy stands behind the original", first, to_lsn)
        log_live(ml.log, first, size)
        log_dead(ml.log, to_lsn, ml.log.tail)
        ml.log.copied += size
        if message != NULL:
            _release_decided(ml, message)
    else:
        size = 0
    log_end(ml.log)
    return size


@cfunc
@nogil
@exceptval(check=False)
def _release_decided(ml: pointer[message_log_t], message: pointer[message_t]) -> void:
    """After its copy a message names only the transactions that are still open in it."""
    i: uint32_t
    j: uint32_t
    kept: uint32_t = 0
    open_: bint
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
    check(kept <= message.named_count, b"message_copy I1 a copy names no more transactions", kept, message.named_count)
    message.named_count = kept
