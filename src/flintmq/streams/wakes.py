"""Who is told that a stream has something for it (see wakes.pxd).

in: the writer made more visible, a message came back, a read is there. out: consumers on their channels' work lists.

I1  Of a group one member is told; the next one when the first is served and there is more (stream_queue).
"""

from __future__ import annotations

from cython import NULL, address, bint, cfunc, exceptval, nogil, pointer, void
from cython.cimports.flintmq.core.atomics import at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.queue.consumer_manager import NOTIFY_DONE, manager_notify_locked
from cython.cimports.flintmq.queue.types import CONSUMER_NOTIFIED
from cython.cimports.flintmq.streams.types import group_t, seat_t, stream_queue_t
from cython.cimports.libc.stdint import uint32_t


@cfunc
@nogil
@exceptval(check=False)
def _to_tail(group: pointer[group_t], seat: pointer[seat_t]) -> void:
    """The one that was woken is the last to be woken next. Manager lock held."""
    last: pointer[seat_t] = seat
    if seat.next == NULL:
        return
    while last.next != NULL:
        last = last.next
    if seat.prev != NULL:
        seat.prev.next = seat.next
    else:
        group.members = seat.next
    seat.next.prev = seat.prev
    last.next = seat
    seat.prev = last
    seat.next = NULL


def wake_group_locked(group: pointer[group_t], others: bint) -> bint:
    seat: pointer[seat_t]
    if not others:
        seat = group.members
        while seat != NULL:
            if seat.consumer.list == CONSUMER_NOTIFIED:
                return False
            seat = seat.next
    at_store32(address(group.idle), 0)
    seat = group.members
    while seat != NULL:
        if manager_notify_locked(group.stream.queue, seat.consumer) == NOTIFY_DONE:
            at_store32(address(group.idle), 1)
            _to_tail(group, seat)
            return True
        seat = seat.next
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
    seat = stream.lone
    while seat != NULL:
        manager_notify_locked(stream.queue, seat.consumer)
        seat = seat.next
    group = stream.groups
    while group != NULL:
        wake_group_locked(group, False)
        group = group.next_group
    spin_unlock(address(stream.queue.manager.lock))
