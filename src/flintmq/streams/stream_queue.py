"""A stream as a queue of the core: the functions behind queue_ops_t, and who is woken for what (see stream_queue.pxd).

in: publishers, consumers' loops, the log's writer (more is visible), answers of cold reads, time. out: deliveries in offset order,
wakes of consumers, requests for cold reads.

I1  A lone consumer sees every offset from its start on, in order; a group gives each offset to one member at a time (group.py).
I2  No lost wake: who makes something available (visible, returned, read, freed) then takes the manager lock and tells who is on
    INTERESTED; who finds nothing moves to INTERESTED under that lock first, then looks again. So either the look sees it or the lock does.
I3  A cursor with a read under way keeps its queue, and a lone consumer's also its consumer, until cursor_answered.
I4  No lock is held while a read is asked for; the manager lock and a group's or seat's lock are never held together.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import (
    at_add64,
    at_load32,
    at_load64,
    at_store32,
    at_store64,
    at_sub32,
    spin_lock,
    spin_unlock,
)
from cython.cimports.flintmq.core.content import arena_free, arena_new, content_decref, content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_STREAMS, memory_add
from cython.cimports.flintmq.queue.consumer_manager import (
    credit_left,
    credit_take,
    manager_move,
    manager_notify_locked,
)
from cython.cimports.flintmq.queue.queue_core import consumer_decref, consumer_incref, queue_decref, queue_incref, queue_set_ops
from cython.cimports.flintmq.queue.types import (
    CONSUMER_INTERESTED,
    CONSUMER_NOT_INTERESTED,
    CONSUMER_NOTIFIED,
    CONSUMER_REMOVED,
    ENTRY_ACQUIRED,
    ENTRY_NOT_RESIDENT,
    FIGURE_ENQUEUED,
    FIGURE_READY,
    FIGURE_READY_BYTES,
    consumer_t,
    delivery_t,
    queue_ops_t,
    queue_t,
    slot_t,
)
from cython.cimports.flintmq.scheduler.due_clock import due_clock_decref
from cython.cimports.flintmq.store.stream.stream_batch import stream_filter_free, stream_item_t
from cython.cimports.flintmq.streams.cursor import (
    CURSOR_COLD,
    CURSOR_ITEM,
    NO_OFFSET,
    cursor_free,
    cursor_look,
    cursor_more,
    cursor_move,
    cursor_read,
    cursor_read_ahead,
    cursor_read_failed,
    cursor_taken,
)
from cython.cimports.flintmq.streams.group import (
    TAKE_DONE,
    TAKE_NO_CREDIT,
    TAKE_NOTHING,
    asks_t,
    group_extend,
    group_free,
    group_has_work,
    group_return,
    group_return_owner,
    group_settle,
    group_take,
    group_tick,
)
from cython.cimports.flintmq.streams.lost_header import content_with_lost
from cython.cimports.flintmq.streams.types import cursor_t, group_t, seat_t, stream_queue_t
from cython.cimports.flintmq.streams.wakes import stream_wake_all, stream_wake_group, stream_wake_seat, wake_group_locked
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free

_ops = cython.declare(queue_ops_t)


def stream_of(queue):
    if queue.ops != cython.address(_ops):
        return cython.NULL
    return cython.cast(cython.pointer(stream_queue_t), queue.ops_context)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _stream(queue: cython.pointer(queue_t)) -> cython.pointer(stream_queue_t):
    return cython.cast(cython.pointer(stream_queue_t), queue.ops_context)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _on_visible(context: cython.p_void) -> cython.void:
    """The writer made more visible: one wake for each lone consumer and each group."""
    stream: cython.pointer(stream_queue_t) = cython.cast(cython.pointer(stream_queue_t), context)
    at_add64(cython.address(stream.wakes), 1)
    stream_wake_all(stream)


# --- cold reads -----------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _ask(stream: cython.pointer(stream_queue_t), cursor: cython.pointer(cursor_t)) -> cython.void:
    """Has the cursor's request processed. Called without locks by who set READ_ASKED, while the owner lives."""
    queue_incref(stream.queue)
    if cursor.seat != cython.NULL:
        consumer_incref(cursor.seat.consumer)
    if stream.ask != cython.NULL:
        stream.ask(stream.ask_context, cursor)
        return
    cursor_read(cursor)
    cursor_answered(cursor)


def cursor_answered(cursor):
    queue: cython.pointer(queue_t) = cursor.stream.queue
    consumer: cython.pointer(consumer_t) = cython.NULL
    if cursor.seat != cython.NULL:
        consumer = cursor.seat.consumer
        stream_wake_seat(cursor.seat)
    else:
        stream_wake_group(cursor.group, False)
    if consumer != cython.NULL:
        consumer_decref(consumer)
    queue_decref(queue)


def cursor_refused(cursor):
    cursor_read_failed(cursor)
    cursor_answered(cursor)


# --- queue_ops_t ----------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _enqueue(
    queue: cython.pointer(queue_t), content: cython.pointer(content_t), expires_at_ms: int64_t, lsn: cython.pointer(uint64_t)
) -> uint64_t:
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    offset: uint64_t
    if at_load32(cython.address(queue.deleted)):
        return 0
    offset = stream.source.append(stream.source.log, content)
    if offset == NO_OFFSET:
        at_add64(cython.address(stream.refused), 1)
        return 0
    at_add64(cython.address(stream.appended), 1)
    return offset + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _take_alone(
    seat: cython.pointer(seat_t), consumer: cython.pointer(consumer_t), out: cython.pointer(delivery_t), asks: cython.pointer(asks_t)
) -> cython.int:
    """The next message of a consumer that reads for itself. Its send_lock is held."""
    found: cython.pointer(stream_item_t) = cython.NULL
    told: cython.pointer(content_t)
    looked: cython.int
    outcome: cython.int = TAKE_NOTHING
    spin_lock(cython.address(seat.lock))
    looked = cursor_look(cython.address(seat.own), seat.filter, cython.address(found))
    if looked == CURSOR_COLD:
        asks.cursors[asks.count] = cython.address(seat.own)
        asks.count += 1
    elif looked == CURSOR_ITEM:
        if not credit_take(consumer):
            outcome = TAKE_NO_CREDIT
        else:
            outcome = TAKE_DONE
            seat.lent = found.content
            out.slot = cython.address(seat.stream.slot)
            out.position = found.offset + 1
            out.message_id = 0
            out.delivery_count = 0
            out.redelivered = False
            out.rotate = False
            cursor_taken(cython.address(seat.own))
            if seat.own.lost:
                if seat.arena == cython.NULL:
                    seat.arena = arena_new()
                told = content_with_lost(seat.arena, seat.lent, seat.own.lost) if seat.arena != cython.NULL else cython.NULL
                if told != cython.NULL:
                    content_decref(seat.lent)
                    seat.lent = told
                    seat.own.lost = 0
            out.content = seat.lent
            if seat.own.cold and cursor_read_ahead(cython.address(seat.own), seat.filter):
                asks.cursors[asks.count] = cython.address(seat.own)
                asks.count += 1
    spin_unlock(cython.address(seat.lock))
    return outcome


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _deliver(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t), out: cython.pointer(delivery_t)) -> cython.bint:
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    seat: cython.pointer(seat_t) = cython.cast(cython.pointer(seat_t), consumer.reader)
    group: cython.pointer(group_t)
    asks: asks_t
    outcome: cython.int
    i: uint32_t
    looked_again: cython.bint = False
    left: cython.bint = False
    asks.count = 0
    asks.more = False
    if seat == cython.NULL:
        return False
    group = seat.group
    spin_lock(cython.address(consumer.send_lock))
    if at_load32(cython.address(queue.deleted)) or at_load32(cython.address(consumer.list)) <= CONSUMER_REMOVED:
        spin_unlock(cython.address(consumer.send_lock))
        return False
    if at_load32(cython.address(consumer.list)) == CONSUMER_NOT_INTERESTED:
        spin_unlock(cython.address(consumer.send_lock))
        return False
    if seat.lent != cython.NULL:
        content_decref(seat.lent)
        seat.lent = cython.NULL
    while True:
        if at_load32(cython.address(consumer.target.suspended)):
            outcome = TAKE_NO_CREDIT
        elif group != cython.NULL:
            outcome = group_take(group, seat, consumer, out, cython.address(asks))
        else:
            outcome = _take_alone(seat, consumer, out, cython.address(asks))
        if outcome == TAKE_DONE:
            break
        if outcome == TAKE_NO_CREDIT:
            manager_move(queue, consumer, CONSUMER_NOT_INTERESTED)
            # Credit that came back before the move was not answered by set_notify_work_desired: see to it here.
            if not at_load32(cython.address(consumer.target.suspended)) and credit_left(consumer):
                manager_move(queue, consumer, CONSUMER_INTERESTED)
                continue
            left = True
            break
        if looked_again:
            break
        # I2: first Interested, then look again.
        manager_move(queue, consumer, CONSUMER_INTERESTED)
        if group != cython.NULL:
            at_store32(cython.address(group.idle), 1)
        looked_again = True
    if outcome == TAKE_DONE:
        at_store64(cython.address(consumer.delivered), consumer.delivered + 1)
        if at_load32(cython.address(consumer.list)) == CONSUMER_INTERESTED:
            manager_move(queue, consumer, CONSUMER_NOTIFIED)  # it stays hot
        if (
            asks.more
            and group != cython.NULL
            and at_load32(cython.address(group.member_count)) > 1
            and at_load32(cython.address(group.idle))
        ):
            spin_lock(cython.address(queue.manager.lock))
            out.rotate = wake_group_locked(group, True)
            spin_unlock(cython.address(queue.manager.lock))
    spin_unlock(cython.address(consumer.send_lock))
    for i in range(asks.count):
        _ask(stream, asks.cursors[i])
    if left and group != cython.NULL and group_has_work(group):
        stream_wake_group(group, False)
    return outcome == TAKE_DONE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _group_of(queue: cython.pointer(queue_t), slot: cython.pointer(slot_t), position: uint64_t, owner: uint32_t) -> cython.pointer(group_t):
    """The group whose delivery shows `slot`; NULL: a lone consumer's."""
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    if slot == cython.address(stream.slot) or slot == cython.NULL:
        return cython.NULL
    return cython.cast(cython.pointer(group_t), slot)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _settle(
    queue: cython.pointer(queue_t), slot: cython.pointer(slot_t), position: uint64_t, owner: uint32_t, reason: cython.int
) -> cython.bint:
    group: cython.pointer(group_t) = _group_of(queue, slot, position, owner)
    freed: cython.bint = False
    if group == cython.NULL:
        if slot == cython.NULL:
            return False
        at_add64(cython.address(_stream(queue).lone_acked), 1)
        return True
    if not group_settle(group, position - 1, owner, reason, cython.address(freed)):
        return False
    if freed:
        stream_wake_group(group, False)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _member(group: cython.pointer(group_t), owner: uint32_t) -> cython.bint:
    """Whether this consumer still consumes. O(members)."""
    seat: cython.pointer(seat_t)
    found: cython.bint = False
    spin_lock(cython.address(group.stream.queue.manager.lock))
    seat = group.members
    while seat != cython.NULL and not found:
        found = seat.consumer.id == owner
        seat = seat.next
    spin_unlock(cython.address(group.stream.queue.manager.lock))
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unsent(queue: cython.pointer(queue_t), position: uint64_t, owner: uint32_t) -> cython.void:
    """A lone consumer's message could not be written: it comes next again."""
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    seat: cython.pointer(seat_t)
    consumer: cython.pointer(consumer_t) = cython.NULL
    spin_lock(cython.address(queue.manager.lock))
    seat = stream.lone
    while seat != cython.NULL and seat.consumer.id != owner:
        seat = seat.next
    if seat != cython.NULL:
        consumer = seat.consumer
        consumer_incref(consumer)
    spin_unlock(cython.address(queue.manager.lock))
    if consumer == cython.NULL:
        return
    spin_lock(cython.address(seat.lock))
    cursor_move(cython.address(seat.own), position - 1)
    spin_unlock(cython.address(seat.lock))
    stream_wake_seat(seat)
    consumer_decref(consumer)


def stream_release_after(queue, slot, position, owner, delay_ms):
    group: cython.pointer(group_t) = _group_of(queue, slot, position, owner)
    if group == cython.NULL:
        return slot != cython.NULL  # a lone consumer's nack is an ack, as in RabbitMQ
    if delay_ms < 0:
        # Who is gone did not refuse it: then it comes again at once.
        delay_ms = group.stream.delay_ms if group.stream.delay_ms and _member(group, owner) else 0
    if not group_return(group, position - 1, owner, True, delay_ms):
        return False
    stream_wake_group(group, False)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _release(
    queue: cython.pointer(queue_t), slot: cython.pointer(slot_t), position: uint64_t, owner: uint32_t, delivered: cython.bint
) -> cython.bint:
    group: cython.pointer(group_t)
    if delivered:
        return stream_release_after(queue, slot, position, owner, -1)
    group = _group_of(queue, slot, position, owner)
    if group == cython.NULL:
        _unsent(queue, position, owner)
        return True
    if not group_return(group, position - 1, owner, False, 0):
        return False
    stream_wake_group(group, False)
    return True


def stream_extend(queue, slot, position, owner, visibility_ms):
    group: cython.pointer(group_t) = _group_of(queue, slot, position, owner)
    return group != cython.NULL and group_extend(group, position - 1, owner, visibility_ms)


def stream_release_owner(queue, owner):
    stream: cython.pointer(stream_queue_t) = stream_of(queue)
    group: cython.pointer(group_t)
    returned: uint32_t = 0
    came: uint32_t
    if stream == cython.NULL:
        return 0
    group = stream_next_group(stream, cython.NULL)
    while group != cython.NULL:
        came = group_return_owner(group, owner)
        if came:
            returned += came
            stream_wake_group(group, False)
        group = stream_next_group(stream, group)
    return returned


def stream_next_group(stream, group):
    """Groups stay until the stream goes, so one can be used without the lock that its list needs."""
    after: cython.pointer(group_t)
    spin_lock(cython.address(stream.queue.manager.lock))
    after = stream.groups if group == cython.NULL else group.next_group
    spin_unlock(cython.address(stream.queue.manager.lock))
    return after


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _attached(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t)) -> cython.void:
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    seat: cython.pointer(seat_t) = cython.cast(cython.pointer(seat_t), consumer.reader)
    last: cython.pointer(seat_t)
    if seat == cython.NULL:
        return
    spin_lock(cython.address(queue.manager.lock))
    seat.consumer = consumer
    seat.prev = cython.NULL
    seat.next = cython.NULL
    if seat.group == cython.NULL:
        seat.next = stream.lone
        if stream.lone != cython.NULL:
            stream.lone.prev = seat
        stream.lone = seat
    elif seat.group.members == cython.NULL:
        seat.group.members = seat
    else:
        last = seat.group.members
        while last.next != cython.NULL:
            last = last.next
        last.next = seat
        seat.prev = last
    spin_unlock(cython.address(queue.manager.lock))
    _changed(queue, consumer)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _detached(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t)) -> cython.void:
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    seat: cython.pointer(seat_t) = cython.cast(cython.pointer(seat_t), consumer.reader)
    if seat == cython.NULL:
        return
    spin_lock(cython.address(queue.manager.lock))
    if seat.prev != cython.NULL:
        seat.prev.next = seat.next
    elif seat.group != cython.NULL:
        seat.group.members = seat.next
    else:
        stream.lone = seat.next
    if seat.next != cython.NULL:
        seat.next.prev = seat.prev
    seat.prev = cython.NULL
    seat.next = cython.NULL
    spin_unlock(cython.address(queue.manager.lock))
    if seat.group != cython.NULL and group_has_work(seat.group):
        stream_wake_group(seat.group, False)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _changed(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t)) -> cython.void:
    seat: cython.pointer(seat_t) = cython.cast(cython.pointer(seat_t), consumer.reader)
    more: cython.bint
    if seat == cython.NULL:
        return
    if seat.group != cython.NULL:
        at_store32(cython.address(seat.group.idle), 1)
        if group_has_work(seat.group):
            stream_wake_group(seat.group, False)
        return
    spin_lock(cython.address(seat.lock))
    more = cursor_more(cython.address(seat.own))
    spin_unlock(cython.address(seat.lock))
    if more:
        stream_wake_seat(seat)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _housekeeping(queue: cython.pointer(queue_t)) -> cython.void:
    """Time passes: what is due comes back, reads that failed are tried again."""
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    group: cython.pointer(group_t) = stream_next_group(stream, cython.NULL)
    seat: cython.pointer(seat_t)
    due_ms: int64_t = 0
    while group != cython.NULL:
        if group_tick(group, cython.address(due_ms)):
            stream_wake_group(group, False)
        group = stream_next_group(stream, group)
    spin_lock(cython.address(queue.manager.lock))
    seat = stream.lone
    while seat != cython.NULL:
        if at_load64(cython.cast(cython.pointer(uint64_t), cython.address(seat.own.retry_ms))):
            manager_notify_locked(queue, seat.consumer)
        seat = seat.next
    spin_unlock(cython.address(queue.manager.lock))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _figure(queue: cython.pointer(queue_t), which: cython.int) -> uint64_t:
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    group: cython.pointer(group_t)
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
        return at_load64(cython.address(stream.appended))
    group = stream_next_group(stream, cython.NULL)
    while group != cython.NULL:
        held += at_load32(cython.address(group.open.held))
        group = stream_next_group(stream, group)
    return held


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _free_reader(reader: cython.p_void) -> cython.void:
    seat_free(cython.cast(cython.pointer(seat_t), reader))


def seat_free(seat):
    if seat.lent != cython.NULL:
        content_decref(seat.lent)
    if seat.group != cython.NULL:
        at_sub32(cython.address(seat.group.member_count), 1)
    else:
        cursor_free(cython.address(seat.own))
        if seat.filter != cython.NULL:
            stream_filter_free(seat.filter)
    if seat.arena != cython.NULL:
        arena_free(seat.arena)
    memory_add(MEMORY_STREAMS, -cython.cast(int64_t, cython.sizeof(seat_t)))
    free(seat)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _destroy(queue: cython.pointer(queue_t)) -> cython.void:
    """Nobody has a reference: no consumer, no read, no publisher. Only the writer may still be telling."""
    stream: cython.pointer(stream_queue_t) = _stream(queue)
    group: cython.pointer(group_t)
    after: cython.pointer(group_t)
    stream.source.listen(stream.source.log, cython.NULL, cython.NULL)
    group = stream.groups
    while group != cython.NULL:
        after = group.next_group
        group_free(group)
        group = after
    stream.source.release(stream.source.log)
    if stream.due != cython.NULL:
        due_clock_decref(stream.due)
    free(stream)


def stream_install(queue, stream):
    stream.queue = queue
    stream.slot.state = ENTRY_ACQUIRED | ENTRY_NOT_RESIDENT  # its content is not to be read
    queue_set_ops(queue, cython.address(_ops), stream)
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
