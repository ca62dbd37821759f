"""Queues say that they have something to do (see due.pxd).

in: the queue core, when an entry that expires comes or comes back, and after work. out: lists that queue/due_index.py gives to the broker.

I1  A queue whose first entry expires at t has due_at <= t, or it is on `due`, once due_expiry has returned; or the index is just asking it
    (QueueHandle.rearm), and asks under the list lock after it has forgotten the old time: it sees the entry then.
I2  A queue that worked since its last housekeeping is on `worked`.
I3  What is on a list is counted: a queue lives as long as it stands there.
"""

from __future__ import annotations

from cython import NULL, address, cast, pointer, void
from cython.cimports.flintmq.core.atomics import at_add32, at_cas64, at_load64, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.queue.types import due_index_t, queue_t
from cython.cimports.libc.stdint import int64_t, uint64_t


def due_expiry(queue: pointer[queue_t]) -> void:
    expiry_ms: uint64_t = at_load64(cast(pointer[uint64_t], address(queue.entries.expiry_min)))
    due_at: pointer[uint64_t] = cast(pointer[uint64_t], address(queue.due_at))
    known: uint64_t
    index: pointer[due_index_t] = queue.due
    if index == NULL or expiry_ms == 0:
        return
    while True:
        known = at_load64(due_at)
        if known != 0 and known <= expiry_ms:
            return
        if at_cas64(due_at, known, expiry_ms):
            break
    spin_lock(address(index.lock))
    if not queue.due_listed:
        queue.due_listed = 1
        check(at_add32(address(queue.refs), 1) > 0, b"due I3 a queue that is due is alive", queue.id, 0)
        queue.due_next = index.due
        index.due = queue
    if index.soon != NULL:
        index.soon(index.context, cast(int64_t, expiry_ms))
    spin_unlock(address(index.lock))


def due_list_worked(queue: pointer[queue_t]) -> void:
    index: pointer[due_index_t] = queue.due
    if at_swap32(address(queue.worked), 1):
        return
    check(at_add32(address(queue.refs), 1) > 0, b"due I3 a queue that worked is alive", queue.id, 0)
    spin_lock(address(index.lock))
    queue.worked_next = index.worked
    index.worked = queue
    spin_unlock(address(index.lock))
