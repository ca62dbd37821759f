"""A stream as a queue of the core: the functions behind queue_ops_t, and the wakes of consumers (see stream_queue.pxd).

in: publishers, consumers' loops, the log's writer (more is visible), answers of cold reads, time. out: deliveries in offset order,
wakes of consumers, requests for cold reads.

I1  A lone consumer sees every offset from its start on, in order; a group gives each offset to one member at a time (group.py).
I2  No lost wake: a thread that makes a message available (visible, returned, read, freed) then takes the manager lock and tells a consumer
    on INTERESTED; a consumer that finds nothing moves to INTERESTED under that lock first, then looks again. So either the look sees the
    message or the lock does.
I3  A cursor with a read under way keeps its queue, and a lone consumer's also its consumer, until cursor_answered.
I4  No lock is held while a read is asked for; the manager lock and a group's or seat's lock are never held together.
I5  A seat is on one list, of its group or of the lone ones, from attached to detached; members of a group are counted.
I6  A member that could not be told anything rests until its consumer is INTERESTED again or is suspended no more; whoever makes it so looks
    at `resting` behind that change, under the manager lock or after it had that lock. So a wake costs O(1), however many members wait for
    credit.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64, at_store32, at_store64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import arena_free, arena_new, content_decref, content_t
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_put, map64_remove, map64_trim
from cython.cimports.flintmq.core.header_field import content_with_field
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.queue.consumer_manager import (
    NOTIFY_DONE, NOTIFY_NOT, credit_left, credit_take, manager_move, manager_notify_locked,
)  # fmt: skip
from cython.cimports.flintmq.queue.queue_core import consumer_decref, consumer_incref, queue_decref, queue_incref, queue_set_ops
from cython.cimports.flintmq.queue.types import (
    CONSUMER_INTERESTED, CONSUMER_NOTIFIED, CONSUMER_NOT_INTERESTED, CONSUMER_REMOVED, ENTRY_ACQUIRED, ENTRY_NOT_RESIDENT, FIGURE_ENQUEUED,
    FIGURE_READY, FIGURE_READY_BYTES, consumer_t, delivery_t, queue_ops_t, queue_t, slot_t,
)  # fmt: skip
from cython.cimports.flintmq.scheduler.due_clock import due_clock_decref
from cython.cimports.flintmq.store.stream.stream_batch import stream_filter_free, stream_item_t
from cython.cimports.flintmq.streams.cursor import (
    CURSOR_COLD, CURSOR_ITEM, NO_OFFSET, cursor_free, cursor_look, cursor_more, cursor_move, cursor_read, cursor_read_ahead,
    cursor_read_failed, cursor_taken,
)  # fmt: skip
from cython.cimports.flintmq.streams.group import (
    TAKE_DONE, TAKE_NOTHING, TAKE_NO_CREDIT, asks_t, group_free, group_has_work, group_return, group_settle, group_take, group_tick,
)  # fmt: skip
from cython.cimports.flintmq.streams.types import READ_ASKED, SEAT_BESIDE, cursor_t, group_t, seat_t, seats_t, stream_queue_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free

_ops = declare(queue_ops_t)
# members of a group that were told already and are passed over in one wake
WOKEN_PASSED_MAX = declare(c_int, 32)


def stream_of(queue: pointer[queue_t]) -> pointer[stream_queue_t]:
    if queue.ops != address(_ops):
        return NULL
    return cast(pointer[stream_queue_t], queue.ops_context)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _stream(queue: pointer[queue_t]) -> pointer[stream_queue_t]:
    return cast(pointer[stream_queue_t], queue.ops_context)


@cfunc
@nogil
@exceptval(check=False)
def _on_visible(context: p_void) -> void:
    """The writer made more visible: one wake for each lone consumer and each group."""
    stream: pointer[stream_queue_t] = cast(pointer[stream_queue_t], context)
    at_add64(address(stream.wakes), 1)
    stream_wake_all(stream)


# --- cold reads -----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _ask(stream: pointer[stream_queue_t], cursor: pointer[cursor_t]) -> void:
    """Has the cursor's request processed. Called without locks by the thread that set READ_ASKED, while the owner lives."""
    check(cursor.reading == READ_ASKED, b"stream_queue I3 a read that is asked for was noted", cursor.asked, cursor.reading)
    queue_incref(stream.queue)
    if cursor.seat != NULL:
        consumer_incref(cursor.seat.consumer)
    if stream.ask != NULL:
        stream.ask(stream.ask_context, cursor)
        return
    cursor_read(cursor)
    cursor_answered(cursor)


def cursor_answered(cursor: pointer[cursor_t]) -> void:
    queue: pointer[queue_t] = cursor.stream.queue
    consumer: pointer[consumer_t] = NULL
    if cursor.seat != NULL:
        consumer = cursor.seat.consumer
        stream_wake_seat(cursor.seat)
    else:
        stream_wake_group(cursor.group, False)
    if consumer != NULL:
        consumer_decref(consumer)
    queue_decref(queue)


def cursor_refused(cursor: pointer[cursor_t]) -> void:
    cursor_read_failed(cursor)
    cursor_answered(cursor)


# --- queue_ops_t ----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _enqueue(queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: int64_t, lsn: pointer[uint64_t]) -> uint64_t:
    stream: pointer[stream_queue_t] = _stream(queue)
    offset: uint64_t
    ticket: uint64_t = 0  # a confirm reads the port's counter, which is at least that
    if at_load32(address(queue.deleted)):
        return 0
    offset = stream.source.append(stream.source.log, content, 0, address(ticket))
    if offset == NO_OFFSET:
        at_add64(address(stream.refused), 1)
        return 0
    at_add64(address(stream.appended), 1)
    return offset + 1


@cfunc
@nogil
@exceptval(check=False)
def _take_alone(seat: pointer[seat_t], consumer: pointer[consumer_t], out: pointer[delivery_t], asks: pointer[asks_t]) -> c_int:
    """The next message of a consumer that reads for itself. Its send_lock is held."""
    item: pointer[stream_item_t] = NULL
    flagged: pointer[content_t]
    looked: c_int
    outcome: c_int = TAKE_NOTHING
    spin_lock(address(seat.lock))
    looked = cursor_look(address(seat.own), seat.filter, address(item))
    if looked == CURSOR_COLD:
        asks.cursors[asks.count] = address(seat.own)
        asks.count += 1
    elif looked == CURSOR_ITEM:
        if not credit_take(consumer):
            outcome = TAKE_NO_CREDIT
        else:
            outcome = TAKE_DONE
            seat.lent = item.content
            out.slot = address(seat.stream.slot)
            out.position = item.offset + 1
            out.message_id = 0
            out.delivery_count = 0
            out.redelivered = False
            out.rotate = False
            cursor_taken(address(seat.own))
            if seat.own.lost:
                if seat.arena == NULL:
                    seat.arena = arena_new()
                flagged = content_with_field(seat.arena, seat.lent, b"x-stream-lost", seat.own.lost) if seat.arena != NULL else NULL
                if flagged != NULL:
                    content_decref(seat.lent)
                    seat.lent = flagged
                    seat.own.lost = 0
            out.content = seat.lent
            if seat.own.cold and cursor_read_ahead(address(seat.own), seat.filter):
                asks.cursors[asks.count] = address(seat.own)
                asks.count += 1
    spin_unlock(address(seat.lock))
    return outcome


@cfunc
@nogil
@exceptval(check=False)
def _deliver(queue: pointer[queue_t], consumer: pointer[consumer_t], out: pointer[delivery_t]) -> bint:
    stream: pointer[stream_queue_t] = _stream(queue)
    seat: pointer[seat_t] = cast(pointer[seat_t], consumer.reader)
    group: pointer[group_t]
    asks: asks_t
    outcome: c_int
    i: uint32_t
    looked_again: bint = False
    goes_on: bint = False
    asks.count = 0
    asks.more = False
    if seat == NULL:
        return False
    group = seat.group
    spin_lock(address(consumer.send_lock))
    if at_load32(address(queue.deleted)) or at_load32(address(consumer.list)) <= CONSUMER_REMOVED:
        spin_unlock(address(consumer.send_lock))
        return False
    if at_load32(address(consumer.list)) == CONSUMER_NOT_INTERESTED:
        spin_unlock(address(consumer.send_lock))
        return False
    if seat.lent != NULL:
        content_decref(seat.lent)
        seat.lent = NULL
    while True:
        if at_load32(address(consumer.target.suspended)):
            outcome = TAKE_NO_CREDIT
        elif group != NULL:
            outcome = group_take(group, seat, consumer, out, address(asks))
        else:
            outcome = _take_alone(seat, consumer, out, address(asks))
        if outcome == TAKE_DONE:
            break
        if outcome == TAKE_NO_CREDIT:
            manager_move(queue, consumer, CONSUMER_NOT_INTERESTED)
            # Credit that came back before the move was not answered by set_notify_work_desired: see to it here.
            if not at_load32(address(consumer.target.suspended)) and credit_left(consumer):
                manager_move(queue, consumer, CONSUMER_INTERESTED)
                _interested(seat)
                continue
            goes_on = True
            break
        if looked_again:
            break
        # I2: first Interested, then look again.
        manager_move(queue, consumer, CONSUMER_INTERESTED)
        if group != NULL:
            _interested(seat)
            at_store32(address(group.idle), 1)
        looked_again = True
    if outcome == TAKE_DONE:
        at_store64(address(consumer.delivered), consumer.delivered + 1)
        if at_load32(address(consumer.list)) == CONSUMER_INTERESTED:
            manager_move(queue, consumer, CONSUMER_NOTIFIED)  # it stays hot
        if asks.more and group != NULL and at_load32(address(group.member_count)) > 1 and at_load32(address(group.idle)):
            spin_lock(address(queue.manager.lock))
            out.rotate = wake_group_locked(group, True)
            spin_unlock(address(queue.manager.lock))
    spin_unlock(address(consumer.send_lock))
    for i in range(asks.count):
        _ask(stream, asks.cursors[i])
    if goes_on and group != NULL and group_has_work(group):
        stream_wake_group(group, False)
    return outcome == TAKE_DONE


@cfunc
@inline
@nogil
@exceptval(check=False)
def _group_of(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, owner: uint32_t) -> pointer[group_t]:
    """The group whose delivery shows `slot`; NULL: a lone consumer's."""
    stream: pointer[stream_queue_t] = _stream(queue)
    if slot == address(stream.slot) or slot == NULL:
        return NULL
    return cast(pointer[group_t], slot)


@cfunc
@nogil
@exceptval(check=False)
def _settle(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, owner: uint32_t, reason: c_int) -> bint:
    group: pointer[group_t] = _group_of(queue, slot, position, owner)
    freed: bint = False
    if group == NULL:
        if slot == NULL:
            return False
        at_add64(address(_stream(queue).lone_acked), 1)
        return True
    if not group_settle(group, position - 1, owner, reason, address(freed)):
        return False
    if freed:
        stream_wake_group(group, False)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _member(group: pointer[group_t], owner: uint32_t) -> bint:
    """Whether this consumer still consumes."""
    one: uint64_t = 0
    is_known: bint
    spin_lock(address(group.stream.queue.manager.lock))
    is_known = map64_get(address(group.stream.owners), owner, address(one))
    spin_unlock(address(group.stream.queue.manager.lock))
    return is_known


@cfunc
@nogil
@exceptval(check=False)
def _unsent(queue: pointer[queue_t], position: uint64_t, owner: uint32_t) -> void:
    """A lone consumer's message could not be written: it comes next again."""
    stream: pointer[stream_queue_t] = _stream(queue)
    seat: pointer[seat_t]
    consumer: pointer[consumer_t] = NULL
    spin_lock(address(queue.manager.lock))
    seat = stream.lone.first
    while seat != NULL and seat.consumer.id != owner:
        seat = seat.next
    if seat != NULL:
        consumer = seat.consumer
        consumer_incref(consumer)
    spin_unlock(address(queue.manager.lock))
    if consumer == NULL:
        return
    spin_lock(address(seat.lock))
    cursor_move(address(seat.own), position - 1)
    spin_unlock(address(seat.lock))
    stream_wake_seat(seat)
    consumer_decref(consumer)


def stream_release_after(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, owner: uint32_t, delay_ms: int64_t) -> bint:
    group: pointer[group_t] = _group_of(queue, slot, position, owner)
    if group == NULL:
        return slot != NULL  # a lone consumer's nack is an ack, as in RabbitMQ
    if delay_ms < 0:
        # A consumer that is gone did not refuse it: it comes again at once.
        delay_ms = group.stream.delay_ms if group.stream.delay_ms and _member(group, owner) else 0
    if not group_return(group, position - 1, owner, True, delay_ms):
        return False
    stream_wake_group(group, False)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _release(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, owner: uint32_t, delivered: bint) -> bint:
    group: pointer[group_t]
    if delivered:
        return stream_release_after(queue, slot, position, owner, -1)
    group = _group_of(queue, slot, position, owner)
    if group == NULL:
        _unsent(queue, position, owner)
        return True
    if not group_return(group, position - 1, owner, False, 0):
        return False
    stream_wake_group(group, False)
    return True


def stream_next_group(stream: pointer[stream_queue_t], group: pointer[group_t]) -> pointer[group_t]:
    """Groups stay until the stream goes, so one can be used without the lock that its list needs."""
    after: pointer[group_t]
    spin_lock(address(stream.queue.manager.lock))
    after = stream.groups if group == NULL else group.next_group
    spin_unlock(address(stream.queue.manager.lock))
    return after


@cfunc
@inline
@nogil
@exceptval(check=False)
def _seats(seat: pointer[seat_t]) -> pointer[seats_t]:
    """The list that a seat is on. Manager lock held, as for those below."""
    if seat.group == NULL:
        return address(seat.stream.lone)
    return address(seat.group.resting) if seat.resting else address(seat.group.members)


@cfunc
@nogil
@exceptval(check=False)
def _join(seat: pointer[seat_t]) -> void:
    """To the end of its list."""
    seats: pointer[seats_t] = _seats(seat)
    seat.next = NULL
    seat.prev = seats.last
    if seats.last != NULL:
        seats.last.next = seat
    else:
        seats.first = seat
    seats.last = seat


@cfunc
@nogil
@exceptval(check=False)
def _leave(seat: pointer[seat_t]) -> void:
    seats: pointer[seats_t] = _seats(seat)
    check(
        (seat.prev == NULL) == (seats.first == seat) and (seat.next == NULL) == (seats.last == seat),
        b"stream_queue I5 a seat that leaves is on its list",
        seat.consumer.id,
        seat.resting,
    )
    if seat.prev != NULL:
        seat.prev.next = seat.next
    else:
        seats.first = seat.next
    if seat.next != NULL:
        seat.next.prev = seat.prev
    else:
        seats.last = seat.prev
    seat.prev = NULL
    seat.next = NULL


@cfunc
@nogil
@exceptval(check=False)
def _rest(seat: pointer[seat_t], resting: bint) -> void:
    """The seat can't be told anything until its consumer says so (`_changed`), or can again."""
    _leave(seat)
    seat.resting = resting
    _join(seat)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _interested(seat: pointer[seat_t]) -> void:
    """Its consumer went to INTERESTED just now, which needed the manager lock: `resting` is as it was then, or newer (I6)."""
    if seat.group == NULL or not seat.resting:
        return
    spin_lock(address(seat.stream.queue.manager.lock))
    if seat.resting:
        _rest(seat, False)
    spin_unlock(address(seat.stream.queue.manager.lock))


@cfunc
@nogil
@exceptval(check=False)
def _attached(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    stream: pointer[stream_queue_t] = _stream(queue)
    seat: pointer[seat_t] = cast(pointer[seat_t], consumer.reader)
    if seat == NULL:
        return
    spin_lock(address(queue.manager.lock))
    seat.consumer = consumer
    check(seat.prev == NULL and seat.next == NULL, b"stream_queue I5 a seat that comes is on no list", consumer.id, queue.id)
    seat.resting = False
    _join(seat)
    if seat.group != NULL:
        map64_put(address(stream.owners), consumer.id, 1)  # without memory: what it refuses comes again at once
    spin_unlock(address(queue.manager.lock))
    _changed(queue, consumer)


@cfunc
@nogil
@exceptval(check=False)
def _detached(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    stream: pointer[stream_queue_t] = _stream(queue)
    seat: pointer[seat_t] = cast(pointer[seat_t], consumer.reader)
    if seat == NULL:
        return
    spin_lock(address(queue.manager.lock))
    _leave(seat)
    if seat.group != NULL:
        map64_remove(address(stream.owners), consumer.id)
        map64_trim(address(stream.owners))
        if seat.group.woken == seat:
            seat.group.woken = NULL
    spin_unlock(address(queue.manager.lock))
    if seat.group != NULL and group_has_work(seat.group):
        stream_wake_group(seat.group, False)


@cfunc
@nogil
@exceptval(check=False)
def _changed(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    seat: pointer[seat_t] = cast(pointer[seat_t], consumer.reader)
    has_more: bint
    if seat == NULL:
        return
    if seat.group != NULL:
        _interested(seat)
        at_store32(address(seat.group.idle), 1)
        if group_has_work(seat.group):
            stream_wake_group(seat.group, False)
        return
    spin_lock(address(seat.lock))
    has_more = cursor_more(address(seat.own))
    spin_unlock(address(seat.lock))
    if has_more:
        stream_wake_seat(seat)


@cfunc
@nogil
@exceptval(check=False)
def _housekeeping(queue: pointer[queue_t]) -> void:
    """Time passes: messages that are due come back, reads that failed are tried again."""
    stream: pointer[stream_queue_t] = _stream(queue)
    group: pointer[group_t] = stream_next_group(stream, NULL)
    seat: pointer[seat_t]
    due_ms: int64_t = 0
    while group != NULL:
        if group_tick(group, address(due_ms)):
            stream_wake_group(group, False)
        group = stream_next_group(stream, group)
    spin_lock(address(queue.manager.lock))
    seat = stream.lone.first
    while seat != NULL:
        if at_load64(cast(pointer[uint64_t], address(seat.own.retry_ms))):
            manager_notify_locked(queue, seat.consumer)
        seat = seat.next
    spin_unlock(address(queue.manager.lock))


@cfunc
@nogil
@exceptval(check=False)
def _figure(queue: pointer[queue_t], which: c_int) -> uint64_t:
    stream: pointer[stream_queue_t] = _stream(queue)
    group: pointer[group_t]
    visible: uint64_t
    first: uint64_t
    held: uint64_t = 0
    if which == FIGURE_READY:
        first = stream.source.first(stream.source.log)
        visible = stream.source.visible(stream.source.log)
        return visible - first if visible > first else 0
    if which == FIGURE_READY_BYTES:
        return stream.source.bytes(stream.source.log)
    if which == FIGURE_ENQUEUED:
        return at_load64(address(stream.appended))
    group = stream_next_group(stream, NULL)
    while group != NULL:
        held += at_load32(address(group.open.held))
        group = stream_next_group(stream, group)
    return held


@cfunc
@nogil
@exceptval(check=False)
def _free_reader(reader: p_void) -> void:
    seat_free(cast(pointer[seat_t], reader))


def seat_free(seat: pointer[seat_t]) -> void:
    if seat.lent != NULL:
        content_decref(seat.lent)
    if seat.group != NULL:
        check(at_sub32(address(seat.group.member_count), 1) > 0, b"stream_queue I5 a member that goes was counted", 0, 0)
    else:
        cursor_free(address(seat.own))
        if seat.filter != NULL:
            stream_filter_free(seat.filter)
    if seat.arena != NULL:
        arena_free(seat.arena)
    memory_add(MEMORY_STREAMS, -cast(int64_t, sizeof(seat_t) + SEAT_BESIDE))
    free(seat)


@cfunc
@nogil
@exceptval(check=False)
def _destroy(queue: pointer[queue_t]) -> void:
    """Nobody has a reference: no consumer, no read, no publisher. Only the writer may still be telling."""
    stream: pointer[stream_queue_t] = _stream(queue)
    group: pointer[group_t]
    after: pointer[group_t]
    stream.source.listen(stream.source.log, NULL, NULL)
    group = stream.groups
    while group != NULL:
        after = group.next_group
        group_free(group)
        group = after
    map64_free(address(stream.owners))
    stream.source.decref(stream.source.log)
    if stream.due != NULL:
        due_clock_decref(stream.due)
    free(stream)


def stream_install(queue: pointer[queue_t], stream: pointer[stream_queue_t]) -> void:
    stream.queue = queue
    stream.slot.state = ENTRY_ACQUIRED | ENTRY_NOT_RESIDENT  # its content is not to be read
    queue_set_ops(queue, address(_ops), stream)
    stream.source.listen(stream.source.log, _on_visible, stream)


_ops.enqueue = _enqueue
_ops.deliver = _deliver
_ops.settle = _settle
_ops.release = _release
_ops.attached = _attached
_ops.detached = _detached
_ops.changed = _changed
_ops.housekeeping = _housekeeping
_ops.figure = _figure
_ops.free_reader = _free_reader
_ops.destroy = _destroy


# --- consumers are told that a stream has a message for them ----------------------------------------------------------------------


def wake_group_locked(group: pointer[group_t], others: bint) -> bint:
    seat: pointer[seat_t]
    passed: pointer[seat_t] = NULL  # the first one that was told before
    count: c_int = 0
    outcome: c_int
    if at_load32(address(group.stream.queue.deleted)):
        return False
    if not others and group.woken != NULL and group.woken.consumer.list == CONSUMER_NOTIFIED:
        return False
    at_store32(address(group.idle), 0)
    while group.members.first != NULL and group.members.first != passed and count < WOKEN_PASSED_MAX:
        seat = group.members.first
        group.looked += 1
        outcome = manager_notify_locked(group.stream.queue, seat.consumer)
        if outcome == NOTIFY_NOT:
            _rest(seat, True)
            continue
        _leave(seat)  # the one that was woken is the last to be woken next
        _join(seat)
        if outcome == NOTIFY_DONE:
            group.woken = seat
            at_store32(address(group.idle), 1)
            return True
        if not others:
            group.woken = seat
            return False
        if passed == NULL:
            passed = seat
        count += 1
    if count == WOKEN_PASSED_MAX:
        at_store32(address(group.idle), 1)  # the next call looks on from here
    return False


def stream_wake_group(group: pointer[group_t], others: bint) -> void:
    lock: pointer[uint32_t] = address(group.stream.queue.manager.lock)
    spin_lock(lock)
    wake_group_locked(group, others)
    spin_unlock(lock)


def stream_wake_seat(seat: pointer[seat_t]) -> void:
    lock: pointer[uint32_t] = address(seat.stream.queue.manager.lock)
    spin_lock(lock)
    if seat.consumer != NULL:
        manager_notify_locked(seat.stream.queue, seat.consumer)
    spin_unlock(lock)


def stream_wake_all(stream: pointer[stream_queue_t]) -> void:
    group: pointer[group_t]
    seat: pointer[seat_t]
    spin_lock(address(stream.queue.manager.lock))
    seat = stream.lone.first
    while seat != NULL:
        manager_notify_locked(stream.queue, seat.consumer)
        seat = seat.next
    group = stream.groups
    while group != NULL:
        wake_group_locked(group, False)
        group = group.next_group
    spin_unlock(address(stream.queue.manager.lock))
