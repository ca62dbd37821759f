"""Arrivals in lists that are not in order (see arrivals.pxd): beside the path of a message, which has no room for what they need.

in: an entry that is available, perhaps in front of others. out: its kind told, consumers and waiting requests woken.
"""

from __future__ import annotations

from cython import NULL, address, bint, pointer, void
from cython.cimports.flintmq.core.atomics import at_load_ptr
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_wake_waiters
from cython.cimports.flintmq.queue.list_kinds import kind_arrived
from cython.cimports.flintmq.queue.pull import queue_offer
from cython.cimports.flintmq.queue.types import queue_t
from cython.cimports.libc.stdint import uint32_t, uint64_t


def arrived_between(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t], wanted: uint32_t) -> void:
    before: bint = (position >> 56) != queue.entries.level_count - 1
    kind_arrived(queue, position, content)
    if wanted:
        if not before and at_load_ptr(address(queue.manager.exclusive)) != NULL and queue_offer(queue, position):
            return
        manager_available(queue, position, content, True)
    if before:
        manager_wake_waiters(queue)  # it is served before the head they wait for
