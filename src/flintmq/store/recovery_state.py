"""What recovery knows while it reads the message log: arrays of messages, places, transactions and queues (see recovery_state.pxd).

in: ids and LSNs from recovery_read.py. out: entries to fill in.

I1  `seen` ascends by LSN. A message is found by its id without a hash: `grains` says where each 4 KiB of the log begins in `seen`.
    Only messages whose id is not their LSN (copied, or missing) are in a hash table.

I2  The position of an enqueue that waits for its Commit is told from that enqueue's record (or its Message-Copy) and the Commit alone:
    its running number, counted over the Commit's rows of the queue. No other record has to be there.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_init, map64_put
from cython.cimports.flintmq.store.log.record import position_number, position_waits
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memset

GRAIN_SHIFT = cython.declare(uint32_t, 12)
# numbers are 32 bits and stored plus one
NUMBERS_MAX = cython.declare(uint64_t, 0xFFFFFFF0)
NEVER = cython.declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


def vector_add(vector, size):
    room: uint64_t
    data: cython.p_char
    if vector.count == vector.room:
        room = vector.room + vector.room // 2 if vector.room else 64
        if room > NUMBERS_MAX:
            return cython.NULL
        data = cython.cast(cython.p_char, realloc(vector.data, room * size))
        if data == cython.NULL:
            return cython.NULL
        vector.data = data
        vector.room = room
    data = cython.cast(cython.p_char, vector.data) + vector.count * size
    memset(data, 0, size)
    vector.count += 1
    return data


def work_init(work):
    memset(work, 0, cython.sizeof(work_t))
    map64_init(cython.address(work.moved_index))


def work_free(work):
    i: uint64_t
    for i in range(work.queues.count):
        free(queue_at(work, cython.cast(uint32_t, i)).levels)
    work_trim(work)
    free(work.seen.data)
    free(work.queues.data)
    map64_free(cython.address(work.queue_index))
    memset(work, 0, cython.sizeof(work_t))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _vector_free(vector: cython.pointer(vector_t)) -> cython.void:
    free(vector.data)
    vector.data = cython.NULL
    vector.count = 0
    vector.room = 0


def work_trim(work):
    _vector_free(cython.address(work.gaps))
    _vector_free(cython.address(work.grains))
    _vector_free(cython.address(work.moved))
    _vector_free(cython.address(work.extras))
    _vector_free(cython.address(work.places))
    _vector_free(cython.address(work.names))
    _vector_free(cython.address(work.txs))
    _vector_free(cython.address(work.rows))
    _vector_free(cython.address(work.ranges))
    _vector_free(cython.address(work.purges))
    _vector_free(cython.address(work.lost))
    map64_free(cython.address(work.moved_index))
    map64_free(cython.address(work.expiries))
    map64_free(cython.address(work.tx_index))


# --- queues and transactions --------------------------------------------------------------------------------------------------


def work_queue(work, queue_id):
    number: uint64_t = 0
    info: cython.pointer(queue_info_t)
    if work.last_queue and queue_at(work, work.last_queue - 1).id == queue_id:
        return work.last_queue - 1
    if not map64_get(cython.address(work.queue_index), queue_id + 1, cython.address(number)):
        number = work.queues.count
        info = cython.cast(cython.pointer(queue_info_t), vector_add(cython.address(work.queues), cython.sizeof(queue_info_t)))
        if info == cython.NULL or not map64_put(cython.address(work.queue_index), queue_id + 1, number):
            work.failed = True
            return -1
        info.id = queue_id
    work.last_queue = cython.cast(uint32_t, number) + 1
    return number


def work_used(work, queue, position):
    info: cython.pointer(queue_info_t) = queue_at(work, queue)
    level: uint64_t = position >> LEVEL_SHIFT
    index: uint64_t = position & INDEX_MASK
    if position_waits(position):
        return
    if level and info.levels == cython.NULL:
        info.levels = cython.cast(cython.pointer(uint64_t), calloc(256, 8))
        if info.levels == cython.NULL:
            work.failed = True
            return
    if level == 0:
        if info.high[0] < index:
            info.high[0] = index
    elif info.levels[level] < index:
        info.levels[level] = index


def work_gap(work, lsn):
    gap: cython.pointer(gap_t) = cython.cast(cython.pointer(gap_t), vector_add(cython.address(work.gaps), cython.sizeof(gap_t)))
    if gap == cython.NULL:
        work.failed = True
        return
    gap.first = lsn
    gap.end = NEVER


def work_gap_end(work, lsn):
    last: cython.pointer(gap_t)
    if work.gaps.count:
        last = cython.cast(cython.pointer(gap_t), work.gaps.data) + work.gaps.count - 1
        if last.end == NEVER:
            last.end = lsn


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _in_gap(work: cython.pointer(work_t), tx: uint64_t) -> cython.bint:
    i: uint64_t
    gap: cython.pointer(gap_t) = cython.cast(cython.pointer(gap_t), work.gaps.data)
    for i in range(work.gaps.count):
        if gap[i].first <= tx and tx < gap[i].end:
            return True
    return False


def work_tx(work, tx):
    number: uint64_t = 0
    info: cython.pointer(tx_info_t)
    if tx > work.tx_named_max:
        work.tx_named_max = tx
    if not map64_get(cython.address(work.tx_index), tx, cython.address(number)):
        number = work.txs.count
        info = cython.cast(cython.pointer(tx_info_t), vector_add(cython.address(work.txs), cython.sizeof(tx_info_t)))
        if info == cython.NULL or not map64_put(cython.address(work.tx_index), tx, number):
            work.failed = True
            return cython.NULL
        info.id = tx
        # The message log is synced first: a transaction behind the end of its log was never durable, so it never committed. Nor was one
        # that was behind an earlier end: the start that saw it may have been cut short before it had logged that.
        info.lost_start = tx >= work.tx_tail or _in_gap(work, tx)
        info.state = ENQUEUE_OPEN if info.lost_start else ENQUEUE_UNKNOWN
    return cython.cast(cython.pointer(tx_info_t), work.txs.data) + number


# --- messages -----------------------------------------------------------------------------------------------------------------


def seen_find(work, message_id):
    """Number of the message's entry; -1: none is known (I1)."""
    number: uint64_t = 0
    grain: uint64_t
    low: uint64_t
    high: uint64_t
    middle: uint64_t
    grains: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), work.grains.data)
    if work.seen.count == 0 or message_id == 0:
        return -1
    if work.moved_index.count and map64_get(cython.address(work.moved_index), message_id, cython.address(number)):
        return number
    if seen_at(work, work.seen.count - 1).lsn == message_id:
        return work.seen.count - 1
    if message_id < work.origin:
        return -1
    grain = (message_id - work.origin) >> GRAIN_SHIFT
    if grain >= work.grains.count:
        return -1
    low = grains[grain]
    high = grains[grain + 1] if grain + 1 < work.grains.count else work.seen.count
    while low < high:
        middle = (low + high) // 2
        if seen_at(work, middle).lsn < message_id:
            low = middle + 1
        else:
            high = middle
    if low < work.seen.count and seen_at(work, low).lsn == message_id:
        return low
    return -1


def seen_append(work, lsn):
    """A new entry at this LSN, which is higher than that of every other; -1: no memory."""
    entry: cython.pointer(seen_t)
    grain: cython.pointer(uint32_t)
    upto: uint64_t
    if work.seen.count == 0:
        work.origin = lsn >> GRAIN_SHIFT << GRAIN_SHIFT
    entry = cython.cast(cython.pointer(seen_t), vector_add(cython.address(work.seen), cython.sizeof(seen_t)))
    if entry == cython.NULL:
        work.failed = True
        return -1
    entry.lsn = lsn
    upto = (lsn - work.origin) >> GRAIN_SHIFT
    while work.grains.count <= upto:
        grain = cython.cast(cython.pointer(uint32_t), vector_add(cython.address(work.grains), 4))
        if grain == cython.NULL:
            work.failed = True
            return -1
        grain[0] = cython.cast(uint32_t, work.seen.count - 1)
    return work.seen.count - 1


def seen_append_moved(work, lsn, message_id):
    """A new entry whose id is not its LSN."""
    index: int64_t = seen_append(work, lsn)
    moved: cython.pointer(moved_t)
    if index < 0:
        return -1
    moved = cython.cast(cython.pointer(moved_t), vector_add(cython.address(work.moved), cython.sizeof(moved_t)))
    if moved == cython.NULL or not map64_put(cython.address(work.moved_index), message_id, index):
        work.failed = True
        return -1
    moved.index = index
    moved.id = message_id
    seen_at(work, index).flags = SEEN_MOVED
    return index


def seen_add_place(work, entry, queue, position, expires_at_ms):
    """One more place of an entry that has its extra_t; NULL: no memory."""
    extra: cython.pointer(extra_t) = extra_of(work, entry)
    place: cython.pointer(seen_place_t) = cython.cast(
        cython.pointer(seen_place_t), vector_add(cython.address(work.places), cython.sizeof(seen_place_t))
    )
    number: uint32_t = cython.cast(uint32_t, work.places.count)
    if place == cython.NULL:
        work.failed = True
        return cython.NULL
    place.queue = queue
    place.position = position
    place.expires_at_ms = expires_at_ms
    if extra.last:
        place_at(work, extra.last).next = number
    else:
        extra.first = number
    extra.last = number
    return place


def seen_need_extra(work, index):
    """The entry's extra_t, made (with its plain place) when it has none; NULL: no memory."""
    entry: cython.pointer(seen_t) = seen_at(work, index)
    extra: cython.pointer(extra_t)
    place: cython.pointer(seen_place_t)
    position: uint64_t = entry.word
    expires: uint64_t = 0
    if entry.flags & SEEN_EXTRA:
        return extra_of(work, entry)
    extra = cython.cast(cython.pointer(extra_t), vector_add(cython.address(work.extras), cython.sizeof(extra_t)))
    if extra == cython.NULL:
        work.failed = True
        return cython.NULL
    entry.word = work.extras.count - 1
    if entry.flags & SEEN_PLACE:
        if entry.flags & SEEN_EXPIRES:
            map64_get(cython.address(work.expiries), index + 1, cython.address(expires))
        place = seen_add_place(work, entry, entry.queue, position, cython.cast(int64_t, expires))
        if place == cython.NULL:
            return cython.NULL
        if entry.flags & SEEN_GONE:
            place.dequeue = DEQUEUE_PLAIN
    entry.flags = entry.flags & ~cython.cast(uint32_t, SEEN_PLACE | SEEN_GONE | SEEN_EXPIRES) | SEEN_EXTRA
    return extra_of(work, entry)


def seen_name(work, extra, tx):
    """Notes that a record of the message names the transaction."""
    number: uint32_t = extra.names
    node: cython.pointer(name_node_t)
    nodes: cython.pointer(name_node_t) = cython.cast(cython.pointer(name_node_t), work.names.data)
    while number:
        if nodes[number - 1].tx == tx:
            return
        number = nodes[number - 1].next
    node = cython.cast(cython.pointer(name_node_t), vector_add(cython.address(work.names), cython.sizeof(name_node_t)))
    if node == cython.NULL:
        work.failed = True
        return
    node.tx = tx
    node.next = extra.names
    extra.names = cython.cast(uint32_t, work.names.count)


def place_position(work, place):
    row: cython.pointer(row_t)
    at: uint64_t
    number: uint32_t = place.row
    if not position_waits(place.position) or place.enqueue != ENQUEUE_COMMITTED:
        return place.position
    at = position_number(place.position)
    while number:
        row = row_at(work, number - 1)
        if at < row.count:
            return row.first + at if row.first else 0
        at -= row.count
        number = row.more
    return 0


def row_of(work, info, queue_id):
    """Number + 1 of the Commit's row of this queue; 0 when there is none."""
    i: uint32_t
    if info.state == ENQUEUE_COMMITTED:
        for i in range(info.first_row, info.first_row + info.row_count):
            if row_at(work, i).queue_id == queue_id:
                return i + 1
    return 0
