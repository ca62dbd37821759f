"""Who is told that a stream has something for it (see wakes.pxd).

in: the writer made more visible, a message came back, a read is there. out: consumers on their channels' work lists.

I1  Of a group one member is told; the next one when the first is served and there is more (stream_queue).
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.queue.consumer_manager import NOTIFY_DONE, manager_notify_locked
from cython.cimports.flintmq.queue.types import CONSUMER_NOTIFIED
from cython.cimports.flintmq.streams.types import group_t, seat_t
from cython.cimports.libc.stdint import uint32_t


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _to_tail(group: cython.pointer(group_t), seat: cython.pointer(seat_t)) -> cython.void:
    """The one that was woken is the last to be woken next. Manager lock held."""
    last: cython.pointer(seat_t) = seat
    if seat.next == cython.NULL:
        return
    while last.next != cython.NULL:
        last = last.next
    if seat.prev != cython.NULL:
        seat.prev.next = seat.next
    else:
        group.members = seat.next
    seat.next.prev = seat.prev
    last.next = seat
    seat.prev = last
    seat.next = cython.NULL


def wake_group_locked(group, others):
    seat: cython.pointer(seat_t)
    if not others:
        seat = group.members
        while seat != cython.NULL:
            if seat.consumer.list == CONSUMER_NOTIFIED:
                return False
            seat = seat.next
    at_store32(cython.address(group.idle), 0)
    seat = group.members
    while seat != cython.NULL:
        if manager_notify_locked(group.stream.queue, seat.consumer) == NOTIFY_DONE:
            at_store32(cython.address(group.idle), 1)
            _to_tail(group, seat)
            return True
        seat = seat.next
    return False


def stream_wake_group(group, others):
    lock: cython.pointer(uint32_t) = cython.address(group.stream.queue.manager.lock)
    spin_lock(lock)
    wake_group_locked(group, others)
    spin_unlock(lock)


def stream_wake_seat(seat):
    lock: cython.pointer(uint32_t) = cython.address(seat.stream.queue.manager.lock)
    spin_lock(lock)
    if seat.consumer != cython.NULL:
        manager_notify_locked(seat.stream.queue, seat.consumer)
    spin_unlock(lock)


def stream_wake_all(stream):
    group: cython.pointer(group_t)
    seat: cython.pointer(seat_t)
    spin_lock(cython.address(stream.queue.manager.lock))
    seat = stream.lone
    while seat != cython.NULL:
        manager_notify_locked(stream.queue, seat.consumer)
        seat = seat.next
    group = stream.groups
    while group != cython.NULL:
        wake_group_locked(group, False)
        group = group.next_group
    spin_unlock(cython.address(stream.queue.manager.lock))
