"""Recovery's reading of the message log: each record changes what is known of a message, a place or a queue (see recovery_read.pxd).

in: records of a scan in LSN order (work_record). out: the work_t, filled in: arrays of messages, places, transactions and queues.

I1  A later record of a message overrides an earlier one; a Message-Copy overrides all of them, but as the place of the content only
    once all its chunks were read.
I2  Nothing is decided while reading but what a transaction's final state says: the table decides at the end (recovery.py).
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, exceptval, inline, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.hash64 import map64_put
from cython.cimports.flintmq.queue.types import RESTORED_LISTED, restored_t
from cython.cimports.flintmq.store.log.record import (
    BRIEF_FIXED, PLACE_SIZE, RECORD_CHUNK, RECORD_COPY, RECORD_DELIVERED, RECORD_DEQUEUE, RECORD_ENQUEUE, RECORD_LAST, RECORD_MESSAGE,
    RECORD_MESSAGE_DELETE, RECORD_NAME, RECORD_QUEUE_END, RECORD_QUEUE_MARK, RECORD_QUEUE_PURGE, RECORD_REDELIVERED, RECORD_SHAPE,
    RECORD_START, align8, brief_head, content_head, head_t, le32, le64, position_waits, record_t, shape_head, shape_t,
)  # fmt: skip
from cython.cimports.flintmq.store.log.shapes import COPY_OF_ONE
from cython.cimports.flintmq.store.past import (
    past_end, past_ended, past_entry, past_gone, past_listed_t, past_owner_at, past_segment_t, past_t, past_where,
)  # fmt: skip
from cython.cimports.flintmq.store.recovery_work import (
    ENQUEUE_COMMITTED, ENQUEUE_OPEN, ENQUEUE_PLAIN, ENQUEUE_PREPARED, ENQUEUE_ROLLED_BACK, INDEX_MASK, LEVEL_SHIFT, SEEN_ENDED,
    SEEN_EXPIRES, SEEN_EXTRA, SEEN_GONE, SEEN_MISSING, SEEN_NO_SHAPE, SEEN_OLD, SEEN_PAST, SEEN_PLACE, extra_of, extra_t, moved_t, place_at,
    place_position, queue_at, queue_info_t, range_t, row_of, row_t, seen_add_place, seen_append, seen_append_moved, seen_at, seen_find,
    seen_name, seen_need_extra, seen_place_t, seen_shape_t, seen_t, tx_info_t, work_known, work_mark, work_mark_level, work_queue,
    work_segment, work_t, work_tx, work_used,
)  # fmt: skip
from cython.cimports.flintmq.store.vectors import vector_add
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import qsort


@cfunc
@nogil
@exceptval(check=False)
def _enlist(
    work: pointer[work_t], index: uint64_t, queue: uint32_t, position: uint64_t, expires_at_ms: int64_t, tx: uint64_t
) -> pointer[seen_place_t]:
    """A place of a message that needs the long form. tx 0: plain."""
    extra: pointer[extra_t] = seen_need_extra(work, index)
    place: pointer[seen_place_t]
    info: pointer[tx_info_t]
    if extra == NULL:
        return NULL
    if tx:
        seen_name(work, extra, tx)
    place = seen_add_place(work, seen_at(work, index), queue, position, expires_at_ms)
    if place == NULL or tx == 0:
        return place
    place.enqueued_by = tx
    info = work_tx(work, tx)
    if info == NULL:
        return NULL
    place.enqueue = cast(uint8_t, info.state)
    if position_waits(position):
        place.row = row_of(work, info, queue_at(work, queue).id)
    return place


@cfunc
@nogil
@exceptval(check=False)
def _content(work: pointer[work_t], index: int64_t, head: pointer[head_t], length: uint32_t) -> void:
    """Fills the entry in from what the record that begins a message says of its content."""
    entry: pointer[seen_t] = seen_at(work, index)
    extra: pointer[extra_t]
    entry.body_len = head.body_len
    entry.bytes = cast(uint32_t, align8(length))
    if head.here < head.total:
        extra = seen_need_extra(work, index)
        if extra != NULL:
            extra.total = cast(uint32_t, head.total)
            extra.missing = cast(uint32_t, head.total - head.here)


@cfunc
@nogil
@exceptval(check=False)
def _on_start(work: pointer[work_t], record: pointer[record_t]) -> void:
    index: int64_t
    head: head_t
    if not content_head(record, address(head)):
        work.malformed += 1
        return
    index = seen_append(work, record.lsn)
    if index >= 0:
        _content(work, index, address(head), record.length)


@cfunc
@nogil
@exceptval(check=False)
def _on_shape(work: pointer[work_t], record: pointer[record_t]) -> void:
    shape: shape_t
    kept: pointer[seen_shape_t]
    queue: int64_t
    if not shape_head(record, address(shape)):
        work.malformed += 1
        return
    kept = cast(pointer[seen_shape_t], work.shapes.data)
    if work.shapes.count and kept.lsn // work.container_size[0] != record.lsn // work.container_size[0]:
        work.shapes.count = 0
    queue = work_queue(work, shape.queue_id)
    kept = cast(pointer[seen_shape_t], vector_add(address(work.shapes), sizeof(seen_shape_t)))
    if kept == NULL or queue < 0:
        work.failed = True
        return
    kept.lsn = record.lsn
    kept.position = shape.position
    kept.queue = cast(uint32_t, queue)
    kept.bytes = cast(uint32_t, shape.head.total)


@cfunc
@nogil
@exceptval(check=False)
def _shape_at(work: pointer[work_t], lsn: uint64_t, message: uint64_t) -> pointer[seen_shape_t]:
    """The Message-Shape at this LSN, if it was read and stands in the message's container; else NULL. O(log shapes of the container)."""
    shapes: pointer[seen_shape_t] = cast(pointer[seen_shape_t], work.shapes.data)
    low: uint64_t = 0
    high: uint64_t = work.shapes.count
    middle: uint64_t
    if work.last_shape < high and shapes[work.last_shape].lsn == lsn:
        low = work.last_shape
    while low < high and shapes[low].lsn != lsn:
        middle = (low + high) // 2
        if shapes[middle].lsn > lsn:
            high = middle
        else:
            low = middle if shapes[middle].lsn == lsn else middle + 1
    work.last_shape = low
    return shapes + low if low < high and lsn // work.container_size[0] == message // work.container_size[0] else NULL


@cfunc
@nogil
@exceptval(check=False)
def _on_message(work: pointer[work_t], record: pointer[record_t]) -> void:
    """A Message: a Message-Start and its one plain Message-Enqueue."""
    distance: uint32_t = 0
    index: int64_t
    entry: pointer[seen_t]
    shape: pointer[seen_shape_t]
    if not brief_head(record, address(distance)):
        work.malformed += 1
        return
    index = seen_append(work, record.lsn)
    if index < 0:
        return
    entry = seen_at(work, index)
    entry.body_len = record.size - BRIEF_FIXED
    shape = _shape_at(work, record.undo_prev, record.lsn)
    if shape == NULL:
        entry.flags |= SEEN_NO_SHAPE
        return
    entry.bytes = cast(uint32_t, align8(COPY_OF_ONE + shape.bytes + entry.body_len))
    entry.word = shape.position + distance
    entry.queue = shape.queue
    queue_at(work, entry.queue).named += 1
    work_used(work, entry.queue, entry.word)
    _plain(work, index, record.expires_at_ms)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _plain(work: pointer[work_t], index: int64_t, expires_at_ms: int64_t) -> void:
    """The entry's `word` and `queue` are its one plain place."""
    entry: pointer[seen_t] = seen_at(work, index)
    entry.flags |= SEEN_PLACE
    if expires_at_ms:
        entry.flags |= SEEN_EXPIRES
        if not map64_put(address(work.expiries), index + 1, cast(uint64_t, expires_at_ms)):
            work.failed = True


@cfunc
@nogil
@exceptval(check=False)
def _on_chunk(work: pointer[work_t], record: pointer[record_t]) -> void:
    index: int64_t = seen_find(work, record.undo_prev)
    entry: pointer[seen_t]
    extra: pointer[extra_t]
    if record.size < 4:
        work.malformed += 1
        return
    if index < 0:
        work.stray += 1
        return
    entry = seen_at(work, index)
    if not entry.flags & SEEN_EXTRA:
        work.stray += 1
        return
    extra = extra_of(work, entry)
    # After a chunk that is missing, the next one does not fit: the content stays incomplete.
    if record.size - 4 > extra.missing or le32(record.data) != extra.total - extra.missing:
        work.stray += 1
        return
    extra.missing -= record.size - 4
    entry.bytes += cast(uint32_t, align8(record.length))


@cfunc
@nogil
@exceptval(check=False)
def _is_placed(work: pointer[work_t], entry: pointer[seen_t], queue: uint32_t, position: uint64_t, tx: uint64_t) -> bint:
    """Whether the message stands there already; `position` may wait for the outcome of `tx`."""
    number: uint32_t
    place: pointer[seen_place_t]
    info: pointer[tx_info_t]
    wanted: seen_place_t
    wanted.position = position
    wanted.row = 0
    wanted.enqueue = ENQUEUE_PLAIN
    if tx:
        info = work_tx(work, tx)
        if info == NULL:
            return False
        wanted.enqueue = cast(uint8_t, info.state)
        wanted.row = row_of(work, info, queue_at(work, queue).id)
    if not entry.flags & SEEN_EXTRA:
        return entry.flags & SEEN_PLACE and entry.queue == queue and entry.word == position
    number = extra_of(work, entry).first
    while number:
        place = place_at(work, number)
        if place.queue == queue and (place.position == position or place_position(work, place) == place_position(work, address(wanted))):
            return True
        number = place.next
    return False


@cfunc
@nogil
@exceptval(check=False)
def _on_enqueue(work: pointer[work_t], record: pointer[record_t]) -> void:
    index: int64_t
    queue: int64_t
    entry: pointer[seen_t]
    position: uint64_t
    if record.size < 16:
        work.malformed += 1
        return
    queue = work_queue(work, le64(record.data))
    if queue < 0:
        return
    position = le64(record.data + 8)
    queue_at(work, cast(uint32_t, queue)).named += 1
    work_used(work, cast(uint32_t, queue), position)
    index = seen_find(work, record.undo_prev)
    if index < 0:
        # Of a message that stood on several queues when the checkpoint began, and had ended when that took its list down.
        if record.undo_prev < work.base[0] or (work.past != NULL and record.undo_prev < work.past.begin):
            work.stray += 1
            return
        index = seen_append_moved(work, record.lsn, record.undo_prev)
        if index < 0:
            return
        seen_at(work, index).flags |= SEEN_MISSING
    entry = seen_at(work, index)
    if entry.flags & SEEN_PAST and _is_placed(work, entry, cast(uint32_t, queue), position, record.tx):
        return  # the checkpoint took its list down after this record
    # The short form is for what the message log's own list leaves out: one plain place, its record right behind the Message-Start.
    if record.tx or entry.flags & (SEEN_EXTRA | SEEN_PLACE) or record.lsn != entry.lsn + entry.bytes:
        _enlist(work, index, cast(uint32_t, queue), position, record.expires_at_ms, record.tx)
        return
    entry.word = position
    entry.queue = cast(uint32_t, queue)
    _plain(work, index, record.expires_at_ms)


@cfunc
@nogil
@exceptval(check=False)
def _find_place(work: pointer[work_t], entry: pointer[seen_t], queue: uint32_t, position: uint64_t) -> pointer[seen_place_t]:
    """The place of an entry with an extra_t that a dequeue means: not taken yet, if there is such a one."""
    number: uint32_t = extra_of(work, entry).first
    place: pointer[seen_place_t]
    taken: pointer[seen_place_t] = NULL
    while number:
        place = place_at(work, number)
        if place.queue == queue and place_position(work, place) == position:
            if place.dequeue == 0:
                return place
            taken = place
        number = place.next
    return taken


@cfunc
@nogil
@exceptval(check=False)
def _on_dequeue(work: pointer[work_t], record: pointer[record_t]) -> void:
    index: int64_t
    queue: int64_t
    entry: pointer[seen_t]
    extra: pointer[extra_t]
    place: pointer[seen_place_t]
    info: pointer[tx_info_t]
    position: uint64_t
    taken: bint = record.tx == 0
    state: uint8_t = 0
    if record.size < 32:
        work.malformed += 1
        return
    queue = work_queue(work, le64(record.data))
    if queue < 0:
        return
    position = le64(record.data + 8)
    work_used(work, cast(uint32_t, queue), position)
    index = seen_find(work, record.undo_prev)
    if record.tx:
        info = work_tx(work, record.tx)
        if info == NULL:
            return
        state = cast(uint8_t, info.state)
        taken = state == ENQUEUE_COMMITTED
        if index < 0:
            index = _from_past(work, record, cast(uint32_t, queue), position)
        if index >= 0:
            extra = seen_need_extra(work, index)
            if extra == NULL:
                return
            seen_name(work, extra, record.tx)
    if taken:
        work_known(work, cast(uint32_t, queue), position)
    if index < 0:
        if not _ends_past(work, record):
            work.stray += 1
        return
    entry = seen_at(work, index)
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
    place = _find_place(work, entry, cast(uint32_t, queue), position)
    if place == NULL:
        work.stray += 1
        return
    place.dequeue = state + 1
    place.dequeued_by = record.tx


@cfunc
@nogil
@exceptval(check=False)
def _on_copy(work: pointer[work_t], record: pointer[record_t]) -> void:
    count: uint64_t
    head: head_t
    i: uint64_t
    older: int64_t
    index: int64_t
    entry: pointer[seen_t]
    if not content_head(record, address(head)) or record.undo_prev == 0:
        work.malformed += 1
        return
    count = le32(record.data)
    older = seen_find(work, record.undo_prev)
    index = seen_append_moved(work, record.lsn, record.undo_prev)
    if index < 0:
        return
    if older >= 0:
        seen_at(work, older).flags |= SEEN_OLD
        seen_at(work, index).flags |= seen_at(work, older).flags & SEEN_ENDED
    elif work.past != NULL and record.undo_prev < work.past.begin:
        past_gone(work.past, past_where(work.past, record.undo_prev))
    _content(work, index, address(head), record.length)
    entry = seen_at(work, index)
    if entry.flags & SEEN_EXTRA and older >= 0:
        extra_of(work, entry).older = cast(uint32_t, older) + 1
    for i in range(count):
        if not _copied_place(work, index, record.data + 8 + i * PLACE_SIZE, count == 1):
            return


@cfunc
@nogil
@exceptval(check=False)
def _copied_place(work: pointer[work_t], index: int64_t, data: pointer[cython.const[uint8_t]], only: bint) -> bint:
    """One place of a message as a Message-Copy or a checkpoint has it. only: the message has no other. False: no memory."""
    entry: pointer[seen_t] = seen_at(work, index)
    extra: pointer[extra_t]
    place: pointer[seen_place_t]
    info: pointer[tx_info_t]
    queue: int64_t = work_queue(work, le64(data))
    if queue < 0:
        return False
    queue_at(work, cast(uint32_t, queue)).named += 1
    work_used(work, cast(uint32_t, queue), le64(data + 8))
    if only and le64(data + 24) == 0 and le64(data + 32) == 0 and not entry.flags & SEEN_EXTRA:
        entry.word = le64(data + 8)
        entry.queue = cast(uint32_t, queue)
        _plain(work, index, cast(int64_t, le64(data + 16)))
        return True
    place = _enlist(work, index, cast(uint32_t, queue), le64(data + 8), cast(int64_t, le64(data + 16)), le64(data + 24))
    if place == NULL:
        return False
    if le64(data + 32):
        info = work_tx(work, le64(data + 32))
        extra = seen_need_extra(work, index)
        if info == NULL or extra == NULL:
            return False
        seen_name(work, extra, info.id)
        if info.state != ENQUEUE_ROLLED_BACK and info.state != ENQUEUE_OPEN:
            place.dequeue = cast(uint8_t, info.state) + 1
            place.dequeued_by = info.id
    return True


# --- what a checkpoint knows ------------------------------------------------------------------------------------------------------------


def work_past(work: pointer[work_t], past: pointer[past_t]) -> void:
    i: uint64_t
    j: uint32_t
    index: int64_t
    queue: int64_t
    listed: pointer[past_listed_t] = cast(pointer[past_listed_t], past.listed.data)
    names: pointer[cython.const[uint8_t]]
    work.past = past
    for i in range(past.owners.count):
        queue = work_queue(work, past_owner_at(past, i).id)
        if queue < 0:
            return
        queue_at(work, cast(uint32_t, queue)).past = cast(uint32_t, i) + 1
        queue_at(work, cast(uint32_t, queue)).named += past_owner_at(past, i).count
    for i in range(past.listed.count):
        index = seen_append(work, listed[i].lsn) if listed[i].lsn == listed[i].id else seen_append_moved(work, listed[i].lsn, listed[i].id)
        if index < 0 or seen_need_extra(work, index) == NULL:
            return
        seen_at(work, index).flags |= SEEN_PAST
        for j in range(listed[i].places):
            if not _copied_place(work, index, listed[i].data + j * PLACE_SIZE, False):
                return
        names = listed[i].data + cast(uint64_t, listed[i].places) * PLACE_SIZE
        for j in range(listed[i].names):
            if work_tx(work, le64(names + 8 * j)) == NULL:
                return
            seen_name(work, extra_of(work, seen_at(work, index)), le64(names + 8 * j))


@cfunc
@nogil
@exceptval(check=False)
def _from_past(work: pointer[work_t], record: pointer[record_t], queue: uint32_t, position: uint64_t) -> int64_t:
    """The plain message that a transaction takes, as the checkpoint has it: from now on it is in `seen`. -1: it has it not."""
    segment: pointer[past_segment_t] = NULL
    entry: pointer[cython.const[restored_t]]
    seen: pointer[seen_t]
    index: int64_t
    if work.past != NULL and record.undo_prev < work.past.begin:
        segment = work_segment(work, queue, position)
    if segment == NULL or past_ended(segment, position):
        return -1
    entry = past_entry(work.past, segment, position)
    if entry == NULL or entry.message_id != record.undo_prev or entry.flags & RESTORED_LISTED:
        return -1
    past_end(work.past, segment, position)
    index = seen_append_moved(work, record.lsn, record.undo_prev)
    if index >= 0:
        seen = seen_at(work, index)
        seen.flags |= SEEN_PAST
        seen.body_len = entry.body_len
        seen.word = position
        seen.queue = queue
        _plain(work, index, entry.expires_at_ms)
    return index


@cfunc
@nogil
@exceptval(check=False)
def _ends_past(work: pointer[work_t], record: pointer[record_t]) -> bint:
    """A message ends of which only the checkpoint knows. False: that does not either."""
    if work.past == NULL or record.undo_prev >= work.past.begin:
        return False
    if record.flags & RECORD_LAST:
        past_gone(work.past, past_where(work.past, record.undo_prev))
    return True


@cfunc
@nogil
@exceptval(check=False)
def _on_queue(work: pointer[work_t], record: pointer[record_t]) -> void:
    """Queue-End, Queue-Mark, Queue-Delivered, Queue-Redelivered, Queue-Purge."""
    queue: int64_t
    count: uint64_t
    i: uint64_t
    each: uint64_t = 8 if record.type == RECORD_QUEUE_MARK or record.type == RECORD_DELIVERED else 16
    data: pointer[cython.const[uint8_t]] = record.data
    span: pointer[range_t]
    purge: bint = record.type == RECORD_QUEUE_PURGE
    if record.size < 8:
        work.malformed += 1
        return
    if record.type != RECORD_QUEUE_END and (record.size < 16 or 16 + le32(data + 8) * each > record.size):
        work.malformed += 1
        work.all_delivered = work.all_delivered or record.type == RECORD_DELIVERED
        return
    queue = work_queue(work, le64(data))
    if queue < 0:
        return
    if record.type == RECORD_QUEUE_END:
        queue_at(work, cast(uint32_t, queue)).ended = True
        return
    count = le32(data + 8)
    if record.type == RECORD_DELIVERED:
        work_mark(work, cast(uint32_t, queue))
        for i in range(count):
            work_mark_level(work, cast(uint32_t, queue), i, le64(data + 16 + i * 8) & INDEX_MASK)
        return
    for i in range(count):
        if record.type == RECORD_QUEUE_MARK:
            if i < 256:
                work_used(work, cast(uint32_t, queue), i << LEVEL_SHIFT | le64(data + 16 + i * 8) & INDEX_MASK)
            continue
        if purge:
            work_used(work, cast(uint32_t, queue), le64(data + 24 + i * 16))
            # A purge goes on in its next record where this one ends: what was one run is one run again.
            if work.purges.count:
                span = cast(pointer[range_t], work.purges.data) + (work.purges.count - 1)
                if span.queue == queue and span.last + 1 == le64(data + 16 + i * 16):
                    span.last = le64(data + 24 + i * 16)
                    continue
        span = cast(
            pointer[range_t],
            vector_add(address(work.purges) if purge else address(work.ranges), sizeof(range_t)),
        )
        if span == NULL:
            work.failed = True
            return
        span.queue = cast(uint32_t, queue)
        span.first = le64(data + 16 + i * 16)
        span.last = le64(data + 24 + i * 16)


def work_record(context: p_void, record: pointer[record_t]) -> void:
    work: pointer[work_t] = cast(pointer[work_t], context)
    index: int64_t
    kind: uint8_t = record.type
    if work.failed:
        return
    work.kinds[kind] += 1
    if kind == RECORD_MESSAGE:
        _on_message(work, record)
    elif kind == RECORD_START:
        _on_start(work, record)
    elif kind == RECORD_ENQUEUE:
        _on_enqueue(work, record)
    elif kind == RECORD_DEQUEUE:
        _on_dequeue(work, record)
    elif kind == RECORD_MESSAGE_DELETE:
        index = seen_find(work, record.undo_prev)
        if index >= 0:
            seen_at(work, index).flags |= SEEN_ENDED
        elif not _ends_past(work, record):
            work.stray += 1
    elif kind == RECORD_CHUNK:
        _on_chunk(work, record)
    elif kind == RECORD_COPY:
        _on_copy(work, record)
    elif (
        kind == RECORD_QUEUE_MARK
        or kind == RECORD_DELIVERED
        or kind == RECORD_REDELIVERED
        or kind == RECORD_QUEUE_END
        or kind == RECORD_QUEUE_PURGE
    ):
        _on_queue(work, record)
    elif kind == RECORD_SHAPE:
        _on_shape(work, record)
    elif kind != RECORD_NAME:
        work.unknown_kinds += 1


# --- before the first record, behind the last one ---------------------------------------------------------------------------------------

# of RecoveredTx.state: what the decision table calls it
ENQUEUE_STATES = {1: ENQUEUE_OPEN, 2: ENQUEUE_PREPARED, 3: ENQUEUE_COMMITTED, 4: ENQUEUE_ROLLED_BACK}


def work_transactions(work: pointer[work_t], transactions: dict) -> c_int:
    """Every transaction that the transaction log has (id -> RecoveredTx), and the positions that commits gave."""
    info: pointer[tx_info_t]
    row: pointer[row_t]
    queue: int64_t
    for tx in transactions.values():
        # A set's positions were given. Of a transient message the log has nothing else: one that got its position would be in the set.
        for queue_id, first, count in tx.sets:
            queue = work_queue(work, queue_id)
            if queue >= 0 and count:
                work_used(work, cast(uint32_t, queue), first + count - 1)
        info = work_tx(work, tx.id)
        if info == NULL:
            raise MemoryError("no memory for recovery")
        info.lost_start = False
        info.state = ENQUEUE_STATES[tx.state]
        info.first_row = cast(uint32_t, work.rows.count)
        last_rows: dict = {}  # queue id -> number of its last row so far
        for queue_id, first, count in tx.rows:
            row = cast(pointer[row_t], vector_add(address(work.rows), sizeof(row_t)))
            queue = work_queue(work, queue_id)
            if row == NULL or queue < 0:
                raise MemoryError("no memory for recovery")
            row.queue_id = queue_id
            row.first = first
            row.count = count
            row.more = 0
            if queue_id in last_rows:
                row = cast(pointer[row_t], work.rows.data) + cast(uint32_t, last_rows[queue_id])
                row.more = cast(uint32_t, work.rows.count)
            last_rows[queue_id] = work.rows.count - 1
            info.row_count += 1
            if count and first:
                work_used(work, cast(uint32_t, queue), first + count - 1)
    work.tx_named_max = 0
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _undo_torn_copies(work: pointer[work_t]) -> void:
    """A Message-Copy whose chunks were not all read: the older content counts on, with the places that the copy knows (I2)."""
    i: uint64_t
    moved: pointer[moved_t]
    entry: pointer[seen_t]
    older: pointer[seen_t]
    extra: pointer[extra_t]
    number: uint32_t
    complete: bint
    for i in range(work.moved.count):
        moved = cast(pointer[moved_t], work.moved.data) + i
        entry = seen_at(work, moved.index)
        if entry.flags & SEEN_OLD or not entry.flags & SEEN_EXTRA:
            continue
        extra = extra_of(work, entry)
        number = extra.older
        while extra.missing and number:
            older = seen_at(work, number - 1)
            complete = not older.flags & SEEN_MISSING
            if older.flags & SEEN_EXTRA:
                number = extra_of(work, older).older
                complete = complete and extra_of(work, older).missing == 0
            else:
                number = 0
            if complete:
                extra.missing = 0
                older.word = entry.word
                older.flags = (
                    older.flags & ~cast(uint32_t, SEEN_OLD | SEEN_PLACE | SEEN_GONE | SEEN_EXPIRES) | SEEN_EXTRA | entry.flags & SEEN_ENDED
                )
                entry.flags |= SEEN_OLD


@cfunc
@nogil
@exceptval(check=False)
def _by_queue(left: pointer[cython.const[void]], right: pointer[cython.const[void]]) -> c_int:
    a: pointer[range_t] = cast(pointer[range_t], cast(p_void, left))
    b: pointer[range_t] = cast(pointer[range_t], cast(p_void, right))
    if a.queue != b.queue:
        return -1 if a.queue < b.queue else 1
    return -1 if a.first < b.first else cast(c_int, a.first > b.first)


@cfunc
@nogil
@exceptval(check=False)
def _sort_ranges(work: pointer[work_t]) -> void:
    """Gives each queue its purged runs, and those that were delivered before, in order of positions. Purged ones never overlap: a position
    is ended once."""
    i: uint64_t
    runs: pointer[range_t] = cast(pointer[range_t], work.purges.data)
    queue: pointer[queue_info_t]
    if work.purges.count:
        qsort(runs, work.purges.count, sizeof(range_t), _by_queue)
    for i in range(work.purges.count):
        queue = queue_at(work, runs[i].queue)
        if queue.purge_count == 0:
            queue.purges = i
        queue.purge_count += 1
    runs = cast(pointer[range_t], work.ranges.data)
    if work.ranges.count:
        qsort(runs, work.ranges.count, sizeof(range_t), _by_queue)
    for i in range(work.ranges.count):
        queue = queue_at(work, runs[i].queue)
        if queue.span_count == 0:
            queue.spans = i
        queue.span_count += 1


def work_complete(work: pointer[work_t]) -> void:
    _undo_torn_copies(work)
    _sort_ranges(work)


def work_purged(work: pointer[work_t], queue: uint32_t, position: uint64_t) -> bint:
    """Whether a purge ended what stood there. O(log runs of the queue)."""
    info: pointer[queue_info_t] = queue_at(work, queue)
    runs: pointer[range_t]
    low: uint64_t = 0
    high: uint64_t = info.purge_count
    middle: uint64_t
    if high == 0:
        return False
    runs = cast(pointer[range_t], work.purges.data) + info.purges
    while low < high:
        middle = (low + high) // 2
        if runs[middle].last < position:
            low = middle + 1
        else:
            high = middle
    return low < info.purge_count and runs[low].first <= position
