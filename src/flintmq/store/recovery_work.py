"""What recovery knows while it reads the message log: messages, places, transactions, queues (see recovery_work.pxd).

in: records, as recovery_read.py takes them in. out: arrays that recovery.py decides on.

I1  `seen` ascends by LSN. A message is found by its id without a hash: `grains` says where each 4 KiB of the log begins in `seen`.
    Only messages whose id is not their LSN (copied, or missing) are in a hash table.
I2  The position of an enqueue that waits for its Commit is told from that enqueue's record (or its Message-Copy) and the Commit alone:
    its running number, counted over the Commit's rows of the queue. No other record has to be there.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_init, map64_put
from cython.cimports.flintmq.store.log.record import position_number, position_waits
from cython.cimports.flintmq.store.past import past_end, past_find, past_segment_t
from cython.cimports.flintmq.store.vectors import vector_add, vector_free
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset

GRAIN_SHIFT = declare(uint32_t, 12)
NEVER = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


def work_init(work: pointer[work_t]) -> void:
    memset(work, 0, sizeof(work_t))
    map64_init(address(work.moved_index))


def work_free(work: pointer[work_t]) -> void:
    i: uint64_t
    for i in range(work.queues.count):
        free(queue_at(work, cast(uint32_t, i)).levels)
        free(queue_at(work, cast(uint32_t, i)).delivered_levels)
    work_trim(work)
    vector_free(address(work.ranges))
    vector_free(address(work.purges))
    free(work.seen.data)
    free(work.queues.data)
    map64_free(address(work.queue_index))
    memset(work, 0, sizeof(work_t))


def work_trim(work: pointer[work_t]) -> void:
    vector_free(address(work.gaps))
    vector_free(address(work.shapes))
    vector_free(address(work.grains))
    vector_free(address(work.moved))
    vector_free(address(work.extras))
    vector_free(address(work.places))
    vector_free(address(work.names))
    vector_free(address(work.txs))
    vector_free(address(work.rows))
    vector_free(address(work.lost))
    map64_free(address(work.moved_index))
    map64_free(address(work.expiries))
    map64_free(address(work.tx_index))


# --- queues and transactions --------------------------------------------------------------------------------------------------


def work_queue(work: pointer[work_t], queue_id: uint64_t) -> int64_t:
    number: uint64_t = 0
    info: pointer[queue_info_t]
    if work.last_queue and queue_at(work, work.last_queue - 1).id == queue_id:
        return work.last_queue - 1
    if not map64_get(address(work.queue_index), queue_id + 1, address(number)):
        number = work.queues.count
        info = cast(pointer[queue_info_t], vector_add(address(work.queues), sizeof(queue_info_t)))
        if info == NULL or not map64_put(address(work.queue_index), queue_id + 1, number):
            work.failed = True
            return -1
        info.id = queue_id
    work.last_queue = cast(uint32_t, number) + 1
    return number


def work_used(work: pointer[work_t], queue: uint32_t, position: uint64_t) -> void:
    info: pointer[queue_info_t] = queue_at(work, queue)
    level: uint64_t = position >> LEVEL_SHIFT
    index: uint64_t = position & INDEX_MASK
    if position_waits(position):
        return
    if level and info.levels == NULL:
        info.levels = cast(pointer[uint64_t], calloc(256, 8))
        if info.levels == NULL:
            work.failed = True
            return
    if level == 0:
        if info.high[0] < index:
            info.high[0] = index
    elif info.levels[level] < index:
        info.levels[level] = index


def work_segment(work: pointer[work_t], queue: uint32_t, position: uint64_t) -> pointer[past_segment_t]:
    info: pointer[queue_info_t] = queue_at(work, queue)
    if info.past == 0 or position_waits(position):
        return NULL
    return past_find(work.past, info.past - 1, position)


def work_known(work: pointer[work_t], queue: uint32_t, position: uint64_t) -> void:
    segment: pointer[past_segment_t] = work_segment(work, queue, position)
    if segment != NULL:
        past_end(work.past, segment, position)


def work_mark(work: pointer[work_t], queue: uint32_t) -> void:
    info: pointer[queue_info_t] = queue_at(work, queue)
    info.marked = True
    info.delivered[0] = 0
    if info.delivered_levels != NULL:
        memset(info.delivered_levels, 0, 256 * 8)


def work_mark_level(work: pointer[work_t], queue: uint32_t, level: uint64_t, index: uint64_t) -> void:
    info: pointer[queue_info_t] = queue_at(work, queue)
    if level == 0:
        info.delivered[0] = index
        return
    if info.delivered_levels == NULL:
        info.delivered_levels = cast(pointer[uint64_t], calloc(256, 8))
        if info.delivered_levels == NULL:
            work.failed = True
            return
    if level < 256:
        info.delivered_levels[level] = index


def work_delivered(work: pointer[work_t], queue: uint32_t, position: uint64_t) -> bint:
    return position & INDEX_MASK <= work_mark_at(work, queue, position >> LEVEL_SHIFT)


def work_mark_at(work: pointer[work_t], queue: uint32_t, level: uint64_t) -> uint64_t:
    info: pointer[queue_info_t] = queue_at(work, queue)
    if work.all_delivered or not info.marked:
        return NEVER
    if level == 0:
        return info.delivered[0]
    return info.delivered_levels[level] if info.delivered_levels != NULL else 0


def work_levels(queue: pointer[queue_info_t]) -> tuple:
    level: uint32_t
    levels: list = [queue.delivered[0]]
    count: uint32_t = 256 if queue.delivered_levels != NULL else 1
    while count > 1 and queue.delivered_levels[count - 1] == 0:
        count -= 1
    for level in range(1, count):
        levels.append(queue.delivered_levels[level])
    return tuple(levels)


def work_gap(work: pointer[work_t], lsn: uint64_t) -> void:
    gap: pointer[gap_t] = cast(pointer[gap_t], vector_add(address(work.gaps), sizeof(gap_t)))
    if gap == NULL:
        work.failed = True
        return
    gap.first = lsn
    gap.end = NEVER


def work_gap_end(work: pointer[work_t], lsn: uint64_t) -> void:
    last: pointer[gap_t]
    if work.gaps.count:
        last = cast(pointer[gap_t], work.gaps.data) + work.gaps.count - 1
        if last.end == NEVER:
            last.end = lsn


@cfunc
@nogil
@exceptval(check=False)
def _in_gap(work: pointer[work_t], tx: uint64_t) -> bint:
    i: uint64_t
    gap: pointer[gap_t] = cast(pointer[gap_t], work.gaps.data)
    for i in range(work.gaps.count):
        if gap[i].first <= tx and tx < gap[i].end:
            return True
    return False


def work_tx(work: pointer[work_t], tx: uint64_t) -> pointer[tx_info_t]:
    number: uint64_t = 0
    info: pointer[tx_info_t]
    if tx > work.tx_named_max:
        work.tx_named_max = tx
    if not map64_get(address(work.tx_index), tx, address(number)):
        number = work.txs.count
        info = cast(pointer[tx_info_t], vector_add(address(work.txs), sizeof(tx_info_t)))
        if info == NULL or not map64_put(address(work.tx_index), tx, number):
            work.failed = True
            return NULL
        info.id = tx
        # The message log is synced first: a transaction behind the end of its log was never durable, so it never committed. Nor was one
        # that was behind an earlier end: the start that saw it may have been cut short before it had logged that.
        info.lost_start = tx >= work.tx_tail or _in_gap(work, tx)
        info.state = ENQUEUE_OPEN if info.lost_start else ENQUEUE_UNKNOWN
    return cast(pointer[tx_info_t], work.txs.data) + number


# --- messages -----------------------------------------------------------------------------------------------------------------


def seen_find(work: pointer[work_t], message_id: uint64_t) -> int64_t:
    """Number of the message's entry; -1: none is known (I1)."""
    number: uint64_t = 0
    grain: uint64_t
    low: uint64_t
    high: uint64_t
    middle: uint64_t
    grains: pointer[uint32_t] = cast(pointer[uint32_t], work.grains.data)
    if work.seen.count == 0 or message_id == 0:
        return -1
    if work.moved_index.count and map64_get(address(work.moved_index), message_id, address(number)):
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


def seen_id(work: pointer[work_t], index: uint64_t, next: pointer[uint64_t]) -> uint64_t:
    moved: pointer[moved_t] = cast(pointer[moved_t], work.moved.data)
    if not seen_at(work, index).flags & SEEN_MOVED:
        return seen_at(work, index).lsn
    while moved[next[0]].index < index:
        next[0] += 1
    return moved[next[0]].id


def seen_append(work: pointer[work_t], lsn: uint64_t) -> int64_t:
    """A new entry at this LSN, which is higher than that of every other; -1: no memory."""
    entry: pointer[seen_t]
    grain: pointer[uint32_t]
    upto: uint64_t
    if work.seen.count == 0:
        work.origin = lsn >> GRAIN_SHIFT << GRAIN_SHIFT
    entry = cast(pointer[seen_t], vector_add(address(work.seen), sizeof(seen_t)))
    if entry == NULL:
        work.failed = True
        return -1
    entry.lsn = lsn
    upto = (lsn - work.origin) >> GRAIN_SHIFT
    while work.grains.count <= upto:
        grain = cast(pointer[uint32_t], vector_add(address(work.grains), 4))
        if grain == NULL:
            work.failed = True
            return -1
        grain[0] = cast(uint32_t, work.seen.count - 1)
    return work.seen.count - 1


def seen_append_moved(work: pointer[work_t], lsn: uint64_t, message_id: uint64_t) -> int64_t:
    """A new entry whose id is not its LSN."""
    index: int64_t = seen_append(work, lsn)
    moved: pointer[moved_t]
    if index < 0:
        return -1
    moved = cast(pointer[moved_t], vector_add(address(work.moved), sizeof(moved_t)))
    if moved == NULL or not map64_put(address(work.moved_index), message_id, index):
        work.failed = True
        return -1
    moved.index = index
    moved.id = message_id
    seen_at(work, index).flags = SEEN_MOVED
    return index


def seen_add_place(
    work: pointer[work_t], entry: pointer[seen_t], queue: uint32_t, position: uint64_t, expires_at_ms: int64_t
) -> pointer[seen_place_t]:
    """One more place of an entry that has its extra_t; NULL: no memory."""
    extra: pointer[extra_t] = extra_of(work, entry)
    place: pointer[seen_place_t] = cast(pointer[seen_place_t], vector_add(address(work.places), sizeof(seen_place_t)))
    number: uint32_t = cast(uint32_t, work.places.count)
    if place == NULL:
        work.failed = True
        return NULL
    place.queue = queue
    place.position = position
    place.expires_at_ms = expires_at_ms
    if extra.last:
        place_at(work, extra.last).next = number
    else:
        extra.first = number
    extra.last = number
    return place


def seen_need_extra(work: pointer[work_t], index: uint64_t) -> pointer[extra_t]:
    """The entry's extra_t, made (with its plain place) when it has none; NULL: no memory."""
    entry: pointer[seen_t] = seen_at(work, index)
    extra: pointer[extra_t]
    place: pointer[seen_place_t]
    position: uint64_t = entry.word
    expires: uint64_t = 0
    if entry.flags & SEEN_EXTRA:
        return extra_of(work, entry)
    extra = cast(pointer[extra_t], vector_add(address(work.extras), sizeof(extra_t)))
    if extra == NULL:
        work.failed = True
        return NULL
    entry.word = work.extras.count - 1
    if entry.flags & SEEN_PLACE:
        if entry.flags & SEEN_EXPIRES:
            map64_get(address(work.expiries), index + 1, address(expires))
        place = seen_add_place(work, entry, entry.queue, position, cast(int64_t, expires))
        if place == NULL:
            return NULL
        if entry.flags & SEEN_GONE:
            place.dequeue = DEQUEUE_PLAIN
    entry.flags = entry.flags & ~cast(uint32_t, SEEN_PLACE | SEEN_GONE | SEEN_EXPIRES) | SEEN_EXTRA
    return extra_of(work, entry)


def seen_name(work: pointer[work_t], extra: pointer[extra_t], tx: uint64_t) -> void:
    """Notes that a record of the message names the transaction."""
    number: uint32_t = extra.names
    node: pointer[name_node_t]
    nodes: pointer[name_node_t] = cast(pointer[name_node_t], work.names.data)
    while number:
        if nodes[number - 1].tx == tx:
            return
        number = nodes[number - 1].next
    node = cast(pointer[name_node_t], vector_add(address(work.names), sizeof(name_node_t)))
    if node == NULL:
        work.failed = True
        return
    node.tx = tx
    node.next = extra.names
    extra.names = cast(uint32_t, work.names.count)


def place_position(work: pointer[work_t], place: pointer[seen_place_t]) -> uint64_t:
    row: pointer[row_t]
    waiting: uint64_t
    number: uint32_t = place.row
    if not position_waits(place.position) or place.enqueue != ENQUEUE_COMMITTED:
        return place.position
    waiting = position_number(place.position)
    while number:
        row = row_at(work, number - 1)
        if waiting < row.count:
            return row.first + waiting if row.first else 0
        waiting -= row.count
        number = row.more
    return 0


def row_of(work: pointer[work_t], info: pointer[tx_info_t], queue_id: uint64_t) -> uint32_t:
    """Number + 1 of the Commit's row of this queue; 0 when there is none."""
    i: uint32_t
    if info.state == ENQUEUE_COMMITTED:
        for i in range(info.first_row, info.first_row + info.row_count):
            if row_at(work, i).queue_id == queue_id:
                return i + 1
    return 0
