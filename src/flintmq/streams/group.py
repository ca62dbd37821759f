"""A consumer group of a stream: one place for all its members (see group.pxd).

in: takes, acks, returns, time. out: each offset to one member at a time, until it is done; offsets that are dead.

I1  Everything below group_base is done; every offset in [base, fresh) is done or in `open`; nothing at or above `fresh` was delivered.
I2  An offset is HELD by at most one consumer id, and only that id can settle or return it.
I3  At most stream.open_max offsets are open: then no new offset is taken until one is done (`full`); returned offsets still are.
I4  An offset that may have been delivered before is flagged redelivered: every offset below `flagged`, and every second delivery.
I5  open.due_low is armed with the stream's clock (`due`) by the function that lowered it, before that function returns.

The offsets that were delivered and are not done (`open`) are a sorted run with gaps:

I6  items[start .. end) ascend by offset; the first and the last of them are not DONE.
I7  count, held, ready, delayed, dead are exact; ready_low and due_low are lower bounds.
I8  The array has room for at most twice the offsets that were open at once (64 at least): gaps are squeezed out when half
    of it is gaps, which the acks that made them pay for.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import NS_PER_MS
from cython.cimports.flintmq.core.content import arena_free, arena_new, content_decref, content_t
from cython.cimports.flintmq.core.header_field import content_with_field
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.queue.consumer_manager import credit_give_back, credit_take
from cython.cimports.flintmq.queue.types import REASON_REJECT, consumer_t, delivery_t
from cython.cimports.flintmq.scheduler.due_clock import due_clock_arm
from cython.cimports.flintmq.store.stream.stream_batch import stream_filter_free, stream_item_t
from cython.cimports.flintmq.streams.cursor import (
    CURSOR_COLD, CURSOR_GONE, CURSOR_ITEM, cursor_free, cursor_init, cursor_look, cursor_more, cursor_position, cursor_read_ahead,
    cursor_seek, cursor_taken, stream_now, stream_now_exactly,
)  # fmt: skip
from cython.cimports.flintmq.streams.types import (
    DEAD_LIMIT, GROUP_NAME_MAX, OPEN_DEAD, OPEN_DELAYED, OPEN_DONE, OPEN_HELD, OPEN_READY, group_t, open_list_t, open_t, seat_t,
    stream_queue_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy, memset

# milliseconds until a member is woken again after an allocation failed
NO_MEMORY_MS = declare(int64_t, 1000)
# bytes that a group takes beside its record: its name and filter in tables, its noted place (tests/streams/test_memory.py measures it)
BESIDE = declare(uint64_t, 1024)


def group_new(stream: pointer[stream_queue_t], name: pointer[cython.const[uint8_t]], name_len: uint32_t) -> pointer[group_t]:
    group: pointer[group_t]
    if name_len > GROUP_NAME_MAX:
        return NULL
    group = cast(pointer[group_t], calloc(1, sizeof(group_t)))
    if group == NULL:
        return NULL
    memory_add(MEMORY_STREAMS, sizeof(group_t) + BESIDE)
    group.stream = stream
    group.slot.state = stream.slot.state
    group.name_len = name_len
    memcpy(group.name, name, name_len)
    cursor_init(address(group.fresh), stream, group, NULL, address(group.lock), 0)
    cursor_init(address(group.again), stream, group, NULL, address(group.lock), 0)
    return group


def group_free(group: pointer[group_t]) -> void:
    cursor_free(address(group.fresh))
    cursor_free(address(group.again))
    open_free(address(group.open))
    if group.arena != NULL:
        arena_free(group.arena)
    if group.filter != NULL:
        stream_filter_free(group.filter)
    memory_add(MEMORY_STREAMS, -cast(int64_t, sizeof(group_t) + BESIDE))
    free(group)


# --- back from a consumer (all with the lock held) -------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _kill(group: pointer[group_t], item: pointer[open_t], reason: c_int) -> void:
    """Not to be delivered any more: waits for Python, or goes, when there is no dead-letter exchange."""
    item.owner = 0
    if group.stream.dead_letters:
        item.reason = cast(uint8_t, reason)
        open_become(address(group.open), item, OPEN_DEAD, 0)
        return
    group.dropped += 1
    open_become(address(group.open), item, OPEN_DONE, 0)


@cfunc
@nogil
@exceptval(check=False)
def _back(group: pointer[group_t], item: pointer[open_t], due_ms: int64_t) -> void:
    """A delivered message came back: again, at once (0) or when it is due, or never, when it came back too often."""
    item.owner = 0
    if group.stream.delivery_limit >= 0 and item.count > cast(uint32_t, group.stream.delivery_limit):
        _kill(group, item, DEAD_LIMIT)
    elif due_ms:
        open_become(address(group.open), item, OPEN_DELAYED, due_ms)
    else:
        open_become(address(group.open), item, OPEN_READY, 0)


@cfunc
@nogil
@exceptval(check=False)
def _due(group: pointer[group_t], now_ms: int64_t) -> bint:
    """Offsets that are due by now come back. True: at least one did."""
    i: uint32_t
    item: pointer[open_t]
    low: int64_t = 0
    came: bint = False
    group.open.due_low = 0
    # From the end: an entry that is dropped at the start or the end moves only the borders behind it.
    i = group.open.end
    while i > group.open.start:
        i -= 1
        if i >= group.open.end:
            continue
        item = address(group.open.items[i])
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
            open_become(address(group.open), item, OPEN_READY, 0)
    group.open.due_low = low
    if came:
        at_store32(address(group.changed), 1)
    return came


@cfunc
@inline
@nogil
@exceptval(check=False)
def _arm(group: pointer[group_t], due_ms: int64_t) -> void:
    """I5. Without the lock: the clock may make a system call."""
    if due_ms and group.stream.due != NULL:
        due_clock_arm(group.stream.due, cast(uint64_t, due_ms) * NS_PER_MS)


# --- taking -----------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _hand_out(
    group: pointer[group_t],
    seat: pointer[seat_t],
    consumer: pointer[consumer_t],
    item: pointer[open_t],
    content: pointer[content_t],
    out: pointer[delivery_t],
) -> void:
    """The message is the consumer's: `item` is held by it, the content's reference the seat's."""
    flagged: pointer[content_t]
    visibility_ms: int64_t = group.visibility_ms if seat.visibility_ms < 0 else seat.visibility_ms
    due_ms: int64_t = stream_now(group.stream) + visibility_ms if visibility_ms else 0
    check(item.owner == 0, b"group I2 an offset that is handed out is nobody's", item.offset, item.owner)
    item.owner = consumer.id
    open_become(address(group.open), item, OPEN_HELD, due_ms)
    out.redelivered = item.count != 0 or item.offset < group.flagged
    out.delivery_count = item.count
    if item.count < 0xFFFF:
        item.count += 1
    if item.count > 1:
        group.redelivered += 1
    group.delivered += 1
    if group.fresh.lost:
        if group.arena == NULL:
            group.arena = arena_new()
        flagged = content_with_field(group.arena, content, b"x-stream-lost", group.fresh.lost) if group.arena != NULL else NULL
        if flagged != NULL:
            content_decref(content)
            content = flagged
            group.fresh.lost = 0
    seat.lent = content
    out.slot = address(group.slot)
    out.content = content
    out.position = item.offset + 1
    out.message_id = 0
    out.rotate = False
    at_store32(address(group.changed), 1)


@cfunc
@nogil
@exceptval(check=False)
def _take_again(
    group: pointer[group_t],
    seat: pointer[seat_t],
    consumer: pointer[consumer_t],
    out: pointer[delivery_t],
    asks: pointer[asks_t],
) -> c_int:
    item: pointer[open_t]
    message: pointer[stream_item_t] = NULL
    outcome: c_int
    while True:
        item = open_first_ready(address(group.open))
        if item == NULL:
            return TAKE_NOTHING
        outcome = cursor_seek(address(group.again), NULL, item.offset, address(message))
        group.again.lost = 0
        if outcome == CURSOR_GONE:
            group.fresh.lost += 1  # kept no more while it waited for its next delivery
            group.fresh.lost_all += 1
            group.fresh.lost_upto = item.offset + 1
            open_become(address(group.open), item, OPEN_DONE, 0)
            at_store32(address(group.changed), 1)
            continue
        if outcome == CURSOR_COLD:
            asks.cursors[asks.count] = address(group.again)
            asks.count += 1
        if outcome != CURSOR_ITEM:
            return TAKE_NOTHING
        if not credit_take(consumer):
            return TAKE_NO_CREDIT
        cursor_taken(address(group.again))
        _hand_out(group, seat, consumer, item, message.content, out)
        return TAKE_DONE


def group_take(
    group: pointer[group_t], seat: pointer[seat_t], consumer: pointer[consumer_t], out: pointer[delivery_t], asks: pointer[asks_t]
) -> c_int:
    message: pointer[stream_item_t] = NULL
    item: pointer[open_t]
    outcome: c_int = TAKE_NOTHING
    looked: c_int
    now_ms: int64_t
    due_ms: int64_t
    spin_lock(address(group.lock))
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
            looked = cursor_look(address(group.fresh), group.filter, address(message))
            if looked == CURSOR_COLD:
                asks.cursors[asks.count] = address(group.fresh)
                asks.count += 1
            elif looked == CURSOR_ITEM:
                if not credit_take(consumer):
                    outcome = TAKE_NO_CREDIT
                else:
                    check(
                        group.open.count < group.stream.open_max,
                        b"group I3 a group at its limit takes nothing new",
                        message.offset,
                        group.open.count,
                    )
                    item = open_push(address(group.open), message.offset)
                    if item == NULL:
                        credit_give_back(consumer)  # no memory: group_tick wakes it for another try
                        group.fresh.retry_ms = stream_now(group.stream) + NO_MEMORY_MS
                    else:
                        cursor_taken(address(group.fresh))
                        _hand_out(group, seat, consumer, item, message.content, out)
                        outcome = TAKE_DONE
                        if group.fresh.cold and cursor_read_ahead(address(group.fresh), group.filter):
                            asks.cursors[asks.count] = address(group.fresh)
                            asks.count += 1
    if outcome == TAKE_DONE:
        asks.more = group.open.ready != 0 or cursor_more(address(group.fresh))
    due_ms = group.open.due_low
    spin_unlock(address(group.lock))
    _arm(group, due_ms)
    return outcome


def group_has_work(group: pointer[group_t]) -> bint:
    has: bint
    spin_lock(address(group.lock))
    has = group.open.ready != 0 or (group.open.count < group.stream.open_max and cursor_more(address(group.fresh)))
    spin_unlock(address(group.lock))
    return has


# --- settling -----------------------------------------------------------------------------------------------------------------------


def group_settle(group: pointer[group_t], offset: uint64_t, owner: uint32_t, reason: c_int, freed: pointer[bint]) -> bint:
    item: pointer[open_t]
    spin_lock(address(group.lock))
    item = open_find(address(group.open), offset)
    if item == NULL or item.state != OPEN_HELD or item.owner != owner:
        spin_unlock(address(group.lock))
        return False
    if reason == REASON_REJECT:
        group.nacked += 1
        _kill(group, item, REASON_REJECT)
    else:
        group.acked += 1
        open_become(address(group.open), item, OPEN_DONE, 0)
    freed[0] = group.full and group.open.count < group.stream.open_max
    if freed[0]:
        group.full = False
    at_store32(address(group.changed), 1)
    spin_unlock(address(group.lock))
    return True


def group_return(group: pointer[group_t], offset: uint64_t, owner: uint32_t, delivered: bint, delay_ms: int64_t) -> bint:
    item: pointer[open_t]
    due_ms: int64_t
    spin_lock(address(group.lock))
    item = open_find(address(group.open), offset)
    if item == NULL or item.state != OPEN_HELD or item.owner != owner:
        spin_unlock(address(group.lock))
        return False
    if delivered:
        group.nacked += 1
        _back(group, item, stream_now_exactly(group.stream) + delay_ms if delay_ms > 0 else 0)
    else:
        if item.count and item.count < 0xFFFF:
            item.count -= 1
        item.owner = 0
        open_become(address(group.open), item, OPEN_READY, 0)
    at_store32(address(group.changed), 1)
    due_ms = group.open.due_low
    spin_unlock(address(group.lock))
    _arm(group, due_ms)
    return True


def group_tick(group: pointer[group_t], due_ms: pointer[int64_t]) -> bint:
    now_ms: int64_t = stream_now_exactly(group.stream)
    wake: bint = False
    spin_lock(address(group.lock))
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
    spin_unlock(address(group.lock))
    return wake


def group_base(group: pointer[group_t]) -> uint64_t:
    base: uint64_t
    spin_lock(address(group.lock))
    base = open_base(address(group.open), cursor_position(address(group.fresh)))
    spin_unlock(address(group.lock))
    return base


def group_next_dead(group: pointer[group_t], offset: pointer[uint64_t], reason: pointer[c_int], count: pointer[uint32_t]) -> bint:
    i: uint32_t
    is_found: bint = False
    spin_lock(address(group.lock))
    if group.open.dead:
        for i in range(group.open.start, group.open.end):
            if group.open.items[i].state == OPEN_DEAD and group.open.items[i].offset >= offset[0]:
                offset[0] = group.open.items[i].offset
                reason[0] = group.open.items[i].reason
                count[0] = group.open.items[i].count
                is_found = True
                break
    spin_unlock(address(group.lock))
    return is_found


def group_dead_done(group: pointer[group_t], offset: uint64_t) -> bint:
    item: pointer[open_t]
    done: bint
    spin_lock(address(group.lock))
    item = open_find(address(group.open), offset)
    done = item != NULL and item.state == OPEN_DEAD
    if done:
        group.dead += 1
        open_become(address(group.open), item, OPEN_DONE, 0)
        at_store32(address(group.changed), 1)
    spin_unlock(address(group.lock))
    return done


# --- open offsets, in a sorted run with gaps ----------------------------------------------------------------------------------------

FIRST_ROOM = declare(uint32_t, 64)


@cfunc
@nogil
@exceptval(check=False)
def _squeeze(opens: pointer[open_list_t], into: pointer[open_t]) -> void:
    """Moves the entries that are not DONE, in order, to the start of `into` (which may be the array itself)."""
    i: uint32_t
    kept: uint32_t = 0
    for i in range(opens.start, opens.end):
        if opens.items[i].state != OPEN_DONE:
            if into != opens.items or i != kept:
                into[kept] = opens.items[i]
            kept += 1
    check(kept == opens.count, b"group I7 what is open is counted", kept, opens.count)
    opens.start = 0
    opens.end = kept


def open_push(opens: pointer[open_list_t], offset: uint64_t) -> pointer[open_t]:
    fresh: pointer[open_t]
    item: pointer[open_t]
    room: uint32_t
    if opens.end == opens.room:
        if opens.count <= opens.room // 2 and opens.room:
            _squeeze(opens, opens.items)
        else:
            room = opens.room * 2 if opens.room else FIRST_ROOM
            fresh = cast(pointer[open_t], malloc(cast(size_t, room) * sizeof(open_t)))
            if fresh == NULL:
                return NULL
            if opens.items != NULL:
                _squeeze(opens, fresh)
                free(opens.items)
            memory_add(MEMORY_STREAMS, (room - opens.room) * sizeof(open_t))
            opens.items = fresh
            opens.room = room
    check(
        opens.end == opens.start or opens.items[opens.end - 1].offset < offset,
        b"group I6 offsets ascend",
        offset,
        opens.end,
    )
    check(opens.end < opens.room, b"group I8 there is room for an offset", opens.end, opens.room)
    item = address(opens.items[opens.end])
    memset(item, 0, sizeof(open_t))
    item.offset = offset
    item.state = OPEN_HELD
    opens.end += 1
    opens.count += 1
    opens.held += 1
    return item


@cfunc
@nogil
@exceptval(check=False)
def _at_or_above(opens: pointer[open_list_t], offset: uint64_t) -> uint32_t:
    low: uint32_t = opens.start
    high: uint32_t = opens.end
    middle: uint32_t
    while low < high:
        middle = low + (high - low) // 2
        if opens.items[middle].offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


def open_find(opens: pointer[open_list_t], offset: uint64_t) -> pointer[open_t]:
    i: uint32_t = _at_or_above(opens, offset)
    if i == opens.end or opens.items[i].offset != offset or opens.items[i].state == OPEN_DONE:
        return NULL
    return address(opens.items[i])


@cfunc
@inline
@nogil
@exceptval(check=False)
def _count(opens: pointer[open_list_t], state: uint8_t, change: uint32_t) -> void:
    if state == OPEN_HELD:
        opens.held += change
    elif state == OPEN_READY:
        opens.ready += change
    elif state == OPEN_DELAYED:
        opens.delayed += change
    elif state == OPEN_DEAD:
        opens.dead += change


def open_become(opens: pointer[open_list_t], item: pointer[open_t], state: uint8_t, due_ms: int64_t) -> void:
    check(opens.count > 0 and item.state != OPEN_DONE, b"group I7 what is done is not open again", item.offset, item.state)
    _count(opens, item.state, ~cast(uint32_t, 0))  # minus one
    _count(opens, state, 1)
    check(
        opens.held + opens.ready + opens.delayed + opens.dead + (1 if state == OPEN_DONE else 0) == opens.count,
        b"group I7 each open offset is counted in its state",
        item.offset,
        opens.count,
    )
    item.state = state
    item.due_ms = due_ms
    if state == OPEN_READY and (opens.ready == 1 or item.offset < opens.ready_low):
        opens.ready_low = item.offset
    if due_ms and (opens.due_low == 0 or due_ms < opens.due_low):
        opens.due_low = due_ms
    if state != OPEN_DONE:
        return
    opens.count -= 1
    while opens.start < opens.end and opens.items[opens.start].state == OPEN_DONE:
        opens.start += 1
    while opens.start < opens.end and opens.items[opens.end - 1].state == OPEN_DONE:
        opens.end -= 1
    if opens.start == opens.end:
        opens.start = 0
        opens.end = 0
        opens.due_low = 0


def open_first_ready(opens: pointer[open_list_t]) -> pointer[open_t]:
    i: uint32_t
    if opens.ready == 0:
        return NULL
    i = _at_or_above(opens, opens.ready_low)
    while i < opens.end:
        if opens.items[i].state == OPEN_READY:
            opens.ready_low = opens.items[i].offset
            return address(opens.items[i])
        i += 1
    check(opens.ready == 0, b"group I7 no ready offset is below the bound", opens.ready, opens.ready_low)
    return NULL


def open_cut(opens: pointer[open_list_t], offset: uint64_t) -> void:
    while opens.start < opens.end and opens.items[opens.end - 1].offset >= offset:
        open_become(opens, address(opens.items[opens.end - 1]), OPEN_DONE, 0)


def open_base(opens: pointer[open_list_t], next: uint64_t) -> uint64_t:
    return opens.items[opens.start].offset if opens.start < opens.end else next


def open_free(opens: pointer[open_list_t]) -> void:
    memory_add(MEMORY_STREAMS, -cast(int64_t, opens.room * sizeof(open_t)))
    free(opens.items)
    memset(opens, 0, sizeof(open_list_t))
