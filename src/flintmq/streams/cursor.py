"""A place in a stream: messages in order from the hot window or from the disk, with read-ahead (see cursor.pxd).

in: looks of a group or a lone consumer; answers of reads. out: messages with one reference each, in offset order.

I1  Every visible offset at or above the place where the cursor began is handed out, filtered out by the log, or counted in `lost`;
    none twice (cursor_move apart).
I2  While `reading` is READ_ASKED, `ahead`, `ahead_outcome` and `place` belong to the request, everything else to the lock.
I3  A reference in `now` or `ahead` is the cursor's until cursor_taken.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ms, monotonic_ns
from cython.cimports.flintmq.core.content import content_decref
from cython.cimports.flintmq.store.stream.stream_batch import (
    stream_batch_free, stream_batch_t, stream_filter_free, stream_filter_t, stream_item_t,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_log import (
    STREAM_COLD, STREAM_DAMAGED, STREAM_EMPTY, STREAM_FILTERED, STREAM_IO, STREAM_MESSAGES, STREAM_TRUNCATED,
)  # fmt: skip
from cython.cimports.flintmq.streams.types import READ_ASKED, READ_IDLE, READ_THERE, cursor_t, group_t, seat_t, stream_queue_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset

NO_OFFSET = ~cast(uint64_t, 0)
# messages taken from the hot window at once: enough to pay for its lock, few enough that a group that gets its messages one by one
# keeps no stale pile
HOT_MESSAGES = declare(uint32_t, 64)
# milliseconds before a read that failed is tried again
RETRY_MS = declare(int64_t, 1000)


def stream_now(stream: pointer[stream_queue_t]) -> int64_t:
    if stream.clock != NULL:
        return cast(int64_t, at_load64(cast(pointer[uint64_t], stream.clock)))
    return monotonic_ms()


def stream_now_exactly(stream: pointer[stream_queue_t]) -> int64_t:
    return stream_now(stream) if stream.clock != NULL else monotonic_ns() // 1_000_000


@cfunc
@nogil
@exceptval(check=False)
def _drop(batch: pointer[stream_batch_t], start: uint32_t) -> void:
    """Gives back the references from `start` on and empties the batch; its memory stays."""
    i: uint32_t
    for i in range(start, batch.count):
        content_decref(batch.items[i].content)
    batch.count = 0
    batch.bytes = 0
    batch.io_ns = 0


def cursor_init(
    cursor: pointer[cursor_t],
    stream: pointer[stream_queue_t],
    group: pointer[group_t],
    seat: pointer[seat_t],
    lock: pointer[uint32_t],
    next: uint64_t,
) -> void:
    memset(cursor, 0, sizeof(cursor_t))
    cursor.stream = stream
    cursor.group = group
    cursor.seat = seat
    cursor.lock = lock
    cursor.next = next


def cursor_free(cursor: pointer[cursor_t]) -> void:
    _drop(address(cursor.now), cursor.at)
    _drop(address(cursor.ahead), 0)
    stream_batch_free(address(cursor.now))
    stream_batch_free(address(cursor.ahead))
    if cursor.place != NULL:
        cursor.stream.source.free_reader(cursor.place)
    memset(address(cursor.now), 0, sizeof(stream_batch_t))
    memset(address(cursor.ahead), 0, sizeof(stream_batch_t))
    cursor.place = NULL


@cfunc
@nogil
@exceptval(check=False)
def _lose(cursor: pointer[cursor_t], upto: uint64_t, damaged: bint) -> void:
    """Offsets below `upto` will never come: they are counted, and the cursor goes on there."""
    if upto <= cursor.next:
        return
    cursor.lost += upto - cursor.next
    at_store64(address(cursor.lost_upto), upto)
    at_store64(address(cursor.lost_all), cursor.lost_all + upto - cursor.next)
    if damaged:
        cursor.damaged += upto - cursor.next
    cursor.next = upto


@cfunc
@nogil
@exceptval(check=False)
def _accept(cursor: pointer[cursor_t]) -> void:
    """The messages that were read ahead follow `now`, which is empty."""
    spare: stream_batch_t
    check(cursor.reading == READ_THERE, b"cursor I2 what is accepted was read", cursor.next, cursor.reading)
    cursor.reading = READ_IDLE
    if cursor.asked != cursor.next or cursor.stale:
        _drop(address(cursor.ahead), 0)  # it was moved meanwhile, or has another filter
        cursor.stale = False
        return
    if cursor.ahead_outcome == STREAM_MESSAGES:
        spare = cursor.now
        cursor.now = cursor.ahead
        cursor.ahead = spare
        cursor.at = 0
        cursor.cold = True
        cursor.next = cursor.now.next_offset
    elif cursor.ahead_outcome == STREAM_FILTERED:
        cursor.next = cursor.ahead.next_offset
    elif cursor.ahead_outcome == STREAM_TRUNCATED or cursor.ahead_outcome == STREAM_DAMAGED:
        _lose(cursor, cursor.ahead.next_offset, cursor.ahead_outcome == STREAM_DAMAGED)
    elif cursor.ahead_outcome != STREAM_EMPTY:
        cursor.failed_reads += 1
        cursor.retry_ms = stream_now(cursor.stream) + RETRY_MS


@cfunc
@nogil
@exceptval(check=False)
def _ask(cursor: pointer[cursor_t], filter: pointer[stream_filter_t]) -> c_int:
    """The next offset must be read from the disk."""
    if cursor.retry_ms:
        if stream_now(cursor.stream) < cursor.retry_ms:
            return CURSOR_WAITS
        cursor.retry_ms = 0
    check(cursor.reading == READ_IDLE, b"cursor I2 one read is asked for at a time", cursor.next, cursor.reading)
    cursor.asked = cursor.next
    cursor.asked_filter = filter
    cursor.reading = READ_ASKED
    cursor.cold_reads += 1
    return CURSOR_COLD


def cursor_look(cursor: pointer[cursor_t], filter: pointer[stream_filter_t], item: pointer[pointer[stream_item_t]]) -> c_int:
    outcome: c_int
    stream: pointer[stream_queue_t] = cursor.stream
    while True:
        if cursor.at < cursor.now.count:
            item[0] = address(cursor.now.items[cursor.at])
            return CURSOR_ITEM
        if cursor.now.count:
            cursor.now.count = 0  # all were handed out, with their references
            cursor.now.bytes = 0
            cursor.at = 0
        if cursor.reading == READ_THERE:
            _accept(cursor)
            continue
        if cursor.reading == READ_ASKED and cursor.asked == cursor.next:
            return CURSOR_WAITS
        outcome = stream.source.hot_read(stream.source.log, cursor.next, HOT_MESSAGES, stream.batch_bytes, filter, address(cursor.now))
        if outcome == STREAM_MESSAGES:
            cursor.at = 0
            cursor.cold = False
            cursor.next = cursor.now.next_offset
        elif outcome == STREAM_FILTERED:
            cursor.next = cursor.now.next_offset
        elif outcome == STREAM_TRUNCATED:
            _lose(cursor, cursor.now.next_offset, False)
        elif outcome == STREAM_COLD:
            if cursor.reading == READ_ASKED:
                return CURSOR_WAITS  # for an offset that it left; asks anew when that is there
            return _ask(cursor, filter)
        else:
            return CURSOR_EMPTY  # or gone


def cursor_seek(
    cursor: pointer[cursor_t], filter: pointer[stream_filter_t], offset: uint64_t, item: pointer[pointer[stream_item_t]]
) -> c_int:
    outcome: c_int
    stream: pointer[stream_queue_t] = cursor.stream
    while cursor.at < cursor.now.count and cursor.now.items[cursor.at].offset < offset:
        content_decref(cursor.now.items[cursor.at].content)
        cursor.at += 1
    if cursor.at < cursor.now.count and cursor.now.items[cursor.at].offset == offset:
        item[0] = address(cursor.now.items[cursor.at])
        return CURSOR_ITEM
    if offset < stream.source.first(stream.source.log):
        return CURSOR_GONE
    if cursor.reading != READ_ASKED:
        if cursor.next != offset or cursor.at < cursor.now.count:
            cursor_move(cursor, offset)
        if cursor.reading == READ_THERE:
            cursor.now.count = 0
            cursor.at = 0
            _accept(cursor)
            if cursor.next > offset and cursor.now.count == 0:
                return CURSOR_GONE  # it can't be read, or is kept no more: never ask for the messages behind it instead
    outcome = cursor_look(cursor, filter, item)
    if outcome == CURSOR_ITEM:
        return CURSOR_ITEM if item[0].offset == offset else CURSOR_GONE
    # It was delivered once, so it was visible: nothing there means that it is gone.
    return CURSOR_GONE if outcome == CURSOR_EMPTY else outcome


def cursor_taken(cursor: pointer[cursor_t]) -> void:
    check(cursor.at < cursor.now.count, b"cursor I3 what is taken was there", cursor.next, cursor.at)
    cursor.at += 1


def cursor_read_ahead(cursor: pointer[cursor_t], filter: pointer[stream_filter_t]) -> bint:
    stream: pointer[stream_queue_t] = cursor.stream
    if not cursor.cold or cursor.reading != READ_IDLE or cursor.retry_ms or cursor.at * 2 < cursor.now.count:
        return False
    if cursor.next >= stream.source.visible(stream.source.log):
        return False
    return _ask(cursor, filter) == CURSOR_COLD


def cursor_position(cursor: pointer[cursor_t]) -> uint64_t:
    if cursor.at < cursor.now.count:
        return cursor.now.items[cursor.at].offset
    return cursor.next


def cursor_more(cursor: pointer[cursor_t]) -> bint:
    stream: pointer[stream_queue_t] = cursor.stream
    return cursor.at < cursor.now.count or cursor.reading == READ_THERE or cursor.next < stream.source.visible(stream.source.log)


def cursor_move(cursor: pointer[cursor_t], next: uint64_t) -> void:
    _drop(address(cursor.now), cursor.at)
    cursor.at = 0
    cursor.cold = False
    cursor.next = next


def cursor_forget(cursor: pointer[cursor_t]) -> bint:
    cursor_move(cursor, cursor_position(cursor))
    if cursor.reading == READ_THERE:
        _drop(address(cursor.ahead), 0)
        cursor.reading = READ_IDLE
        cursor.stale = False
    elif cursor.reading == READ_ASKED and not cursor.stale:
        cursor.stale = True
        return True
    return False


@cfunc
@nogil
@exceptval(check=False)
def _answered(cursor: pointer[cursor_t], outcome: c_int) -> void:
    filter: pointer[stream_filter_t] = cursor.asked_filter
    stale: bint
    spin_lock(cursor.lock)
    check(cursor.reading == READ_ASKED, b"cursor I2 what is answered was asked for", cursor.asked, cursor.reading)
    cursor.ahead_outcome = outcome
    cursor.cold_messages += cursor.ahead.count
    cursor.io_ns += cursor.ahead.io_ns
    stale = cursor.stale
    cursor.asked_filter = NULL
    cursor.reading = READ_THERE
    spin_unlock(cursor.lock)
    if stale:
        stream_filter_free(filter)


def cursor_read_failed(cursor: pointer[cursor_t]) -> void:
    _drop(address(cursor.ahead), 0)
    _answered(cursor, STREAM_IO)


def cursor_read(cursor: pointer[cursor_t]) -> uint64_t:
    stream: pointer[stream_queue_t] = cursor.stream
    outcome: c_int = STREAM_IO
    waited: uint64_t
    _drop(address(cursor.ahead), 0)
    if cursor.place == NULL:
        cursor.place = stream.source.new_reader(stream.source.log)
    if cursor.place != NULL:
        outcome = stream.source.hot_read(
            stream.source.log, cursor.asked, stream.batch_messages, stream.batch_bytes, cursor.asked_filter, address(cursor.ahead)
        )
        if outcome == STREAM_COLD:
            outcome = stream.source.read(
                stream.source.log,
                cursor.place,
                cursor.asked,
                stream.batch_messages,
                stream.batch_bytes,
                cursor.asked_filter,
                address(cursor.ahead),
            )
        else:
            stream.source.rest(cursor.place)  # it reached the head
    waited = cursor.ahead.io_ns
    _answered(cursor, outcome)
    return waited
