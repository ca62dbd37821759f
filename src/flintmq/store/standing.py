"""Places of messages, the message list and the table of copies, read in pieces while the log goes on (see standing.pxd).

in: the message log in use. out: entries whose places stand; rows of the message list; ids and LSNs.

N1  A walk in pieces meets each message that is listed from its beginning to its end; one that comes or goes meanwhile may be met.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, p_void, pointer, void
from cython.cimports.flintmq.core.hash64 import map64_cell_t, map64_slice, map64_t
from cython.cimports.flintmq.queue.types import RESTORED_LISTED, SWEPT_MAX, restored_t
from cython.cimports.flintmq.store.checkpoint_parts import LISTED_HEAD
from cython.cimports.flintmq.store.log.log import LSN_NEVER, log_begin, log_end, log_is_live, log_t, log_where
from cython.cimports.flintmq.store.log.record import PLACE_SIZE, le32, set32, set64
from cython.cimports.flintmq.store.message_log import LIST_MAPS, PLACE_FREED, list_find, location_t, message_find, message_log_t, message_t
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t

# cells of a map that are looked at under one hold of the lock
CELLS_LOOKED = declare(uint64_t, 4096)
# a walk cuts even a small map as finely as this, since the map may grow meanwhile
FINE_MASK = declare(uint64_t, (1 << 20) - 1)


@cfunc
@nogil
@exceptval(check=False)
def _stands(ml: pointer[message_log_t], queue_id: uint64_t, entry: pointer[restored_t]) -> bint:
    message: pointer[message_t] = list_find(address(ml.messages), entry.message_id)
    location: pointer[location_t]
    if message != NULL:
        location = message_find(message, queue_id, entry.position)
        # What a transaction puts there stands in the list alone until it has committed: it may roll back before the list is written down.
        entry.flags |= RESTORED_LISTED
        return location != NULL and location.enqueued_by == 0
    return log_is_live(ml.log, log_where(ml.log, entry.message_id))


def ml_standing(
    ml: pointer[message_log_t], queue_id: uint64_t, entries: pointer[restored_t], count: uint32_t, listed: pointer[uint32_t]
) -> uint32_t:
    i: uint32_t = 0
    end: uint32_t
    kept: uint32_t = 0
    listed[0] = 0
    while i < count:
        end = min(count, i + SWEPT_MAX)
        log_begin(ml.log)
        while i < end:
            if _stands(ml, queue_id, entries + i):
                entries[kept] = entries[i]
                listed[0] += 1 if entries[i].flags & RESTORED_LISTED else 0
                kept += 1
            i += 1
        log_end(ml.log)
    return kept


@cfunc
@nogil
@exceptval(check=False)
def _next_piece(walk: pointer[piece_walk_t], map_: pointer[map64_t], cells: pointer[map64_cell_t]) -> uint64_t:
    """The messages of the next piece; more than STANDING_CELLS: it can't be cut so finely. The lock of the map is held."""
    count: uint64_t
    if walk.first == 0:
        walk.mask = map_.mask if map_.mask > FINE_MASK else FINE_MASK
    walk.width = CELLS_LOOKED * (walk.mask + 1) // (map_.mask + 1)
    if walk.width > walk.mask + 1 - walk.first:
        walk.width = walk.mask + 1 - walk.first
    while True:
        count = map64_slice(map_, walk.mask, walk.first, walk.first + walk.width, cells, STANDING_CELLS)
        if count <= STANDING_CELLS or walk.width <= 1:
            return count
        walk.width //= 2


@cfunc
@nogil
@exceptval(check=False)
def _piece_done(walk: pointer[piece_walk_t]) -> void:
    walk.first += walk.width
    if walk.first > walk.mask:
        walk.first = 0
        walk.number += 1


def listed_size(row: pointer[cython.const[uint8_t]]) -> uint64_t:
    return LISTED_HEAD + cast(uint64_t, le32(row + 8)) * PLACE_SIZE + cast(uint64_t, le32(row + 12)) * 8


@cfunc
@nogil
@exceptval(check=False)
def _put_listed(message: pointer[message_t], out: pointer[uint8_t]) -> pointer[uint8_t]:
    """A row of the message list. Returns what is behind it."""
    i: uint32_t
    set64(out, message.id)
    set32(out + 8, message.count)
    set32(out + 12, message.named_count)
    out += LISTED_HEAD
    for i in range(message.count):
        set64(out, message.locations[i].queue_id)
        set64(out + 8, message.locations[i].position)
        set64(out + 16, cast(uint64_t, message.locations[i].expires_at_ms))
        set64(out + 24, message.locations[i].enqueued_by)
        set64(out + 32, message.locations[i].dequeued_by & ~PLACE_FREED)
        out += PLACE_SIZE
    for i in range(message.named_count):
        set64(out, message.named[i])
        out += 8
    return out


def ml_copy_listed(
    ml: pointer[message_log_t], walk: pointer[piece_walk_t], out: pointer[uint8_t], room: uint64_t, size: pointer[uint64_t]
) -> bint:
    cells: map64_cell_t[STANDING_CELLS]
    count: uint64_t
    i: uint64_t
    message: pointer[message_t]
    size[0] = 0
    if walk.number >= LIST_MAPS:
        return False
    log_begin(ml.log)
    count = _next_piece(walk, address(ml.messages.maps[walk.number]), cells)
    if count > STANDING_CELLS:
        size[0] = LSN_NEVER
    for i in range(min(count, cast(uint64_t, STANDING_CELLS))):
        message = cast(pointer[message_t], cast(p_void, cells[i].value))
        size[0] += LISTED_HEAD + cast(uint64_t, message.count) * PLACE_SIZE + cast(uint64_t, message.named_count) * 8
    if size[0] <= room:
        for i in range(count):
            out = _put_listed(cast(pointer[message_t], cast(p_void, cells[i].value)), out)
        _piece_done(walk)
    log_end(ml.log)
    return True


def log_copy_moved(log: pointer[log_t], walk: pointer[piece_walk_t], out: pointer[map64_cell_t], count: pointer[uint64_t]) -> bint:
    count[0] = 0
    if walk.number:
        return False
    log_begin(log)
    count[0] = _next_piece(walk, address(log.moved), out)
    _piece_done(walk)
    log_end(log)
    return True
