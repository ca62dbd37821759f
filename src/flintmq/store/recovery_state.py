"""Recovery's reading of the message log: records in LSN order become messages and their places (see recovery_state.pxd).

in: records of a scan, states of transactions. out: one entry per message, 32 bytes where it has one plain place; the outcome of every
place by the decision table.

I1  `seen` ascends by LSN. A message is found by its id without a hash: `grains` says where each 4 KiB of the log begins in `seen`.
    Only messages whose id is not their LSN (copied, or missing) are in a hash table.
I2  A later record of a message overrides an earlier one; a Message-Copy overrides all of them, but as the place of the content only
    once all its chunks were read.
I3  Nothing is decided while reading but what a transaction's final state says: the table decides at the end.

Positions that a Commit record gives are counted from the end of its rows: the base moves past whole prefixes of the log, so the
Message-Enqueue records that are still there, whatever became of their messages, are the last ones of their transaction.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_init, map64_put
from cython.cimports.flintmq.store.log.record import (
    CONTENT_FIXED,
    PLACE_SIZE,
    RECORD_CHUNK,
    RECORD_COPY,
    RECORD_DEQUEUE,
    RECORD_ENQUEUE,
    RECORD_LAST,
    RECORD_MESSAGE_DELETE,
    RECORD_NAME,
    RECORD_QUEUE_END,
    RECORD_QUEUE_MARK,
    RECORD_REDELIVERED,
    RECORD_START,
    align8,
    le16,
    le32,
    le64,
    record_t,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memset

# decisions.Enqueue and .Dequeue in C; tests/store/test_recovery.py compares them with the enumerations
ENQUEUE_PLAIN = cython.declare(uint8_t, 0)
ENQUEUE_COMMITTED = cython.declare(uint8_t, 1)
ENQUEUE_ROLLED_BACK = cython.declare(uint8_t, 2)
ENQUEUE_OPEN = cython.declare(uint8_t, 3)
ENQUEUE_UNKNOWN = cython.declare(uint8_t, 5)
DEQUEUE_PLAIN = cython.declare(uint8_t, 1)
CONTENT_PRESENT = cython.declare(uint32_t, 0)
CONTENT_BELOW_BASE = cython.declare(uint32_t, 1)
CONTENT_TORN = cython.declare(uint32_t, 2)
CONTENT_DAMAGED = cython.declare(uint32_t, 3)
OUTCOME_LIVE = cython.declare(uint8_t, 0)
OUTCOME_HELD = cython.declare(uint8_t, 1)
OUTCOME_PENDING = cython.declare(uint8_t, 2)
OUTCOME_LOST = cython.declare(uint8_t, 4)

GRAIN_SHIFT = cython.declare(uint32_t, 12)
LEVEL_SHIFT = cython.declare(uint32_t, 56)
INDEX_MASK = cython.declare(uint64_t, 0x00FFFFFFFFFFFFFF)
# no entry has this number
NOT_A_COPY = cython.declare(int64_t, 0x7FFFFFFFFFFFFFFF)
# numbers are 32 bits and stored plus one
NUMBERS_MAX = cython.declare(uint64_t, 0xFFFFFFF0)


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


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _seen(work: cython.pointer(work_t), index: uint64_t) -> cython.pointer(seen_t):
    return cython.cast(cython.pointer(seen_t), work.seen.data) + index


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _extra(work: cython.pointer(work_t), entry: cython.pointer(seen_t)) -> cython.pointer(extra_t):
    return cython.cast(cython.pointer(extra_t), work.extras.data) + entry.word


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _place(work: cython.pointer(work_t), number: uint32_t) -> cython.pointer(seen_place_t):
    return cython.cast(cython.pointer(seen_place_t), work.places.data) + (number - 1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _queue(work: cython.pointer(work_t), number: uint32_t) -> cython.pointer(queue_info_t):
    return cython.cast(cython.pointer(queue_info_t), work.queues.data) + number


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _row(work: cython.pointer(work_t), number: uint32_t) -> cython.pointer(row_t):
    return cython.cast(cython.pointer(row_t), work.rows.data) + number


def work_init(work):
    memset(work, 0, cython.sizeof(work_t))
    map64_init(cython.address(work.moved_index))


def work_free(work):
    i: uint64_t
    for i in range(work.queues.count):
        free(_queue(work, cython.cast(uint32_t, i)).levels)
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
    _vector_free(cython.address(work.grains))
    _vector_free(cython.address(work.moved))
    _vector_free(cython.address(work.extras))
    _vector_free(cython.address(work.places))
    _vector_free(cython.address(work.names))
    _vector_free(cython.address(work.txs))
    _vector_free(cython.address(work.rows))
    _vector_free(cython.address(work.ranges))
    _vector_free(cython.address(work.lost))
    map64_free(cython.address(work.moved_index))
    map64_free(cython.address(work.expiries))
    map64_free(cython.address(work.tx_index))


# --- queues and transactions --------------------------------------------------------------------------------------------------


def work_queue(work, queue_id):
    number: uint64_t = 0
    info: cython.pointer(queue_info_t)
    if work.last_queue and _queue(work, work.last_queue - 1).id == queue_id:
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
    info: cython.pointer(queue_info_t) = _queue(work, queue)
    level: uint64_t = position >> LEVEL_SHIFT
    index: uint64_t = position & INDEX_MASK
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
        # The message log is synced first: a transaction behind the end of its log was never durable, so it never committed.
        info.lost_start = tx >= work.tx_tail
        info.state = ENQUEUE_OPEN if info.lost_start else ENQUEUE_UNKNOWN
    return cython.cast(cython.pointer(tx_info_t), work.txs.data) + number


# --- messages -----------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find(work: cython.pointer(work_t), message_id: uint64_t) -> int64_t:
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
    if _seen(work, work.seen.count - 1).lsn == message_id:
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
        if _seen(work, middle).lsn < message_id:
            low = middle + 1
        else:
            high = middle
    if low < work.seen.count and _seen(work, low).lsn == message_id:
        return low
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append(work: cython.pointer(work_t), lsn: uint64_t) -> int64_t:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append_moved(work: cython.pointer(work_t), lsn: uint64_t, message_id: uint64_t) -> int64_t:
    """A new entry whose id is not its LSN."""
    index: int64_t = _append(work, lsn)
    moved: cython.pointer(moved_t)
    if index < 0:
        return -1
    moved = cython.cast(cython.pointer(moved_t), vector_add(cython.address(work.moved), cython.sizeof(moved_t)))
    if moved == cython.NULL or not map64_put(cython.address(work.moved_index), message_id, index):
        work.failed = True
        return -1
    moved.index = index
    moved.id = message_id
    _seen(work, index).flags = SEEN_MOVED
    return index


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_place(
    work: cython.pointer(work_t), entry: cython.pointer(seen_t), queue: uint32_t, position: uint64_t, expires_at_ms: int64_t
) -> cython.pointer(seen_place_t):
    """One more place of an entry that has its extra_t; NULL: no memory."""
    extra: cython.pointer(extra_t) = _extra(work, entry)
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
        _place(work, extra.last).next = number
    else:
        extra.first = number
    extra.last = number
    return place


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _need_extra(work: cython.pointer(work_t), index: uint64_t) -> cython.pointer(extra_t):
    """The entry's extra_t, made (with its plain place) when it has none; NULL: no memory."""
    entry: cython.pointer(seen_t) = _seen(work, index)
    extra: cython.pointer(extra_t)
    place: cython.pointer(seen_place_t)
    position: uint64_t = entry.word
    expires: uint64_t = 0
    if entry.flags & SEEN_EXTRA:
        return _extra(work, entry)
    extra = cython.cast(cython.pointer(extra_t), vector_add(cython.address(work.extras), cython.sizeof(extra_t)))
    if extra == cython.NULL:
        work.failed = True
        return cython.NULL
    entry.word = work.extras.count - 1
    if entry.flags & SEEN_PLACE:
        if entry.flags & SEEN_EXPIRES:
            map64_get(cython.address(work.expiries), index + 1, cython.address(expires))
        place = _add_place(work, entry, entry.queue, position, cython.cast(int64_t, expires))
        if place == cython.NULL:
            return cython.NULL
        if entry.flags & SEEN_GONE:
            place.dequeue = DEQUEUE_PLAIN
    entry.flags = entry.flags & ~cython.cast(uint32_t, SEEN_PLACE | SEEN_GONE | SEEN_EXPIRES) | SEEN_EXTRA
    return _extra(work, entry)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _name(work: cython.pointer(work_t), extra: cython.pointer(extra_t), tx: uint64_t) -> cython.void:
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
    first: cython.pointer(row_t)
    total: uint64_t = 0
    at: uint64_t
    if place.row == 0:
        return place.position
    first = row = _row(work, place.row - 1)
    while True:
        total += row.count
        if row.more == 0:
            break
        row = _row(work, row.more - 1)
    if first.seen + first.early > total:
        return 0
    at = total - first.seen + place.position
    if place.early:
        at -= first.early
    row = first
    while at >= row.count:
        if row.more == 0:
            return 0
        at -= row.count
        row = _row(work, row.more - 1)
    return row.first + at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _row_of(work: cython.pointer(work_t), info: cython.pointer(tx_info_t), queue_id: uint64_t) -> uint32_t:
    """Number + 1 of the Commit's row of this queue; 0 when there is none."""
    i: uint32_t
    if info.state == ENQUEUE_COMMITTED:
        for i in range(info.first_row, info.first_row + info.row_count):
            if _row(work, i).queue_id == queue_id:
                return i + 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _inherit(work: cython.pointer(work_t), older: int64_t, place: cython.pointer(seen_place_t)) -> cython.void:
    """A place without a position that a Message-Copy names: it keeps its number in the Commit's row when the message's older records
    were read; else it comes before all that were read, in the order of the copies (which are made in the order of the log)."""
    entry: cython.pointer(seen_t)
    former: cython.pointer(seen_place_t)
    row: cython.pointer(row_t)
    number: uint32_t
    if older >= 0 and _seen(work, older).flags & SEEN_EXTRA:
        entry = _seen(work, older)
        number = _extra(work, entry).first
        while number:
            former = _place(work, number)
            if former.queue == place.queue and former.enqueued_by == place.enqueued_by and former.row:
                place.row = former.row
                place.position = former.position
                place.early = former.early
                former.row = 0  # not for a second place of the same kind
                return
            number = former.next
    if place.row:
        row = _row(work, place.row - 1)
        place.position = row.early
        place.early = 1
        row.early += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _enlist(
    work: cython.pointer(work_t), index: uint64_t, queue: uint32_t, position: uint64_t, expires_at_ms: int64_t, tx: uint64_t, older: int64_t
) -> cython.pointer(seen_place_t):
    """A place of a message that needs the long form. tx 0: plain. older: of a Message-Copy's place: the entry that the copy replaces,
    or -1; else NOT_A_COPY."""
    extra: cython.pointer(extra_t) = _need_extra(work, index)
    place: cython.pointer(seen_place_t)
    info: cython.pointer(tx_info_t)
    if extra == cython.NULL:
        return cython.NULL
    if tx:
        _name(work, extra, tx)
    place = _add_place(work, _seen(work, index), queue, position, expires_at_ms)
    if place == cython.NULL or tx == 0:
        return place
    place.enqueued_by = tx
    info = work_tx(work, tx)
    if info == cython.NULL:
        return cython.NULL
    place.enqueue = cython.cast(uint8_t, info.state)
    if position == 0:
        place.row = _row_of(work, info, _queue(work, queue).id)
        if place.row and older < NOT_A_COPY:
            _inherit(work, older, place)
        elif place.row:
            place.position = _row(work, place.row - 1).seen
            _row(work, place.row - 1).seen += 1
    return place


# --- records ------------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _content(work: cython.pointer(work_t), index: int64_t, data: cython.pointer(cython.const[uint8_t]), size: uint32_t, length: uint32_t) -> cython.void:
    """Fills the entry in from the fields of a Message-Start (which a Message-Copy ends with); the caller checked them."""
    entry: cython.pointer(seen_t) = _seen(work, index)
    extra: cython.pointer(extra_t)
    total: uint64_t = cython.cast(uint64_t, le32(data)) + le32(data + 4) + le16(data + 8)
    piece: uint64_t = le32(data + 12)
    entry.body_len = le32(data)
    entry.bytes = cython.cast(uint32_t, align8(length))
    if piece < total:
        extra = _need_extra(work, index)
        if extra != cython.NULL:
            extra.total = cython.cast(uint32_t, total)
            extra.missing = cython.cast(uint32_t, total - piece)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _content_fits(data: cython.pointer(cython.const[uint8_t]), size: uint32_t) -> cython.bint:
    total: uint64_t
    if size < CONTENT_FIXED or le32(data + 12) != size - CONTENT_FIXED:
        return False
    total = cython.cast(uint64_t, le32(data)) + le32(data + 4) + le16(data + 8)
    return le32(data + 12) <= total and total >> 32 == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_start(work: cython.pointer(work_t), record: cython.pointer(record_t)) -> cython.void:
    index: int64_t
    if not _content_fits(record.data, record.size):
        work.malformed += 1
        return
    index = _append(work, record.lsn)
    if index >= 0:
        _content(work, index, record.data, record.size, record.length)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_chunk(work: cython.pointer(work_t), record: cython.pointer(record_t)) -> cython.void:
    index: int64_t = _find(work, record.undo_prev)
    entry: cython.pointer(seen_t)
    extra: cython.pointer(extra_t)
    if record.size < 4:
        work.malformed += 1
        return
    if index < 0:
        work.stray += 1
        return
    entry = _seen(work, index)
    if not entry.flags & SEEN_EXTRA:
        work.stray += 1
        return
    extra = _extra(work, entry)
    # After a chunk that is missing, the next one does not fit: the content stays incomplete.
    if record.size - 4 > extra.missing or le32(record.data) != extra.total - extra.missing:
        work.stray += 1
        return
    extra.missing -= record.size - 4
    entry.bytes += cython.cast(uint32_t, align8(record.length))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_enqueue(work: cython.pointer(work_t), record: cython.pointer(record_t)) -> cython.void:
    index: int64_t
    queue: int64_t
    entry: cython.pointer(seen_t)
    info: cython.pointer(tx_info_t)
    number: uint32_t
    position: uint64_t
    if record.size < 16:
        work.malformed += 1
        return
    queue = work_queue(work, le64(record.data))
    if queue < 0:
        return
    position = le64(record.data + 8)
    _queue(work, cython.cast(uint32_t, queue)).named += 1
    work_used(work, cython.cast(uint32_t, queue), position)
    index = _find(work, record.undo_prev)
    if index < 0:
        if record.undo_prev < work.base[0]:
            work.stray += 1
            if record.tx and position == 0:  # it counts in the Commit's row all the same
                info = work_tx(work, record.tx)
                if info != cython.NULL:
                    number = _row_of(work, info, le64(record.data))
                    if number:
                        _row(work, number - 1).seen += 1
            return
        index = _append_moved(work, record.lsn, record.undo_prev)
        if index < 0:
            return
        _seen(work, index).flags |= SEEN_MISSING
    entry = _seen(work, index)
    # The short form is for what the message log's own list leaves out: one plain place, its record right behind the Message-Start.
    if record.tx or entry.flags & (SEEN_EXTRA | SEEN_PLACE) or record.lsn != entry.lsn + entry.bytes:
        _enlist(work, index, cython.cast(uint32_t, queue), position, record.expires_at_ms, record.tx, NOT_A_COPY)
        return
    entry.word = position
    entry.queue = cython.cast(uint32_t, queue)
    entry.flags |= SEEN_PLACE
    if record.expires_at_ms:
        entry.flags |= SEEN_EXPIRES
        if not map64_put(cython.address(work.expiries), index + 1, cython.cast(uint64_t, record.expires_at_ms)):
            work.failed = True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_place(work: cython.pointer(work_t), entry: cython.pointer(seen_t), queue: uint32_t, position: uint64_t) -> cython.pointer(seen_place_t):
    """The place of an entry with an extra_t that a dequeue means: not taken yet, if there is such a one."""
    number: uint32_t = _extra(work, entry).first
    place: cython.pointer(seen_place_t)
    taken: cython.pointer(seen_place_t) = cython.NULL
    early: cython.pointer(seen_place_t) = cython.NULL
    while number:
        place = _place(work, number)
        if place.queue == queue and place_position(work, place) == position:
            if place.dequeue == 0:
                return place
            taken = place
        elif place.queue == queue and place.early and place.dequeue == 0:
            early = place
        number = place.next
    # Of an early place only the order is certain.
    return early if taken == cython.NULL else taken


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_dequeue(work: cython.pointer(work_t), record: cython.pointer(record_t)) -> cython.void:
    index: int64_t
    queue: int64_t
    entry: cython.pointer(seen_t)
    extra: cython.pointer(extra_t)
    place: cython.pointer(seen_place_t)
    info: cython.pointer(tx_info_t)
    position: uint64_t
    taken: cython.bint = record.tx == 0
    state: uint8_t = 0
    if record.size < 32:
        work.malformed += 1
        return
    queue = work_queue(work, le64(record.data))
    if queue < 0:
        return
    position = le64(record.data + 8)
    work_used(work, cython.cast(uint32_t, queue), position)
    index = _find(work, record.undo_prev)
    if record.tx:
        info = work_tx(work, record.tx)
        if info == cython.NULL:
            return
        state = cython.cast(uint8_t, info.state)
        taken = state == ENQUEUE_COMMITTED
        if index >= 0:
            extra = _need_extra(work, index)
            if extra == cython.NULL:
                return
            _name(work, extra, record.tx)
    if index < 0:
        work.stray += 1
        return
    entry = _seen(work, index)
    if record.flags & RECORD_LAST and taken:
        entry.flags |= SEEN_ENDED
    if not entry.flags & SEEN_EXTRA:
        if entry.flags & SEEN_PLACE and entry.queue == queue and entry.word == position:
            entry.flags |= SEEN_GONE
        else:
            work.stray += 1
        return
    if state == ENQUEUE_ROLLED_BACK or state == ENQUEUE_OPEN:
        return
    place = _find_place(work, entry, cython.cast(uint32_t, queue), position)
    if place == cython.NULL:
        work.stray += 1
        return
    place.dequeue = state + 1
    place.dequeued_by = record.tx


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_copy(work: cython.pointer(work_t), record: cython.pointer(record_t)) -> cython.void:
    count: uint64_t
    at: uint64_t
    i: uint64_t
    older: int64_t
    index: int64_t
    queue: int64_t
    data: cython.pointer(cython.const[uint8_t]) = record.data
    entry: cython.pointer(seen_t)
    extra: cython.pointer(extra_t)
    place: cython.pointer(seen_place_t)
    info: cython.pointer(tx_info_t)
    if record.size < 8:
        work.malformed += 1
        return
    count = le32(data)
    at = 8 + count * PLACE_SIZE
    if at > record.size or not _content_fits(data + at, record.size - cython.cast(uint32_t, at)) or record.undo_prev == 0:
        work.malformed += 1
        return
    older = _find(work, record.undo_prev)
    index = _append_moved(work, record.lsn, record.undo_prev)
    if index < 0:
        return
    if older >= 0:
        _seen(work, older).flags |= SEEN_OLD
        _seen(work, index).flags |= _seen(work, older).flags & SEEN_ENDED
    _content(work, index, data + at, record.size - cython.cast(uint32_t, at), record.length)
    entry = _seen(work, index)
    if entry.flags & SEEN_EXTRA and older >= 0:
        _extra(work, entry).older = cython.cast(uint32_t, older) + 1
    for i in range(count):
        data = record.data + 8 + i * PLACE_SIZE
        queue = work_queue(work, le64(data))
        if queue < 0:
            return
        _queue(work, cython.cast(uint32_t, queue)).named += 1
        work_used(work, cython.cast(uint32_t, queue), le64(data + 8))
        if count == 1 and le64(data + 24) == 0 and le64(data + 32) == 0 and not entry.flags & SEEN_EXTRA:
            entry.word = le64(data + 8)
            entry.queue = cython.cast(uint32_t, queue)
            entry.flags |= SEEN_PLACE
            if le64(data + 16):
                entry.flags |= SEEN_EXPIRES
                if not map64_put(cython.address(work.expiries), index + 1, le64(data + 16)):
                    work.failed = True
            return
        place = _enlist(
            work, index, cython.cast(uint32_t, queue), le64(data + 8), cython.cast(int64_t, le64(data + 16)), le64(data + 24), older
        )
        if place == cython.NULL:
            return
        if le64(data + 32):
            info = work_tx(work, le64(data + 32))
            extra = _need_extra(work, index)
            if info == cython.NULL or extra == cython.NULL:
                return
            _name(work, extra, info.id)
            if info.state != ENQUEUE_ROLLED_BACK and info.state != ENQUEUE_OPEN:
                place.dequeue = cython.cast(uint8_t, info.state) + 1
                place.dequeued_by = info.id


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_queue(work: cython.pointer(work_t), record: cython.pointer(record_t)) -> cython.void:
    """Queue-End, Queue-Mark, Queue-Redelivered."""
    queue: int64_t
    count: uint64_t
    i: uint64_t
    each: uint64_t = 8 if record.type == RECORD_QUEUE_MARK else 16
    data: cython.pointer(cython.const[uint8_t]) = record.data
    span: cython.pointer(range_t)
    if record.size < 8:
        work.malformed += 1
        return
    if record.type != RECORD_QUEUE_END and (record.size < 16 or 16 + le32(data + 8) * each > record.size):
        work.malformed += 1
        return
    queue = work_queue(work, le64(data))
    if queue < 0:
        return
    if record.type == RECORD_QUEUE_END:
        _queue(work, cython.cast(uint32_t, queue)).ended = True
        return
    count = le32(data + 8)
    for i in range(count):
        if record.type == RECORD_QUEUE_MARK:
            if i < 256:
                work_used(work, cython.cast(uint32_t, queue), i << LEVEL_SHIFT | le64(data + 16 + i * 8) & INDEX_MASK)
            continue
        span = cython.cast(cython.pointer(range_t), vector_add(cython.address(work.ranges), cython.sizeof(range_t)))
        if span == cython.NULL:
            work.failed = True
            return
        span.queue = cython.cast(uint32_t, queue)
        span.first = le64(data + 16 + i * 16)
        span.last = le64(data + 24 + i * 16)


def work_record(context, record):
    work: cython.pointer(work_t) = cython.cast(cython.pointer(work_t), context)
    index: int64_t
    kind: uint8_t = record.type
    if work.failed:
        return
    work.kinds[kind] += 1
    if kind == RECORD_START:
        _on_start(work, record)
    elif kind == RECORD_ENQUEUE:
        _on_enqueue(work, record)
    elif kind == RECORD_DEQUEUE:
        _on_dequeue(work, record)
    elif kind == RECORD_MESSAGE_DELETE:
        index = _find(work, record.undo_prev)
        if index >= 0:
            _seen(work, index).flags |= SEEN_ENDED
        else:
            work.stray += 1
    elif kind == RECORD_CHUNK:
        _on_chunk(work, record)
    elif kind == RECORD_COPY:
        _on_copy(work, record)
    elif kind == RECORD_QUEUE_MARK or kind == RECORD_REDELIVERED or kind == RECORD_QUEUE_END:
        _on_queue(work, record)
    elif kind != RECORD_NAME:
        work.unknown_kinds += 1


# --- the end ------------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _undo_torn_copies(work: cython.pointer(work_t)) -> cython.void:
    """A Message-Copy whose chunks were not all read: the older content counts on, with the places that the copy knows (I2)."""
    i: uint64_t
    moved: cython.pointer(moved_t)
    entry: cython.pointer(seen_t)
    older: cython.pointer(seen_t)
    extra: cython.pointer(extra_t)
    number: uint32_t
    complete: cython.bint
    for i in range(work.moved.count):
        moved = cython.cast(cython.pointer(moved_t), work.moved.data) + i
        entry = _seen(work, moved.index)
        if entry.flags & SEEN_OLD or not entry.flags & SEEN_EXTRA:
            continue
        extra = _extra(work, entry)
        number = extra.older
        while extra.missing and number:
            older = _seen(work, number - 1)
            complete = not older.flags & SEEN_MISSING
            if older.flags & SEEN_EXTRA:
                number = _extra(work, older).older
                complete = complete and _extra(work, older).missing == 0
            else:
                number = 0
            if complete:
                extra.missing = 0
                older.word = entry.word
                older.flags = (
                    older.flags & ~cython.cast(uint32_t, SEEN_OLD | SEEN_PLACE | SEEN_GONE | SEEN_EXPIRES)
                    | SEEN_EXTRA
                    | entry.flags & SEEN_ENDED
                )
                entry.flags |= SEEN_OLD


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _lose(work: cython.pointer(work_t), message_id: uint64_t, queue_id: uint64_t, position: uint64_t, row: uint32_t, most: uint64_t) -> cython.void:
    lost: cython.pointer(lost_t)
    work.lost_count += 1
    if work.lost.count >= most:
        return
    lost = cython.cast(cython.pointer(lost_t), vector_add(cython.address(work.lost), cython.sizeof(lost_t)))
    if lost == cython.NULL:
        work.failed = True
        return
    lost.message_id = message_id
    lost.queue_id = queue_id
    lost.position = position
    lost.row = row


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _decide(table: cython.pointer(cython.const[uint8_t]), content: uint32_t, enqueue: uint32_t, dequeue: uint32_t, ended: uint32_t, queue: uint32_t) -> uint8_t:
    return table[(((content * 6 + enqueue) * 7 + dequeue) * 2 + ended) * 3 + queue]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _stands(
    work: cython.pointer(work_t), message_id: uint64_t, queue: uint32_t, position: uint64_t, verdict: uint8_t, most: uint64_t
) -> uint8_t:
    """Counts one decided place; the outcome, which is LOST for an entry without a position."""
    outcome: uint8_t = verdict & 7
    row: uint32_t = verdict >> 3
    if outcome <= OUTCOME_HELD and position == 0:
        outcome = OUTCOME_LOST
        row = LOST_NO_POSITION
    if outcome <= OUTCOME_HELD:
        _queue(work, queue).count += 1
        work.entry_count += 1
    elif outcome == OUTCOME_LOST:
        _lose(work, message_id, _queue(work, queue).id, position, row, most)
    return outcome


def work_decide(work, table, last_damage, lost_max):
    i: uint64_t
    message_id: uint64_t
    next_moved: uint64_t = 0
    moved: cython.pointer(moved_t) = cython.cast(cython.pointer(moved_t), work.moved.data)
    entry: cython.pointer(seen_t)
    extra: cython.pointer(extra_t)
    place: cython.pointer(seen_place_t)
    nodes: cython.pointer(name_node_t) = cython.cast(cython.pointer(name_node_t), work.names.data)
    info: cython.pointer(tx_info_t)
    content: uint32_t
    ended: uint32_t
    number: uint32_t
    outcome: uint8_t
    places: uint64_t
    alive: uint64_t
    _undo_torn_copies(work)
    for i in range(work.seen.count):
        entry = _seen(work, i)
        message_id = entry.lsn
        if entry.flags & SEEN_MOVED:
            while moved[next_moved].index < i:
                next_moved += 1
            message_id = moved[next_moved].id
        if entry.flags & SEEN_OLD:
            continue
        content = CONTENT_PRESENT
        if entry.flags & SEEN_MISSING:
            content = CONTENT_BELOW_BASE if message_id < work.base[0] else CONTENT_DAMAGED
        ended = 1 if entry.flags & SEEN_ENDED else 0
        places = 0
        alive = 0
        if entry.flags & SEEN_EXTRA:
            extra = _extra(work, entry)
            if extra.missing and content == CONTENT_PRESENT:
                content = CONTENT_DAMAGED if entry.lsn < last_damage else CONTENT_TORN
            number = extra.first
            while number:
                place = _place(work, number)
                places += 1
                place.position = place_position(work, place)
                place.row = 0
                place.outcome = _stands(
                    work,
                    message_id,
                    place.queue,
                    place.position,
                    _decide(table, content, place.enqueue, place.dequeue, ended, _queue(work, place.queue).status),
                    lost_max,
                )
                if place.outcome <= OUTCOME_PENDING:
                    alive += 1
                number = place.next
            number = extra.names
            if alive:
                work.location_count += alive
                while number:
                    info = work_tx(work, nodes[number - 1].tx)
                    info.references += 1
                    work.name_count += 1
                    number = nodes[number - 1].next
            elif number and not ended:
                work.homeless_count += 1
        elif entry.flags & SEEN_PLACE:
            places = 1
            outcome = _stands(
                work,
                message_id,
                entry.queue,
                entry.word,
                _decide(table, content, ENQUEUE_PLAIN, 1 if entry.flags & SEEN_GONE else 0, ended, _queue(work, entry.queue).status),
                lost_max,
            )
            if outcome == OUTCOME_LIVE:
                alive = 1
        if alive:
            entry.flags |= SEEN_LIVE
            work.live_count += 1
        else:
            work.dead_count += 1
            if places == 0 and not ended and content != CONTENT_TORN and entry.lsn < last_damage:
                _lose(work, message_id, 0, 0, LOST_NO_PLACE, lost_max)
