"""A consumer group of a stream: one place for all its members (see group.pxd).

in: takes, acks, returns, time. out: each offset to one member at a time, until it is done; what is dead.

I1  Everything below group_base is done; every offset in [base, fresh) is done or in `open`; nothing at or above `fresh` was delivered.
I2  An offset is HELD by at most one consumer id, and only that id can settle or return it.
I3  At most stream.open_max offsets are open: then nothing new is taken until one is done (`full`), what came back still is.
I4  What may have been delivered before is flagged redelivered: every offset below `flagged`, and every second delivery.
I5  open.due_low is armed with the stream's clock (`due`), by who lowered it, before it returns.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import arena_free, arena_new, content_decref, content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.queue.consumer_manager import credit_give_back, credit_take
from cython.cimports.flintmq.queue.types import REASON_REJECT, consumer_t, delivery_t
from cython.cimports.flintmq.scheduler.due_clock import due_clock_arm
from cython.cimports.flintmq.store.stream.stream_batch import stream_filter_free, stream_item_t
from cython.cimports.flintmq.streams.cursor import (
    CURSOR_COLD,
    CURSOR_GONE,
    CURSOR_ITEM,
    cursor_forget,
    cursor_free,
    cursor_init,
    cursor_look,
    cursor_more,
    cursor_move,
    cursor_position,
    cursor_read_ahead,
    cursor_seek,
    cursor_taken,
    stream_now,
    stream_now_exactly,
)
from cython.cimports.flintmq.streams.lost_header import content_with_lost
from cython.cimports.flintmq.streams.open_list import open_base, open_become, open_find, open_first_ready, open_free, open_push
from cython.cimports.flintmq.streams.types import (
    DEAD_LIMIT,
    GROUP_NAME_MAX,
    OPEN_DEAD,
    OPEN_DELAYED,
    OPEN_DONE,
    OPEN_HELD,
    OPEN_READY,
    group_t,
    open_t,
    seat_t,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy


# milliseconds until a member is woken again after an allocation failed
NO_MEMORY_MS = cython.declare(int64_t, 1000)
# bytes that a group takes beside its record: its name and filter in tables, its noted place (tests/streams/test_memory.py measures it)
BESIDE = cython.declare(uint64_t, 1024)
NS_PER_MS = cython.declare(uint64_t, 1_000_000)


def group_new(stream, name, name_len):
    group: cython.pointer(group_t)
    if name_len > GROUP_NAME_MAX:
        return cython.NULL
    group = cython.cast(cython.pointer(group_t), calloc(1, cython.sizeof(group_t)))
    if group == cython.NULL:
        return cython.NULL
    memory_add(MEMORY_STREAMS, cython.sizeof(group_t) + BESIDE)
    group.stream = stream
    group.slot.state = stream.slot.state
    group.name_len = name_len
    memcpy(group.name, name, name_len)
    cursor_init(cython.address(group.fresh), stream, group, cython.NULL, cython.address(group.lock), 0)
    cursor_init(cython.address(group.again), stream, group, cython.NULL, cython.address(group.lock), 0)
    return group


def group_free(group):
    cursor_free(cython.address(group.fresh))
    cursor_free(cython.address(group.again))
    open_free(cython.address(group.open))
    if group.arena != cython.NULL:
        arena_free(group.arena)
    if group.filter != cython.NULL:
        stream_filter_free(group.filter)
    memory_add(MEMORY_STREAMS, -cython.cast(int64_t, cython.sizeof(group_t) + BESIDE))
    free(group)


# --- back from a consumer (all with the lock held) -------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _kill(group: cython.pointer(group_t), item: cython.pointer(open_t), reason: cython.int) -> cython.void:
    """Not to be delivered any more: waits for Python, or goes, when there is no dead-letter exchange."""
    item.owner = 0
    if group.stream.dead_letters:
        item.reason = cython.cast(uint8_t, reason)
        open_become(cython.address(group.open), item, OPEN_DEAD, 0)
        return
    group.dropped += 1
    open_become(cython.address(group.open), item, OPEN_DONE, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _back(group: cython.pointer(group_t), item: cython.pointer(open_t), due_ms: int64_t) -> cython.void:
    """A delivered message came back: again, at once (0) or when it is due, or never, when it came back too often."""
    item.owner = 0
    if group.stream.delivery_limit >= 0 and item.count > cython.cast(uint32_t, group.stream.delivery_limit):
        _kill(group, item, DEAD_LIMIT)
    elif due_ms:
        open_become(cython.address(group.open), item, OPEN_DELAYED, due_ms)
    else:
        open_become(cython.address(group.open), item, OPEN_READY, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _due(group: cython.pointer(group_t), now_ms: int64_t) -> cython.bint:
    """What is due by now comes back; true when something did."""
    i: uint32_t
    item: cython.pointer(open_t)
    low: int64_t = 0
    came: cython.bint = False
    group.open.due_low = 0
    # From the end: what is dropped at the start or the end moves only the borders behind it.
    i = group.open.end
    while i > group.open.start:
        i -= 1
        if i >= group.open.end:
            continue
        item = cython.address(group.open.items[i])
        if item.due_ms == 0 or item.state == OPEN_DONE or item.state == OPEN_DEAD:
            continue
        if item.due_ms > now_ms:
            if low == 0 or item.due_ms < low:
                low = item.due_ms
            continue
        came = True
        if item.state == OPEN_HELD:
            group.expired += 1
            _back(group, item, 0)
        else:
            open_become(cython.address(group.open), item, OPEN_READY, 0)
    group.open.due_low = low
    if came:
        at_store32(cython.address(group.changed), 1)
    return came


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _arm(group: cython.pointer(group_t), due_ms: int64_t) -> cython.void:
    """I5. Without the lock: the clock may make a system call."""
    if due_ms and group.stream.due != cython.NULL:
        due_clock_arm(group.stream.due, cython.cast(uint64_t, due_ms) * NS_PER_MS)


# --- taking -----------------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hand_out(
    group: cython.pointer(group_t),
    seat: cython.pointer(seat_t),
    consumer: cython.pointer(consumer_t),
    item: cython.pointer(open_t),
    content: cython.pointer(content_t),
    out: cython.pointer(delivery_t),
) -> cython.void:
    """The message is the consumer's: `item` is held by it, the content's reference the seat's."""
    told: cython.pointer(content_t)
    visibility_ms: int64_t = group.visibility_ms if seat.visibility_ms < 0 else seat.visibility_ms
    due_ms: int64_t = stream_now(group.stream) + visibility_ms if visibility_ms else 0
    item.owner = consumer.id
    open_become(cython.address(group.open), item, OPEN_HELD, due_ms)
    out.redelivered = item.count != 0 or item.offset < group.flagged
    out.delivery_count = item.count
    if item.count < 0xFFFF:
        item.count += 1
    if item.count > 1:
        group.redelivered += 1
    group.delivered += 1
    if group.fresh.lost:
        if group.arena == cython.NULL:
            group.arena = arena_new()
        told = content_with_lost(group.arena, content, group.fresh.lost) if group.arena != cython.NULL else cython.NULL
        if told != cython.NULL:
            content_decref(content)
            content = told
            group.fresh.lost = 0
    seat.lent = content
    out.slot = cython.address(group.slot)
    out.content = content
    out.position = item.offset + 1
    out.message_id = 0
    out.rotate = False
    at_store32(cython.address(group.changed), 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _take_again(
    group: cython.pointer(group_t),
    seat: cython.pointer(seat_t),
    consumer: cython.pointer(consumer_t),
    out: cython.pointer(delivery_t),
    asks: cython.pointer(asks_t),
) -> cython.int:
    item: cython.pointer(open_t)
    found: cython.pointer(stream_item_t) = cython.NULL
    outcome: cython.int
    while True:
        item = open_first_ready(cython.address(group.open))
        if item == cython.NULL:
            return TAKE_NOTHING
        outcome = cursor_seek(cython.address(group.again), cython.NULL, item.offset, cython.address(found))
        group.again.lost = 0
        if outcome == CURSOR_GONE:
            group.fresh.lost += 1  # kept no more while it waited for its next delivery
            group.fresh.lost_all += 1
            group.fresh.lost_upto = item.offset + 1
            open_become(cython.address(group.open), item, OPEN_DONE, 0)
            at_store32(cython.address(group.changed), 1)
            continue
        if outcome == CURSOR_COLD:
            asks.cursors[asks.count] = cython.address(group.again)
            asks.count += 1
        if outcome != CURSOR_ITEM:
            return TAKE_NOTHING
        if not credit_take(consumer):
            return TAKE_NO_CREDIT
        cursor_taken(cython.address(group.again))
        _hand_out(group, seat, consumer, item, found.content, out)
        return TAKE_DONE


def group_take(group, seat, consumer, out, asks):
    found: cython.pointer(stream_item_t) = cython.NULL
    item: cython.pointer(open_t)
    outcome: cython.int = TAKE_NOTHING
    looked: cython.int
    now_ms: int64_t
    due_ms: int64_t
    spin_lock(cython.address(group.lock))
    if group.open.due_low:
        now_ms = stream_now(group.stream)
        if now_ms >= group.open.due_low:
            _due(group, now_ms)
    if group.open.ready:
        outcome = _take_again(group, seat, consumer, out, asks)
    if outcome == TAKE_NOTHING:
        if group.open.count >= group.stream.open_max:
            if not group.full:
                group.full = True
                group.full_waits += 1
        else:
            looked = cursor_look(cython.address(group.fresh), group.filter, cython.address(found))
            if looked == CURSOR_COLD:
                asks.cursors[asks.count] = cython.address(group.fresh)
                asks.count += 1
            elif looked == CURSOR_ITEM:
                if not credit_take(consumer):
                    outcome = TAKE_NO_CREDIT
                else:
                    item = open_push(cython.address(group.open), found.offset)
                    if item == cython.NULL:
                        credit_give_back(consumer)  # no memory: group_tick wakes it for another try
                        group.fresh.retry_ms = stream_now(group.stream) + NO_MEMORY_MS
                    else:
                        cursor_taken(cython.address(group.fresh))
                        _hand_out(group, seat, consumer, item, found.content, out)
                        outcome = TAKE_DONE
                        if group.fresh.cold and cursor_read_ahead(cython.address(group.fresh), group.filter):
                            asks.cursors[asks.count] = cython.address(group.fresh)
                            asks.count += 1
    if outcome == TAKE_DONE:
        asks.more = group.open.ready != 0 or cursor_more(cython.address(group.fresh))
    due_ms = group.open.due_low
    spin_unlock(cython.address(group.lock))
    _arm(group, due_ms)
    return outcome


def group_has_work(group):
    has: cython.bint
    spin_lock(cython.address(group.lock))
    has = group.open.ready != 0 or (group.open.count < group.stream.open_max and cursor_more(cython.address(group.fresh)))
    spin_unlock(cython.address(group.lock))
    return has


# --- settling -----------------------------------------------------------------------------------------------------------------------


def group_settle(group, offset, owner, reason, freed):
    item: cython.pointer(open_t)
    spin_lock(cython.address(group.lock))
    item = open_find(cython.address(group.open), offset)
    if item == cython.NULL or item.state != OPEN_HELD or item.owner != owner:
        spin_unlock(cython.address(group.lock))
        return False
    if reason == REASON_REJECT:
        group.nacked += 1
        _kill(group, item, REASON_REJECT)
    else:
        group.acked += 1
        open_become(cython.address(group.open), item, OPEN_DONE, 0)
    freed[0] = group.full and group.open.count < group.stream.open_max
    if freed[0]:
        group.full = False
    at_store32(cython.address(group.changed), 1)
    spin_unlock(cython.address(group.lock))
    return True


def group_return(group, offset, owner, delivered, delay_ms):
    item: cython.pointer(open_t)
    due_ms: int64_t
    spin_lock(cython.address(group.lock))
    item = open_find(cython.address(group.open), offset)
    if item == cython.NULL or item.state != OPEN_HELD or item.owner != owner:
        spin_unlock(cython.address(group.lock))
        return False
    if delivered:
        group.nacked += 1
        _back(group, item, stream_now_exactly(group.stream) + delay_ms if delay_ms > 0 else 0)
    else:
        if item.count and item.count < 0xFFFF:
            item.count -= 1
        item.owner = 0
        open_become(cython.address(group.open), item, OPEN_READY, 0)
    at_store32(cython.address(group.changed), 1)
    due_ms = group.open.due_low
    spin_unlock(cython.address(group.lock))
    _arm(group, due_ms)
    return True


def group_extend(group, offset, owner, visibility_ms):
    item: cython.pointer(open_t)
    held: cython.bint
    due_ms: int64_t
    spin_lock(cython.address(group.lock))
    item = open_find(cython.address(group.open), offset)
    held = item != cython.NULL and item.state == OPEN_HELD and item.owner == owner
    if held:
        open_become(cython.address(group.open), item, OPEN_HELD, stream_now(group.stream) + visibility_ms if visibility_ms > 0 else 0)
    due_ms = group.open.due_low
    spin_unlock(cython.address(group.lock))
    _arm(group, due_ms)
    return held


def group_return_owner(group, owner):
    i: uint32_t
    returned: uint32_t = 0
    spin_lock(cython.address(group.lock))
    i = group.open.end
    while i > group.open.start and group.open.held:
        i -= 1
        if i < group.open.end and group.open.items[i].state == OPEN_HELD and group.open.items[i].owner == owner:
            _back(group, cython.address(group.open.items[i]), 0)
            returned += 1
    if returned:
        at_store32(cython.address(group.changed), 1)
    spin_unlock(cython.address(group.lock))
    return returned


def group_tick(group, due_ms):
    now_ms: int64_t = stream_now_exactly(group.stream)
    wake: cython.bint = False
    spin_lock(cython.address(group.lock))
    if group.open.due_low and now_ms >= group.open.due_low:
        wake = _due(group, now_ms)
    if group.fresh.retry_ms and now_ms >= group.fresh.retry_ms:
        group.fresh.retry_ms = 0
        wake = True
    if group.again.retry_ms and now_ms >= group.again.retry_ms:
        group.again.retry_ms = 0
        wake = True
    if group.full and group.open.count < group.stream.open_max:
        group.full = False
        wake = True
    due_ms[0] = group.open.due_low
    spin_unlock(cython.address(group.lock))
    return wake


def group_reset(group):
    spin_lock(cython.address(group.lock))
    open_free(cython.address(group.open))
    cursor_forget(cython.address(group.again))
    at_store32(cython.address(group.started), 0)
    at_store32(cython.address(group.changed), 0)
    group.flagged = 0
    group.full = False
    group.fresh.lost = 0
    spin_unlock(cython.address(group.lock))


def group_base(group):
    base: uint64_t
    spin_lock(cython.address(group.lock))
    base = open_base(cython.address(group.open), cursor_position(cython.address(group.fresh)))
    spin_unlock(cython.address(group.lock))
    return base


def group_next_dead(group, offset, reason, count):
    i: uint32_t
    found: cython.bint = False
    spin_lock(cython.address(group.lock))
    if group.open.dead:
        for i in range(group.open.start, group.open.end):
            if group.open.items[i].state == OPEN_DEAD and group.open.items[i].offset >= offset[0]:
                offset[0] = group.open.items[i].offset
                reason[0] = group.open.items[i].reason
                count[0] = group.open.items[i].count
                found = True
                break
    spin_unlock(cython.address(group.lock))
    return found


def group_dead_done(group, offset):
    item: cython.pointer(open_t)
    done: cython.bint
    spin_lock(cython.address(group.lock))
    item = open_find(cython.address(group.open), offset)
    done = item != cython.NULL and item.state == OPEN_DEAD
    if done:
        group.dead += 1
        open_become(cython.address(group.open), item, OPEN_DONE, 0)
        at_store32(cython.address(group.changed), 1)
    spin_unlock(cython.address(group.lock))
    return done
