"""Arrivals in lists that are not in order (see arrivals.pxd): beside the path of a message, which has no room for what they need.

in: an entry that is available, perhaps in front of others. out: its kind told, consumers and waiting requests woken.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_load_ptr
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_wake_waiters
from cython.cimports.flintmq.queue.list_kinds import kind_arrived
from cython.cimports.flintmq.queue.pull import queue_offer


def arrived_between(queue, position, content, wanted):
    before: cython.bint = (position >> 56) != queue.entries.level_count - 1
    kind_arrived(queue, position, content)
    if wanted:
        if not before and at_load_ptr(cython.address(queue.manager.exclusive)) != cython.NULL and queue_offer(queue, position):
            return
        manager_available(queue, content, True)
    if before:
        manager_wake_waiters(queue)  # it is served before the head they wait for
